"""`genenv export-data`: writes a run's tasks and trajectories in the layouts that other tools read.

The layouts are those of `datasets`, of TRL's trainers, of verl's `RLHFDataset` and `MultiTurnSFTDataset`, and
of OpenAI's fine-tuning of chat models. A failure leaves no folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from genenv.cli.console import begin, check_packages
from genenv.cli.progress import ConsoleReporter
from genenv.errors import UsageError, unknown_name
from genenv.exporting.agent import check_vacant, new_folder
from genenv.interop import data_rows
from genenv.interop.data_rows import LAST, Filters, Rows, Source
from genenv.progress import Reporter, staged
from genenv.runs.folder import RunFolder
from genenv.runs.store.database import Database
from genenv.texts import inert
from genenv.types import JsonObject

KEPT = "nothing was written"
"""The outcome to report if the command is interrupted."""

Kind = str | list[Any] | dict[str, Any]
"""The type of a column: a name of Arrow, a list with the type of its items, or the types of a record."""
Columns = Mapping[str, Kind]

_BATCH = 1000
"""Rows that are written at a time."""
_MESSAGES: list[Any] = [{"role": "string", "content": "string"}]
_CALLING: list[Any] = ["json"]
"""Messages with tool calls, whose arguments differ from row to row."""
_TEXT, _WHOLE, _NUMBER, _TEXTS = "string", "int64", "float64", ["string"]
_ABOUT: dict[str, Kind] = {
    **{"id": _TEXT, "round": _WHOLE, "origin": _TEXT, "skills": _TEXTS, "demonstration": _TEXTS},
    **{"attempts": _WHOLE, "success_rate": _NUMBER},
}
_TASKS: dict[str, Kind] = {
    **_ABOUT,
    **{"prompt": _MESSAGES, "spec": _TEXT, "payload": _TEXT, "seed_id": _TEXT, "context_id": _TEXT},
}
_TRAJECTORIES: dict[str, Kind] = {
    **{"id": _TEXT, "task_id": _TEXT, "round": _WHOLE, "prompt": _MESSAGES, "completion": _MESSAGES},
    **{"reward": _NUMBER, "success": "bool", "explanation": _TEXT, "stop_reason": _TEXT},
    **{"tokens": _WHOLE, "weights_version": _WHOLE},
}
_VERL: dict[str, Kind] = {
    **{"data_source": _TEXT, "prompt": _MESSAGES, "ability": _TEXT},
    "reward_model": {"style": _TEXT, "ground_truth": _TEXT},
    "extra_info": {"split": _TEXT, "index": _WHOLE, **_ABOUT},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file of an export."""

    path: str
    about: str
    columns: Columns
    rows: Callable[[Source], Rows]
    held_out: bool | None = None
    """Whether it is made of held-out tasks, of other tasks, or of trajectories (None)."""

    @property
    def split(self) -> str:
        """The name of its split."""
        return "test" if self.held_out else "train"


def _files(form: str, *, native: bool, seated: bool) -> list[File]:
    """Return the files of a format.

    Args:
        form: one of `FORMATS`.
        native: whether the run's chat template offered the tools.
        seated: whether the run has seats.
    """
    said: Kind = _CALLING if native else _MESSAGES
    seat: dict[str, Kind] = {"seat": _TEXT} if seated else {}
    rest: dict[str, Kind] = {**({"tools": _TEXT} if native else {}), "task_id": _TEXT, **seat}
    if form == "hf":
        about = "each trajectory with its task's messages, its reward and the checker's sentence"
        tried, rows = {**_TRAJECTORIES, **seat}, data_rows.hf_trajectories
        return [
            *_tasks("tasks/train.parquet", "each task with its success rate", _TASKS, data_rows.hf_tasks),
            File(path="trajectories/train.parquet", about=about, columns=tried, rows=rows),
        ]
    if form == "trl":
        grpo: dict[str, Kind] = {"prompt": _MESSAGES, **_ABOUT, "task": _TEXT}
        return [
            *_tasks("grpo/train.jsonl", "tasks for GRPOTrainer and RLOOTrainer", grpo, data_rows.grpo),
            File(
                path="sft/train.jsonl",
                about="solved trajectories for SFTTrainer",
                columns={"prompt": _MESSAGES, "completion": said, **rest},
                rows=data_rows.sft,
            ),
            File(
                path="preference/train.jsonl",
                about="a solved and a failed trajectory of the same task, for DPOTrainer and RewardTrainer",
                columns={"prompt": _MESSAGES, "chosen": said, "rejected": said, **rest},
                rows=data_rows.preference,
            ),
        ]
    if form == "openai":
        about = "solved trajectories for fine-tuning of chat models"
        return [File(path="train.jsonl", about=about, columns={}, rows=data_rows.openai)]
    about = "solved trajectories for MultiTurnSFTDataset"
    columns = {"messages": _MESSAGES, "task_id": _TEXT}
    # verl hands the tools of a row to the chat template as Parquet returns them, which fills records of
    # different tools with nulls.
    imitated = [File(path="sft.parquet", about=about, columns=columns, rows=data_rows.verl_sft)]
    return [
        *_tasks("train.parquet", "tasks for RLHFDataset", _VERL, data_rows.verl_tasks),
        *([] if native else imitated),
    ]


