"""Where tasks come from: whole runs with scripted agents, and an endpoint that is a real server."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from endpoints import Server, refused, said
from genenv.curriculum.settings import CurriculumConfig
from genenv.environments import environment_config, load_environment
from genenv.environments.base import Environment
from genenv.gate.gate import Gate
from genenv.runs.store.store import PoolStore
from genenv.seeding import generator
from genenv.simulator.policy import NothingWrittenError, TaskSource, make_contexts
from genenv.simulator.settings import SimulatorConfig
from genenv.simulator.source import EndpointSource, FileSource, FixedTaskSource, VariationSource
from genenv.types import (
    Context,
    Generation,
    JsonObject,
    Message,
    Origin,
    Profile,
    Proposal,
    RejectReason,
    Seed,
    Task,
)
from typed import refused as sentence_of
from typed import stopped_in_round_two, succeeds

CONFIG = Path(__file__).parents[2] / "configs" / "household.toml"
SMALL = {
    "policy.backend": "scripted",
    "run.rounds": 2,
    "run.eval_every": 0,
    "simulator.contexts": 3,
    "simulator.variations": 2,
}


def words(out: Path, **settings: Any) -> list[object]:
    said = {**SMALL, **{name.replace("__", "."): value for name, value in settings.items()}}
    return ["train", CONFIG, *(w for k, v in said.items() for w in ("--set", f"{k}={v}")), "--out", out]


def proposals(path: Path) -> list[Proposal]:
    with PoolStore.open(path / "pool.db", create=False) as store:
        rounds = [store.batches(number) for number in store.rounds()]
    return [proposal for batches in rounds for batch in batches for proposal in batch.proposals]


@pytest.mark.long
@pytest.mark.parametrize("source", ["variation", "grammar"])
def test_tasks_come_without_a_model_and_the_same_again(source: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        succeeds(*words(tmp_path / name, simulator__source=source))
    found = proposals(tmp_path / "one")
    assert len(found) == 12
    assert sum(isinstance(proposal.outcome, Task) for proposal in found) >= 10
    assert not any(proposal.generation.token_ids for proposal in found)
    assert found == proposals(tmp_path / "two")
    assert not (tmp_path / "one" / "checkpoints" / "round-0002" / "simulator").exists()


@pytest.mark.long
def test_without_a_source_a_round_is_as_large_and_of_base_tasks(tmp_path: Path) -> None:
    succeeds(*words(tmp_path / "run", simulator__source="none"))
    with PoolStore.open(tmp_path / "run" / "pool.db", create=False) as store:
        assert store.task_count(Origin.GENERATED) == 0
        groups = store.groups(1)
    with_source = succeeds(*words(tmp_path / "other", simulator__source="variation"))
    assert with_source.exit_code == 0
    with PoolStore.open(tmp_path / "other" / "pool.db", create=False) as store:
        assert abs(len(store.groups(1)) - len(groups)) <= 1
    assert {group.task.lineage.origin for group in groups} == {Origin.SEED}


@pytest.mark.long
def test_a_file_is_handed_out_once_before_any_spec_comes_twice(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    succeeds("generate", CONFIG, "--set", "policy.backend=scripted", "--n", 9, "--out", tasks)
    specs = [json.dumps(json.loads(line)["spec"]) for line in tasks.read_text().splitlines()]
    out = tmp_path / "run"
    known = {"simulator__source": "file", "simulator__file": tasks, "curriculum__novelty_threshold": 0.0}
    succeeds(*words(out, run__rounds=3, **known))
    given = [json.dumps(json.loads(proposal.generation.text)) for proposal in proposals(out)]
    assert Counter(given) == Counter(specs * 2)
    assert sorted(given[:9]) == sorted(given[9:]) == sorted(specs)
    assert given[:9] != given[9:]


def test_candidates_of_a_file_come_once_before_any_comes_twice(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(f'{{"spec": {{"n": {n}}}}}\n' for n in range(64)))
    config = SimulatorConfig(source="file", file=str(file), contexts=8, variations=1)
    source, seed = FileSource(config, seed=0), Seed(id="s", environment="toy", skills=(), spec={})
    given = [
        one.text
        for number in (1, 2)
        for one in asyncio.run(
            source.propose(
                cast(Environment, None),
                [Context(id=f"r{number}-c{i}", round=number, seed=seed, messages=()) for i in range(32)],
            )
        )
    ]
    assert len(given) == len(set(given)) == 64


def test_the_tokens_that_wrote_a_file_count_when_a_spec_is_used_first(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(f'{{"spec": {{"n": {n}}}, "tokens": {10**n}}}\n' for n in range(4)))
    config = SimulatorConfig(source="file", file=str(file), contexts=1, variations=3)
    seed, counts = Seed(id="s", environment="toy", skills=(), spec={}), list[int]()
    for number in (1, 2, 3):
        source = FileSource(config, seed=0)  # a resumed run reads the file anew
        context = Context(id=f"r{number}", round=number, seed=seed, messages=())
        given = asyncio.run(source.propose(cast(Environment, None), [context]))
        counts.append(source.tokens_sampled_elsewhere())
        assert source.tokens_sampled_elsewhere() == 0
        if number == 1:
            assert counts[0] == sum(10 ** json.loads(one.text)["n"] for one in given)
    assert sum(counts) == 1111
    assert counts[2] == 0


def test_a_file_is_shuffled_once_for_each_time_it_is_gone_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shuffled: list[tuple[object, ...]] = []
    watched = "genenv.simulator.source.generator"
    monkeypatch.setattr(watched, lambda *names: shuffled.append(names) or generator(*names))
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(f'{{"spec": {{"n": {n}}}}}\n' for n in range(5)))
    config = SimulatorConfig(source="file", file=str(file), contexts=1, variations=10)
    given = asyncio.run(FileSource(config, seed=3).propose(cast(Environment, None), contexts_of(1, "s")))
    assert shuffled == [(3, "file", 0), (3, "file", 1)]
    assert [sorted(one.text for one in given[i : i + 5]) for i in (0, 5)] == [
        [f'{{"n":{n}}}' for n in range(5)]
    ] * 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "cannot be read (No such file or directory)"),
        ("", "holds no spec"),
        ("{", "line 1 is not JSON"),
        ('{"a": 1}', 'line 1 is no object with a "spec"'),
    ],
)
def test_a_file_that_is_none_is_one_sentence(text: str | None, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    if text is not None:
        file.write_text(text)
    out = tmp_path / "run"
    assert sentence in sentence_of(*words(out, simulator__source="file", simulator__file=file))
    assert not out.exists()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"source": "file"}, "file must name one"),
        ({"source": "endpoint"}, "address must name a model, as BASE_URL#MODEL"),
        ({"source": "variation", "per_seed": 1}, "per_seed is 1, but a context takes 2 variations"),
        ({"source": "variation", "per_seed": 4}, "set curriculum.novelty_threshold to 0"),
        ({"source": "web"}, "simulator.source"),
    ],
)
def test_sources_that_are_not_whole_are_refused(
    settings: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    named = {f"simulator__{name}": value for name, value in settings.items()}
    assert sentence in sentence_of(*words(tmp_path / "run", **named))


class Numbered(TaskSource):
    """Writes a number each time; its first requests are lost."""

    def __init__(self, config: SimulatorConfig, *, lost: int = 0) -> None:
        super().__init__(config, seed=0)
        self.numbers, self.lost = itertools.count(1), lost

    async def propose(self, env: Environment, contexts: Sequence[Context]) -> list[Generation]:
        texts = [next(self.numbers) for _ in contexts]
        return [
            Generation(id=one.id, context_id=one.id, text=str(n), finished=True)
            if n > self.lost
            else Generation(id=one.id, context_id=one.id, text="", finished=False)
            for one, n in zip(contexts, texts, strict=True)
        ]


def contexts_of(number: int, *seeds: str) -> list[Context]:
    return [
        Context(
            id=f"r{number:04d}-c{i:02d}",
            round=number,
            seed=Seed(id=name, environment="toy", skills=(), spec={}),
            messages=(),
        )
        for i, name in enumerate(seeds)
    ]


def fixed(**given: int) -> FixedTaskSource:
    config = SimulatorConfig(source="variation", per_seed=1, variations=1)
    return FixedTaskSource(Numbered(config, **given), config, seed=0)


def test_a_seed_that_comes_twice_in_a_round_has_its_spec_written_once_also_when_a_run_goes_on() -> None:
    """Two agents are given their contexts independently."""
    live, env = fixed(), cast(Environment, None)
    first = contexts_of(1, "s", "s", "t")
    written = asyncio.run(live.propose(env, first))
    assert [one.text for one in written] == ["1", "1", "2"]
    resumed = fixed()
    resumed.recall(first, written)
    later = contexts_of(2, "t", "s")
    assert [[one.text for one in asyncio.run(source.propose(env, later))] for source in (live, resumed)] == [
        ["2", "1"],
        ["2", "1"],
    ]


def test_a_lost_request_is_made_again_and_is_not_a_spec_of_the_pool() -> None:
    live, env = fixed(lost=1), cast(Environment, None)
    first = contexts_of(1, "s", "t")
    written = asyncio.run(live.propose(env, first))
    assert [(one.text, one.finished) for one in written] == [("", False), ("2", True)]
    resumed = fixed(lost=0)
    resumed.recall(first, written)
    assert [one.text for one in asyncio.run(live.propose(env, contexts_of(2, "s", "t")))] == ["3", "2"]
    assert [one.text for one in asyncio.run(resumed.propose(env, contexts_of(2, "s", "t")))] == ["1", "2"]


def test_a_spec_that_can_never_be_written_ends_no_round_that_has_others_also_when_a_run_goes_on(
    server: Server, toy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Named(toy.Environment):
        def spec_schema(self, seed: Seed) -> JsonObject:
            return {"type": "object"}

    def filtered(body: dict[str, Any]) -> Any:
        return refused("content filter") if "bad" in body["messages"][-1]["content"] else said("{}")

    def begun() -> FixedTaskSource:
        config = SimulatorConfig(
            source="endpoint", address=f"{server.url}#m", per_seed=1, variations=1, contexts=2
        )
        return FixedTaskSource(EndpointSource(config, seed=0), config, seed=0)

    def rounds(number: int, *seeds: str) -> list[Context]:
        asked = [Message(role="user", content=name) for name in seeds]
        return [
            replace(one, messages=(text,))
            for one, text in zip(contexts_of(number, *seeds), asked, strict=True)
        ]

    server.answer = filtered
    env, live = Named(), begun()
    first = rounds(1, "good", "bad")
    written = asyncio.run(live.propose(env, first))
    resumed = begun()
    resumed.recall(first, written)
    for source in (live, resumed):
        found = asyncio.run(source.propose(env, rounds(2, "good", "bad")))
        assert [(one.text, one.finished) for one in found] == [("{}", True), ("", False)]
    assert "a round goes on with tasks that were written before: " in caplog.text
    with pytest.raises(NothingWrittenError, match=r"answered none of 1 requests for tasks: .*content filter"):
        asyncio.run(resumed.propose(env, rounds(3, "bad")))


@pytest.mark.long
@pytest.mark.parametrize("writes", ["spec", "parameters"])
def test_a_fixed_number_of_specs_is_written_for_a_seed_also_when_a_run_goes_on(
    writes: str, tmp_path: Path
) -> None:
    fixed = {
        "simulator__writes": writes,
        "simulator__source": "variation",
        "simulator__per_seed": 2,
        "simulator__contexts": 40,
        "curriculum__novelty_threshold": 0.0,
        "agent__rollouts": 2,
        "run__rounds": 3,
    }
    succeeds(*words(tmp_path / "whole", **fixed))
    stopped_in_round_two(*words(tmp_path / "run", **fixed))
    succeeds("train", "--resume", "--out", tmp_path / "run")
    with PoolStore.open(tmp_path / "whole" / "pool.db", create=False) as store:
        batches = [batch for number in (1, 2, 3) for batch in store.batches(number)]
        digest = store.digest()
    with PoolStore.open(tmp_path / "run" / "pool.db", create=False) as store:
        assert store.digest() == digest
    texts: dict[str, list[str]] = {}
    for batch in batches:
        texts.setdefault(batch.context.seed.id, []).extend(p.generation.text for p in batch.proposals)
    again = [found for found in texts.values() if len(found) > 2]
    assert len(again) > 5
    assert all(len(set(found)) <= 2 for found in again)
    tasks: dict[str, set[str]] = {}
    for batch in batches:
        built = [p.outcome for p in batch.proposals if isinstance(p.outcome, Task)]
        tasks.setdefault(batch.context.seed.id, set()).update(json.dumps(task.spec) for task in built)
    assert all(len(found) <= 2 for found in tasks.values())


def written(body: dict[str, Any]) -> Any:
    """The example that the request shows, with the words that models put around JSON."""
    shown = body["messages"][-1]["content"].partition("Example: ")[2].partition("\n")[0]
    return said(f"Sure!\n```json\n{shown}\n```" if shown else "hi")


@pytest.mark.long
def test_an_endpoint_writes_tasks_and_its_tokens_are_counted(server: Server, tmp_path: Path) -> None:
    server.answer = written
    out = tmp_path / "run"
    there = {"simulator__source": "endpoint", "simulator__address": f"{server.url}#m"}
    succeeds(*words(out, **there))
    found = proposals(out)
    assert len(found) == 12
    assert {getattr(p.outcome, "reason", None) for p in found} <= {None, RejectReason.DUPLICATE}
    asked = [request for request in server.requests if "response_format" in request]
    assert all(r["response_format"]["json_schema"]["schema"]["anyOf"] for r in asked)
    with PoolStore.open(out / "pool.db", create=False) as store:
        assert store.metrics(1)["tokens/simulator_sampled"] >= 6 * 5


@pytest.mark.long
def test_specs_that_structured_output_cannot_hold_are_asked_for_freely(
    server: Server, tmp_path: Path
) -> None:
    def answer(body: dict[str, Any]) -> Any:
        return refused("Invalid schema") if "response_format" in body else said("hi")

    server.answer = answer
    there = {"simulator__source": "endpoint", "simulator__address": f"{server.url}#m"}
    succeeds(*words(tmp_path / "run", **there))
    found = proposals(tmp_path / "run")
    assert {p.outcome.reason for p in found if not isinstance(p.outcome, Task)} == {RejectReason.SYNTAX}


@pytest.mark.long
def test_an_endpoint_that_dies_half_way_keeps_what_is_committed(server: Server, tmp_path: Path) -> None:
    count = 0

    def answer(body: dict[str, Any]) -> Any:
        nonlocal count
        count += 1
        return said("hi") if count <= 7 else refused("out of order", 503)

    server.answer = answer
    there = {"simulator__source": "endpoint", "simulator__address": f"{server.url}#m"}
    out = tmp_path / "run"
    sentence = sentence_of(*words(out, **there, **{"simulator__endpoint.retries": 1}))
    assert "answered none of 6 requests for tasks" in sentence
    assert "continue with --resume" in sentence
    with PoolStore.open(out / "pool.db", create=False) as store:
        assert store.last_round() == 1
    server.answer = lambda body: said("hi")
    succeeds("train", "--resume", "--out", out)


@pytest.mark.parametrize("name", ["tool_calling", "household", "multihop_qa", "programs"])
def test_a_spec_that_comes_again_is_the_same_task(name: str, tmp_path: Path) -> None:
    env = load_environment(name, environment_config(name)())
    config = SimulatorConfig(source="variation", per_seed=3, variations=3, contexts=2)
    written = VariationSource(config.model_copy(update={"variations": 1}), seed=0)
    file = tmp_path / "specs.jsonl"
    file.write_text("".join(json.dumps({"spec": one.spec}) + "\n" for one in env.seeds()[:6]))
    of_file = SimulatorConfig(source="file", file=str(file), variations=3, contexts=2)
    for source in (FixedTaskSource(written, config, seed=0), FileSource(of_file, seed=0)):
        gate = Gate(env, CurriculumConfig(gate="executes", novelty_threshold=0.0), seed=0)
        made = []
        for number in (1, 2):
            contexts = make_contexts(env, env.seeds()[:2], Profile(), round_=number, target=0.5)
            tasks = [one.outcome for one in gate.admit(contexts, asyncio.run(source.propose(env, contexts)))]
            kept = [(str(one.messages), one.oracle) for one in tasks if isinstance(one, Task)]
            made.append(sorted(kept))
        assert made[0]
        assert made[0] == made[1]
