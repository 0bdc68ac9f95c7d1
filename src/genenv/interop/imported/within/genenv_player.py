# pyright: basic, reportMissingImports=false
"""Runs rollouts of verifiers in a Python that has that package: `python -m genenv_player`.

It needs nothing of genenv. The first line of its input is JSON: `taskset`, `path`, `harness`, `env`,
`max_turns`, and `roles`, the agents of the environment whose replies are asked for, each a seat. Each further
line is an order: `begin` (`id`, `given`, `row`), `reply` (`id`, `content`, `calls`), `end` (`id`), `count`
(`id`, `given`, `most`). Each line of output answers an order: what to reply to (`asks`: new messages, tools,
and the `seat` that is asked), the end of a rollout (`ended`: an error, or `seats`: the reward and its parts
of each role), or a count. Verifiers' model endpoint is a local server with a path for each role; it passes
each request on as output and waits for a `reply`.

`harness_module` has a verifiers harness inside this process: it requests a reply and runs its tool calls
until there are none.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import logging
import os
import sys
import threading
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

WANTED = "0.4"
"""The version of verifiers."""
_LAST_S = 5.0
REPLIES = "genenv_replies"
"""The name of the module by which verifiers imports the harness."""


def said(error: BaseException) -> str:
    """Return an error as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]


def harness_module() -> types.ModuleType:
    """Return a module with the harness, for verifiers to import; verifiers must be importable."""
    import verifiers.v1 as vf
    from openai import AsyncOpenAI
    from verifiers.v1.dialects.chat import message_to_wire
    from verifiers.v1.harnesses.utils.mcp import connect_mcp

    class RepliesConfig(vf.HarnessConfig):
        """The harness has no settings."""

    class RepliesHarness(vf.Harness[RepliesConfig]):
        """Requests replies from the model endpoint and runs their tool calls."""

        APPENDS_SYSTEM_PROMPT = True
        SUPPORTS_MCP = True
        SUPPORTS_RESUME = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data) -> Any:  # noqa: ANN001, ANN401, PLR0913
            """Run the conversation until a reply has no tool calls."""
            del trace, runtime
            system, prompt = self.resolve_prompt(data)
            messages: list[Any] = [] if system is None else [{"role": "system", "content": system}]
            if isinstance(prompt, str):
                messages.append({"role": "user", "content": prompt})
            else:
                messages += [message_to_wire(one) for one in prompt or ()]
            config = {"mcpServers": {name: {"url": url} for name, url in mcp_urls.items()}}
            async with contextlib.AsyncExitStack() as stack:
                tools, where, servers = await connect_mcp(config, stack)
                offered: dict[str, Any] = {"tools": tools} if tools else {}
                client = await stack.enter_async_context(
                    AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0, timeout=None)
                )
                while True:
                    answer = await client.chat.completions.create(
                        model=ctx.model, messages=messages, **offered
                    )
                    said = answer.choices[0].message.model_dump(exclude_none=True)
                    messages.append(said)
                    if not said.get("tool_calls"):
                        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
                    for call in said["tool_calls"]:
                        found = await _called(call["function"], where, servers)
                        messages.append({"role": "tool", "tool_call_id": call["id"], "content": found})

    module = types.ModuleType(REPLIES)
    for made in (RepliesConfig, RepliesHarness):
        made.__module__ = REPLIES
    module.RepliesHarness = RepliesHarness  # type: ignore[attr-defined]
    module.__all__ = ["RepliesHarness"]  # type: ignore[attr-defined]
    module.__spec__ = None
    return module


async def _called(call: Any, where: Any, servers: Any) -> Any:  # noqa: ANN401 - of verifiers
    """Return the result of a tool call, or an error sentence."""
    from verifiers.v1.harnesses.utils.mcp import call_mcp

    if call["name"] not in where:
        return f"Error: there is no tool {call['name']!r}."
    try:
        return await call_mcp(servers, where, call["name"], json.loads(call["arguments"] or "{}"))
    except Exception as error:  # noqa: BLE001 - a tool may raise anything
        return f"Error: {said(error)}"


class Cannot(Exception):
    """Raised if a rollout cannot be run as ordered. The message is a sentence."""


