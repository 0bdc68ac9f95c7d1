"""What is asked for: where, when, for how many, for how much, and under which constraints."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, cast

from genenv.errors import DataError
from genenv.types import Json, JsonObject

Day: TypeAlias = Mapping[str, Json]
"""A day of a plan, in the benchmark's form: `days current_city transportation breakfast attraction lunch
dinner accommodation`, `-` for none."""

Plan: TypeAlias = Sequence[Day]

FIELDS = ("transportation", "breakfast", "attraction", "lunch", "dinner", "accommodation")
"""What a day says beside its number and its city."""

MEALS = ("breakfast", "lunch", "dinner")

HouseRule = Literal["smoking", "parties", "children under 10", "visitors", "pets"]
"""What the travelers want to be allowed. `parties` is enforced as the authors' evaluator enforces it since
2024-04-26 (their commit ed379c4); before, it looked for `parities`, which no query says."""

_MISSPELLED = "parities"
"""How stores of runs from before may spell `parties`."""

RoomType = Literal["shared room", "not shared room", "private room", "entire room"]
Transport = Literal["no flight", "no self-driving"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The structured form of a query: the benchmark's fields."""

    origin: str
    destination: str
    """A city for 3 days, else a state."""
    days: int
    cities: int
    """How many cities are visited."""
    dates: tuple[str, ...]
    """One a day, YYYY-MM-DD."""
    people: int
    budget: float
    """For everybody and everything, USD."""
    house_rule: HouseRule | None = None
    cuisines: tuple[str, ...] = ()
    """Each must be had at least once."""
    room_type: RoomType | None = None
    transport: Transport | None = None

    def to_json(self) -> JsonObject:
        """As plain values, lists instead of tuples."""
        return {**asdict(self), "dates": list(self.dates), "cuisines": list(self.cuisines)}

    @staticmethod
    def from_json(value: JsonObject) -> Query:
        """What `to_json` wrote."""
        data: dict[str, Any] = dict(cast(Mapping[str, Any], value))
        data["dates"], data["cuisines"] = tuple(data["dates"]), tuple(data["cuisines"])
        if data.get("house_rule") == _MISSPELLED:
            data["house_rule"] = "parties"
        return Query(**data)


def benchmark_query(row: Mapping[str, str]) -> Query:
    """A row of TravelPlanner's `train.csv` or `validation.csv`.

    Raises:
        DataError: it is not such a row.
    """
    try:
        local = ast.literal_eval(row["local_constraint"])
        return Query(
            origin=row["org"],
            destination=row["dest"],
            days=int(row["days"]),
            cities=int(row["visiting_city_number"]),
            dates=tuple(ast.literal_eval(row["date"])),
            people=int(row["people_number"]),
            budget=float(row["budget"]),
            house_rule=local["house rule"],
            cuisines=tuple(local["cuisine"] or ()),
            room_type=local["room type"],
            transport=local["transportation"],
        )
    except (KeyError, ValueError, TypeError, SyntaxError) as error:
        raise DataError(f"not a query of TravelPlanner ({error!r}); download its files again") from None
