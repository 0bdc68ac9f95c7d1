"""Answers for any value and any line: what a demonstration says is right, and nothing ends grading."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from genenv.tools.language.said import answers_in, gives

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
DAYS = st.dates().map(str) | st.datetimes().map(lambda one: one.isoformat(" ", "minutes"))
WORDS = st.text(min_size=1, max_size=40) | st.sampled_from(
    ["82 °C", "$1,250.00", "16:45", "2026-02-30", "5 km"]
)
FIELDS = st.sampled_from(
    ["", "price", "length_m", "price_per_kg", "min_price", "Answer", "_", "duration_min"]
)


@given(NUMBERS | DAYS | WORDS, FIELDS)
def test_the_value_itself_is_the_answer(value: float | str, field: str) -> None:
    said = " ".join(str(value).split())
    (line,) = answers_in(f"It is done.\n\nAnswer: {said}") if said else [""]
    known = any(one.isalnum() for one in said)
    assert gives(line, value, field, "Tell me.") or not known


@given(
    WORDS | st.from_regex(r"[-$€]?[0-9]{1,4}[.,e][0-9]{1,9} ?[a-z%°/]{0,6}", fullmatch=True),
    NUMBERS | DAYS | WORDS,
    FIELDS,
)
def test_no_line_ends_grading_and_none_says_two_values(line: str, value: float | str, field: str) -> None:
    gives(line, value, field, line)
    for found in answers_in(line):
        assert found in line
    for other in (12345, "other"):
        if str(value) != str(other):
            both = f"{json.dumps(value)} or {other}"
            assert not gives(both, value, field, "Tell me.") or str(value) in both[len(json.dumps(value)) :]
