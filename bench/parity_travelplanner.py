"""Holds genenv's TravelPlanner to the authors' own evaluators, run on the same plans and tables.

`GENENV_DATA=... python bench/parity_travelplanner.py --official PATH`, where PATH is a checkout or git
directory of OSU-NLP-Group/TravelPlanner; needs pandas. Their files at a commit (`--commit`, HEAD) run in a
process of their own (`travelplanner_official.py`). Compared, on both splits of the benchmark and on one made
by us (`tests/benchmarks/travelplanner/made.py`):

1. each constraint's verdict: on the plans by people, edits of them that break one constraint each, the
   solver's plans, the authors' example submission, plans damaged at random under wishes drawn at random, and
   plans read out of replies, freely worded or hostile;
2. the six numbers of whole submissions as `eval.py` gives them: people's, the example, what genenv exports;
3. the authors' prompt, as their template gives it.

Where their code stops with an exception the constraint is not met here; such verdicts are counted apart.
Prints one JSON object.
"""

from __future__ import annotations

import argparse
import ast
import csv
import io
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from travelplanner_official import Official, official_query

from genenv.benchmarks.travelplanner import TravelPlanner
from genenv.benchmarks.travelplanner.benchmark import prompt
from genenv.benchmarks.travelplanner.replies import plan_of
from genenv.environments.travel.constraints import COMMONSENSE, HARD, score
from genenv.environments.travel.query import HouseRule, Query, RoomType, Transport
from genenv.environments.travel.solver import solve
from genenv.environments.travel.trips import written
from genenv.evaluation.base import Item
from genenv.evaluation.data import DataFolder
from genenv.evaluation.results import Record

# plans made by us, edits and wordings are those of the tests
sys.path.append(str(Path(__file__).parents[1] / "tests"))

from benchmarks.travelplanner import edits, made, styles

Plan = list[dict[str, Any]]
COUNTS = {
    "Delivery Rate": ("delivered", {"train": 45, "validation": 180}),
    "Commonsense Constraint Micro Pass Rate": ("commonsense_met", {"train": 360, "validation": 1440}),
    "Commonsense Constraint Macro Pass Rate": ("commonsense_all", {"train": 45, "validation": 180}),
    "Hard Constraint Micro Pass Rate": ("hard_met", {"train": 105, "validation": 420}),
    "Hard Constraint Macro Pass Rate": ("hard_all", {"train": 45, "validation": 180}),
    "Final Pass Rate": ("passed", {"train": 45, "validation": 180}),
}
"""Official rate -> genenv's count, and the denominators in `eval.py`."""
OF_TESTS = "damaged, as in the tests"
SOLVED = 3
"""Every third of the validation queries is solved."""
EDITED = 45
"""So many plans of a split are edited."""
BENCH = TravelPlanner()


@dataclass(frozen=True, kw_only=True)
class Case:
    """A plan, and what it is judged under."""

    source: str
    item: Item
    query: Query
    plan: Any


@dataclass(kw_only=True)
class Work:
    """A split: its items, plans that meet everything, and what is to be compared on it."""

    name: str
    split: str
    data: DataFolder
    items: Sequence[Item]
    good: Sequence[tuple[Item, Plan]]
    cases: list[Case] = field(default_factory=list[Case])
    submissions: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, source: str, item: Item, plan: object, query: Query | None = None) -> None:
        """One more plan to be judged."""
        self.cases.append(Case(source=source, item=item, query=query or item.data.query, plan=plan))


# --- what is compared ---


def works(data: DataFolder) -> Iterator[Work]:
    """The splits of the benchmark and of the one made by us."""
    train = BENCH.load(data, "train")
    rows = csv.DictReader(io.StringIO(data.read("travelplanner/train.csv"), newline=""))
    people: list[Plan] = [[day for day in ast.literal_eval(row["annotated_plan"])[1] if day] for row in rows]
    yield Work(
        name="train", split="train", data=data, items=train, good=list(zip(train, people, strict=True))
    )
    items = BENCH.load(data, "validation")
    yield Work(
        name="validation", split="validation", data=data, items=items, good=list(solved(items[::SOLVED]))
    )
    folder = Path(tempfile.mkdtemp())
    made.write(folder)
    own = DataFolder(folder, known={})
    for split in ("train", "validation"):
        items, plans = BENCH.load(own, split), [known.plan for known in made.made(split)]
        good = list(zip(items, plans, strict=True))
        yield Work(name=f"made, {split}", split=split, data=own, items=items, good=good)


def solved(items: Sequence[Item]) -> Iterator[tuple[Item, Plan]]:
    """The solver's plans, where it finds one within the budget."""
    for item in items:
        solution = solve(item.data.query, item.data.database)
        if solution is not None and solution.cost <= item.data.query.budget:
            yield item, written(solution.trip)


