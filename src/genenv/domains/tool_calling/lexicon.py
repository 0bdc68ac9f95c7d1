"""The words by which people ask for each tool: from its name, its documentation and the seeds' phrasings.

Nothing here is a list of synonyms. A word that no phrasing uses is no evidence for or against any tool.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Literal

from genenv.domains.stems import stem
from genenv.domains.tool_calling.phrasings import PHRASES
from genenv.domains.tool_calling.phrasings.chains import TRAINING_CHAINS
from genenv.domains.tool_calling.phrasings.template import Template
from genenv.domains.tool_calling.toolbox import TOOLS

Effect = Literal["reads", "makes", "removes"]

_REMOVING = frozenset({"archive", "block", "cancel", "complete", "delete"})
_LIGHT = (
    "add block calculate call cap change check compute count day get give have let limit look make mark note"
    " open percent place put save send set start store take tell throw turn work"
)
"""Verbs that say little by themselves, and nouns that open a sentence: "put", "make", "percent"."""


def stems(text: str) -> list[str]:
    """The stems of a text's words, in order; places of templates do not count."""
    return [stem(word) for word in re.findall(r"[A-Za-z][A-Za-z'’]*", re.sub(r"\{[^}]*\}", " ", text))]


def effect_of(tool: str) -> Effect:
    """What a tool does to the world."""
    if not TOOLS[tool].writes:
        return "reads"
    return "removes" if tool.split("_")[0] in _REMOVING else "makes"


@functools.cache
def words_of(tool: str) -> frozenset[str]:
    """The stems of all words that may stand in a request for a tool, alone or in a chain."""
    chained = (t.text for chain in TRAINING_CHAINS if tool in chain.tools for t in chain.phrases)
    return own_words_of(tool) | frozenset(stems(" ".join(chained)))


@functools.cache
def own_words_of(tool: str) -> frozenset[str]:
    """The stems of all words in a tool's name, documentation and training phrasings."""
    known = TOOLS[tool]
    notes = (str(p.schema["description"]).partition("e.g.")[0] for p in known.parameters)
    names = (p.name for p in known.parameters)
    spoken = (template.text for template in PHRASES[tool].training)
    text = " ".join((known.name, *names, known.description, *notes, *spoken)).replace("_", " ")
    return frozenset(stems(text))


@functools.cache
def verbs() -> Mapping[str, frozenset[str]]:
    """Stem of a verb that says something -> the tools that it asks for."""
    found: dict[str, set[str]] = {}
    for name, tool in TOOLS.items():
        firsts = [name.split("_")[0], tool.description.split()[0], *_opening(PHRASES[name].training)]
        for verb in firsts:
            found.setdefault(stem(verb), set()).add(name)
    for chain in TRAINING_CHAINS:
        for verb in _opening(chain.phrases):
            found.setdefault(stem(verb), set()).add(chain.tools[0])
    light = {stem(word) for word in _LIGHT.split()}
    return {verb: frozenset(tools) for verb, tools in found.items() if verb not in light}


@functools.cache
def verbs_of(tool: str) -> frozenset[str]:
    """The verbs that ask for a tool, and the one in its name."""
    return frozenset({stem(tool.split("_")[0]), *(verb for verb, tools in verbs().items() if tool in tools)})


def _opening(phrases: Iterable[Template]) -> list[str]:
    """The verbs with which requests begin."""
    asked = r"(?:please|can you|could you|would you)\s+"
    found = (
        re.match(
            rf"(?:{asked})?([A-Za-z]+)" if t.is_clause else rf"{asked}([A-Za-z]+)", t.text, re.IGNORECASE
        )
        for t in phrases
    )
    return [match[1] for match in found if match]


@functools.cache
def rare_words(tool: str) -> frozenset[str]:
    """Words of a tool that few other tools share."""
    return frozenset(word for word in words_of(tool) if len(_sharing(word)) <= _FEW)


@functools.cache
def objects() -> Mapping[str, frozenset[str]]:
    """Stem of a noun in the name or first line of a tool -> all tools that know it, where these are few."""
    named = {stem(noun) for name in TOOLS for noun in name.split("_")[1:]} | {"percent"}
    lines = (tool.description.split()[1:] for tool in TOOLS.values())
    described = {stem(word) for line in lines for word in line if len(word) > _SHORT}
    return {
        noun: tools for noun in named | described if len(noun) > 2 and len(tools := _sharing(noun)) <= _FEW
    }


_SHORT = 5
_FEW = 4


@functools.cache
def _sharing(word: str) -> frozenset[str]:
    return frozenset(tool for tool in TOOLS if word in words_of(tool))
