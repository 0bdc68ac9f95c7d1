"""Write `train.toml`: default settings for a training run on a new bundle."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from genenv.tools.bundle import Bundle, as_typed
from genenv.tools.calls import format_calls
from genenv.tools.settings import ToolsConfig
from genenv.tools.worlds.base import Call, Tool
from genenv.types import Task
from genenv.untrusted.documents import read_toml

TRAINING = "train.toml"
USUAL_CALLS = ToolsConfig().most_calls
_TOKENS = 88
"""Minimum number of tokens for a reply with the usual number of calls."""
_MOST_TOKENS = 512
CONTEXT_TOKENS = 2048
"""Context window of the policy in `train.toml`."""
_INSTRUCTIONS = 160
"""Tokens of a prompt besides its request and its tools."""
_PIECE = re.compile(r"[A-Za-z]{1,4}|[^A-Za-z\s]")
"""Text that takes at most one token, or a token a byte, even with a small vocabulary."""

_TEMPLATE = """\
# A run on these tools: genenv train {file} --out runs/{run}
# For a model of some size: another policy.model, agent.lr = 2e-5 or less, environment.descriptions = true;
# and environment.style = "native" where its chat template offers tools, which is how agents are deployed.

[run]
name = {quoted}
rounds = 8
eval_every = 4
eval_tasks = 60

[environment]
name = {name}
mode = "auto"  # all tasks, in one reply or several turns; single: only those of one reply
style = "python"  # calls as text: the template of smollm2-135m has no form for them; native: the model's own
descriptions = false{most_calls}

[curriculum]
base_share = 0.25
band_filter = false
candidates = 16  # drawn for each task that is rolled out; the ones predicted nearest to the target are taken
foretold_by = "attempts"  # predicted from earlier rollouts of tasks of the same kind

[simulator]
source = "variation"  # a simulator that learns: --variant aim, with four contexts and four variations
writes = "parameters"
contexts = 16
variations = 1
max_new_tokens = 64  # this and what follows is of a simulator that learns
lr = 7e-4
batch = 16
kl_coefficient = 0.03

[simulator.warmup]
steps = 24
batch = 16
lr = 2e-3
lr_decay = 0.5

[agent]
rollouts = 8
max_new_tokens = {tokens}
temperature = 0.7
lr = 3e-4  # 6e-4 fell apart late in two runs of six (docs/results/own-tools-training.md)
kl_coefficient = 0.0
updates_per_epoch = 4
guidance = "none"

[agent.warmup]
steps = 20
batch = 8
lr = 2e-3
lr_decay = 0.5
target_low = 0.3
target_high = 0.5
check_every = 10
check_tasks = 24

[policy]
model = "smollm2-135m"
tokens_per_microbatch = 1024
context_tokens = {context}
"""


def training_toml(bundle: Bundle, folder: Path, *, most_calls: int = USUAL_CALLS) -> str:
    """Return the text of `train.toml`.

    The run trains on all tasks of the bundle. Tasks are drawn uniformly, and a bandit over their kinds
    chooses among them. If tasks at the target success rate are rare, the bandit did at least as well as a
    simulator that learns, and costs no tokens (docs/results/bandit.md).

    Args:
        bundle: the bundle with its tasks.
        folder: the final folder of the bundle, as the user typed it.
        most_calls: maximum number of calls in a task's solution.
    """
    name = json.dumps(as_typed(folder), ensure_ascii=False)
    return _TEMPLATE.format(
        file=folder / TRAINING,
        run=bundle.name,
        quoted=json.dumps(bundle.name),
        name=name,
        most_calls="" if most_calls == USUAL_CALLS else f"\nmost_calls = {most_calls}",
        tokens=tokens_needed(bundle, most_calls=most_calls),
        context=CONTEXT_TOKENS,
    )


def window(folder: Path) -> int:
    """Return the context window of the policy in a bundle's `train.toml`; without one, the default."""
    file = folder / TRAINING
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    policy = read_toml(text, str(file)).get("policy")
    told = policy.get("context_tokens") if isinstance(policy, Mapping) else None
    return told if isinstance(told, int) else CONTEXT_TOKENS


def is_too_long(task: Task, tools: Mapping[str, Tool], context_tokens: int) -> bool:
    """Whether a task's prompt, as `train.toml` has it, and a reply may not fit into a context window."""
    shown = cast("Sequence[str]", task.payload["tools"])
    texts = (task.messages[-1].content, *(tools[name].heading for name in shown))
    return sum(map(_tokens_of, texts)) + _INSTRUCTIONS + _MOST_TOKENS > context_tokens


def _tokens_of(text: str) -> int:
    """Return an upper bound of the tokens of a text.

    The estimate holds for the embedded model: letters count in fours, all other characters singly, those
    outside of ASCII by their bytes. Ids take many tokens, a UUID 30.
    """
    return sum(1 if piece.isascii() else len(piece.encode()) for piece in _PIECE.findall(text))


def tokens_needed(bundle: Bundle, *, most_calls: int = USUAL_CALLS) -> int:
    """Return the number of new tokens that a reply is allowed, enough for the solution of every task.

    Args:
        bundle: the bundle with its tasks.
        most_calls: maximum number of calls in a task's solution.
    """
    longest = 0
    for program in bundle.base.values():
        calls = [Call(tool=step.tool, args=step.args) for step in program.calls]
        replies = [[call] for call in calls] if program.chained or program.answer else [calls]
        longest = max([longest, *(_tokens_of(format_calls(one, "python")) for one in replies)])
    return max(_TOKENS, _TOKENS * most_calls // USUAL_CALLS, min(_MOST_TOKENS, (longest + 1 + 7) // 8 * 8))
