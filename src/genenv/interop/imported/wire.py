"""The protocol of `openenv-core` 0.3: schemas over HTTP, and each session a WebSocket (`reset`, `step`).

Each attempt has a session to itself; sessions are used again, as `reset` begins anew. A server has room for
so many, often one: who wants another waits until somebody lets go.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from genenv.errors import RolloutError, UsageError, first_line
from genenv.interop.imported.websocket import Gone, NoWebSocket, TooSlow, WebSocket
from genenv.texts import inert, masked
from genenv.types import JsonObject

_PAUSE_S = 0.2
_MOST_BYTES = 16 << 20
_ENDED = ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR")
"""Errors after which a session is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a server says to `reset` or `step`."""

    observation: JsonObject
    reward: float | None
    done: bool


class Refused(Exception):
    """The server takes no such action. The message is a sentence of its own."""


class NoRoom(Exception):
    """The server has no room for another session."""


class _Error(Exception):
    """An error that the server tells of."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.code = str(data.get("code", ""))
        listed = data.get("errors")
        told = [
            f"{'.'.join(map(str, one.get('loc', ())))}: {one.get('msg')}"
            for one in cast("list[dict[str, Any]]", listed if isinstance(listed, list) else [])
            if isinstance(cast(object, one), dict)
        ]
        said = "; ".join(told) or str(data.get("message", ""))
        super().__init__(inert(" ".join(said.split()))[:300])


class Server:
    """An OpenEnv server.

    Args:
        address: `http://HOST:PORT`, perhaps with a path.
        sessions: so many at a time at most.
        connect_s: so long it is asked again where it is not there.
        step_s: so long an answer may take.

    Raises:
        UsageError: that is no address.
    """

    def __init__(self, address: str, *, sessions: int, connect_s: float, step_s: float) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                f"{address!r} is no address of an OpenEnv server; write openenv:http://HOST:PORT"
            )
        self.url = address.rstrip("/").removesuffix("/ws")
        self.shown = masked(self.url)
        self._most, self._connect_s, self.step_s = sessions, connect_s, step_s
        self._open = 0
        self._idle: list[Session] = []
        self._waiting: deque[asyncio.Future[None]] = deque()

    def get(self, path: str) -> JsonObject:
        """A JSON object that the server has under a path.

        Raises:
            UsageError: there is no server, or none of OpenEnv.
        """
        until = time.monotonic() + self._connect_s
        while True:
            try:
                return self._got(path)
            except Gone as error:
                if time.monotonic() > until:
                    raise self._lost(str(error)) from error
                time.sleep(_PAUSE_S)

    def _got(self, path: str) -> JsonObject:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(self.url + path, timeout=self.step_s) as answer:  # http or https: see __init__
                kind = answer.headers.get_content_type()
                text = answer.read(_MOST_BYTES)
        except urllib.error.HTTPError as error:
            error.close()
            raise UsageError(
                f"{self.shown} answers {error.code} to {path}; is that an OpenEnv server? The address is "
                "that under which its /health lies"
            ) from error
        except (OSError, urllib.error.URLError) as error:
            reason = getattr(error, "reason", error)
            raise Gone(getattr(reason, "strerror", None) or str(reason)) from error
        except ValueError as error:  # an answer that is no HTTP
            raise UsageError(f"{self.shown} does not speak HTTP: {first_line(error)}") from error
        try:
            found: object = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise UsageError(f"{self.shown}{path} is {kind}, not JSON; is that an OpenEnv server?")
        return cast(JsonObject, found)

    def take(self) -> Session:
        """A session, at once.

        Raises:
            RolloutError: there is no room for one.
            UsageError: there is no server.
        """
        found = self._taken()
        if found is None:
            raise RolloutError(f"{self.shown} has no room for another session beside the {self._open} open.")
        return found

    async def wait(self) -> Session:
        """A session, as soon as there is room for it; where nobody can wait, at once.

        Raises:
            RolloutError: there is no room, and no event loop in which others could let go.
            UsageError: there is no server.
        """
        while (found := self._taken()) is None:
            try:
                turn = asyncio.get_running_loop().create_future()
            except RuntimeError:
                return self.take()
            self._waiting.append(turn)
            await turn
        return found

    def give_back(self, session: Session) -> None:
        """Somebody is done with a session."""
        if session.broken:
            session.close()
            self._open -= 1
        else:
            self._idle.append(session)
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done() and not turn.get_loop().is_closed():
                turn.set_result(None)
                return

    def close(self) -> None:
        """End all sessions that nobody uses."""
        for session in self._idle:
            session.close()
            self._open -= 1
        self._idle.clear()

    def _taken(self) -> Session | None:
        while self._idle:
            session = self._idle.pop()
            if session.open:
                return session
            session.close()
            self._open -= 1
        if self._open >= self._most:
            return None
        until = time.monotonic() + self._connect_s
        while True:
            try:
                session = Session(self)
                self._open += 1
                return session
            except NoRoom:
                if self._open:
                    self._most = self._open
                    return None
                if time.monotonic() > until:
                    raise UsageError(
                        f"{self.shown} has no room for a session: others use it, or it allows none; wait for "
                        "them, or start it with more (max_concurrent_envs)"
                    ) from None
            except (Gone, TooSlow) as error:
                if time.monotonic() > until:
                    raise self._lost(str(error)) from error
            except NoWebSocket as error:
                raise UsageError(
                    f"{self.shown} is no OpenEnv server that genenv can play: {inert(str(error))}; where one "
                    "was there before, start it again: a run goes on with --resume"
                ) from error
            time.sleep(_PAUSE_S)

    def _lost(self, why: str) -> UsageError:
        return UsageError(
            f"the OpenEnv server {self.shown} does not answer: {inert(why)}; start it, and go on: what a run "
            "has committed is kept (`genenv train --resume`)"
        )


