"""From a user's file to checked tasks: what is found out by calling tools, and what the tasks promise."""

from __future__ import annotations

import itertools
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bundles import EXAMPLES, asked, by_hand, call, ledger, made, recipe
from genenv.config.run import load_config
from genenv.environments import load_environment
from genenv.environments.common import Refused, at_random
from genenv.environments.wrappers import ByParameters
from genenv.errors import DataError, GenenvError, UsageError
from genenv.gate.gate import base_tasks, examined
from genenv.simulator.schema_sampling import sample_json
from genenv.tools.audit import audit, misstated
from genenv.tools.bundle import Bundle, comparable
from genenv.tools.bundle_check import check_tools
from genenv.tools.calls import format_calls
from genenv.tools.check import calls_of
from genenv.tools.discover.answers import shown_by
from genenv.tools.discover.nondeterminism import refusing_past
from genenv.tools.environment import Tools
from genenv.tools.generate.make_bundle import Wanted
from genenv.tools.generate.written_tasks import Proposal, program_of
from genenv.tools.language.declining import asks
from genenv.tools.language.said import answers_in, gives, says
from genenv.tools.settings import ToolsConfig
from genenv.tools.spec import Program
from genenv.tools.toolbox import is_for_measuring
from genenv.tools.worlds.base import Outcome
from genenv.tools.worlds.origins import PythonOrigin
from genenv.types import Json, JsonObject, Lineage, Origin, Rejection, RejectReason, Seed, Task


@pytest.fixture(scope="module")
def env(desk_bundle: Path) -> Iterator[Tools]:
    found = load_environment(str(desk_bundle))
    assert isinstance(found, Tools)
    yield found
    found.world.close()


@pytest.fixture(scope="module")
def tasks(env: Tools) -> dict[str, Task]:
    return base_tasks(env, env.seeds(), seed=0)


@pytest.mark.long
def test_how_tools_can_be_called_is_found_out_by_calling_them(desk_bundle: Path) -> None:
    graph = Bundle.open(desk_bundle).graph
    ways = {name: dict(recipe.ways) for name, recipe in graph.recipes.items()}
    assert ways["refund_order"] == {"order_id": "orders.#", "amount": "new"}  # a reason leaves no trace
    assert ways["close_ticket"] == {"ticket_id": "tickets.#", "resolution": "new"}
    assert ways["find_customer"] == {"name": "customers.*.name"}
    assert ways["update_email"] == {"customer_id": "customers.#", "email": "new"}
    assert {name for name, recipe in graph.recipes.items() if not recipe.writes} == {
        *("find_customer", "list_orders", "get_order")
    }
    links = {(link.reader, link.user, link.parameter) for link in graph.links}
    assert ("find_customer", "open_ticket", "customer_id") in links
    assert ("list_orders", "refund_order", "order_id") in links
    assert not graph.failures


@pytest.mark.long
def test_all_tasks_pass_the_gate_and_are_of_many_kinds(env: Tools, tasks: dict[str, Task]) -> None:
    assert (len(tasks), len(env.held_out())) == (60, 20)
    rng = random.Random(0)
    for task in (*tasks.values(), *env.held_out()):
        assert examined(env, task, rng) is None
    assert Counter(task.payload["mode"] for task in tasks.values()).keys() == {"single", "multi"}
    assert {env.steps(task) for task in tasks.values()} == {1, 2, 3}
    assert {task.skills[0] for task in tasks.values()} >= {"find_customer", "refund_order", "close_ticket"}


def test_held_out_calls_are_in_no_task_for_training(env: Tools) -> None:
    held = [Program.model_validate(task.spec) for task in env.held_out()]
    base = [Program.model_validate(seed.spec) for seed in env.seeds()]
    assert all(map(is_for_measuring, held))
    assert not any(map(is_for_measuring, base))
    refused = env.build(held[0], task_id="t", lineage=Lineage(origin=Origin.SEED), rng=random.Random(0))
    assert isinstance(refused, Rejection)
    assert refused.reason is RejectReason.HELD_OUT


def test_another_way_to_the_same_end_counts_and_more_than_was_asked_does_not(env: Tools) -> None:
    program = Program.model_validate(
        {
            "n_calls": 1, "chained": False, "answer": False, "n_tools": 8,
            "calls": [{"tool": "refund_order", "args": {"order_id": "O-5003", "amount": 30}}],
        }
    )  # fmt: skip
    origin = Origin.HELD_OUT if is_for_measuring(program) else Origin.SEED
    task = env.build(program, task_id="t", lineage=Lineage(origin=origin), rng=random.Random(0))
    assert isinstance(task, Task)

    def earns(*calls: tuple[str, dict[str, object]]) -> bool:
        reply = format_calls([call(name, **args) for name, args in calls], "python")
        return env.check(task, (reply,)).success

    whole = ("refund_order", {"order_id": "O-5003", "amount": 30})
    half = ("refund_order", {"order_id": "O-5003", "amount": 15})
    assert earns(whole)
    assert earns(half, half)
    assert earns(
        ("get_order", {"order_id": "O-5003"}), whole, ("refund_order", {"order_id": "O-1", "amount": 1})
    )
    assert not earns(half)
    assert not earns(whole, ("cancel_order", {"order_id": "O-5003"}))
    assert env.check(
        task, (format_calls([call("refund_order", order_id="O-5003", amount=30.5)], "python"),)
    ).explanation == ("The state differs at orders.O-5003.refunded, which is 30.5, not 30.0.")


