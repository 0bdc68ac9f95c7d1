"""`genenv check ENVIRONMENT`: what an environment promises, and what it says of one that breaks a promise."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from genenv.cli.app import app
from genenv.config.run import parse_config
from genenv.environments import environment_names, load_environment
from genenv.environments.base import HasParameters
from genenv.evaluation.environment_check import BROKEN, GOOD, POOR, Finding, Pace, check_environment, verdict
from genenv.progress import Silent

ROOT = Path(__file__).parents[2]


@pytest.fixture
def weekdays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes the example of the page on environments, with something replaced, and names it."""
    page = (ROOT / "docs" / "guides" / "environments.md").read_text(encoding="utf-8")
    example = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[0]

    def write(old: str = "", new: str = "") -> str:
        assert old in example
        (tmp_path / "weekdays.py").write_text(example.replace(old, new), encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()
        monkeypatch.delitem(importlib.sys.modules, "weekdays", raising=False)
        return "weekdays:Weekdays"

    return write


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.slow) if n == "travel" else n
        for n in environment_names()
        if n not in ("dataset", "mixture")  # they have no data of their own
    ],
)
def test_the_environments_that_come_along_keep_their_promises(name: str) -> None:
    config = parse_config({"environment": {"name": name}})
    env = load_environment(name)
    found = list(check_environment(env, config, n=3))
    more = bool(getattr(env, "seats", ())) + isinstance(env, HasParameters)
    assert len(found) == 10 + more
    assert [one.what for one in found if one.state == BROKEN] == []


def test_the_example_of_the_page_keeps_its_promises(weekdays: Any) -> None:
    result = run("check", weekdays(), "--n", 20)
    assert result.exit_code == 0, result.stderr
    assert "solutions that pass when they are played" in result.stdout
    assert "broken" not in result.stdout


@pytest.mark.long
def test_a_part_of_a_slow_environment_ends_in_time_and_says_so() -> None:
    ticks = iter(range(0, 10_000, 10))
    pace = Pace(Silent(), limit_s=25, clock=lambda: next(ticks))
    found = {
        one.what: one
        for one in check_environment(load_environment("travel"), parse_config({}), n=9, pace=pace)
    }
    seeds = found["seeds that are tasks"]
    assert seeds.state == GOOD
    assert seeds.seen == "3 of 3; no more than 3 of 9, as 25 s were over"
    assert "as 25 s were over" in found["an uninformed agent"].seen


GRADES = "return Verdict(reward=float(right), success=right"
BREAKS = [
    ("oracle=(answer,)", 'oracle=("Doomsday",)', "its own solution fails"),
    (GRADES, "return Verdict(reward=1.0, success=True", "passes"),
    ('draft(random.Random(f"seed {i}")', "draft(random.Random()", "seeds() gives others"),
    ("draft(random.Random(i), 2030", "draft(random.Random(), 2030", "held_out() gives others"),
    ("variation(self, seed, rng):", 'variation(self, seed, rng):\n        return {"x": 1}', "0 of 10"),
    (
        "variation(self, seed, rng):",
        "variation(self, seed, rng):\n        return seed.spec",
        "seed unchanged",
    ),
    ("return draft(rng, 2000", "return draft(random.Random(), 2000", "same random numbers"),
    ('"answer": answer}', '"answer": answer, "r": random.random()}', "build makes another task"),
    (
        GRADES,
        "return Verdict(reward=1.0 * right, success=task.payload['answer'] in str(replies)",
        "a reply that lists",
    ),
    (GRADES, "return Verdict(reward=random.random(), success=False", "when it is called again"),
]


@pytest.mark.parametrize(("old", "new", "words"), BREAKS, ids=[words for _, _, words in BREAKS])
def test_a_broken_promise_is_named_and_ends_in_status_1(
    weekdays: Any, old: str, new: str, words: str
) -> None:
    result = run("check", weekdays(old, new), "--n", 10)
    assert result.exit_code == 1, result.stderr
    assert words in result.stdout
    first, *fixes = result.stdout[result.stdout.index("do not train on it yet:") :].splitlines()
    assert first.endswith("checks are broken")
    assert len(fixes) >= 1


def test_the_verdict_says_what_to_do_about_each_finding_that_is_not_good() -> None:
    good = Finding(what="one", state=GOOD, seen="3 of 3")
    poor, broken = (
        Finding(what="two", state=state, seen="2 of 3", fix="add a third") for state in (POOR, BROKEN)
    )
    assert verdict([good]) == "it is ready to be trained on: all 1 checks are good"
    assert verdict([good, poor]) == "it can be trained on; 1 of 2 checks could be better\n- two: add a third"
    assert verdict([broken, poor]).splitlines()[0] == "do not train on it yet: 1 of 2 checks are broken"


def test_tasks_are_listed_and_held_out_ones_can_be_played(weekdays: Any) -> None:
    name = weekdays()
    listed = run("play", name, "--list")
    assert listed.exit_code == 0, listed.stderr
    ids = [line.partition("\t")[0] for line in listed.stdout.splitlines()]
    held_out = [one.id for one in load_environment(name).held_out()]
    assert ids[-len(held_out) :] == held_out
    solved = run("play", name, "--solutions").stdout.splitlines()
    assert [line for line in solved if not line.startswith("\t")] == listed.stdout.splitlines()
    assert len(solved) == 2 * len(ids)  # each has one line of a solution
    assert f"task {held_out[0]};" in run("play", name, "--task", held_out[0]).stdout


SAID = 're.findall("|".join(DAYS), replies[0][:1000]) if replies else []'
SKILLS = '("far" if spec.far else "near",)'


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (SAID, "[replies[0]]", "check raised IndexError"),
        ("reward=float(right)", 'reward=float("nan")', "returns a reward of float nan"),
        (SKILLS, '("far away",)', "returns the skill str 'far away'"),
    ],
)
def test_what_raises_or_returns_the_wrong_thing_is_one_sentence(
    weekdays: Any, old: str, new: str, words: str
) -> None:
    result = run("check", weekdays(old, new), "--n", 10)
    assert result.exit_code == 2
    assert words in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_a_environment_without_held_out_tasks_is_poor_and_not_broken(weekdays: Any) -> None:
    name = weekdays("for i, spec in enumerate(specs)])", "for i, spec in enumerate(specs[:0])])")
    found = {one.what: one.state for one in check_environment(load_environment(name), parse_config({}), n=5)}
    assert found["held-out tasks, apart from the seeds"] == POOR
    assert set(found.values()) <= {POOR, GOOD}


def test_a_task_whose_spec_is_none_of_the_environments_is_broken_and_no_traceback(weekdays: Any) -> None:
    result = run(
        "check",
        weekdays("spec=spec.model_dump(),\n            payload", "spec={},\n            payload"),
        "--n",
        5,
    )
    assert result.exit_code == 1, result.exception
    assert "its spec is none of the environment's (far: Field required)" in result.stdout