class Session:
    """A conversation with an environment of its own.

    Args:
        server: whose.

    Raises:
        Gone: nobody answers.
        NoRoom: the server has none.
        NoWebSocket: it is something else.
        TooSlow: the answer takes too long.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self.broken = False
        """Whether it is of no more use."""
        self.used = False
        """Whether it had an attempt before."""
        self._socket = WebSocket(f"{server.url}/ws", server.step_s)
        try:
            self._ask({"type": "state"})  # whatever it says; one that has no room says that instead
        except _Error as error:
            if error.code in _ENDED:
                self.close()
                if error.code == "CAPACITY_REACHED":
                    raise NoRoom(str(error)) from error
                raise UsageError(
                    f"{server.shown} cannot make its environment: {error or error.code}; see its log"
                ) from error
        except BaseException:
            self.close()
            raise

    def reset(self, given: JsonObject) -> Answer:
        """Begin anew.

        Raises:
            RolloutError: the environment cannot.
        """
        try:
            return self._acted({"type": "reset", "data": given})
        except Refused as error:
            raise RolloutError(f"The environment takes no such reset: {error}") from error

    def step(self, action: JsonObject) -> Answer:
        """Act.

        Raises:
            Refused: that is no action.
            RolloutError: the environment failed.
        """
        return self._acted({"type": "step", "data": action})

    @property
    def open(self) -> bool:
        """Whether it is still there."""
        return not self.broken and self._socket.open

    def close(self) -> None:
        """End it; a server of OpenEnv's wants to be told, else it logs an error."""
        self._socket.close("" if self.broken else json.dumps({"type": "close"}))
        self.broken = True

    def _acted(self, message: JsonObject) -> Answer:
        """What becomes of a message."""
        try:
            return self._answer(self._ask(message))
        except _Error as error:
            if error.code == "VALIDATION_ERROR":
                raise Refused(str(error)) from error
            if error.code in ("UNKNOWN_TYPE", "INVALID_JSON"):
                raise self._strange(f"the error {error.code}: {error}") from error
            raise self._failed(f"The environment failed: {error or error.code}") from error
        except TooSlow as error:
            raise self._failed(
                f"The environment took longer than {self._server.step_s:g} s (environment.step_s)."
            ) from error
        except Gone as error:
            raise self._failed(f"The session with the environment was lost: {error}.") from error

    def _ask(self, message: JsonObject) -> Mapping[str, Any]:
        """The data of the server's answer to a message."""
        text = self._socket.ask(json.dumps(message), self._server.step_s)
        try:
            found: object = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._strange(f"{text[:40]!r}, which is not JSON") from error
        fields = cast("Mapping[str, object]", found if isinstance(found, dict) else {})
        kind, data = fields.get("type"), fields.get("data")
        if not isinstance(kind, str) or not isinstance(data, dict):
            raise self._strange(repr(text[:40]))
        told = cast("Mapping[str, Any]", data)
        if kind == "error":
            raise _Error(told)
        if kind not in ("observation", "state"):
            raise self._strange(f"a message of the type {kind!r}")
        return told

    def _answer(self, data: Mapping[str, Any]) -> Answer:
        observation, done, reward = data.get("observation"), data.get("done", False), data.get("reward")
        if not isinstance(observation, dict) or not isinstance(done, bool):
            raise self._strange("an answer without an observation")
        if reward is not None and not isinstance(reward, int | float):
            raise self._failed(f"The environment gave the reward {reward!r}, which is no number.")
        return Answer(
            observation=cast(JsonObject, observation),
            reward=None if reward is None else float(reward),
            done=done,
        )

    def _failed(self, sentence: str) -> RolloutError:
        self.broken = True
        return RolloutError(sentence)

    def _strange(self, what: str) -> UsageError:
        self.broken = True
        return UsageError(
            f"{self._server.shown} answers {inert(what)}; that is not the protocol of OpenEnv 0.3, which "
            "genenv speaks: is it a server of another version?"
        )
