"""Descriptions of parameters decide what is drawn: lists, formats, and which arguments go together."""

from __future__ import annotations

import base64
import random
import re
import time
from datetime import datetime
from typing import Any, cast

import pytest

from genenv.tools.discover.descriptions import agreeing, examples, is_wanted, listed, misplaced, referring
from genenv.tools.discover.recipes import Held, Recipe, draw_arguments
from genenv.tools.discover.slots import is_free
from genenv.tools.generate.fresh_values import fresh
from genenv.tools.language.words import FIRST_NAMES, LAST_NAMES
from genenv.tools.worlds.base import Tool
from genenv.types import Json


def tool(**properties: Any) -> Tool:
    return Tool(name="send_mail", parameters={"type": "object", "properties": properties})


@pytest.mark.parametrize(
    ("said", "values"),
    [
        ("enforced | opportunistic.", ["enforced", "opportunistic"]),
        ("Possible values are us-east-1 | eu-west-1", ["us-east-1", "eu-west-1"]),
        ("One of: low, normal or high.", ["low", "normal", "high"]),
        ("Allowed values: open, closed", ["open", "closed"]),
        ('Method, should be set to "password" when logging in.', ["password"]),
        ("How it is sent (email/sms).", ["email", "sms"]),
        ("The name of the sender.", []),
        ("One of the members of the list.", []),
        ("Either a name, or an address", []),
        ('Such as "a" and "b"; must be "a" first', []),
    ],
)
def test_values_that_a_description_lists(said: str, values: list[str]) -> None:
    assert listed(said) == values
    one = tool(mode={"type": "string", "description": said})
    for seed in range(20 if values else 0):
        assert fresh(one, "mode", random.Random(seed)) in values


def test_formats_that_a_description_names() -> None:
    one = tool(
        scheduled_at={"type": "string", "description": "When, in ISO 8601 format."},
        contents={"type": "string", "description": "The base64-encoded contents."},
        key={"type": "string", "description": "Only alphanumeric characters and underscores."},
        number={"type": "integer", "description": "An ISO 8601 week."},
    )
    rng = random.Random(0)
    assert datetime.fromisoformat(str(fresh(one, "scheduled_at", rng)))
    assert base64.b64decode(str(fresh(one, "contents", rng)), validate=True)
    assert re.fullmatch(r"\w+", str(fresh(one, "key", rng)))
    assert isinstance(fresh(one, "number", rng), int)


@pytest.mark.parametrize(
    ("said", "form"),
    [
        ("ISO 8601 date (YYYY-MM-DD).", "%Y-%m-%d"),
        ("The month as 'YYYY-MM', e.g. '2025-03'.", "%Y-%m"),
        ("The month (MM/YYYY)", "%m/%Y"),
        ("Start, HH:MM in 24 hours", "%H:%M"),
        ("When, dd.mm.yyyy hh:mm:ss", "%d.%m.%Y %H:%M:%S"),
        ("When, as %Y-%m-%d %H:%M.", "%Y-%m-%d %H:%M"),
        ("yyyy-MM-dd'T'HH:mm:ss", "%Y-%m-%dT%H:%M:%S"),
        ("YYYY-MM-DDTHH:MM:SSZ in UTC", "%Y-%m-%dT%H:%M:%SZ"),
    ],
)
def test_dates_have_the_form_that_a_description_writes_in_letters(said: str, form: str) -> None:
    one = tool(value={"type": "string", "description": said})
    for seed in range(20):
        assert time.strptime(str(fresh(one, "value", random.Random(seed))), form)


def test_letters_of_dates_in_other_words_are_no_form() -> None:
    one = tool(size={"type": "string", "description": "The size in mm, for %d items."})
    assert not re.search(r"[%\d]", str(fresh(one, "size", random.Random(0))))


