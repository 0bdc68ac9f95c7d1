"""The operations of a document at a real service: asked when a bundle is made, never in training."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from genenv.domains.tools.child import MOST_CHARS
from genenv.domains.tools.openapi.asking import Asker, NotTaken, Reply, Wait, status_said
from genenv.domains.tools.openapi.headers import Headers
from genenv.domains.tools.openapi.mock_world import MOST_TOOLS
from genenv.domains.tools.openapi.operations import Operation, operations
from genenv.domains.tools.openapi.reading import Document, fetched, is_address
from genenv.domains.tools.openapi.requests import Requests, reads
from genenv.domains.tools.plain import NotPlain, result_of
from genenv.domains.tools.recorded import MOST_SENT, MOST_WRITTEN, record
from genenv.domains.tools.sources import RecordedSource, Source
from genenv.domains.tools.world import Call, LoadedWorld, Outcome
from genenv.errors import UsageError
from genenv.texts import masked
from genenv.types import Json

_MOST_TOLD = 300
"""Characters of what a service says of an error."""
_TELLING = ("detail", "message", "error_description", "error", "errors", "title", "reason", "msg")
"""Fields of an error that say what is wrong, the likeliest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service that is asked for real.

    Args:
        address: what the document's paths go after.
        headers: that go along, as they are typed.
    """

    address: str
    headers: tuple[str, ...] = ()


class ServiceOrigin:
    """An OpenAPI document, and the service that it describes.

    Args:
        document: its path or address.
        service: it.
        only: operations whose path begins with one of these; none: all.
        writes: whether operations that may write are called too.
        most: so many requests at most are sent.
        wait: waits so many seconds.

    Raises:
        UsageError: the service has no address that can be asked, or a header is none.
    """

    def __init__(
        self,
        document: str,
        service: Service,
        only: Sequence[str] = (),
        *,
        writes: bool = False,
        most: int = MOST_SENT,
        wait: Wait = asyncio.sleep,
    ) -> None:
        self._document, self._only, self._writes, self._wait = document, tuple(only), writes, wait
        self._service, self._address, self._most = service, _address(service.address), most
        self._headers = Headers(service.headers, os.environ)

    @property
    def label(self) -> str:
        """See `Origin`."""
        return self._address

    @property
    def warning(self) -> str:
        """See `Origin`."""
        told = f"{self._address} is asked now, {self._most} requests at most, and its answers are kept"
        return told + (
            f"; what writes is called for real, each different call once, {MOST_WRITTEN} at most"
            if self._writes
            else "; only GET is sent, what may write is left out"
        )

    def bring(self, files: Path) -> Source:
        """See `Origin`: what it answers is recorded."""
        name = self._document.rstrip("/").rsplit("/", 1)[-1]
        document = Document(self._headers.safe(fetched(self._document)), name)
        requests, left_out = self._chosen(operations(document), name)
        tools = {one: made.tool for one, made in requests.items()}
        asker = Asker(self._address, self._headers, self._most, self._wait)

        def send(call: Call) -> Outcome:
            try:
                return outcome_of(asker.ask(requests[call.tool].of(call.args)), self._headers)
            except NotTaken as error:
                return Outcome(error=str(error))

        try:
            made = record(tools, send, left_out, random.Random("recording"), self._most)
        finally:
            asker.close()
        if not made.answers:
            reasons = made.ended or "; ".join(f"{one}: {why}" for one, why in made.left_out.items())
            raise UsageError(f"{self._address} answers nothing: {reasons[:400] or 'no call could be made'}")
        made.save(files)
        return RecordedSource(address=self._address, headers=self._service.headers)

    def complete(self, world: LoadedWorld, source: Source, files: Path) -> Source | None:
        """See `Origin`: what was recorded is all there is."""
        del world, source, files
        return None

    def _chosen(self, listed: Iterator[Operation], name: str) -> tuple[dict[str, Requests], dict[str, str]]:
        """The operations that are called, and why others are not."""
        chosen: dict[str, Requests] = {}
        left_out: dict[str, str] = {}
        begun = [one for one in listed if not self._only or one.path.startswith(self._only)]
        if self._only and not begun:
            raise UsageError(f"{name} has no path that begins with {' or '.join(self._only)}")
        for one in begun:
            made = Requests(one, self._headers.names)
            if not (self._writes or reads(one)):
                why = "goes by a name of what changes something" if one.method == "get" else "may write"
                left_out[one.name] = (
                    f"{one.method.upper()} {one.path} {why}, and --allow-writes was not given"
                )
            elif made.problem:
                left_out[one.name] = made.problem
            elif len(chosen) >= MOST_TOOLS:
                left_out[one.name] = f"{MOST_TOOLS} operations are enough; choose others with --only /PATH"
            else:
                chosen[one.name] = made
        if not chosen:
            reasons = "; ".join(f"{tool}: {why}" for tool, why in list(left_out.items())[:3])
            raise UsageError(f"no operation of {name} can be asked ({reasons[:400]})")
        return chosen, left_out


def outcome_of(reply: Reply, headers: Headers) -> Outcome:
    """What the agent is told of an answer.

    Args:
        reply: it.
        headers: whose secrets it is rid of.
    """
    answer: Json = None
    try:
        answer = headers.without(result_of(json.loads(reply.body or b"null")))
        problem = ""
    except NotPlain as error:
        problem = f"The service answers {error}."
    except (ValueError, RecursionError):
        problem = f"The service answers {headers.safe(reply.kind)[:80] or 'something'} that is no JSON."
    if not 200 <= reply.status < 300:
        told = _told(answer)
        return Outcome(error=f"The service answers {status_said(reply.status)}{f': {told}' if told else '.'}")
    if problem:
        return Outcome(error=problem)
    if len(json.dumps(answer, ensure_ascii=False)) > MOST_CHARS:
        return Outcome(error=f"The result is longer than {MOST_CHARS} characters.")
    return Outcome(result=answer)


def _told(answer: Json, depth: int = 0) -> str:
    """What a service says of an error."""
    if isinstance(answer, str):
        return " ".join(answer.split())[:_MOST_TOLD]
    if depth > 4:
        return ""
    if isinstance(answer, list):
        return next((told for one in answer[:4] if (told := _told(one, depth + 1))), "")
    if isinstance(answer, Mapping):
        held = (answer[name] for name in _TELLING if name in answer)
        return next((told for one in held if (told := _told(one, depth + 1))), "")
    return ""


def _address(text: str) -> str:
    """An address that paths can go after.

    Raises:
        UsageError: it is none.
    """
    try:
        parts = urlsplit(text)
        sound = bool(is_address(text) and parts.hostname and (parts.port or 1) > 0)
    except ValueError:
        sound, parts = False, urlsplit("")
    if not sound or re.search(r"[\s\\\x00-\x1f\x7f]", text):
        raise UsageError(f"--server {masked(text)[:200]!r} is no address such as https://example.com/v1")
    if parts.username is not None or parts.password is not None:
        raise UsageError("--server must hold no user and no password; give them with --header")
    if parts.query or parts.fragment:
        raise UsageError("--server ends with its path: what goes after ? or # is no part of it")
    return text.rstrip("/")
