"""Runs TravelPlanner's official evaluators on plans; `travelplanner_official.py` starts it in a folder of theirs.

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
from typing import Any

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


def stand_in(name: str, **members: Any) -> None:
    module = ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


def prepare(queries: Sequence[JsonObject]) -> None:
    """Replace what is imported for other ends, and let `load_dataset` give the queries."""
    stand_in("gradio", Error=RuntimeError)
    stand_in("requests")
    stand_in("requests.exceptions", SSLError=OSError)
    stand_in("tqdm", tqdm=lambda rows, **_: rows)

    def load_dataset(_: str, split: str, **__: Any) -> Mapping[str, list[JsonObject]]:
        return {split: copy.deepcopy(list(queries))}

    stand_in("datasets", load_dataset=load_dataset)
    pandas = importlib.import_module("pandas")
    pandas.set_option("future.infer_string", False)  # columns of texts as they were when the code was written
    sys.path[:0] = [str(Path.cwd()), str(Path.cwd().parent)]


def verdict(check: Callable[[JsonObject, Any], Sequence[Any]], query: JsonObject, plan: Any) -> Any:
    """True, False, None where nothing is asked for, or the name of what it raised."""
    try:
        return check(query, plan)[0]
    except Exception as error:  # noqa: BLE001 - whatever their code raises is what is measured
        return type(error).__name__


def judged(query: JsonObject, plan: Any, commonsense: Any, hard: Any) -> JsonObject:
    """The verdict of each constraint; the hard ones only where `eval.py` asks for them."""
    found = {name: verdict(getattr(commonsense, of), query, plan) for name, of in COMMONSENSE.items()}
    if found["within_sandbox"] is True and found["complete_information"] is True:
        found |= {name: verdict(getattr(hard, of), query, plan) for name, of in HARD.items()}

        def budget(query: JsonObject, plan: Any) -> tuple[bool]:
            return (bool(hard.get_total_cost(query, plan) <= query["budget"]),)

        found["budget"] = verdict(budget, query, plan)
    return found


def main() -> None:
    asked, answered = map(Path, sys.argv[1:])
    work = json.loads(asked.read_text(encoding="utf-8"))
    prepare(work["queries"])
    with contextlib.redirect_stdout(io.StringIO()):
        whole = importlib.import_module("eval")
        commonsense = importlib.import_module("commonsense_constraint")
        hard = importlib.import_module("hard_constraint")
        result = {
            "plans": [judged(query, plan, commonsense, hard) for query, plan in work["plans"]],
            "scores": {
                name: whole.eval_score(work["split"], path)[0] for name, path in work["submissions"].items()
            },
        }
    answered.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
