"""A program that ends when whoever started it is gone: what it prints, and how it is stopped.

`python -m genenv.cluster.child WORD...` runs the program. Who started it holds the other end of its input. A
line `interrupt` there is Ctrl-C for the program. The end of the input, which a kill brings about as well,
ends the program with all that it has started.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_KEPT = 10_000


class Said(NamedTuple):
    """Lines, and the number of the one that comes next."""

    lines: tuple[str, ...]
    next: int


class Child:
    """A program on a leash: it ends when this process does, however that ends."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        log: Path | None = None,
        folder: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Start it.

        Args:
            words: the program and its arguments.
            log: a file for what it says, which grows.
            folder: where it runs; here, when left out or not there.
            variables: of its environment, beside those of this process.
        """
        self._lines: deque[str] = deque(maxlen=_KEPT)
        self._count, self._ended = 0, False
        self._news = threading.Condition()
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "genenv.cluster.child", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # what ends this process with its group leaves the leash to do its part
            cwd=folder if folder is not None and folder.is_dir() else None,
            env={**os.environ, **(variables or {}), "PYTHONUNBUFFERED": "1"},
        )
        self._reader = threading.Thread(target=self._read, args=(log,), daemon=True)
        self._reader.start()

    @property
    def status(self) -> int | None:
        """Its exit status, as a shell says it; None while it runs or has more to say."""
        return self._process.wait() if self._ended else None

    @property
    def last_line(self) -> str:
        """The last thing it said."""
        with self._news:
            return next((line for line in reversed(self._lines) if line.strip()), "nothing")

    def said(self, after: int, wait_s: float = 0.0) -> Said:
        """Lines from number `after` on; if there are none, those of the next `wait_s` seconds.

        Of a program that says very much only the last lines are there.
        """
        with self._news:
            self._news.wait_for(lambda: self._count > after or self.status is not None, wait_s)
            new = min(self._count - after, len(self._lines))
            return Said(tuple(self._lines)[len(self._lines) - new :] if new > 0 else (), self._count)

    def wait(self, limit_s: float | None = None) -> int | None:
        """Its exit status; None where it still runs after a limit of time."""
        self._reader.join(limit_s)
        return self.status

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._send(INTERRUPT)

    def end(self) -> None:
        """End it and all that it has started, at once."""
        self._let_go()
        self._reader.join()
        self._process.wait()

    def _let_go(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def _send(self, line: bytes) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # it has ended
                self._process.stdin.write(line)
                self._process.stdin.flush()

    def _read(self, log: Path | None) -> None:
        assert self._process.stdout is not None  # noqa: S101 - a pipe, as asked
        with contextlib.ExitStack() as stack:
            file = None if log is None else stack.enter_context(log.open("ab", buffering=0))
            for raw in stack.enter_context(self._process.stdout):
                if file is not None:
                    with contextlib.suppress(OSError):  # a full disk is the run's to tell
                        file.write(raw)
                with self._news:
                    self._lines.append(raw.decode("utf-8", errors="replace").rstrip("\r\n"))
                    self._count += 1
                    self._news.notify_all()
        self._let_go()
        with self._news:
            self._ended = True
            self._news.notify_all()


INTERRUPT = b"interrupt\n"
_PR_SET_PDEATHSIG = 1


def main(words: Sequence[str], held: Iterable[bytes]) -> int:
    """Run a program on a leash.

    Args:
        words: the program and its arguments.
        held: what says how long.

    Returns:
        Its exit status, as a shell says it: 128 and the signal's number where one ended it.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def begin() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a job in the background has it ignored
        if libc is not None:  # where the leash itself is killed, as Ray does with all that it finds on a node
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    with subprocess.Popen(  # noqa: S603 - the program that was asked for
        words, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=begin
    ) as program:
        group = program.pid

        def end(*_: object) -> None:
            _tell(group, signal.SIGKILL)

        signal.signal(signal.SIGTERM, end)
        threading.Thread(target=_watch, args=(group, held), daemon=True).start()
        status = program.wait()
        _tell(group, signal.SIGKILL)  # what it started, and left behind
    return status if status >= 0 else 128 - status


def _watch(group: int, held: Iterable[bytes]) -> None:
    for line in held:
        if line == INTERRUPT:
            _tell(group, signal.SIGINT)
    _tell(group, signal.SIGKILL)


def _tell(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # all of them have ended
        os.killpg(group, number)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Not the buffer of sys.stdin, which is locked while it is read, also at the end of this process.
    with open(0, "rb", buffering=0, closefd=False) as own:
        sys.exit(main(sys.argv[1:], own))
