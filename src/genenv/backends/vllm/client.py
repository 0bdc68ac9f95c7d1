"""HTTP client for vLLM servers: many small requests, and strict validation of responses.

Responses are not trusted: their size and duration are limited, redirects are not followed, and compressed
responses are not unpacked.

Shapes: T = sampled tokens.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import aiohttp
import pydantic_core
from pydantic import BaseModel, Field, StrictFloat, StrictInt, StrictStr, ValidationError

from genenv.backends.base import Role
from genenv.backends.sampler_check import completion_problem
from genenv.backends.settings import PolicyConfig
from genenv.chat.assistant import ending
from genenv.errors import RolloutError, UsageError, first_line
from genenv.http.guard import proxy_of
from genenv.texts import inert

LOST = (aiohttp.ClientError, OSError)
"""Errors of requests without a complete answer in time; they may be sent again."""
NO_ADDRESS = (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError)
"""Errors of malformed addresses, to which no request can succeed."""

MOST_BYTES = 16 * 2**20
"""Maximum size of a response, unless a request allows another size."""
_IDLE_S = 4.0
"""Seconds after which an idle connection is not reused: servers close theirs after five seconds, and an event
loop that was blocked notices that too late."""
_PIECE = 2**16


class TooLarge(Exception):
    """A response exceeds its maximum size."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The status and body of a server's response."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as text; invalid bytes are replaced."""
        return self.body.decode("utf-8", errors="replace")

    def json(self) -> Any:  # noqa: ANN401 - whatever a server says
        """Parse the body as JSON, without NaN and of bounded depth.

        Raises:
            ValueError: the body is not such JSON.
        """
        return pydantic_core.from_json(self.body, allow_inf_nan=False)


class Connections:
    """The HTTP connections of one event loop."""

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        """Create a session without open connections.

        Args:
            headers: sent with every request.
        """
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity", **(headers or {})},
            auto_decompress=False,
        )
        self._proxies: dict[str, str | None] = {}

    async def get(self, base: str, path: str, *, timeout_s: float, most: int = MOST_BYTES) -> Answer:
        """Send a GET request.

        Args:
            base: base URL of the server.
            path: of the request.
            timeout_s: limit of the whole request, seconds.
            most: maximum size of the response, bytes.

        Raises:
            NO_ADDRESS: the address is malformed.
            LOST: no complete answer came in time.
            TooLarge: the response exceeds its maximum size.
        """
        return await self._request("GET", base + path, None, timeout_s, most)

    async def post(
        self, base: str, path: str, body: Mapping[str, Any], *, timeout_s: float, most: int = MOST_BYTES
    ) -> Answer:
        """Send a POST request with a JSON body; see `get` for errors."""
        written = json.dumps(body, separators=(",", ":")).encode()
        return await self._request("POST", base + path, written, timeout_s, most)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def _request(
        self, method: str, url: str, body: bytes | None, timeout_s: float, most: int
    ) -> Answer:
        async with self._session.request(
            method,
            url,
            data=body,
            headers=None if body is None else {"Content-Type": "application/json"},
            allow_redirects=False,
            proxy=self._proxy(url),
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        ) as answer:
            found = bytearray()
            async for piece in answer.content.iter_chunked(_PIECE):
                found += piece
                if len(found) > most:
                    answer.close()
                    raise TooLarge(f"it sends more than {most:,} bytes")
            return Answer(answer.status, bytes(found))

    def _proxy(self, url: str) -> str | None:
        """Return the proxy for a URL; cached per server."""
        try:
            parts = urlsplit(url)
            base = f"{parts.scheme}://{parts.netloc}"
            if base not in self._proxies:
                self._proxies[base] = proxy_of(base)
        except ValueError as error:
            raise aiohttp.InvalidURL(url, str(error)) from error
        return self._proxies[base]


_BYTES_A_TOKEN, _BYTES = 4096, 2**20
_MOST_SAID = 300
_FULL = (429, 503)
"""Statuses of a server that is at its capacity."""
_LATER = (408, 425)
"""Statuses besides 5xx of a server that may answer a later request."""


class Unfit(Exception):
    """A server cannot serve a run. The message continues a sentence that begins with its address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """One completion, and the address of the server that sampled it."""

    address: str
    token_ids: tuple[int, ...]  # [T]
    logprobs: tuple[float, ...]  # [T] nats


