"""Checks of the values that an environment returns: each returns the valid value or raises `Broken`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from pydantic import BaseModel, ValidationError

from genenv.environments.base import Episode, Options, choices_of, tools_of
from genenv.errors import first_problem
from genenv.types import Json, JsonObject, Message, Rejection, Seed, Task, Verdict

SKILL = re.compile(r"[A-Za-z0-9_.:+=-]{1,64}")
"""Valid names of skills; they become parts of metric names."""


class Broken(ValueError):
    """Raised for an invalid value. The message continues the name of the method: `returns 3, not a text`."""


def text(answer: object) -> str:
    """Check for a string."""
    if not isinstance(answer, str):
        raise Broken(f"returns {_shown(answer)}, not a text")
    return answer


def count(answer: object) -> int:
    """Check for an integer of at least 0."""
    if isinstance(answer, bool) or not isinstance(answer, int) or answer < 0:
        raise Broken(f"returns {_shown(answer)}, not a whole number from 0 on")
    return answer


def replies(answer: object) -> tuple[str, ...]:
    """Check for a sequence of strings, one per turn."""
    if isinstance(answer, str) or not isinstance(answer, Sequence):
        raise Broken(f"returns {_shown(answer)}, not a tuple of texts")
    return tuple(text(one) for one in cast("Sequence[object]", answer))


def messages(answer: object) -> tuple[Message, ...]:
    """Check for a sequence of at least one message."""
    listed = tuple(_listed(answer, "messages"))
    if not listed:
        raise Broken("returns no message")
    for one in listed:
        if not isinstance(one, Message):
            raise Broken(f"returns {_shown(one)} among its messages")
        if one.role not in ("system", "user", "assistant", "tool"):
            raise Broken(f"returns a message of the role {_shown(one.role)}")
    return cast("tuple[Message, ...]", listed)


def json_object(answer: object) -> JsonObject:
    """Check for an object that can be written as JSON, and return what is read back from it."""
    if not isinstance(answer, Mapping):
        raise Broken(f"returns {_shown(answer)}, not a JSON object")
    try:
        return json.loads(json.dumps(answer, allow_nan=False))  # as the store gives it back
    except (TypeError, ValueError, RecursionError) as error:
        raise Broken(f"returns an object that is no JSON ({error})") from error


ROUNDING = 1e-6
"""Tolerance of the bounds of rewards: a weighted sum may be 1 - 1e-16, or 1 + 1e-7 as float32."""


def rounded(reward: float) -> float:
    """Return a reward, and exactly 0 or 1 for one that is within 1e-6 of it."""
    near = round(reward)
    return float(near) if abs(reward - near) <= ROUNDING else reward


def verdict(answer: object) -> Verdict:
    """Check for a verdict whose reward is in [0, 1]."""
    if not isinstance(answer, Verdict):
        raise Broken(f"returns {_shown(answer)}, not a Verdict")
    reward = cast("object", answer.reward)
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        raise Broken(f"returns a reward of {_shown(reward)}, not a number in [0, 1]")
    if not -ROUNDING <= reward <= 1 + ROUNDING:
        raise Broken(f"returns a reward of {reward:g}, which is not in [0, 1]")
    if not isinstance(cast("object", answer.success), bool):
        raise Broken(f"returns a success of {_shown(answer.success)}, not True or False")
    text(answer.explanation)
    return replace(answer, reward=rounded(float(reward)))


def verdicts(answer: object) -> Mapping[str, Verdict]:
    """Check for a verdict on each seat."""
    if not isinstance(answer, Mapping):
        raise Broken(f"returns {_shown(answer)}, not a verdict for each seat")
    return {text(seat): verdict(one) for seat, one in cast("Mapping[object, object]", answer).items()}


def options(answer: object) -> Options:
    """Check for alternatives of parameters, each with the values of its fields."""
    found: list[Mapping[str, Sequence[Json]]] = []
    for one in _listed(answer, "alternatives"):
        if not isinstance(one, Mapping):
            raise Broken(f"returns {_shown(one)} among its alternatives")
        fields = cast("Mapping[object, object]", one)
        found.append({text(name): cast("list[Json]", _listed(own, "values")) for name, own in fields.items()})
    if not found or not all(one and all(one.values()) for one in found):
        raise Broken("returns alternatives without a value")
    _ = json_object({"options": found})
    return found


def drawn(answer: object) -> BaseModel | Rejection:
    """Check for a spec or a rejection."""
    if not isinstance(answer, BaseModel | Rejection):
        raise Broken(f"returns {_shown(answer)}, not a spec or a Rejection")
    return answer


def findings(answer: object) -> Sequence[object]:
    """Check for rows of the table of `genenv check`."""
    if not isinstance(answer, Iterable):
        raise Broken(f"returns {_shown(answer)}, not findings")
    found = list(cast("Iterable[object]", answer))
    for one in found:
        _ = [text(getattr(one, field, None)) for field in ("what", "state", "seen", "fix")]
    return found


def rejection_or_none(answer: object) -> Rejection | None:
    """Check for a rejection or None."""
    if answer is not None and not isinstance(answer, Rejection):
        raise Broken(f"returns {_shown(answer)}, not a Rejection or None")
    return answer


def built(answer: object, task_id: str) -> Task | Rejection:
    """Check for a task with this id, or a rejection."""
    if isinstance(answer, Rejection):
        return answer
    found = task(answer)
    if found.id != task_id:
        raise Broken(f"returns a task with the id {found.id!r}, not the one that it was given")
    return found


def task(answer: object) -> Task:
    """Check for a task with valid messages, skills, demonstration, spec and payload."""
    if not isinstance(answer, Task):
        raise Broken(f"returns {_shown(answer)}, not a Task or a Rejection")
    messages(answer.messages)
    _skills(answer.skills)
    replies(answer.oracle)
    return replace(answer, spec=json_object(answer.spec), payload=json_object(answer.payload))


def tasks(answer: object) -> Sequence[Task]:
    """Check for a sequence of tasks with distinct ids."""
    found = [task(one) for one in _listed(answer, "tasks")]
    _different([one.id for one in found])
    return found


def seeds(answer: object, spec: type[BaseModel]) -> Sequence[Seed]:
    """Check for a sequence of seeds with distinct ids and specs of this class."""
    found: list[Seed] = []
    for one in _listed(answer, "seeds"):
        if not isinstance(one, Seed):
            raise Broken(f"returns {_shown(one)} among its seeds")
        one = replace(one, spec=json_object(one.spec))
        _skills(one.skills)
        try:
            spec.model_validate(one.spec)
        except ValidationError as error:
            raise Broken(
                f"returns {one.id}, whose spec is no {spec.__name__}: {first_problem(error)}"
            ) from error
        found.append(one)
    _different([one.id for one in found])
    return found


def tools(episode: Episode) -> Sequence[JsonObject]:
    """Return the tools that an episode passes to the chat template; empty if messages describe them."""
    offered = [json_object(one) for one in _listed(tools_of(episode), "tools")]
    for one in offered:
        if not isinstance(one.get("function"), Mapping):
            raise Broken(f"returns the tool {_shown(one)}, not one of OpenAI's form")
    return offered


def choices(episode: Episode) -> Sequence[str]:
    """Return the replies that an episode allows now; empty if every text is allowed."""
    offered = _listed(choices_of(episode), "choices")
    if odd := [one for one in offered if not isinstance(one, str)]:
        raise Broken(f"offers the choice {_shown(odd[0])}, not a text")
    return cast("Sequence[str]", offered)


def episode(answer: object) -> Episode:
    """Check for an episode: a `run` method and a limit of turns."""
    turns: object = getattr(answer, "max_turns", None)
    if not callable(getattr(answer, "run", None)):
        raise Broken(f"returns {_shown(answer)}, not an episode with a coroutine `run`")
    if isinstance(turns, bool) or not isinstance(turns, int) or turns < 1:
        raise Broken(f"returns an episode with max_turns = {_shown(turns)}, not a whole number from 1 on")
    return cast("Episode", answer)


def _skills(names: object) -> None:
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise Broken(f"returns skills that are {_shown(names)}, not a tuple of names")
    for name in cast("Sequence[object]", names):
        if not isinstance(name, str) or not SKILL.fullmatch(name):
            raise Broken(f"returns the skill {_shown(name)}; names are up to 64 of A-Z a-z 0-9 _ . : + = -")


def _listed(answer: object, what: str) -> list[object]:
    if isinstance(answer, str) or not isinstance(answer, Sequence):
        raise Broken(f"returns {_shown(answer)}, not a sequence of {what}")
    return list(cast("Sequence[object]", answer))


def _different(ids: Sequence[str]) -> None:
    seen: set[str] = set()
    for id_ in ids:
        if text(id_) in seen:
            raise Broken(f"returns the id {id_!r} twice")
        seen.add(id_)


def _shown(value: object) -> str:
    shown = f"{type(value).__name__} {value!r}" if value is not None else "None"
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
