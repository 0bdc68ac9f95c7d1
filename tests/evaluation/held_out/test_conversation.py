"""An attempt at a held-out task: what is asked, what counts, what ends it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from genenv.chat.assistant import Reply, ToolCall
from genenv.chat.tool_calls import read_calls
from genenv.config.run import parse_config
from genenv.environments import load_environment
from genenv.environments.base import OutOfTurns
from genenv.errors import ContextOverflow, NoAnswer, RolloutError, UsageError
from genenv.evaluation.base import Grade
from genenv.evaluation.data import DataFolder
from genenv.evaluation.held_out import Conversation, HeldOut, HeldOutConfig, Limits
from genenv.types import Message, Task
from recited import Recited

LIMITS = Limits(max_new_tokens=10, context_tokens=100, timeout_s=5.0)


def episode(play: Callable[..., Any], **changes: Any) -> Any:
    async def run(self: Any, ask: Any) -> None:
        await play(ask)

    return type("Episode", (), {"max_turns": 3, "run": run, **changes})()


def play(talker: Recited, made: Any, limits: Limits = LIMITS) -> Conversation:
    conversation = Conversation(talker, limits)
    asyncio.run(conversation.run(made))
    return conversation


async def three(ask: Any) -> None:
    await ask((Message(role="system", content="s"), Message(role="user", content="u")))
    await ask((Message(role="tool", content="one"),))
    raise OutOfTurns


def test_the_whole_conversation_is_given_each_time_and_the_end_of_turns_is_data() -> None:
    talker = Recited(Reply(text="a"), Reply(text="b"))
    done = play(talker, episode(three))
    assert (done.replies, done.cut) == (["a", "b"], False)
    assert [(m["role"], m["content"]) for m in talker.heard[1]] == [
        *(("system", "s"), ("user", "u"), ("assistant", "a"), ("tool", "one")),
    ]
    assert talker.max_tokens == [10, 10], "a reply is as long as the run lets it be"


def test_a_reply_that_is_cut_off_ends_the_attempt() -> None:
    done = play(Recited(Reply(text="a", finished=False)), episode(three))
    assert (done.replies, done.cut) == (["a"], True)


def test_a_conversation_without_room_for_a_whole_reply_does_not_fit() -> None:
    fits, passes = Reply(text="a", prompt_tokens=90), Reply(text="b", prompt_tokens=91)
    assert play(Recited(fits, fits), episode(three)).replies == ["a", "a"]
    with pytest.raises(ContextOverflow, match="91 tokens; a reply of 10 then passes the run's window of 100"):
        play(Recited(fits, passes), episode(three))


@pytest.mark.parametrize("error", [RolloutError("down"), ContextOverflow("too long")])
def test_what_the_model_cannot_answer_is_no_fault_of_the_episode(error: RolloutError) -> None:
    with pytest.raises(type(error), match=str(error)):
        play(Recited(Reply(text="a"), error), episode(three))


@pytest.mark.parametrize("awaits", [True, False])
def test_an_environment_that_takes_too_long_fails_the_item(awaits: bool) -> None:
    async def slow(ask: Any) -> None:
        await ask((Message(role="user", content="u"),))
        if awaits:
            await asyncio.Event().wait()
        deadline = asyncio.get_running_loop().time() + 0.02
        while asyncio.get_running_loop().time() < deadline:
            pass
        await ask((Message(role="user", content="u"),))

    limits = Limits(max_new_tokens=10, context_tokens=100, timeout_s=0.01)
    with pytest.raises(RolloutError, match=r"the environment took longer than 0\.01 s"):
        play(Recited(Reply(text="a"), Reply(text="b")), episode(slow), limits)


def test_an_episode_that_its_environment_ends_is_a_wrong_answer_as_in_training(tmp_path: Path) -> None:
    """Else an agent that makes its environment slow would gain by it: the item would count in no figure."""
    (tmp_path / "c.toml").write_text('environment.name = "programs"\nagent.episode_timeout_s = 0.01\n')
    benchmark = HeldOut(HeldOutConfig(config=str(tmp_path / "c.toml")))
    item = benchmark.load(DataFolder(None), "all")[0]
    asked = (Message(role="user", content="u"),)

    async def slow(ask: Any) -> None:
        await ask(asked)
        await asyncio.Event().wait()

    async def broken(ask: Any) -> None:
        await ask(asked)
        raise RolloutError("the tool server is gone")

    async def has_no_simulator(ask: Any) -> None:
        await ask(asked)
        raise NoAnswer("the endpoint of the simulated user is down")

    async def twice(ask: Any) -> None:
        await ask(asked)
        await ask(asked)

    def attempted(made: Callable[..., Any], *replies: Any) -> Any:
        benchmark._env = cast(Any, SimpleNamespace(episode=lambda _: episode(made)))
        return asyncio.run(benchmark.attempt(item, Recited(*replies)))

    for made, why in ((slow, "the environment took longer than 0.01 s"), (broken, "the tool server is gone")):
        answer = json.loads(json.dumps(attempted(made, "a")))
        assert answer == {"replies": ["a"], "cut": False, "stopped": why}
        graded = benchmark.grade(item, answer)
        assert (graded.score, graded.measures, graded.explanation) == (0.0, {"reward": 0.0}, why)
    with pytest.raises(NoAnswer, match="simulated user"):
        attempted(has_no_simulator, "a")
    for error in (RolloutError("refused"), ContextOverflow("too long"), NoAnswer("down")):
        with pytest.raises(type(error), match=str(error)):
            attempted(twice, "a", error)


def test_a_timeout_that_the_environments_own_code_raises_is_no_limit_of_the_rollout() -> None:
    async def connecting(ask: Any) -> None:
        raise TimeoutError("connection to the database timed out")

    with pytest.raises(TimeoutError, match="connection to the database timed out"):
        play(Recited(), episode(connecting))


@pytest.mark.long
def test_the_time_of_the_model_is_not_the_environments() -> None:
    limits = Limits(max_new_tokens=10, context_tokens=100, timeout_s=0.3)
    talker = Recited(Reply(text="a"), Reply(text="b"), seconds=0.4)
    assert play(talker, episode(three), limits).replies == ["a", "b"]


TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}


def test_tools_in_the_models_own_form_are_offered_and_their_calls_are_text_for_the_environment() -> None:
    call = ToolCall(name="look", arguments={"at": "Zoë"}, id="c1")
    talker = Recited(Reply(text="I look.", calls=(call,)), Reply(text="b"), native_tools=True)
    done = play(talker, episode(three, tools=(TOOL,)))
    wanted = '<tool_call>\n{"name": "look", "arguments": {"at": "Zoë"}}\n</tool_call>'
    assert done.replies == [f"I look.\n{wanted}", "b"]
    assert talker.tools == [[TOOL], [TOOL]]
    assert talker.heard[1][-1] == {"role": "tool", "content": "one", "tool_call_id": "c1"}
    assert talker.heard[1][-2]["tool_calls"][0]["id"] == "c1"


def test_a_model_that_takes_no_tools_cannot_play_tasks_that_offer_them() -> None:
    with pytest.raises(UsageError, match=r"this model takes none; measure it with held_out\.config"):
        play(Recited(), episode(three, tools=(TOOL,)))


@pytest.mark.long
def test_solutions_in_the_models_own_form_of_calls_succeed(tmp_path: Path) -> None:
    (tmp_path / "native.toml").write_text('environment.style = "native"\n', encoding="utf-8")
    benchmark = HeldOut(HeldOutConfig(config=str(tmp_path / "native.toml")))
    items = list(benchmark.load(DataFolder(None), "all"))
    several = [item for item in items if benchmark.many_turns(item)][:5]
    for item in [*items[:10], *several]:
        said = [read_calls(reply) for reply in item.data.oracle]
        talker = Recited(*(Reply(text=w, calls=tuple(c)) for w, c in said), native_tools=True)
        grade = benchmark.grade(item, asyncio.run(benchmark.attempt(item, talker)))
        assert grade.score == 1.0, grade.explanation
        assert talker.tools[0], "the environment's tools are offered"


def test_a_model_may_play_another_seat_than_the_first(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('environment.name = "guess_who"\nenvironment.brief = true\n')
    benchmark = HeldOut(HeldOutConfig(config=str(tmp_path / "c.toml"), seat="answerer"))
    item = benchmark.load(DataFolder(None), "all")[0]
    talker = Recited(*["y"] * 4)
    answer = asyncio.run(benchmark.attempt(item, talker))
    row = str(item.data.spec["p"]).split(",")[int(str(item.data.spec["s"]))]
    assert talker.heard[0][0]["content"].startswith(
        "".join(f"{i + 1}{'ny'[int(f)]}" for i, f in enumerate(row))
    )
    first = benchmark.grade(item, answer)
    assert first == benchmark.grade(item, answer)  # the replies alone are graded alike
    assert 0 <= first.measures["reward"] <= 1
    run = '[environment]\nname = "guess_who"\nseats = {asker = "seeker", answerer = "helper"}\n'
    (tmp_path / "run").mkdir()
    agents = "[agents.seeker]\ntrain = false\n[agents.helper]\nmax_new_tokens = 7\nepisode_timeout_s = 9\n"
    (tmp_path / "run" / "config.toml").write_text(run + agents)
    (tmp_path / "run" / "pool.db").touch()
    for agent, seat in {"seeker": "asker", "helper": "answerer"}.items():
        of_run = HeldOut.settled(HeldOutConfig(), f"{tmp_path / 'run'}:{agent}")
        assert of_run == HeldOutConfig(run=(tmp_path / "run").as_posix(), agent=agent, seat=seat)
    for which in ({"agent": "helper", "seat": "answerer"}, {"agent": "helper"}, {"seat": "answerer"}):
        own = HeldOut(HeldOutConfig(run=str(tmp_path / "run"), **which))
        held = own.load(DataFolder(None), "all")[0]
        limits = own.describe()
        assert (limits["max_new_tokens"], limits["episode_timeout_s"]) == (7, 9)
        talker = Recited(*["y"] * 9)
        asyncio.run(own.attempt(held, talker))
        assert "Reply yes or no" in talker.heard[0][0]["content"]
    wrong = HeldOut(HeldOutConfig(config=str(tmp_path / "c.toml"), seat="judge"))
    with pytest.raises(
        UsageError, match=r"held_out\.seat is 'judge', but the seats of guess_who are asker, answerer"
    ):
        wrong.load(DataFolder(None), "all")


def test_replies_are_asked_for_among_the_choices_of_their_turn() -> None:
    class Chosen(Recited):
        given: list[list[str]]

        async def __call__(self, messages: Any, *, choices: Any = (), **options: Any) -> Reply:
            self.given.append(list(choices))
            return await super().__call__(messages, **options)

    async def run(self: Any, ask: Any) -> None:
        for self.choices in (("a", "b"), ("c",), ()):
            await ask((Message(role="user", content="u"),))

    talker = Chosen("a", "c", "free")
    talker.given = []
    done = play(talker, episode(three, run=run))
    assert done.replies == ["a", "c", "free"]
    assert talker.given == [["a", "b"], ["c"], []]


# tasks of genenv's own environments


@pytest.mark.parametrize(
    ("env", "main", "everything"),
    [
        ("environment.mode = 'auto'", 200, 1000),
        ("environment.mode = 'single'", 184, 920),
        ("environment.name = 'household'", 120, 500),
        ("environment.name = 'programs'", None, None),
    ],
)
@pytest.mark.long
def test_unasked_a_measurement_takes_the_first_lot(
    tmp_path: Path, env: str, main: int | None, everything: int | None
) -> None:
    (tmp_path / "c.toml").write_text(f"{env}\nrun.eval_tasks = 7\n", encoding="utf-8")
    benchmark = HeldOut(HeldOutConfig(config=str(tmp_path / "c.toml")))
    by_split = {split: benchmark.load(DataFolder(None), split) for split in benchmark.splits}
    ids = {split: [item.id for item in items] for split, items in by_split.items()}
    assert list(ids) == ["main", "all", "measured"]
    assert ids["main"] == ids["all"][: main or len(ids["all"])]
    assert len(ids["all"]) == (everything or len(ids["main"]))
    assert ids["measured"] == ids["all"][:7]


@pytest.fixture(scope="module")
def quickstart() -> tuple[HeldOut, list[Any]]:
    benchmark = HeldOut(HeldOutConfig(config="quickstart"))
    return benchmark, list(benchmark.load(DataFolder(None), "all"))


def test_known_solutions_succeed_and_what_is_no_answer_fails(quickstart: Any) -> None:
    benchmark, items = quickstart
    assert len({item.id for item in items}) == len(items) > 50
    for item in items[:20]:
        task: Task = item.data
        right = benchmark.grade(item, {"replies": list(task.oracle), "cut": False})
        assert (right.score, right.measures) == (1.0, {"reward": 1.0}), right.explanation
        cut = benchmark.grade(item, {"replies": list(task.oracle), "cut": True})
        assert (cut.score, cut.explanation) == (0.0, "The reply reached the token limit before it ended.")
        for garbage in (
            None,
            [],
            "x",
            3,
            {},
            {"replies": "x"},
            {"replies": [1, None]},
            {"replies": {"a": 1}},
        ):
            assert benchmark.grade(item, garbage).score == 0.0


def test_solutions_that_are_played_succeed_and_answers_survive_json(quickstart: Any) -> None:
    benchmark, items = quickstart
    several = [item for item in items if benchmark.many_turns(item)][:5]
    assert several
    for item in [*items[:5], *several]:
        talker = Recited(*(Reply(text=reply) for reply in item.data.oracle))
        answer = json.loads(json.dumps(asyncio.run(benchmark.attempt(item, talker))))
        assert benchmark.grade(item, answer).score == 1.0


def test_items_are_the_environments_held_out_tasks_by_length_of_solution(quickstart: Any) -> None:
    benchmark, items = quickstart
    described = benchmark.describe()["environment"]
    env = load_environment(described["name"])
    assert {item.groups["steps"] for item in items} <= {str(n) for n in range(9)}
    assert items[0].groups == {"steps": str(env.steps(items[0].data))}


def test_figures_go_from_short_solutions_to_long_ones(quickstart: Any) -> None:
    benchmark, items = quickstart
    right = Grade(score=1.0, explanation="", measures={"reward": 1.0})
    relabelled = [
        (replace(item, groups={"steps": span}), right)
        for item, span in zip(items, ("9-16", "2", "10", "1"), strict=False)
    ]
    groups = [figure.group for figure in benchmark.figures(relabelled)]
    assert groups == ["", "steps=1", "steps=2", "steps=9-16", "steps=10", ""]


@pytest.mark.parametrize(
    ("steps", "span"), [(0, "0"), (8, "8"), (9, "9-16"), (16, "9-16"), (17, "17-32"), (40, "33-64")]
)
def test_long_solutions_are_grouped_by_spans(steps: int, span: str) -> None:
    from genenv.evaluation.held_out import _span

    assert _span(steps) == span


def test_the_only_agent_of_a_run_has_its_limits_whatever_its_name() -> None:
    config = parse_config({"agents": {"helper": {"max_new_tokens": 7}}})
    assert Limits.of_run(config).max_new_tokens == Limits.of_run(config, "helper").max_new_tokens == 7