class Attempt:
    """A rollout in progress: its task and the reply that it waits for."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.reply: asyncio.Future[dict[str, Any]] | None = None
        self.turn = asyncio.Lock()
        """Held while a role waits for its reply: other roles wait for it."""
        self.asking: set[str] = set()
        """The roles that wait for a reply."""
        self.said: dict[str, list[Any]] = {}
        """The conversation of each role so far, in the normalized form of `_plain`."""
        self.problem = ""


class Rows:
    """An opened verifiers environment, and its tasks as far as they were read."""

    def __init__(self, env: Any) -> None:  # noqa: ANN401 - vf.Env
        self.env = env
        self.stop = asyncio.Event()
        self.serving: asyncio.Task[None] | None = None
        self._tasks: list[Any] = []
        self._more = iter(env.taskset)

    def upto(self, count: int) -> int:
        """Read tasks until there are `count`, and return how many of these there are."""
        while len(self._tasks) < count:
            try:
                self._tasks.append(next(self._more))
            except StopIteration:
                break
        return min(count, len(self._tasks))

    def task(self, row: int) -> Any:  # noqa: ANN401 - vf.Task
        """Return the task of a row."""
        if self.upto(row + 1) <= row:
            raise Cannot(f"There is no row {row}: the taskset has {len(self._tasks)}.")
        return self._tasks[row]


class Player:
    """Executes the orders of genenv: starts rollouts, passes replies on, counts rows.

    Args:
        told: the first line of the input, parsed.
        tell: writes an object as a line of output.
    """

    def __init__(self, told: Mapping[str, Any], tell: Callable[[Mapping[str, Any]], None]) -> None:
        self._told, self._tell = told, tell
        self._attempts: dict[int, Attempt] = {}
        self._rows: dict[str, asyncio.Task[Rows]] = {}
        self.url = ""
        self.roles = list(told["roles"])
        """The roles that agents of genenv play, as its settings name them; the only one if they name none."""

    async def serve(self) -> None:
        """Start the local model endpoint, to which harnesses send their requests."""
        from aiohttp import web

        app = web.Application(client_max_size=1 << 27)
        app.router.add_post("/{role}/v1/chat/completions", self._completion)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}"

    def order(self, order: Mapping[str, Any]) -> None:
        """Execute an order."""
        what, name = order["op"], int(order["id"])
        if what == "begin":
            attempt = self._attempts[name] = Attempt()
            attempt.task = asyncio.create_task(self._attempted(name, attempt, order))
        elif what == "count":
            self._counting = asyncio.create_task(self._counted(order))
        elif what == "reply":
            attempt = self._attempts.get(name)
            if attempt is not None and attempt.reply is not None and not attempt.reply.done():
                attempt.reply.set_result(dict(order))
        elif what == "ping":
            self._tell({"id": name, "pong": True})
        elif what == "end":
            attempt = self._attempts.pop(name, None)
            if attempt is not None and attempt.task is not None:
                attempt.task.cancel()

    async def close(self) -> None:
        """Cancel all rollouts and close all environments."""
        for attempt in self._attempts.values():
            if attempt.task is not None:
                attempt.task.cancel()
        for opened in self._rows.values():
            with contextlib.suppress(Exception):
                rows = await opened
                rows.stop.set()
                if rows.serving is not None:
                    await rows.serving

    # Rollouts.

    async def _attempted(self, name: int, attempt: Attempt, order: Mapping[str, Any]) -> None:
        """Run one rollout and report its end."""
        import verifiers.v1 as vf

        try:
            rows = await self._opened(order["given"])
            task = rows.task(order["row"])
            client = vf.EvalClientConfig(**self._client(self.roles[0]))
            ctx = vf.ModelContext(model=f"attempt-{name}", client=client, sampling=vf.SamplingConfig())
            episode = await rows.env.run_slot(rows.env.slots(task)[0], ctx)
            ended = _ended(episode, attempt.problem, self.roles)
        except asyncio.CancelledError:
            raise
        except Cannot as error:
            ended = {"error": str(error)}
        except Exception as error:  # noqa: BLE001 - the taskset's code may raise anything
            ended = {"error": said(error)}
        if self._attempts.pop(name, None) is not None:
            self._tell({"id": name, "ended": ended})

    async def _counted(self, order: Mapping[str, Any]) -> None:
        """Report the number of rows."""
        try:
            rows = await self._opened(order["given"])
            self._tell({"id": order["id"], "count": rows.upto(order["most"])})
        except Cannot as error:
            self._tell({"id": order["id"], "refused": str(error)})
        except Exception as error:  # noqa: BLE001 - the taskset's code may raise anything
            self._tell({"id": order["id"], "refused": f"its tasks cannot be loaded: {said(error)}"})

    async def _opened(self, given: Mapping[str, Any]) -> Rows:
        """Return the environment for these settings of the taskset; each is opened once."""
        key = json.dumps(given, sort_keys=True)
        if key not in self._rows:
            self._rows[key] = asyncio.create_task(self._open(given))
        return await asyncio.shield(self._rows[key])

    async def _open(self, given: Mapping[str, Any]) -> Rows:
        import verifiers.v1 as vf
        from verifiers.v1.utils.loaders import resolve_env_config

        rows = Rows(vf.load_environment(resolve_env_config(self._config(given))))
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def serving() -> None:
            try:
                async with rows.env.serving():
                    ready.set_result(None)
                    await rows.stop.wait()
            except Exception as error:  # noqa: BLE001 - told to whoever waits
                if not ready.done():
                    ready.set_exception(error)

        rows.serving = asyncio.create_task(serving())
        await ready
        return rows

    def _client(self, role: str) -> dict[str, Any]:
        """Return the settings of the client whose requests are those of a role."""
        return {"type": "eval", "base_url": f"{self.url}/{role}/v1", "api_key_var": "GENENV_NO_KEY"}

    def _config(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the environment's settings, with runtime, turn limit and harness of each role."""
        from verifiers.v1.configs.agent import agent_config_fields
        from verifiers.v1.utils.loaders import default_harness_id, env_config_type

        told, env = self._told, dict(self._told["env"])
        known = agent_config_fields(env_config_type(told["taskset"], env.get("id", "")).model_construct())
        if not self.roles and len(known) == 1:
            self.roles = list(known)
        if strange := [one for one in self.roles if one not in known]:
            raise Cannot(f"It has no role {strange[0]!r}; its roles are {', '.join(known)}.")
        if wrong := [one for one in known if not isinstance(env.get(one, {}), Mapping)]:
            raise Cannot(f"Settings of a role are a table, but environment.env.{wrong[0]} is none.")
        if twice := [one for one in self.roles if self.roles.count(one) > 1]:
            raise Cannot(f"environment.roles names {twice[0]} twice.")
        own = [one for one in known if {"model", "client"} & set(env.get(one, {}))]
        if both := [one for one in own if one in self.roles]:
            raise Cannot(
                f"{both[0]} is a seat (environment.roles) and has a model or a client in environment.env: "
                "leave out one of them."
            )
        if not self.roles or (left := [one for one in known if one not in (*self.roles, *own)]):
            named = ", ".join(left if self.roles else known)
            raise Cannot(
                f"It is played by {len(known)} agents: name the roles that are seats in environment.roles, "
                f"and give each other one a model and a client in environment.env ({named})."
            )
        default = default_harness_id(told["taskset"]) if told["harness"] == "auto" else ""
        harness = REPLIES if default == "bash" else "" if default else told["harness"]
        seats = {role: self._seat(known[role], harness, env.pop(role, {}), role) for role in self.roles}
        taskset = {"id": told["taskset"], **env.pop("taskset", {}), **given}
        return {**env, "taskset": taskset, **seats}

    def _seat(self, declared: Any, harness: str, env: Mapping[str, Any], role: str) -> dict[str, Any]:  # noqa: ANN401
        """Return the settings of a role.

        Where `environment.harness` is `auto`, a declared harness stays if it does more than chat. The lower
        of a declared turn limit and `environment.max_turns` counts.
        """
        asked, most = self._told["harness"] != "auto", self._told["max_turns"]
        chats = declared.harness is None or (harness == REPLIES and declared.harness.id == "null")
        return {
            "runtime": {"type": "subprocess"},
            "network_notice": False,
            "client": self._client(role),
            "max_turns": min(declared.max_turns or most, most),
            **({"harness": {"id": harness}} if harness and (asked or chats) else {}),
            **env,
        }

    # Requests of a harness.

    async def _completion(self, request: Any) -> Any:  # noqa: ANN401 - of aiohttp
        from aiohttp import web

        body = await request.json()
        attempt = self._attempts.get(int(str(body.get("model", "")).rpartition("-")[2] or -1))
        if attempt is None:
            return web.json_response({"error": {"message": "no such attempt"}}, status=400)
        role = request.match_info["role"]
        try:
            if role in attempt.asking:
                raise Cannot("It asks for two replies at a time; only one conversation can be played.")
            attempt.asking.add(role)
            try:
                async with attempt.turn:
                    answer = await self._asked(int(body["model"].rpartition("-")[2]), attempt, role, body)
            finally:
                attempt.asking.discard(role)
        except Cannot as error:
            attempt.problem = str(error)
            return web.json_response({"error": {"message": str(error)}}, status=400)
        return web.json_response(answer)

    async def _asked(self, name: int, attempt: Attempt, role: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the reply to a request in the format of OpenAI's chat completions."""
        if body.get("stream"):
            raise Cannot(
                "Its harness wants replies in pieces, which cannot be; choose another (environment.harness)."
            )
        messages = [_plain(one) for one in body["messages"]]
        known = attempt.said.get(role, [])
        if messages[: len(known)] != known:
            raise Cannot("It does not go on from the conversation so far; only one that grows can be played.")
        attempt.reply = asyncio.get_running_loop().create_future()
        told = [{"role": one["role"], "content": one["content"]} for one in messages[len(known) :]]
        self._tell({"id": name, "asks": {"messages": told, "tools": body.get("tools") or [], "seat": role}})
        reply = await attempt.reply
        calls = [
            {
                "id": f"call{len(messages)}_{place}",
                "type": "function",
                "function": {"name": one["name"], "arguments": json.dumps(one["arguments"])},
            }
            for place, one in enumerate(reply["calls"])
        ]
        message: dict[str, Any] = {"role": "assistant", "content": reply["content"] or None}
        if calls:
            message["tool_calls"] = calls
        attempt.said[role] = [*messages, _plain(message)]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        told_of = {"id": "x", "object": "chat.completion", "created": 0, "model": body["model"]}
        return {**told_of, "choices": [choice], "usage": usage}


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message in a normalized form: role, text, and calls by name and arguments."""
    content = message.get("content") or ""
    if isinstance(content, Sequence) and not isinstance(content, str):
        if any(part.get("type") not in ("text", "input_text") for part in content):
            raise Cannot("It shows something else than text, which the agent cannot read.")
        content = "\n".join(str(part.get("text", "")) for part in content)
    role = message.get("role")
    calls = [
        (call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()
    ]
    # Some harnesses strip whitespace around replies.
    text = str(content).strip() if role == "assistant" else str(content)
    return {"role": "system" if role == "developer" else role, "content": text, "calls": calls}


def _ended(episode: Any, problem: str, roles: Sequence[str]) -> dict[str, Any]:  # noqa: ANN401 - vf.Episode
    """Return the result of a finished rollout: reward and parts of each role, or an error."""
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if problem or errors:
        first = problem or f"{errors[0].type}: {' '.join(str(errors[0].message).split())}"
        return {"error": first[:400]}
    found: dict[str, Any] = {}
    for role in roles:
        traces = [one for one in episode.traces if one.agent.name == role]
        if len(traces) > 1 or (len(roles) == 1 and not traces):
            return {"error": f"{role} came to {len(traces)} traces; only one can be graded."}
        of_role = traces[0].rewards if traces else {}
        parts = {name: one.value for name, one in of_role.items() if one is not None}
        found[role] = {"reward": float(traces[0].reward) if traces else 0.0, "parts": parts}
    return {"seats": found}


def _loaded(told: Mapping[str, Any]) -> None:
    """Import verifiers and the taskset.

    Raises:
        Cannot: verifiers or the taskset cannot be imported, or the version is unsupported.
    """
    sys.path[:0] = [told["path"]] if told["path"] else []
    try:
        import verifiers.v1  # noqa: F401 - whether it is there
    except ImportError as error:
        if not (error.name or "").startswith("verifiers"):
            raise Cannot(f"{sys.executable} cannot import verifiers: {error}") from error
        raise Cannot(
            f"{sys.executable} has no package verifiers {WANTED}: install it there "
            f"(pip install 'verifiers=={WANTED}.*'), or set environment.python to a Python that has it"
        ) from error
    version = importlib.metadata.version("verifiers")
    if not version.startswith(f"{WANTED}."):
        raise Cannot(f"verifiers {version} is installed for {sys.executable}; genenv speaks that of {WANTED}")
    from verifiers.v1.utils.loaders import taskset_class

    sys.modules[REPLIES] = harness_module()
    try:
        taskset_class(told["taskset"])
    except Exception as error:
        traceback.print_exc()
        raise Cannot(f"the taskset {told['taskset']!r} cannot be loaded: {said(error)}") from error


async def _played(
    told: Mapping[str, Any], orders: IO[str], tell: Callable[[Mapping[str, Any]], None]
) -> None:
    player = Player(told, tell)
    await player.serve()
    tell({"ready": importlib.metadata.version("verifiers")})
    loop, over = asyncio.get_running_loop(), asyncio.Event()

    def read() -> None:
        for line in orders:
            loop.call_soon_threadsafe(player.order, json.loads(line))
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=read, daemon=True).start()
    await over.wait()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(player.close(), _LAST_S)


def main() -> None:
    """Report whether rollouts can be run, then run them until the input ends."""
    answers, orders = os.fdopen(os.dup(1), "w", encoding="utf-8"), os.fdopen(os.dup(0), encoding="utf-8")
    quiet = os.open(os.devnull, os.O_RDWR)
    os.dup2(quiet, 0)
    os.dup2(2, 1)  # tasksets' prints go to the log
    logging.disable(logging.ERROR)
    lock = threading.Lock()

    def tell(said: Mapping[str, Any]) -> None:
        with lock:
            answers.write(json.dumps(said) + "\n")
            answers.flush()

    told = json.loads(orders.readline())
    try:
        _loaded(told)
    except Cannot as error:
        tell({"refused": str(error)})
        os._exit(1)
    asyncio.run(_played(told, orders, tell))
    os._exit(0)  # do not wait for threads that a taskset has started


if __name__ == "__main__":
    main()
