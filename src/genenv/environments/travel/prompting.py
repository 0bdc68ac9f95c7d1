"""What the simulator and the agent are told."""

from __future__ import annotations

from genenv.environments.common import request
from genenv.environments.travel.choices import Choices
from genenv.environments.travel.query import Query
from genenv.environments.travel.seeds import bare
from genenv.environments.travel.settings import TravelConfig
from genenv.environments.travel.spec import TravelSpec
from genenv.types import Message, Profile, Seed

_RULES = (
    "No restaurant or attraction twice. Either drive the own car on every leg or never. Stay at least a "
    "room's minimum nights. Everything for all people must fit the budget: flights and meals are a person, "
    "rooms a night, as many of one as all need, cars seat 5, taxis 4. An entire room is an Entire home/apt; "
    "a room allows what it does not forbid."
)
_ROUTE = (
    "Start in the origin and return to it on the last day; come to no city again once it was left. "
    "Who drives writes Self-driving, from A to B, and who takes a taxi Taxi, from A to B. "
)
_DAY_FORM = (
    '{"days":1,"current_city":"from A to B","transportation":"Flight Number: F1, from A to B",'
    '"breakfast":"-","attraction":"-","lunch":"-","dinner":"Name, B","accommodation":"Name, B"}'
)
_MISSING_FORM = (
    '{"breakfast":"Name","attraction":"Name","lunch":"Name","dinner":"Name","accommodation":"Name"}'
)
_TOOLS = (
    'flights("origin","destination","2022-03-01")',
    'distance("origin","destination","taxi")',
    'accommodations("city")',
    'restaurants("city")',
    'attractions("city")',
)


def simulator_messages(seed: Seed, choices: Choices, profile: Profile, target: float) -> tuple[Message, ...]:
    """The conversation that asks the simulator for a variation of a seed.

    Args:
        seed: the item to vary, shown with blanks in its query.
        choices: what may be chosen.
        profile: the agent's success per skill.
        target: the success rate to aim at, in (0, 1).
    """
    spec = TravelSpec.model_validate(seed.spec)
    rules = [rule for rule in choices.rooms if rule]
    rooms = [room for room in choices.rooms[None] if room]
    system = (
        "Write travel requests as JSON: difficulty, the trip, then a query with a <blank> for each value. "
        f"A planner should solve {target:.0%}.\n"
        f"From: {', '.join(choices.origins)}. To: {', '.join(choices.destinations)}. In March 2022.\n"
        f"Limits, if any: room_rule {'/'.join(rules)}; room_type {'/'.join(rooms)}; "
        f"cuisines {'/'.join(choices.cuisines)}; transport {'/'.join(choices.transports)}."
    )
    return request(system, bare(spec), profile, seed.skills, thing="request")


def agent_system(query: Query, settings: TravelConfig) -> str:
    """The agent's instructions."""
    known = "the information" if settings.mode == "sole" else "the results of the tools"
    if settings.form == "day":
        task = (
            f"Fill in the missing day of a travel plan, with names from {known}. {_RULES}\n"
            f"Answer with one line: {_MISSING_FORM}"
        )
    else:
        task = (
            f"Plan the trip day by day, with names from {known}. Days of travel say where from and where to; "
            "days in a city need three meals, an attraction and, but for the last, a room. Write - for none. "
            f"{_ROUTE}{_RULES}\nAnswer with a JSON list of {query.days} days such as\n{_DAY_FORM}"
        )
    if settings.mode == "sole":
        return task
    return f"{task}\nFirst look things up, one call a turn: {', '.join(_TOOLS)}"
