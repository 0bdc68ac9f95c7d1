"""Variants by name: each is a few settings of the one loop, laid over a configuration.

A variant lies above the file and beneath `--set`. It names every setting that makes it what it is, whatever
the file says of them, and no other: two variants of one configuration differ in what they name alone. How
long steps are (learning rates, batches, attempts) belongs to a model, so no variant names it. Names joined by
`+` are laid over each other, the last on top: `variation+rl`. A part may be a setting of its own:
`rl+agent.lr=1e-4`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from genenv.config.tables import apply_override, merged
from genenv.curriculum.presets import METHOD, ROBUST
from genenv.errors import registered
from genenv.types import Json, JsonObject

_UNTRAINED: JsonObject = {"train": False, "per_seed": 0}
_MODEL: JsonObject = {"source": "model", **_UNTRAINED}
_UNIFORM: JsonObject = {"seed_choice": "uniform", "seed_trim": 0.0, "agent_band": False}
_AIMING: JsonObject = {**_UNIFORM, "band_filter": True, "k_min": 0.1}
_TRAINED: JsonObject = {"source": "model", "train": True, "per_seed": 0, "algorithm": "rwr"}
_FIXED: JsonObject = {
    **_UNIFORM,
    "base_share": 1 / 6,
    "review_share": 0.0,
    "replay_share": 0.0,
    "novelty_threshold": 0.0,
    "full_novelty": 0.0,
}
"""One seed beside five of its variations, which come again and again."""
_PARAMETERS: JsonObject = {"writes": "parameters"}
_FORETOLD: JsonObject = {
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
"""Of four tasks one is attempted, drawn at random; the simulator is paid 4 p (1 - p) for all four, as if each
foretold rate had been found in sixteen attempts."""
_ATTEMPTS_ONLY: JsonObject = {"guidance": "none", "replayed": 0}


@dataclass(frozen=True, slots=True)
class Variant:
    """Settings, and what they make of a run."""

    about: str
    """One line."""
    settings: JsonObject


VARIANTS: Mapping[str, Variant] = {
    "base": Variant(
        "base tasks only, as many as the others play",
        {"simulator": {"source": "none", **_UNTRAINED}, "curriculum": _UNIFORM},
    ),
    "random": Variant(
        "GenEnv-Random: a model that is never updated varies seeds drawn uniformly",
        {"simulator": _MODEL, "curriculum": _UNIFORM},
    ),
    "static": Variant(
        "GenEnv-Static: five specs a seed, written once by an untrained model",
        {"simulator": {**_MODEL, "per_seed": 5}, "curriculum": {**_FIXED, "gate": "executes"}},
    ),
    "offline": Variant(
        "Gemini-Offline: five specs a seed, written once by the model at simulator.address, and checked",
        {
            "simulator": {"source": "endpoint", **_UNTRAINED, "per_seed": 5},
            "curriculum": {**_FIXED, "gate": "full"},
        },
    ),
    "genenv": Variant(
        "the published method (preset paper, but for its steps): reward-weighted regression",
        merged(
            {"simulator": _TRAINED, "curriculum": {**_AIMING, "env_reward": "alpha"}},
            METHOD,
        ),
    ),
    "robust": Variant(
        "the same with its corrections (preset robust)",
        merged(
            {"simulator": _TRAINED, "curriculum": {**_AIMING, "env_reward": "alpha"}},
            ROBUST,
        ),
    ),
    "shuffled": Variant(
        "control: as robust, but each task earns the reward of another",
        merged(
            {"simulator": _TRAINED, "curriculum": {**_AIMING, "env_reward": "shuffled"}},
            ROBUST,
        ),
    ),
    "aim": Variant(
        "a simulator that sets parameters, a quarter of them at random, paid for foretold rates too: the one "
        "that learned to aim in our laboratories",
        {
            "simulator": {**_TRAINED, **_PARAMETERS, "algorithm": "grpo", "explore": 0.25},
            "curriculum": {**_UNIFORM, **_FORETOLD},
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
        "as random, and the agent learns from those new tasks alone that lie in the band",
        {"simulator": _MODEL, "curriculum": {**_UNIFORM, "agent_band": True}},
    ),
    "controller": Variant(
        "as random, but seeds of a difficulty that is steered until alpha of the tasks are solved",
        {"simulator": _MODEL, "curriculum": {**_UNIFORM, "seed_choice": "controller"}},
    ),
    "bandit": Variant(
        "variations of seeds that a bandit over their skills and difficulty chooses; no model writes",
        {
            "simulator": {"source": "variation", **_UNTRAINED},
            "curriculum": {**_UNIFORM, "seed_choice": "bandit", "env_reward": "learnability"},
        },
    ),
    "frozen": Variant(
        "joined to another, its control: the same settings, but the simulator is never updated",
        {"simulator": {"train": False}},
    ),
    "probe": Variant(
        "joined to another: of eight candidates that one is attempted whose foretold rate is worth most",
        {
            "curriculum": {
                "candidates": 8,
                "candidate_choice": "foretold",
                "foretold_by": "likelihoods",
                "candidate_reward": "learnability",
            }
        },
    ),
    "history": Variant(
        "joined to another: as probe, but attempts at tasks of the same skills foretell; nothing is read",
        {
            "curriculum": {
                "candidates": 8,
                "candidate_choice": "foretold",
                "foretold_by": "attempts",
                "candidate_reward": "learnability",
            }
        },
    ),
    "refill": Variant(
        "joined to another: for each task whose attempts all earned the same another one is attempted",
        {"curriculum": {"candidates": 8, "candidate_choice": "attempted"}},
    ),
    "parameters": Variant(
        "joined to another: of a task its parameters alone are written, and the environment draws the rest",
        {"simulator": _PARAMETERS},
    ),
    "sft": Variant(
        "the agent imitates the solutions of the tasks it attempts; attempts teach nothing",
        {"agent": {"algorithm": "sft", "guidance": "all", "replayed": 0}},
    ),
    "rft": Variant("the agent imitates its own successes", {"agent": {"algorithm": "rft", **_ATTEMPTS_ONLY}}),
    "rl": Variant(
        "the agent learns by GRPO from its attempts alone",
        {"agent": {"algorithm": "grpo", **_ATTEMPTS_ONLY}},
    ),
    "both": Variant(
        "the agent learns from its attempts by GRPO, and imitates the solutions of their tasks",
        {"agent": {"algorithm": "grpo", "guidance": "all", "replayed": 0}},
    ),
}
"""By name. The last four say what the agent learns from; the others where tasks come from, and what the
simulator learns."""


def with_variant(document: JsonObject, name: str) -> dict[str, Json]:
    """A configuration's tables with a variant laid over them.

    Args:
        document: as read from a file.
        name: one of `VARIANTS`, or several joined by `+`; `key=value` stands for that setting.

    Raises:
        UsageError: there is no such variant; names the one that is spelt most alike.
    """
    parts = [part if "=" in part else registered("variant", part, VARIANTS) for part in name.split("+")]
    found, name = dict[str, Json](document), "+".join(parts)
    for part in parts:
        found = dict(merged(found, _settings(part)))
    return {**found, "variant": name}


def _settings(part: str) -> JsonObject:
    if "=" in part:
        said: dict[str, Json] = {}
        apply_override(said, part)
        return said
    return VARIANTS[part].settings
