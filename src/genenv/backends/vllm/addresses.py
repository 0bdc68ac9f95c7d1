"""Servers that come and go: each keeps its address in a file of its own, in a folder that all can see."""

from __future__ import annotations

import os
import re
from pathlib import Path

_SUFFIX = ".address"
_LOOKS_LIKE_ONE = re.compile(r"https?://[^\s/@?#]+")


def write_address(folder: Path, name: str, address: str) -> None:
    """Say where a server is now; what it said before is replaced as a whole.

    Args:
        folder: `policy.vllm.addresses_folder`; made when it is missing.
        name: the server's, which stays when it begins anew elsewhere.
        address: its base URL.
    """
    folder.mkdir(parents=True, exist_ok=True)
    unseen = folder / f".{name}.{os.getpid()}"
    unseen.write_text(address + "\n", encoding="utf-8")
    unseen.replace(folder / f"{name}{_SUFFIX}")


def remove_address(folder: Path, name: str) -> None:
    """Say that a server is nowhere at present."""
    (folder / f"{name}{_SUFFIX}").unlink(missing_ok=True)


def read_addresses(folder: Path) -> tuple[str, ...]:
    """All addresses in a folder, in the order of the servers' names; none where it cannot be read.

    A file that holds no address, such as one that others see before it is whole, is left out; and so is one
    with a user name or a password, as addresses are written into logs.
    """
    found: list[str] = []
    try:
        for file in sorted(folder.glob(f"*{_SUFFIX}")):
            address = file.read_text(encoding="utf-8", errors="replace").strip().rstrip("/")
            if _LOOKS_LIKE_ONE.fullmatch(address):
                found.append(address)
    except OSError:  # a disk that is away for a moment: what was known before stays known
        return ()
    return tuple(dict.fromkeys(found))
