from __future__ import annotations

import inspect
from collections.abc import Sequence

import pytest

from genenv.chat.assistant import Talk
from genenv.config.run import parse_config
from genenv.config.variants import with_variant
from genenv.environments import environment_config
from genenv.errors import UsageError, spelled
from genenv.evaluation.base import Benchmark, Grade, Item
from genenv.evaluation.config import BENCHMARKS, OTHERS, benchmark_class, load_evaluation_config
from genenv.evaluation.data import DataFolder
from genenv.types import Json
from typed import run

MEMBERS = {name for name in vars(Benchmark) if not name.startswith("_")} | set(Benchmark.__annotations__)


@pytest.mark.parametrize("name", [*BENCHMARKS, *OTHERS])
def test_a_benchmark_has_all_that_one_must_have(name: str) -> None:
    made = benchmark_class(name)()
    assert [member for member in MEMBERS if not hasattr(made, member)] == []
    assert made.name == name
    assert next(iter(made.splits))
    assert made.max_tokens > 0
    assert inspect.iscoroutinefunction(made.attempt)


def test_a_wrong_name_lists_the_right_ones() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'bfcl'\? known: alfworld, all, api-bank, bamboogle"):
        benchmark_class("bfcll")


def test_all_are_the_five_benchmarks_of_the_field() -> None:
    assert sorted(BENCHMARKS) == ["alfworld", "api-bank", "bamboogle", "bfcl", "travelplanner"]
    assert list(OTHERS) == ["held-out"]


def test_items_that_do_not_fit_count_as_0_in_every_measure() -> None:
    class Plain(Benchmark):
        def load(self, data: DataFolder, split: str) -> Sequence[Item]:
            raise NotImplementedError

        async def attempt(self, item: Item, talk: Talk) -> Json:
            raise NotImplementedError

        def grade(self, item: Item, answer: Json) -> Grade:
            raise NotImplementedError

    with pytest.raises(TypeError, match="abstract"):
        Benchmark()  # type: ignore[abstract]
    plain = Plain()
    items = [Item(id=str(n), groups={}, data=None) for n in range(4)]
    right = Grade(score=1.0, explanation="", measures={"f1": 1.0})
    graded = [(items[0], right), *((item, plain.unanswered(item, "too long")) for item in items[1:])]
    values = {figure.name: (figure.value, figure.items) for figure in plain.figures(graded)}
    assert values == {"accuracy": (0.25, 4), "f1": (0.25, 4)}


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("api_bank", "api-bank"),
        ("API-Bank", "api-bank"),
        ("travel_planner", "travelplanner"),
        ("held_out", "held-out"),
        ("heldout", "held-out"),
        ("alfworld", "alfworld"),
    ],
)
def test_a_name_is_the_same_however_its_words_are_joined(typed: str, name: str) -> None:
    assert benchmark_class(typed) is benchmark_class(name)


def test_names_of_all_registries_are_read_alike() -> None:
    assert environment_config("tool-calling") is environment_config("tool_calling")
    assert parse_config({"environment": {"name": "Tool-Calling"}}).environment.name == "tool_calling"
    assert with_variant({}, "Random+shuffled") == with_variant({}, "random+shuffled")
    assert load_evaluation_config(["api-bank.form=authors"]) == load_evaluation_config(
        ["api_bank.form=authors"]
    )
    assert run("export_env", "--help").exit_code == run("exportenv", "--help").exit_code == 0
    assert spelled("a_b", ["a-b", "a_b", "ab"]) == "a_b"
    assert spelled("A b", ["a-b", "ab"]) == "A b"
