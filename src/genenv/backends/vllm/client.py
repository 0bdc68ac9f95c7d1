"""HTTP to vLLM servers: many small requests, and their responses, held to their form.

Nothing that a server sends is trusted: a response has a largest size and a last moment, redirects are not
followed, and compressed responses are not unpacked.

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
from urllib.request import getproxies, proxy_bypass

import aiohttp
import pydantic_core
from pydantic import BaseModel, Field, StrictFloat, StrictInt, StrictStr, ValidationError

from genenv.backends.sampler_check import completion_problem
from genenv.backends.settings import PolicyConfig
from genenv.errors import RolloutError, UsageError, first_line
from genenv.texts import inert

LOST = (aiohttp.ClientError, OSError)
"""What is raised where no whole answer comes, or none in time."""
NO_ADDRESS = (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError)
"""What is raised where none can come, of what is asked for."""

MOST_BYTES = 16 * 2**20
"""The largest answer that is read, unless a request allows another size."""
_IDLE_S = 4.0
"""A connection that was idle for longer is not used again: servers close theirs after five seconds, and a
loop that was held up notices too late."""
_PIECE = 2**16


class TooLarge(Exception):
    """An answer is larger than anything that was asked for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """As it was read, whatever it is."""
        return self.body.decode("utf-8", errors="replace")

    def json(self) -> Any:  # noqa: ANN401 - whatever a server says
        """The answer as JSON, without NaN and of bounded depth.

        Raises:
            ValueError: it is none.
        """
        return pydantic_core.from_json(self.body, allow_inf_nan=False)


class Connections:
    """Connections to servers, of the loop in which they are made, and for as long as it runs."""

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        """None yet.

        Args:
            headers: go with every request.
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
        """Ask for something.

        Args:
            base: of the server.
            path: what is asked for.
            timeout_s: how long the whole answer may take.
            most: bytes that it may have.

        Raises:
            NO_ADDRESS: see there.
            LOST: see there.
            TooLarge: the answer does not end in time.
        """
        return await self._request("GET", base + path, None, timeout_s, most)

    async def post(
        self, base: str, path: str, body: Mapping[str, Any], *, timeout_s: float, most: int = MOST_BYTES
    ) -> Answer:
        """Ask with a JSON body; raises as `get` does."""
        written = json.dumps(body, separators=(",", ":")).encode()
        return await self._request("POST", base + path, written, timeout_s, most)

    async def close(self) -> None:
        """End them."""
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
        """The one that the environment names for an address, looked up once."""
        try:
            parts = urlsplit(url)
            base = f"{parts.scheme}://{parts.netloc}"
            if base not in self._proxies:
                passed = proxy_bypass(parts.hostname or "")
                self._proxies[base] = None if passed else getproxies().get(parts.scheme)
        except ValueError as error:
            raise aiohttp.InvalidURL(url, str(error)) from error
        return self._proxies[base]


_BYTES_A_TOKEN, _BYTES = 4096, 2**20
_MOST_SAID = 300
_FULL = (429, 503)
"""Statuses of a server that has too much to do at the moment."""
_LATER = (408, 425)
"""Statuses of a server that may answer later, besides those of 500 and more."""


class Unfit(Exception):
    """A server does not do what sampling for a run needs. The message goes on after its address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """One completion, and who sampled it."""

    address: str
    token_ids: tuple[int, ...]  # [T]
    logprobs: tuple[float, ...]  # [T] nats


class Refused(RolloutError):
    """A server does not want a request, and no other would."""


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
    """What a server says of a model that it serves."""

    id: StrictStr
    max_model_len: Annotated[StrictInt, Field(ge=1)] | None = None


class _Cards(BaseModel):
    data: list[Card] = Field(min_length=1)


def most_bytes(max_tokens: int) -> int:
    """The largest answer that a completion of so many tokens can be."""
    return _BYTES + _BYTES_A_TOKEN * max_tokens