@pytest.mark.long
def test_leaving_out_or_spoiling_any_call_fails(env: Tools, tasks: dict[str, Task]) -> None:
    spoiled = passed = 0
    rng = random.Random(1)
    for task in tasks.values():
        calls = calls_of(task.payload, "calls")
        for number, one in enumerate(calls):
            if not env.graph.recipes[one.tool].writes:
                continue
            shorter = [*calls[:number], *calls[number + 1 :]]
            spoiled += 1
            passed += succeeds(env, task, shorter)
            name = rng.choice([name for name, value in one.args.items() if isinstance(value, str)])
            other = call(one.tool, **{**one.args, name: f"{one.args[name]}x"})
            spoiled += 1
            passed += succeeds(env, task, [*calls[:number], other, *calls[number + 1 :]])
    assert spoiled > 80
    assert passed == 0


def succeeds(env: Tools, task: Task, calls: list) -> bool:
    if task.payload["mode"] == "single":
        return env.check(task, (format_calls(calls, "python"),)).success
    return env.check(task, (*(format_calls([one], "python") for one in calls), task.oracle[-1])).success


@pytest.mark.long
def test_values_are_stated_and_answers_are_not(env: Tools, tasks: dict[str, Task]) -> None:
    for task in tasks.values():
        text = task.messages[-1].content
        for answer in task.payload["answers"]:
            assert not says(text, answer)
        assert audit(env, task) is None
    task = next(task for task in tasks.values() if task.payload["answers"])
    assert not env.check(task, (*task.oracle[:-1], "Done.")).success
    assert not env.check(task, task.oracle[-1:]).success


@pytest.mark.parametrize(
    ("words", "answer", "stated"),
    [
        ("It is 1,189.50 dollars.", 1189.5, True),
        ("It is 3 of 4.", 4, True),
        ("Order O-40.", 40, False),
        ("Order 1234567890123456789.", 1234567890123456789, True),
        ("Order 1234567890123456788.", 1234567890123456789, False),
        ("The ticket is t-1.", "T-1", True),
        ("The ticket is T-12.", "T-1", False),
        ("ADA   wong", "Ada Wong", True),
        ("", "x", False),
        ("It is 5km away, at 21C, in 30min.", 5, True),
        ("It is 5km away, at 21C, in 30min.", 21, True),
        ("It is 5km away, at 21C, in 30min.", 30, True),
        ("It has 1.5GB.", 1.5, True),
        ("The commit is 5f3a.", 5, False),
        ("About 4.33 a day.", 13 / 3, True),
        ("About 4.34 a day.", 13 / 3, False),
        ("About 4 a day.", 13 / 3, False),
        ("It is 82 degrees Celsius there.", "82 °C", True),
        ("It is 82°C there.", "82 °C", True),
        ("The temperature (in °C) is 82 there.", "82 °C", True),
        ("It is 82 degrees Fahrenheit there.", "82 °C", False),
        ("It is 82.5 °C there.", "82 °C", False),
        ("It costs 1250 dollars.", "$1,250.00", True),
        ("It costs 1250 euros.", "$1,250.00", False),
        ("It costs $1250.", "$1,250.00", True),
        ("It is 5 kilometers away.", "5 km", True),
        ("It is 5 m away, not 6 km.", "5 km", False),
        ("It is 5 miles away.", "5 km", False),
        ("It is 12.5 percent.", "12.5%", True),
        ("It costs $1250 in total.", "$1,250.00", True),
        ("It is 5 min away.", "5 m", False),
        ("It takes 5min.", "5 min", True),
        ("It's 5 minutes.", "5 s", False),
        ("I'm sure: 5 kg.", "5 m", False),
        ("It costs £9.99.", "$9.99", False),
        ("It costs 40 €.", "40 USD", False),
        ("It costs USD 40.", "40 USD", True),
        ("It is 82%.", "82 °C", False),
        ("It is 5 months.", "5 min", False),
        ("It is 5 grams.", "5 GB", False),
        ("It weighs 80 pounds.", "80%", False),
        ("It is 82° outside.", "82°", True),
        ("It is in room 5.", "5A", False),
        ("It is 12.", "12-A", False),
        ("The total is $1,250.00.", "1250.00", True),
        ("The price is $8.", "8.00", True),
        ("The price is $8.50.", "8.00", False),
        ("The code is 42.", "042", False),
        ("The balance is _83.1_.", 83.1, True),
        ("It is in _Rome_.", "Rome", True),
        ("The file is _draft.", "_draft", True),
        ("It is −5 degrees.", -5, True),
        ("It is 1e-05.", 1e-05, True),
        ("It begins at 10:30.", 10, False),
        ("It begins at 10:30.", 30, False),
        ("It begins at 10:30.", "10:30", True),
        ("The score is 2:1, the ratio 30:100.", 2, True),
        ("The score is 2:1, the ratio 30:100.", 100, True),
        ("It is version 1.1.", "1.10", False),
        ("It is 2.5x as much.", 2, False),
        ("It costs 42USD.", 42, True),
        ("It weighs 1 kg.", "1.0", True),
        ("It weighs 1.00 kg.", "1.0", True),
        ("It weighs 1.5 kg.", "1.0", False),
        ("It was on 17 March 2025.", "2025-03-17", True),
        ("It was on **17. March** 2025.", "2025-03-17", True),
        ("It was on March 17th of 2025.", "2025-03-17", True),
        ("It was on 18. March 2025.", "2025-03-17", False),
        ("It begins at 9:00.", "09:00", True),
        ("It begins at 09:00:00, in room 3.", "09:00", True),
        ("It begins at 9:00 pm.", "09:00", False),
        ("It begins at 19:00.", "09:00", False),
        ("It begins at 4:45 p.m.", "16:45", True),
        ("It begins at 4:45.", "16:45", False),
        ("It begins at 12:30 am.", "00:30", True),
        ("It was on Mar. 17th, 2025.", "2025-03-17", True),
        ("It was on 17 March 2024.", "2025-03-17", False),
        ("It was on 17 March.", "2025-03-17", False),
        ("It was on March 1, 2025.", "2025-13-01", False),
    ],
)
def test_an_answer_is_said_as_a_number_or_in_whole_words(
    words: str, answer: float | str, stated: bool
) -> None:
    assert says(words, answer) is stated


