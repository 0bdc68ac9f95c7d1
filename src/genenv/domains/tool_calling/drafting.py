"""Writes a spec from a plan: picks phrasings, draws values, joins the parts to an instruction.

A draft remembers the templates it was made of, so that a test can show that two splits share none.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date as Day
from typing import Literal, cast

from genenv.domains.tool_calling.phrasings import PHRASES
from genenv.domains.tool_calling.phrasings.chains import Chain
from genenv.domains.tool_calling.phrasings.combinations import (
    HELD_OUT_COMBINATIONS,
    TRAINING_COMBINATIONS,
    Combinations,
)
from genenv.domains.tool_calling.phrasings.template import Phrases, Scalar, Style, Template
from genenv.domains.tool_calling.spec import Call, ToolSpec
from genenv.domains.tool_calling.toolbox import TOOLS
from genenv.domains.tool_calling.values import HELD_OUT, TRAINING, Said, Values

Gap = Literal["none", "missing_info", "no_tool"]
Size = Literal[2, 3, 4, 6, 8]
SIZES: tuple[Size, ...] = (2, 3, 4, 6, 8)

_MOST_WORDS = 48
_ATTEMPTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What the tasks of one side are made of: phrasings, values and combinations that the other lacks."""

    values: Values
    phrases: Mapping[str, Phrases]
    """By tool."""
    combinations: Combinations