def test_addresses_that_a_description_names() -> None:
    one = tool(
        sender={"type": "string", "description": "The email address of the sender."},
        copies={"type": "array", "items": {"type": "string"}, "description": "Bcc email addresses."},
        endpoint={"type": "string", "description": "The URL where events will be sent."},
        part={"type": "string", "description": "The URL slug of the page."},
        first_name={"type": "string"},
        last_name={"type": "string"},
    )
    rng = random.Random(0)
    assert str(fresh(one, "sender", rng)).endswith("@example.com")
    assert all(str(value).endswith("@example.com") for value in cast("list[Json]", fresh(one, "copies", rng)))
    assert str(fresh(one, "endpoint", rng)).startswith("https://")
    assert "://" not in str(fresh(one, "part", rng))
    assert str(fresh(one, "first_name", rng)) in FIRST_NAMES
    assert str(fresh(one, "last_name", rng)) in LAST_NAMES


def test_an_object_has_its_common_fields_and_those_of_one_alternative() -> None:
    text, ways = {"type": "string"}, ({"kind": {"const": kind}, kind: {"type": "string"}} for kind in "ab")
    alternatives = [{"type": "object", "properties": way, "required": [*way][1:]} for way in ways]
    pet = {"type": "object", "properties": {"name": text}, "required": ["name"], "oneOf": alternatives}
    one = tool(pet=pet)
    for seed in range(10):
        value = cast("dict[str, Json]", fresh(one, "pet", random.Random(seed)))
        assert value["kind"] == "a"
        assert set(value) == {"name", "kind", "a"}
        assert one.problem({"pet": value}) is None


def test_records_of_one_list_name_those_of_another() -> None:
    text = {"type": "string"}
    step = {"type": "object", "required": ["key"], "properties": {"key": text}}
    ends = {end: {**text, "description": f"The `key` of the {end} step."} for end in ("source", "target")}
    connection = {"type": "object", "required": [*ends], "properties": ends}
    one = tool(steps={"type": "array", "items": step}, links={"type": "array", "items": connection})
    steps: Json = [{"key": "a"}, {"key": "b"}]
    links: Json = [{"source": "x", "target": "y"}]
    found = referring(one, {"steps": steps, "links": links}, random.Random(0))
    (link,) = cast("list[dict[str, Json]]", found["links"])
    assert {str(link["source"]), str(link["target"])} == {"a", "b"}
    assert referring(one, {"steps": [{"key": "a"}], "links": links}, random.Random(0)).keys() == {"steps"}
    assert referring(one, {"links": links}, random.Random(0)) == {}


def test_a_record_that_needs_an_id_has_one_of_those_that_there_are() -> None:
    record = {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}
    one = tool(topics={"type": "array", "items": record})
    ways = {"topics": "new", "topics.id": "topics.#"}
    recipe, held = Recipe(tool=one.name, writes=True, ways=ways, success=1.0), Held({"topics.#": ["T-1"]})
    drawn = [draw_arguments(one, recipe, held, random.Random(seed)) or {} for seed in range(20)]
    given = [args["topics"] for args in drawn if "topics" in args]
    assert given
    assert all(row == {"id": "T-1"} for rows in given for row in cast("list[Json]", rows))


def test_arguments_that_exclude_or_need_each_other() -> None:
    text = {"type": "string"}
    one = tool(
        ids={**text, "description": "Mutually exclusive with `sessions`."},
        sessions={**text, "description": "Mutually exclusive with `ids`."},
        steps={**text, "description": "Must be provided together with `links`."},
        links={**text, "description": "Must be provided together with `steps`."},
        name={**text, "description": "The name. It cannot be set to the ids of others."},
    )
    assert agreeing(one, {"ids", "sessions"}) == ["sessions"]
    assert agreeing(one, {"steps", "name"}) == ["steps", "name", "links"]
    assert agreeing(one, {"steps", "links", "ids"}) == ["ids", "steps", "links"]


def test_an_argument_that_is_said_to_be_required_is_always_given() -> None:
    login = {"type": "string", "description": "The email address.\n\nRequired, unless `is_app` is set."}
    one = tool(login=login, city={"type": "string", "description": "Required if known."})
    recipe = Recipe(tool=one.name, writes=True, ways={"login": "new", "city": "new"}, success=1.0)
    drawn = [draw_arguments(one, recipe, Held({}), random.Random(seed)) or {} for seed in range(40)]
    assert all("login" in args for args in drawn)
    assert not all("city" in args for args in drawn)


def test_a_text_whose_format_is_a_number_is_a_number() -> None:
    one = tool(days={"type": "string", "format": "int32"})
    assert str(fresh(one, "days", random.Random(0))).isdigit()


