"""Holds genenv's TravelPlanner to what is known of the benchmark, on all of its real data.

1. The 45 plans by people meet everything: all six numbers are 100%, as submissions and as replies in three
   forms (JSON, Python, lines).
2. Edits of these plans (`tests/evaluation/travelplanner/edits.py`) break one constraint each, of each of the
   13. Where there are too few, plans by the solver for the validation queries are edited too.
3. The solver's plans for the validation queries meet everything.
4. The authors' example submission gets the six numbers.

Prints one JSON object. `GENENV_DATA=... python bench/parity_travelplanner.py`
"""

from __future__ import annotations

import ast
import importlib.util
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from genenv.domains.travel.constraints import COMMONSENSE, HARD, score
from genenv.domains.travel.solver import solve
from genenv.domains.travel.trips import written
from genenv.evaluation.base import Graded, Item
from genenv.evaluation.data import DataFolder
from genenv.evaluation.travelplanner import TravelPlanner
from genenv.evaluation.travelplanner.loading import annotated_plans
from genenv.evaluation.travelplanner.prompts import NAMES

WANTED = 20
"""Edits of each kind."""
FIRST = {"within_sandbox", "complete_information"}
"""Without these the hard constraints are not looked at: they fall with them, by definition."""
Plan = list[dict[str, Any]]


def edits() -> Any:  # noqa: ANN401
    """The tests' edits, as a module."""
    path = Path(__file__).parents[1] / "tests" / "evaluation" / "travelplanner" / "edits.py"
    spec = importlib.util.spec_from_file_location("travelplanner_edits", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def lines(plan: Plan) -> str:
    """A plan in the authors' lines."""
    days = [
        "\n".join([f"Day {number}:", *(f"{name}: {day[key]}" for key, name in NAMES.items())])
        for number, day in enumerate(plan, 1)
    ]
    return "\n\n".join(days)


def six(bench: TravelPlanner, graded: Sequence[Graded]) -> dict[str, float]:
    """The headline and the authors' six numbers, in percent."""
    return {figure.name: round(100 * figure.value, 2) for figure in bench.figures(graded)[:7]}


def oracle(items: Sequence[Item]) -> Iterator[tuple[Item, Plan]]:
    """The solver's plans, where it finds one within the budget."""
    for item in items:
        solution = solve(item.data.query, item.data.database)
        if solution is not None and solution.cost <= item.data.query.budget:
            yield item, written(solution.trip)


def flips(
    bench: TravelPlanner, people: Sequence[tuple[Item, Plan]], more: Sequence[tuple[Item, Plan]]
) -> dict[str, Any]:
    """Of each kind of edit: how many break their constraint alone, with what depends on it, or otherwise."""
    module, found = edits(), dict[str, Any]()
    for kind, edit in module.EDITS.items():
        counts: dict[str, int] = dict.fromkeys(
            ("of_people", "of_solver", "exactly", "with_dependants", "otherwise"), 0
        )
        rng, wrong = random.Random(kind), list[str]()
        for source, bases in (("of_people", people), ("of_solver", more)):
            for item, plan in bases:
                if source == "of_solver" and sum(counts[of] for of in ("of_people", "of_solver")) >= WANTED:
                    break
                question = item.data
                for edited in edit(module.Base(question.query, plan, question.database), rng):
                    counts[source] += 1
                    verdict = outcome(bench, item, edited, kind)
                    counts[verdict] += 1
                    if verdict == "otherwise":
                        problems = score(question.query, edited, question.database).problems
                        wrong.append(f"{item.id}: {dict(problems)}")
        found[kind] = {**counts, **({"wrong": wrong} if wrong else {})}
    return found


def outcome(bench: TravelPlanner, item: Item, plan: Plan, kind: str) -> str:
    """What an edit did to the verdicts."""
    measures = bench.grade(item, plan).measures
    fallen = {name for name in (*COMMONSENSE, *HARD) if measures.get(name) == 0}
    if fallen == {kind}:
        return "exactly"
    dependants = {name for name in HARD if name in measures}
    return "with_dependants" if kind in FIRST and fallen == {kind, *dependants} else "otherwise"


def main() -> None:
    """Measure all of it."""
    data, bench = DataFolder.from_environment(), TravelPlanner()
    start = time.perf_counter()
    validation = bench.load(data, "validation")
    load_s = time.perf_counter() - start
    train = bench.load(data, "train")
    plans: list[Plan] = [
        [day for day in ast.literal_eval(text)[1] if day] for text in annotated_plans(data, "train")
    ]
    people = list(zip(train, plans, strict=True))
    forms = {"submission": plans, "json": list(map(json.dumps, plans)), "python": list(map(str, plans))}
    forms["lines"] = list(map(lines, plans))
    solved = list(oracle(validation))
    example = [value["plan"] for _, value in data.json_lines("travelplanner/example_evaluation.jsonl")]
    start = time.perf_counter()
    graded = [(item, bench.grade(item, plan)) for item, plan in zip(validation, example, strict=True)]
    grade_s = time.perf_counter() - start
    start = time.perf_counter()
    for item, text in zip(train, forms["json"], strict=True):
        bench.grade(item, text)
    read_s = time.perf_counter() - start
    result = {
        "items": {"validation": len(validation), "train": len(train)},
        "load_s": round(load_s, 3),
        "grade_items_per_s": round(len(example) / grade_s),
        "grade_replies_per_s": round(len(train) / read_s),
        "people": {
            form: six(bench, [(item, bench.grade(item, plan)) for item, plan in zip(train, of, strict=True)])
            for form, of in forms.items()
        },
        "edits": flips(bench, people, solved),
        "solver": {
            "within_budget": len(solved),
            **six(bench, [(item, bench.grade(item, json.dumps(plan))) for item, plan in solved]),
        },
        "example_evaluation": six(bench, graded),
        "figures": len(bench.figures(graded)),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
