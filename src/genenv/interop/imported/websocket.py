"""Text there, text back, one at a time: a session of OpenEnv's, over the client of `websockets`.

The client answers pings in a thread of its own, so that no server takes a session for dead while models
think.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from genenv.errors import GenenvError, UsageError

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

MOST_BYTES = 64 << 20
"""Of a message; a longer one ends the connection."""
_GOOD_BYE_S = 1.0


class Gone(GenenvError):
    """The connection has ended, or was never made. The message ends a sentence."""


class NoWebSocket(GenenvError):
    """Something else than a WebSocket server answers. The message ends a sentence."""


class TooSlow(GenenvError):
    """No answer came in time."""


class WebSocket:
    """A connection.

    Args:
        url: `http://HOST:PORT/PATH`, or `https://`.
        limit_s: so long it may take to connect.

    Raises:
        Gone: nobody answers.
        NoWebSocket: somebody else answers.
        TooSlow: the answer takes too long.
        UsageError: the package `websockets` is not here.
    """

    def __init__(self, url: str, limit_s: float) -> None:
        self._lock = threading.Lock()
        self._held = contextlib.ExitStack()
        self._connection = _connected(self._held, url, limit_s)

    def ask(self, text: str, limit_s: float) -> str:
        """Send a text, and receive the next one.

        Args:
            text: what is sent.
            limit_s: so long the answer may take.

        Raises:
            Gone: the connection has ended.
            TooSlow: no answer came in time; the connection is of no use after that.
        """
        from websockets.exceptions import ConnectionClosed

        with self._lock:
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
        """Whether the connection is still there."""
        from websockets.protocol import State

        return self._connection.state is State.OPEN

    def close(self, last: str = "") -> None:
        """Say good-bye.

        Args:
            last: a text that makes the server end it; it gets a moment for that.
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
"""The code with which our side ends a connection whose message is too long."""


def _connected(held: contextlib.ExitStack, url: str, limit_s: float) -> ClientConnection:
    try:
        from websockets.exceptions import InvalidHandshake, InvalidStatus, WebSocketException
        from websockets.sync.client import connect
    except ImportError as error:
        raise UsageError(
            "sessions of an OpenEnv server need the package websockets: pip install 'genenv[openenv]'"
        ) from error
    address = "ws" + url.removeprefix("http")
    try:
        connecting = connect(
            address,
            open_timeout=limit_s,
            close_timeout=_GOOD_BYE_S,
            ping_interval=None,
            max_size=MOST_BYTES,
            compression=None,
            proxy=None,
        )
        return held.enter_context(connecting)
    except TimeoutError as error:
        raise TooSlow(f"no connection within {limit_s:g} s") from error
    except InvalidStatus as error:
        answer = error.response
        kind = answer.headers.get("content-type", "").partition(";")[0] or "no content"
        raise NoWebSocket(f"it answers {answer.status_code} with {kind}") from error
    except (InvalidHandshake, WebSocketException) as error:
        raise NoWebSocket("it answers with something else than a WebSocket") from error
    except OSError as error:
        raise Gone(error.strerror or str(error)) from error