def test_arguments_that_are_only_for_one_value_of_another() -> None:
    one = tool(
        kind={"type": "string", "enum": ["campaign", "tx"]},
        subject={"type": "string", "description": "Subject line (only for tx)"},
        body={"type": "string", "description": "The only text."},
    )
    args = {"kind": "campaign", "subject": "x", "body": "y"}
    assert misplaced(one, args) == {"subject"}
    assert misplaced(one, {**args, "kind": "tx"}) == set()


def test_two_quoted_values_are_all_there_are_unless_they_are_examples() -> None:
    one = tool(
        kind={"type": "string", "description": '"percentage" (default) or "fixed".'},
        plant={"type": "string", "description": "The plant, e.g. 'rose' or 'fern'."},
    )
    kinds = {str(fresh(one, "kind", random.Random(seed))) for seed in range(40)}
    assert kinds == {"percentage", "fixed"}
    plants = {str(fresh(one, "plant", random.Random(seed))) for seed in range(40)}
    assert {"rose", "fern"} < plants


def test_the_truth_value_that_decides_what_is_done_is_always_given() -> None:
    for sentence, name, wanted in (
        ("Block or unblock a customer.", "blocked", True),
        ("Enable/disable a user.", "enabled", True),
        ("Turn a lamp on or off.", "on", True),
        ("Change a customer.", "blocked", False),
        ("Create or update a customer.", "notify", False),
        ("List the files or folders in a path.", "recursive", False),
    ):
        flag = {name: {"type": "boolean", "default": True}}
        tool = Tool(name="t", description=sentence, parameters={"type": "object", "properties": flag})
        assert is_wanted(tool, name) is wanted, sentence


def test_a_list_of_records_of_unknown_fields_is_not_made_up() -> None:
    free = {"type": "array", "items": {"type": "object", "additionalProperties": True}}
    known = {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "string"}}}}
    one = Tool(
        name="t", parameters={"type": "object", "properties": {"a": free, "b": known}, "required": ["a", "b"]}
    )
    assert is_free(one, "a")
    assert not is_free(one, "b")


def test_optional_arguments_without_which_the_first_sentence_says_too_little_are_always_given() -> None:
    properties: dict[str, Any] = {name: {"type": "string"} for name in ("path", "name", "depth")}
    find = Tool(
        name="find",
        description="Find files under a path that have a name. Depth is limited.",
        parameters={"type": "object", "properties": properties},
    )
    recipe = Recipe(
        tool="find", ways={"path": "new", "name": "new", "depth": "new"}, success=1.0, writes=False
    )
    rng = random.Random(0)
    drawn = [draw_arguments(find, recipe, Held({}), rng) or {} for _ in range(20)]
    assert all({"path", "name"} <= set(args) for args in drawn)
    assert {"depth" in args for args in drawn} == {True, False}


def test_a_tool_about_files_takes_files_where_its_parameters_alone_do_not_say_so() -> None:
    move = Tool(
        name="mv",
        description="Move a file or directory.",
        parameters={"type": "object", "properties": {"destination": {"type": "string"}}},
    )
    assert re.fullmatch(r"[a-z]+-[a-z]+\.(?:txt|md)", str(fresh(move, "destination", random.Random(0))))


def test_that_two_cannot_be_given_together_is_no_need() -> None:
    text = {"type": "string"}
    one = tool(
        insert_before={**text, "description": "`insert_before` and `insert_after` cannot both be specified."},
        insert_after={**text, "description": "Cannot be provided together with insert_before."},
    )
    assert agreeing(one, ["insert_after"]) == ["insert_after"]
    assert len(agreeing(one, ["insert_before", "insert_after"])) == 1


def test_names_of_other_parameters_and_null_are_no_values() -> None:
    said = "The text after `name`, or `null`; with `other` it is shown, too."
    one = tool(
        text={"type": "string", "description": said}, name={"type": "string"}, other={"type": "string"}
    )
    assert not {str(fresh(one, "text", random.Random(seed))) for seed in range(40)} & {
        "name",
        "other",
        "null",
    }


