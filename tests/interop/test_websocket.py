"""The WebSocket client: messages in pieces, of any size, between pings; and whatever may end a connection."""

from __future__ import annotations

import json
import time

import pytest

from genenv.interop.imported.wire import Gone, NoWebSocket, TooSlow, WebSocket
from openenv_server import OpenEnvServer, frame


class Echo(OpenEnvServer):
    """Answers with raw frames, as a test says."""

    frames: bytes = b""

    def _said(self, game: object, message: dict[str, object]) -> str | bytes | None:
        for connection in self._connections:
            connection.sendall(self.frames)
        return b"" if message.get("last") else "{}"


def asked(server: OpenEnvServer, text: str, limit_s: float = 5.0) -> str:
    socket = WebSocket(f"{server.url}/ws", limit_s)
    try:
        return socket.ask(text, limit_s)
    finally:
        socket.close()


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536, 1_000_000])
def test_messages_of_any_size_come_and_go(size: int) -> None:
    text = "ä" * (size // 2)
    with OpenEnvServer() as server:
        server.say = json.dumps
        assert json.loads(asked(server, json.dumps({"type": text}))) == {"type": text}


def test_pieces_are_put_together_and_pings_answered() -> None:
    with Echo() as server:
        server.frames = (
            frame(b"one ", 1, last=False) + frame(b"ping", 9) + frame(b"", 10) + frame(b"two", 0, last=True)
        )
        assert asked(server, "{}") == "one two"


def test_a_server_that_says_good_bye_is_gone() -> None:
    with Echo() as server:
        server.frames = frame(b"\x03\xe9going away", 8)
        with pytest.raises(Gone, match=r"has ended the session \(going away\)"):
            asked(server, "{}")
        server.frames = b""
        with pytest.raises(Gone, match="the connection has ended"):
            asked(server, '{"last": true}')


def test_a_message_without_end_is_not_read() -> None:
    with Echo() as server:
        server.frames = bytes([0x81, 127]) + (1 << 40).to_bytes(8, "big")
        with pytest.raises(Gone, match="more than 64 MB"):
            asked(server, "{}")


@pytest.mark.long
def test_an_answer_that_does_not_come_is_not_waited_for() -> None:
    with OpenEnvServer() as server:
        server.pause_s = 1.0
        socket = WebSocket(f"{server.url}/ws", 5)
        with pytest.raises(TooSlow):
            socket.ask('{"type": "state"}', 0.2)
        with pytest.raises(Gone):
            socket.ask('{"type": "state"}', 0.2)


def test_a_page_is_no_websocket() -> None:
    with (
        OpenEnvServer() as server,
        pytest.raises(NoWebSocket, match="404 with application/json"),
    ):
        WebSocket(f"{server.url}/other", 5)
    with pytest.raises(Gone, match="refused"):
        WebSocket(f"{server.url}/ws", 5)


def test_pings_are_answered_while_nobody_asks() -> None:
    pongs: list[bytes] = []

    class Pinging(OpenEnvServer):
        """Pings when a message comes, and keeps what a client answers."""

        def _said(self, game: object, message: dict[str, object]) -> str | bytes | None:
            for connection in self._connections:
                connection.sendall(frame(b"{}"))
                connection.sendall(frame(b"still there?", 9))
                pongs.append(connection.recv(100))
                connection.sendall(frame(b"\x03\xe8", 8))
            return b""

    with Pinging() as server:
        socket = WebSocket(f"{server.url}/ws", 5)
        assert socket.ask("{}", 5) == "{}"
        while socket.open:
            time.sleep(0.01)
        assert pongs[0][:2] == bytes([0x8A, 0x80 | 12]), "a pong of twelve masked bytes"
        with pytest.raises(Gone):
            socket.ask("{}", 1)
