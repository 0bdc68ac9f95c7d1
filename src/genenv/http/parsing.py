"""Parsing of request bodies: small ones at once, large ones in a separate process.

A parser holds Python's global lock while it runs, even in a thread, so the server would answer nobody else.
`python -m genenv.http.parsing FD` is the separate process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TypeVar, cast

from pydantic import BaseModel, ValidationError

from genenv.errors import GenenvError, UsageError

T = TypeVar("T")
AnyBody = TypeVar("AnyBody", bound=BaseModel)

_SMALL_BYTES = 32 * 2**10
"""Bodies up to this size are parsed at once, which takes some milliseconds."""
_MEMORY_BYTES = 4 * 2**30
"""Maximum address space of the process that parses large bodies."""
_MOST_S = 60.0
"""Time limit for parsing a body."""
_SHOWN = 200


def read(body: type[AnyBody], data: bytes) -> AnyBody:
    """Parse a JSON body.

    Raises:
        UsageError: the body is not JSON or does not match the model.
    """
    try:
        return body.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))[:_SHOWN] or "the body"
        raise UsageError(f"{place}: {first['msg'][:_SHOWN].lower().rstrip('.')}") from error


class Parser:
    """Parses bodies for one server. Its process starts with the first large body, and again after a fault."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="genenv-parsing")
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Connection | None = None

    async def __call__(self, function: Callable[[bytes], T], data: bytes) -> T:
        """Apply a function to a body and return its result.

        Args:
            function: a function at module level, so that another process can import it.
            data: the body.

        Raises:
            UsageError: the function raised it, or the body takes too much time or memory.
        """
        if len(data) <= _SMALL_BYTES:
            return function(data)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._far, function, data)

    def close(self) -> None:
        """End the process."""
        self._end()
        self._thread.shutdown(wait=False)

    def _far(self, function: Callable[[bytes], T], data: bytes) -> T:
        line = self._line or self._start()
        try:
            line.send_bytes(pickle.dumps(function))
            line.send_bytes(data)
            if not line.poll(_MOST_S):
                raise EOFError
            found, error = cast("tuple[T, GenenvError | None]", line.recv())
        except (OSError, EOFError) as error:
            self._end()
            raise UsageError(
                f"the body of {len(data)} bytes takes too much time or memory to read; send less at a time"
            ) from error
        if error is not None:
            raise error
        return found

    def _start(self) -> Connection:
        own, other = Pipe()
        with other:
            self._process = subprocess.Popen(  # noqa: S603 - this module
                [sys.executable, "-m", __name__, str(other.fileno())],
                pass_fds=[other.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
            )
        self._line = cast(Connection, own)
        return self._line

    def _end(self) -> None:
        line, process = self._line, self._process
        self._line = self._process = None
        if line is not None:
            line.close()
        if process is not None:
            process.kill()
            process.wait()


def main(descriptor: int) -> None:
    """Parse bodies until the other end closes the connection.

    Args:
        descriptor: the file descriptor of the connection to a `Parser`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server handles Ctrl-C
    with contextlib.suppress(ValueError, OSError):  # the limit is already lower
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    with Connection(descriptor) as line, contextlib.suppress(EOFError, OSError):
        while True:
            function = cast("Callable[[bytes], object]", pickle.loads(line.recv_bytes()))  # noqa: S301 - the server's
            try:
                line.send((function(line.recv_bytes()), None))
            except GenenvError as error:
                line.send((None, error))


if __name__ == "__main__":
    main(int(sys.argv[1]))
