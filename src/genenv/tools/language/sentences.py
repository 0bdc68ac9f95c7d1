"""The first words of a documentation: whether these are a noun or a verb, and the verbs as orders.

English spells many verbs in the third person as the plural of a noun: `books`, `prices`, `trains`. What
follows decides. A verb has an object (`Books a seat`); a noun has a preposition, a participle or a clause
(`Books of an author`, `Books borrowed by a member`, `Books that match a title`), or nothing.
"""

from __future__ import annotations

import re

from genenv.tools.discover.state_values import singular
from genenv.tools.language.words import (
    ADVERBS_BEHIND,
    AFTER_NOUNS,
    AFTER_VERBS,
    ALSO_NOUNS,
    ARTICLES,
    AUXILIARIES,
    CLAUSE_VERBS,
    CLAUSE_WORDS,
    NO_VERBS,
    ORDERS,
    PARTICIPLES,
    PARTICLES_OF_VERBS,
    PHRASES_OF_VERBS,
    PLURALS,
    PREPOSITIONS,
    PRONOUNS,
    QUALITIES_BEHIND,
    RELATIVES,
    SPANS,
)

_OBJECTS = ARTICLES | PRONOUNS
"""Words with which the object of a verb begins, if not with a noun."""
_OF_NOUNS = frozenset({"all", "no", "one", "that", "those", "which"})
"""Such words that also begin what is said of a noun: `groups that match`."""
_SHORT = 5
"""Letters up to which a word in -ize may be a noun, such as `size`."""
_ADVERBS = r"(?:\s(?:and|then|also|always|never|\w+ly))*"
_JOINT = rf"(?P<joint>(?:,?\s\(?(?:and|or|then|but)|,){_ADVERBS}\s)"
_LATER = re.compile(rf"{_JOINT}(?P<word>[a-z]+(?:-[a-z]+)?s)\b(?!-)")
"""A word that may be a further verb of a sentence, behind a comma or a conjunction."""
_OF_CLAUSE = re.compile(
    rf"\b(?:{'|'.join(sorted(CLAUSE_WORDS))})\s(?!(?:are|were|have)\b)[^,]*$", re.IGNORECASE
)
"""The beginning of a clause that a further verb may belong to; it cannot if the clause is of several."""
_OWN_SUBJECT = re.compile(r"(?:an?|the|each|this|one)(?:\s\w+){1,2}?\s(?:\w+ed\W*$|(?P<auxiliary>\w+)\b)")
"""What follows a noun instead of `that`: `(books) a member has borrowed`."""


def is_verbal(word: str) -> bool:
    """Whether a word has an ending that only verbs have."""
    return len(word) > _SHORT and word.endswith(("ify", "ize"))


def is_plural(word: str) -> bool:
    """Whether a word is spelled as a plural, or as a verb in the third person."""
    return len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is"))


def base_of(word: str) -> str:
    """Return a verb in the imperative: `returns` becomes `return`."""
    return _known(word) or (singular(word) if is_plural(word) else word)


def imperative(word: str, rest: str, name: str, *, writes: bool) -> str | None:
    """Return the first verb of a documentation in the imperative; None if it does not begin with a verb.

    Args:
        word: the first word of a sentence.
        rest: the other words.
        name: the first word of the tool's name; it is taken for a verb if the sentence begins with it, too,
            and not with a title such as `Date calculations:`.
        writes: whether the tool changes the state; if not, `items with` and the like begin with a noun.
    """
    if word in ("lookup", "lookups"):
        return "look up"
    known, follows = _known(word), _first(rest)
    if word in NO_VERBS | AUXILIARIES or not word.isalpha() or _is_noun(word, rest, writes=writes):
        return None
    if known is not None:
        return known
    after = AFTER_VERBS if writes else AFTER_VERBS - AFTER_NOUNS
    is_verb = follows in _OBJECTS | PARTICLES_OF_VERBS or follows.isdigit()
    is_verb = (is_verb or (follows in after and word.endswith("s"))) and not word.endswith("ing")
    if name in _ways(word) and not rest.partition(" ")[0].endswith(":"):
        return name if name != word or not is_plural(word) else singular(word) if is_verb else None
    return singular(word) if is_verb else None


def all_imperative(rest: str, *, writes: bool) -> str:
    """Return what follows the first verb of an order, with further verbs in the imperative, too.

    `(refund) an order and frees its seats` becomes `an order and free its seats`; nouns stay as they are.

    Args:
        rest: the words behind the first verb, which was in the third person.
        writes: whether the tool changes the state.
    """

    def order(match: re.Match[str]) -> str:
        before, after = rest[: match.start()], rest[match.end() :]
        of_clause = not match["joint"].startswith(",") and _OF_CLAUSE.search(before)
        if of_clause or not _is_later_verb(match["word"], after, match["joint"], writes=writes):
            return match[0]
        return match["joint"] + base_of(match["word"])

    return _LATER.sub(order, rest)


