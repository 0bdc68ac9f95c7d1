"""Pages on which a person talks to the agent of a run, or to two side by side: `genenv view --chat`.

One conversation at a time, as each loads a model or two. It is on the user's own tools, as in `genenv try`,
or on a task of the run. Each call is shown before it runs, and runs if the person wants it.
"""

from __future__ import annotations

import asyncio
import queue
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from genenv.backends.settings import EndpointConfig, PolicyConfig, SamplingConfig
from genenv.chat.assistant import Assistant, ChatMessage
from genenv.chat.tool_calls import as_text
from genenv.environments import close_environment, load_environment
from genenv.environments.base import Environment
from genenv.environments.stepwise import StepwiseRollout
from genenv.errors import UsageError, first_line
from genenv.evaluation.models import assistant
from genenv.http.guard import is_same, new_key
from genenv.runs.folder import RunFolder
from genenv.runs.store.codec import task_of
from genenv.texts import clean
from genenv.tools.cli.try_agent import MOST_TOKENS, Session, Show, Wanted, as_trained
from genenv.tools.environment import Tools
from genenv.types import Message, Task
from genenv.viewer import BadAddress
from genenv.viewer.folders import NotFound, Run, Runs, reading

_MOST_CHARS, _MOST_REQUESTS = 4000, 30
"""Length of a request, and the number of requests of a conversation."""
_IDLE_S = 600.0
"""A conversation without a request for so long gives way to another one."""
UNTRAINED = "base"
"""Stands for the model that a run began with, in place of the number of a round."""


class Attempt:
    """An agent on a task of any environment: the environment answers, and grades what was done.

    After the end of the task, and if the person asks for something else, the agent answers in words alone.

    Args:
        env: the environment of the task.
        asked: the agent.
        task: the task.
        show: see `Session`.
        wanted: says whether a reply that was shown goes to the environment.
    """

    def __init__(self, env: Environment, asked: Assistant, task: Task, *, show: Show, wanted: Wanted) -> None:
        self._env, self._task, self._show, self._wanted = env, task, show, wanted
        self._talk = asked.talk(0, many_turns=True)
        self._messages: list[ChatMessage] = [_chat(one) for one in task.messages[:-1]]
        self._rollout: StepwiseRollout | None = None

    async def answer(self, request: str) -> None:
        """Let the agent answer; the task's own request starts a rollout of it."""
        begins = request == self._task.messages[-1].content and len(self._messages) < len(self._task.messages)
        self._rollout = StepwiseRollout(self._env, self._task) if begins else None
        self._messages.append({"role": "user", "content": request})
        while True:
            rollout = self._rollout
            reply = await self._talk(
                self._messages,
                tools=rollout.tools if rollout else (),
                choices=rollout.choices if rollout else (),
                max_tokens=MOST_TOKENS,
            )
            self._messages.append(reply.message())
            said = as_text(reply.text, reply.calls)
            self._show("agent" if rollout is None else "reply", said)
            if rollout is None:
                return
            if not await self._wanted(said):
                self._show("note", "This reply did not go to the environment.")
                return
            for message in rollout.reply(said):
                self._messages.append(_chat(message))
                self._show("result", message.content)
            if rollout.done:
                verdict = rollout.verdict()
                solved = "✓ solved" if verdict.success else "✗ not solved"
                self._show("note", f"{solved}, reward {verdict.reward:.3g}: {verdict.explanation}")
                return


def _chat(message: Message) -> ChatMessage:
    return {"role": message.role, "content": message.content}


