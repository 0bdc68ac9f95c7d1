"""Draws the states and the tasks of the built-in apps anew: `python tools/rebuild_apps.py`.

Everything else of that bundle (wordings, values, ways to call) is written by hand. Equal files lead to equal
states and tasks. A split has 60% one call, 28% two and 12% three; 12% have a gap, half of them for each
kind; 8% are chained; 2, 3, 4, 6 and 8 tools are shown alike, as far as the calls allow. The held-out tasks
come in lots of 200, each with the whole mix. All pass the gate.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from typing import Any, cast

from genenv.environments.common import Refused
from genenv.gate.gate import examined
from genenv.tools.bundle import Bundle, Starts, program_line
from genenv.tools.generate.plans import Rules, plans
from genenv.tools.spec import THEN, Gap, Program, Size, ToolsParameters
from genenv.tools.tool_calling.environment import BUNDLE, ToolCalling
from genenv.types import Lineage, Origin, Rejection

TRAINING, LOT, LOTS = 544, 200, 5
TWO_CALLS, THREE_CALLS, GAPS, CHAINED, LONG_CHAINED = 0.28, 0.12, 0.12, 0.08, 0.2
MOST_WORDS = 48

Plan = tuple[str, int, bool, Gap]
"""Tools, how many calls, whether they chain, what is missing."""


def main() -> None:
    """Write them."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    states = [state_of(number) for number in range(counted().training + counted().measuring)]
    lines = "".join(json.dumps(one, ensure_ascii=False, separators=(",", ":")) + "\n" for one in states)
    (BUNDLE / "files" / "states.jsonl").write_text(lines, encoding="utf-8")
    for which, n, lots in (("base", TRAINING, 1), ("held-out", LOT, LOTS)):
        drawn = itertools.chain(*(programs(lot, n, measuring=which != "base") for lot in range(lots)))
        lines = "".join(program_line(program) + "\n" for program in drawn)
        (BUNDLE / "tasks" / f"{which}.jsonl").write_text(lines, encoding="utf-8")


def counted() -> Starts:
    """How many states each side has."""
    return cast(Starts, Bundle.open(BUNDLE).about.starts)


# --- states ---


