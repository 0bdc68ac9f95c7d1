"""Variants by name: each is a few settings of the one training loop that override a configuration.

A variant overrides the file, and `--set` overrides the variant. It sets only the settings that define it, so
two variants of one configuration differ only in those. Learning rates, batches and rollouts depend on the
model, so no variant sets them. Names can be joined by `+`, and the last one wins: `variation+rl`. A part may
also be a single setting: `rl+agent.lr=1e-4`. The shares of `matched` and `paper` hold for all parts after
them, so `paper`, `paper+random` and `paper+static` have rounds of one size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from genenv.config.tables import apply_override, merged
from genenv.curriculum.settings import METHOD, ROBUST
from genenv.errors import registered
from genenv.types import Json, JsonObject

_UNTRAINED: JsonObject = {"train": False, "per_seed": 0}
_MODEL: JsonObject = {"source": "model", **_UNTRAINED}
_UNIFORM: JsonObject = {"seed_choice": "uniform", "seed_trim": 0.0, "agent_band": False}
_MATCHING: JsonObject = {**_UNIFORM, "band_filter": True, "k_min": 0.1}
_TRAINED: JsonObject = {"source": "model", "train": True, "per_seed": 0, "algorithm": "rwr"}
_ALPHA: JsonObject = {"simulator": _TRAINED, "curriculum": {**_MATCHING, "env_reward": "alpha"}}
_FIXED: JsonObject = {
    **_UNIFORM,
    "base_share": 1 / 6,
    "review_share": 0.0,
    "replay_share": 0.0,
    "novelty_threshold": 0.0,
    "full_novelty": 0.0,
}
"""One base task per five variations, and the same tasks in every round."""
_PARAMETERS: JsonObject = {"writes": "parameters"}
_SEARCH: JsonObject = {
    **_PARAMETERS,
    "train": True,
    "per_seed": 0,
    "algorithm": "rwr",
    "search": {"train_on_new": True},
}
_PREDICTED: JsonObject = {
    "band_filter": False,
    "p_hat_scope": "task",
    "env_reward": "learnability",
    "full_novelty": 0.0,
    "candidates": 4,
    "candidate_choice": "foretold",
    "foretold_by": "likelihoods",
    "candidate_reward": "constant",
    "foretold_attempts": 16.0,
}
"""One of four candidates is rolled out, drawn at random. The simulator is rewarded 4 p (1 - p) for all four,
as if each predicted success rate came from sixteen rollouts."""
_CHOSEN: JsonObject = {
    "candidates": 8,
    "candidate_choice": "foretold",
    "foretold_by": "likelihoods",
    "candidate_reward": "learnability",
}
"""One of eight candidates is rolled out, by its predicted success rate."""
_PRINTED: JsonObject = {
    "env_reward": "alpha",
    "alpha": 0.5,
    "beta": 2.0,
    "rwr_lambda": 1.0,
    "rwr_within": "round",
    "standardise_rewards": False,
    "posterior": False,
    "p_hat_scope": "batch",
    "foretold_attempts": 0.0,
    "candidates": 1,
    "gate": "executes",
    "novelty_threshold": 0.0,
    "full_novelty": 0.0,
}
"""GenEnv (arXiv:2512.19682), section 2.3, without what only the authors' code has (`seed_trim`)."""
_MATCHED: JsonObject = {"curriculum": {"base_share": 1 / 6, "review_share": 0.0, "replay_share": 0.2}}
"""One share of base tasks (as in the paper's GenEnv-Static) and one of repeated tasks, so that rounds are
equally large."""
_RL_ONLY: JsonObject = {"guidance": "none", "replayed": 0}


@dataclass(frozen=True, slots=True)
class Variant:
    """A named set of settings that override a configuration."""

    about: str
    """One line about the variant."""
    settings: JsonObject
    kept: JsonObject = field(default_factory=dict[str, Json])
    """Settings that named variants joined after it do not change; single settings do."""


