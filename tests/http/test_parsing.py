"""Bodies of requests as values, the large ones in a process of their own."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import BaseModel

from genenv.errors import UsageError
from genenv.http.parsing import Parser, read


class Many(BaseModel):
    """A body of many small parts."""

    parts: list[dict[str, int]]


read_many: Any = functools.partial(read, Many)


def with_parser(scene: Callable[[Parser], Awaitable[None]]) -> None:
    async def run() -> None:
        parser = Parser()
        try:
            await scene(parser)
        finally:
            parser.close()

    asyncio.run(run())


def many(parts: int) -> bytes:
    return json.dumps({"parts": [{"a": 1, "b": 2}] * parts}).encode()


@pytest.mark.long
def test_the_loop_goes_on_while_a_large_body_is_read() -> None:
    async def scene(parser: Parser) -> None:
        reading = asyncio.ensure_future(parser(_count, many(200_000)))
        longest = last = 0.0
        while not reading.done():
            last = time.monotonic()
            await asyncio.sleep(0.005)
            longest = max(longest, time.monotonic() - last)
        assert await reading == 200_000
        since = time.monotonic()
        assert _count(many(200_000)) == 200_000
        assert longest < max(0.3, (time.monotonic() - since) / 2)

    with_parser(scene)


def _count(data: bytes) -> int:
    return len(read(Many, data).parts)


@pytest.mark.long
def test_what_is_wrong_with_a_large_body_is_said_as_of_a_small_one() -> None:
    async def scene(parser: Parser) -> None:
        for parts in (1, 10_000):
            data = many(parts)
            assert (await parser(read_many, data)).parts == [{"a": 1, "b": 2}] * parts
            with pytest.raises(UsageError, match=r"^the body: invalid json: "):
                await parser(read_many, data[:-1])
            with pytest.raises(UsageError, match=r"^parts\.0\.a: input should be a valid integer"):
                await parser(read_many, data.replace(b"1", b'"x"'))

    with_parser(scene)


@pytest.mark.long
def test_a_process_that_ends_takes_one_body_with_it() -> None:
    async def scene(parser: Parser) -> None:
        with pytest.raises(UsageError, match="too much time or memory to read; send less at a time"):
            await parser(_ends, many(10_000))
        assert await parser(_count, many(10_000)) == 10_000

    with_parser(scene)


def _ends(_: bytes) -> None:
    raise SystemExit(1)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the body: invalid json: eof"),
        (b"[" * 10_000, "the body: invalid json: recursion limit exceeded"),
        (b'{"parts": [{"\xff": 1}]}', "the body: invalid json"),
        (b'{"parts": [{"\\ud800": 1}]}', "the body: invalid json"),
        (b'{"parts": [{"a": 1e999}]}', "parts.0.a: "),
        (b'{"parts": [{"a": ' + b"9" * 5000 + b"}]}", "the body: invalid json: number out of range"),
        (b'{"parts": [{"' + b"k" * 5000 + b'": "x"}]}', "parts.0.kkk"),
    ],
)
def test_a_body_that_is_none_is_one_short_sentence(data: bytes, said: str) -> None:
    with pytest.raises(UsageError) as error:
        read(Many, data)
    assert str(error.value).startswith(said)
    assert len(str(error.value)) < 450
    assert "\n" not in str(error.value)
