"""`genenv check ENVIRONMENT`: tests that an environment keeps its contract, before a long training run.

No model is needed. Seeds, held-out tasks and variations go through the gate of a run. Demonstrations are
rolled out, garbage is graded, and everything that must be deterministic is computed twice.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, cast, runtime_checkable

from pydantic import ValidationError

from genenv.backends.scripted import ScriptedSampler
from genenv.config.run import RunConfig
from genenv.environments.base import Environment, HasParameters, OutOfTurns, SeatedEpisode
from genenv.environments.wrappers import ByParameters
from genenv.errors import RolloutError, first_problem
from genenv.gate.gate import Gate, base_task, written
from genenv.progress import Reporter, Silent, staged
from genenv.rollout.driver import Sampling, roll_out
from genenv.seeding import generator
from genenv.statistics import counted
from genenv.types import Message, Origin, Profile, Proposal, Rejection, Seed, Task, accepted

GOOD, POOR, BROKEN = "good", "poor", "broken"
LIMIT_S = 30.0
"""Seconds after which a check starts no new item; the listing of held-out tasks may take longer."""
T = TypeVar("T")
_FEW_VALID, _UNINFORMED = 0.5, 0.05
_MOST_LISTED = 10
"""Solutions of other tasks that a reply lists beside a task's own."""
_MOST_TWICE = 20
"""Seeds that are varied twice with the same random numbers."""
_TWICE = (("",), ("0 1 2 yes no",))
"""Replies, beside demonstrations, that are graded twice."""
_GARBAGE = ((), ("",), ("{" * 10_000,), ("\x00\u202e\ud800",), ("0" * 1_000_000,), ("yes",) * 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check: a row in the table of `genenv check`."""

    what: str
    state: str
    """`good`, `poor` (it works but should be improved) or `broken`."""
    seen: str
    fix: str = ""
    """What to do about it, as an order; empty for a good one."""


def with_fixes(findings: Iterable[Finding], fixes: Mapping[str, str]) -> Iterator[Finding]:
    """Yield findings; those that are not good with what to do about them.

    Args:
        findings: without it.
        fixes: what to do, by `Finding.what`.
    """
    for one in findings:
        yield one if one.state == GOOD else replace(one, fix=fixes.get(one.what, ""))


def verdict(findings: Sequence[Finding]) -> str:
    """Return whether an environment can be trained on, and what to do about each finding that is not good."""
    broken = [one for one in findings if one.state == BROKEN]
    poor = [one for one in findings if one.state == POOR]
    if broken:
        first = f"do not train on it yet: {len(broken)} of {len(findings)} checks are broken"
    elif poor:
        first = f"it can be trained on; {len(poor)} of {len(findings)} checks could be better"
    else:
        first = f"it is ready to be trained on: all {len(findings)} checks are good"
    return "\n".join([first, *(f"- {one.what}: {one.fix or one.seen}" for one in (*broken, *poor))])


@runtime_checkable
class HasFindings(Protocol):
    """Implemented by environments that add their own checks."""

    def findings(self) -> Iterable[Finding]:
        """Yield further rows for the table of `genenv check`."""
        ...


class Pace:
    """Iterates over the items of a check, reports progress, and stops at a time limit.

    Args:
        reporter: receives the progress.
        limit_s: seconds after which a check starts no new item.
        clock: returns the time in seconds.
    """

    def __init__(
        self, reporter: Reporter, limit_s: float = LIMIT_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.reporter, self._limit_s, self._clock = reporter, limit_s, clock
        self._cut: dict[str, str] = {}

    def through(self, what: str, items: Sequence[T]) -> Iterator[T]:
        """Yield the items that fit in the time limit, at least one."""
        start = self._clock()
        with self.reporter.stage(what, items=len(items), unit="tasks") as stage:
            for number, item in enumerate(items):
                if number and self._clock() - start > self._limit_s:
                    self._cut[what] = (
                        f"; no more than {number} of {len(items)}, as {self._limit_s:g} s were over"
                    )
                    break
                yield item
                stage(0, 1)

    def note(self, what: str) -> str:
        """Return a note for the table if the time limit was reached, else ""."""
        return self._cut.get(what, "")


_SEATS, _ENDS = "seats that code plays", "episodes that end"
_VARIATIONS, _PARAMETERS = "variations that pass the gate", "random parameters that give tasks"
_FIXES: Mapping[str, str] = {
    "base data, the same every time": "let seeds() yield the same seeds each time, each with its skills",
    "seeds that are tasks": "see the reason: build() or the gate refuses these seeds",
    _VARIATIONS: "see the reasons: variation() gives specs that build() accepts, other than the seed's, and "
    "the same for the same random numbers",
    _PARAMETERS: 'see the reasons; simulator.writes = "parameters" needs drawn() to give such specs',
    "solutions that pass the check": "mend check(), or the solution of the task that is named",
    "solutions that pass when they are played": "let episode() take the replies that check() takes; "
    "of tools, name a field that changes with time under results in bundle.toml: TOOL.FIELD",
    "garbage that fails": "let check() refuse the reply that is named",
    "an uninformed agent": "ask for more than can be guessed: random replies pass too often",
    "the same twice": "leave clocks and chance out of build() and check(), but for the random numbers given",
    _SEATS: "give every seat an agent in environment.seats, or let code play it",
    _ENDS: "raise environment.max_turns: an episode that is cut off counts as not ended",
    "held-out tasks, apart from the seeds": "give tasks of their own to held_out(), marked as such; those of "
    "another library by environment.given_held_out",
    "sizes": "raise policy.context_tokens, or shorten what agent and simulator are told",
}


def check_environment(
    env: Environment, config: RunConfig, *, n: int, pace: Pace | None = None
) -> Iterator[Finding]:
    """Check an environment and yield the findings one by one.

    Args:
        env: the environment, as opened for a run.
        config: the run's settings: seed, gate, context window and target success rate are used.
        n: the most seeds, held-out tasks and variations to check.
        pace: progress and time limit; default: no progress reports.

    Raises:
        EnvironmentCodeError: a method of a user's environment raises, hangs or returns a wrong type.
    """
    return with_fixes(_findings(env, config, n, pace or Pace(Silent())), _FIXES)


def _findings(env: Environment, config: RunConfig, n: int, pace: Pace) -> Iterator[Finding]:
    seed = config.run.seed
    yield _seeds(env)
    gate = Gate(env, config.curriculum, seed=seed)
    with staged(pace.reporter, "held-out tasks", items=None, unit=""):
        held_out = list(env.held_out())
    gate.protect(held_out)
    what = "seeds that are tasks"
    chosen = list(env.seeds())[:n]
    built = [base_task(env, item.id, item.spec, seed=seed) for item in pace.through(what, chosen)]
    base = [task for task in built if isinstance(task, Task)]
    refused = [task for task in built if isinstance(task, Rejection)]
    yield Finding(
        what=what,
        state=GOOD if len(base) > _FEW_VALID * len(built) else BROKEN,
        seen=_share(len(base), len(built)) + _reasons(refused) + pace.note(what),
    )
    tasks = [*base, *held_out[:n]]
    if not tasks:
        return
    proposals = _variations(env, gate, pace.through(_VARIATIONS, chosen), seed)
    fault = _fault_of_variations(env, chosen, seed)
    found = _admitted(_VARIATIONS, proposals, pace, none=BROKEN)
    yield replace(found, state=BROKEN, seen=fault) if fault else found
    tasks += accepted(proposals)
    if isinstance(env, HasParameters):
        by_parameters = cast(Environment, ByParameters(env))
        gate = Gate(by_parameters, config.curriculum, seed=seed)
        gate.protect(held_out)
        proposals = _variations(by_parameters, gate, pace.through(_PARAMETERS, chosen), seed)
        # parameters that fit no task are what a simulator learns to avoid: some are enough
        yield _admitted(_PARAMETERS, proposals, pace, none=POOR, enough=0.0)
    solved = [task for task in tasks if task.oracle]
    if solved:
        yield _all("solutions that pass the check", solved, lambda task: _passes(env, task), pace)
        yield _rolled_out(env, solved, pace)
    else:
        yield Finding(what="solutions", state=GOOD, seen="none is known; training is RL only")
    answers = [*dict.fromkeys(task.oracle[0] for task in tasks if len(task.oracle) == 1)]
    yield _all("garbage that fails", tasks, lambda task: _garbage_fails(env, task, answers), pace)
    yield _uninformed(env, tasks, seed, pace)
    yield _all("the same twice", tasks, lambda task: _repeats(env, task, seed), pace)
    if getattr(env, "seats", ()) and getattr(env, "plays_seats", True):
        yield from _by_code(env, tasks, pace)
    yield _held_out(env, base, held_out)
    yield _sizes(
        env, chosen, tasks, alpha=config.curriculum.alpha, context_tokens=config.policy.context_tokens
    )


def _seeds(env: Environment) -> Finding:
    first, again = list(env.seeds()), list(env.seeds())
    what = "base data, the same every time"
    if not first:
        return Finding(what=what, state=BROKEN, seen="there are no seeds")
    if first != again:
        return Finding(what=what, state=BROKEN, seen="seeds() gives others when it is called again")
    skills = {skill for item in first for skill in item.skills}
    few = "" if skills else "; none names a skill, so that the simulator is told nothing of the agent"
    return Finding(
        what=what, state=GOOD if skills else POOR, seen=f"{len(first)} seeds, {len(skills)} skills{few}"
    )


def _variations(env: Environment, gate: Gate, seeds: Iterable[Seed], seed: int) -> list[Proposal]:
    """Return the gate's outcome for a variation of each seed."""
    proposals: list[Proposal] = []
    for number, item in enumerate(seeds):
        text = json.dumps(env.variation(item, generator(seed, "check", item.id)))
        context, spec = written(item, text, context_id=f"c{number}", generation_id=f"c{number}-g0")
        proposals += gate.admit([context], [spec])
    return proposals


def _fault_of_variations(env: Environment, seeds: Sequence[Seed], seed: int) -> str:
    """Return what is wrong with variations that the gate cannot see: unchanged seeds, chance of their own."""
    unchanged, seeds = 0, seeds[:_MOST_TWICE]
    for item in seeds:
        one, again = (env.variation(item, generator(seed, "check", item.id)) for _ in range(2))
        if one != again:
            return f"{item.id} has another one for the same random numbers"
        unchanged += one == item.spec
    return f"{_share(unchanged, len(seeds))} are their seed unchanged" if 2 * unchanged > len(seeds) else ""


def _admitted(
    what: str, proposals: Sequence[Proposal], pace: Pace, *, none: str, enough: float = _FEW_VALID
) -> Finding:
    """Return how many proposals pass the gate.

    Args:
        what: the check.
        proposals: the outcomes.
        pace: of the check.
        none: the state if not one passes.
        enough: the share above which it is good.
    """
    valid = len(accepted(proposals))
    return Finding(
        what=what,
        state=GOOD if valid > enough * len(proposals) else POOR if valid else none,
        seen=_share(valid, len(proposals))
        + _reasons([p.outcome for p in proposals if isinstance(p.outcome, Rejection)])
        + pace.note(what),
    )


def _passes(env: Environment, task: Task) -> str:
    found = env.check(task, task.oracle)
    return "" if found.success else f"its own solution fails: {found.explanation}"


def _garbage_fails(env: Environment, task: Task, answers: Sequence[str]) -> str:
    for replies in _GARBAGE:
        if env.check(task, replies).success:
            return f"{str(replies)[:40]} passes"
    others = [one for one in answers if (one,) != task.oracle][:_MOST_LISTED]
    # a list of calls of tools makes all of them, of which further ones may do no harm
    if "calls" not in task.payload and len(task.oracle) == 1 and len(others) > 1:
        listed = [*others[: len(others) // 2], *task.oracle, *others[len(others) // 2 :]]
        if any(env.check(task, (sign.join(listed),)).success for sign in (" ", "\n", ", ")):
            return f"a reply that lists {len(listed)} solutions passes"
    return ""


def _repeats(env: Environment, task: Task, seed: int) -> str:
    for replies in (task.oracle, *_TWICE):
        if env.check(copy.deepcopy(task), replies) != env.check(task, replies):
            return f"check gives another verdict for {str(replies)[:40]} when it is called again"
    try:
        spec = env.spec.model_validate(task.spec)
    except ValidationError as error:
        return f"its spec is none of the environment's ({first_problem(error)})"
    one, other = (
        env.build(spec, task_id=task.id, lineage=task.lineage, rng=generator(seed, "check", task.id))
        for _ in range(2)
    )
    return "" if one == other else "build makes another task of the same spec and random numbers"


def _rolled_out(env: Environment, tasks: Sequence[Task], pace: Pace) -> Finding:
    """Check that demonstrations, replayed turn by turn as an agent's replies, succeed."""

    async def play(task: Task) -> str:
        replies = iter(task.oracle)

        def say(prompt: str, rng: random.Random) -> str:
            return next(replies, "")

        policy = ScriptedSampler(say, context_tokens=10_000_000)
        sampling = Sampling(temperature=1.0, max_new_tokens=1_000_000, timeout_s=60.0, seed=0)
        (group,) = await roll_out(env, policy, [task], rollouts=1, sampling=sampling)
        trace = group.traces[0]
        return "" if trace.success else f"{trace.stop_reason.value}: {trace.explanation}"

    return _all("solutions that pass when they are played", tasks, lambda task: asyncio.run(play(task)), pace)


def _uninformed(env: Environment, tasks: Sequence[Task], seed: int, pace: Pace) -> Finding:
    rng, what = generator(seed, "check", "uninformed"), "an uninformed agent"
    tried = [
        env.check(task, env.random_replies(task, rng)).success
        for task in pace.through(what, tasks)
        for _ in range(4)
    ]
    rate = sum(tried) / len(tried)
    return Finding(
        what=what,
        state=GOOD if rate <= _UNINFORMED else POOR,
        seen=f"solves {rate:.1%} of {len(tried)} attempts (best under {_UNINFORMED:.0%})" + pace.note(what),
    )


def _by_code(env: Environment, tasks: Sequence[Task], pace: Pace) -> Iterator[Finding]:
    """Check that code can play all seats, and that its episodes end before the limit on replies."""
    ends: list[int | None] = []
    """For each episode: the limit that cut it off, or None."""

    def fails(task: Task) -> str:
        ends.append(None)
        episode = cast(SeatedEpisode, env.episode(task))
        try:
            asyncio.run(episode.play_seats({}))
        except OutOfTurns:
            ends[-1] = episode.max_turns
        except RolloutError as error:
            return str(error)
        return ""

    found = _all(_SEATS, tasks, fails, pace)
    yield found if found.state == GOOD else replace(found, state=POOR)  # agents may have all seats
    if limits := [limit for limit in ends if limit is not None]:
        yield Finding(
            what=_ENDS,
            state=POOR,
            seen=f"{_share(len(limits), len(ends))} are cut off after {counted(limits[0], 'turn')} of a seat",
        )


def _held_out(env: Environment, base: Sequence[Task], held_out: Sequence[Task]) -> Finding:
    what = "held-out tasks, apart from the seeds"
    if not held_out:
        return Finding(what=what, state=POOR, seen="there are none, so that nothing can be measured")
    if list(env.held_out()) != list(held_out):
        return Finding(what=what, state=BROKEN, seen="held_out() gives others when it is called again")
    wrong = [task.id for task in held_out if task.lineage.origin is not Origin.HELD_OUT]
    if wrong:
        return Finding(what=what, state=BROKEN, seen=f"{wrong[0]} is not marked as held out in its lineage")
    surfaces = {env.surface(task) for task in held_out}
    shared = [task.id for task in base if env.surface(task) in surfaces]
    if shared:
        return Finding(what=what, state=BROKEN, seen=f"{shared[0]} reads like one of them")
    begun = {task.messages for task in base}
    if alike := [task.id for task in held_out if task.messages in begun]:
        some = _share(len(alike), len(held_out))
        return Finding(what=what, state=POOR, seen=f"{some} have a seed's messages, such as {alike[0]}")
    return Finding(what=what, state=GOOD, seen=f"{len(held_out)} tasks")


def _sizes(
    env: Environment, seeds: Sequence[Seed], tasks: Sequence[Task], *, alpha: float, context_tokens: int
) -> Finding:
    """Report the lengths of prompts and specs in characters, about four per token."""
    agent = [_length(task.messages) for task in tasks]
    simulator = [_length(env.simulator_messages(item, Profile(), alpha)) for item in seeds]
    specs = [len(json.dumps(task.spec, ensure_ascii=False)) for task in tasks]
    window = 4 * context_tokens
    longest = max(agent + simulator)
    fits = longest < window
    short = "" if fits else f"; a window of {context_tokens} tokens is short"
    lengths = f"prompts up to {max(agent):,} characters, the simulator's {max(simulator, default=0):,}"
    seen = f"{lengths}, specs {max(specs):,}{short}"
    return Finding(what="sizes", state=GOOD if fits else POOR, seen=seen)


def _length(messages: Sequence[Message]) -> int:
    return sum(len(message.content) for message in messages)


def _all(what: str, tasks: Sequence[Task], problem: Callable[[Task], str], pace: Pace) -> Finding:
    """Apply a check to every task; the finding shows the first problem."""
    looked = [(task.id, problem(task)) for task in pace.through(what, tasks)]
    found = [(name, said) for name, said in looked if said]
    seen = _share(len(looked) - len(found), len(looked)) + pace.note(what)
    if found:
        seen += f"; {found[0][0]}: {found[0][1]}"
    return Finding(what=what, state=BROKEN if found else GOOD, seen=seen)


def _share(some: int, all_: int) -> str:
    return f"{some} of {all_}"


def _reasons(refused: Sequence[Rejection]) -> str:
    """Return the reasons of rejection with counts, and one explanation."""
    if not refused:
        return ""
    counts = Counter(one.reason.value for one in refused)
    listed = ", ".join(f"{reason} {count}" for reason, count in counts.most_common())
    return f"; refused: {listed} ({refused[0].explanation})"
