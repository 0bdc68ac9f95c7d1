"""Replies become calls as officially, and nothing that a model writes is run."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genenv.evaluation.bfcl.decode import (
    NotRead,
    Undecodable,
    Unevaluated,
    calls_in_text,
    commands,
    native_commands,
)
from genenv.evaluation.bfcl.syntax import SyntaxRefused, parse


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
    assert calls_in_text(text) == calls


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
    with pytest.raises(Undecodable):
        calls_in_text(text)


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
    with contextlib.suppress(Undecodable):
        calls_in_text(text.format(made))
    assert not made.exists()


@pytest.mark.parametrize(
    "text",
    [
        "[f(a=9**9**9)]",
        "[f(a=1<<10**9)]",
        "[f(a='x'*10**9)]",
        "[f(a=[[[[0]*400]*400]*400]*400)]",
        "[f(a=[0 for i in range(10**9)])]",
        "[" * 100_000,
        "f(" * 100_000,
        "[f(a=" + "-" * 40_000 + "1)]",
        "[f(a=1" + "+1" * 20_000 + ")]",
        "[f(a=b" + ".c" * 20_000 + ")]",
        "[f(a=b" + "(1,2)" * 9_000 + ")]",
        "[f(a=" + "not " * 10_000 + "1)]",
        "[f(a=" + "lambda a,b:" * 4_000 + "1)]",
        "[f(a=" + "x if y else " * 4_000 + "1)]",
        "[f(a=" + "9" * 40_000 + ")]",
        "[f(f'{" + "-" * 40_000 + "1}')]",
        "[f(f'{b" + ".c" * 20_000 + "}')]",
        '[f(f\'{"}"' + "+1" * 20_000 + "}')]",
        "[f(" + "-" * 90 + ("lambda a,b:" + "-" * 90) * 400 + "1)]",
        "[f(" + "f'{f\"{1}\"}'," * 4_000 + "a=f'{1}')]",
        "\\'" * 24_000,
        "'''\\" * 12_000,
        "x" * 1_000_000,
        '{"a":' * 100_000,
    ],
)
def test_bombs_are_refused_at_once(text: str) -> None:
    started = time.process_time()
    with pytest.raises(Undecodable):
        calls_in_text(text)
    assert time.process_time() - started < 1


def test_values_that_only_evaluation_gives_are_said_to_be_such() -> None:
    for argument, likely_read in [
        ("len('x') + 1", True),
        ("'%d' % 3", True),
        ("x * 2", False),
        ("[i for i in 'ab'] * 2", True),
    ]:
        with pytest.raises(Unevaluated, match="would have to be evaluated, which is not done") as raised:
            calls_in_text(f"[f(a={argument})]")
        assert argument in str(raised.value)
        assert raised.value.likely_read == likely_read


@pytest.mark.parametrize("language", ["java", "javascript"])
@pytest.mark.parametrize(
    "value",
    [
        "(" * 3_900,
        "!" * 7_000 + "1",
        "1" + "+1" * 3_900,
        "b" + ".c" * 3_900,
        "[" + "[1]," * 30 + "2]",
        "[" + "[1]," * 1_500 + "2]",
        "new HashMap<a>(){" + " " * 7_000 + "x}",
        "void " * 1_500 + "1",
        "\\'" * 3_900,
    ],
)
def test_bombs_in_other_languages_are_refused_at_once(language: str, value: str) -> None:
    started = time.process_time()
    with pytest.raises(Undecodable):
        calls_in_text(f"[f(a={value})]", language)
    assert time.process_time() - started < 2


@pytest.mark.parametrize("language", ["java", "javascript"])
def test_calls_in_other_languages_keep_their_values_as_source_text(language: str) -> None:
    assert calls_in_text('[a.f(x=1, y="two", z=true)]', language) == [
        {"a.f": {"x": "1", "y": "two", "z": "true"}}
    ]


@pytest.mark.parametrize("argument", ["['a' * 20000] * 500", "'a' * 30000 + 'a' * 30000 + 'a' * 30000"])
def test_what_would_be_long_when_written_out_is_refused_before_it_is(argument: str) -> None:
    words = ", ".join(f"a{n}={argument}" for n in range(200))
    began = time.process_time()
    with pytest.raises(NotRead, match="characters when written out"):
        calls_in_text(f"[cd({words})]")
    assert time.process_time() - began < 1


def test_decoded_calls_are_written_as_text_again() -> None:
    calls = [{"f": {"a": "it's", "b": [1, (2,)], "c": {"d": 1, "e": "x"}}}, {"g": {}}]
    assert commands(calls) == ["f(a=\"it's\", b=[1, (2,)], c={'d': 1, 'e': 'x'})", "g()"]
    assert native_commands([("f", {"a": 1, "b": "x"})]) == ["f(a=1,b='x')"]


def test_a_dictionary_of_dictionaries_is_taken_for_a_call_as_officially() -> None:
    assert commands([{"f": {"a": {"g": {"b": 1}}}}]) == ["f(a=g(b=1))"]
    with pytest.raises(Undecodable):
        commands([{"f": {"a": {}}}])


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="fg(a=1,'\"[]{}):+-*. \\\n#xif", max_size=60) | st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    for language in ("python", "java", "javascript"):
        try:
            calls_in_text(text, language)
        except Undecodable:
            continue
    with contextlib.suppress(SyntaxRefused):
        parse(text)
