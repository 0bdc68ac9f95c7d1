"""Runs TravelPlanner's official evaluators on plans; `travelplanner_official.py` starts it in their folder.

`python travelplanner_worker.py ASKED ANSWERED` in the official `evaluation` folder. ASKED is a JSON object:
`plans` (pairs of a query and a plan, judged constraint by constraint), `queries` and `submissions` (paths of
files that the official `eval.py` scores, by name). What the official code imports for other ends (gradio,
requests, datasets) is replaced; the queries are those given, so that nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

JsonObject = dict[str, Any]
COMMONSENSE = {
    "within_sandbox": "is_valid_information_in_sandbox",
    "complete_information": "is_not_absent",
    "within_current_city": "is_valid_information_in_current_city",
    "reasonable_route": "is_reasonable_visiting_city",
    "diverse_restaurants": "is_valid_restaurants",
    "diverse_attractions": "is_valid_attractions",
    "non_conflicting_transportation": "is_valid_transportation",
    "minimum_nights": "is_valid_accommodaton",
}
HARD = {
    "room_rule": "is_valid_room_rule",
    "cuisine": "is_valid_cuisine",
    "room_type": "is_valid_room_type",
    "transportation": "is_valid_transportation",
}
"""Name in genenv -> official function; the budget is compared as in the official `evaluation`."""


class Code(NamedTuple):
    """The official modules."""

    commonsense: Any
    hard: Any


def stand_in(name: str, **members: object) -> None:
    module = ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


def prepare(queries: Sequence[JsonObject]) -> None:
    """Replace what is imported for other ends, and let `load_dataset` give the queries."""
    stand_in("gradio", Error=RuntimeError)
    stand_in("requests")
    stand_in("requests.exceptions", SSLError=OSError)
    stand_in("tqdm", tqdm=lambda rows, **_: rows)

    def load_dataset(_: str, split: str, **__: object) -> Mapping[str, list[JsonObject]]:
        return {split: copy.deepcopy(list(queries))}

    stand_in("datasets", load_dataset=load_dataset)
    pandas = importlib.import_module("pandas")
    pandas.set_option("future.infer_string", False)  # columns of texts as they were when the code was written
    remember(pandas)
    sys.path[:0] = [str(Path.cwd()), str(Path.cwd().parent)]


def remember(pandas: Any) -> None:  # noqa: ANN401
    """Let pandas search a column for the same text once only: the tables stay as they are, so answers do.

    The official code searches whole tables for each entry of a plan, some five times over.
    """
    strings: dict[Any, Any] = {}
    found: dict[Any, Any] = {}
    accessor = type(pandas.Series(["a"], dtype=object).str)
    to_type, contains = pandas.Series.astype, accessor.contains

    def astype(column: Any, dtype: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        if dtype is not str:
            return to_type(column, dtype, *args, **options)
        key = (column.name, len(column))
        if key not in strings:
            strings[key] = to_type(column, dtype, *args, **options)
        return strings[key]

    def search(text: Any, pattern: str) -> Any:  # noqa: ANN401
        key = (text._orig.name, len(text._orig), pattern)
        if key not in found:
            found[key] = contains(text, pattern)
        return found[key]

    pandas.Series.astype, accessor.contains = astype, search


def verdict(check: Callable[[JsonObject, Any], Sequence[object]], query: JsonObject, plan: object) -> object:
    """True, False, None where nothing is asked for, or the name of what it raised."""
    try:
        return check(query, plan)[0]
    except Exception as error:  # noqa: BLE001 - whatever their code raises is what is measured
        return type(error).__name__


def judged(query: JsonObject, plan: object, code: Code) -> JsonObject:
    """The verdict of each constraint that `eval.py` asks for: none without a plan, hard ones not always."""
    if not plan:
        return {}
    found = {name: verdict(getattr(code.commonsense, of), query, plan) for name, of in COMMONSENSE.items()}
    if found["within_sandbox"] is True and found["complete_information"] is True:
        found |= {name: verdict(getattr(code.hard, of), query, plan) for name, of in HARD.items()}

        def budget(query: JsonObject, plan: object) -> tuple[bool]:
            return (bool(code.hard.get_total_cost(query, plan) <= query["budget"]),)

        found["budget"] = verdict(budget, query, plan)
    return found


def main() -> None:
    asked, answered = map(Path, sys.argv[1:])
    work = json.loads(asked.read_text(encoding="utf-8"))
    prepare(work["queries"])
    with contextlib.redirect_stdout(io.StringIO()):
        whole = importlib.import_module("eval")
        code = Code(
            commonsense=importlib.import_module("commonsense_constraint"),
            hard=importlib.import_module("hard_constraint"),
        )
        result = {
            "plans": [judged(query, plan, code) for query, plan in work["plans"]],
            "scores": {
                name: whole.eval_score(work["split"], path)[0] for name, path in work["submissions"].items()
            },
        }
    answered.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
