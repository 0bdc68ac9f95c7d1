"""`genenv generate`: tasks that passed the gate, no more than were asked for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from genenv.runs.store.store import PoolStore
from genenv.types import Origin
from typed import refused, succeeds

pytestmark = pytest.mark.usefixtures("scripted")


def test_generate_writes_tasks_that_passed_the_gate(finished: Path, config: Path, tmp_path: Path) -> None:
    result = succeeds(
        "generate", config, "--n", "3", "--run", finished, "--out", tmp_path / "deep" / "tasks.jsonl"
    )
    lines = (tmp_path / "deep" / "tasks.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3
    assert {"id", "messages", "oracle", "spec"} <= json.loads(lines[0]).keys()
    assert "3 tasks of " in result.stderr
    assert f"({sum(json.loads(line)['tokens'] for line in lines):,} tokens)" in result.stderr
    assert len(succeeds("generate", config, "--n", "2").stdout.splitlines()) == 2


def test_generate_knows_the_tasks_that_its_run_has_already(
    finished: Path, config: Path, tmp_path: Path
) -> None:
    succeeds("generate", config, "--n", "3", "--run", finished, "--out", tmp_path / "tasks.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text("utf-8").splitlines()]
    with PoolStore.open(finished / "pool.db", create=False) as store:
        known = store.tasks(origin=Origin.GENERATED)
        last = store.last_round()
    assert known
    assert {line["id"].partition("-c")[0] for line in lines} == {f"task-r{last + 1:04d}"}
    assert not {json.dumps(line["spec"]) for line in lines} & {json.dumps(dict(t.spec)) for t in known}


def test_generate_wants_the_model_and_the_environment_of_its_run(finished: Path, config: Path) -> None:
    options = ("--run", finished, "--set", "policy.lora_alpha=1", "--set", "environment.style=json")
    sentence = refused("generate", config, *options)
    assert "was trained with other settings: environment.style, policy.lora_alpha; " in sentence


def test_generate_says_so_when_nothing_passes(config: Path) -> None:
    sentence = refused("generate", config, "--set", "simulator.max_new_tokens=20")
    assert sentence == (
        "none of 30 generations passed the gate; refused: 24 unfinished, 6 syntax; warm a simulator up and "
        "train it, then name its run with --run"
    )


SMALL = ("environment.depths=[1,2]", "simulator.source=variation", "simulator.contexts=1")


@pytest.mark.long
def test_generate_says_what_changes_a_source_that_no_training_improves() -> None:
    """The base data has all specs of one length."""
    words = [word for one in (*SMALL, "environment.lengths=[2,2]") for word in ("--set", one)]
    sentence = refused("generate", "tiny", *words)
    assert re.match(r"none of 5 generations passed the gate; refused: .*[1-5] duplicate", sentence)
    assert sentence.endswith(
        "simulator.source is 'variation', which no training improves: change the settings of [environment], "
        "or set simulator.source to another"
    )


@pytest.mark.long
def test_generate_says_that_it_gave_up_and_why(tmp_path: Path) -> None:
    """Two lengths have few specs; after a while, twenty random variations in a row are known already."""
    words = [
        word
        for one in (*SMALL, "environment.lengths=[2,3]", "simulator.contexts=4")
        for word in ("--set", one)
    ]
    file = tmp_path / "tasks.jsonl"
    told = succeeds("generate", "tiny", *words, "--n", "100000", "--out", file).stderr.splitlines()
    count = len(file.read_text("utf-8").splitlines())
    assert re.fullmatch(
        rf"{count} tasks of [0-9]+ generations .[0-9,]+ tokens. passed the gate; refused: \d+ duplicate.*",
        told[-2],
    )
    assert told[-1].startswith(f"gave up at {count} of 100000 tasks: none passed in the last 5 rounds")


def test_generate_writes_no_more_than_it_was_asked_for(config: Path) -> None:
    result = succeeds(
        "generate", config, "--n", "1", "--set", "simulator.contexts=20", "--set", "simulator.variations=1"
    )
    written = int(re.search(r"1 tasks of (\d+) generations", result.stderr)[1])
    assert written <= 3, "it once wrote a whole round, 20 specs, for one task"


@pytest.mark.long
def test_generate_accepts_no_task_twice_where_tasks_are_candidates(tmp_path: Path) -> None:
    small = ("environment.depths=[1,2]", "environment.lengths=[2,3]", "simulator.source=grammar")
    words = [word for one in (*small, "curriculum.candidates=4") for word in ("--set", one)]
    file = tmp_path / "tasks.jsonl"
    succeeds("generate", "tiny", *words, "--n", "200", "--out", file)
    specs = [json.dumps(json.loads(line)["spec"]) for line in file.read_text("utf-8").splitlines()]
    assert len(specs) == len(set(specs)) > 50
