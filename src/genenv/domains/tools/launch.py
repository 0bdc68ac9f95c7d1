"""Becomes a server, with limits and without network: `python launch.py REPORT cut|open COMMAND ...`.

It runs by itself, without the package, so that a server is there a few milliseconds later.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

_MEMORY = 2 << 30
_FILE = 256 << 20
"""Bytes of a file that it writes."""
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_DIES_WITH_PARENT = 1


def main(report: str, network: str, command: list[str]) -> None:
    """Say which process this is and whether it is cut off; then become the command."""
    # not RLIMIT_AS: engines such as V8 reserve far more addresses than they use
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE, _FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    cut = network == "cut" and cut_off()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    Path(report).write_text(f"{os.getpid()} {int(cut)}", encoding="utf-8")
    try:
        os.execvp(command[0], command)  # noqa: S606 - what the user named
    except OSError as error:
        sys.exit(f"{command[0]} cannot be started: {error.strerror}")


def cut_off() -> bool:
    """Take the network away, where the system lets a process do so; whether it did."""
    user, group = os.geteuid(), os.getegid()
    try:
        if ctypes.CDLL(None).unshare(_NEW_USER | _NEW_NETWORK) != 0:
            return False
    except (OSError, AttributeError):
        return False
    try:  # who it was before, so that files still belong to somebody
        Path("/proc/self/setgroups").write_text("deny", encoding="utf-8")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="utf-8")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="utf-8")
    except OSError:
        pass
    return True


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