@dataclass(kw_only=True)
class Side:
    """One agent of a conversation; its steps are made in a thread of its own."""

    name: str
    """The run and the round, as the page says them."""
    policy: str
    """The same as `evaluation.models.assistant` wants it."""
    settings: PolicyConfig
    """How it is loaded."""
    steps: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """(kind, text): `you`, `agent`, `call`, `reply` (to an environment), `result`, `note`."""
    pending: str = ""
    """The call that waits for the person."""
    _work: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "genenv-chat"))
    _jobs: list[Future[None]] = field(default_factory=list[Future[None]])
    _runner: asyncio.Runner = field(default_factory=asyncio.Runner)
    _decisions: queue.Queue[bool] = field(default_factory=queue.Queue[bool])
    _answerer: Session | Attempt | None = None
    _ended: bool = False

    @property
    def waits(self) -> bool:
        """Whether only the person can go on."""
        return bool(self.pending) or not self.busy

    @property
    def busy(self) -> bool:
        """Whether the agent still loads, or answers."""
        return any(not job.done() for job in self._jobs)

    def open(self, env: Environment, task: Task | None, load: Callable[[Side], Assistant]) -> None:
        """Load the agent, in the thread."""

        def opened() -> None:
            asked = load(self)
            self._answerer = (
                Session(env, asked, show=self._show, wanted=self._wanted, task=task)
                if isinstance(env, Tools)
                else Attempt(env, asked, _the(task), show=self._show, wanted=self._wanted)
            )

        self._submit(opened)

    def ask(self, request: str) -> None:
        """Answer a request, after those before it."""

        def answered() -> None:
            self.steps.append(("you", request))
            if self._answerer is not None:
                self._runner.run(self._answerer.answer(request))
                if self.steps[-1][0] == "result":
                    self.steps.append(("note", "It has used all its turns."))

        self._submit(answered)

    def decide(self, *, run: bool) -> None:
        """Say whether the pending call runs."""
        if self.pending:
            self.pending = ""
            self._decisions.put(run)

    def end(self) -> None:
        """Run no more calls, and stop after the reply that is being sampled."""
        if self._ended:
            return
        self._ended = True
        self._decisions.put(False)
        for job in self._jobs:
            job.cancel()
        self._submit(self._close)
        self._work.shutdown(wait=False)

    def _close(self) -> None:
        with self._runner:
            if isinstance(self._answerer, Session):
                self._runner.run(self._answerer.aclose())

    def wait(self) -> None:
        """Wait until the thread is idle."""
        self._work.shutdown(wait=True)

    def _submit(self, work: Callable[[], None]) -> None:
        def done(job: Future[None]) -> None:
            error = None if job.cancelled() else job.exception()
            if error is not None:
                self.steps.append(("note", first_line(error)))

        job = self._work.submit(work)
        self._jobs.append(job)
        job.add_done_callback(done)

    def _show(self, kind: str, text: str) -> None:
        self._go_on()
        self.steps.append((kind, clean(text)))

    async def _wanted(self, call: str) -> bool:
        self._go_on()
        self.pending = call
        found = self._decisions.get()
        self._go_on()
        return found

    def _go_on(self) -> None:
        """Do nothing while the conversation goes on.

        Raises:
            UsageError: it has been ended.
        """
        if self._ended:
            raise UsageError("the conversation has been ended")


def _the(task: Task | None) -> Task:
    if task is None:
        raise UsageError("this environment has no tools of your own: choose a task, whose page leads here")
    return task


class Talking:
    """A conversation of a person with one agent or two."""

    def __init__(self, run: Run, sides: Sequence[Side], task: Task | None) -> None:
        """Begin a conversation; `open` loads what it needs."""
        self.id = secrets.token_urlsafe(16)
        self.run, self.sides, self.task = run, sides, task
        self.requests = 0
        self.since = self.used = time.monotonic()
        self._env: Environment | None = None

    @property
    def first(self) -> str:
        """The text that the first request is filled in with."""
        return self.task.messages[-1].content if self.task is not None and not self.requests else ""

    def open(self, load: Callable[[Side], Assistant]) -> None:
        """Open the environment, and begin to load the agents.

        Raises:
            UsageError: there is no such environment, or it needs a task.
        """
        config = RunFolder.open(self.run.path).settings().environment
        self._env = load_environment(config.name, config.settings)
        if not isinstance(self._env, Tools):
            _the(self.task)
        for side in self.sides:
            side.open(self._env, self.task, load)

    def say(self, request: str) -> None:
        """Ask all agents.

        Raises:
            UsageError: the request is empty or too long, or there were too many.
        """
        if not 0 < len(request) <= _MOST_CHARS:
            raise BadAddress(f"a request has 1 to {_MOST_CHARS:,} characters, and this one {len(request):,}")
        if self.requests >= _MOST_REQUESTS:
            raise BadAddress(
                f"a conversation has {_MOST_REQUESTS} requests at most: end it and begin another"
            )
        self.requests, self.used = self.requests + 1, time.monotonic()
        for side in self.sides:
            side.ask(request)

    def end(self) -> None:
        """Wait until the agents are idle, and release processes and folders. It may be called again."""
        for side in self.sides:
            side.end()
        for side in self.sides:
            side.wait()
        env, self._env = self._env, None
        if env is not None:
            close_environment(env)


