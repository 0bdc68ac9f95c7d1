# pyright: standard
"""An OpenAI-compatible endpoint as an assistant, with retries, a rate limit and a cost limit.

`genenv eval` asks one by it, as do a simulator and an agent of a run that are models behind endpoints.

The server is not trusted. An answer without an end, an answer that unpacks to gigabytes, or an answer that
quotes the API key can only fail the item for which it was requested, not the evaluation.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import re
import time
import urllib.parse
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import fields
from typing import Any

import httpx2
import openai

from genenv.backends.settings import EndpointConfig, SamplingConfig
from genenv.chat.assistant import ChatMessage, Reply, ToolCall, ending
from genenv.chat.reasoning import answer_of, as_usual
from genenv.chat.tool_calls import arguments_of
from genenv.errors import ContextOverflow, NoAnswer, RolloutError, UsageError
from genenv.http.guard import client_options, key_in
from genenv.progress import advance
from genenv.sampling import SamplingParams, sampling_params
from genenv.seeding import stream
from genenv.texts import clean, inert, masked, without
from genenv.types import JsonObject

MAX_BODY_BYTES = 16 * 2**20
"""Maximum length of an answer. A million tokens of text are 5 MB."""


_SHORTEST_KEY = 20
"""Characters of a key; what stands for one where none is needed is shorter."""


class AnswerTooLarge(Exception):
    """Raised if a server's answer is too long or compressed."""


class Address:
    """The base URL and the model of an endpoint, and the secrets that no output may show."""

    def __init__(self, address: str, endpoint: EndpointConfig) -> None:
        """Parse `BASE_URL#MODEL`.

        Raises:
            UsageError: the address does not have that form, or the key cannot be sent.
        """
        self.base_url, self.model = _parts(address)
        self.key = key_in(endpoint.key_variable) or "none"
        self._secrets = frozenset({self.key, *_credentials(self.base_url)} - {"none"})

    @property
    def shown(self) -> str:
        """The base URL without user and password."""
        return self.safe(self.base_url)

    def safe(self, text: str) -> str:
        """Return a server's text without secrets, so that it can be stored and shown."""
        return masked(text, self._secrets)

    def without_key(self, text: str) -> str:
        """Return a model's own text without the key, if that is one and no word such as `ollama`.

        All else stays as it was said, as it is graded and executed.
        """
        return without(text, [self.key] if len(self.key) >= _SHORTEST_KEY else ())

    def sentence(self, error: BaseException) -> str:
        """Return the message of an error as one short line."""
        lines = str(error).strip()[:10_000].splitlines()
        return inert(self.safe(lines[0])[:200]) if lines else type(error).__name__


def client(address: Address, endpoint: EndpointConfig) -> openai.AsyncOpenAI:
    """Create a client for the running event loop.

    Raises:
        UsageError: the environment names a proxy that cannot be used.
    """
    return openai.AsyncOpenAI(
        base_url=address.base_url,
        api_key=address.key,
        timeout=endpoint.timeout_s,
        max_retries=0,  # `ask` retries instead: it also covers invalid answers, and counts each cost
        default_headers={"Accept-Encoding": "identity"},
        http_client=openai.DefaultAsyncHttpxClient(
            event_hooks={"response": [_bound]}, **client_options(address.base_url)
        ),
    )


class _Bounded(httpx2.AsyncByteStream):
    """A response body that raises an error if it is too long."""

    def __init__(self, body: Any) -> None:  # noqa: ANN401
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._body:
            size += len(part)
            if size > MAX_BODY_BYTES:
                raise AnswerTooLarge(f"it sent more than {MAX_BODY_BYTES >> 20} MiB")
            yield part

    async def aclose(self) -> None:
        await self._body.aclose()


async def _bound(response: Any) -> None:  # noqa: ANN401
    packed = response.headers.get("content-encoding", "identity")
    if packed.lower() != "identity":
        raise AnswerTooLarge(f"it sent its answer packed ({packed[:20]}), which was not asked for")
    response.stream = _Bounded(response.stream)


