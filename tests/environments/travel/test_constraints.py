"""The 13 constraints, on a trip worked out by hand, oddities of the official evaluator included."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genenv.environments.travel.constraints import COMMONSENSE, HARD, score, total_cost
from genenv.environments.travel.database import Database
from genenv.environments.travel.query import HouseRule, before_parenthesis, from_to, name_and_city
from genenv.environments.travel.trips import fits_wishes


def failed(query, plan, database) -> set[str]:
    return set(score(query, plan, database).problems)


@pytest.fixture
def rich(query):
    return replace(query, budget=10_000)


def test_there_are_eight_commonsense_and_five_hard_constraints():
    assert (len(COMMONSENSE), len(HARD)) == (8, 5)


def test_flights_and_meals_count_by_person_and_rooms_by_occupancy_and_night(query, plan, small):
    assert total_cost(query, plan(), small) == 3 * (100 + 120) + 3 * (20 + 30 + 40) + 2 * 2 * 80


@pytest.mark.parametrize(
    ("way", "people", "cost"),
    [("Self-driving", 5, 40), ("Self-driving", 6, 80), ("Taxi", 4, 801), ("Taxi", 5, 1602)],
)
def test_cars_seat_five_taxis_four_and_a_kilometer_costs_5_cents_or_a_dollar(
    rich, plan, small, way, people, cost
):
    days = plan(day1={"transportation": f"{way}, from Home to Bay", "accommodation": "-"})[:1]
    assert total_cost(replace(rich, people=people), days, small) == cost


def test_the_good_plan_meets_everything_when_it_is_paid_for(query, rich, plan, small):
    assert score(rich, plan(), small).passed
    found = score(query, plan(), small)
    assert found.problems == {"budget": "The plan costs $1,250, the budget is $1,160."}
    assert (found.commonsense, found.hard, found.passed) == ((8, 8), (0, 1), False)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"day2": {"lunch": "Yew, Bay"}}, {"within_sandbox"}),
        ({"day1": {"transportation": "Flight Number: F2, from Home to Bay"}}, {"within_sandbox"}),
        ({"day2": {"lunch": "-"}}, {"complete_information"}),
        ({"day1": {"accommodation": "-"}}, {"complete_information"}),
        ({"day2": {"attraction": "-"}}, {"complete_information"}),
        ({"day1": {"transportation": "-"}}, {"complete_information", "non_conflicting_transportation"}),
        ({"day1": {"dinner": "Ash, Home"}, "day3": {"dinner": "Ash, Home"}}, {"diverse_restaurants"}),
        ({"day2": {"attraction": "Pier, Bay;Pier, Bay;"}}, {"diverse_attractions"}),
        ({"day1": {"transportation": "Self-driving, from Home to Bay"}}, {"non_conflicting_transportation"}),
        (
            {"day3": {"current_city": "from Bay to Far"}},
            {"reasonable_route", "complete_information", "within_current_city"},
        ),
        ({"day1": {"accommodation": "Long Inn, Bay"}}, {"minimum_nights"}),
        ({"day2": {"lunch": 7}}, {"within_sandbox", "within_current_city", "diverse_restaurants"}),
    ],
)
def test_what_is_wrong_fails_its_constraint_and_no_other(rich, plan, small, changes, names):
    assert failed(rich, plan(**changes), small) == names


def test_hard_constraints_are_not_looked_at_in_plans_outside_the_sandbox(query, plan, small):
    found = score(query, plan(day2={"lunch": "Yew, Bay"}), small)
    assert (found.hard, found.judged_hard) == ((0, 1), False)


@pytest.mark.parametrize(
    ("wishes", "name"),
    [
        ({"house_rule": "pets"}, "room_rule"),
        ({"room_type": "private room"}, "room_type"),
        ({"room_type": "shared room"}, "room_type"),
        ({"cuisines": ("Italian",)}, "cuisine"),
        ({"transport": "no flight"}, "transportation"),
    ],
)
def test_what_the_query_asks_for_is_demanded(rich, plan, small, wishes, name):
    assert failed(replace(rich, **wishes), plan(), small) == {name}


@pytest.mark.parametrize(
    "wishes",
    [
        {"house_rule": "smoking"},
        {"room_type": "entire room"},
        {"room_type": "not shared room"},
        {"cuisines": ("French", "Mexican")},
        {"transport": "no self-driving"},
    ],
)
def test_what_the_plan_has_is_found(rich, plan, small, wishes):
    found = score(replace(rich, **wishes), plan(), small)
    assert (found.problems, found.hard) == ({}, (2, 2))


@pytest.mark.parametrize("rule", get_args(HouseRule))
def test_each_house_rule_is_enforced_by_the_word_that_queries_use(rich, plan, small, rule):
    calm, *others = small.accommodations("Bay")
    strict = Database(
        small.tables._replace(accommodations=[calm._replace(house_rules=f"No {rule}"), *others])
    )
    asks = replace(rich, house_rule=rule)
    assert failed(asks, plan(), strict) == {"room_rule"}
    assert not fits_wishes(strict.accommodations("Bay")[0], asks)
    others = " & ".join(f"No {other}" for other in get_args(HouseRule) if other != rule)
    lenient = Database(small.tables._replace(accommodations=[calm._replace(house_rules=others)]))
    assert failed(asks, plan(), lenient) == set()
    assert fits_wishes(lenient.accommodations("Bay")[0], asks)


def test_the_last_attraction_is_not_looked_at_unless_a_semicolon_follows(rich, plan, small):
    assert failed(rich, plan(day2={"attraction": "Nowhere, Bay"}), small) == set()
    assert failed(rich, plan(day2={"attraction": "Nowhere, Bay;"}), small) == {"within_sandbox"}


def test_a_name_matches_as_a_part_and_the_first_row_is_paid(rich, plan, small):
    days = plan(day2={"breakfast": "Fig, Bay"})  # Fig costs 10 and Fig Tree 20
    assert total_cost(rich, days, small) == 1250 - 3 * 10
    assert score(rich, plan(day2={"breakfast": "ig Tre, Bay"}), small).passed


def test_on_days_without_travel_letters_are_compared_instead_of_cities(rich, plan, small):
    assert failed(rich, plan(day2={"lunch": "Ash, Home"}), small) == {"within_current_city"}  # no B, a or y
    assert failed(rich, plan(day2={"lunch": "Elm, Bay", "dinner": "Fig, Bay"}), small) == set()


def test_meals_after_one_in_the_origin_do_not_count_as_cuisine(rich, plan, small):
    wish = replace(rich, cuisines=("Italian",))
    assert failed(wish, plan(day3={"lunch": "Fig, Bay"}), small) == set()
    assert failed(wish, plan(day3={"breakfast": "Ash, Home", "lunch": "Fig, Bay"}), small) == {"cuisine"}


def test_a_road_of_more_than_a_day_is_none(small):
    assert small.road_cost("Home", "Far", "taxi") is None
    assert small.road_cost("Bay", "Far", "taxi") is None
    assert small.road_cost("Home", "Bay", "self-driving") == 40


def test_flights_count_on_any_day(rich, plan, small):
    late = replace(rich, dates=("2022-03-11", "2022-03-12", "2022-03-13"))
    assert score(late, plan(), small).passed


def test_no_plan_meets_nothing(query, small):
    found = score(query, [], small)
    assert (found.commonsense, found.hard, found.passed) == ((0, 8), (0, 1), False)
    assert found.sentence == "There is no plan."


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Oak, Bay", ("Oak", "Bay")),
        ("Oak, Ash and Elm, Bay(Coast)", ("Oak, Ash and Elm", "Bay")),
        ("Oak", ("-", "-")),
    ],
)
def test_names_and_cities_are_split_at_the_last_comma(text, parts):
    assert name_and_city(text) == parts


def test_cities_are_read_without_their_state():
    assert before_parenthesis("Bay(Coast)") == "Bay"
    assert from_to("Taxi, from St. Louis to New York, cost: 4") == ("St. Louis", "New York")


FIELDS = ("current_city", "transportation", "breakfast", "attraction", "lunch", "dinner", "accommodation")
WORDS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["-", "", "from Home to Bay", "Bay", "Taxi, from Home to Bay", "Flight Number: F1", "Fig, Bay;"]
    ),
    st.none(),
    st.integers(),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(days=st.lists(st.dictionaries(st.sampled_from(FIELDS), WORDS), max_size=5))
def test_any_plan_gets_a_score(query, small, days):
    found = score(query, days, small)
    assert 0 <= found.commonsense[0] + found.hard[0] <= len(found.asked)
    assert all(problem.endswith(".") for problem in found.problems.values())
