"""Results of an evaluation on disk: a JSONL file with one record per item, and a JSON summary.

The summary has the figures, the token counts, and everything that identifies the measurement.
"""

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
"""The status of an item: graded; longer than the model's context window, which counts as wrong; or failed,
without an answer.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The stored result of one item: a line of the results file."""

    id: str
    groups: Mapping[str, str]
    status: str
    score: float
    measures: Mapping[str, float]
    explanation: str
    answer: Any = None
    conversation: Sequence[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    """The messages of the last request and its reply."""
    tools: Sequence[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    """Counts: `prompt` and `sampled` tokens, `replies`, and `cut` (truncated replies)."""
    seconds: float = 0.0
    latencies_s: Sequence[float] = field(default_factory=list[float])
    """Seconds that each reply took, in order."""
    cluster: str = ""
    """The item's cluster for confidence intervals; empty: the item by itself."""
    unread: Sequence[str] = ()
    """Parts of the answer that could not be parsed and score nothing, with position and reason."""

    def line(self) -> str:
        """Return the record as a line of ASCII JSON, with lone surrogates escaped."""
        return json.dumps({one.name: getattr(self, one.name) for one in dataclasses.fields(self)}) + "\n"


_RECORD = TypeAdapter(Record)


SUMMARY = ".summary.json"
"""How the name of a summary ends; the records' file has `.jsonl` instead."""


def records_beside(summary: Path) -> Path:
    """The file of the records that a summary is of."""
    return summary.with_name(summary.name.removesuffix(SUMMARY) + ".jsonl")


class Results:
    """The record file and summary file of one evaluation: opens, appends and replaces them."""

    def __init__(self, path: Path) -> None:
        """Set the paths of the files.

        Args:
            path: the JSONL file; the summary's path has the ending `.summary.json` instead.
        """
        self.path = path
        self.summary = path.with_suffix(SUMMARY)

    @contextmanager
    def claimed(self, *, resume: bool) -> Generator[None]:
        """Hold the lock on these results for the duration of a `with` block.

        Folders that this method created are removed at the end if they are empty.

        Raises:
            UsageError: there are results already, or results without a summary, or another process writes
                them.
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
                with suppress(OSError):  # the folder is not empty
                    each.rmdir()

    def check(self, *, resume: bool) -> None:
        """Check that these results may be started or resumed.

        Raises:
            UsageError: there are results already, or results without a summary, or the path cannot be
                written.
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
        """Lock these results for the duration of a `with` block; the lock ends with the process.

        Raises:
            UsageError: another process holds the lock.
        """
        return locked(self.path, self.path.with_name(f".{self.path.stem}.lock"))

    def open(self, identity: JsonObject) -> tuple[dict[str, Record], Mapping[str, Any]]:
        """Return records and summary of an earlier run with the same identity; both empty if there is none.

        A truncated last line is dropped; a complete one without a newline is kept.

        Raises:
            UsageError: the earlier run has another identity; the message names the differences.
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
        """Append a record and close the file."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(record.line())

    def rewrite(self, records: Iterable[Record]) -> None:
        """Replace all records."""
        write_whole(self.path, "".join(record.line() for record in records))

    def write_summary(self, summary: JsonObject) -> None:
        """Replace the summary."""
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
"""Fields of a summary that must be equal for two results to be of the same measurement. Two models are
comparable if all of them but `policy` are equal.
"""
_PLACES = ("settings.run", "settings.config")
"""Fields with paths, which may differ: the tasks and their rules are in `data` and `rules`."""


def differences(one: Mapping[str, Any], other: Mapping[str, Any], *, but: Iterable[str] = ()) -> list[str]:
    """Return the dotted names of the identity fields in which two summaries differ."""
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
    """Read a summary.

    Raises:
        UsageError: the file does not exist.
        DataError: the file is damaged.
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
    """The fields of a summary that are read back; a file has more."""

    benchmark: str
    policy: dict[str, Any] = {}
    figures: list[Annotated[Figure, BeforeValidator(_null_is_nan)]] = []
    seconds: float = 0.0


def read_records(path: Path, *, cut_off_is_fine: bool = False) -> dict[str, Record]:
    """Return the records of a file by id; a later record replaces an earlier one with the same id.

    Args:
        path: the JSONL file.
        cut_off_is_fine: ignore a truncated last line, which a killed run leaves.

    Raises:
        DataError: the file is missing, or a line is damaged; the message names the line.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError as error:
        raise DataError(
            f"{path} is missing; restore a copy of it, or run the evaluation again with another --out"
        ) from error
    whole, last = lines[:-1], lines[-1]
    if last and _is_json(last):  # a truncated record is never valid JSON
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
    """Return the figures of a summary, with null read as NaN."""
    return _Summary.model_validate(summary).figures


def as_json(figures: Sequence[Figure]) -> list[JsonObject]:
    """Return figures as JSON for a summary, with NaN written as null."""
    return [
        {
            key: None if isinstance(value, float) and math.isnan(value) else value
            for key, value in dataclasses.asdict(figure).items()
        }
        for figure in figures
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of evaluating one benchmark, which the command shows and stores in the summary."""

    name: str
    results: Results
    figures: Sequence[Figure]
    records: Sequence[Record]
    seconds: float
    """Seconds spent on rollouts, summed over all completed runs of the command."""
    spending: JsonObject
    """The endpoint's cost of this benchmark, summed over all commands that worked on the results."""
    of: int
    """The number of items in the split; `--limit` evaluates fewer."""
    notes: Sequence[str] = ()
    """Caveats to print with the figures, one sentence each."""
    leaderboard: JsonObject = field(default_factory=dict[str, Any])
    """The row of the authors' leaderboard; empty if there is none."""
    prerequisites: Sequence[Record] = ()
    """Records of prerequisite conversations, which count in no figure."""
    exported: Sequence[Path] = ()
    """Files written for the authors' scorer."""

    @property
    def failed(self) -> list[Record]:
        """Return the records without an answer."""
        return [record for record in self.records if record.status == FAILED]

    @property
    def overflow(self) -> int:
        """Return the number of items that did not fit into the model's context window."""
        return sum(record.status == OVERFLOW for record in self.records)

    @property
    def unread(self) -> list[Record]:
        """Return the records whose answer has a part that could not be parsed."""
        return [record for record in self.records if record.unread]

    def tokens(self, kind: str) -> int:
        """Return the sum of a token count over all items: `prompt`, `sampled`, `replies` or `cut`."""
        return _token_counts(self.records)[kind]

    def summary(self) -> JsonObject:
        """Return counts and figures for the summary."""
        more: JsonObject = {"leaderboard": self.leaderboard} if self.leaderboard else {}
        if self.prerequisites:
            more = {**more, "prerequisites": self._prerequisites()}
        return {
            "items": len(self.records),
            "of": self.of,
            "failed": len(self.failed),
            "overflow": self.overflow,
            "unread": {
                "items": len(self.unread),
                "parts": sum(len(record.unread) for record in self.unread),
            },
            "seconds": round(self.seconds, 1),
            "tokens": _token_counts(self.records),
            "spending": self.spending,
            "figures": as_json(self.figures),
            **more,
        }

    def _prerequisites(self) -> JsonObject:
        held = self.prerequisites
        return {
            "conversations": len(held),
            "failed": sum(record.status == FAILED for record in held),
            "overflow": sum(record.status == OVERFLOW for record in held),
            "tokens": _token_counts(held),
        }


def _token_counts(records: Sequence[Record]) -> dict[str, int]:
    kinds = ("prompt", "sampled", "replies", "cut")
    return {kind: sum(record.tokens.get(kind, 0) for record in records) for kind in kinds}
