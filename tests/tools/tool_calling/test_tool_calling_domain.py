"""The apps as an environment: who wins and who does not, what a simulator may write, worlds of some apps."""

from __future__ import annotations

import random
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from genenv.environments.common import at_random
from genenv.environments.wrappers import ByParameters
from genenv.gate.gate import base_tasks, examined
from genenv.tools.calls import format_calls
from genenv.tools.check import calls_of
from genenv.tools.spec import Program
from genenv.tools.tool_calling.environment import App, ToolCalling, ToolCallingConfig, replayed
from genenv.types import JsonObject, Lineage, Origin, Rejection, RejectReason, Task

ENVIRONMENT = ToolCalling()
SOME = ToolCalling(ToolCallingConfig(apps=("bank", "calendar", "convert", "notes")))


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return list(base_tasks(ENVIRONMENT, ENVIRONMENT.seeds()[:150], seed=0).values())


def test_solutions_win_and_nothing_silence_and_random_calls_do_not(tasks: list[Task]) -> None:
    for task in tasks:
        assert ENVIRONMENT.check(task, task.oracle).reward == 1
        for replies in ((), ("",), ENVIRONMENT.random_replies(task, random.Random(task.id))):
            assert ENVIRONMENT.check(task, replies).reward == 0


def test_independent_calls_may_come_in_any_order(tasks: list[Task]) -> None:
    several = [task for task in tasks if task.spec["n_calls"] == 3 and task.payload["mode"] == "single"]
    assert len(several) > 5
    reversed_ones = 0
    for task in several:
        calls = calls_of(task.payload, "calls")
        reversed_ones += ENVIRONMENT.check(task, (format_calls(calls[::-1], "python"),)).success
        assert not ENVIRONMENT.check(task, (format_calls(calls[1:], "python"),)).success
    assert reversed_ones >= 0.8 * len(several)  # a folder is another one after a file was made in it


def test_a_gap_wants_words_and_no_call(tasks: list[Task]) -> None:
    gaps = {str(task.payload["gap"]): task for task in tasks if task.payload["gap"] != "none"}
    assert set(gaps) == {"missing_info", "no_tool"}
    for gap, task in gaps.items():
        assert ENVIRONMENT.check(task, ("I cannot do that.",)).success
        assert ENVIRONMENT.check(task, ("Which one do you mean?",)).success is (gap == "missing_info")
        assert not ENVIRONMENT.check(task, ("Done.",)).success
        assert not ENVIRONMENT.check(task, ('get_balance(account="savings")',)).success
        assert not ENVIRONMENT.check(task, ('I cannot: get_balance(account="savings")',)).success
        named = calls_of(task.payload, "calls")[0].tool
        assert (named in task.payload["tools"]) is (gap == "missing_info")


@pytest.mark.parametrize(
    ("words", "declines", "asks"),
    [
        ("There isn't a tool for that.", True, True),
        ("I lack a tool for that.", True, True),
        ("What should its title be?", False, True),
        ("Please tell me the amount.", False, True),
        ("What?", False, False),
        ("Done, let me know if you need anything else.", False, False),
        ("Your balance is 2050. Anything else?", False, False),
        ("I don't see why not, it is done.", False, False),
    ],
)
def test_what_is_said_where_nothing_can_be_done_has_to_say_so(
    words: str, declines: bool, asks: bool, tasks: list[Task]
) -> None:
    gaps = {str(task.payload["gap"]): task for task in tasks}
    assert ENVIRONMENT.check(gaps["no_tool"], (words,)).success is declines
    assert ENVIRONMENT.check(gaps["missing_info"], (words,)).success is asks


@pytest.mark.long
def test_to_guess_what_is_missing_is_no_answer() -> None:
    several = ToolCalling(ToolCallingConfig(mode="multi"))
    recipes, said = several.graph.recipes, "Which one do you mean?"
    lacking = {
        calls_of(task.payload, "calls")[0].tool: task
        for task in base_tasks(several, several.seeds(), seed=0).values()
        if task.payload["gap"] == "missing_info"
    }
    name, task = next((name, task) for name, task in lacking.items() if not recipes[name].writes)
    assert several.check(task, (said,)).success
    verdict = several.check(task, (format_calls(calls_of(task.payload, "calls"), "python"), said))
    assert not verdict.success
    assert f"It calls {name}" in verdict.explanation


def test_calls_beyond_those_of_the_solution_win_nothing_in_one_reply(tasks: list[Task]) -> None:
    task = next(one for one in tasks if one.spec["n_calls"] == 1 and one.oracle[0].startswith("get_balance("))
    every = "\n".join(f'get_balance(account="{account}")' for account in ("checking", "savings"))
    verdict = ENVIRONMENT.check(task, (every,))
    assert not verdict.success
    assert "2 calls, not 1" in verdict.explanation


