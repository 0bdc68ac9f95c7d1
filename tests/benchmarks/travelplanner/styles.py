"""Plans written out as models write them freely: the same plan in many words and layouts.

What is left out can be told from the rest: a city only where the day's cities have one place of that name.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from genenv.environments.travel.database import Database
from genenv.environments.travel.query import MEALS, before_parenthesis, cities_of, from_to, name_and_city

Plan = list[dict[str, Any]]
TITLES = {
    "current_city": "Current City",
    "transportation": "Transportation",
    "breakfast": "Breakfast",
    "attraction": "Attraction",
    "lunch": "Lunch",
    "dinner": "Dinner",
    "accommodation": "Accommodation",
}
NOTHING = (
    "-", "None", "N/A", "Eat at home", "eat on the road", "Skip (traveling)", "On the flight", "At home",
    "none.", "N/A (returning home)", "Not needed", "",
)  # fmt: skip
ENTRIES: Mapping[str, Callable[[str, str], str]] = {
    "plain": lambda name, city: f"{name}, {city}",
    "price in brackets": lambda name, city: f"{name}, {city} ($20)",
    "details in brackets": lambda name, city: f"{name}, {city} (French, Tea, average cost: $20, rating 4.8)",
    "details before the city": lambda name, city: f"{name} (French, $20), {city}",
    "square brackets": lambda name, city: f"{name}, {city} [cost: $20, per person]",
    "a dash": lambda name, city: f"{name}, {city} - $20 per person, 4.8 stars",
    "a long dash": lambda name, city: f"{name}, {city} \u2013 a quiet place, well rated",
    "a semicolon": lambda name, city: f"{name}, {city}; Cost: 20",
    "a comma": lambda name, city: f"{name}, {city}, Cost: $20",
    "a colon": lambda name, city: f"{name}, {city}: cost $20",
    "a bar": lambda name, city: f"{name}, {city} | $20",
    "a full stop": lambda name, city: f"{name}, {city}.",
    "a sentence": lambda name, city: f"{name}, {city}. Good value, near the center.",
    "bold": lambda name, city: f"**{name}**, {city}",
    "all bold": lambda name, city: f"**{name}, {city}**",
    "a link": lambda name, city: f"[{name}](http://example.com/x), {city}",
    "quoted": lambda name, city: f'"{name}", {city}',
    "escaped": lambda name, city: f"{name}, {city} (\\$20)",
    "city in brackets": lambda name, city: f"{name} ({city})",
    "in the city": lambda name, city: f"{name} in {city}",
    "dash and city": lambda name, city: f"{name} - {city}",
}
SHORT: Mapping[str, Callable[[str], str]] = {
    "name": lambda name: name,
    "name and price": lambda name: f"{name} ($20)",
    "name and details": lambda name: f"{name} (cost: $20, rating: 4.8)",
    "name, dash, price": lambda name: f"{name} - $20",
    "name and cost": lambda name: f"{name}, cost: $20 per person",
}
BEFORE = {
    "breakfast": "Breakfast at",
    "lunch": "Have lunch at",
    "dinner": "Dinner:",
    "accommodation": "Stay at",
    "attraction": "Visit",
}
FLIGHTS = (
    "Flight Number: {0}, from {1} to {2}, Departure Time: 08:00, Arrival Time: 10:00",
    "Flight Number {0}, from {1} to {2}, Departure Time: 08:00",
    "Flight number {0} from {1} to {2} (08:00 - 10:00)",
    "Flight {0}, from {1} to {2}, cost: $100",
    "Flight No. {0} from {1} to {2}",
    "Flight #{0}: {1} to {2}",
    "Flight ({0}) {1} → {2}, departs 08:00",
    "Flight Number: {0} (from {1} to {2})",
    "Flight from {1} to {2} ({0}), $100 per person",
    "**Flight Number:** {0}, from {1} to {2} (Departure: 08:00, Arrival: 10:00)",
    "Flight Number: {0}, From {1} to {2}.",
    "Fly from {1} to {2}, Flight Number: {0}",
    "{0}, from {1} to {2}",
)
DRIVES = (
    "{0}, from {1} to {2}, duration: 8 hours, distance: 801 km, cost: $40",
    "{0} from {1} to {2} (8 hours, 801 km)",
    "{0}: {1} to {2}",
    "{0}, {1} -> {2}, cost 40",
    "{0}, From {1} to {2}.",
)
CITIES = ("{0}", "{0}({1})", "{0} ({1})", "{0}, {1}", "{0}.", "**{0}**")
WAYS = (
    "from {0} to {1}",
    "From {0} to {1}",
    "{0} to {1}",
    "{0} → {1}",
    "from {0} to {1} (flight)",
    "{0} - {1}",
)


def freely(plan: Plan, database: Database, rng: random.Random) -> str:
    """A plan in one of the layouts, each of its texts in one of the wordings."""
    return rng.choice(list(LAYOUTS.values()))([written(day, database, rng) for day in plan])


def written(day: Mapping[str, Any], database: Database, rng: random.Random) -> dict[str, str]:
    """A day's texts, freely worded."""
    said = {"current_city": _city(day, database, rng), "transportation": _way(day["transportation"], rng)}
    for field in (*MEALS, "accommodation", "attraction"):
        pieces = (
            [piece for piece in day[field].split(";") if piece] if field == "attraction" else [day[field]]
        )
        said[field] = _several([_entry(field, piece, day, database, rng) for piece in pieces], rng)
    return {key: said[key] for key in TITLES}


