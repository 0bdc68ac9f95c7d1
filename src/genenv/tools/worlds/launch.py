"""Starts a program of tools with limits: `python launch.py SETTINGS COMMAND ...`.

SETTINGS is JSON from `Scratch.launched` in `processes`. The script does not import the package, so that a
server starts a few milliseconds earlier.

It forks. The child becomes the command: without network if the system allows that, and able to write only in
some folders if the system has Landlock. The parent waits. It kills all processes that the command has started
when the command ends, when the input is closed, or when the process that launched it is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import signal
import sys

TYPE_CHECKING = False  # importing `typing` would take milliseconds
if TYPE_CHECKING:
    from typing import Any

_C = ctypes.CDLL(None)
_MEMORY = 2 << 30
_FILE = 256 << 20
"""Maximum size in bytes of a file that the command writes."""
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_DIES_WITH_PARENT, _ADOPTS_ORPHANS, _NO_NEW_RIGHTS = 1, 36, 38
_EVERY_MS = 1000
"""Interval in which it checks whether its parent exists, if the system does not notify it."""

# seccomp: linux/seccomp.h, linux/filter.h, linux/audit.h.
_MACHINES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""Machine -> its number in audit records, and that of the system call `socket`."""
_FILTER_CALLS, _BY_PROGRAM = 22, 2
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_AT_NUMBER, _AT_ARCHITECTURE, _AT_FIRST_ARGUMENT = 0, 4, 16
_ERROR, _ALLOW, _AF_UNIX = 0x00050000, 0x7FFF0000, 1

# Landlock: linux/landlock.h. The system call numbers hold for all architectures but Alpha.
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION, _BENEATH = 1, 1
_FILE_RIGHTS = 1 << 1 | 1 << 14  # write, truncate
_RIGHTS_BY_VERSION = ((1, 1 << 1 | 0x1FF << 4), (2, 1 << 13), (3, 1 << 14))
"""Rights to write, remove and make files and folders; to move them between folders; to truncate them."""
_SCOPED_VERSION, _SIGNALS = 6, 2
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
"""Devices that every program may write to."""


def main(settings: dict[str, Any], command: list[str]) -> int:
    """Run a command, and kill all that it has started when it ends or when its launcher is gone.

    Returns:
        The exit status of the command, as a shell reports it.
    """
    parent: int = settings["parent"]
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _noted)
    adopt_orphans()
    waiting = os.getpid()
    child = os.fork()
    if child == 0:
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        _become(settings, command, waiting)
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):  # so that their readers see the end of the command's output
        os.dup2(quiet, stream)
    status = _watched(parent, child, woken)
    end(child)
    if status is None and _is_left(parent, woken):  # no other process removes it
        import shutil

        shutil.rmtree(settings["scratch"], ignore_errors=True)
    return status or 0


def _noted(*_: object) -> None:
    """Handle a signal: do nothing, as `_watched` reads its number from the wakeup pipe."""


def _watched(parent: int, child: int, woken: int) -> int | None:
    """Wait until the command ends, or until its launcher is gone or asks for its end.

    Returns:
        The exit status of the command; 0 if the parent asked for its end; None if the parent may have ended.
    """
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    poll.register(0, 0)  # only watches for closing: the data are for the command
    with contextlib.suppress(OSError, AttributeError):  # Linux 5.3
        poll.register(os.pidfd_open(parent), select.POLLIN)
    while os.getppid() == parent:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        seen = [descriptor for descriptor, _ in poll.poll(_EVERY_MS)]
        if woken in seen and _is_asked_to_end(woken):
            return 0
        if any(one != woken for one in seen):
            return None
    return None


def _is_asked_to_end(woken: int) -> bool:
    return any(number != signal.SIGCHLD for number in os.read(woken, 64))


def _is_left(parent: int, woken: int) -> bool:
    """Whether the parent has ended; its end of the input pipe closes a moment earlier."""
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    for _ in range(50):
        if os.getppid() != parent:
            return True
        if poll.poll(20) and _is_asked_to_end(woken):
            return False
    return False