class Chat:
    """The pages of the chat, for the server of the viewer."""

    def __init__(self, runs: Runs, page: Callable[..., Response]) -> None:
        """Show pages about the runs of a folder.

        Args:
            runs: the runs whose agents can be asked.
            page: renders a template.
        """
        self._runs, self._page = runs, page
        self._now: Talking | None = None
        self._past: Talking | None = None
        """The conversation before, whose agents may still be at work."""
        self._lock, self._loading, self._token = Lock(), Lock(), new_key()
        self._loaded = dict[str, Assistant]()

    def routes(self) -> list[Route]:
        """Return the routes of the pages."""
        return [
            Route("/chat", self.begin, methods=["GET"]),
            Route("/chat", self.start, methods=["POST"]),
            Route("/chat/{id}", self.show, methods=["GET"]),
            Route("/chat/{id}", self.act, methods=["POST"]),
        ]

    def close(self) -> None:
        """End the conversation with the server."""
        if self._now is not None:
            self._now.end()

    def begin(self, request: Request) -> Response:
        """Offer to begin a conversation, or say who talks."""
        query, now = request.query_params, self._current()
        runs = [run for run in self._runs.all() if run.text("policy.backend") != "scripted"]
        return self._shown(
            request,
            now=None,
            other=None if now is None else self._sentence(now),
            runs=[run.name for run in runs],
            chosen={name: query.get(name, "") for name in ("run", "round", "task")},
            untrained=UNTRAINED,
        )

    async def start(self, request: Request) -> Response:
        """Begin a conversation."""
        given = await self._given(request)
        return RedirectResponse(f"/chat/{(await run_in_threadpool(self._start, given)).id}", 303)

    def _start(self, given: Mapping[str, str]) -> Talking:
        with self._lock:
            if (now := self._current()) is not None:
                raise BadAddress(self._sentence(now))
            run = self._runs.find(given.get("run", ""))
            sides = [self._side(run, given.get("round", ""))]
            if given.get("other"):
                sides.append(self._side(self._runs.find(given["other"]), given.get("other_round", "")))
            if len({side.policy for side in sides}) < len(sides):
                raise BadAddress("both agents are the same: choose another run or round for one of them")
            talking = Talking(run, sides, _task(run, given.get("task", "")))
            if self._past is not None:
                self._past.end()
            self._loaded = {
                one: model for one, model in self._loaded.items() if one in {s.policy for s in sides}
            }
            talking.open(self._load)
            self._now = talking
        return talking

    def show(self, request: Request) -> Response:
        """Show a conversation."""
        return self._shown(request, now=self._found(request), other=None)

    def _shown(self, request: Request, **more: object) -> Response:
        return self._page("chat.html", request, title="Chat", token=self._token, limit=_MOST_CHARS, **more)

    async def act(self, request: Request) -> Response:
        """Say something, run a call or do not, or end the conversation."""
        given, now = await self._given(request), self._found(request)
        match given.get("do"):
            case "say":
                now.say(given.get("text", "").replace("\r\n", "\n").strip())
            case "run" | "skip":
                side = given.get("side", "")
                if side.isdecimal() and int(side[:9]) < len(now.sides):
                    now.sides[int(side[:9])].decide(run=given["do"] == "run")
                now.used = time.monotonic()
            case "end":
                self._now, self._past = None, now
                asyncio.get_running_loop().run_in_executor(None, now.end)
                return RedirectResponse("/chat", 303)
            case _:
                raise BadAddress("the form is not whole")
        return RedirectResponse(f"/chat/{now.id}", 303)

    def _current(self) -> Talking | None:
        """Return the conversation that is under way; one that nobody uses any more is ended."""
        now = self._now
        if now is None or time.monotonic() - now.used < _IDLE_S or not all(side.waits for side in now.sides):
            return now
        now.end()
        self._now = None
        return None

    def _found(self, request: Request) -> Talking:
        now = self._now
        if now is None or not is_same(request.path_params["id"], now.id):
            raise NotFound("this conversation has ended: /chat begins another one")
        return now

    @staticmethod
    def _sentence(now: Talking) -> str:
        asked = f"{now.requests} request" + ("" if now.requests == 1 else "s")
        minutes = round((time.monotonic() - now.since) / 60)
        return (
            f"somebody has talked to {' and '.join(side.name for side in now.sides)} for {minutes} minutes "
            f"({asked}), and there is one conversation at a time: yours can begin when it ends, or "
            f"{_IDLE_S / 60:.0f} minutes after its last request"
        )

    async def _given(self, request: Request) -> Mapping[str, str]:
        """Return the fields of a form of ours.

        Raises:
            BadAddress: the form lacks the token of our pages.
        """
        fields = parse_qs((await request.body()).decode(errors="replace"), keep_blank_values=True)
        given = {name: clean(values[-1]) for name, values in fields.items()}
        if not is_same(given.get("token", ""), self._token):
            raise BadAddress("the form is of an earlier start of this server: open the page again")
        return given

    @staticmethod
    def _side(run: Run, round_: str) -> Side:
        """Return an agent by the run and the number of its round; "" for the last one."""
        settings = as_trained(RunFolder.open(run.path).settings())
        if round_ == UNTRAINED:
            model = run.text("policy.model")
            return Side(name=f"{run.name} before training", policy=model, settings=settings)
        if round_ and not (round_.isdecimal() and len(round_) < 10):
            raise BadAddress(f"the round is {round_[:40]!r}: give a number, or {UNTRAINED}")
        at = f"@{round_}" if round_ else ""
        after = f"round {int(round_)}" if round_ else "the last round"
        return Side(name=f"{run.name} after {after}", policy=f"{run.path.as_posix()}{at}", settings=settings)

    def _load(self, side: Side) -> Assistant:
        """Return an agent; those of the last conversation are kept."""
        name = side.policy
        with self._loading:
            if name not in self._loaded:
                self._loaded[name] = assistant(name, side.settings, EndpointConfig(), SamplingConfig())
            return self._loaded[name]


def _task(run: Run, id_: str) -> Task | None:
    """Return a task of a run; None for "".

    Raises:
        NotFound: there is no such task.
    """
    if not id_:
        return None
    found = reading(run, lambda db: db.read(task_of, "SELECT * FROM tasks WHERE id = ?", (id_,)))
    if not found:
        raise NotFound(f"the store has no task {id_!r}")
    return found[0]
