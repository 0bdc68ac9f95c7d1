"""The two-stage mode on a database of two cities: what tools answer, what is planned, and when it ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from genenv.benchmarks.travelplanner import TravelPlanner
from genenv.benchmarks.travelplanner.benchmark import TravelPlannerSettings
from genenv.benchmarks.travelplanner.two_stage import Refused, table
from genenv.chat.assistant import Reply
from genenv.errors import ContextOverflow, DataError
from genenv.evaluation.data import DataFolder

FLIGHTS = (
    ",Flight Number,Price,DepTime,ArrTime,ActualElapsedTime,FlightDate,OriginCityName,DestCityName,Distance\n"
    "0,F1,100,08:00,10:00,2 hours,2022-03-01,Home,Bay,500.0\n"
    "1,F2,120,08:00,10:00,2 hours,2022-03-03,Bay,Home,500.0\n"
    "2,F9,70,09:00,11:00,2 hours,2022-03-01,Home,Bay,500.0\n"
)
SETTINGS = TravelPlannerSettings(mode="two-stage")
COLLECTED = (
    *("FlightSearch[Home, Bay, 2022-03-01]", "NotebookWrite[flights there]", "RestaurantSearch[Bay]"),
    *("NotebookWrite[meals]", "AccommodationSearch[Bay]", "NotebookWrite[rooms]"),
)


@pytest.fixture
def whole(folder: Path) -> DataFolder:
    """The benchmark of two queries, with a table of all flights and the list of cities."""
    database = folder / "travelplanner" / "database"
    (database / "flights").mkdir()
    (database / "flights" / "clean_Flights_2022.csv").write_text(FLIGHTS, encoding="utf-8")
    (database / "background" / "citySet.txt").write_text("Home\nBay\n", encoding="utf-8")
    return DataFolder(folder, known={})


@pytest.fixture
def asked(whole):
    """Asks the first query; returns the answer, the prompts and the grade."""
    bench = TravelPlanner(SETTINGS)
    item = bench.load(whole, "validation")[0]

    def run(actions, plan="", full_at=None):
        prompts = []
        left = iter(actions)

        async def talk(messages, **_):
            prompts.append(messages[-1]["content"])
            if full_at is not None and len(prompts) > full_at:
                raise ContextOverflow("the window is full")
            if prompts[-1].rstrip().splitlines()[-1].startswith("Thought"):
                return Reply(text="I think.\nAnd more, which is not read.")
            acts = prompts[-1].rstrip().splitlines()[-1].startswith("Action")
            return Reply(text=next(left) if acts else plan)

        answer = asyncio.run(bench.attempt(item, talk))
        return answer, prompts, bench.grade(item, answer)

    return run


def test_what_was_written_down_is_what_the_planner_reads(asked, good):
    answer, prompts, grade = asked([*COLLECTED, "Planner[Three of us go to Bay.]"], str(list(good)))
    assert (answer["ended"], answer["steps"]) == ("planned", 7)
    assert answer["actions"] == [*COLLECTED, "Planner[Three of us go to Bay.]"]
    assert "'Short Description': 'meals'" in prompts[-1]
    assert "Fig Tree" in prompts[-1]
    assert "Calm Inn" in prompts[-1]
    assert "Three of us go to Bay." in prompts[-1]
    assert "Fig Tree" not in prompts[-2]
    assert grade.score == 1


def test_a_flight_of_the_whole_table_is_within_the_sandbox(asked, good):
    cheaper = str(list(good)).replace("F1,", "F9,")
    assert asked(["Planner[q]"], cheaper)[2].score == 1


def test_searches_answer_as_tables_and_sentences(whole):
    find = TravelPlanner(SETTINGS).load(whole, "validation")[0].data.split.searches.answer
    head, first, second = find("FlightSearch", "Home, Bay, 2022-03-01").split("\n")
    assert head.startswith("Flight Number  Price DepTime ArrTime ActualElapsedTime FlightDate OriginCityName")
    assert first.split() == [
        "F1",
        "100",
        "08:00",
        "10:00",
        "2",
        "hours",
        "2022-03-01",
        "Home",
        "Bay",
        "500.0",
    ]
    assert second.split()[:2] == ["F9", "70"]
    assert len(head) == len(first) == len(second)
    none = find("FlightSearch", "Bay, Home, 2022-03-01")
    assert none == "There is no flight from Bay to Home on 2022-03-01."
    assert find("GoogleDistanceMatrix", "Home, Bay(Coast), taxi") == (
        "taxi, from Home to Bay, duration: 10 hours, distance: 1,144 km, cost: 1144"
    )
    assert find("GoogleDistanceMatrix", "Home, Bay, self-driving").endswith("cost: 57")
    assert find("GoogleDistanceMatrix", "Bay, Bay, taxi") == "taxi, from Bay to Bay, no valid information."
    assert find("CitySearch", "Coast") == "['Bay']"
    assert find("CitySearch", "Nowhere") == "Invalid State"
    assert find("RestaurantSearch", "Home") == "There is no restaurant in this city."
    for name, argument, words in (
        ("FlightSearch", "Home, Bay", "takes a city, a city and a date"),
        ("FlightSearch", "Home, Bay, March 1st", "'March 1st' is no date of the form YYYY-MM-DD"),
        ("FlightSearch", "Home, Sea, 2022-03-01", "There is no city 'Sea'; the cities are Home, Bay."),
        ("AttractionSearch", "Sea", "There is no city 'Sea'"),
    ):
        with pytest.raises(Refused, match=words):
            find(name, argument)


def test_a_table_is_written_as_pandas_writes_it():
    pandas = pytest.importorskip("pandas")
    names = ("Name", "Latitude", "Count", "Long text of a column")
    rows = [("Pier", 1.5, 3, "a"), ("A longer name", -12.3456789, 40, "b"), ("☆", 100.0, 5, "c d")]
    assert table(names, rows) == pandas.DataFrame(rows, columns=list(names)).to_string(index=False)


@pytest.mark.parametrize(
    ("actions", "ended", "steps"),
    [
        (["CitySearch[Coast]"] * 3, "the same action 3 times in a row", 3),
        ([f"Fly[{n}]" for n in range(9)], "an invalid action: 3 wrong before", 4),
        ([f"RestaurantSearch[{n}]" for n in range(9)], "RestaurantSearch: 3 wrong before", 4),
        (
            ["Fly[1]", "CitySearch[Coast]"] * 20,
            "no plan within 30 steps",
            30,
        ),
        ([f"AccommodationSearch[{n}]" for n in range(40)], "no plan within 30 steps", 30),
        (["", "", ""], "the same action 3 times in a row", 3),
    ],
)
def test_the_agent_ends_where_the_authors_does(asked, actions, ended, steps):
    answer, _, grade = asked(actions)
    assert (answer["ended"], answer["steps"], answer["reply"]) == (ended, steps, "")
    assert grade.measures["delivered"] == 0


def test_a_full_window_ends_the_search_and_at_the_first_step_is_for_the_runner(asked):
    assert asked(["CitySearch[Coast]"], full_at=2)[0]["ended"] == "the window is full"
    with pytest.raises(ContextOverflow):
        asked([], full_at=0)


def test_without_the_table_of_all_flights_it_is_one_sentence(folder):
    with pytest.raises(
        DataError, match=r"clean_Flights_2022\.csv is missing; docs/guides/evaluation\.md says where"
    ):
        TravelPlanner(SETTINGS).load(DataFolder(folder, known={}), "validation")


def test_the_authors_prompt_for_searching_is_read_from_their_file(whole):
    (whole.root / "travelplanner" / "prompts.py").write_text(
        'PLANNER_INSTRUCTION = "{text} {query}"\nZEROSHOT_REACT_INSTRUCTION = "Find. {query}{scratchpad}"\n',
        encoding="utf-8",
    )
    bench = TravelPlanner(TravelPlannerSettings(mode="two-stage", prompt="authors"))
    item = bench.load(whole, "validation")[0]
    assert item.data.split.searching == "Find. {query}{scratchpad}"
    assert bench.many_turns(item)
    assert bench.most_replies(item) == 61