def _tasks(path: str, about: str, columns: Columns, rows: Callable[..., Rows]) -> list[File]:
    """Return the file of tasks, and that of held-out tasks in the same layout."""
    held_out = partial(rows, held_out=True)
    test = path.replace("train.", "test.")
    return [
        File(path=path, about=about, columns=columns, rows=rows, held_out=False),
        File(path=test, about="the held-out tasks", columns=columns, rows=held_out, held_out=True),
    ]


def _written_jsonl(path: Path, file: File, rows: Rows) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as to:
        for row in rows:
            to.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            count += 1
    return count


def _written_parquet(path: Path, file: File, rows: Rows) -> int:
    arrow: Any = import_module("pyarrow")
    schema, count = arrow.schema([(name, _arrow(kind, arrow)) for name, kind in file.columns.items()]), 0
    with import_module("pyarrow.parquet").ParquetWriter(path, schema) as to:
        while batch := list(islice(rows, _BATCH)):
            to.write_table(arrow.Table.from_pylist(batch, schema=schema))
            count += len(batch)
    return count


def _arrow(kind: Kind, arrow: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    if isinstance(kind, list):
        return arrow.list_(_arrow(kind[0], arrow))
    if isinstance(kind, dict):
        return arrow.struct([(name, _arrow(one, arrow)) for name, one in kind.items()])
    return getattr(arrow, f"{kind}_" if kind == "bool" else kind)()


def _feature(name: str, kind: Kind) -> JsonObject:
    """Return a column as a dataset card declares it."""
    if isinstance(kind, list):
        inner = _feature("", kind[0])
        return {"name": name, "list": inner.get("struct", inner.get("dtype"))}
    if isinstance(kind, dict):
        return {"name": name, "struct": [_feature(one, of) for one, of in kind.items()]}
    return {"name": name, "dtype": kind}


FORMATS = ("hf", "verl", "trl", "openai")
_LOADING = {
    "hf": 'from datasets import load_dataset\n\nload_dataset("{out}", "tasks", split="train")',
    "trl": 'from datasets import load_dataset\n\nload_dataset("{out}", "grpo", split="train")',
    "verl": "data.train_files={out}/train.parquet    # its reward: docs/guides/export-data.md of genenv",
    "openai": 'client.files.create(file=open("{out}/train.jsonl", "rb"), purpose="fine-tune")',
}


def export(run: Path, form: str, out: Path, filters: Filters, reporter: Reporter) -> list[tuple[File, int]]:
    """Write the tasks and trajectories of a run into a new folder; a failure leaves none.

    Args:
        run: the folder of the run, which may be in progress.
        form: one of `FORMATS`.
        out: the new folder.
        filters: what is exported.
        reporter: receives the progress.

    Returns:
        The files with their numbers of rows. A file that would have no row is left out.

    Raises:
        UsageError: there is no run, the folder is not empty, or nothing fits the filters.
        DataError: the store is damaged, or the disk is full.
    """
    folder = RunFolder.open(run)
    check_vacant(out)
    database = Database.open(folder.pool, create=False, check=False)
    try:
        with database.snapshot(), new_folder(out) as hidden:
            source, found = Source(folder, database, filters), list[tuple[File, int]]()
            listed = _files(form, native=source.native, seated=source.seated)
            files = [one for one in listed if filters.held_out or not one.held_out]
            if filters.held_out and not any(one.held_out for one in files):
                raise UsageError(
                    f"--format {form} holds trajectories, and held-out tasks have none; leave out --held-out"
                )
            with source.offering(folder):
                for file in files:
                    count = _filled(hidden / file.path, file, source, reporter)
                    if count:
                        found.append((file, count))
            if not found:
                raise UsageError(_nothing(run, source))
            (hidden / "README.md").write_text(_card(run, form, out, source, found), encoding="utf-8")
    finally:
        database.close()
    return found


def _filled(path: Path, file: File, source: Source, reporter: Reporter) -> int:
    """Write a file, and return its number of rows; a file without rows is removed."""
    path.parent.mkdir(exist_ok=True)
    write = _written_parquet if path.suffix == ".parquet" else _written_jsonl
    unit = "trajectories" if file.held_out is None else "tasks"
    with staged(reporter, f"writing {file.path}", items=source.count(held_out=file.held_out), unit=unit):
        count = write(path, file, file.rows(source))
    if not count:
        path.unlink()
        if path.parent.name == file.path.partition("/")[0]:
            path.parent.rmdir()
    return count


def _nothing(run: Path, source: Source) -> str:
    tasks, tries = source.count(held_out=False), source.count(held_out=None)
    return (
        f"{run} has nothing to export with these filters: {tasks:,} tasks and {tries:,} trajectories were "
        "looked at, and files to learn from hold only solved ones"
    )


def _card(run: Path, form: str, out: Path, source: Source, found: Sequence[tuple[File, int]]) -> str:
    """Return the README, which is the dataset card for `datasets`."""
    head = ""
    if form in ("hf", "trl"):
        configs = dict[str, list[File]]()
        for file, _ in found:
            configs.setdefault(file.path.partition("/")[0], []).append(file)
        listed = [
            {"config_name": name, "data_files": [{"split": one.split, "path": one.path} for one in files]}
            for name, files in configs.items()
        ]
        features = [
            {"config_name": name, "features": [_feature(*column) for column in files[0].columns.items()]}
            for name, files in configs.items()
        ]
        card = {"configs": listed, "tags": ["genenv"]} | ({"dataset_info": features} if form == "trl" else {})
        head = f"---\n{yaml.safe_dump(card, sort_keys=False)}---\n\n"
    filters = source.filters
    rounds = f"{filters.first} to {filters.last}" if filters.last < LAST else f"{filters.first} on"
    chosen = [f"rounds {rounds}", f"success rate {filters.low:g} to {filters.high:g}"]
    lines = [
        f"# {run.resolve().name}, for {form}",
        f"Tasks of `{source.environment}` and trajectories of `{source.model}`, by `genenv export-data`. "
        f"Filters: {', '.join(chosen)}{', solved' if filters.solved else ''}.",
        "\n".join(
            ["| file | rows | holds |", "|---|---|---|"]
            + [f"| `{file.path}` | {count:,} | {file.about} |" for file, count in found]
        ),
        f"```\n{_LOADING[form].format(out=out.as_posix())}\n```",
    ]
    if not filters.held_out:
        lines.append(
            "Held-out tasks are left out: a model that was trained on them can no longer be measured on them."
        )
    return head + inert("\n\n".join(lines)) + "\n"


def range_of(text: str, option: str, kind: Callable[[str], float], highest: float) -> tuple[float, float]:
    """Parse `LOW:HIGH`, where either may be left out, or one number.

    Raises:
        UsageError: it is something else, or LOW is above HIGH.
    """
    low, colon, high = text.partition(":")
    try:
        first = kind(low) if low else 0
        found = (first, kind(high) if high else highest) if colon else (first, first)
    except ValueError:
        found = (1.0, 0.0)
    if not 0 <= found[0] <= found[1] <= highest:
        raise UsageError(f"{option} is {text!r}; give two numbers that rise, such as {_EXAMPLES[option]}")
    return found


_EXAMPLES = {"--rounds": "3:8, or 3: for all from 3 on", "--rate": "0.2:0.8, within 0 and 1"}

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, such as runs/demo.")]
Format = Annotated[str, typer.Option("--format", metavar="|".join(FORMATS), help="The layout.")]
Out = Annotated[Path, typer.Option("--out", help="The folder that is made.")]
Rounds = Annotated[str, typer.Option("--rounds", metavar="FIRST:LAST", help="These rounds alone.")]
Solved = Annotated[bool, typer.Option("--solved", help="Only solved trajectories, and tasks that have one.")]
Rate = Annotated[
    str, typer.Option("--rate", metavar="LOW:HIGH", help="Only tasks whose success rate is in this range.")
]
HeldOut = Annotated[
    bool, typer.Option("--held-out", help="Held-out tasks too, as the split test; never train on them.")
]


def export_data(  # noqa: PLR0913 - the options of a command
    run: Run,
    format: Format,
    out: Out,
    rounds: Rounds = "",
    solved: Solved = False,
    rate: Rate = "",
    held_out: HeldOut = False,
) -> None:
    """Write a run's tasks and trajectories as data for Hugging Face datasets, TRL, verl or OpenAI."""
    if format not in FORMATS:
        raise unknown_name("--format", format, FORMATS)
    if format in ("hf", "verl"):
        check_packages("parquet", pyarrow="pyarrow")
    first, last = range_of(rounds or ":", "--rounds", int, LAST)
    low, high = range_of(rate or ":", "--rate", float, 1.0)
    filters = Filters(first=int(first), last=int(last), solved=solved, low=low, high=high, held_out=held_out)
    begin(f"exporting {run}")
    found = export(run, format, out, filters, ConsoleReporter())
    listed = ", ".join(f"{file.path} ({count:,} rows)" for file, count in found)
    typer.echo(inert(f"{out}: {listed}; README.md says how to load them"))
