"""`python -m genenv.cluster.leash WORD...`: a program that ends when whoever started it is no more.

Who started it holds the other end of its input. A line `interrupt` there is Ctrl-C for the program; the end
of the input, which a kill brings about as well, ends the program with all that it has started.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence

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