def state_of(number: int) -> dict[str, Any]:
    """A day in somebody's life, with names and texts of its side."""
    measuring = number >= counted().training
    rng, bundle = random.Random(f"apps state {number}"), Bundle.open(BUNDLE)
    words = bundle.measuring_spoken_values if measuring else bundle.spoken_values
    today = date(2025, 1, 2) + timedelta(days=2 * rng.randrange(180))
    kinds = cast("dict[str, list[Any]]", {k.removeprefix("said."): v for k, v in words.kinds(today).items()})

    def some(kind: str, n: int) -> list[Any]:
        return rng.sample(kinds[kind], min(n, len(kinds[kind])))

    def soon() -> str:
        return rng.choice(kinds["date"][:7])

    people, payees = some("person", 5), some("payee", 4)
    return {
        "today": today.isoformat(),
        "bank": {
            "today": today.isoformat(),
            "balances": {
                "checking": rng.randrange(200, 400) * 1000,
                "savings": rng.randrange(400, 2000) * 1000,
            },
            "transactions": {
                account: [
                    {
                        "date": (today - timedelta(days=2 * back + 1)).isoformat(),
                        "party": rng.choice(payees),
                        "cents": -rng.randrange(300, 12_000),
                    }
                    for back in range(13, 0, -1)
                ]
                for account in ("checking", "savings")
            },
            "limits": {"groceries": rng.randrange(21, 60) * 1000},
        },
        "calendar": {
            "events": sorted(
                (
                    {
                        "title": title,
                        "date": soon(),
                        "start": rng.choice(kinds["time"]),
                        "minutes": rng.choice((30, 45, 60)),
                    }
                    for title in some("event", 6)
                ),
                key=json.dumps,
            )
        },
        "contacts": {
            "contacts": {
                name: {
                    "phone": f"555-{rng.randrange(1000, 10_000)}",
                    "email": f"{name.lower().replace(' ', '.')}@example.com",
                    "blocked": False,
                }
                for name in people
            },
            "inbox": [
                {"sender": name, "text": text} for name, text in zip(people, some("message", 4), strict=False)
            ],
            "sent": [],
        },
        "convert": {},
        "email": {
            "inbox": {
                str(number): {
                    "email_id": number,
                    "sender": rng.choice(people),
                    "subject": query,
                    "body": f"This is about the {query}.",
                    "archived": False,
                    "flag": "",
                }
                for number, query in zip(sorted(some("email_id", 5)), some("mail_query", 5), strict=True)
            },
            "sent": [],
        },
        "files": {
            "files": {
                path: rng.choice(kinds["note_text"])
                for path in sorted([*some("path", 5), *some("move[0]", 4)])
            }
        },
        "home": {
            "celsius": {room: rng.choice((15.0, 25.0, 26.5)) for room in ROOMS},
            "lights": {room: rng.random() < 0.5 for room in ROOMS},
            "locked": {door: rng.random() < 0.5 for door in ("front", "back", "garage")},
            "alarms": [{"time": "06:50", "label": "Wake up"}],
            "vacuum_queue": [],
        },
        "music": {
            "playing": None,
            "played": [],
            "playlists": {name: some("song_title", 2) for name in playlists(some("playlist", 4), kinds)},
            "volume": rng.choice((5, 11, 99)),
            "sleep_minutes": 0,
        },
        "notes": {
            "notes": dict(
                zip(
                    some("note", 6),
                    [f"Something about {query}." for query in some("note_query", 6)],
                    strict=True,
                )
            ),
            "todos": [{"item": item, "due": soon(), "done": False} for item in some("todo", 4)],
        },
        "shop": {
            "catalog": {
                product: rng.randrange(8, 70) * 50 + 45
                for product in [
                    *kinds["product"],
                    *(f"{'deluxe' if measuring else 'fancy'} {product}" for product in some("product", 4)),
                ]
            },
            "cart": {},
            "orders": {
                str(order): {
                    "order_id": order,
                    "product": rng.choice(kinds["product"]),
                    "quantity": rng.choice((1, 2)),
                    "address": rng.choice(kinds["street"]),
                    "status": "processing",
                }
                for order in sorted(some("order_id", 4))
            },
        },
        "trips": {
            "salt": rng.randrange(10**6),
            "cities": codes(kinds["city"]),
            "flights": dict.fromkeys(some("flight_id", 4), "on sale"),
            "bookings": {name: {"status": "booked"} for name in some("booking_id", 4)},
        },
    }


ROOMS = ("kitchen", "bedroom", "bathroom", "living room", "office")


def playlists(some: Sequence[str], kinds: dict[str, list[str]]) -> list[str]:
    """With one of two words among them, so that they are no field names."""
    return [next(one for one in kinds["playlist"] if " " in one and one not in some), *some]


def codes(cities: Sequence[str]) -> dict[str, str]:
    """Two letters for each city."""
    found: dict[str, str] = {}
    for city in cities:
        likely = (f"{city[0]}{letter}".upper() for letter in city[1:])
        found[city] = next(code for code in likely if code not in found.values())
    return found


# --- tasks ---


