"""Whether an instruction asks for its calls: what the gate refuses, what it lets pass, how often it errs."""

from __future__ import annotations

import re
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from genenv.domains.stems import stem
from genenv.domains.tool_calling.asking import unasked, unmentioned
from genenv.domains.tool_calling.lexicon import effect_of, verbs, words_of
from genenv.domains.tool_calling.phrasings import PHRASES
from genenv.domains.tool_calling.phrasings.chains import HELD_OUT_CHAINS, TRAINING_CHAINS
from genenv.domains.tool_calling.phrasings.template import Template

BENCH = Path(__file__).parents[3] / "bench" / "gate_precision.py"


def masked(text: str) -> str:
    """An instruction as the gate reads it: quotations and places do not count."""
    return re.sub(r'"[^"]*"|\{[^}]*\}', lambda match: "\0" * len(match[0]), text)


@pytest.mark.parametrize(
    ("text", "tools", "why"),
    [
        ('Whatever you do, do not cancel "X".', ["cancel_event"], "do not cancel"),
        ("Please don't lock the front door", ["lock_door"], "don't lock"),
        ("Never delete that file", ["delete_file"], "Never delete"),
        ("Avoid deleting it", ["delete_file"], "Avoid deleting"),
        ("Book a room without paying the bill", ["book_hotel", "pay_bill"], "without paying"),
        ("Under no circumstances pay them", ["pay_bill"], "Under no circumstances"),
        ("There is no need to order it", ["place_order"], "no need to order"),
        ("Nobody should lock the door", ["lock_door"], "Nobody should lock"),
        ("Stop the vacuum from going into the kitchen", ["start_vacuum"], "Stop the vacuum from"),
        ("Book a hotel? No way.", ["book_hotel"], "No way"),
        ("Forget about the hotel that I wanted to book", ["book_hotel"], "Forget about"),
        ('The playlist "Breath" should be removed.', ["create_playlist"], "asks to removed"),
        ('Cancel "Lunch" on that day', ["create_event"], "asks to cancel"),
        ('Read "work/plan.md" aloud.', ["delete_file"], "asks to read"),
        ("Unblock Tom", ["block_contact"], "asks to unblock"),
        ("Take the song off my playlist", ["add_to_playlist"], "take something away"),
        ("What is 15 percent of 80?", ["split_bill"], "about 'percent'"),
        ('What does "Dentist" mean in Latin?', ["cancel_event"], "asks a question"),
        ("I have already paid them.", ["pay_bill"], "it is done"),
        ('I cancelled "X" myself.', ["cancel_event"], "it is done"),
        ("Thanks for setting the alarm.", ["set_alarm"], "gives thanks"),
        ("If it snows, set the bedroom to 22 degrees.", ["set_temperature"], "sets a condition"),
    ],
)
def test_what_does_not_ask_for_the_calls_is_refused(text: str, tools: Sequence[str], why: str) -> None:
    found = unasked(masked(text), tools)
    assert found is not None
    assert why in found


@pytest.mark.parametrize(
    ("text", "tools"),
    [
        ("Don't forget to lock the door", ["lock_door"]),
        ("I don't want to be late; set an alarm", ["set_alarm"]),
        ("He keeps calling. I never want to hear from him again, so block him.", ["block_contact"]),
        ("Nobody needs the office light, switch it off", ["switch_light"]),
        ("Stop order 12 from going out", ["cancel_order"]),
        ("Stop Ann from contacting me, and then add milk to my list", ["block_contact", "add_todo"]),
        ("I never want a message from Ann again. And text Bo.", ["block_contact", "send_message"]),
        ("The music should not play on then. Also, play that song", ["sleep_timer", "play_song"]),
        ("Stop Ann from contacting me and add milk to my list", ["block_contact", "add_todo"]),
        ("Which flight is the cheapest? Book it", ["search_flights", "book_flight"]),
        ("Find me a bed in a hotel and book it", ["book_hotel"]),
        ("Would you mind playing that song?", ["play_song"]),
        ("If you add 30 days to that day, what do you get?", ["add_days"]),
        ("Send that email to the archive", ["archive_email"]),
        ("An invoice lies on my desk, unpaid.", ["pay_bill"]),
    ],
)
def test_what_asks_for_them_all_the_same_passes(text: str, tools: Sequence[str]) -> None:
    assert unasked(masked(text), tools) is None


def templates(split: str) -> list[tuple[Sequence[str], Template]]:
    """All phrasings of tools and chains of a split."""
    chains = TRAINING_CHAINS if split == "training" else HELD_OUT_CHAINS
    alone = [((tool,), template) for tool, both in PHRASES.items() for template in getattr(both, split)]
    return [*alone, *((chain.tools, template) for chain in chains for template in chain.phrases)]


@pytest.mark.parametrize(("split", "count"), [("training", 570), ("held_out", 415)])
def test_every_phrasing_that_we_wrote_asks_for_its_tools(split: str, count: int) -> None:
    phrasings = templates(split)
    assert len(phrasings) == count
    assert [template.text for tools, template in phrasings if unasked(masked(template.text), tools)] == []


def test_a_second_call_needs_a_word_or_a_value_of_its_own() -> None:
    both, same = ("read_file", "delete_file"), {"a.txt"}
    assert (
        unmentioned("Read it to me.", both, [same, same]) == "no word of the instruction asks for delete_file"
    )
    assert unmentioned("Read it and delete it.", both, [same, same]) is None
    assert unmentioned("Read it to me.", both, [same, {"b.txt"}]) is None


@pytest.mark.parametrize(
    "words",
    ["cancel cancels cancelled cancelling", "delete deleted deleting", "pay pays paid paying", "move moving",
     "tick ticked ticking", "copy copies copied", "put puts putting", "call calls called", "book booking"],
)  # fmt: skip
def test_the_forms_of_a_word_have_one_stem(words: str) -> None:
    assert len({stem(word) for word in words.split()}) == 1


def test_words_come_from_names_documentation_and_the_seeds_phrasings_alone() -> None:
    assert "calendar" in words_of("cancel_event")
    assert stem("bowed") not in words_of("cancel_event")  # only a held-out phrasing has it
    assert "cancel_event" in verbs()["cancel"]
    assert [effect_of(tool) for tool in ("read_file", "move_file", "delete_file")] == [
        "reads",
        "makes",
        "removes",
    ]


@pytest.fixture(scope="module")
def judged() -> dict[str, dict[str, Any]]:
    bench = runpy.run_path(str(BENCH))
    rows = [(row, bench["verdict"](row)) for row in bench["labelled"]()]
    parts = dict.fromkeys(row["part"] for row, _ in rows)
    return {part: bench["measured"]([r for r in rows if r[0]["part"] == part], part) for part in parts}


@pytest.mark.long
@pytest.mark.parametrize(
    ("part", "precision", "recall"), [("first", 0.89, 1.0), ("second", 0.79, 0.94), ("fresh", 0.70, 1.0)]
)
def test_the_gates_precision_and_recall_are_what_we_publish(
    judged: dict[str, dict[str, Any]], part: str, precision: float, recall: float
) -> None:
    found = judged[part]
    assert (found["specs"], found["sound"]) == (100, 50)
    assert found["precision"]["rate"] >= precision
    assert found["recall"]["rate"] >= recall
    assert found["accepted_by_kind"]["variation"] == "25 of 25"