def _credentials(url: str) -> set[str]:
    """Return user and password of a URL in all forms in which a server may quote them."""
    parsed = urllib.parse.urlsplit(url)
    if parsed.password is None and parsed.username is None:
        return set()
    user, password = (urllib.parse.unquote(part or "") for part in (parsed.username, parsed.password))
    basic = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {password, parsed.password or "", basic, f"{user}:{password}"} - {""}


def _parts(address: str) -> tuple[str, str]:
    """Return the base URL and the model of an address.

    Raises:
        UsageError: the address does not have that form.
    """
    base_url, _, model = address.partition("#")
    try:
        parsed = urllib.parse.urlsplit(base_url)
        sound = parsed.scheme in ("http", "https") and bool(parsed.hostname) and (parsed.port or 1) > 0
    except ValueError:
        sound = False
    if not (sound and model):
        raise UsageError(
            f"an endpoint is named BASE_URL#MODEL, such as http://localhost:8000/v1#my-model, "
            f"not {masked(address)}"
        )
    return base_url, model


_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "noop",
        "description": "Does nothing.",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}
_PROBE_TOKENS = 16
"""Servers of reasoning models reject lower limits."""
_OVERFLOW_CODES = {"context_length_exceeded", "exceed_context_size_error"}
_OVERFLOW = re.compile(
    r"context[ _](?:length|size|window)|maximum context|max_model_len"
    r"|(?:prompt|input)\b.{0,80}\b(?:too long|longer than|exceeds?)\b"
    r"|`inputs`.{0,40} must (?:be <=|have less than)"
)
_MAY_OVERFLOW = {400, 413, 422, 500}
_PASSING = {408, 409, 425, 429}
"""Status codes of refusals that may be temporary, in addition to server errors."""
_OF_ALL = {401, 402}
"""Status codes of refusals that are of the key or the account, and of no single request."""
_NO_TOOLS = {400, 404, 422, 501}
_OPTIONAL = (*(one.name for one in fields(SamplingParams)), "seed")
"""Parameters that are left out if a server's refusal names them; some models accept none of them."""
_MAX_TEXT = 2_000_000
"""Maximum characters of a reply; longer replies are invalid."""
_MAX_COUNT = 10**9
"""Maximum plausible token count of one request; higher counts are ignored."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0


class _InvalidAnswer(Exception):
    """Raised if an answer is not a chat completion."""


_NO_ANSWER = (
    *(openai.OpenAIError, AnswerTooLarge, _InvalidAnswer),
    *(ValueError, TypeError, AttributeError, RecursionError, OverflowError),
)
"""Errors of the client and of parsing for a body that is not a chat completion."""


class Refused(RolloutError):
    """Raised if the server rejects a request permanently."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"the endpoint refuses the request: {said}")
        self.status = status