class Refused(RolloutError):
    """A server refused a request as invalid, as every other server would."""


class _Token(BaseModel):
    logprob: StrictFloat | StrictInt


class _Logprobs(BaseModel):
    content: list[_Token]


class _Choice(BaseModel):
    token_ids: list[StrictInt]
    logprobs: _Logprobs


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1, max_length=1)


class Card(BaseModel):
    """A model that a server lists, as `/v1/models` describes it."""

    id: StrictStr
    max_model_len: Annotated[StrictInt, Field(ge=1)] | None = None


class _Cards(BaseModel):
    data: list[Card] = Field(min_length=1)


def most_bytes(max_tokens: int) -> int:
    """Return the maximum size in bytes of a response with a completion of this many tokens."""
    return _BYTES + _BYTES_A_TOKEN * max_tokens


def parse_completion(
    answer: Answer, *, max_tokens: int, vocabulary: int
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Parse a completion into [T] sampled tokens and [T] log-probabilities, nats.

    Args:
        answer: to a request for one completion.
        max_tokens: the limit in the request.
        vocabulary: size of the model's vocabulary.

    Raises:
        Broken: the server gave up on the completion.
        Unfit: the answer is not a valid completion.
    """
    try:
        found = answer.json()
        match found:
            case {"choices": [{"finish_reason": str(reason)}]} if ending(reason) is None:
                raise Broken(f"it gave up on a completion (finish_reason {reason!r})")
            case _:
                (choice,) = _Completion.model_validate(found).choices
    except ValueError as error:
        raise Unfit(
            f"answers with what is no completion ({_problem(error)}); vLLM does from 0.32 on"
        ) from error
    ids, logprobs = choice.token_ids, [float(one.logprob) for one in choice.logprobs.content]
    if (wrong := completion_problem(ids, logprobs, max_tokens=max_tokens, vocabulary=vocabulary)) is not None:
        raise Unfit(f"answers {wrong}")
    return tuple(ids), tuple(logprobs)


def parse_cards(address: str, answer: Answer) -> list[Card]:
    """Parse a server's list of models.

    Raises:
        UsageError: the list is empty, or the answer is not from such a server.
    """
    problem = f"/v1/models says status {answer.status}, {refusal_text(answer)}"
    if answer.status == 200:
        try:
            return _Cards.model_validate(answer.json()).data
        except ValueError as error:
            problem = _problem(error)
    raise UsageError(f"what answers at {address} is no vLLM server, or serves nothing: {problem}")


def refusal_text(answer: Answer) -> str:
    """Return the message of an error response, in one short line."""
    text: Any = answer.text
    try:
        body = answer.json()
        text = body["error"]["message"] if "error" in body else body.get("detail", body)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    return inert(" ".join(str(text)[: 4 * _MOST_SAID].split()))[:_MOST_SAID]


def _problem(error: ValueError) -> str:
    """Return in a few words why a body is invalid."""
    if not isinstance(error, ValidationError):
        return f"no JSON: {first_line(error)}"
    first = error.errors(include_input=False, include_url=False)[0]
    return inert(f"{'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}")


class Broken(Exception):
    """The server failed to answer properly; it may have ended during the request."""


class Busy(Broken):
    """A server is at its capacity; it keeps its adapters and accepts requests again later."""


class Forgot(Exception):
    """A server no longer knows an adapter that it had loaded."""


def check_room(answer: Answer) -> None:
    """Check that a server is not at its capacity.

    Raises:
        Busy: the status says so.
    """
    if answer.status in _FULL:
        raise Busy(f"status {answer.status}: {refusal_text(answer)}")


def check_status(address: str, answer: Answer) -> None:
    """Accept only an answer of status 200.

    Raises:
        Refused: the request is invalid.
        Unfit: the server does not support the request.
        Forgot: the server does not know the adapter.
        Broken: the server failed.
        Busy: the server is at its capacity.
    """
    if answer.status == 200:
        return
    check_room(answer)
    what = f"status {answer.status}: {refusal_text(answer)}"
    if answer.status in (400, 422):
        raise Refused(f"{address} refuses the request: {refusal_text(answer)}")
    if answer.status == 403:
        raise Unfit(
            f"takes no token ids ({refusal_text(answer)}): start it with --enable-scale-out, as "
            "`genenv serve --vllm` does"
        )
    if answer.status == 404:
        raise Forgot(f"it does not know the adapter: {refusal_text(answer)}")
    if answer.status >= 500 or answer.status in _LATER:
        raise Broken(what)
    raise Unfit(f"answers with what is no completion: {what}")


def check_choices(ids: tuple[int, ...], among: Sequence[tuple[int, ...]], most: int) -> None:
    """Check that a completion is one of the given choices, or a prefix of one if it was cut off.

    Raises:
        Unfit: the completion is neither.
    """
    if among and ids not in among and not any(len(ids) == most and one[:most] == ids for one in among):
        raise Unfit("answers with a reply that is none of those that were possible")


def why(error: BaseException | None) -> str:
    """Return an error in one line."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return "nothing" if error is None else (first_line(error) or type(error).__name__)


def check_policies(policy: PolicyConfig, roles: Sequence[Role] = ()) -> None:
    """Refuse settings that servers cannot follow: all policies must be adapters on one base.

    Raises:
        UsageError: a policy has another base, or full tuning is set.
    """
    if policy.tuning != "lora" or policy.simulator_model is not None:
        raise UsageError(
            "servers hold one base and adapters on it: add --set policy.tuning=lora, and leave "
            "policy.simulator_model out"
        )
    for role in roles:
        if role.model not in (None, policy.model):
            raise UsageError(
                f"servers hold one base, {policy.model}, and adapters on it: leave out "
                f"agents.{role.name}.model ({role.model}), or set policy.backend to 'local'"
            )


_SUFFIX = ".address"
_LOOKS_LIKE_ONE = re.compile(r"https?://[^\s/@?#]+")


def write_address(folder: Path, name: str, address: str) -> None:
    """Publish the present address of a server in a file, which is replaced atomically.

    Args:
        folder: `policy.vllm.addresses_folder`; created if missing.
        name: of the server; it stays the same after a restart at another address.
        address: the server's base URL.
    """
    folder.mkdir(parents=True, exist_ok=True)
    unseen = folder / f".{name}.{os.getpid()}"
    unseen.write_text(address + "\n", encoding="utf-8")
    unseen.replace(folder / f"{name}{_SUFFIX}")


def remove_address(folder: Path, name: str) -> None:
    """Remove the address file of a server that has ended."""
    (folder / f"{name}{_SUFFIX}").unlink(missing_ok=True)


def read_addresses(folder: Path) -> tuple[str, ...]:
    """Return all addresses in a folder, in the order of the servers' names; empty if it cannot be read.

    Files without a valid address, such as incomplete ones, are skipped. So are addresses with a user name or
    password, because addresses are logged.
    """
    found: list[str] = []
    try:
        for file in sorted(folder.glob(f"*{_SUFFIX}")):
            address = file.read_text(encoding="utf-8", errors="replace").strip().rstrip("/")
            if _LOOKS_LIKE_ONE.fullmatch(address):
                found.append(address)
    except OSError:  # the disk may be unavailable for a moment; callers then keep the known addresses
        return ()
    return tuple(dict.fromkeys(found))
