"""Does an instruction ask for the calls that it is paired with? A small model often pairs what does not fit.

The checks are about words, not meaning: negation, the verb or object of another tool, a question where an
action should be, a condition, something done already, a call that nothing asks for. They would rather refuse
a good task than let a wrong one pass. What they know of tools comes from `lexicon`.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence, Set

from genenv.domains.stems import stem
from genenv.domains.tool_calling.lexicon import (
    Effect,
    effect_of,
    objects,
    own_words_of,
    rare_words,
    stems,
    verbs,
    verbs_of,
    words_of,
)
from genenv.domains.tool_calling.toolbox import TOOLS

_CLAUSE = re.compile(r"[.!?;:,\n]+|\b(?:and|but|so|then)\b", re.IGNORECASE)
_SENTENCE = re.compile(r"[^.!?]*[.!?]?")
_REQUEST = re.compile(
    r"(?:^|\b(?:please|kindly|also|next|finally|first|now|just|(?:can|could|would|will)\s+you"
    r"|(?:want|like|need|have|has|ought|needs|wants)\s+(?:you\s+)?to(?:\s+be)?|(?:should|must|can|could|may)\s+be"
    r"|wants?|needs?|gets?)\s+)(?P<verb>[a-z]+)",
    re.IGNORECASE,
)
_NOT = (
    r"(?:do|should|must|need|would|to|may)\s+not|(?:don|mustn|shouldn|needn)['’]?t|not\s+to|never"
    r"|no\s+(?:need|reason|point|use)|under\s+no\s+circumstances|on\s+no\s+account|avoid|refrain|without"
    r"|(?:stop|keep|prevent)\b[^.!?;,]*\bfrom|rather\s+not|instead\s+of|rather\s+than"
)
_NEGATED = re.compile(rf"\b(?:{_NOT})\b(?P<rest>[^.!?;:]*)", re.IGNORECASE)
_ORDER_NOT = re.compile(
    r"(?:^|[.!?;:,]\s*|\b(?:please|but|and|so|do)\s+)(?:do\s+not|don['’]?t|never|avoid|refrain\s+from)\s+"
    r"(?!(?:forget|worry|mind|hesitate|know|want|need|let|care|think|remember|like|have|see|quite|ever)\b)[a-z]+",
    re.IGNORECASE,
)
_REMINDER = re.compile(r"\s*(?:forget|hesitate|fail)\s+to\b", re.IGNORECASE)
_NOBODY = re.compile(
    r"\b(?:nobody|no\s+one|nothing)\s+(?:(?:should|must|may|can|is\s+to)\s+(?P<base>[a-z]+)|(?P<verb>[a-z]+s))\b",
    re.IGNORECASE,
)
_NOT_AT_ALL = re.compile(
    r"\b(?:no\s+way|by\s+no\s+means|in\s+no\s+case|not\s+on\s+any\s+account|anything\s+but|forget\s+(?:about|the\s+idea)"
    r"|no\s+longer\s+(?:wish|want)\s+to|(?:would|might)\s+be\s+(?:wrong|a\s+mistake|a\s+bad\s+idea|a\s+shame)"
    r"|(?:is|was)\s+a\s+bad\s+idea|rather\s+(?:you|we)\s+(?:didn['’]?t|did\s+not)|hold\s+off|leave\b[^.?!;,]*\b(?:alone"
    r"|as\s+it\s+is|where\s+it\s+is|in\s+place)|scratch\s+that|on\s+second\s+thought|no,\s+wait|,\s+no,)",
    re.IGNORECASE,
)
"""Ways to take back or rule out what else is said, whatever that is."""
_ASKS = re.compile(
    r"^\W*(?:what|which|who|whose|when|where|why|how|is|are|was|were|do|does|did|has|am|will\s+(?:it|there))\b"
    r"(?!\s+(?:not|don['’]?t\s+you|about|if|it\s+possible|you\s+able|you\s+mind|me)\b)[^?]*\?",
    re.IGNORECASE,
)
_THANKS = re.compile(r"(?:^|[.!?,;]\s*)(?:thanks|thank\s+you)\s+for\s+\w+", re.IGNORECASE)
_CONDITION = re.compile(r"^\W*(?:if|unless|in\s+case|provided|assuming|as\s+long\s+as)\b", re.IGNORECASE)
_ONLY_IF = re.compile(r"\b(?:only\s+if|unless|in\s+case|provided\s+that|as\s+long\s+as)\b", re.IGNORECASE)
_DONE = re.compile(
    r"(?:^|[.!?;:,]\s*|\b(?:and|but)\s+)(?:I|we)(?:['’]ve|\s+have|\s+had)?(?:\s+(?:already|just|myself|now))?"
    r"\s+(?P<verb>[a-z]+)\b",
    re.IGNORECASE,
)
_OPPOSITES: Mapping[Effect, str] = {
    "makes": "delete deleted discard erase erased remove removed return returned revert undo",
    "removes": "bring recover recovered reinstate reopen reopened restore restored resume revive",
    "reads": "",
}
"""Effect -> verbs that ask for the opposite."""
_AWAY = re.compile(
    r"\b(?:take|get|want|pull|have|kick|throw|drop|is|are|be)\b[^.?!;,]*\b(?:off|out\s+of)\s+(?:my|the|our)\b",
    re.IGNORECASE,
)
_REACH = 8
"""Words over which a negation reaches."""


def unasked(words: str, tools: Sequence[str]) -> str | None:
    r"""Why an instruction does not ask for calls of these tools; None where nothing speaks against it.

    Args:
        words: the instruction; values are `\0`, so that what they say does not count.
        tools: those called, in order.
    """
    checks = (_negated, _already_done, _conditional, _only_a_question, _other_verb, _other_object)
    return next((why for check in checks if (why := check(words, tools))), None)


def _negated(words: str, tools: Sequence[str]) -> str | None:
    """A denial whose verb is that of a call, and not a word that belongs to another call."""
    own = {
        verb
        for verb in _own_verbs(tools)
        if not any(verb in own_words_of(tool) and verb not in verbs_of(tool) for tool in tools)
    }
    if found := _ORDER_NOT.search(words):
        return f"the instruction says {_shown(found[0])}"
    for match in _NEGATED.finditer(words):
        if _REMINDER.match(match["rest"]):
            continue
        holds_off = re.match(r"stop|keep|prevent", match[0], re.IGNORECASE)
        if holds_off and stem(holds_off[0]) in own:
            continue
        if holds_off and all(effect_of(tool) == "makes" for tool in tools):
            return f"the instruction says {_shown(match[0])}"
        reach = re.split(r"\b(?:but|because|until|so|then)\b|,\s*(?:and|also|please)\b", match["rest"])[0]
        if any(stem(word) in own for word in re.findall(r"[a-z]+", reach.lower())[:_REACH]):
            return f"the instruction says {_shown(match[0])}"
    if found := _NOT_AT_ALL.search(words):
        return f"the instruction says {_shown(found[0])}"
    for match in _NOBODY.finditer(words):
        if stem(match["verb"] or match["base"]) in own:
            return f"the instruction says {_shown(match[0])}"
    return None


def _already_done(words: str, tools: Sequence[str]) -> str | None:
    """First person and past: the thing has been done. Only forms that differ from the present count."""
    own = _own_verbs(tools)
    if thanks := _THANKS.search(words):
        return f"the instruction gives thanks: {_shown(thanks[0])}"
    for match in _DONE.finditer(words):
        verb = match["verb"].lower()
        past = verb.endswith("ed") or stem(verb) not in (verb, verb.removesuffix("e"))
        if past and not verb.endswith(("s", "ing")) and stem(verb) in own:
            return f"the instruction says that it is done: {_shown(match[0])}"
    return None


def _conditional(words: str, tools: Sequence[str]) -> str | None:
    if not all(TOOLS[tool].writes for tool in tools):
        return None
    own = _own_verbs(tools)
    for sentence in _sentences(words):
        conditional = _CONDITION.search(sentence) or _ONLY_IF.search(sentence)
        if conditional and own & set(stems(sentence)):
            return f"the instruction sets a condition: {_shown(sentence)}"
    return None


def _only_a_question(words: str, tools: Sequence[str]) -> str | None:
    """A question about facts is no request for a change."""
    if not all(TOOLS[tool].writes for tool in tools):
        return None
    found = next((s for s in _sentences(words) if _ASKS.search(s)), None)
    return (
        f"the instruction asks a question, and no call looks anything up: {_shown(found)}" if found else None
    )


def _other_verb(words: str, tools: Sequence[str]) -> str | None:
    """A request with the verb of tools that are not called, in a clause without a verb of those that are."""
    away = _AWAY.search(words)
    if away and all(effect_of(tool) == "makes" and not _has_source(tool) for tool in tools):
        return f"the instruction asks to take something away: {_shown(away[0])}"
    own = _own_verbs(tools)
    known = frozenset[str]().union(*(words_of(tool) for tool in tools))
    for clause in _CLAUSE.split(words):
        if own & set(stems(clause)):
            continue
        for match in _REQUEST.finditer(clause.strip()):
            verb = match["verb"].lower()
            undone = all(verb in _OPPOSITES[effect_of(tool)].split() for tool in tools)
            if (
                undone
                or _opposite(verb, own)
                or (stem(verb) not in known and _is_for_others(stem(verb), words, tools))
            ):
                return f"the instruction asks to {verb}, which is not what {' and '.join(tools)} would do"
    return None


def _opposite(verb: str, own: Container[str]) -> bool:
    """Whether it is a verb for undoing: "unblock", but not the "unpaid" of an unpaid bill."""
    return verb.startswith("un") and verb[2:] in own


def _has_source(tool: str) -> bool:
    """Whether a tool takes from somewhere, or switches something off."""
    return any(
        p.name in ("source", "origin", "from_unit") or p.kind == "flag" for p in TOOLS[tool].parameters
    )


def _is_for_others(verb: str, words: str, tools: Sequence[str]) -> bool:
    """Whether a verb asks for tools of the same apps that are not called, or for another effect.

    To find something first ("find a hotel and book it") is nothing else.
    """
    others = verbs().get(verb, frozenset[str]())
    if not others or (not any(TOOLS[t].writes for t in others) and _own_verbs(tools) & set(stems(words))):
        return False
    effects, called = {effect_of(tool) for tool in others}, {effect_of(tool) for tool in tools}
    telling = {tool for tool in others if TOOLS[tool].writes or len(others) <= 2}
    rivals = {TOOLS[tool].app for tool in telling} & {TOOLS[tool].app for tool in tools}
    return bool(rivals) or not effects & called


def _other_object(words: str, tools: Sequence[str]) -> str | None:
    """The object of other tools, where nothing particular to one that is called is said."""
    said = set(stems(words))
    for tool in tools:
        if not rare_words(tool) & said:
            foreign = [
                noun for noun in stems(words) if noun in objects() and not objects()[noun] & set(tools)
            ]
            if foreign:
                return f"the instruction is about {foreign[0]!r}, and says nothing that only {tool} would do"
    return None


def unmentioned(words: str, tools: Sequence[str], values: Sequence[Set[str]]) -> str | None:
    """The first of several calls that no word asks for: all that is said of it is said for another call.

    Args:
        words: as for `unasked`.
        tools: those called, in order.
        values: for each call, the literal values that the instruction has to say.
    """
    said = set(stems(words))
    for place, tool in enumerate(tools):
        for other, rival in enumerate(tools):
            own = own_words_of(tool) - own_words_of(rival)
            if tool != rival and values[place] <= values[other] and not own & said:
                return f"no word of the instruction asks for {tool}"
    return None


def _own_verbs(tools: Sequence[str]) -> frozenset[str]:
    return frozenset[str]().union(*(verbs_of(tool) for tool in tools))


def _sentences(words: str) -> Iterator[str]:
    return (match[0] for match in _SENTENCE.finditer(words) if match[0].strip())


def _shown(text: str) -> str:
    return repr(" ".join(text.replace("\0", "_").split())[:80])