VARIANTS: Mapping[str, Variant] = {
    "base": Variant(
        "base tasks only, as many as in the other variants",
        {"simulator": {"source": "none", **_UNTRAINED}, "curriculum": _UNIFORM},
    ),
    "random": Variant(
        "GenEnv-Random: a frozen model varies seeds drawn uniformly",
        {"simulator": _MODEL, "curriculum": _UNIFORM},
    ),
    "static": Variant(
        "GenEnv-Static: five specs a seed, written once by an untrained model",
        {"simulator": {**_MODEL, "per_seed": 5}, "curriculum": {**_FIXED, "gate": "executes"}},
    ),
    "offline": Variant(
        "Gemini-Offline: the tasks of simulator.file, which any model wrote once (genenv generate), checked",
        {
            "simulator": {"source": "file", "writes": "spec", **_UNTRAINED},
            "curriculum": {**_FIXED, "gate": "full"},
        },
    ),
    "matched": Variant(
        "joined before others: all have one base share and rounds of one size",
        {},
        kept=_MATCHED,
    ),
    "paper": Variant(
        "the rule as printed (k_min 0.1, lambda 1, D_env accumulates); before others: their matched controls",
        {
            "simulator": {**_TRAINED, "explore": 0.0, "accumulate": True},
            "curriculum": {**_MATCHING, **_PRINTED},
        },
        kept=_MATCHED,
    ),
    "genenv": Variant(
        "the published method (preset paper, but for its steps): reward-weighted regression",
        merged(_ALPHA, METHOD),
    ),
    "robust": Variant(
        "the same with changes of genenv (preset robust)",
        merged(_ALPHA, ROBUST),
    ),
    "shuffled": Variant(
        "shuffled-reward control: as robust, but each task earns the reward of another",
        merged(merged(_ALPHA, ROBUST), {"curriculum": {"shuffle_rewards": True}}),
    ),
    "aim": Variant(
        "a simulator that sets parameters, a quarter of them at random, rewarded for predicted success rates "
        "too: it learned to match the target difficulty in simulated experiments",
        {
            "simulator": {**_TRAINED, **_PARAMETERS, "algorithm": "grpo", "explore": 0.25},
            "curriculum": {**_UNIFORM, **_PREDICTED},
        },
    ),
    "variation": Variant(
        "the environment's own random variations of uniform seeds; no model writes",
        {"simulator": {"source": "variation", **_UNTRAINED}, "curriculum": _UNIFORM},
    ),
    "grammar": Variant(
        "specs drawn uniformly from the grammar of uniform seeds; no model writes",
        {"simulator": {"source": "grammar", **_UNTRAINED}, "curriculum": _UNIFORM},
    ),
    "band": Variant(
        "as random, but of new tasks the agent trains only on those inside the band",
        {"simulator": _MODEL, "curriculum": {**_UNIFORM, "agent_band": True}},
    ),
    "controller": Variant(
        "as random, but a controller sets the difficulty of seeds so that alpha of the tasks are solved",
        {"simulator": _MODEL, "curriculum": {**_UNIFORM, "seed_choice": "controller"}},
    ),
    "bandit": Variant(
        "variations of seeds that a bandit over skills and difficulty selects; no model writes",
        {
            "simulator": {"source": "variation", **_UNTRAINED},
            "curriculum": {**_UNIFORM, "seed_choice": "bandit", "env_reward": "learnability"},
        },
    ),
    "table": Variant(
        "softmaxes over parameters, trained by their rewards: a simulator without a model",
        {"simulator": {**_SEARCH, "source": "table"}, "curriculum": _UNIFORM},
    ),
    "plr": Variant(
        "Prioritized Level Replay: uniformly drawn parameters, and replays of those with mixed outcomes",
        {"simulator": {**_SEARCH, "source": "plr"}, "curriculum": _UNIFORM},
    ),
    "robust-plr": Variant(
        "robust PLR: the agent trains on replayed parameters alone; rollouts of others only score them",
        {
            "simulator": {**_SEARCH, "source": "plr", "search": {"train_on_new": False}},
            "curriculum": _UNIFORM,
        },
    ),
    "accel": Variant(
        "ACCEL: PLR, and edits of replayed parameters; the agent trains on all of them",
        {"simulator": {**_SEARCH, "source": "accel"}, "curriculum": _UNIFORM},
    ),
    "robust-accel": Variant(
        "ACCEL as published: the agent trains on replayed parameters alone",
        {
            "simulator": {**_SEARCH, "source": "accel", "search": {"train_on_new": False}},
            "curriculum": _UNIFORM,
        },
    ),
    "sfl": Variant(
        "Sampling for Learnability: parameters with the highest p (1 - p) of many that are only scored",
        {
            "simulator": {**_SEARCH, "source": "sfl"},
            "curriculum": {**_UNIFORM, "env_reward": "learnability", "p_hat_scope": "task"},
        },
    ),
    "paired": Variant(
        "PAIRED: a table is paid the success of an antagonist minus that of the protagonist",
        {
            "simulator": {**_SEARCH, "source": "table"},
            "curriculum": {
                **_UNIFORM,
                "band_filter": False,
                "p_hat_scope": "task",
                "agents_reward": "regret",
                "regret_agents": ["antagonist", "protagonist"],
            },
            "agents": {"protagonist": {}, "antagonist": {}},
        },
    ),
    "frozen": Variant(
        "joined to another, its control: the same settings with a frozen simulator",
        {"simulator": {"train": False}},
    ),
    "probe": Variant(
        "joined to another: of eight candidates, roll out the one whose predicted success rate is worth most",
        {"curriculum": _CHOSEN},
    ),
    "progress": Variant(
        "joined to another: as probe, but the one whose predicted success rate has risen most in two rounds",
        {
            "curriculum": {
                **_CHOSEN,
                "candidate_reward": "progress",
                "candidate_temperature": 60.0,
                "progress_rounds": 2,
            }
        },
    ),
    "history": Variant(
        "joined to another: as probe, but predicted from rollouts of the same skills, without model calls",
        {"curriculum": {**_CHOSEN, "foretold_by": "attempts"}},
    ),
    "text": Variant(
        "joined to another: as probe, but predicted from rollouts of tasks with similar words",
        {"curriculum": {**_CHOSEN, "foretold_by": "text"}},
    ),
    "refill": Variant(
        "joined to another: for each task whose rollouts all earned the same, another one is rolled out",
        {"curriculum": {"candidates": 8, "candidate_choice": "attempted"}},
    ),
    "parameters": Variant(
        "joined to another: the simulator writes only parameters, and the environment draws the rest",
        {"simulator": _PARAMETERS},
    ),
    "sft": Variant(
        "the agent is fine-tuned on the solutions of its tasks (SFT), without RL",
        {"agent": {"algorithm": "sft", "guidance": "all", "replayed": 0}},
    ),
    "rft": Variant(
        "the agent is fine-tuned on its own successes", {"agent": {"algorithm": "rft", **_RL_ONLY}}
    ),
    "rl": Variant(
        "the agent learns by GRPO alone, without demonstrations",
        {"agent": {"algorithm": "grpo", **_RL_ONLY}},
    ),
    "both": Variant(
        "the agent learns by GRPO and from demonstrations of the same tasks",
        {"agent": {"algorithm": "grpo", "guidance": "all", "replayed": 0}},
    ),
}
"""All variants by name. The last four set how the agent is trained. The others set where tasks come from and
how the simulator is trained."""


def with_variant(document: JsonObject, name: str) -> dict[str, Json]:
    """Return the tables of a configuration with a variant applied.

    Args:
        document: tables as read from a file.
        name: one of `VARIANTS`, or several joined by `+`. A part `key=value` sets that setting.

    Raises:
        UsageError: there is no such variant. The message suggests the most similar name.
    """
    parts = [part if "=" in part else registered("variant", part, VARIANTS) for part in name.split("+")]
    found, name, kept = dict[str, Json](document), "+".join(parts), dict[str, Json]()
    for part in parts:
        found = merged(found, _settings(part))
        if "=" not in part:
            kept = merged(kept, VARIANTS[part].kept)
            found = merged(found, kept)
    return {**found, "variant": name}


def _settings(part: str) -> JsonObject:
    if "=" in part:
        setting: dict[str, Json] = {}
        apply_override(setting, part)
        return setting
    return VARIANTS[part].settings