def _is_later_verb(word: str, after: str, joint: str, *, writes: bool) -> bool:
    """Whether a word behind a conjunction is a verb in the third person: whether it has an object."""
    joined = _LATER.match(after)
    if joined is not None and not joint.strip().endswith(("and", "or")):
        return _is_later_verb(joined["word"], after[joined.end() :], joined["joint"], writes=writes)
    base, follows = base_of(word), _first(after.lstrip(",) "))
    if not is_plural(word) or word in AUXILIARIES | PREPOSITIONS or not after.strip(" )"):
        return False
    if after.startswith((",", ")")):  # adds, or updates, a note
        return after.startswith(")") or (follows in _OBJECTS and joint.strip(", ") in ("and", "or"))
    is_known = base in ORDERS or is_verbal(base)
    if is_known and base not in PLURALS:
        return follows != "of"
    if follows in _OBJECTS - _OF_NOUNS or (is_known and follows in PARTICLES_OF_VERBS) or follows.isdigit():
        return not _is_said_of_noun(base, after, writes=writes)
    if follows in PREPOSITIONS:
        return writes and f"{base} {follows}" in PHRASES_OF_VERBS
    is_object = follows.isalpha() and follows not in AUXILIARIES | CLAUSE_WORDS | ADVERBS_BEHIND
    is_object = is_object and follows not in NO_VERBS and not _is_participle(follows)
    return is_object and (is_plural(follows) or (writes and base in ORDERS))


def _is_noun(word: str, rest: str, *, writes: bool) -> bool:
    """Whether a documentation begins with a noun, as far as what follows tells."""
    base, follows = base_of(word), _first(rest)
    if not is_plural(word):
        is_also = word in ALSO_NOUNS and follows not in ARTICLES
        is_said_of = _is_participle(follows) and _second(rest) in PREPOSITIONS and word not in ORDERS
        is_also = is_also or is_said_of  # weight lost in a month
        return (not writes and (follows == "of" or is_also)) or _is_one_that(word, rest, writes=writes)
    if base in ORDERS and base not in PLURALS:
        return not writes and follows == "of"
    if follows in RELATIVES:
        return _is_relative(base, rest, writes=writes)
    second = _second(rest)
    if writes:
        return _is_participle(follows) and second == "by"
    if follows in PREPOSITIONS and base in PLURALS:
        if follows == "to" and second not in _OBJECTS and not is_plural(second):  # tests to see
            return False
        return follows == "of" or f"{base} {follows}" not in PHRASES_OF_VERBS
    joined = _LATER.match(rest if rest.startswith(",") else f" {rest}")
    if not follows or joined is not None:
        after = joined.string[joined.end() :] if joined else ""
        is_verb = joined and _is_later_verb(joined["word"], after, ",", writes=writes)
        return base in PLURALS and not is_verb
    return follows == "of" or _is_said_of_noun(base, rest, writes=writes)


def _is_one_that(word: str, rest: str, *, writes: bool) -> bool:
    """Whether a sentence begins with a noun in the singular and a clause: `Berth that is free`."""
    second = _second(rest)
    is_finite = second in AUXILIARIES or (is_plural(second) and not writes and word not in ORDERS)
    return _first(rest) == "that" and is_finite and word not in CLAUSE_VERBS


def _is_relative(base: str, rest: str, *, writes: bool) -> bool:
    """Whether a clause behind a word, such as `that match a title`, is about a noun."""
    follows, second = _first(rest), _second(rest)
    if base in CLAUSE_VERBS:
        has_object = _second(_after_first(rest)) in _OBJECTS and not second.endswith("ing")
        is_verb = has_object and second not in _OBJECTS and not is_plural(second)
        return base in PLURALS and (second in AUXILIARIES or (is_verb and not writes))
    if second in AUXILIARIES or follows in ("who", "whom"):
        return True
    return not writes and (follows == "that" or base in PLURALS)


def _is_said_of_noun(base: str, rest: str, *, writes: bool) -> bool:
    """Whether words are said of the noun before them: `placed by a customer`, `still free`, `this week`."""
    follows, second = _first(rest), _second(rest)
    if follows in ADVERBS_BEHIND:
        return second not in _OBJECTS and not is_plural(second) and not second.isdigit()
    if _is_participle(follows) or follows in QUALITIES_BEHIND or follows.endswith(("able", "ible", "ing")):
        return not second or second in PREPOSITIONS | ADVERBS_BEHIND | NO_VERBS - _OBJECTS
    if second in SPANS and follows in ("this", "each", "every", "last", "next"):
        return True
    own = None if writes or base in CLAUSE_VERBS else _OWN_SUBJECT.match(rest.strip().lower())
    return own is not None and (own["auxiliary"] is None or own["auxiliary"] in AUXILIARIES)


def _is_participle(word: str) -> bool:
    return word in PARTICIPLES or (len(word) > 3 and word.endswith("ed") and not word.endswith("eed"))


def _ways(word: str) -> tuple[str, ...]:
    """Return a word, and the verbs of which it may be the third person."""
    return (word, word.removesuffix("s"), word.removesuffix("es"), re.sub("ies$", "y", word))


def _known(word: str) -> str | None:
    return next((way for way in _ways(word) if way in ORDERS), None)


def _first(text: str) -> str:
    """Return the first word of a text in lower case, without signs; empty if there is none."""
    return next(iter(text.lower().split()), "").strip(",.;:()\"'`")


def _second(text: str) -> str:
    return _first(_after_first(text))


def _after_first(text: str) -> str:
    return text.strip().partition(" ")[2]
