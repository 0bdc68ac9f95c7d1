from __future__ import annotations

import json
import re
import tomllib
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo

from genenv.cli.settings_reference import render_reference
from genenv.config import tables as config_tables
from genenv.config.resolved import anchored, by_key, resolve, with_values
from genenv.config.run import RunConfig, all_settings, as_tables, dump_toml, load_config, parse_config
from genenv.config.tables import bundled_configs, dump_tables, validated
from genenv.curriculum.replay import Replay
from genenv.curriculum.settings import METHOD, PRESETS, ROBUST, STEPS
from genenv.environments import environment_config, environment_names, load_environment, shown_name
from genenv.errors import UsageError
from genenv.evaluation.config import evaluation_settings
from genenv.settings import Settings, allowed
from genenv.training.opening import check_models
from genenv.types import Json, JsonObject

ROOT = Path(__file__).parents[2]


@pytest.fixture
def file(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "run.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def sentence(*overrides: str, path: Path | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        load_config(path, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_a_file_everything_has_its_default() -> None:
    assert load_config() == RunConfig() == parse_config({})


def test_file_values_win_over_defaults_and_set_wins_over_both(file) -> None:
    path = file("[curriculum]\nalpha = 0.4\nbeta = 3\n[agent.warmup]\nsteps = 7\n")
    config = load_config(path, ["curriculum.alpha=0.6", "agent.warmup.batch=3"])
    assert (config.curriculum.alpha, config.curriculum.beta) == (0.6, 3.0)
    assert (config.agent.warmup.steps, config.agent.warmup.batch) == (7, 3)


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("policy.model=gpt2", "gpt2"),  # not TOML, so text
        ('policy.model="gpt2"', "gpt2"),
        ("policy.model=a/b c", "a/b c"),
        ("policy.model=x=y", "x=y"),
        ("policy.model=x\nrun.seed=3", "x\nrun.seed=3"),  # no second setting can hide in a value
        ('policy.model="x"\nother=3', '"x"\nother=3'),
        ("  policy . model = gpt2 ", "gpt2"),
    ],
)
def test_a_set_value_is_toml_or_else_text(override: str, value: str) -> None:
    assert load_config(None, [override]).policy.model == value


