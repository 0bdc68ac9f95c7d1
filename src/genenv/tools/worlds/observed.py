"""State that cannot be read is asked for: answers of tools that read become part of the state."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from genenv.environments.stepwise import STEPPED
from genenv.tools.worlds.base import (
    GONE,
    Call,
    KnownPrograms,
    Outcome,
    Played,
    Session,
    Step,
    World,
    WrappedWorld,
)
from genenv.types import Json

ASKED = "asked"
"""The key of the answers in the state."""


class ObservedWorld(WrappedWorld):
    """A world with the answers to some questions in its state, next to what the world itself shows.

    Args:
        world: executes the calls.
        questions: calls of tools that only read, with fixed arguments. They are made after all others.
    """

    def __init__(self, world: World, questions: Sequence[Call]) -> None:
        super().__init__(world)
        self._questions, self._known = tuple(questions), KnownPrograms()

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        """See `World`. To watch is to ask after each call, in a program of its own."""
        played = self._observed(calls)
        if not watch:
            return played
        states = [self._observed(calls[:number]).state for number in range(len(calls))] + [played.state]
        outcomes = (
            replace(outcome, changed=states[number + 1] != states[number])
            for number, outcome in enumerate(played.outcomes)
        )
        return Played(outcomes=tuple(outcomes), state=played.state)

    def _observed(self, calls: Sequence[Call]) -> Played:
        return self._known.play(calls, watch=False, execute=lambda: [Step.alone(self.play_uncached(calls))])

    def play_uncached(self, calls: Sequence[Call]) -> Played:
        """See `World`."""
        played = self.world.play_uncached([*calls, *self._questions])
        outcomes, answers = played.outcomes[: len(calls)], played.outcomes[len(calls) :]
        gone = next((number for number, one in enumerate(outcomes) if one.error == GONE), None)
        if gone is not None:  # nobody answers any more
            return Played(outcomes=outcomes, state=self._observed(calls[:gone]).state)
        return Played(outcomes=outcomes, state=self.state(played.state, answers))

    def state(self, seen: Json, answers: Sequence[Outcome]) -> Json:
        """Return a state with answers in it.

        Args:
            seen: the state that the world shows.
            answers: the outcomes of the questions.
        """
        asked: dict[str, dict[str, Json]] = {}
        for question, answer in zip(self._questions, answers, strict=True):
            told: Json = answer.result if answer.error is None else {"error": answer.error}
            asked.setdefault(question.tool, {})[_key(question.args)] = told
        named: dict[str, Json] = {
            tool: found[""] if [*found] == [""] else {key or "()": one for key, one in found.items()}
            for tool, found in asked.items()
        }
        return {**(seen if isinstance(seen, Mapping) else {"state": seen}), ASKED: named}

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[Session]:
        """See `World`. Its state asks the questions; make no calls after it."""
        async with self.world.session() as session:
            yield _ObservedSession(self, session, self._questions)


class BegunWorld(WrappedWorld):
    """A world whose sessions begin after one call, which nobody sees.

    Some tools set up their state when the first of them is called, whichever it is. Without this, every tool
    would seem to write.

    Args:
        world: executes the calls.
        first: the call.
    """

    def __init__(self, world: World, first: Call) -> None:
        super().__init__(world)
        self._first = first

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        """See `World`."""
        return _without_first(super().play([self._first, *calls], watch=watch))

    def play_uncached(self, calls: Sequence[Call]) -> Played:
        """See `World`."""
        return _without_first(super().play_uncached([self._first, *calls]))

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[Session]:
        """See `World`."""
        async with self.world.session() as session:
            await session.call(self._first)
            yield session


def _without_first(played: Played) -> Played:
    return replace(played, outcomes=played.outcomes[1:])


def observed(world: World, questions: Sequence[Call], begins_with: str = "") -> World:
    """Return a world that asks questions, and whose sessions begin with a call; the world itself if neither.

    Args:
        world: executes the calls.
        questions: see `ObservedWorld`.
        begins_with: the tool that is called without arguments first, see `BegunWorld`; empty: none.
    """
    begun = BegunWorld(world, Call(tool=begins_with, args={})) if begins_with else world
    return ObservedWorld(begun, questions) if questions else begun


def _key(args: Mapping[str, Json]) -> str:
    """Return the name of a question among those of its tool: the value of its only argument, or all."""
    values = list(args.values())
    if not values:
        return ""
    return values[0] if len(values) == 1 and isinstance(values[0], str) else json.dumps(args, sort_keys=True)


class _ObservedSession:
    """A session of an `ObservedWorld`.

    Args:
        world: puts the answers into the state.
        session: makes the calls, and asks the questions.
        questions: calls of tools that only read.
    """

    def __init__(self, world: ObservedWorld, session: Session, questions: Sequence[Call]) -> None:
        self._world, self._session, self._questions = world, session, questions
        self._made: list[Call] = []

    async def call(self, call: Call) -> Outcome:
        """See `Session`."""
        outcome = await self._session.call(call)
        if outcome.error != GONE:
            self._made.append(call)
        return outcome

    async def state(self) -> Json:
        """See `Session`. If nobody answers, the calls before are made again in another session."""
        seen = await self._session.state()
        answers = [await self._session.call(question) for question in self._questions]
        if all(answer.error != GONE for answer in answers):
            return self._world.state(seen, answers)
        if STEPPED.get():
            return self._world.play(self._made).state
        return (await asyncio.to_thread(self._world.play, self._made)).state
