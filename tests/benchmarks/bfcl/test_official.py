"""The official code with another `eval`: replies become calls, and nothing that a model writes is run."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from genenv.benchmarks.bfcl.multi_turn import native_commands
from genenv.benchmarks.bfcl.official import NeedsEvaluation, commands, constant, decoded


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("[f(a=1)]", [{"f": {"a": 1}}]),
        ("f(a=1), g.h(b='x')", [{"f": {"a": 1}}, {"g.h": {"b": "x"}}]),
        ("```\n[f(a=[1, (2, 3)])]\n```", [{"f": {"a": [1, (2, 3)]}}]),
        ("[f(a=-2, b=not 2, c=...)]", [{"f": {"a": -2, "b": -2, "c": "..."}}]),
        ("[f(a=2*60+1, b='x'*3)]", [{"f": {"a": 121, "b": "xxx"}}]),
        (
            "[f(a=true, b=g(c=1), d=g(1), e=x[0])]",
            [{"f": {"a": "true", "b": {"g": {"c": 1}}, "d": "g(1)", "e": "x[0]"}}],
        ),
        ("[f(1, 2, a=3)]", [{"f": {"a": 3}}]),
        ("[print(f'{x}')]", [{"print": {}}]),
        ("[f(lambda a, b: a, rf'{x!r:>{w}} {{}}', *f'{y}', a=1)]", [{"f": {"a": 1}}]),
        ("[f(a=g(f'{x}'), b=g(lambda: 0))]", [{"f": {"a": "g(f'{x}')", "b": "g(lambda: 0)"}}]),
        ("[f(a=g(f'{x}', b=1), c=rows[f'{x}'])]", [{"f": {"a": {"g": {"b": 1}}, "c": "rows[f'{x}']"}}]),
        ("[f'{x}'.format(a=1), (lambda x: x)(b=2)]", [{"format": {"a": 1}}, {"": {"b": 2}}]),
        ("[f([x for x in y], (yield), a=1)]", [{"f": {"a": 1}}]),
        ("[f(**{'a': 1})]", [{"f": {None: {"a": 1}}}]),
        ("[]", []),
        ("", []),
        ("[f(a=1)", [{"f": {"a": 1}}]),
    ],
)
def test_calls_in_text_are_read_with_the_official_quirks(text: str, calls: object) -> None:
    assert decoded(text, "python") == calls


@pytest.mark.parametrize(
    "text",
    [
        "I cannot do that.",
        "[1, 2]",
        "[f(a=lambda x: x)]",
        "[f(a=f'{x}')]",
        "[f(a=[f'{x}'])]",
        "[f(a=g(b=lambda: 0))]",
        "[f(f'{x')]",
        "[f(a=g(f'{x!r:\n}'))]",  # a tree that cannot be written as text again
        "[f(a=x + 1)]",
        "[f(a=len('x') + 1)]",
        "[f(a=[x for x in y])]",
        "[f(a=Colour.RED)]",
        "[f(a=-'x')]",
        "[f(a='%9999999999d' % 1)]",
        "[f(a={**b})]",
        "[f(a={[]: 1})]",
        "[f(a=1/0)]",
        "[f(a='\ud800\0')]",
    ],
)
def test_what_is_no_list_of_calls_is_undecodable(text: str) -> None:
    assert commands(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "[f(a=__import__('os').system('touch {0}'))]",
        "[f(a=__import__('os').system('touch {0}') + 1)]",
        "[f(a=open('{0}', 'w'))]",
        "[open('{0}', 'w')]",
        "[f(a=[open('{0}', 'w')] * 2)]",
        "[exec(\"open('{0}', 'w')\")]",
    ],
)
def test_nothing_in_a_reply_is_run(text: str, tmp_path: Path) -> None:
    made = tmp_path / "made"
    with contextlib.suppress(NeedsEvaluation):
        decoded(text.format(made), "python")
    assert not made.exists()


def test_values_that_only_evaluation_gives_are_said_to_be_such() -> None:
    for argument, likely_read in [
        ("len('x') + 1", True),
        ("'%d' % 3", True),
        ("x * 2", False),
        ("[i for i in 'ab'] * 2", True),
    ]:
        with pytest.raises(NeedsEvaluation, match="would have to be evaluated, which is not done") as raised:
            decoded(f"[f(a={argument})]", "python")
        assert argument in str(raised.value)
        assert raised.value.likely_read == likely_read


@pytest.mark.parametrize("language", ["java", "javascript"])
def test_calls_in_other_languages_keep_their_values_as_source_text(language: str) -> None:
    assert decoded('[a.f(x=1, y="two", z=true)]', language) == [{"a.f": {"x": "1", "y": "two", "z": "true"}}]


def test_decoded_calls_are_written_as_text_again() -> None:
    text = """[f(a="it's", b=[1, (2,)], c={'d': 1, 'e': 'x'}), g()]"""
    assert commands(text) == ["f(a=\"it's\", b=[1, (2,)], c={'d': 1, 'e': 'x'})", "g()"]
    assert native_commands([("f", {"a": 1, "b": "x"})]) == ["f(a=1,b='x')"]


def test_a_dictionary_of_dictionaries_is_taken_for_a_call_as_officially() -> None:
    assert commands("[f(a={'g': {'b': 1}})]") == ["f(a=g(b=1))"]
    assert commands("[f(a={})]") == []


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="12,'[]()+-* ~%|x", max_size=12))
def test_what_is_evaluated_officially_has_a_value_or_needs_evaluation(text: str) -> None:
    assume("**" not in text)  # which may take for ever
    with contextlib.suppress(NeedsEvaluation, ArithmeticError, SyntaxError, TypeError, ValueError):
        assert constant(text) == eval(text, {"__builtins__": {}})  # noqa: S307 - the oracle, on such letters
