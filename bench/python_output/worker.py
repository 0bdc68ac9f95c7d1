r"""Runs Python sessions, each in a fork of its own: one JSON line in, one JSON line out.

In:  {"code": "import math\nmath.gcd(12, 18)"}
Out: {"value": "6"} or {"error": "NameError: ..."}

The process is started by `sandbox.Sandbox` with limits: no network, two gigabytes of memory. A session
can write only in a folder of its own, where the system has Landlock.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import io
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import warnings

SECONDS = 3
"""Time that a session has."""
LONGEST = 400
"""Characters of a value that are reported."""


def printed(code: str) -> dict[str, str]:
    """Return what the last line of a session prints.

    Only the last line may print, as a reader of the session sees no other output.
    """
    names: dict[str, object] = {}
    out = io.StringIO()
    try:
        *before, last = ast.parse(code).body
        if not isinstance(last, ast.Expr):
            return {"error": "the last line is no expression"}
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            for statement in before:
                if isinstance(statement, ast.Expr):
                    shown = eval(compile(ast.Expression(statement.value), "session", "eval"), names)  # noqa: S307
                    if shown is not None:
                        return {"error": "a line before the last one prints something"}
                else:
                    exec(compile(ast.Module([statement], []), "session", "exec"), names)  # noqa: S102
            if out.getvalue():
                return {"error": "a line before the last one prints something"}
            value = eval(compile(ast.Expression(last.value), "session", "eval"), names)  # noqa: S307
            text = out.getvalue() + ("" if value is None else repr(value))
    except BaseException as error:  # noqa: BLE001 - whatever a session raises
        return {"error": f"{type(error).__name__}: {error}"[:LONGEST]}
    return {"value": text.rstrip("\n")[:LONGEST]}


def in_fork(code: str) -> dict[str, str]:
    """Run a session in a fork of this process, for a limited time, in a folder of its own."""
    reader, writer = os.pipe()
    folder = tempfile.mkdtemp()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        found = json.dumps(printed(code)).encode()
        with contextlib.suppress(OSError):
            os.write(writer, found)
        os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], SECONDS)
    data = os.read(reader, 1 << 16) if ready else b""
    os.close(reader)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    shutil.rmtree(folder, ignore_errors=True)
    return json.loads(data) if data else {"error": "it takes too long"}


def main(modules: list[str]) -> None:
    """Load modules once, so that sessions find them loaded; then answer until the input ends."""
    warnings.simplefilter("ignore")
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that forks share the memory of what is loaded
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    for line in requests:
        answers.write(json.dumps(in_fork(json.loads(line)["code"])) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