@pytest.mark.parametrize(
    ("line", "answer", "right"),
    [
        ("59", 59, True),
        ("**59.00**.", 59, True),
        ("59 kg", 59, True),
        ("59 books", 59, False),
        ("US$59.00", 59, True),
        ("-$12.50", -12.5, True),
        ("+5", 5, True),
        ("5 k", 5, False),
        ("5 dozen", 5, False),
        ("5 minus two", 5, False),
        ("5 is wrong", 5, False),
        ("31 or. eight", 31, False),
        ("1e9999999999999999999", 5, False),
        ("0.00", 0.002, False),
        ("0.12", 0.1249, False),
        ("3.14", 3.1415926, True),
        ("5%", 5, True),
        ("$59", 59.0, True),
        ("EUR 59", 59, True),
        ("1,250", 1250, True),
        ("−4", -4, True),
        ("0.33", 1 / 3, True),
        ("59 or 4.50", 59, False),
        ("59 or more", 59, False),
        ("59 thousand", 59, False),
        ("59, 60", 59, False),
        ("not 59", 59, False),
        ("perhaps 59", 59, False),
        ("price 31, stock 59", 59, False),
        ("", 59, False),
        ("Minka", "Minka", True),
        ('"minka".', "Minka", True),
        ("_Minka_", "Minka", True),
        ("Not the End", "Not the End", True),
        ("Acme Inc.", "Acme Inc.", True),
        ("not Minka", "Minka", False),
        ("Minka or Bello", "Minka", False),
        ("Tom or Jerry", "Tom or Jerry", True),
        ("Minka Bello", "Minka", False),
        ("", "", False),
        (".", ".", False),
        ("in progress", "in_progress", True),
        ("init", "__init__", False),
        ("__init__", "__init__", True),
        ("ab", "a*b", False),
        ("Bob’s lamp", "Bob's lamp", True),
        ("C‑101", "C-101", True),
        ("cafe\u0301", "café", True),
        ("two\nlines", "two lines", True),
        ("GBP 5", "$5", False),
        ("XYZ 5", "$5", False),
        ("42", "0042", False),
        ("59", "59", True),
        ("59.0", "59", False),
        ("$62.50", "62.50", True),
        ("3.1", "3.10", False),
        ("62.50 or 4", "62.50", False),
        ("82 degrees Celsius", "82 °C", True),
        ("82 °F", "82 °C", False),
        ("USD 1,250", "$1,250.00", True),
        ("5km", "5 km", True),
        ("5 km or 6 km", "5 km", False),
        ("17 March 2025", "2025-03-17", True),
        ("2025-03-17", "2025-03-17", True),
        ("17 March 2025 or later", "2025-03-17", False),
        ("Monday, March 17, 2025", "2025-03-17", True),
        ("04/02/2025", "2025-04-02", False),
        ("2025-03-17 16:45", "2025-03-17T16:45:00", True),
        ("2025-03-17 16:46", "2025-03-17T16:45:00", False),
        ("17 March 2025, 4:45 PM", "2025-03-17T16:45:00", True),
        ("March 17, 2025 at 16:45", "2025-03-17 16:45", True),
        ("March 17, 2025 at 16:46", "2025-03-17 16:45", False),
        ("17 March 2025, 7 AM", "2025-03-17 07:00", True),
        ("2 P.M.", "14:00", True),
        ("Monday, 30 February 2026", "2026-02-30", True),
        ("5²", 52, False),
        ("Tuesday, 17 March 2025", "2025-03-17", False),
        ("17.03.2025", "2025-03-17", True),
        ("2025/03/17", "2025-03-17", True),
        ("17/03/2025", "2025-03-17", True),
        ("3/17/2025", "2025-03-17", True),
        ("05/03/2025", "2025-03-05", False),  # or the third of May
        ("<ada@example.org>", "ada@example.org", True),
        ("<5", 5, False),
        ("17-Mar-2025", "2025-03-17", True),
        ("7 pm", "19:00", True),
        ("4:45 pm", "16:45", True),
        ("4:45 pm or 5 pm", "16:45", False),
    ],
)
def test_an_answer_is_a_line_that_is_the_value_alone(line: str, answer: float | str, right: bool) -> None:
    assert gives(line, answer) is right


