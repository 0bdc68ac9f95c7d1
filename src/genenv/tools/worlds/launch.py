"""Starts a program of tools with limits: `python launch.py SETTINGS COMMAND ...`.

SETTINGS is JSON that `processes.launched` writes. It runs by itself, without the package, so that a server is
there a few milliseconds later.

Two processes come of it. One becomes the command: without network where that can be taken away, and able to
write in some folders only where the system has Landlock. The other one waits. When the command ends, when the
input is closed, or when the process that asked for it is gone, it ends all that the command has started.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys

TYPE_CHECKING = False  # what `typing` has would take milliseconds to load
if TYPE_CHECKING:
    from typing import Any

_MEMORY = 2 << 30
_FILE = 256 << 20
"""Bytes of a file that it writes."""
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_DIES_WITH_PARENT, _ADOPTS_ORPHANS, _NO_NEW_RIGHTS = 1, 36, 38
_EVERY_MS = 1000
"""How often it looks whether its parent is there, where the system does not say so by itself."""

# Landlock: linux/landlock.h. The numbers of the system calls are those of all architectures but Alpha.
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION, _BENEATH = 1, 1
_FILE_RIGHTS = 1 << 1 | 1 << 14  # write, truncate
_RIGHTS_BY_VERSION = ((1, 1 << 1 | 0x1FF << 4), (2, 1 << 13), (3, 1 << 14))
"""Writing, removing and making of files and folders; moving them between folders; truncating them."""
_SCOPED_VERSION, _SIGNALS = 6, 2
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
"""What every program may write to."""


def main(settings: dict[str, Any], command: list[str]) -> int:
    """Run a command, and end what it has started when it ends, or when nobody waits for it any more.

    Returns:
        Its exit status, as a shell says it.
    """
    parent: int = settings["parent"]
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _noted)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_ADOPTS_ORPHANS, 1, 0, 0, 0)
    waiting = os.getpid()
    child = os.fork()
    if child == 0:
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        _become(settings, command, waiting)
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):  # so that whoever reads them sees that the command has ended
        os.dup2(quiet, stream)
    status = _watched(parent, child, woken)
    _end(child)
    if status is None and _is_left(parent, woken):  # nobody else removes it
        import shutil

        shutil.rmtree(settings["scratch"], ignore_errors=True)
    return status or 0


def _noted(*_: object) -> None:
    """A signal has come: what it means is in `_watched`."""


def _watched(parent: int, child: int, woken: int) -> int | None:
    """Wait until the command ends, or nobody wants it any more.

    Returns:
        Its exit status; 0 if the parent asked for its end, and None if the parent may have ended.
    """
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    poll.register(0, 0)  # only whether it is closed: what comes there is the command's
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
    """Whether the parent has ended: its end of the input is closed a moment before."""
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    for _ in range(50):
        if os.getppid() != parent:
            return True
        if poll.poll(20) and _is_asked_to_end(woken):
            return False
    return False


def _end(child: int) -> None:
    """Kill the command and all that it has started, also what left its group: orphans are ours."""
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
    """Processes whose parent this one is; none where the system does not list them."""
    own, found = str(os.getpid()), list[int]()
    for name in filter(str.isdecimal, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
            if file.read().rpartition(b")")[2].split()[1].decode() == own:
                found.append(int(name))
    return found


def _become(settings: dict[str, Any], command: list[str], waiting: int) -> None:
    """Say what this process may do; then become the command."""
    os.setpgid(0, 0)
    die_with_parent()
    if sys.platform == "linux" and os.getppid() != waiting:
        os._exit(1)
    # not RLIMIT_AS: engines such as V8 reserve far more addresses than they use
    limit(resource.RLIMIT_DATA, _MEMORY)
    limit(resource.RLIMIT_FSIZE, _FILE)
    limit(resource.RLIMIT_CORE, 0)
    with open(settings["report"], "w", encoding="ascii") as report:
        cut = not settings["network"] and cut_off()
        writable: list[str] | None = settings["writable"]
        confined = writable is not None and confine(writable)
        json.dump({"network": not cut, "confined": confined}, report)
    try:
        os.execvp(command[0], command)  # noqa: S606 - what the user named
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error.strerror}\n".encode())
        os._exit(127)


def die_with_parent() -> None:
    """Have this process be killed when its parent ends, where the system can do so."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL, 0, 0, 0)


def limit(kind: int, most: int) -> None:
    """Limit a resource of this process, or leave it where the system limits it to less already."""
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def cut_off() -> bool:
    """Take the network away, where the system lets a process do so; whether it did."""
    user, group = os.geteuid(), os.getegid()
    try:
        if ctypes.CDLL(None).unshare(_NEW_USER | _NEW_NETWORK) != 0:
            return False
    except (OSError, AttributeError):
        return False
    with contextlib.suppress(OSError):  # who it was before, so that files still belong to somebody
        for file, text in (
            ("setgroups", "deny"),
            ("gid_map", f"{group} {group} 1"),
            ("uid_map", f"{user} {user} 1"),
        ):
            with open(f"/proc/self/{file}", "w", encoding="ascii") as to:
                to.write(text)
    return True


class _Rules(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("folder", ctypes.c_int32))


def confine(writable: list[str]) -> bool:
    """Let this process write in some folders only, where the system has Landlock; whether it has.

    Reading stays free. It can signal no process but those that it starts, from Landlock's sixth version on.

    Args:
        writable: folders and files; those that are not there are passed over.
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
