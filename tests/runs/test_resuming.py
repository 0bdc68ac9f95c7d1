"""A run goes on with its own settings: what may change takes effect, what may not is refused by its name."""

from __future__ import annotations

import json
import shutil
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest

import genenv
import scripted_genenv as fakes
from genenv.backends.local import hub
from genenv.backends.settings import AUTOMATIC, PolicyConfig
from genenv.config.resolved import ARITHMETIC, FREE
from genenv.config.run import RunConfig, all_settings, dump_toml, load_config
from genenv.environments import environment_names
from genenv.evaluation.held_out import HeldOut, HeldOutConfig
from genenv.runs.folder import RunFolder
from genenv.settings import is_place
from genenv.training import opening, starts
from genenv.training.branching import Origin
from genenv.training.resuming import for_writing
from sharing import Shared
from typed import refused, run, succeeds


def rounds(path: Path) -> int:
    return len((path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) - 1


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.few_base_data(monkeypatch)
    monkeypatch.setattr(opening, "load_players", fakes.scripted_players)
    monkeypatch.setattr(hub, "ask", lambda name: hub.Reply("here"))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(fakes.SETTINGS.format(rounds=1), encoding="utf-8")
    return path


@pytest.fixture
def mine(config: Path, shared: Shared, tmp_path: Path) -> Path:
    """A run of one round that was started with other settings than its CONFIG's."""
    overrides = ["--set", "policy.model=some/model", "--set", "curriculum.alpha=0.6"]
    made = shared("resumed", lambda to: succeeds("train", config, *overrides, "--out", to))
    return shutil.copytree(made, tmp_path / "mine")


def longer(count: int) -> list[str]:
    return ["--set", f"run.rounds={count}"]


# which settings


@pytest.mark.long
def test_a_run_goes_on_from_anywhere_and_where_its_tools_have_moved(
    desk_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(desk_bundle, tmp_path / "desks" / "one")
    small = ["policy.backend=scripted", "run.eval_every=0", "environment.name=desks/one"]
    (tmp_path / "base.toml").write_text("")
    words = [word for text in small for word in ("--set", text)]
    start = ["train", "base.toml", *words, "--out", tmp_path / "run"]
    succeeds(*start, *longer(1))
    succeeds(*start, *longer(2), "--resume")
    (tmp_path / "desks").rename(tmp_path / "moved")
    on = ["train", "--resume", "--out", tmp_path / "run", *longer(3)]
    said = refused(*on)
    assert f"was {tmp_path / 'desks' / 'one'}, where nothing is now" in said
    assert "--set environment.name=FOLDER" in said
    assert "where nothing is now" in refused(*on, "--set", "environment.name=household")
    succeeds(*on, "--set", "environment.name=moved/one")
    monkeypatch.chdir("/")
    succeeds("train", "--resume", "--out", tmp_path / "run", *longer(4))
    assert rounds(tmp_path / "run") == 4


def test_a_run_needs_no_config_to_go_on(mine: Path) -> None:
    succeeds("train", "--resume", "--out", mine, *longer(2))
    assert rounds(mine) == 2
    saved = load_config(mine / "config.toml")
    assert saved.curriculum.alpha == 0.6
    assert saved.run.rounds == 2


@pytest.mark.parametrize(
    ("file", "contents", "words"),
    [("files.json", b"{", "files.json is damaged; delete it"), ("config.toml", b"\xff", "config.toml")],
)
def test_a_damaged_file_of_a_run_is_one_sentence(mine: Path, file: str, contents: bytes, words: str) -> None:
    (mine / file).write_bytes(contents)
    result = run("train", "--resume", "--out", mine, "--set", "run.rounds=3")
    assert result.exit_code != 0
    assert words in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_the_config_that_a_run_was_started_with_asks_for_nothing(mine: Path, config: Path) -> None:
    succeeds("train", config, "--out", mine, "--resume", *longer(2))
    assert rounds(mine) == 2
    assert load_config(mine / "config.toml").policy.model == "some/model"
    assert "is finished" in succeeds("train", config, "--out", mine, "--resume").stdout  # not back to one


@pytest.mark.long
def test_the_runs_own_config_asks_for_nothing(mine: Path) -> None:
    succeeds("train", mine / "config.toml", "--out", mine, "--resume", *longer(2))
    assert rounds(mine) == 2
    succeeds("train", mine / "config.toml", "--out", mine, "--resume", *longer(3))
    assert (mine / "started.toml").read_text(encoding="utf-8").count("alpha") == 0


@pytest.mark.parametrize(
    ("override", "name"),
    [
        ("curriculum.alpha=0.4", "curriculum.alpha"),
        ("policy.model=another/model", "policy.model"),
        ("policy.threads=3", "policy.threads"),
        ("curriculum.rwr_lambda=3", "curriculum.rwr_lambda"),
        ("run.seed=7", "run.seed"),
        ("run.eval_tasks=3", "run.eval_tasks"),
        ("environment.name=household", "environment.name"),
        ("preset=paper", "preset"),
    ],
)
def test_a_setting_that_changes_results_is_refused_by_its_name(mine: Path, override: str, name: str) -> None:
    before = (mine / "config.toml").read_bytes()
    sentence = refused("train", "--resume", "--out", mine, "--set", override)
    assert f"{mine} was started with other settings: {name} (see {mine / 'config.toml'}); " in sentence
    assert (mine / "config.toml").read_bytes() == before


def test_what_a_config_says_differently_by_now_is_refused_by_its_name(mine: Path, config: Path) -> None:
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("rollouts = 4", "rollouts = 5"), encoding="utf-8")
    assert "other settings: agent.rollouts (see" in refused("train", config, "--out", mine, "--resume")
    config.write_text(text.replace("rollouts = 4\n", ""), encoding="utf-8")  # back to the default, 8
    assert "other settings: agent.rollouts (see" in refused("train", config, "--out", mine, "--resume")
    config.write_text(text + "\n[curriculum]\nalpha = 0.6\n", encoding="utf-8")  # what the run has
    assert "is finished" in succeeds("train", config, "--out", mine, "--resume").stdout


def test_a_run_of_an_older_version_is_held_to_the_whole_config(mine: Path, config: Path) -> None:
    (mine / "started.toml").unlink()
    sentence = refused("train", config, "--out", mine, "--resume")
    assert "other settings: curriculum.alpha, policy.model (see" in sentence
    said = ["--set", "policy.model=some/model", "--set", "curriculum.alpha=0.6"]
    assert "is finished" in succeeds("train", mine / "config.toml", *said, "--out", mine, "--resume").stdout


def test_an_edit_of_a_runs_own_settings_is_a_request_like_any_other(mine: Path) -> None:
    whole = (mine / "config.toml").read_text(encoding="utf-8")
    (mine / "config.toml").write_text(whole.replace("alpha = 0.6", "alpha = 0.4"), encoding="utf-8")
    sentence = refused("train", "--resume", "--out", mine, *longer(2))
    assert f"other settings: curriculum.alpha (see {mine / 'trained.toml'}; " in sentence
    assert f"{mine / 'config.toml'} was edited); " in sentence
    (mine / "config.toml").write_text(whole.replace("rounds = 1", "rounds = 2"), encoding="utf-8")
    succeeds("train", "--resume", "--out", mine)
    assert rounds(mine) == 2
    assert (mine / "trained.toml").read_bytes() == (mine / "config.toml").read_bytes()
    assert "# from round 2 on: run.rounds = 2 (was 1)" in (mine / "config.toml").read_text(encoding="utf-8")


def test_settings_that_were_lost_are_missed_and_a_branch_starts_with_what_was_trained(mine: Path) -> None:
    (mine / "config.toml").write_text("[run]\nrounds = 2\n", encoding="utf-8")
    sentence = refused("train", "--resume", "--out", mine)
    assert "agent.max_new_tokens, " in sentence
    assert " more (see " in sentence
    assert Origin.named(f"{mine}@1").config.curriculum.alpha == 0.6
    assert genenv.Run(mine).config.curriculum.alpha == 0.6
    assert HeldOut.settled(HeldOutConfig(), str(mine)).run == str(mine)
    assert HeldOut(HeldOutConfig(run=str(mine)))._settings_of_run().curriculum.alpha == 0.6
    (mine / "trained.toml").unlink()  # a run of an older version, whose edits nothing shows
    assert Origin.named(f"{mine}@1").config.curriculum.alpha == 0.5


def test_a_run_keeps_what_each_start_was_computed_with_and_says_what_changed(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = map(json.loads, (mine / "starts.jsonl").read_text(encoding="utf-8").splitlines())
    assert first["round"] == 0
    assert first["genenv"] == genenv.__version__
    assert first["code"] == starts.present()["code"]
    unchanged = succeeds("train", "--resume", "--out", mine, *longer(2))
    assert "changed since the last start" not in unchanged.stderr
    other = {**starts.present(), "code": "0" * 12, "torch": "9.9"}
    monkeypatch.setattr(starts, "present", lambda: other)
    said = succeeds("train", "--resume", "--out", mine, *longer(3)).stderr
    words = f"the code of genenv, torch 9.9 (was {first['torch']})"
    assert f"note: {words}: changed since the last start; rounds from 3 on" in said
    assert f"# from round 3 on: run.rounds = 3 (was 2), {words}" in (mine / "config.toml").read_text(
        encoding="utf-8"
    )
    assert [line["round"] for line in map(json.loads, (mine / "starts.jsonl").read_text().splitlines())] == [
        0,
        2,
        3,
    ]


VALUES = {
    "run.rounds": 2,
    "policy.vllm.key_variable": "OTHER_KEY",
    "run.name": "other",
    "run.eval_every": 0,
    "shift.eval_every": 2,
    "run.keep_checkpoints": 1,
    "logging.tensorboard": False,
    "logging.wandb": False,
    "logging.wandb_project": "other",
    "policy.max_batch_rows": 2,
    "policy.tokens_per_microbatch": 77,
    "policy.cache_gib": 0.5,
    "policy.activation_gib": 0.5,
    "policy.tinker.address": "http://elsewhere",
    "policy.tinker.key_variable": "OTHER_KEY",
    "policy.tinker.timeout_s": 7.0,
    "policy.vllm.addresses": ["http://elsewhere"],
    "policy.vllm.addresses_folder": "elsewhere",
    "policy.vllm.folder": "elsewhere",
    "policy.vllm.timeout_s": 7.0,
    "policy.vllm.start_timeout_s": 7.0,
    "policy.vllm.command": "elsewhere/vllm",
    "policy.vllm.memory_share": 0.5,
    "policy.vllm.sleep": False,
    "policy.vllm.tries": 3,
    "policy.vllm.at_once": 8,
    "simulator.endpoint.concurrency": 2,
    "simulator.endpoint.requests_per_minute": 60.0,
    "simulator.endpoint.retries": 1,
    "simulator.endpoint.timeout_s": 7.0,
    "simulator.endpoint.key_variable": "OTHER_KEY",
    "simulator.endpoint.price_in": 1.0,
    "simulator.endpoint.price_out": 2.0,
    "simulator.endpoint.max_cost": 3.0,
}


@pytest.mark.parametrize("asked_in", ["--set", "CONFIG"])
def test_settings_that_change_no_result_take_effect(mine: Path, config: Path, asked_in: str) -> None:
    assert set(VALUES) == set(FREE)
    changes = {**VALUES, "run.rounds": 3}
    said = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    if asked_in == "CONFIG":
        text = config.read_text(encoding="utf-8")
        for key, value in changes.items():
            section, _, name = key.rpartition(".")
            own = ("logging", "shift", "policy.tinker", "policy.vllm", "simulator.endpoint")
            if section in own and f"[{section}]" not in text:
                text += f"\n[{section}]\n"
            text = text.replace(f"[{section}]\n", f"[{section}]\n{name} = {json.dumps(value)}\n")
        config.write_text(text.replace("\nrounds = 1\n", "\n"), encoding="utf-8")
        said = []
    words = [word for one in said for word in ("--set", one)]
    succeeds("train", *([config] if asked_in == "CONFIG" else []), "--resume", "--out", mine, *words)
    saved = load_config(mine / "config.toml").model_dump(mode="json")
    found = {key: reduce(getitem, key.split("."), saved) for key in changes}
    assert found == changes
    assert rounds(mine) == 3
    notes = [line for line in (mine / "config.toml").read_text().splitlines() if line.startswith("#")]
    assert len(notes) == 1
    assert notes[0].startswith("# from round 2 on: ")
    assert "policy.max_batch_rows = 2 (was 0)" in notes[0]


@pytest.mark.long
def test_changes_of_several_resumes_are_all_noted(mine: Path) -> None:
    for count in (2, 3):
        succeeds("train", "--resume", "--out", mine, *longer(count))
    notes = (mine / "config.toml").read_text(encoding="utf-8").splitlines()[:2]
    assert notes == [
        "# from round 2 on: run.rounds = 2 (was 1)",
        "# from round 3 on: run.rounds = 3 (was 2)",
    ]


def test_every_free_setting_exists_and_none_decides_arithmetic() -> None:
    known = {key for key, _ in all_settings("tool_calling")}
    assert FREE.keys() <= known
    assert known >= ARITHMETIC
    assert not ARITHMETIC & FREE.keys()


# how a run is named


def test_without_a_config_or_a_run_the_command_says_what_to_name(mine: Path, tmp_path: Path) -> None:
    for words, instead in ((["train"], "--resume --out RUN"), (["generate"], "--run RUN")):
        result = run(*words)
        assert result.exit_code == 2
        told = " ".join(result.stderr.replace("│", " ").split())
        assert f"name a TOML file, such as configs/quickstart.toml, or a run with {instead}" in told
    assert refused("train", "--resume") == "name the run to continue, such as --out runs/demo"
    assert refused("train", "--resume", mine) == f"{mine} is a run; continue it with --resume --out {mine}"
    assert "--allow-other-arithmetic is for a run that is continued" in refused(
        "train", mine / "config.toml", "--out", tmp_path / "x", "--allow-other-arithmetic"
    )


def test_generate_takes_the_settings_of_its_run(mine: Path, config: Path) -> None:
    for words in ((), (config,), (mine / "config.toml",)):
        assert len(succeeds("generate", *words, "--run", mine, "--n", "1").stdout.splitlines()) == 1
    sentence = refused("generate", config, "--run", mine, "--set", "policy.model=another/model")
    assert "was trained with other settings: policy.model; " in sentence


# arithmetic


def lacking_machine(patch: pytest.MonkeyPatch, **reasons: str) -> None:
    def lacking(policy: PolicyConfig) -> dict[str, str]:
        return {name: why for name, why in reasons.items() if getattr(policy, name) != AUTOMATIC[name]}

    patch.setattr("genenv.backends.local.hardware.lacking", lacking)


def test_a_machine_that_lacks_what_a_run_was_computed_with_says_so_and_asks(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking_machine(monkeypatch, threads="1 threads, but this process has 0 cores")
    before = (mine / "config.toml").read_bytes()
    sentence = refused("train", "--resume", "--out", mine, *longer(2))
    assert "computed with what is not here (policy.threads: 1 threads, but this process has 0" in sentence
    assert "--allow-other-arithmetic goes on with what is" in sentence
    assert (mine / "config.toml").read_bytes() == before
    monkeypatch.setattr("genenv.backends.local.hardware.choose_threads", lambda dtype: 2)
    succeeds("train", "--resume", "--out", mine, *longer(2), "--allow-other-arithmetic")
    assert load_config(mine / "config.toml").policy.threads == 2
    note = (mine / "config.toml").read_text(encoding="utf-8").splitlines()[0]
    assert note == "# from round 2 on: policy.threads = 2 (was 1), run.rounds = 2 (was 1)"


def test_a_finished_run_is_shown_on_any_machine(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking_machine(monkeypatch, threads="none")
    assert "is finished" in succeeds("train", "--resume", "--out", mine).stdout


def test_arithmetic_may_be_changed_on_purpose_and_only_so(mine: Path) -> None:
    words = ["train", "--resume", "--out", mine, *longer(2), "--set", "policy.threads=3"]
    sentence = refused(*words)
    assert "other settings: policy.threads (see" in sentence
    assert "add --allow-other-arithmetic, or leave them" in sentence
    succeeds(*words, "--allow-other-arithmetic")
    assert load_config(mine / "config.toml").policy.threads == 3


def test_automatic_is_what_was_decided(mine: Path) -> None:
    assert "is finished" in succeeds("train", "--resume", "--out", mine, "--set", "policy.threads=0").stdout


# places


def test_every_setting_that_may_name_a_file_or_folder_is_kept_from_the_root_on() -> None:
    places = set()
    for key, field in [pair for name in environment_names() for pair in all_settings(name)]:
        about = str(field.description).lower()
        if str(field.annotation) not in ("<class 'str'>", "str | None") or key == "run.name":
            continue
        if is_place(field):
            places.add(key)
        else:
            assert not any(word in about for word in ("folder", " file", "path")), key
    assert {"policy.model", "policy.simulator_model", "environment.corpus", "environment.database"} <= places


@pytest.mark.long
def test_a_place_is_kept_from_the_root_on_and_found_from_another_folder(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models/mine").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    said = ["--set", "policy.model=models/mine", "--set", "policy.simulator_model=./models/../models/mine"]
    succeeds("train", config, "--out", "run", *said)
    saved = load_config(tmp_path / "run/config.toml").policy
    assert saved.model == saved.simulator_model == str(tmp_path / "models/mine")
    assert "is finished" in succeeds("train", config, "--out", "run", "--resume", *said).stdout
    monkeypatch.chdir(tmp_path / "other")
    succeeds("train", config, "--out", "../run", "--resume", *longer(2))
    assert load_config(tmp_path / "run/config.toml").policy.model == str(tmp_path / "models/mine")
    sentence = refused("train", "--out", "../run", "--resume", "--set", "policy.model=models/mine")
    assert "other settings: policy.model" in sentence  # which is another place from here
    succeeds("generate", "--run", "../run", "--set", f"policy.model={tmp_path}/models/mine", "--n", "1")


@pytest.mark.long
def test_a_function_in_a_file_is_found_from_another_folder_and_a_run_says_that_it_has_changed(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "mine.py"
    code.write_text("def half(rewards):\n    return [reward - 0.5 for reward in rewards]\n")
    monkeypatch.chdir(tmp_path)
    succeeds("train", config, "--out", "run", "--set", "agent.advantage=./mine.py:half")
    file = tmp_path / "run/config.toml"
    assert load_config(file).agent.advantage == f"{code}:half"
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    same = succeeds("train", "--out", "../run", "--resume", *longer(2))
    assert "has changed since" not in same.stderr
    code.write_text("def half(rewards):\n    return [2 * reward - 1 for reward in rewards]\n")
    said = succeeds("train", "--out", "../run", "--resume", *longer(3)).stderr
    assert f"{code} (agent.advantage) has changed since the run was started: rounds from 3 on use it" in said
    assert "# from round 3 on: run.rounds = 3 (was 2), the contents of agent.advantage\n" in file.read_text()
    assert "has changed since" not in succeeds("train", "--out", "../run", "--resume", *longer(4)).stderr


def test_a_name_that_is_no_place_stays_as_it_is(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "grpo").mkdir()
    (tmp_path / "smollm2-135m").mkdir()  # a short name wins over a folder
    monkeypatch.chdir(tmp_path)
    succeeds("train", config, "--out", "a", "--set", "policy.simulator_model=org/name")
    saved: RunConfig = load_config(tmp_path / "a/config.toml")
    assert (saved.policy.model, saved.policy.simulator_model) == ("smollm2-135m", "org/name")
    assert saved.agent.algorithm == "grpo"


def test_a_variant_that_is_named_for_writing_brings_its_settings(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.config.write_text(dump_toml(load_config(variant="base")))
    assert load_config(folder.config).simulator.source == "none"
    found = for_writing(folder, None, ["variant=robust"])
    assert (found.variant, found.simulator.source) == ("robust", "model")
