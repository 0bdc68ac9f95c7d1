"""Which tools come together in one task, and the words that join their parts. The splits share none of it.

A circle is a set of tools that one person could need in one breath. Two tools of a held-out circle never meet
in a training task, not even with a third.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from genenv.domains.tool_calling.phrasings.chains import HELD_OUT_CHAINS, TRAINING_CHAINS, Chain

_HELD_OUT_CIRCLES: tuple[str, ...] = (
    "search_email flag_email list_events add_todo",
    "find_contact send_email block_contact cancel_event",
    "read_file send_email list_files complete_todo",
    "search_products place_order get_balance",
    "find_free_slot move_event read_messages",
    "search_notes send_message complete_todo",
    "percent_of transfer set_spending_limit",
    "add_days create_event get_weather convert_units",
    "book_flight days_between pay_bill add_contact",
    "book_hotel convert_currency send_message",
    "switch_light set_alarm sleep_timer start_vacuum",
    "lock_door set_temperature play_song",
    "create_playlist add_to_playlist set_volume",
    "delete_note create_file move_file",
    "track_order list_transactions archive_email",
    "cancel_order cancel_booking cancel_event",
    "split_bill pay_bill send_message",
    "add_to_cart append_note list_transactions",
    "search_flights get_weather list_events",
    "delete_file add_note set_volume",
)

_TRAINING_CIRCLES: tuple[str, ...] = (
    "lock_door switch_light set_alarm sleep_timer set_temperature set_volume play_song start_vacuum",
    "list_events get_weather create_event add_todo send_message set_alarm move_event cancel_event",
    "add_contact send_message find_contact read_messages block_contact send_email create_event",
    (
        "send_email archive_email flag_email search_email create_file "
        "move_file delete_file read_file list_files add_note"
    ),
    (
        "get_balance transfer pay_bill list_transactions "
        "set_spending_limit split_bill percent_of convert_currency"
    ),
    (
        "search_products add_to_cart place_order cancel_order "
        "track_order get_balance set_spending_limit add_todo"
    ),
    "search_flights book_flight book_hotel cancel_booking convert_currency add_todo send_email pay_bill",
    "days_between add_days convert_units convert_currency percent_of split_bill get_weather find_free_slot",
    "play_song create_playlist add_to_playlist set_volume sleep_timer switch_light",
    (
        "add_note append_note delete_note search_notes add_todo "
        "complete_todo set_alarm create_file find_free_slot"
    ),
)


def _pairs(tools: Iterable[str]) -> set[frozenset[str]]:
    return {frozenset(pair) for pair in itertools.combinations(tools, 2)}


_CHAINED = {frozenset(chain.tools) for chain in (*TRAINING_CHAINS, *HELD_OUT_CHAINS)}
_HELD_OUT_PAIRS = set[frozenset[str]]().union(*(_pairs(circle.split()) for circle in _HELD_OUT_CIRCLES)) | {
    frozenset(chain.tools) for chain in HELD_OUT_CHAINS
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Combinations:
    """The combinations of one split, and how their parts are joined."""

    chains: tuple[Chain, ...]
    circles: tuple[tuple[str, ...], ...]
    held_out: bool
    two_clauses: tuple[str, ...]
    """Join the clauses `{a}` and `{b}` to a sentence."""
    three_clauses: tuple[str, ...]
    before_clause: tuple[str, ...]
    """Open a sentence made of the clause `{b}` that follows another sentence."""
    before_sentence: tuple[str, ...]
    """Open a whole utterance `{b}` that follows another; may add nothing."""

    def allows(self, tools: Iterable[str]) -> bool:
        """Whether every two of these tools may meet in this split."""
        return all((pair in _HELD_OUT_PAIRS) is self.held_out for pair in _pairs(tools))

    def groups(self, size: int) -> list[tuple[str, ...]]:
        """Every set of so many independent tools that may meet here, in a fixed order."""
        return [
            group
            for group in dict.fromkeys(
                g for circle in self.circles for g in itertools.combinations(circle, size)
            )
            if self.allows(group) and not _CHAINED & _pairs(group)
        ]

    def companions(self, chain: Chain) -> list[str]:
        """Tools that may come after a chain in one task."""
        known = dict.fromkeys(
            tool for circle in self.circles if set(chain.tools) & set(circle) for tool in circle
        )
        return [
            tool
            for tool in known
            if tool not in chain.tools
            and self.allows((*chain.tools, tool))
            and not {frozenset((tool, own)) for own in chain.tools} & _CHAINED
        ]


TRAINING_COMBINATIONS = Combinations(
    chains=TRAINING_CHAINS,
    circles=tuple(tuple(circle.split()) for circle in _TRAINING_CIRCLES),
    held_out=False,
    two_clauses=("{a}, and then {b}.", "{a}, and also {b}.", "Please {a}; I'd also like you to {b}."),
    three_clauses=("{a}, then {b}, and then {c}.", "Here is what I need: {a}, {b}, and {c}."),
    before_clause=("Also, {b}.", "Then {b}.", "After that, {b}."),
    before_sentence=("{b}", "And another thing: {b}", "Plus: {b}"),
)
HELD_OUT_COMBINATIONS = Combinations(
    chains=HELD_OUT_CHAINS,
    circles=tuple(tuple(circle.split()) for circle in _HELD_OUT_CIRCLES),
    held_out=True,
    two_clauses=("{a}; besides, {b}.", "{a}, and while you are at it, {b}.", "Kindly {a}, then {b}."),
    three_clauses=("{a}, {b}, and to finish, {c}.", "Kindly {a}; next, {b}; finally, {c}."),
    before_clause=("In addition, {b}.", "On top of that, {b}.", "Next, {b}."),
    before_sentence=("{b}", "Something else: {b}", "Apart from that: {b}"),
)
