"""An environment of a user's own behind a guard: what goes wrong in it ends in one sentence that says where.

genenv's own environments are held to their promises by tests. One that somebody is just writing raises,
returns the wrong thing, or never comes back; a traceback through the loop does not say with which task. The
guard passes every call on, checks what comes back, and bounds how long it may take.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel

from genenv.environments import promises
from genenv.environments.base import Ask, Environment, Episode, OutOfTurns
from genenv.environments.watch import LIMIT_S, CallTimeout, Watch
from genenv.errors import EnvironmentCodeError, GenenvError, first_line
from genenv.types import JsonObject, Lineage, Message, Profile, Rejection, Seed, Task, Verdict

_T = TypeVar("_T")

_OWN = Path(promises.__file__).parents[1]
"""Where genenv itself is; a clone of it, and what is written there, may be in a folder of that name too."""


class GuardedEnvironment:
    """An environment whose every answer is what the protocol promises, or a `EnvironmentCodeError`.

    Args:
        env: the user's.
        limit_s: seconds that one call of it may take.
    """

    def __init__(self, env: Environment, *, limit_s: float = LIMIT_S) -> None:
        self._env, self._limit_s = env, limit_s
        self.name, self.spec, self.config = env.name, env.spec, env.config

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever else the user's class has
        """What is not part of the protocol is passed on as it is."""
        return getattr(self._env, name)

    def seeds(self) -> Sequence[Seed]:
        """See `Environment`."""
        return self._call("seeds", None, self._env.seeds, promises.seeds(self.spec))

    def held_out(self) -> Sequence[Task]:
        """See `Environment`."""
        return self._call("held_out", None, self._env.held_out, promises.tasks)

    def spec_schema(self, seed: Seed) -> JsonObject:
        """See `Environment`."""
        return self._call("spec_schema", seed.id, lambda: self._env.spec_schema(seed), promises.json_object)

    def simulator_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """See `Environment`."""
        return self._call(
            "simulator_messages",
            seed.id,
            lambda: self._env.simulator_messages(seed, profile, target),
            promises.messages,
        )

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """See `Environment`."""
        return self._call("variation", seed.id, lambda: self._env.variation(seed, rng), promises.json_object)

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """See `Environment`."""
        return self._call(
            "build",
            task_id,
            lambda: self._env.build(spec, task_id=task_id, lineage=lineage, rng=rng),
            promises.built(task_id),
        )

    def audit(self, task: Task, rng: random.Random) -> Rejection | None:
        """See `Environment`."""
        return self._call("audit", task.id, lambda: self._env.audit(task, rng), promises.rejection_or_none)

    def episode(self, task: Task) -> Episode:
        """See `Environment`."""
        episode = self._call("episode", task.id, lambda: self._env.episode(task), promises.episode)
        try:
            return _GuardedEpisode(
                episode, self._limit_s, lambda error: self._wrong("episode", task.id, error)
            )
        except promises.Broken as error:
            raise self._wrong("episode", task.id, error) from error

    def check(self, task: Task, replies: Sequence[str]) -> Verdict:
        """See `Environment`."""
        return self._call("check", task.id, lambda: self._env.check(task, replies), promises.verdict)

    def random_replies(self, task: Task, rng: random.Random) -> tuple[str, ...]:
        """See `Environment`."""
        return self._call(
            "random_replies", task.id, lambda: self._env.random_replies(task, rng), promises.replies
        )

    def steps(self, task: Task) -> int:
        """See `Environment`."""
        return self._call("steps", task.id, lambda: self._env.steps(task), promises.count)

    def surface(self, task: Task) -> str:
        """See `Environment`."""
        return self._call("surface", task.id, lambda: self._env.surface(task), promises.text)

    def _call(
        self, method: str, of: str | None, call: Callable[[], object], promise: Callable[[Any], _T]
    ) -> _T:
        """A call of the user's code, and its answer if that is what was promised."""
        try:
            with Watch(self._limit_s):
                answer = call()
            return promise(answer)
        except GenenvError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise self._wrong(method, of, error) from error

    def _wrong(self, method: str, of: str | None, error: BaseException) -> EnvironmentCodeError:
        where = f"environment {self.name!r}{'' if of is None else f', {of}'}: {method}"
        if isinstance(error, promises.Broken):
            return EnvironmentCodeError(f"{where} {error}; genenv.environments.base says what it must return")
        if isinstance(error, CallTimeout):
            return EnvironmentCodeError(
                f"{where} took longer than {self._limit_s:g} s; mend it, or make its tasks smaller"
            )
        place = _line_of(error)
        return EnvironmentCodeError(
            f"{where} raised {type(error).__name__}: {first_line(error)}{place}; mend the environment"
        )


class _GuardedEpisode:
    """An episode whose own steps are watched; the time that a policy takes to reply is not its own."""

    def __init__(
        self, episode: Episode, limit_s: float, wrong: Callable[[BaseException], EnvironmentCodeError]
    ) -> None:
        self._episode, self._limit_s, self._wrong = episode, limit_s, wrong
        self.max_turns = episode.max_turns
        self.tools = promises.tools(episode)

    @property
    def choices(self) -> Sequence[str]:
        """See `OffersChoices`."""
        try:
            with Watch(self._limit_s):
                return promises.choices(self._episode)
        except Exception as error:  # the user's code may raise anything
            raise self._wrong(error) from error

    async def run(self, ask: Ask) -> None:
        """See `Episode`."""
        watch = Watch(self._limit_s)
        outside: list[BaseException] = []

        async def asked(messages: Sequence[Message]) -> str:
            try:
                wanted = promises.messages(messages)
            except promises.Broken as error:
                raise self._wrong(promises.Broken(f"asks with what {error}")) from error
            with watch.pause():
                try:
                    return await ask(wanted)
                except BaseException as error:
                    outside.append(
                        error
                    )  # what ends an attempt from without is none of the environment's faults
                    raise

        try:
            await watch.steps(self._episode.run(asked))
        except (GenenvError, OutOfTurns):
            raise
        except Exception as error:  # the user's code may raise anything
            if any(error is one for one in outside):
                raise
            raise self._wrong(error) from error


def _line_of(error: BaseException) -> str:
    """Where the user's code raised an error: the innermost line that is not of a library's."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        ours = "site-packages" in file or Path(file).is_relative_to(_OWN)
        if not ours and not file.startswith("<"):
            found = f" ({Path(file).name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return found


def guarded(env: object) -> Environment:
    """A user's environment behind its guard."""
    return cast(Environment, GuardedEnvironment(cast(Environment, env)))