def test_set_takes_booleans_numbers_and_lists() -> None:
    config = load_config(None, ["simulator.train=false", "agent.lr=1e-6", "agent.betas=[0.8, 0.9]"])
    assert (config.simulator.train, config.agent.lr, config.agent.betas) == (False, 1e-6, (0.8, 0.9))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("curriculum.alhpa=0.5", "unknown setting 'curriculum.alhpa'; did you mean 'curriculum.alpha'?"),
        ("alpha=0.5", "unknown setting 'alpha'; did you mean 'curriculum.alpha'?"),
        ("curiculum.alpha=0.5", "unknown setting 'curiculum'; did you mean 'curriculum'?"),
        ("agent.kl_cap=1", "unknown setting 'agent.kl_cap'; did you mean 'simulator.kl_cap'?"),
        ("agent.warmup.step=1", "unknown setting 'agent.warmup.step'; did you mean 'agent.warmup.steps'?"),
        ("environment.stile=json", "unknown setting 'environment.stile'; did you mean 'environment.style'?"),
        ("environment.settings=3", "unknown setting 'environment.settings'"),
        ("xyzzy=1", "unknown setting 'xyzzy'; known: agent, "),
        ("policy.wwwjjj=1", "unknown setting 'policy.wwwjjj'; did you mean 'policy.model'? known: policy."),
        ("environment.name=tool", "unknown environment 'tool'; did you mean 'tool_calling'?"),
        ("agent.learning_rate=1", "unknown setting 'agent.learning_rate'; did you mean 'agent.lr'?"),
        (
            "learning-rate=1",
            "unknown setting 'learning-rate'; did you mean 'agent.lr' or 'simulator.lr'?",
        ),
        (
            "agent.beta=1",
            "unknown setting 'agent.beta'; did you mean 'agent.kl_coefficient' or 'agent.betas'?",
        ),
        (
            "agent.num_generations=8",
            "unknown setting 'agent.num_generations'; did you mean 'agent.rollouts'?",
        ),
        ("policy.r=8", "unknown setting 'policy.r'; did you mean 'policy.lora_rank'?"),
        ("run.max_steps=8", "unknown setting 'run.max_steps'; did you mean 'run.rounds'?"),
        ("agent.warmup_steps=8", "unknown setting 'agent.warmup_steps'; did you mean 'agent.warmup.steps'?"),
        (
            "batch_size=8",
            "unknown setting 'batch_size'; did you mean 'agent.groups_per_step' or 'simulator.batch'?",
        ),
        ("preset=papper", "unknown preset 'papper'; did you mean 'paper'?"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(override: str, expected: str) -> None:
    assert sentence(override).startswith(expected)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("curriculum.alpha=1.5", "setting 'curriculum.alpha' is 1.5; allowed: number, >= 0.001, <= 0.999"),
        ("curriculum.alpha=x", "setting 'curriculum.alpha' is \"x\"; allowed: number, >= 0.001, <= 0.999"),
        ("curriculum.alpha=nan", "setting 'curriculum.alpha' is NaN; allowed: number, >= 0.001, <= 0.999"),
        (
            "curriculum.alpha.x=1",
            "setting 'curriculum.alpha' is {\"x\": 1}; allowed: number, >= 0.001, <= 0.999",
        ),
        ("agent.rollouts=2.5", "setting 'agent.rollouts' is 2.5; allowed: whole number, >= 2, <= 1024"),
        ("agent.rollouts=true", "setting 'agent.rollouts' is true; allowed: whole number, >= 2, <= 1024"),
        (
            "agent.betas=[0.9, 2]",
            "setting 'agent.betas' is [0.9, 2]; allowed: list of 2, each a number, >= 0, <= 0.99999",
        ),
        (
            "agent.betas=[0.9]",
            "setting 'agent.betas' is [0.9]; allowed: list of 2, each a number, >= 0, <= 0.99999",
        ),
        ("policy.tuning=x", 'setting \'policy.tuning\' is "x"; allowed: "lora" or "full"'),
        ("policy.simulator_model=3", "setting 'policy.simulator_model' is 3; allowed: text, or left out"),
        ("simulator.train=1", "setting 'simulator.train' is 1; allowed: true or false"),
        ("environment.mode=x", "setting 'environment.mode' is \"x\"; allowed: "),
        ("environment.name=3", "setting 'environment.name' is 3; allowed: text"),
        ("preset=3", 'setting \'preset\' is 3; allowed: "paper" or "robust"'),
        ("agent=3", "'agent' is a section, not a value; write [agent] and its settings below"),
        (
            "environment=3",
            "'environment' is a section, not a value; write [environment] and its settings below",
        ),
        ("run.name=../x", "setting 'run.name' is \"../x\"; allowed: text, "),
        (
            "curriculum.base_share=0.9",
            "section 'curriculum': base_share + review_share + replay_share is 0.95, but must be at most",
        ),
        (
            "agent.warmup.target_low=0.9",
            "section 'agent.warmup': target_low is 0.9, but must be at most target_high",
        ),
        ("alpha", "--set takes key=value, such as curriculum.alpha=0.6, not 'alpha'"),
        ("a..b=3", "--set takes key=value"),
    ],
)
def test_a_wrong_value_is_answered_with_what_is_allowed(override: str, expected: str) -> None:
    assert sentence(override).startswith(expected)


@pytest.mark.parametrize(
    "override",
    [
        'policy.vllm.addresses=["http://host:1", "http://me:secret@host:8000"]',
        "policy.vllm.addresses=http://me:secret@host:8000",
        'policy.vllm.addresses=["http://host:8000?token=secret"]',
        "policy.tinker.address=https://me:secret@host",
        "simulator.address=http://me:secret@host/v1#model",
    ],
)
def test_an_address_that_holds_a_secret_is_refused_and_not_repeated(override: str) -> None:
    said = sentence(override)
    assert "secret" not in said
    assert override.partition("=")[0] in said


def test_several_wrong_values_are_counted() -> None:
    said = sentence("agent.lr=0", "agent.rollouts=1", "run.rounds=-1")
    assert said.endswith("(and 2 more settings are wrong)")


