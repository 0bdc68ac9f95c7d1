"""Two ways to start: as the paper was published, or with its weak points corrected.

A preset lies beneath the user's own settings: whatever a file or `--set` says wins, so each correction can be
switched on or off alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from genenv.errors import unknown_name
from genenv.types import JsonObject

PAPER: Mapping[str, JsonObject] = {
    "curriculum": {
        "standardise_rewards": False,
        "posterior": False,
        "p_hat_scope": "batch",
        "gate": "executes",
        "novelty_threshold": 0.0,
        "full_novelty": 0.0,
        "base_share": 0.2,
        "review_share": 0.0,
        "seed_trim": 0.1,
    },
    "simulator": {"warmup": {"kept_moments": "both"}},
    "agent": {"skip_zero_advantage": False, "groups_per_step": 16, "warmup": {"kept_moments": "both"}},
}
"""GenEnv (arXiv:2512.19682) as published; each line is one correction not made.

alpha, beta (the authors' configuration), k_min and lambda are the defaults of their settings. Base data come
in each round, one beside four variations; `seed_trim` is the `filtering_k` of the authors' code, the only
alignment in it. Two things differ from the paper's text. Its pools of earlier traces and generations are kept
here, but neither player is trained on them again: both learn on-policy. And held-out tasks are kept out of
training under every preset. The paper has no warm-up; after one, AdamW goes on as it is.
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
        "seed_trim": 0.0,
    },
    "simulator": {"warmup": {"kept_moments": "none"}},
    "agent": {"skip_zero_advantage": True, "groups_per_step": 0, "warmup": {"kept_moments": "none"}},
}
"""1. Weights that differ. 2. A posterior instead of a lattice. 3. The batch as the unit of p_hat (as in the
paper). 4. A gate of code. 5. Near-copies of the archive refused, near ones rewarded less. 6. Base tasks and
reviews in each round. 7. No compute for groups that agree. And after the warm-up rewards move the players,
not the momentum of imitation."""

PRESETS: Mapping[str, Mapping[str, JsonObject]] = {"paper": PAPER, "robust": ROBUST}


def preset(name: str) -> Mapping[str, JsonObject]:
    """The settings of a preset, by section.

    Raises:
        UsageError: no such preset.
    """
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return PRESETS[name]