class EndpointAssistant:
    """A model behind an endpoint; implements `Assistant`."""

    def __init__(
        self,
        address: str,
        endpoint: EndpointConfig,
        sampling: SamplingConfig,
        beside: EndpointAssistant | None = None,
    ) -> None:
        """Connect, and find out whether the server accepts tools.

        Args:
            address: `BASE_URL#MODEL`.
            endpoint: the limits and the prices of requests.
            sampling: the sampling settings.
            beside: another assistant of the same command, whose cost counts towards the same limit.

        Raises:
            UsageError: the address does not have that form, or the server rejects the settings.
        """
        self.address = Address(address, endpoint)
        self.name = self.model = self.address.model
        if endpoint.max_cost and not (endpoint.price_in or endpoint.price_out):
            raise UsageError("endpoint.max_cost needs prices: set endpoint.price_in and endpoint.price_out")
        self.endpoint, self.sampling = endpoint, sampling
        self.spent = Spending(endpoint, beside and beside.spent)
        self._rate_limit = RateLimit(endpoint.requests_per_minute)
        self._limit_name = "max_tokens"
        self._left_out: set[str] = set()
        self._accepted: dict[str, Any] = {}
        """The sampling parameters of the probe, after it."""
        self._clients: dict[asyncio.AbstractEventLoop, openai.AsyncOpenAI] = {}
        self.native_tools = endpoint.tools == "native"
        asyncio.run(self._probe_endpoint())

    def concurrency(self, *, many_turns: bool) -> int:
        """Return the concurrency of the settings."""
        return self.endpoint.concurrency

    def talk(self, seed: int, *, many_turns: bool = False) -> EndpointTalk:
        """Start a new conversation; `many_turns` is ignored because caching is up to the server."""
        return EndpointTalk(self, seed)

    def describe(self) -> JsonObject:
        """Return the model, its URL, whether tools are native, and the parameters that the server rejects."""
        return {
            "kind": "endpoint",
            "model": self.model,
            "base_url": self.address.shown,
            "native_tools": self.native_tools,
            "left_out": sorted(self._left_out),
        }

    def spending(self) -> JsonObject:
        """Return the billed tokens and their cost since the start of the process."""
        spent = self.spent
        return {"prompt_tokens": spent.prompt_tokens, "tokens": spent.tokens, "cost": round(spent.cost, 6)}

    async def ask(self, body: dict[str, Any], max_tokens: int) -> Reply:
        """Request one completion, with retries.

        Raises:
            ContextOverflow: the server reports that the conversation is too long.
            NoAnswer: there is no answer after all retries, or the cost limit is reached.
            RolloutError: this request is refused, or its answer is too large.
        """
        failures, wait_s, limited = 0, _FIRST_WAIT_S, True
        while True:
            self.spent.check()
            await self._rate_limit.wait()
            sent = {name: value for name, value in body.items() if name not in self._left_out}
            if limited:
                sent[self._limit_name] = max_tokens
            try:
                asking = self._client_of_loop().chat.completions.create(**sent)
                return self._reply(await asyncio.wait_for(asking, self.endpoint.timeout_s))
            except openai.APIStatusError as error:
                if _is_overflow(error):
                    if not limited:
                        raise ContextOverflow(f"the endpoint says: {self.address.sentence(error)}") from error
                    limited = False  # the server then uses the remaining context
                    continue
                if self._adapt_to_refusal(error, sent):
                    continue
                why, wait_s = self.address.sentence(error), _retry_after_s(error) or wait_s
                if error.status_code in _OF_ALL:
                    raise NoAnswer(f"the endpoint refuses the request: {why}") from error
                if error.status_code < 500 and error.status_code not in _PASSING:
                    raise Refused(error.status_code, why) from error
            except TimeoutError:
                why = f"it took longer than {self.endpoint.timeout_s:g} s"
            except _NO_ANSWER as error:
                for one in (error, error.__cause__):  # the client's version decides which of them it is
                    if isinstance(one, AnswerTooLarge):
                        raise RolloutError(f"the endpoint gave no answer: {one}") from error
                why = self.address.sentence(error)
            failures += 1
            if failures > self.endpoint.retries:
                raise NoAnswer(f"the endpoint gave no answer after {failures - 1} retries: {why}")
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _adapt_to_refusal(self, error: openai.APIStatusError, sent: dict[str, Any]) -> bool:
        """Adapt later requests to a refusal that names a parameter; return whether anything changed.

        After the probe only the field `param` names one, as the message may quote a conversation. What the
        probe sent is then never left out, so that an evaluation ends with the settings that it began with.
        """
        said, param = str(error).lower(), getattr(error, "param", None)
        if error.status_code not in (400, 422) or (self._accepted and param is None):
            return False
        if "max_completion_tokens" in said and "max_tokens" in sent and param in (None, "max_tokens"):
            self._limit_name = "max_completion_tokens"
            return True
        if _OF_A_TOOL.search(said):  # an argument of a tool may have the name of a sampling parameter
            return False
        possible = [name for name in _OPTIONAL if name in sent and param in (None, name)]
        if self._accepted:
            possible = [name for name in possible if self._accepted.get(name, sent[name]) != sent[name]]
        named = [name for name in possible if re.search(rf"\b{name}\b", said)]
        self._left_out.update(named)
        return bool(named)

    def _client_of_loop(self) -> openai.AsyncOpenAI:
        """Return the client of the running event loop; loops cannot share connections."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients = {one: held for one, held in self._clients.items() if not one.is_closed()}
            self._clients[loop] = client(self.address, self.endpoint)
        return self._clients[loop]

    def _reply(self, answer: Any) -> Reply:  # noqa: ANN401
        """Count the tokens of an answer and return its text and calls.

        Raises:
            _InvalidAnswer: the answer is not a chat completion, or says that the server failed.
        """
        usage = getattr(answer, "usage", None)
        prompt_tokens, tokens = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
        self.spent.add(prompt_tokens, tokens)
        choices = getattr(answer, "choices", None)
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = getattr(choice, "message", None)
        calls = getattr(message, "tool_calls", None) or []
        finished = _is_finished(answer, choice)
        if message is None or isinstance(message, str) or not isinstance(calls, list):
            raise _InvalidAnswer("it answered with something that is no chat completion")
        advance(tokens=tokens)
        return Reply(
            text=answer_of(as_usual(self.address.without_key(clean(_text(message)))), finished=finished),
            calls=tuple(_call(call, self.address.without_key) for call in calls),
            finished=finished,
            prompt_tokens=prompt_tokens,
            tokens=tokens,
        )

    async def _probe_endpoint(self) -> None:
        """Send one request, and a second one with a tool if the settings do not say how tools are offered.

        Raises:
            UsageError: the server cannot be reached or refuses.
        """
        body = self.body([{"role": "user", "content": "Hello"}], [], 0)
        try:
            plain = await self.ask(body, _PROBE_TOKENS)
            if self.endpoint.max_cost and not plain.prompt_tokens:
                raise UsageError(
                    f"{self.address.shown} does not tell how many tokens it used: no max_cost holds"
                )
            if self.endpoint.tools == "auto":
                self.native_tools = await self._takes_tools(body, plain)
            self._accepted = sampling_params(self.sampling)
        except RolloutError as error:
            raise UsageError(
                f"{self.address.shown} cannot be used as an endpoint for {self.model}: {error}; check the "
                f"address, the model's name, and the key in {self.endpoint.key_variable}"
            ) from error
        finally:
            await self.close()

    async def _takes_tools(self, body: dict[str, Any], plain: Reply) -> bool:
        """Return whether the server accepts a tool and, if it counts tokens, whether the prompt grew."""
        try:
            offered = await self.ask({**body, "tools": [_PROBE_TOOL]}, _PROBE_TOKENS)
        except Refused as error:
            if error.status in _NO_TOOLS:
                return False
            raise
        return not offered.prompt_tokens or offered.prompt_tokens > plain.prompt_tokens

    def body(self, messages: Sequence[ChatMessage], tools: Sequence[JsonObject], seed: int) -> dict[str, Any]:
        """Return the body of a request."""
        asked: dict[str, Any] = {
            "model": self.model,
            "messages": [_as_sent(message) for message in messages],
            **sampling_params(self.sampling),
            "seed": seed,
        }
        return {**asked, "tools": list(tools)} if tools else asked

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        found = self._clients.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.close()


_OF_A_TOOL = re.compile(r"invalid schema|\bproperties\b|\btools\[|\bfunction\b")
"""What a refusal of a tool's schema says."""


