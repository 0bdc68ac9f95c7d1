"""Two ways to start: as the paper was published, or with its weak points corrected.

What was published comes in two parts: the method, which the variant `genenv` is too, and how long its steps
are, which belongs to the models that were trained. A preset lies beneath the user's own settings: whatever a
file or `--set` says wins, so each correction can be switched on or off alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from genenv.errors import registered
from genenv.types import JsonObject

METHOD: Mapping[str, JsonObject] = {
    "curriculum": {
        "standardise_rewards": False,
        "posterior": False,
        "p_hat_scope": "batch",
        "gate": "executes",
        "novelty_threshold": 0.0,
        "full_novelty": 0.0,
        "base_share": 0.16,
        "review_share": 0.0,
        "replay_share": 0.2,
        "seed_trim": 0.1,
    },
    "simulator": {"warmup": {"kept_moments": "both"}},
    "agent": {
        "skip_zero_advantage": False,
        "entropy_coefficient": 0.001,
        "warmup": {"kept_moments": "both"},
    },
}
"""GenEnv (arXiv:2512.19682) as published; each line is a correction not made, or a term that `robust` drops.

alpha, k_min and lambda, and from the authors' configuration beta, the agent's KL term (0.001, k3 held to 10
nats), clip and temperature are the defaults of their settings. `seed_trim` is the `filtering_k` of the
authors' code, the only alignment in it; the entropy bonus is in their configuration. D_train is a mixture of
base data, earlier valid traces and new ones: one base task beside four variations, and a fifth of a round for
tasks with a valid trace, a number that the paper does not print. They are attempted anew: GRPO learns from
what the present policy samples. The simulator is not trained on its earlier generations. Held-out tasks are
kept out of training under every preset. The paper has no warm-up; after one, AdamW goes on as it is.
"""

STEPS: Mapping[str, JsonObject] = {
    "simulator": {"variations": 4, "lr": 5e-7, "batch": 64},
    "agent": {"lr": 1e-6, "rollouts": 8, "groups_per_step": 16},
}
"""How long its steps are: for all weights of 7B models, so a part of the preset `paper` and of no variant.

The paper's learning rates and the simulator's batch of 64; from the authors' configuration the 8 attempts and
the mini-batches of 16 prompts. Three numbers have no place here. p_hat is counted in those 8 attempts, not
in 4 of its own. The agent's batch of 64 prompts is a round: `simulator.contexts` times `variations`, and what
comes back. And 9,000 tokens are `policy.context_tokens`, which a model and its memory decide.
"""

ROBUST: Mapping[str, JsonObject] = {
    "curriculum": {
        "standardise_rewards": True,
        "posterior": True,
        "p_hat_scope": "batch",
        "gate": "full",
        "novelty_threshold": 0.1,
        "full_novelty": 0.5,
        "base_share": 0.25,
        "review_share": 0.05,
        "replay_share": 0.0,
        "seed_trim": 0.0,
    },
    "simulator": {"warmup": {"kept_moments": "none"}},
    "agent": {
        "skip_zero_advantage": True,
        "entropy_coefficient": 0.0,
        "warmup": {"kept_moments": "none"},
    },
}
"""1. Weights that differ. 2. A posterior instead of a lattice. 3. The batch as the unit of p_hat (as in the
paper). 4. A gate of code. 5. Near-copies of the archive refused, near ones rewarded less. 6. Base tasks and
reviews in each round. 7. No compute for groups that agree. And after the warm-up rewards move the players,
not the momentum of imitation."""

PRESETS: Mapping[str, Mapping[str, JsonObject]] = {
    "paper": {section: {**settings, **STEPS.get(section, {})} for section, settings in METHOD.items()},
    "robust": ROBUST,
}
"""`paper` names its learning rates, batches and attempts; `robust` leaves them to their defaults."""


def preset(name: str) -> Mapping[str, JsonObject]:
    """The settings of a preset, by section.

    Raises:
        UsageError: no such preset.
    """
    return PRESETS[registered("preset", name, PRESETS)]