def test_texts_may_differ_in_case_and_in_their_last_full_stop(tasks: list[Task]) -> None:
    task = next(one for one in tasks if one.oracle[0].count("\n") == 0 and 'text="' in one.oracle[0])
    call = calls_of(task.payload, "calls")[0]
    for text, right in ((f"{call.args['text']}.".upper(), True), ("something else", False)):
        reply = format_calls([replace(call, args={**call.args, "text": text})], "python")
        assert ENVIRONMENT.check(task, (reply,)).success is right


def test_words_for_two_calls_say_what_they_do() -> None:
    """A text that says 30 minutes, or the cheapest, must not stand for another call."""
    seeds = [one for one in ENVIRONMENT.seeds() if _calls(one.spec) == ["find_free_slot", "create_event"]]
    spec = Program.model_validate(seeds[0].spec)
    slot, event = spec.calls
    for change in (
        {"args": {**event.args, "minutes": 61}},
        {"args": {name: value for name, value in event.args.items() if name != "minutes"}},
        {"uses": tuple(use.model_copy(update={"path": ("end",)}) for use in event.uses)},
    ):
        program = spec.model_copy(update={"calls": (slot, event.model_copy(update=change))})
        refused = ENVIRONMENT.build(
            program, task_id="t", lineage=Lineage(origin=Origin.SEED), rng=random.Random(0)
        )
        assert isinstance(refused, Rejection), change
        assert "no wording of find_free_slot and create_event" in refused.explanation


def _calls(spec: JsonObject) -> list[str]:
    return [step.tool for step in Program.model_validate(spec).calls]


def test_the_agent_is_told_the_day_the_tools_and_that_some_things_cannot_be_done(tasks: list[Task]) -> None:
    told = tasks[0].messages[0].content
    assert "If no tool fits or a value is missing, say so instead. Today is " in told
    for name in tasks[0].payload["tools"]:
        assert f"\n{name}(" in told
    assert len(tasks[0].payload["tools"]) == tasks[0].spec["n_tools"]


@pytest.mark.parametrize("mode", ["single", "multi"])
def test_modes_decide_how_tasks_are_played(mode: str) -> None:
    env = ToolCalling(ToolCallingConfig(mode=mode))
    some = base_tasks(env, env.seeds()[:60], seed=0).values()
    assert {task.payload["mode"] for task in some} == {mode}
    for task in some:
        assert examined(env, task, random.Random(0)) is None
    assert any(seed.spec["chained"] for seed in env.seeds()) is (mode == "multi")
    assert len(ToolCalling(ToolCallingConfig(mode="single")).seeds()) == 544 - round(0.08 * 544)


def test_the_soft_reward_is_for_calls_that_are_near(tasks: list[Task]) -> None:
    soft = ToolCalling(ToolCallingConfig(reward="soft", success_threshold=0.5))
    task = next(one for one in tasks if one.spec["n_calls"] == 2 and one.payload["mode"] == "single")
    first = calls_of(task.payload, "calls")[:1]
    half = soft.check(task, (format_calls(first, "python"),))
    assert half.reward == pytest.approx(0.5)
    assert half.success
    assert soft.check(task, task.oracle).reward == 1
    assert ENVIRONMENT.check(task, (format_calls(first, "python"),)).reward == 0


def test_the_grammar_takes_seeds_variations_and_parameters(
    written_under: Callable[[JsonObject, JsonObject], bool],
) -> None:
    rng, by_parameters = random.Random(0), ByParameters(ENVIRONMENT)
    for seed in ENVIRONMENT.seeds()[:3]:
        schema = ENVIRONMENT.spec_schema(seed)
        assert written_under(schema, seed.spec)
        assert written_under(schema, ENVIRONMENT.variation(seed, rng))
        other = {**seed.spec, "before": [{"tool": "begin", "args": {"state": 20}, "uses": []}]}
        assert not written_under(schema, other)
        parameters = at_random(ENVIRONMENT.parameter_options(seed), rng)
        assert written_under(by_parameters.spec_schema(seed), parameters)


@pytest.mark.long
def test_variations_are_tasks_that_pass_the_gate_and_are_of_the_training_side() -> None:
    rng, passed = random.Random(1), 0
    lineage = Lineage(origin=Origin.GENERATED, seed_id="s", context_id="c", generation_id="g")
    for seed in ENVIRONMENT.seeds()[:60]:
        program = Program.model_validate(ENVIRONMENT.variation(seed, rng))
        assert program.before == Program.model_validate(seed.spec).before
        task = ENVIRONMENT.build(program, task_id="t", lineage=lineage, rng=rng)
        passed += isinstance(task, Task) and examined(ENVIRONMENT, task, rng) is None
    assert passed >= 58