@pytest.mark.parametrize(
    ("line", "answer", "field", "right"),
    [
        ("8 nights", 8, "nights", True),
        ("8 hours", 8, "nights", True),  # the name says of no unit
        ("2 booked seats", 2, "total", True),
        ("2 lamps", 2, "total", False),
        ("7.6 m", 7.6, "length_m", True),
        ("7.6 meters", 7.6, "length_m", True),
        ("7.6 m length", 7.6, "length_m", True),
        ("7.6 kg", 7.6, "length_m", False),
        ("€7.6", 7.6, "length_m", False),
        ("165 minutes", 165, "minutes", True),
        ("165 hours", 165, "minutes", False),
        ("balance due: £371.25", 371.25, "balance_due", True),
        ("Berth C2", "C2", "berth", True),
        ("#12", 12, "boat_id", True),
        ("boat 12", 12, "boat_id", True),
        ("boat", "boat", "boat", True),
        ("balance_due: 371.25", 371.25, "balance_due", True),
        ("Result: 25.5", 25.5, "", True),
        ("€7.40/kg", 7.4, "price_per_kg", True),
        ("7.4 EUR per kg", 7.4, "price_per_kg", True),
        ("16 pct", 16.0, "loss_pct", True),
        ("€16", 16.0, "loss_pct", False),
        ("$59", 59, "price_usd", True),
        ("59 $", 59, "price_usd", True),
        ("€59", 59, "price_usd", False),
        ("5 °C", 5, "temp_c", True),
        ("5 degrees Celsius", 5, "temp_c", True),
        ("5 hr", 5, "duration_h", True),
        ("$5", 5, "min_price", True),
        ("$5", 5, "price_min", True),
        ("5 minutes", 5, "duration_min", True),
        ("5 hours", 5, "duration_days", False),
        ("5 days", 5, "duration_days", True),
        ("$500", 500, "price_cents", False),
        ("5 kg", 5, "weight_lb", False),
        ("5 lbs", 5, "weight_lb", True),
        ("5 minutes", 5, "billed_hours", False),
        ("20 mph", 20, "distance_miles", False),
        ("6 feet", 6, "height_ft", True),
        ("20 €/kg", 20, "price_per_kg", True),
        ("USD 20", 20, "price_dollars", True),
        ("orderId: 20", 20, "orderId", True),
        ("2.68", 2.675, "", True),
        ("0", 3e-10, "", False),
        ("5e-10", 1e-10, "", False),
        ("`__init__`", "__init__", "", True),
        ("**A* search**", "A* search", "", True),
        ("5 seats this one that", 5, "seats", True),
        ("5 million", 5, "seats", False),
        ("5%%%$$", 5, "", False),
        ("31 or seats", 31, "seats", False),
    ],
)
def test_an_answer_may_have_the_name_of_its_field_and_the_unit_in_it(
    line: str, answer: float | str, field: str, right: bool
) -> None:
    assert gives(line, answer, field, "Which seats are booked, this one or that?") is right


def test_lines_of_answers_are_found_in_markdown_and_nothing_else_is_one() -> None:
    words = "All done. Answer: 7\n`Answer: 8`\n\n**Answer:** 59\n1. The final answer is: `Minka`"
    words += "\nAnswer:\n42\nNo answer: 3"
    assert answers_in(words) == ["7", "8`", "59", "`Minka`", "42"]


def test_long_replies_are_read_fast() -> None:
    blanks = ("\n" * 20_000, "no " * 7_000, "a " * 10_000, "7 " + " " * 20_000)
    for words in (*blanks, "0, " * 7_000, "Answer: " * 3_000, "> " * 10_000, "1" * 20_000, ". " * 10_000):
        start = time.thread_time()
        for line in (*answers_in(words), *answers_in(f"Answer: {words}"), words):
            gives(line, "2.50")
            gives(line, 0)
        asks(words)
        assert time.thread_time() - start < 1


def test_a_column_of_0_and_1_is_not_asked_for() -> None:
    rows: list[Json] = [{"name": "A", "active": 0, "seats": 1}, {"name": "B", "active": 1, "seats": 2}]
    assert shown_by([({}, Outcome(result=one)) for one in rows])[1] == ("name", "seats")


def test_what_only_repeats_an_argument_is_not_asked_for() -> None:
    rows: list[JsonObject] = [{"ids": ["7"], "id": "7", "by": "Ada"}, {"ids": ["8"], "id": "8", "by": "Ben"}]
    told = [shown_by([(args, Outcome(result=row)) for row in rows])[1] for args in ({}, {"id": "7"})]
    assert told == [("ids.*", "id", "by")] * 2, "only once is it the argument"
    assert shown_by([({"id": row["id"]}, Outcome(result=row)) for row in rows])[1] == ("by",)


def test_a_reply_that_commits_to_no_value_is_no_answer(env: Tools, tasks: dict[str, Task]) -> None:
    """Copying the whole result of the last call, or naming several values, solved each question once."""
    asked = [task for task in tasks.values() if len(task.payload["answers"]) == 1]
    assert len(asked) > 10
    for task in asked:
        (answer,) = task.payload["answers"]
        calls = [call for key in ("before", "calls") for call in calls_of(task.payload, key)]
        shown = env.world.play(calls).outcomes[-1].text
        made = task.oracle[:-1]
        assert env.check(task, (*made, f"I have looked it up:\n{shown}\n\n**Answer:** {answer}")).success
        assert env.check(task, (*made, f"Answer: {answer}\nI hope this helps.\nAnswer: {answer}")).success
        last = f"{made[-1]}\nAnswer: {answer}"
        assert not env.check(task, (*made[:-1], last)).success, "a reply that calls answers nothing"
        assert env.check(task, (*made, f"**Answer: {answer}**\n\nAnswer: {answer}")).success
        for more in ("Answer 2: 12345", "or else Answer: 12345", "Alternative answer: 12345"):
            assert not env.check(task, (*made, f"Answer: {answer}\n{more}")).success, more
        for said in (shown, f"{answer} or 12345", f"12345, {answer}", f"not {answer}", f"perhaps {answer}"):
            for form in ("It is {}.", "Answer: {}", "Answer: 12345\nAnswer: {}"):
                assert not env.check(task, (*made, form.format(said))).success, said


