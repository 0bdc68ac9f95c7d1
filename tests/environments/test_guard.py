"""An environment of a user's own that raises, hangs or returns the wrong thing: one sentence says where."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import math
import random
import re
import time
from dataclasses import replace
from typing import Any, cast

import pytest

from genenv.backends.scripted import ScriptedSampler
from genenv.environments import load_environment
from genenv.environments.base import HasParameters, OutOfTurns, tools_of
from genenv.environments.guard import GuardedEnvironment, guarded
from genenv.environments.wrappers import ByParameters
from genenv.errors import EnvironmentCodeError, RolloutError, UsageError
from genenv.evaluation.environment_check import Finding, HasFindings
from genenv.rollout.driver import Sampling, roll_out
from genenv.settings import NoSettings
from genenv.types import Lineage, Message, Origin, Profile, Seed, StopReason, Task, Verdict

SAMPLING = Sampling(temperature=1.0, max_new_tokens=50, timeout_s=30.0, seed=0)


@pytest.fixture
def own(toy: Any) -> type[Any]:
    """A whole environment, to break one thing of."""

    class Own(toy.Environment):
        config = NoSettings

        def seeds(self) -> list[Seed]:
            spec = {"turns": 1, "left": 1, "right": 2}
            return [Seed(id=f"seed-{i}", environment="sums", spec=spec, skills=("sums",)) for i in range(3)]

        def held_out(self) -> list[Any]:
            return [toy.task(3, 4, name="held-1")]

        def simulator_messages(self, seed: Any, profile: Any, target: float) -> tuple[Message, ...]:
            return (Message(role="user", content="write"),)

        def variation(self, seed: Any, rng: random.Random) -> dict[str, int]:
            return {"turns": 1, "left": 1, "right": rng.randrange(9)}

    return Own


def calls(env: Any, toy: Any) -> dict[str, Any]:
    """Every method of an environment, called."""
    task, rng, seed = toy.task(name="task-7"), random.Random(0), toy.context().seed
    spec = env.spec(turns=1, left=1, right=2)
    return {
        "seeds": lambda: env.seeds(),
        "held_out": lambda: env.held_out(),
        "spec_schema": lambda: env.spec_schema(seed),
        "simulator_messages": lambda: env.simulator_messages(seed, Profile(), 0.5),
        "variation": lambda: env.variation(seed, rng),
        "build": lambda: env.build(spec, task_id="task-7", lineage=None, rng=rng),
        "audit": lambda: env.audit(task, rng),
        "episode": lambda: env.episode(task),
        "check": lambda: env.check(task, ("3",)),
        "random_replies": lambda: env.random_replies(task, rng),
        "steps": lambda: env.steps(task),
        "surface": lambda: env.surface(task),
    }


METHODS = (
    *("seeds", "held_out", "spec_schema", "simulator_messages", "variation", "build", "audit"),
    *("episode", "check", "random_replies", "steps", "surface"),
)


def broken(own: type[Any], method: str, answer: Any) -> GuardedEnvironment:
    return GuardedEnvironment(type("Broken", (own,), {method: answer})(), limit_s=0.2)


def test_what_is_right_passes_through(own: type[Any], toy: Any) -> None:
    env, plain = guarded(own()), own()
    for method, call in calls(env, toy).items():
        if method != "episode":
            assert call() == calls(plain, toy)[method](), method
    assert env.flips == 0, "what is not of the protocol is the user's own"


@pytest.mark.parametrize("method", METHODS)
def test_an_exception_is_one_sentence_that_names_environment_task_method_and_line(
    own: type[Any], toy: Any, method: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("no such\nthing")

    env = broken(own, method, fail)
    with pytest.raises(EnvironmentCodeError) as caught:
        calls(env, toy)[method]()
    sentence = str(caught.value)
    assert sentence.startswith("environment 'sums'")
    assert f": {method} raised KeyError: " in sentence
    assert re.search(r"\(test_guard\.py, line \d+\); mend the environment$", sentence)
    assert "\n" not in sentence
    named = {"seeds": "", "held_out": "", "spec_schema": "seed-1", "simulator_messages": "seed-1"}
    assert named.get(method, "seed-1" if method == "variation" else "task-7") in sentence


def test_a_line_is_named_in_a_folder_that_has_the_name_of_the_library(own: type[Any], toy: Any) -> None:
    written: dict[str, Any] = {}
    exec(compile("def fail(*_, **__):\n    raise KeyError('x')", "/home/me/genenv/mine.py", "exec"), written)  # noqa: S102
    with pytest.raises(EnvironmentCodeError, match=r"\(mine\.py, line 2\); mend the environment$"):
        calls(broken(own, "build", written["fail"]), toy)["build"]()


@pytest.mark.parametrize("method", METHODS)
def test_a_call_that_never_ends_is_ended(own: type[Any], toy: Any, method: str) -> None:
    def hang(*_: Any, **__: Any) -> None:
        while True:
            pass

    start = time.monotonic()
    with pytest.raises(EnvironmentCodeError, match=f"{method} took longer than 0.2 s"):
        calls(broken(own, method, hang), toy)[method]()
    assert time.monotonic() - start < 5


def verdict(**changes: Any) -> Verdict:
    return replace(Verdict(reward=1.0, success=True, explanation="right"), **changes)


WRONG: list[tuple[str, Any, str]] = [
    ("check", verdict(reward=math.nan), "returns a reward of float nan"),
    ("check", verdict(reward=1.5), "returns a reward of 1.5, which is not in [0, 1]"),
    ("check", verdict(reward=-0.1), "which is not in [0, 1]"),
    ("check", verdict(reward=True), "returns a reward of bool True"),
    ("check", verdict(reward="1"), "returns a reward of str '1'"),
    ("check", verdict(success=1), "returns a success of int 1"),
    ("check", verdict(explanation=None), "returns None, not a text"),
    ("check", True, "returns bool True, not a Verdict"),
    ("check", None, "returns None, not a Verdict"),
    ("seeds", None, "returns None, not a sequence of seeds"),
    ("seeds", ["seed"], "returns str 'seed' among its seeds"),
    ("held_out", [3], "returns int 3, not a Task or a Rejection"),
    ("spec_schema", [], "returns list [], not a JSON object"),
    ("spec_schema", {"a": {1, 2}}, "returns an object that is no JSON"),
    ("variation", {"a": math.nan}, "returns an object that is no JSON"),
    ("simulator_messages", (), "returns no message"),
    ("simulator_messages", "write", "returns str 'write', not a sequence of messages"),
    ("simulator_messages", ({"role": "user"},), "among its messages"),
    ("audit", False, "returns bool False, not a Rejection or None"),
    ("random_replies", "0", "returns str '0', not a tuple of texts"),
    ("random_replies", (1,), "returns int 1, not a text"),
    ("steps", -1, "returns int -1, not a whole number"),
    ("steps", 1.0, "returns float 1.0, not a whole number"),
    ("surface", b"", "returns bytes b'', not a text"),
    ("episode", None, "not an episode with a coroutine"),
    ("build", None, "returns None, not a Task or a Rejection"),
]


@pytest.mark.parametrize(("method", "answer", "words"), WRONG, ids=[f"{m}-{w}" for m, _, w in WRONG])
def test_a_wrong_answer_is_one_sentence(
    own: type[Any], toy: Any, method: str, answer: Any, words: str
) -> None:
    with pytest.raises(EnvironmentCodeError) as caught:
        calls(broken(own, method, lambda *_, **__: answer), toy)[method]()
    assert words in str(caught.value)
    assert f": {method} returns" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id": "other"}, "with the id 'other', not the one that it was given"),
        ({"oracle": None}, "returns None, not a tuple of texts"),
        ({"oracle": "3"}, "returns str '3'"),
        ({"skills": ("two words",)}, "returns the skill str 'two words'"),
        ({"skills": "sums"}, "returns skills that are"),
        ({"messages": ()}, "returns no message"),
        ({"payload": {"when": object}}, "no JSON"),
    ],
)
def test_a_task_that_cannot_be_used_is_one_sentence(
    own: type[Any], toy: Any, changes: dict[str, Any], words: str
) -> None:
    def build(self: Any, spec: Any, **rest: Any) -> Any:
        return replace(super(type(self), self).build(spec, **rest), **changes)

    with pytest.raises(EnvironmentCodeError) as caught:
        calls(broken(own, "build", build), toy)["build"]()
    assert words in str(caught.value)


def test_a_task_without_a_known_solution_is_a_task(own: type[Any], toy: Any) -> None:
    def build(self: Any, spec: Any, **rest: Any) -> Any:
        return replace(super(type(self), self).build(spec, **rest), oracle=())

    assert calls(broken(own, "build", build), toy)["build"]().oracle == ()


# what an environment may have beyond the interface


@pytest.fixture
def drawing(own: type[Any]) -> type[Any]:
    """A whole environment with parameters and findings."""

    class Drawing(own):
        parameters = own.spec

        def parameter_options(self, seed: Seed) -> list[dict[str, Any]]:
            return [{"turns": range(1, 2), "left": (1, 2), "right": [3]}]

        def parameter_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
            return (Message(role="user", content="write"),)

        def drawn(self, parameters: Any, seed: Seed, rng: random.Random) -> Any:
            return parameters

        def findings(self) -> Any:
            yield Finding(what="sums", state="good", seen="all")

    return Drawing


def test_what_an_environment_may_have_is_seen_by_the_protocols_of_newer_pythons(
    own: type[Any], drawing: type[Any]
) -> None:
    names = ["parameters", "parameter_options", "parameter_messages", "drawn", "findings"]
    for made, has in ((own, False), (drawing, True)):
        env = guarded(made())
        for name in names:  # as isinstance looks from Python 3.12 on: without `__getattr__`
            assert (inspect.getattr_static(env, name, None) is not None) is has
    env = guarded(drawing())
    assert isinstance(env, HasParameters)
    assert isinstance(env, HasFindings)
    assert [one.what for one in env.findings()] == ["sums"]
    by, seed = ByParameters(cast(Any, env)), env.seeds()[0]
    spec = by.spec.model_validate(by.variation(seed, random.Random(0)))
    lineage = Lineage(origin=Origin.GENERATED, seed_id=seed.id)
    assert isinstance(by.build(spec, task_id="t", lineage=lineage, rng=random.Random(0)), Task)


@pytest.mark.parametrize(
    ("method", "answer", "words"),
    [
        ("parameter_options", 3, "not a sequence of alternatives"),
        ("parameter_options", [3], "int 3 among its alternatives"),
        ("parameter_options", [], "alternatives without a value"),
        ("parameter_options", [{"left": []}], "alternatives without a value"),
        ("parameter_options", [{"left": [object]}], "no JSON"),
        ("parameter_messages", "hi", "not a sequence of messages"),
        ("drawn", {}, "not a spec or a Rejection"),
        ("findings", 3, "not findings"),
        ("findings", [3], "None, not a text"),
    ],
)
def test_a_wrong_answer_of_what_it_may_have_is_one_sentence(
    drawing: type[Any], toy: Any, method: str, answer: Any, words: str
) -> None:
    def called(how: Any) -> str:
        env, seed = broken(drawing, method, how), toy.context().seed
        given: dict[str, tuple[Any, ...]] = {
            "parameter_options": (seed,),
            "parameter_messages": (seed, Profile(), 0.5),
            "drawn": (env.spec(turns=1, left=1, right=2), seed, random.Random(0)),
            "findings": (),
        }
        with pytest.raises(EnvironmentCodeError) as caught:
            getattr(env, method)(*given[method])
        return str(caught.value)

    assert words in called(lambda *_: answer)
    assert f": {method} raised KeyError: 'x'" in called(lambda *_: {}["x"])


# episodes


def play(env: Any, toy: Any, **options: Any) -> Any:
    policy = ScriptedSampler(lambda *_: "3", **options)
    (group,) = asyncio.run(roll_out(env, policy, [toy.task(name="task-7")], rollouts=2, sampling=SAMPLING))
    return group.traces


def episode(run: Any) -> Any:
    made = type("Episode", (), {"max_turns": 2, "run": run})
    return lambda self, task: made()


def test_tools_that_an_episode_offers_pass_through_and_wrong_ones_are_one_sentence(
    own: type[Any], toy: Any
) -> None:
    async def run(self: Any, ask: Any) -> None:
        await ask((Message(role="user", content="hi"),))

    def offering(*tools: Any) -> Any:
        made = type("Episode", (), {"max_turns": 1, "run": run, "tools": tools})
        return broken(own, "episode", lambda self, task: made())

    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    assert list(tools_of(offering(tool).episode(toy.task()))) == [tool]
    for wrong in (3, {}, {"function": "f"}):
        with pytest.raises(EnvironmentCodeError, match="task-1: episode returns"):
            offering(wrong).episode(toy.task())


def test_an_episode_grades_itself_if_it_can_and_a_wrong_verdict_is_one_sentence(
    own: type[Any], toy: Any
) -> None:
    async def run(self: Any, ask: Any) -> None:
        self.reply = await ask((Message(role="user", content="hi"),))

    def grading(verdict: Any) -> Any:
        made = type("Episode", (), {"max_turns": 1, "run": run, "verdict": verdict})
        return broken(own, "episode", lambda self, task: made())

    def by_itself(self: Any) -> Verdict:
        return Verdict(reward=0.25, success=False, explanation=f"It was {self.reply}.")

    assert {(one.reward, one.explanation) for one in play(grading(by_itself), toy)} == {(0.25, "It was 3.")}
    with pytest.raises(EnvironmentCodeError, match="'sums', task-7: episode returns"):
        play(grading(lambda self: 3), toy)
    with pytest.raises(EnvironmentCodeError, match="task-7: episode raised ZeroDivisionError"):
        play(grading(lambda self: 1 / 0), toy)


def test_an_episode_that_raises_is_one_sentence(own: type[Any], toy: Any) -> None:
    async def run(self: Any, ask: Any) -> None:
        await ask((Message(role="user", content="hi"),))
        raise ZeroDivisionError("of apples")

    with pytest.raises(
        EnvironmentCodeError, match="'sums', task-7: episode raised ZeroDivisionError: of apples"
    ):
        play(broken(own, "episode", episode(run)), toy)


@pytest.mark.parametrize("first", [True, False])
def test_an_episode_that_never_asks_again_is_ended(own: type[Any], toy: Any, first: bool) -> None:
    async def run(self: Any, ask: Any) -> None:
        if not first:
            await ask((Message(role="user", content="hi"),))
        while True:
            pass

    with pytest.raises(EnvironmentCodeError, match=r"task-7: episode took longer than 0\.2 s"):
        play(broken(own, "episode", episode(run)), toy)


@pytest.mark.long
def test_the_time_that_a_policy_takes_is_not_the_environments(own: type[Any], toy: Any) -> None:
    async def run(self: Any, ask: Any) -> None:
        for _ in range(2):
            await ask((Message(role="user", content="hi"),))
            await asyncio.sleep(0)

    policy = ScriptedSampler(lambda *_: time.sleep(0.3) or "3")
    env = broken(own, "episode", episode(run))
    (group,) = asyncio.run(roll_out(env, policy, [toy.task()], rollouts=2, sampling=SAMPLING))
    assert [trace.stop_reason for trace in group.traces] == [StopReason.DONE] * 2


def test_an_episode_that_asks_with_no_messages_is_one_sentence(own: type[Any], toy: Any) -> None:
    async def run(self: Any, ask: Any) -> None:
        await ask("hi")

    with pytest.raises(EnvironmentCodeError, match="episode asks with what returns str 'hi'"):
        play(broken(own, "episode", episode(run)), toy)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(OutOfTurns(), StopReason.MAX_TURNS), (RolloutError("no room"), StopReason.ERROR)],
)
def test_what_an_episode_may_raise_is_data(own: type[Any], toy: Any, error: Any, reason: Any) -> None:
    async def run(self: Any, ask: Any) -> None:
        await ask((Message(role="user", content="hi"),))
        raise error

    assert {trace.stop_reason for trace in play(broken(own, "episode", episode(run)), toy)} == {reason}


def test_what_ends_an_attempt_from_without_is_no_fault_of_the_environment(own: type[Any], toy: Any) -> None:
    assert {trace.stop_reason for trace in play(guarded(own()), toy, context_tokens=20)} == {StopReason.ERROR}


# loading


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def f(:", "its module 'mine' cannot be loaded: SyntaxError"),
        ("1 / 0", "its module 'mine' cannot be loaded: ZeroDivisionError: division by zero"),
        (
            "import nothing_of_the_kind",
            "its module 'mine' needs 'nothing_of_the_kind', which is not installed",
        ),
    ],
)
def test_a_module_that_cannot_be_loaded_is_one_sentence(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, source: str, words: str
) -> None:
    (tmp_path / "mine.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    with pytest.raises(UsageError) as caught:
        load_environment("mine:Mine")
    assert words in str(caught.value)


def test_a_seed_whose_spec_is_none_of_the_environments_is_one_sentence(own: type[Any], toy: Any) -> None:
    seed = Seed(id="seed-9", environment="sums", spec={"turns": 7, "left": 1, "right": 2}, skills=("sums",))
    with pytest.raises(
        EnvironmentCodeError, match="seeds returns seed-9, whose spec is no Sum: turns: Input should be less"
    ):
        broken(own, "seeds", lambda self: [seed]).seeds()


def test_a_task_is_as_a_store_gives_it_back(own: type[Any], toy: Any) -> None:
    payload = {"answer": (3, 4), 1: "x"}
    env = broken(own, "build", lambda self, spec, **given: replace(toy.task(name="task-7"), payload=payload))
    task = env.build(None, task_id="task-7", lineage=None, rng=random.Random(0))
    assert task.payload == {"answer": [3, 4], "1": "x"}


def test_an_episode_that_two_rollouts_share_is_one_sentence(own: type[Any], toy: Any) -> None:
    async def run(self: Any, ask: Any) -> None:
        await ask((Message(role="user", content="hi"),))

    shared = episode(run)(None, None)
    with pytest.raises(EnvironmentCodeError, match="episode returns the episode of another rollout again"):
        play(broken(own, "episode", lambda self, task: shared), toy)