def test_a_value_cannot_be_a_section_and_a_section_below_a_value_is_named() -> None:
    assert (
        sentence("run.seed=3", "run.seed.x=4") == "--set run.seed.x=4: 'run.seed' is a value, not a section"
    )


def test_a_file_that_cannot_be_read_ends_in_a_sentence(tmp_path: Path, file) -> None:
    assert "there is no file" in sentence(path=tmp_path / "none.toml")
    assert "is a folder" in sentence(path=tmp_path)
    assert "is not valid TOML" in sentence(path=file("alpha ="))
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'name = "\xe9"')
    assert "is not valid TOML" in sentence(path=latin)


def flat(tables: JsonObject, prefix: str = "") -> dict[str, Json]:
    """Nested tables by dotted keys."""
    return {
        key: value
        for name, inner in tables.items()
        for key, value in (
            flat(inner, f"{prefix}{name}.") if isinstance(inner, dict) and inner else {prefix + name: inner}
        ).items()
    }


def test_the_presets_are_the_corrections_of_the_method() -> None:
    paper, robust = load_config(None, ["preset=paper"]), load_config(None, ["preset=robust"])
    assert robust == load_config()
    for tables, config in ((METHOD, paper), (STEPS, paper), (ROBUST, robust)):
        found = as_tables(config)
        assert flat(tables).items() <= flat(found).items()
    differing = {key for key, value in flat(METHOD).items() if value != flat(ROBUST)[key]}
    assert differing == {
        "curriculum.standardise_rewards",
        "curriculum.posterior",
        "curriculum.gate",
        "curriculum.novelty_threshold",
        "curriculum.full_novelty",
        "curriculum.base_share",
        "curriculum.review_share",
        "curriculum.replay_share",
        "curriculum.seed_trim",
        "agent.entropy_coefficient",
        "agent.skip_zero_advantage",
        "agent.warmup.kept_moments",
        "simulator.warmup.kept_moments",
    }


def test_what_the_presets_leave_to_defaults_is_what_the_paper_prints() -> None:
    paper = load_config(None, ["preset=paper"])
    curriculum, agent = paper.curriculum, paper.agent
    assert (curriculum.alpha, curriculum.beta, curriculum.k_min, curriculum.rwr_lambda) == (0.5, 2, 0.1, 1)
    assert curriculum.band_filter
    assert (agent.advantage, agent.kl_coefficient, agent.clip_low, agent.clip_high) == (
        "normalised",
        0.001,
        0.2,
        0.2,
    )


def test_the_preset_paper_has_the_papers_steps() -> None:
    paper, robust = load_config(None, ["preset=paper"]), load_config()
    assert (paper.agent.lr, paper.simulator.lr) == (1e-6, 5e-7)
    assert (paper.agent.rollouts, paper.simulator.variations) == (8, 4)
    assert (paper.agent.groups_per_step, paper.simulator.batch) == (16, 64)
    assert not flat(METHOD).keys() & flat(STEPS).keys(), "one of the two has it"
    found = flat(as_tables(robust)), flat(as_tables(paper))
    differing = {key for key, value in found[0].items() if found[1][key] != value}
    assert differing <= {"preset", *flat(METHOD), *flat(STEPS)}


def test_the_papers_mixture_is_one_base_task_beside_four_variations_and_a_fifth_of_older_ones() -> None:
    curriculum = load_config(None, ["preset=paper"]).curriculum
    base, reviews, replayed = Replay(curriculum).sizes(64 * 4)
    assert (base, reviews, replayed) == (64, 0, 80)


@pytest.mark.parametrize("key", flat(METHOD))
def test_each_correction_can_be_switched_alone(key: str) -> None:
    paper = flat(as_tables(load_config(None, ["preset=paper"])))
    value = flat(ROBUST)[key]
    one = flat(as_tables(load_config(None, ["preset=paper", f"{key}={json.dumps(value)}"])))
    assert one.pop(key) == value
    paper.pop(key)
    assert one == paper


