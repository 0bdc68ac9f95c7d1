"""The entry point `genenv`: loads commands and turns user errors into one sentence and exit status 2."""

from __future__ import annotations

import ast
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, cast

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from genenv.cli.console import ended, resend_lost_stops, stopped_by, terminable
from genenv.config import __version__
from genenv.errors import GenenvError, disk_is_full, out_of_memory, spelled
from genenv.plugins import load, parts

COMMANDS = parts("commands")
"""Command -> its function; only the requested command is loaded."""

_TYPED = "genenv.command"


@contextlib.contextmanager
def one_sentence(command: Callable[[], str]) -> Generator[None]:
    """Turn errors that the user can fix into one sentence and exit status 2.

    Args:
        command: returns the name of the command, once it is parsed.
    """
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of our output has closed the pipe; Typer ends quietly
    except GenenvError as error:
        raise ended(str(error), 2) from error
    except OSError as error:
        raise ended(_system_sentence(error, command()), 2) from error
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise ended(
            "memory ran out, also with smaller batches; set policy.max_batch_rows or "
            f"policy.tokens_per_microbatch lower, or take a smaller model{_kept(command(), ' ({})')}",
            2,
        ) from error
    except KeyboardInterrupt as error:
        raise ended(f"stopped{_kept(command(), '; {}')}", stopped_by(error)) from error


def _kept(command: str, form: str) -> str:
    """Return a phrase about the work that a command preserves when it ends early (`KEPT` of its module)."""
    module = sys.modules.get(COMMANDS.get(command, "").partition(":")[0])
    kept = getattr(module, "KEPT", None)
    return form.format(kept) if kept else ""


def _system_sentence(error: OSError, command: str) -> str:
    if disk_is_full(error):
        return f"the disk is full; free some space{_kept(command, ' ({})')}"
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}; check that the file or folder is there and that you may use it"


def load_command(name: str) -> TyperCommand:
    """Load a command with its options."""
    alone = typer.Typer(add_completion=False)
    alone.command(name)(cast(Callable[..., None], load(COMMANDS[name])))
    return cast(TyperCommand, typer.main.get_command(alone))


class _Commands(TyperGroup):
    """The group of all commands, each loaded on demand and run inside `one_sentence`."""

    # Depending on the version, the classes of contexts and commands are click's or Typer's.
    def invoke(self, ctx: typer.Context) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Run the requested command."""
        with one_sentence(lambda: str(ctx.meta.get(_TYPED, ""))), terminable():
            return super().invoke(ctx)

    def format_help(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        ctx: typer.Context,
        formatter: Any,  # noqa: ANN401 - see above
    ) -> None:
        """Write the help of all commands, whose descriptions are read from their sources only now."""
        for name, command in self.commands.items():
            command.help = _about(COMMANDS[name])
        super().format_help(ctx, formatter)

    def resolve_command(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, ctx: typer.Context, args: list[str]
    ) -> tuple[str | None, TyperCommand, list[str]]:
        """Return the requested command in place of its placeholder."""
        typed = [spelled(args[0], COMMANDS), *args[1:]] if args else args
        name, found, rest = super().resolve_command(ctx, typed)
        ctx.meta[_TYPED] = name
        return (
            name,
            load_command(name) if name is not None and name in COMMANDS else cast(TyperCommand, found),
            rest,
        )


app = typer.Typer(
    name="genenv",
    cls=_Commands,
    help="Train an LLM agent on tasks that a second LLM learns to write for it (GenEnv, arXiv:2512.19682).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _line_of_help() -> None:
    """Placeholder for a command that is not loaded."""


def _about(where: str) -> str:
    """Return the first line of a command's docstring from its source, because imports would take seconds."""
    module, _, function = where.partition(":")
    package, _, inner = module.partition(".")
    try:
        spec = find_spec(package)  # for a module inside, find_spec would import its packages
        origin = Path(spec.origin) if spec and spec.origin else Path()
        source = (
            origin.parent.joinpath(*inner.split(".")).with_suffix(".py") if inner else origin
        ).read_bytes()
    except (ImportError, OSError):
        return f"({module} cannot be read)"
    found = [
        node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == function
    ]
    return (ast.get_docstring(found[0]) or "").partition("\n")[0] if found else ""


for _name in COMMANDS:
    app.command(_name)(_line_of_help)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"genenv {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command."""


def _interrupt(*_: object) -> None:
    """Stop at once. asyncio's handler only cancels its task, which sampling and updates do not notice."""
    logging.getLogger("asyncio").disabled = True  # do not report cancelled tasks
    raise KeyboardInterrupt


def main() -> None:
    """Run the command `genenv`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if a shell ignores SIGINT
        signal.signal(signal.SIGINT, _interrupt)
    resend_lost_stops()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    app(prog_name="genenv")