def parse_completion(
    answer: Answer, *, max_tokens: int, vocabulary: int
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """[T] sampled tokens, and [T] their log-probabilities. Nats.

    Args:
        answer: to a request for one completion.
        max_tokens: that it was to have at most.
        vocabulary: how many tokens the model knows.

    Raises:
        Unfit: it is no such completion.
    """
    try:
        (choice,) = _Completion.model_validate(answer.json()).choices
    except ValueError as error:
        raise Unfit(
            f"answers with what is no completion ({_problem(error)}); vLLM does from 0.32 on"
        ) from error
    ids, logprobs = choice.token_ids, [float(one.logprob) for one in choice.logprobs.content]
    if (wrong := completion_problem(ids, logprobs, max_tokens=max_tokens, vocabulary=vocabulary)) is not None:
        raise Unfit(f"answers {wrong}")
    return tuple(ids), tuple(logprobs)


def parse_cards(address: str, answer: Answer) -> list[Card]:
    """What a server says of its models.

    Raises:
        UsageError: it serves none, or is no server of models.
    """
    problem = f"/v1/models says status {answer.status}, {refusal_text(answer)}"
    if answer.status == 200:
        try:
            return _Cards.model_validate(answer.json()).data
        except ValueError as error:
            problem = _problem(error)
    raise UsageError(f"what answers at {address} is no vLLM server, or serves nothing: {problem}")


def refusal_text(answer: Answer) -> str:
    """What a server says of a request that it refuses, in one short line."""
    text: Any = answer.text
    try:
        body = answer.json()
        text = body["error"]["message"] if "error" in body else body.get("detail", body)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    return inert(" ".join(str(text)[: 4 * _MOST_SAID].split()))[:_MOST_SAID]


def _problem(error: ValueError) -> str:
    """What is wrong with a body, in a few words."""
    if not isinstance(error, ValidationError):
        return f"no JSON: {first_line(error)}"
    first = error.errors(include_input=False, include_url=False)[0]
    return inert(f"{'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}")


class Broken(Exception):
    """An answer that is none; the server may have ended in the middle."""


class Busy(Broken):
    """A server is full; it knows all that it knew, and takes requests again later."""


class Forgot(Exception):
    """A server does not know an adapter that it has loaded."""


def check_room(answer: Answer) -> None:
    """Go on with what a server answers that is not full.

    Raises:
        Busy: it is.
    """
    if answer.status in _FULL:
        raise Busy(f"status {answer.status}: {refusal_text(answer)}")


def check_status(address: str, answer: Answer) -> None:
    """Go on with an answer of status 200 alone.

    Raises:
        Refused: the request is wrong.
        Unfit: the server does not do what is asked.
        Forgot, Broken, Busy: see there.
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
    """Hold a completion to those that it could be, or to the beginning of one where it was cut off.

    Raises:
        Unfit: it is none of them.
    """
    if among and ids not in among and not any(len(ids) == most and one[:most] == ids for one in among):
        raise Unfit("answers with a reply that is none of those that were possible")


def why(error: BaseException | None) -> str:
    """An error in one line."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return "nothing" if error is None else (first_line(error) or type(error).__name__)


def check_policies(policy: PolicyConfig) -> None:
    """Refuse players that servers cannot hold: they have one base, and adapters on it.

    Raises:
        UsageError: these are such.
    """
    if policy.tuning != "lora" or policy.simulator_model is not None:
        raise UsageError(
            "servers hold one base and adapters on it: add --set policy.tuning=lora, and leave "
            "policy.simulator_model out"
        )


_SUFFIX = ".address"
_LOOKS_LIKE_ONE = re.compile(r"https?://[^\s/@?#]+")


def write_address(folder: Path, name: str, address: str) -> None:
    """Say where a server is now; what it said before is replaced as a whole.

    Args:
        folder: `policy.vllm.addresses_folder`; made when it is missing.
        name: the server's, which stays when it begins anew elsewhere.
        address: its base URL.
    """
    folder.mkdir(parents=True, exist_ok=True)
    unseen = folder / f".{name}.{os.getpid()}"
    unseen.write_text(address + "\n", encoding="utf-8")
    unseen.replace(folder / f"{name}{_SUFFIX}")


def remove_address(folder: Path, name: str) -> None:
    """Say that a server is nowhere at present."""
    (folder / f"{name}{_SUFFIX}").unlink(missing_ok=True)


def read_addresses(folder: Path) -> tuple[str, ...]:
    """All addresses in a folder, in the order of the servers' names; none where it cannot be read.

    A file that holds no address, such as one that others see before it is whole, is left out; and so is one
    with a user name or a password, as addresses are written into logs.
    """
    found: list[str] = []
    try:
        for file in sorted(folder.glob(f"*{_SUFFIX}")):
            address = file.read_text(encoding="utf-8", errors="replace").strip().rstrip("/")
            if _LOOKS_LIKE_ONE.fullmatch(address):
                found.append(address)
    except OSError:  # a disk that is away for a moment: what was known before stays known
        return ()
    return tuple(dict.fromkeys(found))