def test_a_preset_also_lies_beneath_settings_made_in_python() -> None:
    assert RunConfig(preset="paper").curriculum.gate == "executes"
    assert (
        RunConfig.model_validate({"preset": "paper", "curriculum": {"gate": "full"}}).curriculum.gate
        == "full"
    )


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        RunConfig().run.seed = 3


@pytest.mark.parametrize("preset", PRESETS)
def test_a_dumped_configuration_reads_back_equal(file, preset: str) -> None:
    config = load_config(None, [f"preset={preset}", "policy.simulator_model=other", "agent.lr=1e-6"])
    text = dump_toml(config)
    assert load_config(file(text)) == config
    assert tomllib.loads(text) == {"resolved": True, **as_tables(config)}


def test_the_variant_of_a_runs_settings_is_a_name_wherever_the_file_lies(file) -> None:
    own = ["agent.guidance=all", "curriculum.seed_choice=bandit"]
    config = load_config(None, own, variant="random+rl")
    assert load_config(file(dump_toml(config))) == config


def test_a_table_for_a_section_changes_what_it_names(file) -> None:
    path = file("[agent]\nrollouts = 3\n")
    config = load_config(path, ["agent={lr=1e-3, warmup={steps=7}}"])
    assert (config.agent.rollouts, config.agent.lr, config.agent.warmup.steps) == (3, 1e-3, 7)
    path = file("[policy.chat_template_kwargs]\nenable_thinking = false\n")  # free: one value
    assert load_config(path, ["policy.chat_template_kwargs={}"]).policy.chat_template_kwargs == {}
    other = load_config(path, ["policy={chat_template_kwargs={other=true}}"])
    assert other.policy.chat_template_kwargs == {"other": True}


def test_a_key_is_no_option_of_a_server() -> None:
    config = load_config(None, ['policy.vllm.options=["--api_key=hunter2"]'])  # as an older run may have it
    with pytest.raises(UsageError, match="written into files") as refusal:
        config.policy.vllm.check_options()
    assert "hunter2" not in str(refusal.value)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.floats(1e-12, 1))
def test_any_text_and_number_survives_the_dump(text: str, number: float) -> None:
    config = parse_config({"policy": {"model": text}, "agent": {"lr": number}})
    assert parse_config(tomllib.loads(dump_toml(config))) == config


def test_what_is_left_out_is_not_dumped() -> None:
    assert "simulator_model" not in dump_toml(load_config())


def test_a_environment_is_made_with_its_settings() -> None:
    settings = environment_config("tool_calling").model_validate({"max_turns": 3})
    assert load_environment("tool_calling", settings).name == "tool_calling"


@pytest.mark.parametrize("env", environment_names())
def test_every_setting_has_a_line_that_explains_it_and_says_what_it_allows(env: str) -> None:
    silent = [key for key, field in all_settings(env) if not (field.description or "").strip()]
    assert not silent
    unclear = [key for key, field in all_settings(env) if "typing" in allowed(field) or not allowed(field)]
    assert not unclear


def test_the_reference_in_the_docs_is_the_one_made_from_the_code() -> None:
    written = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    assert written == render_reference(), "run `make docs`"


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda path: path.name)
def test_every_shipped_configuration_is_valid(path: Path) -> None:
    load_config(path)


# what comes with genenv


def test_a_configuration_that_comes_along_is_found_by_name_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").mkdir()
    assert load_config(Path("quickstart")).run.name == "quickstart"
    assert set(bundled_configs()) == {path.stem for path in (ROOT / "configs").glob("*.toml")}


def test_a_file_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").write_text('[run]\nname = "mine"\n', encoding="utf-8")
    assert load_config(Path("quickstart")).run.name == "mine"


@pytest.mark.parametrize("name", ["quikstart", "configs/quickstart.toml", "quickstart.toml"])
def test_a_configuration_named_almost_right_is_named_in_the_answer(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="did you mean 'quickstart', which comes with genenv"):
        load_config(Path(name))


def test_the_wheel_takes_the_configurations_along() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"configs": "genenv/configs"}


# ranges


def numbers() -> dict[str, FieldInfo]:
    """Every setting that takes numbers, of runs with any environment and of evaluations."""
    pairs = [pair for env in environment_names() for pair in all_settings(env)] + list(evaluation_settings())
    return {key: field for key, field in pairs if "number" in allowed(field)}