def test_several_answers_are_given_in_the_order_of_the_request(env: Tools) -> None:
    questions = [{"call": 0, "path": [name]} for name in ("item", "price")]
    order = next(iter(cast(Any, env.world.play([]).state)["orders"]))
    task = asked(env, call("get_order", order_id=order), answer=True, questions=questions)
    assert isinstance(task, Task)
    item, price = task.payload["answers"]
    assert "tell me the item that this gives and the price" in task.messages[-1].content
    assert task.oracle[-1] == f"Answer: {item}\nAnswer: {price}"
    assert env.check(task, task.oracle).success
    one = env.check(task, (*task.oracle[:-1], f"Answer: {item}, {price}"))
    assert "lines `Answer: VALUE` is 1, not 2" in one.explanation
    turned = env.check(task, (*task.oracle[:-1], f"Answer: {price}\nAnswer: {item}"))
    assert turned.explanation.startswith(f'The answer is "{item}", not ')


@pytest.mark.long
def test_parameters_draw_tasks_for_training_alone(env: Tools) -> None:
    by_parameters = ByParameters(env)
    rng, seeds = random.Random(3), env.seeds()
    built = Counter[str]()
    for number in range(80):
        seed = seeds[number % len(seeds)]
        parameters = by_parameters.spec.model_validate(at_random(env.parameter_options(seed), rng))
        lineage = Lineage(origin=Origin.GENERATED, seed_id=seed.id)
        task = by_parameters.build(parameters, task_id=f"t{number}", lineage=lineage, rng=rng)
        if isinstance(task, Task):
            task = examined(env, task, rng) or task
        built["task" if isinstance(task, Task) else task.reason] += 1
    assert built["task"] > 48
    assert (
        built[RejectReason.SCHEMA]
        == built[RejectReason.INCONSISTENT]
        == built[RejectReason.ORACLE_FAILS]
        == 0
    )


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_spoiled_program_is_refused_or_still_a_sound_task(data: st.DataObject, env: Tools) -> None:
    program = data.draw(st.sampled_from([seed.spec for seed in env.seeds()]))
    spoiled = dict(program)
    field = data.draw(st.sampled_from(["n_calls", "chained", "answer", "n_tools", "calls", "questions"]))
    match field:
        case "n_calls" | "n_tools":
            spoiled[field] = data.draw(st.integers(-2, 20))
        case "chained" | "answer":
            spoiled[field] = not program[field]
        case "calls":
            number = data.draw(st.integers(0, len(program["calls"]) - 1))
            calls = [dict(one) for one in program["calls"]]
            key = data.draw(st.sampled_from(["tool", "args", "uses"]))
            calls[number][key] = data.draw(
                {
                    "tool": st.sampled_from(["get_order", "no_tool", ""]),
                    "args": st.dictionaries(
                        st.sampled_from(["order_id", "x"]),
                        st.one_of(st.none(), st.text(), st.floats()),
                        max_size=2,
                    ),
                    "uses": st.just([{"parameter": "order_id", "call": 3, "path": ["x"]}]),
                }[key]
            )
            spoiled["calls"] = calls
        case _:
            spoiled["questions"] = [{"call": data.draw(st.integers(-1, 9)), "path": ["nothing"]}]
    try:
        read = Program.model_validate(spoiled)
    except ValueError:
        return
    task = env.build(read, task_id="t", lineage=Lineage(origin=Origin.SEED), rng=random.Random(0))
    if isinstance(task, Task):
        assert spoiled == program or examined(env, task, random.Random(0)) is None


@pytest.mark.long
def test_what_differs_from_one_time_to_the_next_does_not_count(tmp_path: Path) -> None:
    found = made(tmp_path / "shelf", "shelf.py")
    assert set(found.bundle.about.state.volatile) == {"loans.*.since"}, "an id at random is seeded"
    assert found.world.left_out == {"anything": "it takes any number of arguments (*things)"}
    readme = (tmp_path / "shelf" / "README.md").read_text()
    assert "- `anything` is no tool: it takes any number of arguments" in readme
    assert "do not count: loans.*." in readme
    assert found.base > 0


def test_a_name_of_records_that_differs_does_not_count_and_what_they_hold_does() -> None:
    volatile = frozenset({"tickets.#", "orders.*.at"})
    first = {"tickets": {"a1": {"s": 1}, "b7": {"s": 2}}, "orders": {"O": {"at": 1, "n": 1}}}
    again = {"tickets": {"z9": {"s": 2}, "y3": {"s": 1}}, "orders": {"O": {"at": 2, "n": 1}}}
    other = {"tickets": {"z9": {"s": 2}, "y3": {"s": 3}}, "orders": {"O": {"at": 2, "n": 1}}}
    assert comparable(first, volatile) == comparable(again, volatile) != comparable(other, volatile)


def test_entries_of_a_list_that_differ_do_not_count_and_how_many_there_are_does() -> None:
    volatile = frozenset({"log.*"})
    first, again, longer = ({"log": log, "n": 1} for log in (["10:01"], ["10:02"], ["10:01", "10:02"]))
    assert comparable(first, volatile) == comparable(again, volatile) != comparable(longer, volatile)