def test_what_is_kept_for_measuring_is_refused_in_training() -> None:
    lineage = Lineage(origin=Origin.SEED)
    held = next(program for program in ENVIRONMENT.bundle.held_out.values() if program.n_calls == 2)
    for program in (
        held,
        held.model_copy(update={"before": next(iter(ENVIRONMENT.bundle.base.values())).before}),
    ):
        refused = ENVIRONMENT.build(program, task_id="t", lineage=lineage, rng=random.Random(0))
        assert isinstance(refused, Rejection)
        assert refused.reason is RejectReason.HELD_OUT


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"before": []}, "a task begins with begin and a state there is"),
        ({"before": [{"tool": "begin", "args": {"state": 99}}]}, "a task begins with begin"),
        ({"gap": "missing_info"}, "lacks not one value"),
        ({"chained": True}, "chained is True"),
        ({"calls": [{"tool": "begin", "args": {"state": 1}}]}, "there is no tool 'begin'"),
    ],
)
def test_a_program_that_is_none_is_refused_in_a_sentence(change: JsonObject, sentence: str) -> None:
    seed = next(one for one in ENVIRONMENT.seeds() if one.skills[1:] == ("calls:1",))
    program = Program.model_validate({**seed.spec, **change})
    refused = ENVIRONMENT.build(
        program, task_id="t", lineage=Lineage(origin=Origin.SEED), rng=random.Random(0)
    )
    assert isinstance(refused, Rejection)
    assert sentence in refused.explanation


def test_programs_made_wrong_are_refused() -> None:
    rng, made = random.Random(2), 0
    mutants = runpy.run_path(str(Path(__file__).with_name("mutations.py")))["mutants"]
    for seed in ENVIRONMENT.seeds()[:40]:
        for kind, spec in mutants(seed.spec, rng):
            made += 1
            try:
                program = Program.model_validate(spec)
            except ValidationError:
                continue
            lineage = Lineage(origin=Origin.SEED, seed_id=seed.id)
            task = ENVIRONMENT.build(program, task_id="t", lineage=lineage, rng=rng)
            assert isinstance(task, Rejection) or examined(ENVIRONMENT, task, rng) is not None, (kind, spec)
    assert made > 400


def test_all_apps_can_be_named() -> None:
    assert set(get_args(App)) == set(ENVIRONMENT.bundle.about.groups)
    assert ToolCallingConfig().apps == get_args(App)


@pytest.mark.long
def test_tasks_of_some_apps_ask_for_and_show_tools_of_these_only() -> None:
    app_of = {name: app for app, names in ENVIRONMENT.bundle.about.groups.items() for name in names}
    tasks = [*base_tasks(SOME, SOME.seeds(), seed=0).values(), *SOME.held_out()[:60]]
    assert len(tasks) == len(SOME.seeds()) + 60
    for task in tasks:
        assert {app_of[str(name)] for name in task.payload["tools"]} <= set(SOME.settings.apps)
        assert examined(SOME, task, random.Random(0)) is None
    rng = random.Random(1)
    for seed in SOME.seeds()[:30]:
        program = Program.model_validate(SOME.variation(seed, rng))
        assert {app_of[step.tool] for step in program.calls} <= set(SOME.settings.apps)
        for one in SOME.parameter_options(seed):
            assert {
                app_of[name] for plan in one["tools"] for name in plan.replace(">", "+").split("+")
            } <= set(SOME.settings.apps)


@pytest.mark.long
def test_what_is_of_another_app_is_refused() -> None:
    mail = next(seed for seed in ENVIRONMENT.seeds() if "email" in seed.skills)
    lineage = Lineage(origin=Origin.SEED)
    outcome = SOME.build(
        Program.model_validate(mail.spec), task_id="t", lineage=lineage, rng=random.Random(0)
    )
    assert isinstance(outcome, Rejection)
    assert outcome.reason is RejectReason.SCHEMA


def test_calls_of_a_trajectory_are_executed_again_and_their_changes_are_named() -> None:
    settings = {"environment.name": "tool_calling", "environment.mode": "auto", "policy.model": "tiny"}
    payload = {"before": [{"tool": "begin", "args": {"state": 24}}], "tools": ["add_note", "set_volume"]}
    calls = 'add_note(title="Marathon", text="More jars")\nset_volume(level=35)'
    found = replayed(settings, payload, [calls, "set_volume(level=35)", "delete_file(path='x')", "Done."])
    assert found is not None
    assert [changed for _, _, changed in found] == [
        [("notes.notes.Marathon", "", '"More jars"')],
        [("music.volume", "99", "35")],
        [],
        [],
    ]
    assert found[0][1] == '{"title":"Marathon","status":"added"}'
    assert "There is no tool" in found[-1][1]


@pytest.mark.parametrize(
    ("settings", "payload"),
    [
        ({"environment.name": "household"}, {"before": [], "tools": []}),
        ({"environment.apps": ["bank"]}, {"before": [], "tools": []}),
        ({}, {"before": [], "tools": ["rm"]}),
        ({}, {"before": [{"tool": "rm", "args": {}}], "tools": []}),
        ({}, {"before": "x", "tools": []}),
        ({}, {"tools": []}),
        ({}, "damaged"),
        ({}, None),
    ],
)
def test_what_cannot_be_executed_again_gives_nothing(settings: dict[str, Any], payload: Any) -> None:
    assert replayed({"environment.name": "tool_calling"} | settings, payload, ["set_volume(level=1)"]) is None
