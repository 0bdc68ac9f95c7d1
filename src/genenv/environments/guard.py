"""A user's own environment behind a guard: what goes wrong in it ends in one sentence that says where.

genenv's own environments are held to their promises by tests. One that somebody is just writing raises,
returns the wrong thing, or never comes back; a traceback through the loop does not say with which task. The
guard passes every call on, checks what comes back, and bounds how long it may take.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
import types
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Self, cast

from genenv.environments import promises
from genenv.environments.base import Ask, Environment, EnvironmentWrapper, Episode, OutOfTurns
from genenv.errors import EnvironmentCodeError, GenenvError, first_line
from genenv.types import Message, Task, Verdict

_OWN = Path(__file__).parents[1]
"""Where genenv itself is; a clone of it, and what is written there, may be in a folder of that name too."""
LIMIT_S = 120.0
"""Seconds that one call of an environment, or one turn of its episode, may take."""


class CallTimeout(Exception):
    """The call took too long."""


class Watch:
    """Ends what runs inside `with` after so many seconds. Not for use inside itself.

    The alarm rings in the main thread and ends what runs there, also a loop that never waits. Where the
    system has no such alarm (another thread, Windows) nothing is limited.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._paused = False

    def __enter__(self) -> Self:
        """The time begins."""
        self._before = signal.getsignal(signal.SIGALRM) if _can_ring() else None
        if self._before is not None and not self._paused:
            signal.signal(signal.SIGALRM, _ring)
            signal.setitimer(signal.ITIMER_REAL, self._limit_s)
        return self

    def __exit__(self, *_: object) -> None:
        """It is over."""
        if self._before is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)

    @contextlib.contextmanager
    def pause(self) -> Generator[None]:
        """What runs inside is not watched, though what is calls it; afterwards the time begins anew."""
        self._paused = True
        if _can_ring():
            signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            yield
        finally:
            self._paused = False
            if _can_ring():
                signal.signal(signal.SIGALRM, _ring)
                signal.setitimer(signal.ITIMER_REAL, self._limit_s)

    @types.coroutine
    def steps(self, coroutine: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
        """Await a coroutine, its every step watched; while it waits, others may run and are not."""
        step: Callable[[], Any] = functools.partial(coroutine.send, None)
        while True:
            try:
                with self:
                    waits_for = step()
            except StopIteration:
                return
            try:
                step = functools.partial(coroutine.send, (yield waits_for))
            except BaseException as error:  # noqa: BLE001 - a cancellation, say: it is the coroutine's
                step = functools.partial(coroutine.throw, error)


def _can_ring() -> bool:
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()


def _ring(number: int, frame: FrameType | None) -> None:
    raise CallTimeout


_PROMISES: Mapping[str, Callable[[Any], object]] = {
    "held_out": promises.tasks,
    "spec_schema": promises.json_object,
    "simulator_messages": promises.messages,
    "variation": promises.json_object,
    "audit": promises.rejection_or_none,
    "episode": promises.episode,
    "check": promises.verdict,
    "random_replies": promises.replies,
    "steps": promises.count,
    "surface": promises.text,
}
"""Method -> what its answer must be; `seeds` and `build` have promises of their own."""


class GuardedEnvironment(EnvironmentWrapper):
    """An environment whose every answer is what the protocol promises, or an `EnvironmentCodeError`.

    Args:
        env: the user's.
        limit_s: seconds that one call of it may take.
    """

    def __init__(self, env: Environment, *, limit_s: float = LIMIT_S) -> None:
        super().__init__(env)
        self._limit_s = limit_s

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever else the user's class has
        """What is not part of the protocol is passed on as it is."""
        return getattr(self.inner, name)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as of the base class
        """A call of the user's code, and its answer if that is what was promised."""
        of = kwargs["task_id"] if method == "build" else args[0].id if args else None
        try:
            with Watch(self._limit_s):
                answer = super().call(method, *args, **kwargs)
            if method == "seeds":
                return promises.seeds(answer, self.spec)
            return promises.built(answer, str(of)) if method == "build" else _PROMISES[method](answer)
        except GenenvError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise self._wrong(method, of, error) from error

    def episode(self, task: Task) -> Episode:
        """See `Environment`."""
        found = super().episode(task)
        try:
            return _GuardedEpisode(found, self._limit_s, lambda error: self._wrong("episode", task.id, error))
        except promises.Broken as error:
            raise self._wrong("episode", task.id, error) from error

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

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the user's own verdict
        """`verdict`, guarded, if the user's episode has it (`HasVerdict`)."""
        if name != "verdict":
            raise AttributeError(name)
        given = getattr(self._episode, name)

        def verdict() -> Verdict:
            try:
                with Watch(self._limit_s):
                    return promises.verdict(given())
            except Exception as error:  # the user's code may raise anything
                raise self._wrong(error) from error

        return verdict

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