def test_ids_and_people_are_given_as_the_description_says() -> None:
    said = 'Users: the string "me", an email, or the gid of a user.'
    ids = {"type": "array", "items": {"type": "string", "description": "Array of category gids."}}
    one = tool(members={"type": "string", "description": said}, categories=ids, tags={"type": "string"})
    assert re.fullmatch(r"[\w.]+@example.com", str(fresh(one, "members", random.Random(0))))
    assert all(
        re.fullmatch(r"C-\d{3}", it) for it in cast("list[str]", fresh(one, "categories", random.Random(0)))
    )


def test_an_exclusion_that_only_a_required_argument_states_holds_for_the_other() -> None:
    text = {"type": "string"}
    one = Tool(
        name="comment",
        parameters={
            "type": "object",
            "properties": {
                "text": {**text, "description": "Cannot be used with html_text."},
                "html_text": text,
            },
            "required": ["text"],
        },
    )
    assert agreeing(one, ["text", "html_text"]) == ["text"]


def test_what_a_description_prohibits_is_no_value() -> None:
    said = 'How it is shown. Cannot begin with "PD" or "Default".'
    one = tool(display_name={"type": "string", "description": said})
    assert not {str(fresh(one, "display_name", random.Random(seed))) for seed in range(40)} & {
        "PD",
        "Default",
    }


@pytest.mark.parametrize(
    ("said", "values"),
    [
        ("Move a deal (e.g., 'Negotiation', 'Closed Won').", ["Negotiation", "Closed Won"]),
        ("Its genre (e.g. fantasy, science fiction, etc.)", ["fantasy", "science fiction"]),
        ("Shown as, for example: 'a b'. It must not be called 'con'.", ["a b"]),
        ('A stage, such as "in review" or "done".', ["in review", "done"]),
        ("The user's name, like the customers' own", []),
        ("A number (e.g. 5)", []),
        ("Sort order. For example, the newest come first, and the oldest last.", []),
    ],
)
def test_examples_may_have_several_words_or_stand_in_parentheses(said: str, values: list[str]) -> None:
    assert examples(said, unquoted=True) == values
    assert examples(said) == (values if "fantasy" not in values else [])


def test_examples_of_a_tool_are_of_its_only_text() -> None:
    properties: dict[str, Any] = {"deal_id": {"type": "integer"}, "stage": {"type": "string"}}
    described = "Update the stage of a deal (e.g., 'Negotiation', 'Closed Won')."
    one = Tool(name="update", description=described, parameters={"properties": properties})
    drawn = [fresh(one, "stage", random.Random(seed)) for seed in range(40)]
    assert {"Negotiation", "Closed Won"} < {*drawn}
    two = Tool(
        name="update",
        description=described,
        parameters={"properties": {**properties, "label": {"type": "string"}}},
    )
    assert "Closed Won" not in [fresh(two, "stage", random.Random(seed)) for seed in range(40)]


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("location", {"description": "The city and state (e.g. San Francisco, CA)"}),
        ("path", {"description": "Path to the image file (e.g., png, jpg, or gif)"}),
        ("due", {"description": "The due date (e.g. today, tomorrow)", "format": "date"}),
        ("customer_id", {}),
    ],
)
def test_words_in_parentheses_are_values_of_categories_alone(name: str, schema: dict[str, Any]) -> None:
    one = Tool(
        name="get",
        description="Get details of a customer (e.g., name, email, phone).",
        parameters={"properties": {name: {"type": "string", **schema}}},
    )
    words = {"San Francisco", "CA", "png", "jpg", "gif", "today", "tomorrow", "name", "email", "phone"}
    assert words.isdisjoint(str(fresh(one, name, random.Random(seed))) for seed in range(30))


def test_what_is_shown_instead_of_a_required_argument_may_be_given() -> None:
    text = {"type": "string"}
    names = ["user_name", "display_name"]
    properties = {names[0]: text, names[1]: {**text, "description": "Shown instead of user_name."}}
    one = Tool(name="add", parameters={"type": "object", "properties": properties, "required": names[:1]})
    assert agreeing(one, names) == names
    assert len(agreeing(tool(**properties), names)) == 1


@pytest.mark.parametrize(
    "told", ["the limit with its unit (km/h)", "the layer (TCP/IP)", "as written (AM/PM)"]
)
def test_units_and_abbreviations_are_no_lists_of_values(told: str) -> None:
    assert listed(told) == []
