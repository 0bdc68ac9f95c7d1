"""A user who answers: the request omits a value, and the user gives it when the agent asks for it."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from bundles import asked, call
from genenv.backends.scripted import ScriptedSampler
from genenv.environments.base import SeatView
from genenv.environments.stepwise import StepwiseRollout
from genenv.gate.gate import base_tasks, examined
from genenv.progress import Silent
from genenv.rollout.driver import Player, Sampling, demonstration, roll_out_seats
from genenv.tools.bundle import Bundle
from genenv.tools.bundle_check import check_tools
from genenv.tools.check import UNKNOWN
from genenv.tools.environment import Tools, parameters_of
from genenv.tools.generate.make_bundle import Asked, redraw
from genenv.tools.language.declining import asks_for
from genenv.tools.settings import ToolsConfig
from genenv.tools.spec import Program
from genenv.tools.tool_calling.environment import ToolCalling
from genenv.tools.worlds.base import Tool
from genenv.types import Json, JsonObject, Lineage, Origin, Rejection, Task
from sharing import Shared

ASK = "Which order do you mean?"
CANCEL = 'cancel_order(order_id="O-5003")'
REFUND = Tool(
    name="refund_order",
    description="Refund part or all of an order.",
    parameters={
        "type": "object",
        "properties": {"order_id": {"type": "string"}, "amount": {"type": "number"}},
        "required": ["order_id", "amount"],
    },
)


@pytest.fixture(scope="module")
def folder(desk_bundle: Path, shared: Shared) -> Path:
    """The desk, of which the user omits a value in some tasks."""

    def make(path: Path) -> None:
        shutil.copytree(desk_bundle, path)
        about = (path / "bundle.toml").read_text()
        (path / "bundle.toml").write_text(about.replace("user_answers = false", "user_answers = true"))
        redraw(path, Asked(base=24, held_out=8, seed=3), examined, Silent())

    return shared("desk-of-user-answers", make)


@pytest.fixture(scope="module")
def env(folder: Path) -> Iterator[Tools]:
    found = Tools(folder=folder)
    yield found
    found.world.close()


def built(env: Tools, *calls: tuple[str, Mapping[str, Json]], omits: str, **spec: Any) -> Task | Rejection:
    made = [call(tool, **args) for tool, args in calls]
    return asked(env, *made, gap="user_answers", omits=omits, **spec)


@pytest.fixture
def task(env: Tools) -> Task:
    found = built(env, ("cancel_order", {"order_id": "O-5003"}), omits="order_id")
    assert isinstance(found, Task)
    return found


def test_the_agent_asks_is_told_and_does_what_was_wanted(env: Tools, task: Task) -> None:
    assert "O-5003" not in task.messages[-1].content
    assert "If a value is missing, ask for it." in task.messages[0].content
    rollout = StepwiseRollout(env, task)
    (said,) = rollout.reply("I can do that. What is the id of the order?")
    assert (said.role, said.content) == ("user", 'The order id is "O-5003".')
    assert rollout.reply(CANCEL)[0].role == "tool"
    assert rollout.reply("It is cancelled.") == ()
    assert rollout.done
    assert rollout.verdict().success


@pytest.mark.parametrize(
    ("said", "told", "reward"),
    [("It is o-5003, thanks.", True, 1.0), ("No idea.", False, 0.5), (None, True, 1.0)],
)
def test_the_user_is_a_seat(env: Tools, task: Task, said: str | None, told: bool, reward: float) -> None:
    def agent(text: str, rng: random.Random) -> str:
        return [ASK, CANCEL, "Done."][text.count("[assistant]") - 1]

    heard = list[str]()

    def user(text: str, rng: random.Random) -> str:
        heard.append(text)
        return str(said)

    players = {
        seat: Player(
            sampler=ScriptedSampler(script),
            sampling=Sampling(temperature=1.0, max_new_tokens=99, timeout_s=60, seed=1),
            agent=seat,
        )
        for seat, script in {"agent": agent, "user": user}.items()
        if seat == "agent" or said is not None
    }
    groups = asyncio.run(roll_out_seats(env, players, [task], rollouts=1))
    (trace,) = groups[0].traces
    assert trace.success
    assert trace.messages[1].content == (said or 'The order id is "O-5003".')
    if said is not None:
        (trace,) = groups[1].traces
        assert (trace.reward, trace.success) == (reward, told)
        assert task.messages[-1].content in heard[0]
        assert 'The order id is "O-5003". Answer the assistant' in heard[0]
        assert heard[0].endswith(f"{ASK}\n[assistant] ")


def test_the_seat_of_the_user_has_a_demonstration(env: Tools, task: Task) -> None:
    view = SeatView(env, "user")
    seen = asyncio.run(view.seen(task))
    assert seen.oracle == ('The order id is "O-5003".',)
    trace = asyncio.run(demonstration(cast(Any, view), ScriptedSampler(lambda text, rng: ""), seen))
    assert (trace.success, trace.reward) == (True, 1.0), trace.explanation
    assert asyncio.run(SeatView(env, "agent").seen(task)) == task


@pytest.mark.parametrize(
    ("replies", "wrong"),
    [
        ((ASK, CANCEL, "Done."), ""),
        (('get_order(order_id="O-5001")', ASK, CANCEL, "Done."), ""),  # to look something up is no harm
        (("What is your name?", ASK, CANCEL, "Done."), ""),
        ((CANCEL, "Done."), "It calls cancel_order before the user has given the order id."),
        ((CANCEL, ASK, "Done."), "It calls cancel_order before the user has given the order id."),
        (
            ('update_email(customer_id="C-101", email="a@b.c")', ASK, CANCEL, "Done."),
            "It calls update_email before the user has given the order id.",
        ),
        (("Done.", CANCEL), "It does not ask for the order id."),
        (("I cannot do that.", ASK, CANCEL), "It does not ask for the order id."),
        (("What is your name?", "Who are you?", ASK, CANCEL), "It does not ask for the order id."),
        (("What is your name?", "Done.", ASK, CANCEL), "It does not ask for the order id."),
        ((ASK, ASK, CANCEL), "Nothing is called."),
        ((ASK, 'cancel_order(order_id="O-5004")'), "The state differs at orders.O-5003.status"),
        ((f"{ASK}\n{CANCEL}", "Done."), "It calls cancel_order before the user has given the order id."),
        ((*['get_order(order_id="O-5001")'] * 5, ASK, CANCEL), "It does not ask for the order id."),
    ],
)
def test_only_what_is_done_after_the_answer_counts(
    env: Tools, task: Task, replies: Sequence[str], wrong: str
) -> None:
    graded = env.check(task, replies)
    assert graded.success is (not wrong)
    assert not wrong or graded.explanation.startswith(wrong)
    rollout = StepwiseRollout(env, task)
    for reply in replies:
        if rollout.done:
            break
        rollout.reply(reply)
    assert rollout.verdict() == graded


def test_a_question_about_something_else_is_answered_once(env: Tools, task: Task) -> None:
    rollout = StepwiseRollout(env, task)
    assert [one.content for one in rollout.reply("What is your name?")] == [UNKNOWN]
    assert rollout.reply("Who are you?") == ()
    assert rollout.done


@pytest.mark.parametrize(
    ("words", "name", "right"),
    [
        ("How much should I refund?", "amount", True),
        ("Please tell me the amount.", "amount", True),
        ("I need more information: what amount?", "amount", True),
        ("Which order do you mean?", "order_id", True),
        ("Which order do you mean?", "amount", False),
        ("What amount?", "order_id", False),
        ("What is the amount for the order?", "order_id", True),
        ("The amount is missing a currency. Who are you?", "order_id", False),
        ("I refund the amount.", "amount", False),
        ("Which amount should ben.ito@example.com get back?", "amount", True),
        ("Of $29.00, which amount should be refunded?", "amount", True),
        ("Could you share the order id (e.g. 3)?", "order_id", True),
        ("Please give me the order id.", "order_id", True),
        ("I would like to know the order id first.", "order_id", True),
        ("I can share the order with you.", "order_id", False),
        ("", "amount", False),
    ],
)
def test_whether_a_reply_asks_for_a_parameter(words: str, name: str, right: bool) -> None:
    assert asks_for(words, REFUND, name) is right


def test_a_value_is_omitted_only_if_it_cannot_be_found_by_trying(env: Tools) -> None:
    before = [{"tool": "open_ticket", "args": {"customer_id": "C-101", "subject": "lamp"}}]
    ticket = ("close_ticket", {"ticket_id": "T-1", "resolution": "sent"})
    refused = built(env, ticket, omits="ticket_id", before=before)
    assert isinstance(refused, Rejection)
    assert "close_ticket fails whatever else ticket_id is" in refused.explanation
    assert isinstance(built(env, ticket, omits="ticket_id", before=[*before, *before]), Task)
    assert isinstance(built(env, ticket, omits="resolution", before=before), Task)


@pytest.mark.parametrize(
    ("calls", "omits", "why"),
    [
        ([("cancel_order", {"order_id": "O-5003"})], "", "the user gives no value later"),
        ([("cancel_order", {"order_id": "O-5003"})], "reason", "lacks not one value"),
        (
            [("open_ticket", {"customer_id": "C-101", "subject": "lamp", "priority": "low"})],
            "priority",  # it has a default
            "lacks not one value",
        ),
        (
            [("cancel_order", {"order_id": "O-5003"}), ("cancel_order", {"order_id": "O-5004"})],
            "order_id",
            "before the user gives a value",
        ),
    ],
)
def test_programs_whose_user_has_nothing_to_give_are_refused(
    env: Tools, calls: list[tuple[str, dict[str, Json]]], omits: str, why: str
) -> None:
    refused = built(env, *calls, omits=omits)
    assert isinstance(refused, Rejection)
    assert why in refused.explanation


def test_the_request_must_not_say_the_value(env: Tools) -> None:
    task = built(
        env, ("open_ticket", {"customer_id": "C-101", "subject": "customer"}), omits="subject"
    )  # "Open a ticket for a customer"
    assert isinstance(task, Task)
    refused = env.audit(task, random.Random(0))
    assert refused is not None
    assert refused.explanation == "The text says the subject that it should leave out."


@pytest.mark.long
def test_drawn_tasks_pass_every_check(
    env: Tools, written_under: Callable[[JsonObject, JsonObject], bool]
) -> None:
    rng, tasks = random.Random(0), [*base_tasks(env, env.seeds(), seed=0).values(), *env.held_out()]
    asking = [task for task in tasks if task.payload["gap"] == "user_answers"]
    assert len(tasks) == 32
    assert len(asking) >= 6
    assert {task.payload["mode"] for task in tasks} == {"multi"}  # so the format does not tell what to do
    for task in asking:
        assert examined(env, task, rng) is None
        assert env.check(task, task.oracle).success
        assert not env.check(task, task.oracle[1:]).success
        assert "user_answers" in task.skills
    finding = next(one for one in check_tools(env) if one.what == "values that the user gives")
    assert finding.state == "good"
    assert finding.seen.startswith(f"0 of {4 * len(asking)} attempts")
    seed = next(seed for seed in env.seeds() if seed.spec["gap"] == "user_answers")
    assert written_under(env.spec_schema(seed), seed.spec)
    own = parameters_of(Program.model_validate(seed.spec))
    drawn = env.drawn(own, seed, rng)
    assert isinstance(drawn, Program)
    assert (drawn.gap, bool(drawn.omits)) == ("user_answers", True)


def test_the_setting_leaves_such_tasks_out(folder: Path, env: Tools) -> None:
    off = Tools(ToolsConfig(user_answers=False), folder)
    kept = [program for program in off.bundle.base.values() if not program.omits]
    try:
        assert [seed.spec["n_calls"] for seed in off.seeds()] == [program.n_calls for program in kept]
        assert off.omitted is not None
        assert "environment.user_answers is off" in off.omitted
        assert not off.has_gaps
        assert "omits" not in str(off.spec_schema(off.seeds()[0]))
        assert "user_answers" in str(env.parameter_options(env.seeds()[0]))
        assert "user_answers" not in str(off.parameter_options(off.seeds()[0]))
    finally:
        off.world.close()


@pytest.mark.long
def test_a_bundle_with_states_and_wordings_of_its_own_can_have_such_tasks(
    written_under: Callable[[JsonObject, JsonObject], bool],
) -> None:
    env, rng = ToolCalling(), random.Random(0)
    env.bundle = Bundle(env.bundle.path, env.bundle.about.model_copy(update={"user_answers": True}))
    found = list[Task]()
    for seed in list(env.seeds())[:40]:
        for option in env.parameter_options(seed):
            if option.get("gap") == ("user_answers",):
                chosen = {name: rng.choice(list(values)) for name, values in option.items()}
                spec = env.drawn(env.parameters.model_validate(chosen), seed, rng)
                if isinstance(spec, Rejection):
                    continue
                task = env.build(spec, task_id="t", lineage=Lineage(origin=Origin.SEED), rng=rng)
                if isinstance(task, Task) and env.audit(task, rng) is None:
                    found.append(task)
                    assert env.check(task, task.oracle).success
                    assert not env.check(task, task.oracle[1:]).success
                    own = dataclasses.replace(seed, spec=task.spec)
                    assert written_under(env.spec_schema(own), task.spec)
    assert len(found) > 20
    assert any(task.spec["chained"] for task in found)