def fill(work: Work, n: int) -> None:
    """All plans of a split; `n` damaged ones and `n` replies."""
    rng, plans = random.Random(work.name), [plan for _, plan in work.good]
    for index, (item, plan) in enumerate(work.good):
        work.add("people" if work.name == "train" else "solver", item, plan)
        for kind, edit in edits.EDITS.items() if index < EDITED else ():
            for edited in edit(edits.Base(item.data.query, plan, item.data.database), rng):
                work.add(f"edits of {kind}", item, edited)
    if work.name == "validation":
        path = "travelplanner/example_evaluation.jsonl"
        example = [value["plan"] for _, value in work.data.json_lines(path)]
        for item, plan in zip(work.items, example, strict=True):
            work.add("example submission", item, plan or [])
        work.submissions["example"] = work.data.read(path)
    for _ in range(n):
        item, plan = rng.choice(list(work.good))
        wishes = drawn(item.data.query, rng)
        work.add("damaged", item, made.damaged(plan, plans, rng), wishes)
        reply = spoiled(styles.freely(plan, item.data.database, rng), rng)
        work.add("read from replies", item, list(plan_of(item.data, reply)))
    if work.name == "made, train":
        for item, plan in made.damaged_plans(work.good):
            work.add(OF_TESTS, item, plan)
    export(work, rng)


def drawn(query: Query, rng: random.Random) -> Query:
    """A query with other wishes, among them those of the data."""
    cuisines = ("American", "Chinese", "French", "Indian", "Italian", "Mediterranean", "Mexican")
    return replace(
        query,
        house_rule=rng.choice((None, *get_args(HouseRule))),
        room_type=rng.choice((None, *get_args(RoomType))),
        transport=rng.choice((None, *get_args(Transport))),
        cuisines=tuple(rng.sample(cuisines, rng.choice((0, 1, 2, 3)))),
        budget=query.budget * rng.choice((0.8, 1, 1, 1.5)),
    )


def spoiled(reply: str, rng: random.Random) -> str:
    """Half of the replies as they are, half with pieces lost, doubled, moved or replaced."""
    for _ in range(rng.choice((0, 0, 0, 1, 3, 10))):
        start = rng.randrange(len(reply) + 1)
        end = min(len(reply), start + rng.choice((1, 5, 30)))
        piece = reply[start:end]
        odd = (
            "",
            piece * 2,
            " from ",
            " to ",
            "Flight Number",
            "flight number ",
            "(",
            ")",
            ",",
            ";",
            "\n",
            "\\n",
            "\ud800",
        )
        reply = reply[:start] + rng.choice(odd) + reply[end:]
    return reply


def export(work: Work, rng: random.Random) -> None:
    """What genenv writes for the leaderboard after an evaluation with such replies, and for good plans."""
    for name, spoil in (("exported", True), ("exported, good", False)):
        answered: list[tuple[Item, Record]] = []
        for item, plan in work.good:
            reply = styles.freely(plan, item.data.database, rng)
            reply = spoiled(reply, rng) if spoil else reply
            record = Record(
                id=item.id,
                groups=item.groups,
                status="done",
                score=0,
                measures={},
                explanation="",
                answer=reply,
            )
            answered.append((item, record))
        work.submissions[name] = BENCH.export(answered, "parity")["submission.jsonl"]


# --- comparing ---


def ours(case: Case) -> dict[str, bool]:
    """Constraint -> whether it is met; only those that are looked at: none without a plan."""
    found = score(case.query, case.plan, case.item.data.database)
    looked = [name for name in found.asked if name in COMMONSENSE or found.judged_hard]
    return {name: name not in found.problems for name in looked} if found.delivered else {}


def compared(case: Case, theirs: Mapping[str, Any], counts: Counter[str]) -> dict[str, Any]:
    """The constraints on which a plan's verdicts differ; counts verdicts and where their code stops."""
    mine = ours(case)
    told = {name: verdict for name, verdict in theirs.items() if verdict is not None}
    differ: dict[str, Any] = {}
    for name in (*COMMONSENSE, *HARD):
        if name not in mine and name not in told:
            continue
        counts[f"{name}, met" if mine.get(name) else f"{name}, not met"] += 1
        stopped = isinstance(told.get(name), str)
        counts["official code stops"] += stopped
        if mine.get(name) != (False if stopped else told.get(name)):
            differ[name] = {"genenv": mine.get(name), "official": told.get(name)}
    return differ


