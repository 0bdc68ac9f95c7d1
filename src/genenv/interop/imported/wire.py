"""Client of an OpenEnv server (`openenv-core` 0.3): schemas over HTTP, and one WebSocket per session.

Each rollout has its own session while it runs. Sessions are reused, as `reset` starts a new episode. A server
allows few sessions, often one, so a rollout waits until a session is free. The WebSocket library answers
pings in a separate thread, so servers do not time a session out while models generate.
"""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from genenv.environments.stepwise import STEPPED
from genenv.errors import GenenvError, RolloutError, UsageError, first_line
from genenv.interop.imported.pool import Pool
from genenv.texts import inert, masked
from genenv.types import JsonObject

MOST_BYTES = 64 << 20
"""The largest message in bytes; a longer message ends the connection."""
_GOOD_BYE_S = 1.0


class Gone(GenenvError):
    """Raised if the connection has ended or cannot be made. The message continues a sentence."""


class NoWebSocket(GenenvError):
    """Raised if the address does not answer as a WebSocket server. The message continues a sentence."""


class TooSlow(GenenvError):
    """Raised if no answer arrives in time."""


class WebSocket:
    """A WebSocket connection for requests that each have one answer.

    Args:
        url: the address, `http://HOST:PORT/PATH` or `https://`.
        limit_s: seconds that connecting may take.

    Raises:
        Gone: the connection cannot be made.
        NoWebSocket: the address is not a WebSocket server.
        TooSlow: connecting takes too long.
        UsageError: the package `websockets` is not installed.
    """

    def __init__(self, url: str, limit_s: float) -> None:
        self._held = contextlib.ExitStack()
        try:
            from websockets.exceptions import InvalidStatus, WebSocketException
            from websockets.sync.client import connect
        except ImportError as error:
            raise UsageError(
                "sessions of an OpenEnv server need the package websockets: pip install 'genenv[openenv]'"
            ) from error
        try:
            connecting = connect(
                "ws" + url.removeprefix("http"),
                open_timeout=limit_s,
                close_timeout=_GOOD_BYE_S,
                ping_interval=None,
                max_size=MOST_BYTES,
                compression=None,
                proxy=None,
            )
            self._connection = self._held.enter_context(connecting)
        except TimeoutError as error:
            raise TooSlow(f"no connection within {limit_s:g} s") from error
        except InvalidStatus as error:
            answer = error.response
            kind = answer.headers.get("content-type", "").partition(";")[0] or "no content"
            raise NoWebSocket(f"it answers {answer.status_code} with {kind}") from error
        except WebSocketException as error:
            raise NoWebSocket("it answers with something else than a WebSocket") from error
        except OSError as error:
            raise Gone(error.strerror or str(error)) from error

    def ask(self, text: str, limit_s: float) -> str:
        """Send a text and return the next text received.

        Args:
            text: the text to send.
            limit_s: seconds that the answer may take.

        Raises:
            Gone: the connection has ended.
            TooSlow: no answer arrived in time; the connection is closed.
        """
        from websockets.exceptions import ConnectionClosed

        until = time.monotonic() + limit_s
        try:
            self._connection.send(text)
            found = self._connection.recv(timeout=max(0.0, until - time.monotonic()), decode=False)
        except TimeoutError as error:
            self._connection.close_socket()
            raise TooSlow("no answer came in time") from error
        except (ConnectionClosed, OSError) as error:
            raise Gone(self._why(error)) from error
        return found.decode("utf-8", errors="replace")

    @property
    def open(self) -> bool:
        """Return whether the connection is open."""
        from websockets.protocol import State

        return self._connection.state is State.OPEN

    def close(self, last: str = "") -> None:
        """Close the connection.

        Args:
            last: a text that makes the server close it; the server gets a second for that.
        """
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed, OSError):
            if last and self.open:
                self._connection.send(last)
                until = time.monotonic() + _GOOD_BYE_S
                while (left_s := until - time.monotonic()) > 0:
                    self._connection.recv(timeout=left_s)
            self._held.close()

    def _why(self, error: Exception) -> str:
        told, ours = getattr(error, "rcvd", None), getattr(error, "sent", None)
        if told is not None:
            return "the server has ended the session" + f" ({told.reason[:100]})" * bool(told.reason)
        if ours is not None and ours.code == _TOO_BIG:
            return f"a message of more than {MOST_BYTES >> 20} MB came"
        return "the connection has ended"


_TOO_BIG = 1009
"""The WebSocket close code for a message that is too long."""


_PAUSE_S = 0.2
_MOST_BYTES = 16 << 20
_ENDED = ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR")
"""Error codes after which a session cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A server's answer to `reset` or `step`."""

    observation: JsonObject
    reward: float | None
    done: bool


class Refused(Exception):
    """Raised if the server rejects an action. The message is a full sentence."""


class NoRoom(RolloutError):
    """Raised if the server allows no further session."""


class _Error(Exception):
    """Raised for an error that the server reports."""

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


