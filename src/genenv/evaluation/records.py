"""Results on disk: a JSONL file with a line per item, and beside it a summary to compare runs by."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, TypeAdapter, ValidationError

from genenv.errors import DataError, UsageError, first_line
from genenv.files import check_writable, locked, write_whole
from genenv.statistics import Figure
from genenv.texts import json_line
from genenv.types import JsonObject

GRADED, OVERFLOW, FAILED = "graded", "overflow", "failed"
"""Status of an item: answered and graded; too long for the model's window, so wrong; not answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What happened to one item."""

    id: str
    groups: Mapping[str, str]
    status: str
    score: float
    measures: Mapping[str, float]
    explanation: str
    answer: Any = None
    conversation: Sequence[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    """The last that the model was given, and its reply."""
    tools: Sequence[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    """Prompt tokens, sampled tokens, replies, and replies cut off by the limit."""
    seconds: float = 0.0
    latencies_s: Sequence[float] = field(default_factory=list[float])
    """How long each reply took, in their order."""
    cluster: str = ""
    """What the item hangs together with; empty: it stands alone."""
    unread: Sequence[str] = ()
    """Parts of the answer that could not be read and were not graded, each with its place and the reason."""

    def line(self) -> str:
        """The record as a line of JSON. What is no Unicode, such as half a surrogate pair, is escaped."""
        return json.dumps({one.name: getattr(self, one.name) for one in dataclasses.fields(self)}) + "\n"


_RECORD = TypeAdapter(Record)


class Results:
    """The files of one evaluation."""

    def __init__(self, path: Path) -> None:
        """Name the files.

        Args:
            path: the JSONL file; the summary has its name with the ending `.summary.json`.
        """
        self.path = path
        self.summary = path.with_suffix(".summary.json")

    @contextmanager
    def claimed(self, *, resume: bool) -> Generator[None]:
        """Nobody else may begin or continue these results inside this block.

        Folders that it had to make go again where nothing has been begun.

        Raises:
            UsageError: there are results already, some whose summary is lost, or another process writes them.
        """
        self.check(resume=resume)
        folder = self.path.parent
        made = [each for each in (folder, *folder.parents) if not each.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with self.lock():
                yield
        finally:
            for each in made:
                with suppress(OSError):  # it holds something
                    each.rmdir()

    def check(self, *, resume: bool) -> None:
        """See whether these results may be begun or continued.

        Raises:
            UsageError: there are results already, or some whose summary is lost; or they cannot be written.
        """
        check_writable(self.path)
        if resume and self.path.exists() and not self.summary.exists():
            raise UsageError(
                f"{self.path} has lost its summary, so that nobody knows what it was run with; delete it, or "
                "choose another --out"
            )
        if not resume and (self.path.exists() or self.summary.exists()):
            raise UsageError(
                f"{self.path} already holds results; continue them with --resume or choose another --out"
            )

    def lock(self) -> AbstractContextManager[None]:
        """Nobody else may write these results inside this block; a process that dies gives the lock back.

        Raises:
            UsageError: another process has it.
        """
        return locked(self.path, self.path.with_name(f".{self.path.stem}.lock"))

    def open(self, identity: JsonObject) -> tuple[dict[str, Record], Mapping[str, Any]]:
        """Records of an earlier run with the same identity, and its summary; both empty without one.

        A last line that was cut off is dropped; one that only lacks its end, as editors leave it, is kept.

        Raises:
            UsageError: it was run otherwise; names what differs.
            DataError: a line is damaged.
        """
        if not self.summary.exists():
            self.path.touch()
            self.write_summary({"complete": False, **identity})
            return {}, {}
        before = read_summary(self.summary)
        if differing := differences(before, identity):
            raise UsageError(
                f"{self.path} was run with other {', '.join(differing)}; choose another --out, or run it "
                "as before"
            )
        if not self.path.exists() and not before.get("complete") and not before.get("figures"):
            self.path.touch()
        records = read_records(self.path, cut_off_is_fine=True)
        self.rewrite(records.values())
        return records, before

    def append(self, record: Record) -> None:
        """Add a record; on the disk when this returns, as far as the system says."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(record.line())

    def rewrite(self, records: Iterable[Record]) -> None:
        """Put these records in place of all."""
        write_whole(self.path, "".join(record.line() for record in records))

    def write_summary(self, summary: JsonObject) -> None:
        """Put a summary in place."""
        write_whole(self.summary, json_line(summary, indent=2) + "\n")


IDENTITY = (
    "genenv",
    "benchmark",
    "split",
    "settings",
    "prompt_version",
    "policy",
    "sampling",
    "data",
    "rules",
)
"""Fields of a summary that must agree for two results to be of the same measurement; all but `policy` for two
models to be comparable."""
_PLACES = ("settings.run", "settings.config")
"""Where tasks were found; which tasks, and by which rules, is in `data` and `rules`."""


def differences(one: Mapping[str, Any], other: Mapping[str, Any], *, but: Iterable[str] = ()) -> list[str]:
    """In which fields of the identity two summaries differ, by dotted names."""
    return [
        path
        for name in IDENTITY
        if name not in but
        for path in _differing(
            json.loads(json.dumps(one.get(name))), json.loads(json.dumps(other.get(name))), name
        )
        if path not in _PLACES
    ]


def _differing(one: object, other: object, name: str) -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict) and name != "data":
        left, right = cast("dict[str, object]", one), cast("dict[str, object]", other)
        keys = dict.fromkeys([*left, *right])
        return [path for key in keys for path in _differing(left.get(key), right.get(key), f"{name}.{key}")]
    return [] if one == other else [name]


def read_summary(path: Path) -> dict[str, Any]:
    """A summary.

    Raises:
        UsageError: there is none.
        DataError: it is damaged.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(
            f"there is no summary {path}; name the .summary.json file of an evaluation"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged: it is not JSON; run the evaluation again") from error
    try:
        _Summary.model_validate(value)
    except ValidationError as error:
        raise DataError(
            f"{path} is not the summary of an evaluation ({first_line(error)}); name a .summary.json file"
        ) from error
    return cast("dict[str, Any]", value)


def _null_is_nan(figure: object) -> object:
    if not isinstance(figure, Mapping):
        return figure
    return {name: math.nan if value is None else value for name, value in cast("JsonObject", figure).items()}


class _Summary(BaseModel):
    """What a summary must have to be read; there is more in it."""

    benchmark: str
    policy: dict[str, Any] = {}
    figures: list[Annotated[Figure, BeforeValidator(_null_is_nan)]] = []
    seconds: float = 0.0


def read_records(path: Path, *, cut_off_is_fine: bool = False) -> dict[str, Record]:
    """Records by id; the last of those with one id counts.

    Args:
        path: the JSONL file.
        cut_off_is_fine: leave out a last line without an end, as a killed run leaves it.

    Raises:
        DataError: the file is missing or a line is damaged; names it.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError as error:
        raise DataError(
            f"{path} is missing; restore a copy of it, or run the evaluation again with another --out"
        ) from error
    whole, last = lines[:-1], lines[-1]
    if last and _is_json(last):  # a part of a record never is
        whole = lines
    elif last and not cut_off_is_fine:
        raise DataError(f"{path}, line {len(lines)}: it is cut off; continue the evaluation with --resume")
    records: dict[str, Record] = {}
    for number, line in enumerate(whole, start=1):
        try:
            record = _RECORD.validate_python(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: it is not a record; remove the line") from error
        records[record.id] = record
    return records


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def figures_of(summary: Mapping[str, Any]) -> list[Figure]:
    """The figures that a summary holds; null is not a number."""
    return _Summary.model_validate(summary).figures


def as_json(figures: Sequence[Figure]) -> list[JsonObject]:
    """Figures for a summary; what is not a number is null."""
    return [
        {
            key: None if isinstance(value, float) and math.isnan(value) else value
            for key, value in dataclasses.asdict(figure).items()
        }
        for figure in figures
    ]
