"""What tools say as a source of values, and values that fail as a rule."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from genenv.tools.bundle import comparable
from genenv.tools.discover.answers import result_values, shown_by
from genenv.tools.discover.exploring import Explorer
from genenv.tools.discover.nondeterminism import find_nondeterminism
from genenv.tools.discover.recipes import CallStats, Held, Recipe, draw_arguments, parsed_result
from genenv.tools.discover.slots import taken
from genenv.tools.generate.fresh_values import fresh
from genenv.tools.worlds.base import Call, Outcome, Played, Tool
from genenv.tools.worlds.folder import Original, WorkingFolder, staged_lines
from genenv.tools.worlds.in_process import InProcessWorld
from genenv.types import Json, JsonObject

GIT = shutil.which("git")
TEXT: Json = {"type": "string"}


class Boxes:
    """Labels that no state shows: of two folders one alone has any."""

    def __init__(self) -> None:
        self.tools = {
            one.name: one
            for one in (
                Tool(name="open_label", parameters=_of("folder", "label")),
                Tool(name="list_labels", parameters=_of("folder")),
            )
        }

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        del watch
        state: Json = {"folders": {"old": None, "new": None, "empty": None}, "opened": []}
        return Played(outcomes=tuple(self._outcome(call.args) for call in calls), state=state)

    def _outcome(self, args: Mapping[str, Json]) -> Outcome:
        if args["folder"] != "old":
            return Outcome(error="it holds no labels")
        if args.get("label", "red") not in ("red", "blue"):
            return Outcome(error="there is no such label")
        return Outcome(result="opened" if "label" in args else "  red\n* blue")

    def close(self) -> None:
        pass


def _of(*names: str) -> dict[str, Json]:
    return {"type": "object", "properties": dict.fromkeys(names, TEXT), "required": list(names)}


def test_what_the_state_does_not_hold_is_asked_of_tools_that_read() -> None:
    graph = Explorer(Boxes(), random.Random(0)).explore()
    assert dict(graph.recipes["open_label"].ways) == {"folder": "folders.#", "label": "list_labels().#"}
    assert set(graph.recipes["list_labels"].fails["folder"]) <= {"new", "empty"}
    explorer = Explorer.of(Boxes(), graph, random.Random(1))
    call = explorer.attempt(graph.recipes["open_label"], (), random.Random(2))
    assert call is not None
    assert call.args["label"] in ("red", "blue")


def test_a_tool_whose_calls_do_nothing_is_said_to_do_nothing_whatever_else_fails() -> None:
    boxes = Boxes()
    boxes.tools["list_labels"] = replace(boxes.tools["list_labels"], writes=True)
    failures = Explorer(boxes, random.Random(0)).explore().failures
    assert failures["list_labels"] == "it is said to write, and nothing that can be seen changed"


def test_values_that_always_failed_are_seldom_drawn_where_others_succeeded() -> None:
    call_stats, ways = CallStats(), {"path": "folders.#"}
    for value, good in (("a", True), ("b", False), ("b", False), ("c", False)):
        call_stats.note(Call(tool="look", args={"path": value}), ways, good=good)
    assert call_stats.fails("look", ways) == {"path": ("b",)}
    assert call_stats.fails("other", ways) == {"path": ("b",)}  # what is called alike
    assert call_stats.fails("other", {"place": "folders.#"}) == {}
    tool = Tool(name="look", parameters=_of("path"))
    rng = random.Random(0)
    held, fails = Held({"folders.#": ["a", "b"]}), {"path": ("b",)}
    recipe = Recipe(tool="look", writes=False, ways=ways, success=1.0, fails=fails)
    some = [draw_arguments(tool, recipe, held, rng) for _ in range(400)]
    assert 5 < some.count({"path": "b"}) < 60  # one of sixteen


def test_what_a_recipe_knows_is_taken_over() -> None:
    call_stats, ways = CallStats(), {"path": "folders.#"}
    call_stats.recall(Recipe(tool="look", writes=False, ways=ways, success=1.0, fails={"path": ("b",)}))
    assert call_stats.fails("look", ways) == {"path": ("b",)}


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("size: 12\nmode: rw", {"size": 12, "mode": "rw"}),
        (
            "History:\nCommit: a1\nDate: 09:30\n\nCommit: b2\nDate: 10:00\n",
            [{"Commit": "a1", "Date": "09:30"}, {"Commit": "b2", "Date": "10:00"}],
        ),
        ("Done: 3", "Done: 3"),
        ("size: 12\nand more", "size: 12\nand more"),
    ],
)
def test_lines_of_fields_are_records(text: str, fields: Json) -> None:
    assert parsed_result(text) == fields
    assert parsed_result({"content": [text]}) == {"content": [fields]}


def test_values_that_are_told_have_the_tool_in_their_kind() -> None:
    assert result_values("list_all", [[{"id": 3, "note": "x" * 100}], "- a\n- b\nsome words"]) == {
        "list_all().id": [3],
        "list_all().#": ["a", "b"],
    }


def test_words_in_quotation_marks_of_a_description_are_given() -> None:
    told: Json = {"type": "string", "description": "Either 'near' or \"far\"; don't guess."}
    tool = Tool(name="look", parameters={"type": "object", "properties": {"way": told}})
    rng = random.Random(0)
    assert {str(fresh(tool, "way", rng)) for _ in range(40)} == {"near", "far"}


def test_a_folder_is_put_back_into_its_first_state(tmp_path: Path) -> None:
    (tmp_path / "original" / "inner").mkdir(parents=True)
    (tmp_path / "original" / "a.txt").write_text("1")
    (tmp_path / "original" / "inner" / "b.txt").write_text("2")
    folder = WorkingFolder(tmp_path / "copy", Original(tmp_path / "original"))
    first = folder.contents()
    (folder.path / "a.txt").write_text("other")
    (folder.path / "inner" / "b.txt").unlink()
    (folder.path / "inner").rmdir()
    (folder.path / "deep" / "er").mkdir(parents=True)
    (folder.path / "deep" / "link").symlink_to("../a.txt")
    later = folder.contents()
    assert (later["files"], later["folders"]) == (
        {"a.txt": "other", "deep/link": "a link to ../a.txt"},
        {".": None, "deep": None, "deep/er": None},
    )
    folder.restore()
    assert folder.contents() == first


@pytest.mark.skipif(GIT is None, reason="git is not installed")
def test_the_staging_area_of_a_repository_is_what_git_lists(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        told = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        return subprocess.run(
            [str(GIT), *words], cwd=tmp_path, env=told, check=True, capture_output=True, text=True
        ).stdout

    git("init", "-q")
    for name in ("a", "folder-of-some-length", "x" * 200):
        (tmp_path / name).write_text(name)
    git("add", ".")
    raw = (tmp_path / ".git" / "index").read_bytes()
    assert staged_lines(raw) == git("ls-files", "--stage").rstrip("\n")
    assert staged_lines(raw[:80]) is None
    assert staged_lines(b"DIRC") is None


class Logged:
    """Every write leaves a line in the log of its topic that holds a number, another one in each world.

    With fields, the number is in a field of the one file that there is.
    """

    def __init__(self, number: int, *, fields: bool = False) -> None:
        self._number, self._fields = number, fields
        text: Json = {"type": "string", "enum": ["tea", "sea", "lea", "pea", "bee"]}
        parameters = {"type": "object", "properties": {"topic": text}, "required": ["topic"]}
        self.tools = {"write": Tool(name="write", parameters=parameters)}

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        del watch
        topics = [str(call.args["topic"]) for call in calls]
        hidden: Json = {
            **{f".store/{one}": "kept" for one in topics},
            **{f".store/logs/{one}": str(self._number) for one in topics},
        }
        if self._fields:
            hidden = {".store/log.json": {"topics": topics, "made": {"at": self._number}}}
        done = tuple(Outcome(result="done", changed=one not in topics[:at]) for at, one in enumerate(topics))
        return Played(outcomes=done, state={"hidden": hidden} if topics else {})

    def close(self) -> None:
        pass


@pytest.mark.long
def test_a_folder_whose_files_all_differ_does_not_count_whatever_is_written_there_later() -> None:
    explorer = Explorer(Logged(1), random.Random(0))
    graph = explorer.explore()
    found = find_nondeterminism(explorer, Logged(2), graph, random.Random(0))
    assert found.state == ("hidden..store/logs/",)
    explorer = Explorer(Logged(1, fields=True), random.Random(0))
    fields = find_nondeterminism(explorer, Logged(2, fields=True), explorer.explore(), random.Random(0))
    assert fields.state == ("hidden..store/log.json.made.at",), "what else is in the file counts"
    volatile = frozenset(found.state)
    state = {"hidden": {".store/new": "kept", ".store/logs/new": "3", ".store/logs/deep/er": "4"}}
    assert comparable(state, volatile) == {"hidden": {".store/new": "kept"}}


class Dated:
    """Every write leaves a note in a file of its topic, with the minute at which and the day for which."""

    def __init__(self) -> None:
        parameters: JsonObject = {
            "type": "object",
            "properties": {"topic": {"enum": ["tea", "sea", "lea", "pea"]}, "day": {"enum": ["2019-03-04"]}},
            "required": ["topic", "day"],
        }
        self.tools = {"write": Tool(name="write", parameters=parameters)}

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        del watch
        now = f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
        held: Json = {f"notes/{call.args['topic']}": {"day": call.args["day"], "at": now} for call in calls}
        outcomes = tuple(Outcome(result={"at": now, "day": call.args["day"]}, changed=True) for call in calls)
        return Played(outcomes=outcomes, state=held)

    def close(self) -> None:
        pass


@pytest.mark.long
def test_the_day_of_a_rollout_does_not_count_in_any_file_though_it_is_the_same_in_both_copies() -> None:
    explorer = Explorer(Dated(), random.Random(0))
    found = find_nondeterminism(explorer, Dated(), explorer.explore(), random.Random(0))
    assert found.state == ("notes/*.at",)
    assert found.results == ("write.at",)
    volatile = frozenset(found.state)
    for at in ("now", "then"):
        state: Json = {"notes/new": {"day": "Monday", "at": at}}
        assert comparable(state, volatile) == {"notes/new": {"day": "Monday"}}
    others: Json = {"notes": {"at": 1}, "other/new": {"at": 1}}
    assert comparable(others, volatile) == others


class Orders:
    """One of many tools that write notes the time, and one that reads shows it."""

    def __init__(self) -> None:
        nothing: JsonObject = {"type": "object", "properties": {}}
        self._flags = [f"set_flag_{one}" for one in "abcdefghij"]
        self.tools = {
            one: Tool(name=one, parameters=nothing) for one in ["place", "list_orders", *self._flags]
        }

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        del watch
        orders: list[Json] = [{"id": 1, "at": 5.0}]
        flags, outcomes = dict[str, Json](), list[Outcome]()
        for call in calls:
            if call.tool == "place":
                orders.append({"id": len(orders) + 1, "at": time.monotonic()})
            elif call.tool != "list_orders":
                flags[call.tool] = len(outcomes)
            listed = list(orders) if call.tool == "list_orders" else "done"
            outcomes.append(Outcome(result=listed, changed=call.tool != "list_orders"))
        return Played(outcomes=tuple(outcomes), state={"orders": orders, "flags": flags})

    def close(self) -> None:
        pass


@pytest.mark.long
def test_a_time_that_is_noted_by_one_tool_does_not_count_where_another_shows_it() -> None:
    for seed in range(3):
        explorer = Explorer(Orders(), random.Random(seed))
        found = find_nondeterminism(explorer, Orders(), explorer.explore(), random.Random(seed))
        assert found.state == ("orders.*.at",)
        assert found.results == ("list_orders.*.at",)


class Bank:
    """Money is moved between two accounts, which no name of a parameter suggests; entries may be negative."""

    def __init__(self) -> None:
        texts: JsonObject = {name: {"type": "string"} for name in ("source", "target")}
        properties: JsonObject = {**texts, "amount": {"type": "number"}}
        parameters: JsonObject = {"type": "object", "properties": properties, "required": [*properties]}
        self.tools = {"transfer": Tool(name="transfer", parameters=parameters)}

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        del watch
        held = {"main": 900.0, "spare": 400.0, "trip": 80.0}
        outcomes = [self._done(held, call.args) for call in calls]
        state: Json = {
            "accounts": {name: {"balance": balance} for name, balance in held.items()},
            "entries": [{"amount": -39.5}, {"amount": -12.0}],
            "notes": [{"text": f"note {number}", "pages": number} for number in range(4)],
        }
        return Played(outcomes=tuple(outcomes), state=state)

    def _done(self, held: dict[str, float], args: Mapping[str, Json]) -> Outcome:
        source, target, amount = str(args["source"]), str(args["target"]), args["amount"]
        if not isinstance(amount, float | int) or amount <= 0:
            return Outcome(result="", error="amounts must be positive")
        for name in (target, source):
            if name not in held:
                return Outcome(result="", error=f"there is no account {name!r}")
        if source == target or amount > held[source]:
            return Outcome(result="", error="this is not possible")
        held[source], held[target] = held[source] - amount, held[target] + amount
        return Outcome(result="done", changed=True)

    def close(self) -> None:
        pass


def test_two_arguments_that_no_name_suggests_are_found_together() -> None:
    recipe = Explorer(Bank(), random.Random(0)).explore().recipes["transfer"]
    assert [recipe.ways[name] for name in ("source", "target")] == ["accounts.#"] * 2


def test_a_day_may_be_that_of_a_time_and_is_no_other_text() -> None:
    properties: JsonObject = {"day": {"type": "string", "format": "date"}}
    tool = Tool(name="slots", parameters={"type": "object", "properties": properties})
    assert taken(tool, "day", ["2026-05-04T09:00:00", "2026-05-04", "4"]) == ["2026-05-04", "2026-05-04", "4"]


class Ferry:
    """Lists in an envelope, of which some have one item, and one that finds nothing for most guests."""

    def __init__(self) -> None:
        self.cabins = {
            f"CB-{number}": {"deck": deck, "price": 70 + 10 * number, "guest_id": f"G-{number % 2}"}
            for number, deck in enumerate((5, 5, 7, 8))
        }
        self.guests = {
            f"G-{number}": {"name": name} for number, name in enumerate(("Lea", "Tom", "Ida", "Bo"))
        }

    def search_cabins(self, deck: int | None = None) -> dict[str, object]:
        """Search cabins."""
        found = [{"cabin_id": key, **one} for key, one in self.cabins.items() if deck in (None, one["deck"])]
        return {"items": found, "total": len(found)}

    def list_bookings(self, guest_id: str) -> dict[str, object]:
        """List the bookings of a guest."""
        found = [{"cabin_id": key} for key, one in self.cabins.items() if one["guest_id"] == guest_id]
        return {"items": found, "total": len(found), "page": 1}

    def set_price(self, cabin_id: str, price: int) -> dict[str, object]:
        """Set the price of a cabin."""
        self.cabins[cabin_id]["price"] = price
        return {"cabin_id": cabin_id, **self.cabins[cabin_id]}


@pytest.mark.parametrize("seed", range(3))
def test_what_a_list_in_an_envelope_finds_is_seen_where_it_has_one_item(seed: int) -> None:
    graph = Explorer(InProcessWorld(f"{__name__}:Ferry"), random.Random(seed)).explore()
    assert {"total", "items.*.cabin_id", "items.*.price"} <= {*graph.recipes["search_cabins"].told}
    assert ("search_cabins", "set_price", "items.*.cabin_id") in [
        (link.reader, link.user, link.kind) for link in graph.links
    ]
    assert dict(graph.recipes["list_bookings"].ways) == {"guest_id": "cabins.*.guest_id"}


def test_what_only_some_answers_show_differs_between_them() -> None:
    answers: list[Json] = [{"items": [{"id": 1}, {"id": 2}], "page": 1}, {"items": [{"id": 2}], "page": 1}]
    shows, told = shown_by([({}, Outcome(result=one)) for one in answers])
    assert set(shows) == {"page", "items.*.id"}
    assert told == ("items.*.id",)  # a page says not how many there are
