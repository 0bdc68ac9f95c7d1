"""Forks a server in Python that is loaded, so that a session begins without loading it again.

A server's own Python executes this file before all other code, so it needs nothing but the standard library
of Python 3.9. The server loads its modules and sets up its data. Where it begins to serve, this process
stops. For each session it forks a process, which serves from there on as if it were the only one.

The other end of the socket (`StdioServer`) says when to fork, and when a session is over.
"""

from __future__ import annotations

import io
import os
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

VARIABLE = "GENENV_FORKS"
"""The environment variable with the number of the socket."""
READY, FORK, END = b"R", b"F", b"E"
"""What is sent: the server is loaded; fork it, with two files in place of its input and output; end the fork,
which is answered once it has ended."""


def take_over(launching: str) -> None:
    """Let this process fork where it makes its first event loop, or reads its input first.

    Args:
        launching: the path of `launch.py`.
    """
    from asyncio.base_events import BaseEventLoop

    number = int(os.environ.pop(VARIABLE))
    os.set_inheritable(number, False)
    given = os.fstat(number)
    made: Callable[..., None] = BaseEventLoop.__init__
    is_over = False

    def begin() -> None:
        nonlocal is_over
        if not is_over and threading.current_thread() is threading.main_thread():
            is_over = True
            BaseEventLoop.__init__ = made  # pyright: ignore[reportAttributeAccessIssue]
            if _is_open(number, given):
                _serve(number, launching)

    def make(self: BaseEventLoop, *args: Any, **settings: Any) -> None:  # noqa: ANN401 - as the own one
        begin()  # before the loop has files of its own
        made(self, *args, **settings)

    class Input(io.FileIO):
        """The standard input, where it is read without an event loop."""

        def readinto(self, buffer: Any, /) -> int | None:  # noqa: ANN401 - as the one of `FileIO`
            begin()
            return super().readinto(buffer)

    BaseEventLoop.__init__ = make  # pyright: ignore[reportAttributeAccessIssue]
    own, stream = sys.stdin, Input(0, closefd=False)
    stream.name = "<stdin>"  # pyright: ignore[reportAttributeAccessIssue]
    sys.stdin = io.TextIOWrapper(io.BufferedReader(stream), encoding=own.encoding, errors=own.errors)


def _is_open(number: int, given: os.stat_result) -> bool:
    """Whether the server has left the socket open; else another file may have its number."""
    try:
        return os.path.samestat(os.fstat(number), given)
    except OSError:
        return False


def _serve(number: int, launching: str) -> None:
    """Fork when told to; return in each forked process, or in this one if it cannot be forked."""
    import atexit
    import gc
    import random
    import socket

    if _threads() > 1 or not hasattr(socket, "recv_fds"):  # a fork would have one thread; an old Python
        os.close(number)
        return
    launch: dict[str, Any] = {"__name__": "launch"}
    try:
        control = socket.socket(fileno=number)
        with open(launching, encoding="utf-8") as code:
            exec(code.read(), launch)  # noqa: S102 - a file of this package
        launch["adopt_orphans"]()
        control.send(READY)
    except Exception:  # noqa: BLE001 - nobody listens, or the system lacks something: it serves itself
        return  # with which the socket is closed
    child = 0
    gc.freeze()
    while True:
        try:
            told, files, _, _ = socket.recv_fds(control, 1, 2)
        except OSError:
            told, files = b"", []
        if told == FORK:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            drawn, parent = random.getstate(), os.getpid()
            child = os.fork()
            if child == 0:
                control.close()
                _become(files, launch["die_with_parent"], parent)
                atexit.register(_leave)
                random.setstate(drawn)  # Python seeds it anew in a fork
                return
            _release(files)
        elif told == END:
            launch["end"](child)
            control.send(END)
        elif child == 0:  # nobody wants forks
            return
        else:
            os._exit(0)


def _threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


def _become(files: list[int], die_with_parent: Callable[[], None], parent: int) -> None:
    os.setpgid(0, 0)
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    for place, file in enumerate(files):
        os.dup2(file, place)
        os.close(file)


def _leave() -> None:
    """End a fork without what the loaded server does at its end, such as to remove its temporary folders."""
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(0)


def _release(files: list[int]) -> None:
    """Close the files that a fork has now, so that its reader sees when it ends."""
    if not files:  # it has those that this process was started with
        files = [os.open(os.devnull, os.O_RDWR)]
        os.dup2(files[0], 0)
        os.dup2(files[0], 1)
    for file in files:
        os.close(file)
