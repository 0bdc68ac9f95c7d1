"""A guard around a user's environment: every fault in it ends in one sentence that names the place.

Tests hold genenv's environments to the interface. The environment of a user may raise an error, return a
wrong value or never return. The guard passes every call on, checks the returned value, limits the time of the
call, and names the task in its error message.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
import types
import weakref
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from types import FrameType
from typing import Any, Self, TypeVar, cast

from genenv.environments import promises
from genenv.environments.base import (
    Ask,
    Environment,
    EnvironmentWrapper,
    Episode,
    HasParameters,
    OutOfTurns,
    SeatedEpisode,
)
from genenv.errors import EnvironmentCodeError, GenenvError, first_line, line_of
from genenv.threads import CallTimeout, run_in_thread
from genenv.types import Message, Task

LIMIT_S = 120.0
"""Maximum seconds for one call of an environment or one turn of its episode."""
_AGAIN_S = 1.0
"""Seconds after which code that caught `CallTimeout` and goes on is interrupted again."""

T = TypeVar("T")


class Watch:
    """A context manager that raises `CallTimeout` in its body after a time limit. It cannot be nested.

    The alarm signal interrupts the main thread, even in a loop that never awaits. A body that catches the
    error exceeds the limit all the same. In another thread, or on a system without this signal (Windows),
    there is no limit. Code of C that never returns is not interrupted.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._paused = self._rang = False

    def __enter__(self) -> Self:
        """Start the timer."""
        self._rang = False
        self._before = signal.getsignal(signal.SIGALRM) if _can_ring() else None
        if self._before is not None and not self._paused:
            self._start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop the timer and restore the earlier signal handler."""
        if self._before is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)
        if self._rang and (kind is None or issubclass(kind, Exception)):  # the body caught the error
            raise CallTimeout

    def _start(self) -> None:
        signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, self._limit_s, _AGAIN_S)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        self._rang = True
        if frame is None or frame.f_code is not Watch.__exit__.__code__:
            raise CallTimeout

    @contextlib.contextmanager
    def pause(self) -> Generator[None]:
        """Suspend the limit inside this context; afterwards the timer starts again from zero."""
        self._paused = True
        if _can_ring():
            signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            yield
        finally:
            self._paused = False
            if _can_ring():
                self._start()

    @types.coroutine
    def steps(self, coroutine: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Await a coroutine and limit the time of each step; the time that it waits does not count."""
        step: Callable[[], Any] = functools.partial(coroutine.send, None)
        while True:
            try:
                with self:
                    waits_for = step()
            except StopIteration as ended:
                return cast(T, ended.value)
            try:
                step = functools.partial(coroutine.send, (yield waits_for))
            except BaseException as error:  # noqa: BLE001 - a cancellation, say: it is the coroutine's
                step = functools.partial(coroutine.throw, error)


def _can_ring() -> bool:
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()


def limited(call: Callable[[], T], limit_s: float) -> T:
    """Call a user's function, with a time limit.

    In the main thread the function runs there (`Watch`), as libraries that use the alarm signal need it.
    Elsewhere, as in a notebook or a server, it runs in a new thread.

    Raises:
        CallTimeout: the limit has passed.
    """
    if not _can_ring():
        return run_in_thread(call, limit_s)
    with Watch(limit_s):
        return call()


_PROMISES: Mapping[str, Callable[[Any], object]] = {
    "held_out": promises.tasks,
    "spec_schema": promises.json_object,
    "simulator_messages": promises.messages,
    "variation": promises.json_object,
    "edited": promises.json_object,
    "audit": promises.rejection_or_none,
    "episode": promises.episode,
    "check": promises.verdict,
    "random_replies": promises.replies,
    "steps": promises.count,
    "surface": promises.text,
    "parameter_options": promises.options,
    "parameter_messages": promises.messages,
    "drawn": promises.drawn,
    "findings": promises.findings,
}
"""Method -> the check of its return value; `seeds` and `build` have checks with more arguments."""


