"""Whatever a server that samples answers, it becomes tokens, or a sentence that names the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from hypothesis import strategies as st

from fuzzing import Fuzz, json_values
from genenv.backends.settings import VllmConfig
from genenv.backends.vllm.client import Answer, Unfit, parse_cards, parse_completion, refusal_text
from genenv.backends.vllm.fleet import Fleet
from genenv.errors import GenenvError

ADDRESS = "http://127.0.0.1"


def completions() -> st.SearchStrategy[object]:
    """Nearly what is due."""
    odd = json_values(most=4)
    numbers = st.one_of(st.floats(), st.floats(-5, 0), st.integers(-(10**20), 10**20), odd)
    tokens = st.lists(st.fixed_dictionaries({"logprob": numbers}), max_size=4)
    choice = st.fixed_dictionaries(
        {
            "token_ids": st.one_of(st.lists(st.integers(-2, 120), max_size=4), odd),
            "logprobs": st.one_of(st.fixed_dictionaries({"content": st.one_of(tokens, odd)}), odd),
        }
    )
    return st.one_of(st.fixed_dictionaries({"choices": st.one_of(st.lists(choice, max_size=2), odd)}), odd)


def bodies() -> st.SearchStrategy[bytes]:
    """Bytes that a server may send."""
    written = st.one_of(completions(), json_values()).map(lambda value: json.dumps(value).encode())
    cut = st.tuples(written, st.integers(0, 60)).map(lambda pair: pair[0][: pair[1]])
    deep = st.sampled_from(
        [b"[" * 100_000, b'{"choices":' * 50_000, b"1" * 100_000, b"\xff\xfe", b"", b"<html>"]
    )
    return st.one_of(written, cut, deep, st.binary(max_size=80))


def test_a_completion_is_tokens_that_the_model_knows_or_unfit(fuzz: Fuzz) -> None:
    def read(body: bytes) -> None:
        told, ids, logprobs = "", (), ()
        try:
            ids, logprobs = parse_completion(Answer(200, body), max_tokens=3, vocabulary=100)
        except Unfit as error:
            told = str(error)
        if told:
            assert told.startswith("answers ")
            assert len(told) < 500
            assert told.isprintable()
            return
        assert 1 <= len(ids) == len(logprobs) <= 3
        assert all(0 <= token < 100 for token in ids)
        assert all(-float("inf") < value <= 1e-3 for value in logprobs)

    fuzz(bodies(), read)


def test_cards_and_refusals_are_read_or_said_in_a_line(fuzz: Fuzz) -> None:
    def read(pair: tuple[int, bytes]) -> None:
        answer = Answer(*pair)
        assert len(refusal_text(answer)) <= 300
        assert all(card.id is not None for card in parse_cards(ADDRESS, answer))

    fuzz(st.tuples(st.sampled_from([200, 307, 400, 404, 500]), bodies()), read)


def responses() -> st.SearchStrategy[bytes]:
    """All that a server sends on a connection, head and body."""
    status = st.sampled_from([b"200 OK", b"307 Moved", b"400 No", b"404 No", b"500 No", b"999", b"x", b""])
    head = st.sampled_from(
        [
            b"content-length: 3\r\n",
            b"content-length: -1\r\n",
            b"content-length: 99999999999999\r\n",
            b"transfer-encoding: chunked\r\n",
            b"location: http://127.0.0.1:1/\r\nconnection: close\r\n",
            b"content-encoding: gzip\r\n",
            b"set-cookie: \xff=\x01\r\n",
            b"connection: close\r\n",
            b": \r\n",
        ]
    )
    whole = st.tuples(status, st.lists(head, max_size=3), bodies()).map(
        lambda parts: b"HTTP/1.1 " + parts[0] + b"\r\n" + b"".join(parts[1]) + b"\r\n" + parts[2]
    )
    return st.one_of(whole, st.binary(max_size=60))


@contextlib.contextmanager
def answering(response: bytes) -> Iterator[str]:
    """Yield the address of a server, in a thread of its own, that sends the same bytes on each connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(1.0)
                    if not connection.recv(65536):
                        continue
                    if over.is_set():
                        return
                    connection.sendall(response)

        over = threading.Event()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"{ADDRESS}:{listener.getsockname()[1]}"
        finally:
            over.set()
            with socket.create_connection(listener.getsockname()) as last:  # wakes the thread
                last.sendall(b"end")
                thread.join()


def test_whatever_comes_over_a_connection_ends_in_a_sentence_that_names_the_server(fuzz: Fuzz) -> None:
    async def scene(address: str) -> None:
        fleet = Fleet(VllmConfig(addresses=(address,), timeout_s=0.3, tries=1))
        fleet.opening, fleet.vocabulary = False, 100
        fleet.wanted["a"] = Path("/nowhere")
        told = address
        try:
            await fleet.generate("a", (1, 2), {"max_tokens": 3})
        except GenenvError as error:
            told = str(error)
        finally:
            await fleet.close()
        assert address in told

    def ask(response: bytes) -> None:
        with answering(response) as address:
            asyncio.run(scene(address))

    fuzz(responses(), ask)
