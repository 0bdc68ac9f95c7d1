"""`genenv check` for a bundle: which tools succeed, how tasks use them, and how fast they are."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from genenv.evaluation.environment_check import BROKEN, GOOD, POOR, Finding, with_fixes
from genenv.texts import listed
from genenv.tools.build import build
from genenv.tools.check import check
from genenv.tools.discover.recipes import FRESH
from genenv.tools.discover.state_values import words_of
from genenv.tools.spec import Program
from genenv.tools.toolbox import Toolbox
from genenv.tools.worlds.base import Call
from genenv.types import Lineage, Origin, Rejection

_TIMED = 20
"""Number of programs that are timed."""
_SLOW_MS = 300.0
"""Starting a rollout is slow if it takes longer than this."""


_FIXES: Mapping[str, str] = {
    "tools that succeed": "the bundle's README.md says what they answer: let the tools begin with records on "
    "which they succeed, say in their schema which values they take, or leave them out (leave_out)",
    "ids that tools ask for": "let a tool return these ids, or keep them in the state",
    "state that no check can see": "keep it in values that can be read (dicts, lists, files), or leave the "
    "tools out that change it (leave_out)",
    "what tasks call": "let the tools begin with more records, and draw again: genenv env tasks",
    "difficulty": "draw tasks of more calls: genenv env tasks --most-calls 3",
    "values that the user gives": "report it: this is a fault of genenv",
    "speed": "do less when the tools are imported or the server starts",
}


def check_tools(env: Toolbox) -> Iterator[Finding]:
    """Check a bundle's tools and all of its tasks, and yield a finding for each aspect.

    Args:
        env: the bundle as an environment.
    """
    return with_fixes(_findings(env), _FIXES)


def _findings(env: Toolbox) -> Iterator[Finding]:
    programs = [*env.bundle.base.values(), *env.bundle.held_out.values()]
    yield _succeeding(env)
    yield _sources(env)
    if (unseen := _unseen(env)) is not None:
        yield unseen
    yield _coverage(env, programs)
    yield _spread(programs)
    if omitting := [program for program in programs if program.omits][:_TIMED]:
        yield _asking(env, omitting)
    yield _speed(env, programs)


def _succeeding(env: Toolbox) -> Finding:
    known, failed = env.graph.recipes, env.graph.failures
    never = [name for name in env.world.tools if name not in known]
    seen = f"{len(known)} of {len(env.world.tools)}"
    if never:
        seen += f"; {_few(f'{name} ({failed[name][:60]})' if name in failed else name for name in never)}"
    return Finding(what="tools that succeed", state=POOR if never else GOOD, seen=seen)


def _sources(env: Toolbox) -> Finding:
    """Report id parameters that no state holds and no tool returns: an agent could only guess them."""
    blind = [
        f"{parameter} of {recipe.tool}"
        for recipe in env.graph.recipes.values()
        for parameter, way in recipe.ways.items()
        if way == FRESH and not recipe.writes and "id" in words_of(parameter)
    ]
    seen = f"{_few(blind)} could only be guessed" if blind else "all can be found in the state"
    return Finding(what="ids that tools ask for", state=POOR if blind else GOOD, seen=seen)


def _unseen(env: Toolbox) -> Finding | None:
    """Report state that cannot be read, so that changing it affects no verdict; None if there is none."""
    named = [f"{path} ({kind})" for path, kind in env.world.unseen.items()]
    return Finding(what="state that no check can see", state=POOR, seen=_few(named)) if named else None


def _coverage(env: Toolbox, programs: Sequence[Program]) -> Finding:
    graph = env.graph
    called = {step.tool for program in programs for step in program.calls}
    linked = {
        (program.calls[use.call].tool, step.tool, use.parameter)
        for program in programs
        for step in program.calls
        for use in step.uses
    }
    links = {(link.reader, link.user, link.parameter) for link in graph.links}
    missing = [name for name in graph.recipes if name not in called]
    seen = f"{len(called)} of {len(graph.recipes)} tools, {len(linked & links)} of {len(links)} links"
    if missing:
        seen += f"; none calls {_few(missing)}"
    return Finding(what="what tasks call", state=POOR if missing else GOOD, seen=seen)


def _spread(programs: Sequence[Program]) -> Finding:
    calls = Counter(program.n_calls for program in programs)
    chained, asked = (
        sum(program.chained for program in programs),
        sum(program.answer for program in programs),
    )
    seen = ", ".join(
        f"{count} of {number} call{'s' * (number > 1)}" for number, count in sorted(calls.items())
    )
    seen += f"; {chained} chain, {asked} ask for an answer"
    if omitting := sum(bool(program.omits) for program in programs):
        seen += f", {omitting} leave a value out until the agent asks"
    return Finding(what="difficulty", state=GOOD if len(calls) > 1 else POOR, seen=seen)


def _asking(env: Toolbox, programs: Sequence[Program]) -> Finding:
    """Check that a value that the user gives must be asked for once, and before the call that needs it."""
    passed, tried = list[str](), 0
    for program in programs:
        origin = Origin.HELD_OUT if env.is_for_measuring(program) else Origin.SEED
        with env.dates():
            task = build(env, program, task_id="", lineage=Lineage(origin=origin), rng=random.Random(0))
        if isinstance(task, Rejection):
            continue
        ask, *rest = task.oracle
        ways = {
            "asking nothing": rest,
            "asking twice": [ask, ask, *rest],
            "asking for something else": ["What is your favorite color?", *rest],
            "a guess": [*rest[:-1], *task.oracle],
        }
        tried += len(ways)
        passed += [way for way, replies in ways.items() if check(env, task, replies).success]
    seen = f"{len(passed)} of {tried} attempts pass that do not ask once and then call"
    state, named = (BROKEN, f": {_few(dict.fromkeys(passed))}") if passed else (GOOD, "")
    return Finding(what="values that the user gives", state=state, seen=seen + named)


def _speed(env: Toolbox, programs: Sequence[Program]) -> Finding:
    starts, steps = list[float](), list[float]()
    for program in programs[:_TIMED]:
        calls = [Call(tool=step.tool, args=dict(step.args)) for step in (*program.before, *program.calls)]
        began = time.perf_counter()
        env.world.play_uncached(())
        started = time.perf_counter()
        env.world.play_uncached(calls)
        starts.append(1000 * (started - began))
        steps.append(1000 * max(0.0, time.perf_counter() - started - (started - began)) / max(1, len(calls)))
    if not starts:
        return Finding(what="speed", state=POOR, seen="there are no tasks")
    seen = f"{median(starts):.1f} ms to start an attempt, {median(steps):.1f} ms a call"
    return Finding(what="speed", state=GOOD if median(starts) < _SLOW_MS else POOR, seen=seen)


def _few(names: Iterable[str]) -> str:
    return listed(list(names), 4)
