# pyright: standard
"""Takes a trained agent out of a run, for others to serve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from genenv.chat.turns import turns_of
from genenv.config.run import load_config
from genenv.environments import is_folder as is_folder
from genenv.errors import UsageError
from genenv.evaluation.policy_under_test import NamedPlayer, check_weights, player_of
from genenv.exporting.about import Made, Source, facts, notes
from genenv.exporting.card import Card, readme
from genenv.exporting.folder import check_vacant, new_folder
from genenv.exporting.modelfile import Told, modelfile
from genenv.exporting.serving import Form, Served, Way, ways
from genenv.runs.folder import RunFolder
from genenv.runs.store.glance import first_messages
from genenv.runs.store.identity import read_last_round
from genenv.texts import json_line

if TYPE_CHECKING:
    from genenv.backends.local.export_merged import Nearness, TrainedAgent

DTYPES = ("auto", "float32", "bfloat16", "float16")
_COMPARED = 4
"""Tasks of the run on which the merged model is compared with base and adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be written."""

    run: str
    """`runs/demo`, or a round of it, `runs/demo@8`."""
    form: Form
    out: Path | None = None
    """None: a folder under `exports/` that is called like the run."""
    dtype: str = "auto"
    """`auto`: that of the base; of a GGUF file float16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written."""

    folder: Path
    bytes: int
    nearness: Nearness | None
    ways: Sequence[Way]


def export_agent(wanted: Wanted, today: Callable[[], str]) -> Exported:
    """Write a trained agent to a folder of its own, whole or not at all.

    Args:
        wanted: what of which run, in which form.
        today: the date, for the README.

    Raises:
        UsageError: there is no such agent, it cannot have this form, or the folder is not empty.
        DataError: the checkpoint is damaged, or the disk is full.
    """
    source = _source(wanted.run)
    config = source.config.policy
    if wanted.form is Form.ADAPTER and config.tuning == "full":
        raise UsageError(f"{wanted.run} has trained all weights, there is no adapter; leave --adapter out")
    if wanted.form is Form.ADAPTER and wanted.dtype != "auto":
        raise UsageError("an adapter is written as it was trained; leave --dtype out")
    ending = "" if wanted.form is Form.MODEL else f"-{wanted.form}"
    out = wanted.out or Path("exports") / f"{source.name}{ending}"
    check_vacant(out)
    with new_folder(out) as folder:
        exported = _written(wanted, source, folder, out, today())
    return exported


def _source(name: str) -> Source:
    """Find the agent.

    Raises:
        UsageError: there is none.
        DataError: its checkpoint is damaged.
    """
    named = player_of(name)
    if named is None:
        RunFolder.open(Path(name))  # says what is wrong with it
        raise UsageError(f"{name} is no run; name the folder of one, such as runs/demo")
    if named.player != "agent":
        raise UsageError(f"{name} is the simulator, which stays in its run; name {named.run} for the agent")
    folder = RunFolder.open(named.run)
    config = load_config(folder.config)
    check_weights(named.run, config.policy)
    number = _round(named, read_last_round(folder.pool))
    checkpoint, number = folder.checkpoint(number)
    return Source(folder=folder, config=config, round=number, weights=checkpoint / "agent")


def _round(named: NamedPlayer, last: int | None) -> int:
    if last is None:
        raise UsageError(f"{named.run} has no committed round yet; train it first")
    if named.round is not None and named.round > last:
        raise UsageError(f"{named.run} has no round {named.round}; its last is {last}")
    return last if named.round is None else named.round


def _written(wanted: Wanted, source: Source, folder: Path, out: Path, today: str) -> Exported:
    from genenv.backends.local.export_merged import TrainedAgent

    config = source.config.policy
    agent = TrainedAgent(config.model, config, source.weights)
    if wanted.form is Form.ADAPTER:
        made = _adapter(source, agent, folder)
    else:
        made = _merged(wanted, source, agent, folder)
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
        context_tokens=agent.context_tokens,
        example=bool(example),
        own_tools=is_folder(source.config.environment.name),
    )
    found = ways(served)
    about = facts(source, made, today)
    card = Card(title=source.name, facts=about, ways=found, notes=notes(source, made))
    (folder / "README.md").write_text(readme(card), encoding="utf-8")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Exported(folder=out, bytes=size, nearness=made.nearness, ways=found)


def _adapter(source: Source, agent: TrainedAgent, folder: Path) -> Made:
    from genenv.backends.local.export_merged import save_adapter

    base, same = agent.shared_base()
    save_adapter(agent, folder, base)
    return Made(form=Form.ADAPTER, dtype="float32", base=base, same_base=same, template=agent.chat.template)


def _merged(wanted: Wanted, source: Source, agent: TrainedAgent, folder: Path) -> Made:
    from genenv.backends.local import export_gguf
    from genenv.backends.local.export_merged import save_model

    vocabulary = export_gguf.check(agent) if wanted.form is Form.GGUF else None
    own = "float16" if wanted.form is Form.GGUF else agent.own_dtype()
    dtype = own if wanted.dtype == "auto" else wanted.dtype
    nearness = agent.merge(dtype, first_messages(source.folder.pool, _COMPARED))
    template = agent.chat.template
    if vocabulary is None:
        save_model(agent, folder)
    else:
        file = f"{source.name}.gguf"
        export_gguf.save_gguf(agent, vocabulary, folder / file, name=source.name, dtype=dtype)
        told = Told(
            gguf=file,
            turns=turns_of(template, vocabulary.begin),
            end=agent.end,
            context_tokens=agent.context_tokens,
        )
        (folder / "Modelfile").write_text(modelfile(told), encoding="utf-8")
    return Made(form=wanted.form, dtype=dtype, base=agent.base, template=template, nearness=nearness)


def _example(source: Source) -> str:
    """A request with one of the run's tasks, as JSON; empty where messages do not say all that it takes."""
    tasks = [] if source.offers_tools else first_messages(source.folder.pool, 1)
    if not tasks:
        return ""
    messages = [{"role": one.role, "content": one.content} for one in tasks[0]]
    return json_line({"model": source.name, "messages": messages, "temperature": 0}, indent=2) + "\n"