def test_every_number_has_a_smallest_and_a_largest_value() -> None:
    ranges = {key: allowed(field) for key, field in numbers().items()}
    assert ranges
    unbounded = [key for key, text in ranges.items() if not re.search(r">=? .*<=? ", text)]
    assert unbounded == [], "1e-300 may hang what 0.001 does not, and 1e308 what a thousand does not"


@pytest.mark.parametrize(
    "override",
    ["curriculum.prior=[1e308, 1e308]", "agent.temperature=1e-300", "agent.temperature=1e308",
     "simulator.temperature=1e-300", "curriculum.beta=1e-300", "agent.max_grad_norm=1e-300",
     "run.rounds=99999999999999999999", "policy.lora_alpha=1e308"],
)  # fmt: skip
def test_values_that_once_hung_or_crashed_a_run_are_refused(override: str) -> None:
    assert "; allowed: " in sentence(override)


def test_every_synonym_leads_to_a_setting_there_is() -> None:
    known = [f".{key}" for key, _ in (*all_settings("tool_calling"), *evaluation_settings())]
    wrong = {
        name
        for names in config_tables._SYNONYMS.values()
        for name in names
        if not any(key.endswith(f".{name}") for key in known)
    }
    assert not wrong


# settings that are decided


def test_what_is_decided_is_decided_once_and_nothing_else_changes() -> None:
    config = load_config(None, ["policy.backend=scripted", "agent.betas=[0.8, 0.9]"])
    assert resolve(config) == config
    assert as_tables(resolve(config)) == as_tables(config)


def test_places_become_absolute_in_sections_environments_and_shifts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "passages.jsonl").write_text("")
    (tmp_path / "tasks.jsonl").write_text("")
    monkeypatch.chdir(tmp_path)
    tables: JsonObject = {
        "environment": {"name": "multihop_qa", "corpus": "passages.jsonl"},
        "shift": {"environment": {"corpus": "./passages.jsonl", "distractors": 2}},
        "simulator": {"source": "file", "file": "tasks.jsonl"},
        "policy": {"model": "no/folder", "vllm": {"addresses_folder": "."}},
    }
    found = flat(as_tables(anchored(parse_config(tables))))
    corpus = str(tmp_path / "passages.jsonl")
    assert (found["environment.corpus"], found["shift.environment.corpus"]) == (corpus, corpus)
    assert (found["shift.environment.distractors"], found["policy.model"]) == (2, "no/folder")
    assert found["simulator.file"] == str(tmp_path / "tasks.jsonl")
    assert found["policy.vllm.addresses_folder"] == str(tmp_path)


def test_folders_of_environments_become_absolute_and_names_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("desks/one", "household"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "passages.jsonl").write_text("")
    monkeypatch.chdir(tmp_path)
    members: JsonObject = {
        "rooms": {"name": "household"},
        "desk": {"name": "desks/one", "share": 2.0},
        "facts": {"name": "multihop_qa", "corpus": "passages.jsonl"},
    }
    later: JsonObject = {"members": {"facts": {"distractors": 2}}}
    tables: JsonObject = {
        "environment": {"name": "mixture", "members": members},
        "shift": {"round": 2, "environment": later},
    }
    config = anchored(parse_config(tables))
    found = as_tables(config)["environment"]["members"]
    corpus = str(tmp_path / "passages.jsonl")
    assert found["desk"] == {"name": str(tmp_path / "desks/one"), "share": 2.0}
    assert (found["rooms"], found["facts"]["corpus"]) == ({"name": "household"}, corpus)
    shifted = config.later_environment()
    assert shifted is not None
    assert shifted.model_dump()["members"] == {**found, "facts": {**found["facts"], "distractors": 2}}
    other: JsonObject = {"members": {"rooms": {"name": "travel", "mode": "sole"}}}
    tables = {**tables, "shift": {"round": 2, "environment": other}}
    shifted = anchored(parse_config(tables)).later_environment()
    assert shifted is not None
    assert shifted.model_dump()["members"]["rooms"] == {"name": "travel", "mode": "sole"}
    desk = anchored(parse_config({"environment": {"name": "desks/one"}}))
    assert desk.environment.name == str(tmp_path / "desks/one")
    assert shown_name(desk.environment.name) == "one"