def whole(work: Work, scores: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """The six numbers of each submission, as counts: official ones, and where genenv's differ."""
    found = dict[str, Any]()
    for name, rates in scores.items():
        plans = [json.loads(line)["plan"] for line in work.submissions[name].splitlines()]
        grades = [BENCH.grade(item, plan).measures for item, plan in zip(work.items, plans, strict=True)]
        mine = Counter[str]()
        for grade in grades:
            mine += Counter(
                delivered=int(grade["delivered"]),
                commonsense_met=int(grade["commonsense_met"]),
                commonsense_all=int(grade["commonsense_met"] == grade["commonsense_asked"]),
                hard_met=int(grade["hard_met"]),
                hard_all=int(grade["hard_met"] == grade["hard_asked"]),
                passed=int(grade["passed"]),
            )
        theirs = {of: round(rates[rate] * whole_[work.split]) for rate, (of, whole_) in COUNTS.items()}
        found[name] = {"plans": len(plans), **theirs}
        found[name]["different"] = {of: mine[of] for of in theirs if mine[of] != theirs[of]}
    return found


def parity(official: Official, work: Work) -> dict[str, Any]:
    """All of a split."""
    first = work.items[0].data
    answer = official.judge(
        work.split,
        tables=work.data.root / "travelplanner" / "database",
        flights=first.database.tables.flights,
        queries=[as_official(item, item.data.query) for item in work.items],
        plans=[(as_official(case.item, case.query), case.plan) for case in work.cases],
        submissions=work.submissions,
    )
    pairs = zip(work.cases, answer["plans"], strict=True)
    told = [verdicts for case, verdicts in pairs if case.source == OF_TESTS]
    by_source: dict[str, Counter[str]] = {}
    by_name, wrong = Counter[str](), list[Any]()
    for case, theirs in zip(work.cases, answer["plans"], strict=True):
        counts = Counter[str]()
        differ = compared(case, theirs, counts)
        stops = counts.pop("official code stops", 0)
        tally = by_source.setdefault(case.source, Counter())
        tally += Counter(plans=1, verdicts=counts.total(), stops=stops, different=len(differ))
        by_source[case.source] = tally
        by_name += counts
        if differ:
            wrong.append({"source": case.source, "item": case.item.id, "differ": differ, "plan": case.plan})
    return {
        "verdicts": by_name.total(),
        "different": sum(tally["different"] for tally in by_source.values()),
        "by_source": {source: dict(tally) for source, tally in by_source.items()},
        "by_constraint": dict(sorted(by_name.items())),
        "submissions": whole(work, answer["scores"]),
        **({OF_TESTS: official_counts(told)} if told else {}),
        **({"wrong": wrong[:5]} if wrong else {}),
    }


def official_counts(told: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """What `eval.py` would count of some plans' verdicts."""
    counts = Counter[str]()
    for verdicts in told:
        common = [verdicts[name] is True for name in COMMONSENSE]
        hard = [verdicts[name] is True for name in HARD if verdicts.get(name) is not None]
        judged = bool(hard)
        counts["commonsense_met"] += sum(common)
        counts["commonsense_all"] += all(common)
        counts["hard_met"] += sum(hard)
        counts["hard_all"] += judged and all(hard)
        counts["passed"] += judged and all(common) and all(hard)
    return dict(counts)


def as_official(item: Item, query: Query) -> dict[str, Any]:
    return official_query(query, level=item.data.groups["level"], text=item.data.text)


def prompts(official: Official, data: DataFolder) -> dict[str, Any]:
    """Whether `prompt: authors` is the authors' prompt, filled in as their template is."""
    source = official.file("agents/prompts.py")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for path in (data.root / "travelplanner").iterdir():
            (root / "travelplanner").mkdir(exist_ok=True)
            (root / "travelplanner" / path.name).symlink_to(path.resolve())
        theirs = root / "travelplanner" / "prompts.py"
        theirs.unlink(missing_ok=True)
        theirs.write_bytes(source)
        return {strategy: _same_prompts(source, root, strategy) for strategy in ("direct", "cot")}


def _same_prompts(source: bytes, root: Path, strategy: str) -> str:
    bench = TravelPlanner(BENCH.config.model_validate({"prompt": "authors", "strategy": strategy}))
    items = bench.load(DataFolder(root), "train")
    wanted = {"direct": "PLANNER_INSTRUCTION", "cot": "COT_PLANNER_INSTRUCTION"}[strategy]
    texts = {
        target.id: str(statement.value.value)
        for statement in ast.parse(source).body
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    same = sum(
        prompt(item.data, bench.settings)
        == texts[wanted].format(text=item.data.information, query=item.data.text)
        for item in items
    )
    return f"{same} of {len(items)} equal"


def main() -> None:
    """Compare all of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--official", type=Path, required=True, help="checkout or git directory of the authors' code"
    )
    parser.add_argument("--commit", default="HEAD", help="which commit of it")
    parser.add_argument("--n", type=int, default=1000, help="damaged plans, and replies, of each split")
    options = parser.parse_args()
    official = Official.at(options.official, options.commit)
    data, start = DataFolder.from_environment(), time.perf_counter()
    found = dict[str, Any]()
    for work in works(data):
        fill(work, options.n)
        found[work.name] = parity(official, work)
    result = {
        "official": {
            "repository": "OSU-NLP-Group/TravelPlanner",
            "commit": official.commit,
            "of": official.date,
        },
        "verdicts": sum(one["verdicts"] for one in found.values()),
        "different": sum(one["different"] for one in found.values()),
        "splits": found,
        "authors_prompt": prompts(official, data),
        "minutes": round((time.perf_counter() - start) / 60, 1),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
