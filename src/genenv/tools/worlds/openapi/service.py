"""The operations of a document at a real service: asked when a bundle is made, never in training."""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from genenv.errors import UsageError
from genenv.texts import masked
from genenv.tools.worlds.base import Call, LoadedWorld, Outcome
from genenv.tools.worlds.limits import USUAL, Budget
from genenv.tools.worlds.openapi.answers import TOO_LONG, outcome_of
from genenv.tools.worlds.openapi.asking import TOO_LARGE, Asker, NotTaken, Wait
from genenv.tools.worlds.openapi.headers import Headers
from genenv.tools.worlds.openapi.parameters import DEPRECATED, MOST_TOOLS
from genenv.tools.worlds.openapi.reading import Document, Operation, fetched, is_address, operations
from genenv.tools.worlds.openapi.requests import Requests, reads
from genenv.tools.worlds.recorded import MOST_SENT, MOST_WRITTEN, Ended, NoAnswer, record
from genenv.tools.worlds.sources import RecordedSource, Source


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

    def bring(self, files: Path, budget: Budget | None = None) -> Source:
        """See `Origin`: what it answers is recorded."""
        name = self._document.rstrip("/").rsplit("/", 1)[-1]
        document = Document(self._headers.safe(fetched(self._document)), name)
        requests, left_out = self._chosen(operations(document), name)
        asker = Asker(self._address, self._headers, self._most, self._wait)
        line = _Line(requests, asker, self._headers, budget or Budget(USUAL))
        try:
            line.shorten()
            tools = {one: made.tool for one, made in requests.items()}
            made = record(tools, line.send, left_out, random.Random("recording"), self._most)
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
        current = [one for one in begun if not one.deprecated or one.path in self._only]
        left_out |= {one.name: DEPRECATED for one in begun if current and one not in current}
        if self._only and not begun:
            raise UsageError(f"{name} has no path that begins with {' or '.join(self._only)}")
        for one in current or begun:
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


class _Line:
    """What is said to a service, and what it answers."""

    def __init__(self, requests: dict[str, Requests], asker: Asker, headers: Headers, budget: Budget) -> None:
        self._requests, self._asker, self._headers, self._budget = requests, asker, headers, budget
        self._known: dict[str, Outcome] = {}
        """What calls without arguments were answered before anything was recorded."""

    def send(self, call: Call) -> Outcome:
        """What the agent reads.

        Raises:
            NoAnswer: nothing was answered.
            UsageError: the budget is used up.
        """
        if not call.args and call.tool in self._known:
            return self._known[call.tool]
        try:
            with self._budget.spending(lambda: self._asker.received):
                reply = self._asker.ask(self._requests[call.tool].of(call.args))
            return outcome_of(reply, self._headers)
        except NotTaken as error:
            return Outcome(error=str(error))

    def shorten(self) -> None:
        """Have lists that are too long for an agent, and can be had in parts, asked for in parts."""
        for name, one in list(self._requests.items()):
            shorter = one.shorter
            if shorter is None or one.tool.required or one.tool.writes:
                continue
            try:
                outcome = self.send(Call(tool=name, args={}))
            except Ended:
                return
            except NoAnswer:
                continue
            if outcome.error in (TOO_LONG, TOO_LARGE):
                self._requests[name] = shorter
            else:
                self._known[name] = outcome


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
