from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.texts import inert, json_line, masked

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, with ümlauts, 日本語 and 👩‍👩‍👧", "plain, with ümlauts, 日本語 and 👩‍👩‍👧"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("half \ud800 pair", "half \\ud800 pair"),
        ("a \u202etxt.exe", "a \\u202etxt.exe"),
        ("\x1b[2Jgone\x07\x7f\x9b", "\\u001b[2Jgone\\u0007\\u007f\\u009b"),
        ("tag \U000e0041", "tag \\udb40\\udc41"),
        ("over\rwritten", "over\\rwritten"),
    ],
)
def test_what_could_deceive_a_reader_stands_as_its_escape(text: str, shown: str) -> None:
    assert inert(text) == shown


@given(ANY_TEXT)
def test_inert_text_can_be_written_and_is_inert_already(text: str) -> None:
    shown = inert(text)
    shown.encode("utf-8")
    assert inert(shown) == shown


@given(st.recursive(ANY_TEXT, lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner)))
@pytest.mark.long
def test_a_line_of_json_can_be_written_and_says_the_same(value: object) -> None:
    line = json_line(value)  # type: ignore[arg-type]
    line.encode("utf-8")
    assert "\n" not in line
    # two halves that stand side by side are one character in JSON
    assert json.loads(line) == json.loads(json.dumps(value))


@pytest.mark.parametrize(
    ("text", "secrets", "shown"),
    [
        ("http://me:pa55@host:1/v1 is down", (), "http://***@host:1/v1 is down"),
        ("openai:https://token@host/v1#m", (), "openai:https://***@host/v1#m"),
        ("http://me:p@ss@host:1/v1", (), "http://***@host:1/v1"),
        ("mail a@b.org via http://host/a@b", (), "mail a@b.org via http://host/a@b"),
        ("bad key sk-12345 (sk-12345)", ("sk-12345",), "bad key *** (***)"),
        ("a short secret is a word", ("a",), "a short secret is a word"),
        ("outer-inner", ("inner!", "outer-inner"), "***"),
    ],
)
def test_secrets_are_masked(text: str, secrets: tuple[str, ...], shown: str) -> None:
    assert masked(text, secrets) == shown
