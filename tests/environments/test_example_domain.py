"""The example of the page on environments: it is a whole environment, and any module can hold one."""

from __future__ import annotations

import importlib
import random
import re
from pathlib import Path

import pytest

from genenv.config.run import as_tables, parse_config
from genenv.curriculum.settings import CurriculumConfig
from genenv.environments import load_environment
from genenv.environments.base import Environment
from genenv.errors import UsageError
from genenv.gate.gate import Gate, base_tasks
from genenv.types import Lineage, Origin, Rejection, RejectReason, Task

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "environments.md"


@pytest.fixture
def weekdays(tmp_path, monkeypatch) -> Environment:
    example = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )[0]
    assert example.count("\n") < 80
    (tmp_path / "weekdays.py").write_text(example, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    monkeypatch.delitem(importlib.sys.modules, "weekdays", raising=False)
    return load_environment("weekdays:Weekdays")


def test_all_its_seeds_held_out_tasks_and_variations_pass_the_gate(weekdays, toy):
    tasks = base_tasks(weekdays, weekdays.seeds(), seed=0)
    assert len(tasks) == len(weekdays.seeds())
    assert all(weekdays.check(task, task.oracle).success for task in [*tasks.values(), *weekdays.held_out()])
    gate = Gate(weekdays, CurriculumConfig(), seed=0)
    gate.protect(weekdays.held_out())
    texts = [weekdays.spec(**weekdays.variation(seed, random.Random(seed.id))) for seed in weekdays.seeds()]
    generations = [toy.generation(spec.model_dump_json(), name=f"g{i}") for i, spec in enumerate(texts)]
    proposals = gate.admit([toy.context()], generations)
    refused = {p.outcome.reason for p in proposals if isinstance(p.outcome, Rejection)}
    assert refused <= {RejectReason.DUPLICATE}
    assert sum(isinstance(p.outcome, Task) for p in proposals) > 60


def test_its_variations_are_what_its_grammar_lets_through(weekdays, written_under):
    for seed in weekdays.seeds()[:20]:
        assert written_under(weekdays.spec_schema(seed), weekdays.variation(seed, random.Random(seed.id)))


def test_it_refuses_a_day_that_there_is_not(weekdays):
    spec = weekdays.spec(
        far=True, start="2024-02-30", days=40, question="What day is <days> days after <start>."
    )
    built = weekdays.build(spec, task_id="t", lineage=Lineage(origin=Origin.GENERATED), rng=random.Random(0))
    assert isinstance(built, Rejection)
    assert built.reason is RejectReason.EXECUTION


def test_its_name_is_a_setting_that_comes_back(weekdays):
    config = parse_config({"environment": {"name": "weekdays:Weekdays"}})
    assert parse_config(as_tables(config)) == config


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere_at_all:Weekdays", "there is no module 'nowhere_at_all'; is it on PYTHONPATH?"),
        ("weekdays:Weekday", "module 'weekdays' has no function or class 'Weekday'"),
        ("weekdays", "unknown environment"),
        (":Weekdays", "is not of the form package.module:Class"),
        (".weekdays:Weekdays", "is not of the form package.module:Class"),
        ("json:JSONDecoder", "lacks audit, build, check, config"),
    ],
)
def test_a_environment_that_is_not_there_is_named_in_one_sentence(weekdays, name, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        load_environment(name)
