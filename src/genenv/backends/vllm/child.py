"""A subprocess that ends when its parent ends, with access to its output.

`python -m genenv.backends.vllm.child WORD...` runs the program. The parent holds the other end of its input.
A line `interrupt` there is Ctrl-C for the program. The end of the input, which also occurs if the parent is
killed, ends the program and everything that it started.
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
    """Lines of output, and the number of the next line."""

    lines: tuple[str, ...]
    next: int


class Child:
    """A subprocess that ends when this process ends, even if this process is killed."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        log: Path | None = None,
        folder: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Start the program.

        Args:
            words: the program and its arguments.
            log: a file to which its output is appended.
            folder: its working directory; the current one if None or missing.
            variables: environment variables in addition to those of this process.
        """
        self._lines: deque[str] = deque(maxlen=_KEPT)
        self._count, self._ended = 0, False
        self._log = None if log is None else log.open("ab", buffering=0)
        self._news = threading.Condition()
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "genenv.backends.vllm.child", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a signal to this process group must not kill the wrapper process
            cwd=folder if folder is not None and folder.is_dir() else None,
            env={**os.environ, **(variables or {}), "PYTHONUNBUFFERED": "1"},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def status(self) -> int | None:
        """Its exit status in the shell's convention; None while it runs or has unread output."""
        return self._process.wait() if self._ended else None

    @property
    def last_line(self) -> str:
        """The last line of its output that is not blank."""
        with self._news:
            return next((line for line in reversed(self._lines) if line.strip()), "nothing")

    def log_to(self, path: Path) -> None:
        """Append the output so far to a file, and all that follows; for a child without a log.

        Only the most recent lines are kept, so early lines of a long output are missing.
        """
        with self._news:
            file = path.open("ab", buffering=0)
            file.write("".join(f"{line}\n" for line in self._lines).encode())
            if self._ended:
                file.close()
            else:
                self._log = file

    def said(self, after: int, wait_s: float = 0.0) -> Said:
        """Return lines from number `after` on; if there are none, wait up to `wait_s` seconds for some.

        Only the most recent lines are kept, so early lines of a long output are missing.
        """
        with self._news:
            self._news.wait_for(lambda: self._count > after or self.status is not None, wait_s)
            new = min(self._count - after, len(self._lines))
            return Said(tuple(self._lines)[len(self._lines) - new :] if new > 0 else (), self._count)

    def wait(self, limit_s: float | None = None) -> int | None:
        """Wait for the end; return the exit status, or None if the program still runs after the limit."""
        self._reader.join(limit_s)
        return self.status

    def interrupt(self) -> None:
        """Send Ctrl-C."""
        self._send(INTERRUPT)

    def end(self) -> None:
        """End the program and everything that it started, at once."""
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

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - a pipe, as asked
        with self._process.stdout as output:
            for raw in output:
                with self._news:
                    if self._log is not None:
                        with contextlib.suppress(OSError):  # the run itself reports a full disk
                            self._log.write(raw)
                    self._lines.append(raw.decode("utf-8", errors="replace").rstrip("\r\n"))
                    self._count += 1
                    self._news.notify_all()
        self._let_go()
        with self._news:
            if self._log is not None:
                self._log.close()
            self._ended = True
            self._news.notify_all()


INTERRUPT = b"interrupt\n"
_PR_SET_PDEATHSIG = 1


def main(words: Sequence[str], held: Iterable[bytes]) -> int:
    """Run a program that ends with its parent.

    Args:
        words: the program and its arguments.
        held: lines from the parent; their end means that the parent has ended.

    Returns:
        The exit status in the shell's convention: 128 plus the number of the signal that ended the program.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def begin() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # background jobs ignore SIGINT by default
        if libc is not None:  # for the case that the wrapper itself is killed, as Ray does on a node
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
        _tell(group, signal.SIGKILL)  # end processes that the program left behind
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
    # The buffer of sys.stdin is locked during a read, even when this process ends.
    with open(0, "rb", buffering=0, closefd=False) as own:
        sys.exit(main(sys.argv[1:], own))