class GuardedEnvironment(EnvironmentWrapper):
    """An environment whose calls either return what the interface requires or raise `EnvironmentCodeError`.

    Args:
        env: the user's environment.
        limit_s: maximum seconds for one call.
    """

    def __init__(self, env: Environment, *, limit_s: float = LIMIT_S) -> None:
        super().__init__(env)
        self._limit_s = limit_s
        self._episodes = weakref.WeakValueDictionary[int, Episode]()
        # attributes of its own: a protocol does not see what only `__getattr__` returns (from Python 3.12)
        for method in _PROMISES.keys() - dir(EnvironmentWrapper):  # those of `HasParameters`, `HasFindings`
            if hasattr(env, method):
                setattr(self, method, functools.partial(self.call, method))
        if hasattr(env, "parameters"):
            self.parameters = cast(HasParameters, env).parameters

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever else the user's class has
        """Return an attribute that is not part of the interface unchanged from the user's environment."""
        return getattr(self.inner, name)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as of the base class
        """Call a method of the user's environment and return its value if the value is valid."""
        of = kwargs["task_id"] if method == "build" else getattr(args[0], "id", None) if args else None
        try:
            with Watch(self._limit_s):
                answer = super().call(method, *args, **kwargs)
            if method == "seeds":
                return promises.seeds(answer, self.spec)
            return promises.built(answer, str(of)) if method == "build" else _PROMISES[method](answer)
        except GenenvError:
            raise
        except (Exception, CallTimeout) as error:  # the user's code may raise anything
            raise self._wrong(method, of, error) from error

    def episode(self, task: Task) -> Episode:
        """See `Environment`."""
        found = super().episode(task)
        try:
            self._note(found)
            return _GuardedEpisode(found, self._limit_s, lambda error: self._wrong("episode", task.id, error))
        except promises.Broken as error:
            raise self._wrong("episode", task.id, error) from error

    def _note(self, episode: Episode) -> None:
        """Note an episode; refuse one that another rollout has."""
        if self._episodes.get(id(episode)) is episode:
            raise promises.Broken("returns the episode of another rollout again")
        with contextlib.suppress(TypeError):  # of a class that no weak reference fits
            self._episodes[id(episode)] = episode

    def _wrong(self, method: str, of: str | None, error: BaseException) -> EnvironmentCodeError:
        where = f"environment {self.name!r}{'' if of is None else f', {of}'}: {method}"
        if isinstance(error, promises.Broken):
            return EnvironmentCodeError(f"{where} {error}; genenv.environments.base says what it must return")
        if isinstance(error, CallTimeout):
            return EnvironmentCodeError(
                f"{where} took longer than {self._limit_s:g} s; mend it, or make its tasks smaller"
            )
        place = line_of(error)
        return EnvironmentCodeError(
            f"{where} raised {type(error).__name__}: {first_line(error)}{place}; mend the environment"
        )


_MAY_HAVE: Mapping[str, Callable[[Any], Any]] = {
    "verdict": promises.verdict,
    "verdicts": promises.verdicts,
    "coded": promises.text,
    "seats": tuple,
}
"""Attribute that an episode may have beyond `Episode` -> the check of what it returns."""


class _GuardedEpisode:
    """An episode whose steps are timed; the time that the policy takes to reply does not count."""

    def __init__(
        self, episode: Episode, limit_s: float, wrong: Callable[[BaseException], EnvironmentCodeError]
    ) -> None:
        self._episode, self._limit_s, self._wrong = episode, limit_s, wrong
        self.max_turns = episode.max_turns
        self.tools = promises.tools(episode)

    @property
    def choices(self) -> Sequence[str]:
        """See `Episode`."""
        try:
            with Watch(self._limit_s):
                return promises.choices(self._episode)
        except (Exception, CallTimeout) as error:  # the user's code may raise anything
            raise self._wrong(error) from error

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - what the user's episode may have
        """`verdict` (see `Episode`) and what a `SeatedEpisode` has, guarded, if the user's episode has it."""
        if name not in _MAY_HAVE:
            raise AttributeError(name)
        given = getattr(self._episode, name)
        return given if name == "seats" else functools.partial(self._call, given, _MAY_HAVE[name])

    def _call(self, method: Callable[..., object], check: Callable[[Any], T], *args: Any) -> T:  # noqa: ANN401
        try:
            with Watch(self._limit_s):
                return check(method(*args))
        except (Exception, CallTimeout) as error:  # the user's code may raise anything
            raise self._wrong(error) from error

    async def run(self, ask: Ask) -> None:
        """See `Episode`."""
        await self._held({"": ask}, lambda asks: self._episode.run(asks[""]))

    async def play_seats(self, asks: Mapping[str, Ask]) -> None:
        """See `SeatedEpisode`."""
        await self._held(asks, cast(SeatedEpisode, self._episode).play_seats)

    async def _held(
        self, asks: Mapping[str, Ask], hold: Callable[[Mapping[str, Ask]], Coroutine[Any, Any, None]]
    ) -> None:
        """Hold the episode, by a method of the user's episode that is given guarded policies."""
        watch = Watch(self._limit_s)
        outside: list[BaseException] = []

        async def asked(ask: Ask, messages: Sequence[Message]) -> str:
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
                    )  # an error of the policy or a cancellation is not a fault of the environment
                    raise

        try:
            await watch.steps(hold({seat: functools.partial(asked, ask) for seat, ask in asks.items()}))
        except (GenenvError, OutOfTurns):
            raise
        except (Exception, CallTimeout) as error:  # the user's code may raise anything
            if any(error is one for one in outside):
                raise
            raise self._wrong(error) from error


def guarded(env: object) -> Environment:
    """Wrap a user's environment in a guard."""
    return cast(Environment, GuardedEnvironment(cast(Environment, env)))