def test_values_of_a_table_that_differ_do_not_count_and_the_names_of_its_records_do() -> None:
    first, again, other = ({"seen": seen} for seen in ({"U-1": 1.5}, {"U-1": 2.5}, {"U-2": 1.5}))
    longer = {"seen": {"U-1": 1.5, "U-2": 2.5}}
    volatile = frozenset({"seen.*"})
    assert comparable(first, volatile) == comparable(again, volatile)
    assert comparable(again, volatile) not in (comparable(other, volatile), comparable(longer, volatile))
    volatile |= {"seen.#"}
    assert comparable(first, volatile) == comparable(other, volatile) != comparable(longer, volatile)


def test_two_programs_of_the_same_calls_in_another_order_are_on_the_same_side() -> None:
    def program(*tools: str) -> Program:
        calls = [{"tool": name, "args": {"room": "hall"}} for name in tools]
        about = {"chained": False, "answer": False, "n_tools": 4}
        return Program.model_validate({"n_calls": len(calls), **about, "calls": calls})

    sides = []
    for n in range(40):
        names = [f"open_{n}", f"close_{n}", f"level_{n}"]
        sides.append({is_for_measuring(program(*order)) for order in itertools.permutations(names)})
    assert all(len(side) == 1 for side in sides)
    assert {True} in sides
    assert {False} in sides


