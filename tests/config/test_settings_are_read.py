"""A setting nobody reads is a false claim."""

from __future__ import annotations

import ast
import contextlib
from functools import cache
from pathlib import Path

import pytest

from genenv.config.idle import idle_settings
from genenv.config.run import all_settings, load_config
from genenv.config.tables import bundled_configs
from genenv.config.variants import VARIANTS
from genenv.environments import environment_names
from genenv.errors import UsageError
from genenv.evaluation.config import evaluation_settings, sections

SRC = Path(__file__).parents[2] / "src" / "genenv"
DEFINITIONS = {"settings.py", "settings_reference.py", "presets.py"}


def names_read(source: str) -> set[str]:
    """Every name read as an attribute; comments, docstrings, assignments and keywords do not count."""
    return {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


OWNERS = {
    "agent": ("agent/", "algorithms/", "backends/local/optimizer.py", "training/"),
    "agent.warmup": ("training/warmup.py",),
    "curriculum": ("curriculum/", "gate/", "training/task_pool.py"),
    "environment": ("environments/", "tools/", "interop/"),
    "logging": ("runs/sinks.py",),
    "policy": ("backends/", "training/opening.py"),
    "policy.tinker": ("backends/tinker/",),
    "policy.ppo": ("backends/local/ppo",),
    "policy.vllm": ("backends/vllm/",),
    "run": ("training/", "cli/"),
    "shift": ("training/task_pool.py", "training/opening.py"),
    "shift.environment": ("environments/", "tools/", "interop/"),
    "simulator": ("simulator/", "algorithms/", "backends/local/optimizer.py", "training/"),
    "simulator.endpoint": ("clients/",),
    "simulator.search": ("simulator/parameter_search.py",),
    "simulator.warmup": ("training/warmup.py",),
}
"""Where the settings of a section are read: a name that another section has too does not count there."""

OWNERS |= {
    name: (f"evaluation/{name}.py", f"benchmarks/{name}.py", f"benchmarks/{name}/")
    for name in sections()
    if name not in OWNERS
}
OWNERS |= {
    "endpoint": ("clients/",),
    "sampling": ("clients/", "sampling.py", "evaluation/evaluate.py", "backends/settings.py"),
}

SETTINGS = sorted(
    {
        *(key for env in environment_names() for key, _ in all_settings(env)),
        *(key for key, _ in evaluation_settings()),
    }
    - {"preset", "variant", "agents"}
)
"""All but those that are used up where settings are put together: preset, variant, sections of agents."""


def test_every_setting_is_read_somewhere() -> None:
    @cache
    def read_by(section: str) -> set[str]:
        return set().union(*(names for path, names in files.items() if path.startswith(OWNERS[section])))

    files = {
        path.relative_to(SRC).as_posix(): names_read(path.read_text(encoding="utf-8"))
        for path in SRC.rglob("*.py")
        if (path.name not in DEFINITIONS or path.parent.name == "backends") and path.parent.name != "config"
    }
    parts = [key.rpartition(".") for key in SETTINGS]
    unread = [f"{section}.{name}" for section, _, name in parts if name not in read_by(section)]
    assert not unread, "use them or remove them"


def test_only_reading_counts() -> None:
    source = "'''self.doc'''\nx.written = y.read\nf(keyword=z.deep.er)\n# x.comment\nalone\n"
    assert names_read(source) == {"read", "deep", "er"}


@pytest.mark.parametrize(
    ("overrides", "sentences"),
    [
        ([], []),
        (["agent.importance_cap=2.0"], []),
        (["agent.algorithm=ppo", "agent.importance_cap=2.0"], []),
        (["simulator.algorithm=grpo"], []),
        (
            ["agent.loss_tokens=88", "agents.a.loss_average=constant", "agents.b.train=false"],
            ['agents.b.loss_tokens = 88 has no effect, as agents.b.loss_average is "token"'],
        ),
        (
            ["agent.algorithm=rft", "agent.importance_cap=2.0", "agent.kl_coefficient=0.001"],
            ['agent.importance_cap = 2.0 has no effect, as agent.algorithm is "rft"'],
        ),
        (["agent.algorithm=ppo", "agent.entropy_coefficient=0.01"], []),
        (["agent.algorithm=mine:credit", "agent.importance_cap=2.0"], []),
        (
            ["agent.loss_tokens=88"],
            ['agent.loss_tokens = 88 has no effect, as agent.loss_average is "token"'],
        ),
        (
            ["curriculum.candidate_explore=0.25"],
            ["curriculum.candidate_explore = 0.25 has no effect, as curriculum.candidates is 1"],
        ),
        (["curriculum.candidate_explore=0.25", "curriculum.candidates=4"], []),
        (
            ["curriculum.seed_trim=0.1", "curriculum.seed_choice=bandit"],
            ['curriculum.seed_trim = 0.1 has no effect, as curriculum.seed_choice is "bandit"'],
        ),
        (
            ["simulator.algorithm=grpo", "curriculum.full_novelty=0.3"],
            ['curriculum.full_novelty = 0.3 has no effect, as simulator.algorithm is "grpo"'],
        ),
        (
            ["curriculum.p_hat_scope=batch", "curriculum.foretold_attempts=16.0"],
            [
                "curriculum.foretold_attempts has no effect on the simulator, as simulator.algorithm is "
                '"rwr" and curriculum.p_hat_scope "batch"'
            ],
        ),
        (["curriculum.p_hat_scope=task", "curriculum.foretold_attempts=16.0"], []),
        (
            ["simulator.per_seed=5"],
            [
                "simulator.train has no effect, as simulator.per_seed is 5: the tasks of a seed are written "
                "once"
            ],
        ),
        (["simulator.per_seed=5", "simulator.train=false"], []),
        (
            [
                "curriculum.env_reward=variance",
                "curriculum.p_hat_scope=task",
                "curriculum.foretold_attempts=16.0",
            ],
            [
                "curriculum.foretold_attempts has no effect on the reward of tasks with rollouts, as "
                'curriculum.env_reward is "variance"'
            ],
        ),
        (
            ["environment.name=household", "environment.mode=single", "environment.reward=progress"],
            ['environment.reward = "progress" has no effect, as environment.mode is "single"'],
        ),
        (["environment.name=household", "environment.reward=progress"], []),
        (
            ["agents.a.algorithm=sft", "agents.b.train=false", "agents.a.clip_low=0.1"],
            ['agents.a.clip_low = 0.1 has no effect, as agents.a.algorithm is "sft"'],
        ),
        (
            ["simulator.source=variation", "simulator.explore=0.5", "simulator.warmup.steps=10"],
            [
                'simulator.explore = 0.5 has no effect, as simulator.source is "variation"',
                'simulator.warmup.steps = 10 has no effect, as simulator.source is "variation"',
            ],
        ),
        (
            ["simulator.source=plr", "simulator.writes=parameters", "simulator.algorithm=grpo"],
            ['simulator.algorithm = "grpo" has no effect, as simulator.source is "plr"'],
        ),
        (
            ["simulator.train=false", "simulator.accumulate=true"],
            ["simulator.accumulate = true has no effect, as simulator.train is false"],
        ),
        (["simulator.source=table", "simulator.writes=parameters", "simulator.accumulate=true"], []),
        (
            [
                "simulator.source=table",
                "simulator.writes=parameters",
                "simulator.kl_cap=0.2",
                "simulator.weight_decay=0.1",
                "simulator.max_grad_norm=0.5",
            ],
            [
                'simulator.kl_cap = 0.2 has no effect, as simulator.source is "table"',
                'simulator.weight_decay = 0.1 has no effect, as simulator.source is "table"',
                'simulator.max_grad_norm = 0.5 has no effect, as simulator.source is "table"',
            ],
        ),
        (
            ["simulator.source=none", "simulator.per_seed=5"],
            ['simulator.per_seed = 5 has no effect, as simulator.source is "none"'],
        ),
        (
            ["simulator.file_tasks=5", "simulator.address=http://a/b#c"],
            [
                'simulator.file_tasks = 5 has no effect, as simulator.source is "model"',
                'simulator.address = "http://a/b#c" has no effect, as simulator.source is "model"',
            ],
        ),
        (
            [
                "simulator.source=sfl",
                "simulator.writes=parameters",
                "simulator.search.smoothing=0.5",
                "simulator.search.elite_share=0.5",
            ],
            ['simulator.search.smoothing = 0.5 has no effect, as simulator.source is "sfl"'],
        ),
        (
            ["simulator.algorithm=grpo", "curriculum.rwr_lambda=5", "curriculum.rwr_within=context"],
            [
                'curriculum.rwr_lambda = 5.0 has no effect, as simulator.algorithm is "grpo"',
                'curriculum.rwr_within = "context" has no effect, as simulator.algorithm is "grpo"',
            ],
        ),
        (
            ["agent.guidance_coefficient=5"],
            ['agent.guidance_coefficient = 5.0 has no effect, as agent.guidance is "none"'],
        ),
        (["agent.guidance_coefficient=5", "agent.replayed=4"], []),
        (
            ["agent.algorithm=sft", "agent.guidance=all", "agent.guidance_coefficient=5"],
            ['agent.guidance_coefficient = 5.0 has no effect, as agent.algorithm is "sft"'],
        ),
        (
            ["curriculum.env_reward=learnability", "curriculum.beta=7", "curriculum.signal_attempts=4"],
            [
                'curriculum.beta = 7.0 has no effect, as curriculum.env_reward is "learnability"',
                'curriculum.signal_attempts = 4 has no effect, as curriculum.env_reward is "learnability"',
            ],
        ),
        (["curriculum.env_reward=mine:reward", "curriculum.beta=7", "curriculum.signal_attempts=4"], []),
        (
            [
                "curriculum.env_reward=learnability",
                "curriculum.beta=7",
                "curriculum.candidates=4",
                "curriculum.candidate_reward=alpha",
            ],
            [],
        ),
        (
            [
                "curriculum.env_reward=learnability",
                "curriculum.beta=7",
                "curriculum.seed_choice=expected_reward",
                "curriculum.seed_temperature=3",
            ],
            [],
        ),
        (
            ["curriculum.seed_temperature=3", "curriculum.progress_rounds=9"],
            [
                'curriculum.seed_temperature = 3.0 has no effect, as curriculum.seed_choice is "uniform"',
                'curriculum.progress_rounds = 9 has no effect, as curriculum.env_reward is "alpha"',
            ],
        ),
        (
            ["curriculum.review_share=0", "curriculum.mastered_success=0.5"],
            ["curriculum.mastered_success = 0.5 has no effect, as curriculum.review_share is 0.0"],
        ),
        (["variant=variation", "simulator.explore=0.5"], []),
        (
            ["variant=rl+simulator.explore=0.5", "simulator.source=variation"],
            ['simulator.explore = 0.5 has no effect, as simulator.source is "variation"'],
        ),
        (["preset=paper", "agent.algorithm=rft"], []),
    ],
)
def test_a_setting_without_effect_is_named(overrides: list[str], sentences: list[str]) -> None:
    assert list(idle_settings(load_config(overrides=overrides))) == sentences


@pytest.mark.long
@pytest.mark.parametrize("variant", ["", *VARIANTS])
def test_no_configuration_that_comes_along_sets_what_has_no_effect(variant: str) -> None:
    for path in bundled_configs().values():
        for preset in ("paper", "robust"):
            with contextlib.suppress(UsageError):  # not every variant is for every file
                config = load_config(
                    path, [f"preset={preset}", "simulator.file=specs.jsonl"], variant=variant
                )
                assert not [one for one in idle_settings(config) if not one.startswith("simulator.file ")]
