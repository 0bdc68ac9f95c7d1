"""The environment as the loop meets it: tasks, episodes, verdicts, and whatever an agent may send."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genenv.environments import load_environment
from genenv.environments.base import OutOfTurns
from genenv.environments.travel.check import judge, query_of
from genenv.environments.travel.constraints import total_cost
from genenv.environments.travel.environment import Travel
from genenv.environments.travel.seeds import held_out_specs, training_specs
from genenv.environments.travel.solver import solve
from genenv.environments.travel.spec import TravelConfig, TravelSpec, filled, says, wordings
from genenv.environments.travel.trips import written
from genenv.types import Lineage, Origin, Rejection, RejectReason, Task
from quickly import within

pytest.importorskip("ortools", reason="OR-Tools is not installed: pip install 'genenv[travel]'.")

PLAN = Travel()
DAY = Travel(TravelConfig(form="day", reference_tokens=300))
TOOLS = Travel(TravelConfig(mode="tools"))
ALL = [PLAN, DAY, TOOLS, Travel(TravelConfig(mode="tools", form="day"))]
WORDS = (
    "Please plan a trip from <origin> to <destination> for <days>, <dates>. "
    "We are <people> with <budget> to spend."
)


def made(env: Travel, **fields) -> Task | Rejection:
    spec = {"days": 3, "limits": 0, "slack": "fair", "people": 2, "origin": "Denver", "destination": "Tucson"}
    spec |= {"start": 4, "query": WORDS} | fields
    lineage = Lineage(origin=Origin.GENERATED)
    return env.build(TravelSpec.model_validate(spec), task_id="t", lineage=lineage, rng=random.Random(0))


PLAIN: dict[Travel, Task] = {}


def task_of(env: Travel, **fields) -> Task:
    if not fields and env in PLAIN:
        return PLAIN[env]
    task = made(env, **fields)
    assert isinstance(task, Task), task
    return task if fields else PLAIN.setdefault(env, task)


def play(env: Travel, task: Task, replies) -> list[str]:
    """Run an episode with these replies; returns what the agent was told between them."""
    told: list[str] = []
    answers = iter(replies)

    async def ask(messages):
        told.extend(message.content for message in messages)
        return next(answers)

    asyncio.run(env.episode(task).run(ask))
    return told


def test_the_environment_is_in_the_registry():
    assert isinstance(load_environment("travel"), Travel)


@pytest.mark.parametrize("env", ALL)
@pytest.mark.parametrize("fields", [{}, {"days": 7, "destination": "Texas", "origin": "Joplin"}])
def test_the_oracle_solves_its_task_in_every_mode(env, fields):
    task = task_of(env, **fields)
    play(env, task, task.oracle)
    verdict = env.check(task, task.oracle)
    assert (verdict.reward, verdict.success) == (1, True)
    assert verdict.explanation == "The plan meets every constraint."
    assert env.audit(task, random.Random(0)) is None
    assert len(task.oracle) <= env.episode(task).max_turns


@pytest.mark.parametrize(("slack", "factor"), [("tight", 1.1), ("fair", 1.4), ("loose", 2.0)])
def test_the_budget_is_a_multiple_of_the_cheapest_plan_rounded_up_to_tens(slack, factor):
    task = task_of(PLAN, slack=slack)
    cheapest, budget = float(str(task.payload["cheapest"])), query_of(task).budget
    assert cheapest * factor <= budget < cheapest * factor + 10
    assert total_cost(query_of(task), task.payload["plan"], PLAN.database) == cheapest


def test_where_a_day_is_missing_slack_counts_above_what_is_fixed():
    task = task_of(
        DAY, slack="loose", transport="no self-driving", limits=1, query=f"{WORDS} And <transport>, please."
    )
    cheapest, budget = float(str(task.payload["cheapest"])), query_of(task).budget
    fixed = float(task.messages[1].content.split("It costs ")[1].split(". ")[0])
    assert 0 < fixed < cheapest
    assert fixed + 2 * (cheapest - fixed) <= budget < fixed + 2 * (cheapest - fixed) + 10


def test_a_budget_below_the_cheapest_plan_is_rejected():
    cheapest = int(float(str(task_of(PLAN).payload["cheapest"])))
    found = made(PLAN, budget=cheapest - 1)
    assert isinstance(found, Rejection)
    assert found.reason is RejectReason.EXECUTION
    assert (
        found.explanation
        == f"The cheapest plan costs ${cheapest:,}, more than the budget of ${cheapest - 1:,}."
    )
    assert isinstance(made(PLAN, budget=round(cheapest * 1.4)), Task)


@pytest.mark.parametrize("trip", [{}, {"days": 5, "destination": "Texas"}], ids=["city", "state"])
@pytest.mark.parametrize("tokens", [1000, 2000, 8000])
def test_the_information_has_its_length_and_all_that_the_oracle_uses(tokens, trip):
    env = Travel(TravelConfig(reference_tokens=tokens))
    task = task_of(env, **trip)
    query = task.messages[1].content.rindex("Please plan a trip")
    text = task.messages[1].content[:query]
    assert tokens * 3.9 < len(text) <= tokens * 4
    for day in json.loads(task.oracle[0]):
        for field in ("breakfast", "lunch", "dinner", "accommodation"):
            assert day[field] == "-" or day[field].rsplit(", ", 1)[0] in text


def test_the_query_states_every_limit():
    words = (
        f"{WORDS} We need <room_rule>. Book <room_type>. Let us taste <cuisines>. And <transport>, please."
    )
    limits = {
        "room_rule": "pets",
        "room_type": "entire",
        "cuisines": ["French", "Italian"],
        "transport": "no flight",
    }
    task = task_of(PLAN, limits=4, query=words, **limits)
    text = str(task.spec["query"])
    for part in (
        "from Denver to Tucson",
        "3 days",
        "March 4 to March 6, 2022",
        "2 people",
        "pets are allowed",
    ):
        assert part in text
    assert "entire rooms" in text
    assert "French and Italian food" in text
    assert "no flights" in text
    assert PLAN.audit(task, random.Random(0)) is None


def test_a_loophole_of_the_evaluator_passes_only_without_strict():
    task = task_of(PLAN)
    days = json.loads(task.oracle[0])
    days[1]["attraction"] = "Nowhere, Tucson"
    replies = [json.dumps(days)]
    verdict = PLAN.check(task, replies)
    assert (verdict.success, verdict.reward) == (
        False,
        pytest.approx(9 / 10 * 5 / 6),
    )  # of 6 entries 5 are real
    assert "not an entry of the database" in verdict.explanation
    assert Travel(TravelConfig(strict=False)).check(task, replies).success


def drive(days: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """The plan with another way of travel, `text` behind each leg."""
    for day in days:
        if day["current_city"].startswith("from "):
            day["transportation"] = f"Taxi, {day['current_city']}{text}"
    return days


def test_entries_count_and_not_how_they_are_spelled():
    task = task_of(PLAN)
    days = json.loads(task.oracle[0])
    days[1]["lunch"] = days[1]["dinner"].replace(",", " ,  ")
    found = PLAN.check(task, [json.dumps(days)])
    assert (found.success, "a restaurant comes twice" in found.explanation) == (False, True)
    assert Travel(TravelConfig(strict=False)).check(task, [json.dumps(days)]).success
    query = f"{WORDS} And <transport>, please."
    task = task_of(PLAN, slack="tight", limits=1, transport="no self-driving", query=query)
    for text, why in (("", "costs"), (", self-driving", "by its entries")):
        found = PLAN.check(task, [json.dumps(drive(json.loads(task.oracle[0]), text))])
        assert (found.success, why in found.explanation) == (False, True)


def test_a_trip_elsewhere_is_no_answer():
    rich = replace(query_of(task_of(PLAN)), budget=1e6)
    elsewhere = solve(replace(rich, destination="Tampa"), PLAN.database)
    assert elsewhere is not None
    plan = written(elsewhere.trip)
    found = judge(rich, plan, PLAN.database, strict=True)
    assert (found.success, "it goes to Tampa" in found.sentence) == (False, True)
    assert judge(rich, plan, PLAN.database, strict=False).success


@pytest.mark.long
def test_with_tools_each_entry_of_the_known_plan_is_shown():
    short = Travel(TravelConfig(mode="tools", result_tokens=50, longest=3))
    full = Travel(TravelConfig(mode="tools", longest=3))
    assert len(full.held_out()) > len(short.held_out())
    hidden = [found for task in full.held_out() if (found := short.audit(task, random.Random(0)))]
    assert len(hidden) == len(full.held_out()) - len(short.held_out())
    assert "environment.result_tokens is 50" in hidden[0].explanation


def test_exact_reward_is_all_or_nothing():
    exact = Travel(TravelConfig(reward="exact"))
    task = task_of(exact)
    days = json.loads(task.oracle[0])
    days[1]["lunch"] = days[1]["dinner"]
    assert exact.check(task, [json.dumps(days)]).reward == 0
    assert PLAN.check(task, [json.dumps(days)]).reward == pytest.approx(9 / 10)
    assert exact.check(task, task.oracle).reward == 1


@pytest.mark.long
def test_random_attempts_are_well_formed_and_hardly_ever_right():
    rng = random.Random(0)
    for env, slack, most in (
        (PLAN, "tight", 0),
        (PLAN, "fair", 0.01),
        (PLAN, "loose", 0.03),
        (DAY, "tight", 0.01),
        (DAY, "fair", 0.05),
        (DAY, "loose", 0.25),
    ):
        task = task_of(env, slack=slack)
        verdicts = [env.check(task, env.random_replies(task, rng)) for _ in range(150)]
        assert sum(verdict.success for verdict in verdicts) <= most * len(verdicts)
        rewards = [verdict.reward for verdict in verdicts]
        assert all(0.2 <= reward <= 1 for reward in rewards)
        if env is DAY:
            assert statistics.mean(rewards) < 0.5
            assert min(rewards) == 0.2


def test_a_missing_day_is_worth_what_it_adds_to_the_plan():
    words = f"{WORDS} We need <room_rule>."
    task = task_of(DAY, slack="tight", limits=1, room_rule="pets", query=words)
    right = json.loads(task.oracle[0])
    query, data = query_of(task), DAY.database
    dear = max(data.restaurants("Tucson"), key=lambda row: row.average_cost).name
    strict_room = next(
        row.name
        for row in data.accommodations("Tucson")
        if "No pets" in row.house_rules and row.minimum_nights <= 2 and row.price * query.people < 1e6
    )

    def reward(**fields: str) -> float:
        return DAY.check(task, [json.dumps({**right, **fields})]).reward

    assert reward() == 1
    assert reward(breakfast=dear, lunch=right["lunch"]) == pytest.approx(0.2 + 0.8 / 2)  # over the budget
    assert reward(lunch=right["dinner"]) == pytest.approx(0.2 + 0.8 / 2)  # a restaurant twice
    assert reward(accommodation=strict_room, breakfast=dear) == pytest.approx(0.2)
    for name in right:
        for blank in ("", " ", "-", ";", "x", "Nowhere", "a"):
            assert reward(**{name: blank}) == 0
        assert DAY.check(task, [json.dumps({k: v for k, v in right.items() if k != name})]).reward == 0


def test_a_plan_that_leaves_days_open_is_worth_nothing():
    task = task_of(PLAN)
    days = json.loads(task.oracle[0])
    for few in (days[:2], [*days[:2], {}], [days[0], {**days[1], "lunch": "-"}, days[2]]):
        assert PLAN.check(task, [json.dumps(few)]).reward == 0
    assert 0 < PLAN.check(task, [json.dumps([{**day, "lunch": "x"} for day in days])]).reward < 0.8
    fields = ("breakfast", "attraction", "lunch", "dinner", "accommodation")
    for word in ("a", "x", "a, Tucson", "e, Tucson;"):
        invented = [{**day, **dict.fromkeys(fields, word)} for day in days]
        assert PLAN.check(task, [json.dumps(invented)]).reward == 0
        same = [{**dict.fromkeys(day, word), "days": number} for number, day in enumerate(days, 1)]
        assert PLAN.check(task, [json.dumps(same)]).reward == 0


def test_the_number_of_cities_and_the_rules_of_the_route_are_told():
    task = task_of(PLAN, days=7, destination="Texas", origin="Joplin")
    assert "from Joplin to 3 cities in Texas for 7 days" in str(task.spec["query"])
    assert "return to it" in task.messages[0].content
    assert "come to no city again" in task.messages[0].content
    assert "Self-driving, from A to B" in task.messages[0].content


@pytest.mark.long
def test_every_base_and_held_out_query_says_what_its_spec_says_and_nothing_else():
    atlas = PLAN.atlas
    specs = [spec for _, spec in (*training_specs(atlas, 7), *held_out_specs(atlas, 7))]
    assert len(specs) == 480
    for spec in specs:
        text = filled(spec.query, wordings(spec, 900))
        assert text is not None
        assert says(text, spec, 900)
        assert not says(text, spec, 910)
        for field in ("people", "start"):
            other = spec.model_copy(update={field: getattr(spec, field) % 8 + 1})
            assert not says(text, other, 900)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"query": f"{WORDS} See you."}, RejectReason.INCONSISTENT),
        ({"query": WORDS.replace("<people>", "3 people")}, RejectReason.UNSTATED),
        ({"query": WORDS.replace("<days>", "a while")}, RejectReason.UNSTATED),
        ({"query": WORDS.replace("Please plan", "Plan")}, RejectReason.INCONSISTENT),
    ],
)
def test_a_task_whose_query_is_another_is_refused(fields, reason):
    found = PLAN.audit(task_of(PLAN, **fields), random.Random(0))
    assert isinstance(found, Rejection)
    assert found.reason is reason


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2 people", "2 people and my mother"),
        ("2 people", "2 people and more friends"),
        ("2 people", "2 people or so"),
        ("with $", "with over $"),
        ("with $", "with about $"),
        ("$900", "$900 each"),
        ("$900", "$900 a day"),
        ("no flights", "I hear no flights is off"),
        ("no flights", "it may be no flights"),
    ],
)
def test_words_that_change_a_value_are_refused(old, new):
    spec = TravelSpec.model_validate(
        {**task_of(PLAN).spec, "limits": 1, "transport": "no flight", "query": WORDS}
    )
    text = filled(f"{WORDS} We ask for <transport>.", wordings(spec, 900))
    assert text is not None
    assert says(text, spec, 900)
    assert old in text
    assert not says(text.replace(old, new), spec, 900)


GARBAGE = [
    "",
    "no",
    "[]",
    "{}",
    "null",
    "7",
    "[[[[",
    "[1, 2]",
    "[{}]",
    '[{"days":1}]',
    '[{"lunch":null}]',
    '{"breakfast":{"a":1}}',
    "[" * 100_000,
    '{"a":' * 5_000,
    "9" * 15_000,
    '"' + "x" * 15_000 + '"',
    "\x00\ud800",
    "plan(",
    "plan()",
    "```json\n```",
    "__import__('os').system('true')",
    "flights(" * 30,
    "flights(1)",
]


@pytest.mark.parametrize("env", ALL)
@pytest.mark.parametrize("reply", GARBAGE)
def test_garbage_is_worth_nothing_and_is_explained(env, reply):
    task = task_of(env)
    replies = [reply] * env.episode(task).max_turns
    try:
        play(env, task, replies)
    except OutOfTurns:
        assert env.settings.mode == "tools"
    verdict = env.check(task, replies)
    assert not verdict.success
    assert verdict.reward == 0
    assert verdict.explanation.endswith(".")
    assert env.check(task, replies) == verdict


@pytest.mark.parametrize("env", ALL)
@pytest.mark.parametrize("start", ["", "[", '{"lunch":"', 'flights("'])
def test_ten_megabytes_are_refused_at_once(env, start):
    task = task_of(env)
    replies = [start + "a, b; [" * 1_500_000] * env.episode(task).max_turns
    with within(1):
        try:
            play(env, task, replies)
        except OutOfTurns:
            assert env.settings.mode == "tools"
        assert env.check(task, replies).reward == 0


def test_long_texts_inside_a_plan_stay_fast():
    task = task_of(PLAN)
    days = json.loads(task.oracle[0])
    for text in ("from " * 100 + "to", "a," * 250, "(" * 500, ";" * 500):
        for day in days:
            day |= {"transportation": text, "lunch": text, "attraction": text, "current_city": text}
        with within(0.5):
            assert not PLAN.check(task, [json.dumps(days)]).success


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=12)
    | st.sampled_from(["-", "Tucson", "from Denver to Tucson"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["days", "current_city", "transportation", "lunch", "dinner", "accommodation"]),
            inner,
        )
    ),
    max_leaves=12,
)


@pytest.mark.long
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(reply=JSON.map(json.dumps) | st.text(max_size=60))
def test_any_reply_gets_the_same_verdict_twice(reply):
    for env in ALL:
        task = task_of(env)
        verdict = env.check(task, [reply])
        assert verdict == env.check(task, [reply])
        assert not verdict.success
        assert 0 <= verdict.reward < 1


# --- tools ---


def test_tools_answer_shortly_and_cheapest_first():
    short = Travel(TravelConfig(mode="tools", result_tokens=50))
    task = task_of(short)
    calls = [
        'restaurants("Tucson")',
        'distance("Denver", "Tucson", mode="taxi")',
        'flights("Denver","Tucson","2022-03-04")',
        'attractions(city="Tucson")',
        'accommodations("Nowhere")',
    ]
    told = play(short, task, [*calls, task.oracle[-1]])
    assert len(told) == 2 + len(calls)  # the prompt's two messages first
    restaurants, taxi, flights, sights, nothing = told[2:]
    assert restaurants.splitlines()[-1].startswith("and ")
    costs = [float(line.split("cost ")[1].split(",")[0]) for line in restaurants.splitlines()[:-1]]
    assert costs == sorted(costs)
    assert taxi == f"Taxi, cost {short.database.road_cost('Denver', 'Tucson', 'taxi')}"
    assert all(line.startswith(("Flight Number: F", "and ")) for line in flights.splitlines())
    assert "Museum" in sights or "Tower" in sights or "Park" in sights
    assert nothing == "Nothing found."
    assert max(map(len, told[2:])) < 250


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("hotels('Tucson')", "Error: there is no tool 'hotels'; there are flights,"),
        ("flights('Denver')", "Error: flights takes origin, destination, date, as texts."),
        ("flights('Denver', 'Tucson', 3)", "Error: flights takes origin, destination, date, as texts."),
        ("restaurants(*['Tucson'])", "Error: restaurants takes city, as texts."),
        ("restaurants(**{'city': 'Tucson'})", "Error: restaurants takes city, as texts."),
        ("restaurants(open('x'))", "Error: restaurants takes city, as texts."),
        ("a.b('Tucson')", "Error: write one call of a tool, or the plan as JSON."),
        ("hello there", "Error: write one call of a tool, or the plan as JSON."),
        ("x" * 301, "Error: a call has at most 300 characters."),
        ("(" * 200, "Error: write one call of a tool, or the plan as JSON."),
    ],
)
def test_calls_that_cannot_be_read_are_explained_and_never_run(call, answer):
    task = task_of(TOOLS)
    assert play(TOOLS, task, [call, task.oracle[-1]])[2].startswith(answer)


def test_endless_useful_looking_calls_end_without_reward():
    task = task_of(TOOLS)
    replies = ['restaurants("Tucson")'] * 1000
    with pytest.raises(OutOfTurns):
        play(TOOLS, task, replies)
    verdict = TOOLS.check(task, replies[: TOOLS.settings.max_turns])
    assert (verdict.reward, verdict.explanation) == (0, "There is no plan among the replies.")


def test_a_plan_after_the_last_turn_does_not_count():
    task = task_of(TOOLS)
    late = ['restaurants("Tucson")'] * TOOLS.settings.max_turns + [task.oracle[-1]]
    assert TOOLS.check(task, late).reward == 0


def test_the_first_plan_counts():
    task = task_of(TOOLS)
    assert not TOOLS.check(task, ["[]", *task.oracle]).success
    assert TOOLS.check(task, [f"plan({task.oracle[-1]})"]).success


def test_a_stored_task_equals_a_fresh_one():
    for env in ALL:
        task = task_of(env)
        assert json.loads(json.dumps(task.payload)) == task.payload
        assert json.loads(json.dumps(task.spec)) == task.spec
