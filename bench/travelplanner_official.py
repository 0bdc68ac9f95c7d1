"""TravelPlanner's official evaluators, for `parity_travelplanner.py`: the authors' files, run as they are.

They come from a checkout or git directory that the user names, at a commit, and run in a process of their own
(`travelplanner_worker.py`), in a temporary folder with their files and the tables that genenv reads. The one
table that is written is that of the flights: genenv's, of the split's reference information.
"""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genenv.environments.travel.database import Flight
from genenv.environments.travel.query import Query

JsonObject = dict[str, Any]
_NEEDED = ("evaluation", "tools", "utils", "agents")
_TABLES = ("accommodations", "attractions", "background", "googleDistanceMatrix", "restaurants")
_FLIGHTS = "flights/clean_Flights_2022.csv"
_COLUMNS = (
    "Flight Number",
    "Price",
    "DepTime",
    "ArrTime",
    "ActualElapsedTime",
    "FlightDate",
    "OriginCityName",
    "DestCityName",
    "Distance",
)


def official_query(query: Query, *, level: str, text: str) -> JsonObject:
    """A query as the official code has it."""
    return {
        "org": query.origin,
        "dest": query.destination,
        "days": query.days,
        "visiting_city_number": query.cities,
        "date": list(query.dates),
        "people_number": query.people,
        "local_constraint": {
            "house rule": query.house_rule,
            "cuisine": list(query.cuisines) or None,
            "room type": query.room_type,
            "transportation": query.transport,
        },
        "budget": query.budget,
        "query": text,
        "level": level,
    }


@dataclass(frozen=True, kw_only=True)
class Official:
    """The official code at a commit."""

    source: Path
    """A checkout, or a git directory."""
    commit: str

    @staticmethod
    def at(source: Path, revision: str = "HEAD") -> Official:
        """The code at a revision of a checkout or git directory."""
        return Official(source=source, commit=_git(source, "rev-parse", revision).decode().strip())

    @property
    def date(self) -> str:
        """Day of the commit."""
        return _git(self.source, "show", "-s", "--format=%cs", self.commit).decode().strip()

    def file(self, path: str) -> bytes:
        """One of the files."""
        return _git(self.source, "show", f"{self.commit}:{path}")

    def judge(
        self,
        split: str,
        *,
        tables: Path,
        flights: Sequence[Flight],
        queries: Sequence[JsonObject],
        plans: Sequence[tuple[JsonObject, Any]],
        submissions: Mapping[str, str],
    ) -> JsonObject:
        """Verdicts of `plans` (`plans`), and the six numbers of `submissions`, texts by name (`scores`)."""
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            self._lay_out(root, tables, flights)
            paths = {of: root / f"submission-{index}.jsonl" for index, of in enumerate(submissions)}
            for of, path in paths.items():
                path.write_text(submissions[of], encoding="utf-8")
            asked, answered = root / "asked.json", root / "answered.json"
            work: dict[str, Any] = {"split": split, "queries": queries, "plans": plans}
            work["submissions"] = {of: str(path) for of, path in paths.items()}
            asked.write_text(json.dumps(work), encoding="utf-8")
            worker = Path(__file__).with_name("travelplanner_worker.py").resolve()
            command = [sys.executable, "-W", "ignore", str(worker), str(asked), str(answered)]
            subprocess.run(command, cwd=root / "evaluation", check=True)  # noqa: S603 - this interpreter
            return json.loads(answered.read_text(encoding="utf-8"))

    def _lay_out(self, root: Path, tables: Path, flights: Sequence[Flight]) -> None:
        archive = _git(self.source, "archive", self.commit, *_NEEDED)
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(root, filter="data")
        for name in _TABLES:
            (root / "database").mkdir(exist_ok=True)
            (root / "database" / name).symlink_to((tables / name).resolve(), target_is_directory=True)
        path = root / "database" / _FLIGHTS
        path.parent.mkdir()
        with path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(_COLUMNS)
            writer.writerows(flights)


def _git(source: Path, *arguments: str) -> bytes:
    command = ["git", "-C", str(source), *arguments]
    return subprocess.run(command, check=True, capture_output=True).stdout  # noqa: S603 - fixed words