class EndpointTalk:
    """One conversation with an endpoint; implements `Talk`."""

    def __init__(self, assistant: EndpointAssistant, seed: int) -> None:
        self.native_tools = assistant.native_tools
        self._assistant, self._seed, self._turn = assistant, seed, 0

    async def __call__(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[JsonObject] = (),
        choices: Sequence[str] = (),
        max_tokens: int | None = None,
    ) -> Reply:
        """Answer a conversation; see `Talk`."""
        if choices:
            raise UsageError(
                "these tasks hold replies to those that are possible, which an endpoint's cannot be; measure "
                "it with held_out.config, a file whose environment does not ask for it"
            )
        seed = stream(self._seed, "talk", self._turn) % 2**31
        self._turn += 1
        limit = self._assistant.sampling.reply_limit(max_tokens)
        return await self._assistant.ask(self._assistant.body(messages, tools, seed), limit)


class RateLimit:
    """Limits how often requests begin."""

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = 60 / per_minute if per_minute else 0.0
        self._clock, self._next = clock, 0.0

    async def wait(self) -> None:
        """Wait until the next request may begin."""
        if not self._interval_s:
            return
        now = self._clock()
        begins = max(now, self._next)
        self._next = begins + self._interval_s
        await asyncio.sleep(begins - now)