TRAINING_SPLIT = Split(
    values=TRAINING,
    phrases={tool: phrases.training for tool, phrases in PHRASES.items()},
    combinations=TRAINING_COMBINATIONS,
)
HELD_OUT_SPLIT = Split(
    values=HELD_OUT,
    phrases={tool: phrases.held_out for tool, phrases in PHRASES.items()},
    combinations=HELD_OUT_COMBINATIONS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a spec should be, before there are words for it."""

    tools: tuple[str, ...]
    """In order; where there is a chain, its tools come first."""
    chain: Chain | None = None
    n_tools: Size = 4
    phrasing: Style = "explicit"
    gap: Gap = "none"

    @property
    def parts(self) -> list[str | Chain]:
        """What gets a phrasing of its own: the chain, and each tool outside it."""
        return list(self.tools) if self.chain is None else [self.chain, *self.tools[2:]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """A spec and what it was made of."""

    spec: ToolSpec
    templates: tuple[str, ...]
    """The phrasings and joiners in the instruction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    template: Template
    text: str
    """The template filled in, without an end if it is a clause."""
    calls: tuple[Call, ...]


@dataclass(slots=True)
class Drafter:
    """Writes specs of one split; prefers the templates it has used least."""

    split: Split
    used: Counter[str] = field(default_factory=Counter[str])
    written: set[str] = field(default_factory=set[str])
    """Instructions so far; none is written twice."""

    def draft(self, plan: Plan, rng: random.Random, today: Day) -> Drafted:
        """A spec for a plan.

        Args:
            plan: what it should be.
            rng: the only source of chance.
            today: the day that "tomorrow" comes after.

        Raises:
            ValueError: there is nothing to say in the plan's phrasing, or no way to say it briefly.
        """
        for _ in range(_ATTEMPTS):
            parts = [
                self._part(part, style, plan.gap, rng, today)
                for part, style in zip(plan.parts, self._styles(plan, rng), strict=True)
            ]
            joined, joiner = self._join(parts, rng)
            instruction = joined.replace('?".', '?"')
            if instruction in self.written or len(instruction.split()) > _MOST_WORDS or _repeats(parts):
                continue
            used = (*(part.template.text for part in parts), *joiner)
            self.used.update(used)
            self.written.add(instruction)
            return Drafted(spec=_spec(plan, parts, instruction), templates=used)
        raise ValueError(f"no draft for {plan}")

    def can_be_relative(self, part: str | Chain) -> bool:
        """Whether something in this part could be given relatively."""
        return bool(self._phrases(part).relative)

    def _phrases(self, part: str | Chain) -> Phrases:
        return self.split.phrases[part] if isinstance(part, str) else part.phrases

    def _styles(self, plan: Plan, rng: random.Random) -> list[Style]:
        """One part at least has the plan's style; the others share it now and then, where they can."""
        styles: list[Style] = ["explicit"] * len(plan.parts)
        if plan.phrasing == "explicit":
            return styles
        able = [i for i, part in enumerate(plan.parts) if self._phrases(part).of(plan.phrasing)]
        if not able:
            raise ValueError(f"nothing in {plan.tools} can be {plan.phrasing}")
        sure = rng.choice(able)
        for index in able:
            if index == sure or rng.random() < 0.25:
                styles[index] = plan.phrasing
        return styles

    def _part(self, part: str | Chain, style: Style, gap: Gap, rng: random.Random, today: Day) -> _Part:
        phrases = self._phrases(part)
        if gap == "missing_info":
            options = [template for lines in phrases.missing.values() for template in lines]
        else:
            options = phrases.of(style)
        template = min(options, key=lambda option: (self.used[option.text], rng.random()))
        slots = PHRASES[part].slots if isinstance(part, str) else _chain_slots(part, template)
        said = self._draw(template, slots, rng, today)
        values = {name: value.value for name, value in said.items()} | dict(template.implied)
        text = template.fill({name: value.words for name, value in said.items()})
        return _Part(template=template, text=text, calls=_calls(part, values))

    def _draw(
        self, template: Template, slots: Mapping[str, str], rng: random.Random, today: Day
    ) -> dict[str, Said]:
        """Values for the places of a template. Whole groups are drawn, of which a template may use a part."""
        places = template.places
        said: dict[str, Said] = {}
        for names, pool in slots.items():
            group = names.split()
            if places.keys() & set(group):
                drawn = self.split.values.draw(pool, [places.get(name, "") for name in group], rng, today)
                said |= {name: value for name, value in zip(group, drawn, strict=True) if name in places}
        return said

    def _join(self, parts: Sequence[_Part], rng: random.Random) -> tuple[str, tuple[str, ...]]:
        """One instruction out of the parts, and the joiners it took."""
        joiners = self.split.combinations
        if len(parts) > 1 and all(part.template.is_clause for part in parts) and rng.random() < 0.7:
            joiner = rng.choice(joiners.two_clauses if len(parts) == 2 else joiners.three_clauses)
            texts = dict(zip("abc", (_lower(part.text) for part in parts), strict=False))
            return _upper(joiner.format(**texts)), (joiner,)
        text = f"{parts[0].text}." if parts[0].template.is_clause else parts[0].text
        openings = {
            True: rng.sample(joiners.before_clause, len(joiners.before_clause)),
            False: rng.sample(joiners.before_sentence, len(joiners.before_sentence)),
        }
        used: list[str] = []
        for part in parts[1:]:
            joiner = openings[part.template.is_clause].pop()
            used += [joiner] if joiner != "{b}" else []
            text += " " + joiner.format(b=_lower(part.text) if part.template.is_clause else part.text)
        return text, tuple(used)


def _chain_slots(chain: Chain, template: Template) -> dict[str, str]:
    """Argument -> pool for a chain: what its tools need, save what one finds out for the other."""
    first, second = (PHRASES[tool].slots for tool in chain.tools)
    slots = dict(chain.slots)
    taken = {*chain.slots, *template.implied}
    for tool_slots, linked in ((first, set[str]()), (second, set(chain.links))):
        new = {names: pool for names, pool in tool_slots.items() if not {*names.split()} & (taken | linked)}
        slots |= new
        taken |= {name for names in new for name in names.split()}
    return slots


def _calls(part: str | Chain, values: Mapping[str, Scalar]) -> tuple[Call, ...]:
    if isinstance(part, str):
        return (_call(part, values),)
    first, second = part.tools
    return _call(first, values), _call(second, {**values, **part.links})


def _call(tool: str, values: Mapping[str, Scalar]) -> Call:
    """A call with those of the values that it takes, in the order of its parameters."""
    return Call(tool=tool, args={p.name: values[p.name] for p in TOOLS[tool].parameters if p.name in values})


def _spec(plan: Plan, parts: Sequence[_Part], instruction: str) -> ToolSpec:
    calls = tuple(call for part in parts for call in part.calls)
    return ToolSpec(
        n_calls=cast(Literal[1, 2, 3], len(calls)),
        dependent=plan.chain is not None,
        n_tools=plan.n_tools,
        phrasing=plan.phrasing,
        gap=plan.gap,
        calls=calls,
        instruction=instruction,
    )


def _repeats(parts: Sequence[_Part]) -> bool:
    """Whether two parts share a value other than a choice: it could be taken for one and the same thing."""
    seen: set[str] = set()
    for part in parts:
        own = {
            str(call.args[parameter.name]).casefold()
            for call in part.calls
            for parameter in TOOLS[call.tool].parameters
            if parameter.kind not in ("choice", "flag") and parameter.name in call.args
        }
        if own & seen:
            return True
        seen |= own
    return False


def _lower(clause: str) -> str:
    return clause[0].lower() + clause[1:]


def _upper(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]