class Server(Pool["Session"]):
    """An OpenEnv server and the pool of its sessions.

    Args:
        address: the address, `http://HOST:PORT`, optionally with a path.
        sessions: the most sessions open at a time.
        connect_s: seconds to retry if the server does not answer.
        step_s: seconds that an answer may take.

    Raises:
        UsageError: the address is malformed.
    """

    def __init__(self, address: str, *, sessions: int, connect_s: float, step_s: float) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                f"{address!r} is no address of an OpenEnv server; write openenv:http://HOST:PORT"
            )
        self.url = address.rstrip("/").removesuffix("/ws")
        self.shown = masked(self.url)
        super().__init__()
        self._most, self._connect_s, self.step_s = sessions, connect_s, step_s
        self._open = 0
        """How many sessions rollouts use, or are idle."""
        self._idle: list[Session] = []

    def get(self, path: str) -> JsonObject:
        """Return the JSON object at a path of the server.

        Raises:
            UsageError: no server answers, or the server is not an OpenEnv server.
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
        """Return a session that no rollout uses, without waiting; see `connect`.

        Raises:
            NoRoom: all sessions are in use.
        """
        with self.lock:
            if (found := self.free()) is not None:
                return found
        raise NoRoom(f"{self.shown} has no room for another session beside the {self._open} open.")

    async def wait(self) -> Session:
        """Return a session as soon as no rollout uses it; see `Pool.wait` and `connect`.

        A rollout that is run step by step cannot wait: only its caller can end others.

        Raises:
            UsageError: all sessions are in use, and the rollout is run step by step.
        """
        if not STEPPED.get():
            return await super().wait()
        try:
            return self.take()
        except NoRoom as error:
            raise UsageError(
                f"{error} Rollouts that are run step by step do not wait for one: set environment.sessions, "
                "and the server's max_concurrent_envs, to as many as run at a time"
            ) from error

    def free(self) -> Session | None:
        """See `Pool`."""
        if self._idle:
            return self._idle.pop()
        if self._open >= self._most:
            return None
        self._open += 1
        return Session(self)

    def give_back(self, session: Session) -> None:
        """Return a session to the pool."""
        if session.open:
            self._idle.append(session)
        else:
            self._end(session)
        self.wake()

    def close(self) -> None:
        """Close all idle sessions."""
        while self._idle:
            self._end(self._idle.pop())

    def _end(self, session: Session) -> None:
        session.close()
        with self.lock:
            self._open -= 1

    def connect(self, session: Session) -> None:
        """Connect a session that is new or was lost while idle.

        Raises:
            NoRoom: the server allows no further session.
            UsageError: no server answers, or it allows no session at all.
        """
        until = time.monotonic() + self._connect_s
        while not session.open:
            try:
                session.connect()
                return
            except NoRoom:
                with self.lock:
                    others = self._open - 1
                    self._most = others or self._most
                if others:
                    raise
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
    """A session on an OpenEnv server, with its own environment there.

    Args:
        server: the server, which connects the session.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._socket: WebSocket | None = None
        self.broken = False
        """Whether the session cannot be used any more."""
        self.used = False
        """Whether the session has run a rollout before."""

    def connect(self) -> None:
        """Open the session on the server.

        Raises:
            Gone: the server does not answer.
            NoRoom: the server allows no further session.
            NoWebSocket: the address is not a WebSocket server.
            TooSlow: the answer takes too long.
        """
        server = self._server
        self.close()
        self.broken = self.used = False
        self._socket = WebSocket(f"{server.url}/ws", server.step_s)
        try:
            self._ask({"type": "state"})  # whatever it says; one that has no room says that instead
        except _Error as error:
            if error.code in _ENDED:
                self.close()
                if error.code == "CAPACITY_REACHED":
                    raise NoRoom(f"{server.shown} allows no further session.") from error
                raise UsageError(
                    f"{server.shown} cannot make its environment: {error or error.code}; see its log"
                ) from error
        except BaseException:
            self.close()
            raise

    def reset(self, given: JsonObject) -> Answer:
        """Start a new episode.

        Raises:
            RolloutError: the environment cannot start it.
        """
        try:
            return self._acted({"type": "reset", "data": given})
        except Refused as error:
            raise RolloutError(f"The environment takes no such reset: {error}") from error

    def step(self, action: JsonObject) -> Answer:
        """Send an action and return the environment's answer.

        Raises:
            Refused: the server rejects the action.
            RolloutError: the environment failed.
        """
        return self._acted({"type": "step", "data": action})

    @property
    def open(self) -> bool:
        """Return whether the session can be used."""
        return not self.broken and self._socket is not None and self._socket.open

    def close(self) -> None:
        """Close the session; the server is notified, since it logs an error otherwise."""
        if self._socket is not None:
            self._socket.close("" if self.broken else json.dumps({"type": "close"}))
        self.broken = True

    def _acted(self, message: JsonObject) -> Answer:
        """Send `reset` or `step`, and return the answer or raise the error."""
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
        """Send a message and return the data of the server's answer."""
        assert self._socket is not None  # noqa: S101 - it is connected before it is asked
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
