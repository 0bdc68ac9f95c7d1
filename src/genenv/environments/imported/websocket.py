"""A WebSocket client (RFC 6455) of the standard library alone: text there, text back, one at a time.

That is all that OpenEnv's protocol needs, and so nothing has to be installed beside genenv, whose other parts
want other versions of what OpenEnv's own client brings along. Nothing is packed, and no proxy is asked.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import select
import socket
import ssl
import struct
import threading
import time
import weakref
from urllib.parse import urlsplit

from genenv.errors import GenenvError

MOST_BYTES = 64 << 20
"""Of a message; a longer one ends the connection."""
_MOST_HEADER = 64 << 10
_GOOD_BYE_S = 1.0
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_TEXT, _BINARY, _CLOSE, _PING, _PONG = 1, 2, 8, 9, 10


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
    """

    def __init__(self, url: str, limit_s: float) -> None:
        self._buffer = bytearray()
        self._ended = False
        self._lock = threading.Lock()
        self._until = time.monotonic() + limit_s
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        host, port = parts.hostname or "", parts.port or (443 if secure else 80)
        try:
            plain = socket.create_connection((host, port), timeout=limit_s)
        except TimeoutError as error:
            raise TooSlow(f"no connection within {limit_s:g} s") from error
        except OSError as error:
            raise Gone(error.strerror or str(error)) from error
        self._socket = plain
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if secure:
                self._socket = ssl.create_default_context().wrap_socket(plain, server_hostname=host)
            self._shake_hands(parts.netloc.rpartition("@")[2], parts.path or "/")
        except BaseException as error:
            self._drop()
            if isinstance(error, ssl.SSLError):
                raise Gone(f"no secure connection: {error.reason or error}") from error
            raise
        weakref.finalize(self, self._socket.close)

    def ask(self, text: str, limit_s: float) -> str:
        """Send a text, and receive the next one.

        Args:
            text: what is sent.
            limit_s: so long the answer may take.

        Raises:
            Gone: the connection has ended.
            TooSlow: no answer came in time; the connection is of no use after that.
        """
        with self._lock:
            self._until = time.monotonic() + limit_s
            try:
                self._send(_TEXT, text.encode())
                return self._message().decode("utf-8", errors="replace")
            except GenenvError:
                self._drop()
                raise

    def tend(self) -> bool:
        """Answer what a server wants to know in between, lest it takes the connection for dead.

        Returns:
            Whether the connection is still there.
        """
        if not self._lock.acquire(blocking=False):
            return True  # somebody asks something right now
        try:
            self._until = time.monotonic() + _GOOD_BYE_S
            while not self._ended and select.select([self._socket], [], [], 0)[0]:
                self._fill()
            while not self._ended and (frame := self._whole_frame()) is not None:
                self._control(*frame)
        except (GenenvError, OSError, ValueError):
            self._drop()
        finally:
            self._lock.release()
        return not self._ended

    def close(self, last: str = "") -> None:
        """Say good-bye.

        Args:
            last: a text that makes the server end it; it gets a moment for that.
        """
        if self._ended:
            return
        self._until = time.monotonic() + _GOOD_BYE_S
        with contextlib.suppress(GenenvError):
            if last:
                self._send(_TEXT, last.encode())
                while True:
                    self._message()
            self._send(_CLOSE, struct.pack("!H", 1000))
        self._drop()

    def _drop(self) -> None:
        self._ended = True
        self._socket.close()

    def _shake_hands(self, host: str, path: str) -> None:
        key = base64.b64encode(os.urandom(16))
        lines = (
            f"GET {path} HTTP/1.1",
            f"Host: {host}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key.decode()}",
            "Sec-WebSocket-Version: 13",
        )
        self._write("\r\n".join([*lines, "", ""]).encode())
        while b"\r\n\r\n" not in self._buffer:
            if len(self._buffer) > _MOST_HEADER:
                raise NoWebSocket("it answers with something else than a WebSocket")
            self._fill()
        head, _, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        self._buffer = bytearray(rest)
        first, *fields = head.decode("latin-1").split("\r\n")
        named = {name.strip().lower(): value.strip() for name, _, value in (f.partition(":") for f in fields)}
        if first.split(" ")[1:2] != ["101"]:
            kind = named.get("content-type", "").partition(";")[0] or "no content"
            raise NoWebSocket(f"it answers {first[:60]!r} with {kind} at {path}")
        wanted = base64.b64encode(hashlib.sha1(key + _MAGIC).digest()).decode()  # noqa: S324 - the RFC's
        if named.get("sec-websocket-accept") != wanted:
            raise NoWebSocket("its handshake is not that of a WebSocket")

    def _message(self) -> bytes:
        """The next whole message; what the connection itself says in between is answered."""
        whole = bytearray()
        while True:
            first, second = self._take(2)
            length = second & 0x7F
            if length >= 126:
                length = int.from_bytes(self._take(2 if length == 126 else 8), "big")
            if len(whole) + length > MOST_BYTES:
                raise Gone(f"a message of more than {MOST_BYTES >> 20} MB came")
            mask = self._take(4) if second & 0x80 else b""
            content = self._take(length)
            if mask:
                content = _masked(content, mask)
            kind = first & 0x0F
            if kind in (0, _TEXT, _BINARY):
                whole += content
                if first & 0x80:
                    return bytes(whole)
            else:
                self._control(kind, content)

    def _control(self, kind: int, content: bytes) -> None:
        """What the connection itself says."""
        if kind == _PING:
            self._send(_PONG, content)
        elif kind == _CLOSE:
            with contextlib.suppress(GenenvError):
                self._send(_CLOSE, content[:2])
            why = content[2:].decode("utf-8", errors="replace")[:100]
            raise Gone(f"the server has ended the session{f' ({why})' if why else ''}")

    def _whole_frame(self) -> tuple[int, bytes] | None:
        """A frame of the connection's own that has come whole; a message is left for whoever asks next."""
        if len(self._buffer) < 2 or self._buffer[0] & 0x0F in (0, _TEXT, _BINARY):
            return None
        size = self._buffer[1] & 0x7F  # such frames are short, and no server masks them
        if len(self._buffer) < 2 + size:
            return None
        first, _ = self._take(2)
        return first & 0x0F, self._take(size)

    def _send(self, kind: int, content: bytes) -> None:
        """A frame, masked as a client's have to be."""
        size, mask = len(content), os.urandom(4)
        head = bytearray([0x80 | kind])
        if size < 126:
            head.append(0x80 | size)
        elif size < 1 << 16:
            head += bytes([0x80 | 126]) + size.to_bytes(2, "big")
        else:
            head += bytes([0x80 | 127]) + size.to_bytes(8, "big")
        self._write(bytes(head) + mask + _masked(content, mask))

    def _write(self, content: bytes) -> None:
        self._waiting()
        try:
            self._socket.sendall(content)
        except TimeoutError as error:
            raise TooSlow("nothing more can be sent") from error
        except OSError as error:
            raise Gone(error.strerror or "the connection has ended") from error

    def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._fill()
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _fill(self) -> None:
        self._waiting()
        try:
            came = self._socket.recv(1 << 16)
        except TimeoutError as error:
            raise TooSlow("no answer came in time") from error
        except OSError as error:
            raise Gone(error.strerror or "the connection has ended") from error
        if not came:
            raise Gone("the connection has ended")
        self._buffer += came

    def _waiting(self) -> None:
        """No more time than is left."""
        if self._ended:
            raise Gone("the connection has ended")
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise TooSlow("no answer came in time")
        self._socket.settimeout(left_s)


def _masked(content: bytes, mask: bytes) -> bytes:
    """Every byte with one of the mask's four, in turn."""
    size = len(content)
    whole = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(content, "big") ^ int.from_bytes(whole, "big")).to_bytes(size, "big")
