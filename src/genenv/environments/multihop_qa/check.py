"""Grading: the answer that ends an attempt, and what an attempt hears on the way to it."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from genenv.environments.base import Ask, OutOfTurns
from genenv.environments.multihop_qa.answers import (
    MAX_REPLY_CHARS,
    answer_of,
    exact,
    last_line,
    normalized,
    token_f1,
)
from genenv.environments.multihop_qa.kb import KnowledgeBase
from genenv.environments.multihop_qa.settings import MultihopConfig
from genenv.environments.multihop_qa.world import World
from genenv.types import Message, Task, Verdict

_SEARCH = re.compile(r"search\s*:\s*(.*)", re.IGNORECASE | re.DOTALL)


def searched(reply: str) -> str | None:
    """The words that a reply searches for on its last line; None if it is an answer or too long to read."""
    if len(reply) > MAX_REPLY_CHARS:
        return None
    match = _SEARCH.fullmatch(last_line(reply))
    return match[1].strip() if match else None


def answers_in(task: Task) -> list[str]:
    """What a task takes for an answer."""
    right = task.payload["answers"]
    return [str(each) for each in right] if isinstance(right, list | tuple) else []


def final_reply(task: Task, replies: Sequence[str], settings: MultihopConfig) -> str | None:
    """The reply that ends the episode, as the episode itself would find it; None: it never came."""
    if task.payload["mode"] != "search":
        return replies[0] if replies else None
    return next((reply for reply in replies[: settings.max_turns] if searched(reply) is None), None)


def check(task: Task, replies: Sequence[str], settings: MultihopConfig) -> Verdict:
    """Grade an attempt. Success is an exact match; the soft reward is the F1 of the answer's words."""
    reply = final_reply(task, replies, settings)
    if reply is None:
        searches = min(len(replies), settings.max_turns)
        return _failed(f"It never answered in {searches} replies." if replies else "It did not reply.")
    if len(reply) > MAX_REPLY_CHARS:
        return _failed(f"The reply has more than {MAX_REPLY_CHARS} characters, too many to read.")
    given, right = answer_of(reply), answers_in(task)
    shown = repr(given if len(given) <= 60 else given[:60] + "...")[:80]
    if not normalized(given):
        return _failed("The last line has no answer.")
    if exact(given, right):
        return Verdict(reward=1.0, success=True, explanation=f"{shown} is right.")
    reward = token_f1(given, right) if settings.reward == "soft" else 0.0
    explanation = f"{shown} is not {right[0]!r}" + (f"; word F1 {reward:.2f}." if reward else ".")
    return Verdict(reward=min(reward, 0.99), success=False, explanation=explanation)


def _failed(explanation: str) -> Verdict:
    """No answer that could be compared."""
    return Verdict(reward=0.0, success=False, explanation=explanation, readable=False)


def random_replies(task: Task, rng: random.Random, base: KnowledgeBase) -> tuple[str, ...]:
    """A well-formed reply with what the last relation leads to elsewhere, never the right answer."""
    hops, right = task.payload["hops"], answers_in(task)
    last = base.hops[str(hops[-1])] if isinstance(hops, list | tuple) else None
    pool = base.ends(last) if last else ()
    draws = (rng.choice(pool) for _ in range(20) if pool)
    reply = next((name for name in draws if not exact(name, right)), "I do not know")
    return (f"search: {task.payload['start']}", reply) if task.payload["mode"] == "search" else (reply,)


class SearchEpisode:
    """One attempt with a search tool."""

    def __init__(self, task: Task, world: World, settings: MultihopConfig) -> None:
        self._task, self._world, self._settings = task, world, settings
        self.max_turns = settings.max_turns

    async def run(self, ask: Ask) -> None:
        """Converse until the agent answers; searches are answered with passages."""
        messages: Sequence[Message] = self._task.messages
        for _ in range(self.max_turns):
            words = searched(await ask(messages))
            if words is None:
                return
            messages = [Message(role="tool", content=look_up(self._world, words, self._settings))]
        raise OutOfTurns


def look_up(world: World, words: str, settings: MultihopConfig) -> str:
    """What a search shows the agent."""
    return world.index.search(words, results=settings.results, chars=settings.result_chars)