class Spending:
    """The number of tokens so far, and their cost.

    Args:
        endpoint: the prices, and the limit of the cost.
        beside: the spending of another assistant of the same command, under the same limit.
    """

    def __init__(self, endpoint: EndpointConfig, beside: Spending | None = None) -> None:
        self._endpoint = endpoint
        self._all: list[Spending] = [] if beside is None else beside._all
        self._all.append(self)
        self.prompt_tokens = self.tokens = 0

    @property
    def cost(self) -> float:
        """The cost in the currency of the prices."""
        return (
            self.prompt_tokens * self._endpoint.price_in + self.tokens * self._endpoint.price_out
        ) / 1_000_000

    def add(self, prompt_tokens: int, tokens: int) -> None:
        """Add the tokens of an answer."""
        self.prompt_tokens, self.tokens = self.prompt_tokens + prompt_tokens, self.tokens + tokens

    def check(self) -> None:
        """Check the cost limit.

        Raises:
            NoAnswer: the limit is reached.
        """
        limit = self._endpoint.max_cost
        if limit and sum(one.cost for one in self._all) >= limit:
            raise NoAnswer(f"endpoint.max_cost = {limit:g} is spent")


def _is_overflow(error: openai.APIStatusError) -> bool:
    """Return whether a refusal states, in any known wording, that the conversation is too long."""
    if error.status_code not in _MAY_OVERFLOW:
        return False
    kinds = {getattr(error, "code", None), getattr(error, "type", None)}
    return bool(kinds & _OVERFLOW_CODES) or _OVERFLOW.search(str(error).lower()) is not None


def _as_sent(message: ChatMessage) -> ChatMessage:
    """Return a message in the API's form: arguments as JSON text, tool results without a call as user."""
    if message["role"] == "tool" and "tool_call_id" not in message:
        return {**message, "role": "user"}
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _is_finished(answer: Any, choice: Any) -> bool:  # noqa: ANN401
    """Return whether a reply is finished; a token limit or a filter may have cut it off.

    Raises:
        _InvalidAnswer: the server failed, which some servers say in an answer of status 200.
    """
    error = getattr(choice, "error", None) or getattr(answer, "error", None)
    reason = getattr(choice, "finish_reason", None)
    finished = ending(reason)
    if error or finished is None:
        said = error.get("message", error) if isinstance(error, dict) else error or reason
        raise _InvalidAnswer(f"it failed while it answered: {said}")
    return finished


def _text(message: Any) -> str:  # noqa: ANN401
    """Return the text of a message, which some servers split into parts, with thoughts among them.

    Raises:
        _InvalidAnswer: the content is neither text nor parts.
    """
    content = getattr(message, "content", None)
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        texts = [part for part in content if part.get("type", "text") == "text"]
        content = "".join(str(part.get("text", "")) for part in texts)
    if not isinstance(content, str | None):
        raise _InvalidAnswer("it answered with a message that is no text")
    if content and len(content) > _MAX_TEXT:
        raise _InvalidAnswer(f"it answered with {len(content):,} characters")
    return content or ""


def _call(call: Any, safe: Callable[[str], str]) -> ToolCall:  # noqa: ANN401
    """Parse a call of the API; some servers send arguments as an object."""
    function = getattr(call, "function", None)
    name, given = getattr(function, "name", None), getattr(function, "arguments", None)
    id_ = getattr(call, "id", None)
    return ToolCall(
        name=safe(clean(name)) if isinstance(name, str) else "",
        arguments=arguments_of(safe(given) if isinstance(given, str) else given),
        id=id_ if isinstance(id_, str) else "",
    )


def _count(usage: Any, name: str) -> int:  # noqa: ANN401
    value = getattr(usage, name, None)
    return value if isinstance(value, int) and 0 < value <= _MAX_COUNT else 0


def _retry_after_s(error: openai.APIStatusError) -> float | None:
    """Return the seconds that the server asks to wait, or None."""
    try:
        asked = float(error.response.headers["retry-after"])
    except (KeyError, ValueError):
        return None
    return min(max(asked, 0.0), _LONGEST_WAIT_S) if math.isfinite(asked) else None