class _Below(Settings, frozen=True):
    path: str


class _Required(Settings, frozen=True):
    path: str
    below: _Below
    aliased: int = Field(default=0, alias="other")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"below": {"path": "x"}}, "setting 'environment.path' is required; allowed: text"),
        ({"path": "x", "below": {}}, "setting 'environment.below.path' is required; allowed: text"),
        ({"path": "x"}, "setting 'environment.below' is required; write [environment.below] and its "),
        (
            {"path": "x", "below": {"path": "x"}, "other": "y"},
            "'environment.other': Input should be a valid int",
        ),
    ],
)
def test_a_setting_that_is_required_and_left_out_is_named(values: JsonObject, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        validated(_Required, values, "environment.")


KEYS = st.sampled_from(["a", "a b", "model.name", "", '"', "Zoë", "domain"])


@given(st.recursive(st.integers(0, 9), lambda below: st.dictionaries(KEYS, below, max_size=3), max_leaves=5))
@example({"a b": 1, "model.name": "x", "nested": {}})
def test_tables_of_any_keys_are_written_and_read_as_they_are(value: Json) -> None:
    tables: JsonObject = {"environment": {"given": value}}
    assert tomllib.loads(dump_tables(tables)) == tables


def test_keys_with_a_dot_are_no_settings(file) -> None:
    found = sentence(path=file('"curriculum.alpha" = 0.6'))
    assert found == """unknown setting '"curriculum.alpha"'; did you mean 'curriculum.alpha'?"""


@pytest.mark.parametrize("env", environment_names())
def test_settings_by_key_are_those_of_the_file(env: str) -> None:
    config = load_config(None, [f"environment.name={env}", "policy.chat_template_kwargs={thinking = true}"])
    assert by_key(config) == flat(as_tables(config))
    assert by_key(config)["policy.chat_template_kwargs.thinking"] is True


def test_where_models_learn_decides_what_is_settled_for_the_machine() -> None:
    """An agent on a backend of its own counts, and all agents on one other backend may be ahead."""
    two: JsonObject = {
        "policy": {"backend": "scripted", "model": "tiny"},
        "agents": {"one": {"backend": "local"}, "two": {"backend": "local"}},
        "simulator": {"source": "variation"},
        "run": {"staleness": 1},
    }
    config = parse_config(two)
    assert config.learns_here
    assert resolve(config).policy.dtype != "auto"
    with pytest.raises(UsageError, match="rounds in flight need all agents on one backend"):
        parse_config({**two, "agents": {"one": {"backend": "local"}, "two": {}}})


def test_other_values_are_checked_like_those_of_a_file() -> None:
    config = load_config(None, ["policy.chat_template_kwargs={thinking = true}"])
    changes = {"run.rounds": 3, "policy.vllm.tries": 7, "policy.chat_template_kwargs.thinking": False}
    assert by_key(with_values(config, changes)) == {**by_key(config), **changes}
    with pytest.raises(UsageError, match=r"setting 'policy.vllm.tries' is 0; allowed: whole number, >= 1"):
        with_values(config, {"policy.vllm.tries": 0})
    with pytest.raises(UsageError, match="section 'simulator': source is 'file', so file must name one"):
        with_values(config, {"simulator.source": "file"})


@pytest.mark.parametrize("source", ["variation", "model"])
def test_a_model_that_no_policy_uses_is_not_asked_for(tmp_path: Path, source: str) -> None:
    file = tmp_path / "one.toml"
    file.write_text(
        f'[simulator]\nsource = "{source}"\n[policy]\nmodel = "nobody/has-it"\n'
        '[agents.one]\nbackend = "scripted"\n[agents.two]\nbackend = "scripted"\n',
        encoding="utf-8",
    )
    config = load_config(file)
    assert config.learns_here is (source == "model")
    with pytest.raises(UsageError, match="nobody/has-it") if config.learns_here else nullcontext():
        check_models(config)