def end(child: int) -> None:
    """Kill the command and all that it has started, including orphans outside of its process group."""
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    while True:
        for one in _children():
            with contextlib.suppress(OSError):
                os.kill(one, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    """Return the child processes of this process; none if the system does not list processes."""
    own, found = str(os.getpid()), list[int]()
    for name in filter(str.isdecimal, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
            if file.read().rpartition(b")")[2].split()[1].decode() == own:
                found.append(int(name))
    return found


def _become(settings: dict[str, Any], command: list[str], waiting: int) -> None:
    """Restrict and report what this process may do; then become the command."""
    os.setpgid(0, 0)
    die_with_parent()
    if sys.platform == "linux" and os.getppid() != waiting:
        os._exit(1)
    # not RLIMIT_AS: engines such as V8 reserve far more addresses than they use
    limit(resource.RLIMIT_DATA, _MEMORY)
    limit(resource.RLIMIT_FSIZE, _FILE)
    limit(resource.RLIMIT_CORE, 0)
    with open(settings["report"], "w", encoding="ascii") as report:
        cut = not settings["network"] and cut_off() and (settings["listens"] or without_local_sockets())
        json.dump({"network": not cut, "confined": confine(settings["writable"])}, report)
    try:
        os.execvp(command[0], command)  # noqa: S606 - the user's command
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error.strerror}\n".encode())
        os._exit(127)


def adopt_orphans() -> None:
    """Have processes whose parent ends become children of this one, where the system can do so."""
    if sys.platform == "linux":
        _C.prctl(_ADOPTS_ORPHANS, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Have this process be killed when its parent ends, where the system can do so."""
    if sys.platform == "linux":
        _C.prctl(_DIES_WITH_PARENT, signal.SIGKILL, 0, 0, 0)


def limit(kind: int, most: int) -> None:
    """Limit a resource of this process, where the system can, unless it has a lower limit already."""
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    with contextlib.suppress(ValueError, OSError):  # macOS does not limit memory
        resource.setrlimit(kind, (most, most))


def cut_off() -> bool:
    """Detach this process from the network; return whether the system allowed it."""
    user, group = os.geteuid(), os.getegid()
    try:
        if _C.unshare(_NEW_USER | _NEW_NETWORK) != 0:
            return False
    except (OSError, AttributeError):
        return False
    with contextlib.suppress(OSError):  # map the user and group ids, so that files keep their owners
        for file, text in (
            ("setgroups", "deny"),
            ("gid_map", f"{group} {group} 1"),
            ("uid_map", f"{user} {user} 1"),
        ):
            with open(f"/proc/self/{file}", "w", encoding="ascii") as to:
                to.write(text)
    return True


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    )


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def without_local_sockets() -> bool:
    """Refuse sockets of the family AF_UNIX from now on; return whether the system allowed it.

    A network namespace does not hold them back: databases and Docker listen on files. Pairs of connected
    sockets (`socketpair`) can still be made.
    """
    if sys.platform != "linux" or (machine := _MACHINES.get(os.uname().machine)) is None:
        return False
    architecture, socket = machine
    program = (
        (_LOAD, 0, 0, _AT_ARCHITECTURE),
        (_IF_EQUAL, 0, 5, architecture),
        (_LOAD, 0, 0, _AT_NUMBER),
        (_IF_EQUAL, 0, 3, socket),
        (_LOAD, 0, 0, _AT_FIRST_ARGUMENT),
        (_IF_EQUAL, 0, 1, _AF_UNIX),
        (_RETURN, 0, 0, _ERROR | errno.EACCES),
        (_RETURN, 0, 0, _ALLOW),
    )
    instructions = (_Instruction * len(program))(*(_Instruction(*one) for one in program))
    made = _Filter(len(program), instructions)
    _C.prctl(_NO_NEW_RIGHTS, 1, 0, 0, 0)
    return _C.prctl(_FILTER_CALLS, _BY_PROGRAM, ctypes.byref(made), 0, 0) == 0


class _Rules(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("folder", ctypes.c_int32))


def confine(writable: list[str]) -> bool:
    """Let this process write in some folders only; return whether the system's Landlock enforces it.

    Reading stays unrestricted. From Landlock's sixth version on, the process can signal only its own child
    processes.

    Args:
        writable: folders and files; missing ones are skipped.
    """
    if sys.platform != "linux":
        return False
    system = ctypes.CDLL(None, use_errno=True)
    version = system.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    if version < 1:
        return False
    rights = sum(bits for since, bits in _RIGHTS_BY_VERSION if version >= since)
    rules = _Rules(rights, 0, _SIGNALS if version >= _SCOPED_VERSION else 0)
    made = system.syscall(
        _CREATE, ctypes.byref(rules), ctypes.c_size_t(ctypes.sizeof(rules)), ctypes.c_uint32(0)
    )
    if made < 0:
        return False
    for place in (*writable, *DEVICES):
        with contextlib.suppress(FileNotFoundError):
            folder = os.open(place, os.O_PATH | os.O_CLOEXEC)
            beneath = _Beneath(rights if os.path.isdir(place) else rights & _FILE_RIGHTS, folder)
            system.syscall(_ADD, made, _BENEATH, ctypes.byref(beneath), ctypes.c_uint32(0))
            os.close(folder)
    system.prctl(_NO_NEW_RIGHTS, 1, 0, 0, 0)
    done = system.syscall(_RESTRICT, made, ctypes.c_uint32(0)) == 0
    os.close(made)
    return done


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2:]))
