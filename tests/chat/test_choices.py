"""Which tokens of a reply were no choice, as all replies that were left have them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.chat.sampler import forced_places, parse_structural_tag, structural_tag

END = 9
REPLIES = st.sets(
    st.lists(st.integers(0, 3), max_size=6).map(lambda ids: (*ids, END)), min_size=1, max_size=12
)


def test_where_all_that_are_left_agree_nothing_was_chosen() -> None:
    assert forced_places((4, 5, 6), [(4, 5, 6)]) == {0, 1, 2}
    assert forced_places((4, 5, 6), [(4, 5, 6), (4, 7, 6), (4, 5, 8, 6)]) == {0}
    assert forced_places((4, 5, 6), ()) == frozenset()


@given(REPLIES, st.data())
def test_a_reply_is_told_from_all_others_by_what_was_chosen_of_it(
    replies: set[tuple[int, ...]], data: st.DataObject
) -> None:
    reply = data.draw(st.sampled_from(sorted(replies)))
    forced = forced_places(reply, sorted(replies))
    chosen = [place for place in range(len(reply)) if place not in forced]
    others = replies - {reply}
    assert bool(chosen) is bool(others)
    for place in range(len(reply)):
        rivals = {other[place] for other in others if other[:place] == reply[:place]}
        assert (place in forced) is (rivals <= {reply[place]})


@given(REPLIES)
def test_replies_come_back_from_their_structural_tag(replies: set[tuple[int, ...]]) -> None:
    assert parse_structural_tag(structural_tag(sorted(replies)), END) == tuple(sorted(replies))


@pytest.mark.parametrize(
    "tag", ["{", "[]", "{}", '{"format": {"elements": [{"elements": [{"type": "any_text"}]}]}}']
)
def test_another_structural_tag_is_refused(tag: str) -> None:
    with pytest.raises(ValueError, match=r"structural tags|Expecting"):
        parse_structural_tag(tag, END)
