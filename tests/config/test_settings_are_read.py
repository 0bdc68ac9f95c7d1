"""A setting nobody reads is a false claim."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from genenv.config.idle import idle_settings
from genenv.config.run import all_settings, load_config
from genenv.environments import environment_names
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
    ],
)
def test_a_setting_without_effect_is_named(overrides: list[str], sentences: list[str]) -> None:
    assert list(idle_settings(load_config(overrides=overrides))) == sentences
