# pyright: standard
"""Compiling `kernels.cpp`: once for a source, compiler and processor, in about two seconds.

What comes out is held to torch on small inputs and kept in the cache folder. Where any of that fails `load`
says so in one logged sentence, and callers use torch.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from genenv.backends.local import hardware
from genenv.backends.local.cpu.against_torch import WrongResult, check
from genenv.backends.local.cpu.kernels import Kernels
from genenv.errors import UsageError

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("kernels.cpp")
FLAGS = (
    "-std=gnu++17",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fno-math-errno",
    "-Wno-psabi",
    "-fPIC",
    "-shared",
)
COMPILERS = ("c++", "g++", "clang++")
_LONGEST_COMPILATION_S = 120


@functools.cache
def load() -> Kernels | None:
    """The compiled functions; None, with a logged sentence, where they cannot be had."""
    found = find()
    if isinstance(found, Kernels):
        return found
    log.info("sampling and learning run without compiled code, which is slower: %s", found)
    return None


def wanted(setting: str | bool, device: torch.device) -> Kernels | None:
    """The compiled functions for a CPU as `policy.compiled` asks for them; None on other devices.

    Raises:
        UsageError: it asks for them and they cannot be had.
    """
    if device.type != "cpu" or not setting:
        return None
    if setting is True and (reason := why_not()):
        raise UsageError(f"policy.compiled is true, and {reason}")
    return load()


def why_not() -> str:
    """Why there is no compiled code for this CPU; empty where there is."""
    return "" if load() is not None else f"there is no compiled code: {find()}"


def find() -> Kernels | str:
    """The compiled functions, or why they cannot be had."""
    try:
        return Kernels(_library())
    except (OSError, AttributeError, subprocess.SubprocessError, WrongResult, _NoCompiler) as error:
        return _reason(error)


class _NoCompiler(Exception):
    """There is no C++ compiler."""


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = [line for line in str(error.stderr).splitlines() if "error" in line]
        return f"{error.cmd[0]} fails" + (f" ({lines[0].strip()[:200]})" if lines else "")
    return str(error)


def _library() -> Path:
    """The compiled file for this source, compiler and processor, made if it is not there."""
    chosen = os.environ.get("CXX")
    compiler = next(
        (found for name in ([chosen] if chosen else COMPILERS) if (found := shutil.which(name))), None
    )
    if compiler is None:
        raise _NoCompiler(f"there is no C++ compiler ({chosen or ', '.join(COMPILERS)})")
    text = SOURCE.read_bytes()
    key = hashlib.sha256(b"\0".join([text, *(part.encode() for part in (compiler, *FLAGS, _processor()))]))
    folder = hardware.cache_folder()
    path = folder / f"kernels-{key.hexdigest()[:16]}.so"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            partial = Path(scratch, path.name)
            command = [compiler, *FLAGS, str(SOURCE), "-o", str(partial)]
            subprocess.run(  # noqa: S603 - the user's own compiler
                command, check=True, capture_output=True, text=True, timeout=_LONGEST_COMPILATION_S
            )
            check(Kernels(partial))
            partial.replace(path)
    return path


def _processor() -> str:
    """What decides which instructions the compiler may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return next(
        (line for line in lines if line.lower().startswith(("flags", "features"))), platform.machine()
    )
