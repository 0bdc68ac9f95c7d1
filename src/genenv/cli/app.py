"""The command line. Wrong input ends in one sentence, what is wrong and what to do, and exit status 2."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Generator, Mapping
from importlib import import_module
from typing import Annotated, cast

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from genenv.cli.console import ended
from genenv.config.version import __version__
from genenv.errors import GenenvError, disk_is_full, out_of_memory, spelled

COMMANDS = {
    "train": ("genenv.cli.train:train", "Co-evolve an agent and its simulator."),
    "sweep": (
        "genenv.cli.sweep:sweep",
        "Play variants times seeds of one configuration; typed again, it goes on where it stopped.",
    ),
    "generate": ("genenv.cli.generate:generate", "Write checked tasks, without training anything."),
    "report": (
        "genenv.cli.report:report",
        "Make RUN/report.html: pictures of the run, and tasks with the agent's attempts.",
    ),
    "eval": (
        "genenv.cli.evaluate:evaluate",
        "Measure a model on benchmarks, scored as their authors score them.",
    ),
    "compare": (
        "genenv.cli.compare:compare",
        "Put results side by side; the first is what the others are held against.",
    ),
    "lab": (
        "genenv.cli.lab:lab",
        "Compare curricula on simulated learners: thousands of runs in a minute, no model takes part.",
    ),
    "check": (
        "genenv.cli.check:check",
        "Say whether a domain keeps what it promises. No model takes part.",
    ),
    "export-env": (
        "genenv.cli.export_env:export_env",
        "Write the tasks of a domain as an environment of TRL, verifiers, OpenEnv and Gymnasium.",
    ),
    "domain": (
        "genenv.cli.domain:domain",
        "Make a domain of your own tools: `genenv domain new NAME --from tools.py`.",
    ),
    "play": (
        "genenv.cli.play:play",
        "Attempt a task yourself: what the agent is told, and the verdict on what you reply.",
    ),
    "try": (
        "genenv.cli.attempt:attempt",
        "Ask the agent of a run for something: each call is shown before it runs, on a copy of the state.",
    ),
    "export-agent": (
        "genenv.cli.export_agent:export_agent",
        "Take a trained agent out of a run: a folder for transformers, vLLM, PEFT, llama.cpp or Ollama.",
    ),
    "serve": (
        "genenv.cli.serve:serve",
        'Sample for runs with policy.backend = "vllm": token ids in, token ids and log-probabilities out.',
    ),
    "launch": (
        "genenv.cli.launch:launch",
        "Play a run on a Ray cluster: servers that sample, and a trainer.",
    ),
    "tinker-server": (
        "genenv.cli.tinker_server:tinker_server",
        "Serve a base model over the Tinker protocol: clients train adapters on it and sample.",
    ),
    "doctor": (
        "genenv.cli.doctor:doctor",
        "Say what works here and how to get the rest; with RUN if it is whole, with CONFIG if it fits.",
    ),
}
"""Where each command is, and its line of help: what is typed is loaded, and nothing else."""

_ROUNDS = "committed rounds are kept, `genenv train` continues them with --resume"
_KEPT: Mapping[str, str] = {
    "train": _ROUNDS,
    "sweep": "finished runs and committed rounds are kept, and the same command goes on",
    "launch": _ROUNDS,
    "generate": "nothing was written",
    "export-env": "nothing was written",
    "export-agent": "nothing was written",
}
"""What there is of a command's work when it ends early; others have nothing to keep."""

_TYPED = "genenv.command"


@contextlib.contextmanager
def one_sentence(command: Callable[[], str]) -> Generator[None]:
    """Turn what the user can mend into one sentence and exit status 2.

    Args:
        command: the name of the one that was typed, once it is known.
    """
    try:
        yield
    except BrokenPipeError:
        raise  # whoever read our output has gone; Typer ends quietly
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
        raise ended(f"stopped{_kept(command(), '; {}')}", 130) from error


def _kept(command: str, form: str) -> str:
    return form.format(_KEPT[command]) if command in _KEPT else ""


def _system_sentence(error: OSError, command: str) -> str:
    if disk_is_full(error):
        return f"the disk is full; free some space{_kept(command, ' ({})')}"
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}; check that the file or folder is there and that you may use it"


def load_command(name: str) -> TyperCommand:
    """A command with its options."""
    module, _, function = COMMANDS[name][0].partition(":")
    alone = typer.Typer(add_completion=False)
    alone.command(name)(getattr(import_module(module), function))
    return cast(TyperCommand, typer.main.get_command(alone))


class _Commands(TyperGroup):
    """All commands, each loaded and run inside `one_sentence`."""

    # The classes of contexts and commands are click's or Typer's own, as the version has it.
    def invoke(self, ctx: typer.Context) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Run the command that was typed."""
        with one_sentence(lambda: str(ctx.meta.get(_TYPED, ""))):
            return super().invoke(ctx)

    def resolve_command(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, ctx: typer.Context, args: list[str]
    ) -> tuple[str | None, TyperCommand, list[str]]:
        """The command that was typed, instead of the line of help that stands for it."""
        typed = [spelled(args[0], COMMANDS), *args[1:]] if args else args
        name, found, rest = super().resolve_command(ctx, typed)
        ctx.meta[_TYPED] = name
        return name, load_command(name) if name in COMMANDS else cast(TyperCommand, found), rest


app = typer.Typer(
    name="genenv",
    cls=_Commands,
    help="Train an LLM agent on tasks that a second LLM learns to write for it (GenEnv, arXiv:2512.19682).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _line_of_help() -> None:
    """What stands for a command until it is typed."""


for _name, (_, _about) in COMMANDS.items():
    app.command(_name, help=_about)(_line_of_help)


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
    """Stop at once: asyncio's own handler asks its task to, which sampling and updates do not notice."""
    logging.getLogger("asyncio").disabled = True  # that tasks were torn off is no news
    raise KeyboardInterrupt


def main() -> None:
    """Entry point of the `genenv` command."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell has it ignored
        signal.signal(signal.SIGINT, _interrupt)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    app(prog_name="genenv")