def _entry(field: str, text: str, day: Mapping[str, Any], database: Database, rng: random.Random) -> str:
    if text == "-":
        return rng.choice(NOTHING)
    name, city = name_and_city(text)
    table = {"accommodation": database.accommodations, "attraction": database.attractions}.get(
        field, database.restaurants
    )
    alike = [here for here in cities_of(day) for row in table(here) if row.name.strip() == name]
    if alike == [city] and rng.random() < 0.3:
        return rng.choice(list(SHORT.values()))(name)
    form = rng.choice(list(ENTRIES.values()))(name, city)
    return f"{BEFORE[field]} {form}" if rng.random() < 0.15 and form.startswith(name) else form


def _several(entries: Sequence[str], rng: random.Random) -> str:
    return rng.choice(("; ", ";", " ; "))[: None if len(entries) > 1 else 0].join(entries) or "-"


def _city(day: Mapping[str, Any], database: Database, rng: random.Random) -> str:
    pair = from_to(day["current_city"])
    if pair is not None:
        return rng.choice(WAYS).format(*map(before_parenthesis, pair))
    city = before_parenthesis(day["current_city"])
    return rng.choice(CITIES).format(city, database.state_of(city))


def _way(text: str, rng: random.Random) -> str:
    pair = from_to(text)
    if pair is None:
        return rng.choice(("-", "None", "N/A", "Walk", "Local transportation", "Not needed"))
    ends = [before_parenthesis(end) for end in pair]
    number = re.search(r"F\d+", text)
    if number is not None:
        return rng.choice(FLIGHTS).format(number[0], *ends)
    kinds = ("Self-driving", "Self driving", "Self-drive") if "Self-driving" in text else ("Taxi",)
    return rng.choice(DRIVES).format(rng.choice(kinds), *ends)


def _layout(heading: str, line: str, between: str = "\n\n") -> Callable[[Sequence[Mapping[str, str]]], str]:
    def laid(days: Sequence[Mapping[str, str]]) -> str:
        blocks = [
            "\n".join(
                [heading.format(number), *(line.format(TITLES[key], text) for key, text in day.items())]
            )
            for number, day in enumerate(days, 1)
        ]
        return f"Here is your plan:\n\n{between.join(blocks)}\n\nEnjoy your trip!"

    return laid


def _table(days: Sequence[Mapping[str, str]]) -> str:
    rows = [[f"Day {number}", *day.values()] for number, day in enumerate(days, 1)]
    cells = [[cell.replace("|", "\\|") or "-" for cell in row] for row in rows]
    lines = [["Day", *TITLES.values()], ["---"] * (len(TITLES) + 1), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _bullets(days: Sequence[Mapping[str, str]]) -> str:
    """Attractions as a list below their field."""
    text = _layout("**Day {}**", "- {}: {}")(days)
    for day in days:
        below = "".join(
            f"\n  {number}. {piece.strip()}" for number, piece in enumerate(day["attraction"].split(";"), 1)
        )
        if " - " not in day["attraction"] and "Cost:" not in day["attraction"]:
            text = text.replace(f"- Attraction: {day['attraction']}\n", f"- Attractions:{below}\n", 1)
    return text


LAYOUTS: Mapping[str, Callable[[Sequence[Mapping[str, str]]], str]] = {
    "lines": _layout("Day {}:", "{}: {}"),
    "bold": _layout("**Day {}**", "**{}:** {}"),
    "bold names": _layout("## Day {}: the plan", "- **{}**: {}"),
    "numbered": _layout("Day {} (March 3rd)", "* {} - {}"),
    "dated": _layout("March 3rd, 2022 (Day {}):", "{}: {}"),
    "icons": _layout("### Day {}", "\U0001f374 {}: {}"),
    "cells": _layout("#### Day {}", "| {} | {} |"),
    "escaped": lambda days: _layout("Day {}:", "{}: {}")(days).replace("\n", "\\n"),
    "bullets": _bullets,
    "table": _table,
    "json": lambda days: json.dumps([{"day": n, **day} for n, day in enumerate(days, 1)], indent=1),
    "titled json": lambda days: json.dumps(
        {f"Day {n}": {TITLES[key]: text for key, text in day.items()} for n, day in enumerate(days, 1)}
    ),
    "python": lambda days: str([{"days": n, **day} for n, day in enumerate(days, 1)]),
    "json in a text": lambda days: json.dumps(
        json.dumps([{"days": n, **day} for n, day in enumerate(days, 1)])
    ),
}