@pytest.mark.long
def test_what_a_file_imports_and_reads_beside_it_comes_along(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "unrelated.py").write_text("raise SystemError")
    found = made(tmp_path / "ledger", ledger(own), base=4, held_out=1)
    assert {path.name for path in (tmp_path / "ledger" / "files").iterdir()} == {
        *("ledger.py", "ledger_money.py", "settings.json", "ledger.db")
    }
    assert found.graph.recipes["transfer"].writes
    assert found.base == 4


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("bundle.toml", "version = ", "is not valid TOML"),
        ("bundle.toml", 'version = 9\nname = "x"\n[source]\nfile = "a.py"', "version: "),
        ("graph.json", "{", "graph.json: "),
        ("tasks/base.jsonl", '{"n_calls": 1}\n', "base.jsonl, line 1: chained: Field required"),
        ("wordings.toml", "get_order = 3", "cannot be read as lists of wordings by tool"),
        ("files/desk.py", "import this_is_not_there", "cannot be imported"),
    ],
)
def test_a_damaged_bundle_is_one_sentence(
    desk_bundle: Path, tmp_path: Path, file: str, text: str, said: str
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(desk_bundle, broken)
    (broken / file).write_text(text)
    with pytest.raises(GenenvError) as caught:
        opened(broken)
    assert isinstance(caught.value, UsageError | DataError)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def opened(folder: Path) -> tuple[object, ...]:
    """All that a bundle holds."""
    env = load_environment(str(folder))
    assert isinstance(env, Tools)
    return base_tasks(env, env.seeds(), seed=0), env.graph, env.wordings


@pytest.mark.long
def test_own_wordings_are_used_where_their_blanks_fit(desk_bundle: Path, tmp_path: Path) -> None:
    edited = tmp_path / "edited"
    shutil.copytree(desk_bundle, edited)
    (edited / "wordings.toml").write_text('refund_order = ["pay back {amount} dollars for {order_id}"]\n')
    env = load_environment(str(edited))
    assert isinstance(env, Tools)
    texts = [task.messages[-1].content for task in base_tasks(env, env.seeds(), seed=0).values()]
    env.world.close()
    assert any("ay back " in text and ' dollars for "O-' in text for text in texts)


def test_a_mode_of_single_replies_has_no_task_of_several_turns(desk_bundle: Path) -> None:
    env = Tools(ToolsConfig(mode="single"), desk_bundle)
    tasks = base_tasks(env, env.seeds(), seed=0).values()
    assert tasks
    assert {task.payload["mode"] for task in tasks} == {"single"}
    assert all(not option["chained"][0] for seed in env.seeds() for option in env.parameter_options(seed))
    env.world.close()


@pytest.mark.long
def test_what_cannot_be_made_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(
        'def never(x: str) -> str:\n    """Never works."""\n    raise ValueError("not today")\n'
    )
    with pytest.raises(
        UsageError, match=r"no tool of tools.py could be called with success \(never: not today\)"
    ):
        made(tmp_path / "bundle", tmp_path / "tools.py")
    with pytest.raises(UsageError, match="there is no file"):
        made(tmp_path / "bundle", tmp_path / "none.py")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tools.py"]
    (tmp_path / "bundle").mkdir()
    with pytest.raises(UsageError, match="is there already"):
        made(tmp_path / "bundle", EXAMPLES / "desk.py")


def test_the_grammar_takes_programs_variations_and_parameters_and_no_unknown_tool(
    env: Tools, written_under: Callable[[JsonObject, JsonObject], bool]
) -> None:
    rng, by_parameters = random.Random(0), ByParameters(env)
    for seed in env.seeds()[:2]:
        schema = env.spec_schema(seed)
        assert written_under(schema, seed.spec)
        assert written_under(schema, env.variation(seed, rng))
        assert written_under(by_parameters.spec_schema(seed), by_parameters.variation(seed, rng))
        calls = [{**seed.spec["calls"][0], "tool": "no_such_tool"}, *seed.spec["calls"][1:]]
        assert not written_under(schema, {**seed.spec, "calls": calls})


@pytest.mark.long
def test_programs_that_fit_the_grammar_agree_with_their_fields_and_take_ids_of_records(env: Tools) -> None:
    rng, seeds = random.Random(0), env.seeds()
    lineage = Lineage(origin=Origin.GENERATED, seed_id="s", context_id="c", generation_id="g")
    found = Counter[str]()
    orders = set(cast(Any, env.world.play([]).state)["orders"])
    for number in range(100):
        spec = cast(JsonObject, sample_json(env.spec_schema(seeds[number % len(seeds)]), rng))
        program = Program.model_validate(spec)
        assert {step.args["order_id"] for step in program.calls if "order_id" in step.args} <= orders
        task = env.build(program, task_id="t", lineage=lineage, rng=rng)
        found[task.reason if isinstance(task, Rejection) else "task"] += 1
        if isinstance(task, Rejection) and task.reason == RejectReason.INCONSISTENT:
            assert program.chained
            assert program.n_calls > 2  # a grammar that wants a link somewhere would have many alternatives
    assert found["task"] >= 3  # of the grammar that only knew the tools, none


def test_what_is_said_of_a_bundles_tools_and_how_its_tasks_use_them(env: Tools) -> None:
    found = {one.what: one for one in check_tools(env)}
    assert found["tools that succeed"].seen == "8 of 8"
    assert found["ids that tools ask for"].seen == "all can be found in the state"
    assert found["what tasks call"].seen.startswith("8 of 8 tools, ")
    counts = re.findall(r"(\d+) of \d call", found["difficulty"].seen)
    assert sum(map(int, counts)) == 80
    assert re.fullmatch(r"[\d.]+ ms to start an attempt, [\d.]+ ms a call", found["speed"].seen)
    assert all(one.state == "good" for one in found.values())


@pytest.mark.long
def test_a_bundle_says_which_tasks_its_settings_leave_out(desk_bundle: Path) -> None:
    whole, single = Tools(folder=desk_bundle), Tools(ToolsConfig(mode="single", most_calls=2), desk_bundle)
    assert whole.omitted is None
    said = single.omitted
    assert said is not None
    lost, lost_held_out = 60 - len(single.seeds()), 20 - len(single.held_out())
    assert lost > 0
    assert said == (
        f"{lost} of 60 tasks for training and {lost_held_out} of 20 tasks for measuring are left out: "
        'environment.mode is "single", and calls that use a result or ask for an answer need "auto"; '
        "environment.most_calls is 2"
    )
    whole.world.close()
    single.world.close()


@pytest.mark.long
def test_the_settings_that_come_with_a_bundle_train_on_all_of_its_tasks(desk_bundle: Path) -> None:
    config = load_config(desk_bundle / "train.toml", [f"environment.name={desk_bundle}"])
    env = load_environment(str(desk_bundle), config.environment.settings)
    assert isinstance(env, Tools)
    tasks = base_tasks(env, env.seeds(), seed=0).values()
    assert (len(tasks), len(env.held_out()), env.omitted) == (60, 20, None)
    assert {task.payload["mode"] for task in tasks} == {"single", "multi"}
    env.world.close()


DIARY = '''
"""Events with filters, and messages that may be refused."""
from datetime import date
from typing import Literal

events = {n: {"title": f"event {n}", "room": "A" if n % 2 else "B", "day": n} for n in range(1, 5)}
sent = []


def list_events(room: Literal["A", "B", "C"] | None = None, page: int = 1, limit: int = 3) -> dict:
    """List events."""
    found = [{"id": n, **one} for n, one in events.items() if room in (None, one["room"])]
    part = found[(page - 1) * limit : page * limit]
    return {"events": part, "next": page + 1 if page * limit < len(found) else None}


def first_free(room: Literal["A", "B"], day: int) -> dict:
    """Find a free hour."""
    if day > 9:
        raise ValueError("nobody plans so far ahead")
    return {"hour": 8 if day < 5 else 7 + len(room)}


def send(to: str, again: bool = False) -> dict:
    """Send a message."""
    sent.append([to, again])
    return {"ok": True} if "@" in to else {"error": f"{to} is no address"}


def move(event: int, days: float) -> float:
    """Move an event."""
    events[event]["day"] += days
    return events[event]["day"]


def add_event(title: str, day: date) -> str:
    """Add an event."""
    if day < date.fromisoformat("2031-01-01"):
        raise ValueError("it cannot be in the past")
    events[len(events) + 1] = {"title": title, "room": "A", "day": day.isoformat()}
    return title
'''


@pytest.fixture(scope="module")
def diary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    folder = by_hand(
        tmp_path_factory.mktemp("bundles") / "diary",
        DIARY,
        recipe("list_events", room="new", page="new", limit="new"),
        recipe("first_free", room="new", day="new"),
        recipe("send", writes=True, to="new", again="new"),
        recipe("move", writes=True, event="events.#", days="new"),
        recipe("add_event", writes=True, title="new", day="new"),
        first_day=date(2031, 2, 1),
    )
    env = Tools(folder=folder)
    yield env
    env.world.close()


@pytest.mark.parametrize(
    ("request_text", "days", "stated"),
    [
        ("Move event 2 by 15 days.", 5, False),
        ("Move event 2 by 1,250 days.", 250, False),
        ("Move event 2 by 2.5 days.", 5, False),
        ("Move event 2 by 1,250 days.", 1250, True),
        ("Move event 2 by 2.5 days.", 2.5, True),
    ],
)
def test_a_number_inside_another_one_is_not_stated(
    diary: Tools, request_text: str, days: float, stated: bool
) -> None:
    task = asked(diary, call("move", event=2, days=days), request=request_text)
    assert isinstance(task, Task)
    assert (misstated(diary, task) is None) is stated


def test_truth_values_of_a_written_request_are_left_to_the_round_trip(diary: Tools) -> None:
    text = "Send it to ann@example.com{}."
    for words, again in ((", once more", True), (" as you know", False), ("", True)):
        task = asked(diary, call("send", to="ann@example.com", again=again), request=text.format(words))
        assert isinstance(task, Task)
        assert misstated(diary, task) is None


def test_a_call_that_answers_an_error_solves_nothing_though_it_leaves_a_trace(diary: Tools) -> None:
    assert isinstance(asked(diary, call("send", to="ann@example.com")), Task)
    refused = asked(diary, call("send", to="ann"))
    assert isinstance(refused, Rejection)
    assert refused.explanation == 'send fails: {"error":"ann is no address"}'
    proposal = Proposal.model_validate(
        {"request": "Send it to ann.", "calls": [{"tool": "send", "args": {"to": "ann"}}]}
    )
    with pytest.raises(Refused, match="send fails"):
        program_of(diary, (), proposal, random.Random(0))


def test_a_filter_that_changes_nothing_is_in_no_task(diary: Tools) -> None:
    needed = [{"room": "A"}, {"page": 2}, {"room": "B", "limit": 1}, {"limit": 2}]
    needless = [{"room": "C", "page": 8}, {"room": "A", "page": 8}, {"room": "C", "limit": 2}]
    for args in (*needed, *needless):
        task = asked(diary, call("list_events", **args))
        assert isinstance(task, Task)
        problem = audit(diary, task)
        assert (problem is None) is (args in needed), args
        assert problem is None or "of list_events the result is the same" in problem.explanation
    task = asked(diary, call("first_free", room="A", day=3))
    assert isinstance(task, Task)
    assert audit(diary, task) is None, "any room may be free at eight, and no other tool says when"


def test_a_lookup_with_further_arguments_counts_if_it_finds_all_and_more(diary: Tools) -> None:
    task = asked(diary, call("list_events"))
    assert isinstance(task, Task)
    ways = {
        "limit=100": True,
        "limit=3": True,
        "limit=2": False,
        'room="A", limit=100': False,
        "page=2": False,
    }
    for args, right in ways.items():
        assert diary.check(task, (f"list_events({args})",)).success is right, args
    task = asked(diary, call("list_events", room="A"))
    assert isinstance(task, Task)
    assert diary.check(task, ('list_events(room="A", limit=50)',)).success
    assert not diary.check(task, ("list_events(limit=50)",)).success, "the room was stated"


def test_a_lookup_of_more_than_was_asked_for_counts_where_the_answer_is_said(diary: Tools) -> None:
    question = {"call": 0, "path": ["events", 1, "title"]}
    task = asked(diary, call("list_events", room="A"), answer=True, questions=[question])
    assert isinstance(task, Task)
    assert diary.check(task, ("list_events()", "Answer: event 3")).success
    assert not diary.check(task, ("list_events()", "Answer: event 2")).success
    verdict = diary.check(task, ("list_events(page=2)", "Answer: event 3"))
    assert verdict.explanation == 'The result of list_events(room="A") was never obtained.'
    task = asked(diary, call("list_events", limit=2), answer=True, questions=[question])
    assert isinstance(task, Task)
    for args, right in {"limit=4": True, "limit=1": False, "page=2": False}.items():  # another filter
        assert diary.check(task, (f"list_events({args})", "Answer: event 2")).success is right, args


@pytest.mark.parametrize(("mode", "asks"), [("multi", [True]), ("single", [False])])
def test_what_is_looked_up_last_is_asked_for(tmp_path: Path, mode: str, asks: list[bool]) -> None:
    """Else any words on it would pass. A tool that writes may end a task without a question."""
    reads = replace(recipe("first_free", room="new", day="new"), told=("hour",))
    writes = replace(recipe("move", writes=True, event="events.#", days="new"), told=("",))
    folder = by_hand(tmp_path / "diary", DIARY, reads, writes)
    env = Tools(ToolsConfig.model_validate({"mode": mode}), folder=folder)
    assert [
        *{a: 0 for one in env.options("first_free") for a in one["answer"] if one["n_calls"] == (1,)}
    ] == asks
    assert (False,) in [one["answer"] for one in env.options("move")]
    for one in env.options("move"):
        if one["answer"] == (False,) and mode == "multi":
            assert not [plan for plan in one["tools"] if str(plan).endswith("first_free")]
    env.world.close()


def test_made_up_dates_of_a_bundle_begin_with_its_first_day(diary: Tools) -> None:
    parameters = diary.parameters.model_validate(
        {"n_calls": 1, "chained": False, "answer": False, "n_tools": 3, "tools": "add_event"}
    )
    seed = Seed(id="s", environment="tools", skills=(), spec={})
    drawn = [diary.drawn(parameters, seed, random.Random(n)) for n in range(6)]
    days = [one.calls[0].args["day"] for one in drawn if isinstance(one, Program)]
    assert len({*days}) > 3
    assert all("2031-02-01" <= str(day) < "2032-01-01" for day in days)
    explorer = diary.walker().explorer(random.Random(0))
    with diary.dates():
        assert refusing_past(explorer, diary.graph, random.Random(0)) == ["add_event"]
    assert Wanted(origin=PythonOrigin(EXAMPLES / "desk.py", "")).first_day > datetime.now(tz=UTC).date()