def programs(lot: int, n: int, *, measuring: bool) -> Iterator[Program]:
    """A lot of programs that pass the gate, in an order that is always the same."""
    env, rng = ToolCalling(), random.Random(f"apps {'measuring' if measuring else 'training'} {lot}")
    used: Counter[Size] = Counter()
    for place, plan in enumerate(
        rng.sample(list(itertools.islice(plans_of(env, rng, n, measuring=measuring), n)), n)
    ):
        tools, n_calls, chained, gap = plan
        sizes: list[Size] = [one for one in env.bundle.about.shown if one >= n_calls]
        size = min(sizes, key=lambda one: (used[one], rng.random()))
        used[size] += 1
        parameters = ToolsParameters(
            n_calls=n_calls, chained=chained, answer=False, n_tools=size, gap=gap, tools=tools
        )
        name = f"{env.bundle.name}-{'held-out' if measuring else 'base'}-{lot * n + place:04d}"
        try:
            yield passing(env, parameters, name, rng, measuring=measuring)
        except ValueError:
            if gap != "missing_info":
                raise
            others = rng.sample(incomplete(env, measuring=measuring), len(env.graph.recipes) // 2)
            yield first_passing(env, parameters, others, name, rng, measuring=measuring)


def incomplete(env: ToolCalling, *, measuring: bool) -> list[str]:
    """The tools that are asked for without a value."""
    wordings = env.wordings_of(measuring=measuring)
    return sorted({one.split(" without ")[0] for one in wordings if " without " in one})


def first_passing(
    env: ToolCalling,
    parameters: ToolsParameters,
    tools: Sequence[str],
    name: str,
    rng: random.Random,
    *,
    measuring: bool,
) -> Program:
    """A program of the first tool for which there is something left to say."""
    for tool in tools:
        with contextlib.suppress(ValueError):
            changed = parameters.model_copy(update={"tools": tool})
            return passing(env, changed, name, rng, measuring=measuring)
    raise ValueError(f"no tool is left for {parameters}")


known: set[str] = set()
"""What is said already."""


def passing(
    env: ToolCalling, parameters: ToolsParameters, name: str, rng: random.Random, *, measuring: bool
) -> Program:
    """A new program with these parameters that passes the gate, in words for its calls."""
    lineage = Lineage(origin=Origin.HELD_OUT if measuring else Origin.SEED)
    walker = env.walker(measuring=measuring)
    for _ in range(100):
        try:
            program = walker.drawn(parameters, rng)
        except Refused:
            continue
        task = env.build(program, task_id=name, lineage=lineage, rng=random.Random(name))
        if isinstance(task, Rejection) or examined(env, task, random.Random(name)) is not None:
            continue
        text = task.messages[-1].content
        if text in known or len(text.split()) > MOST_WORDS or " that this gives" in text:
            continue
        known.add(text)
        return program
    raise ValueError(f"no task is found for {parameters}")


def plans_of(env: ToolCalling, rng: random.Random, n: int, *, measuring: bool) -> Iterator[Plan]:
    """The plans of a split."""
    twos, threes, gaps, chained = (round(n * share) for share in (TWO_CALLS, THREE_CALLS, GAPS, CHAINED))
    long_chained = round(chained * LONG_CHAINED)
    tools = cycle(list(env.graph.recipes), rng)
    lacking = cycle(incomplete(env, measuring=measuring), rng)
    for name in itertools.islice(tools, n - twos - threes - gaps):
        yield name, 1, False, "none"
    for name in itertools.islice(tools, gaps - gaps // 2):
        yield name, 1, False, "no_tool"
    for name in itertools.islice(lacking, gaps // 2):
        yield name, 1, False, "missing_info"
    rules = Rules(most_calls=3, each=1000, together=env.bundle.about.together, measuring=measuring)
    found: dict[tuple[int, bool], set[str]] = {}
    for name in env.graph.recipes:
        for size, written in plans(env.graph, name, random.Random(name), rules).items():
            found.setdefault(size, set()).update(in_order(one) for one in written)
    for size, count in (
        ((2, True), chained - long_chained),
        ((3, True), long_chained),
        ((2, False), twos - chained + long_chained),
        ((3, False), threes - long_chained),
    ):
        for written in itertools.islice(cycle(sorted(found[size]), rng), count):
            shuffled = written if size[1] else "+".join(rng.sample(written.split("+"), size[0]))
            yield shuffled, size[0], size[1], "none"


def in_order(plan: str) -> str:
    """Equal groups alike."""
    return plan if THEN in plan else "+".join(sorted(plan.split("+")))


def cycle(items: Sequence[str], rng: random.Random) -> Iterator[str]:
    """The items in random order, all of them before any comes again."""
    while True:
        yield from rng.sample(items, len(items))


if __name__ == "__main__":
    main()
