# pyright: standard
"""A trained agent as a folder that transformers, vLLM and PEFT load."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import transformers
from transformers.utils.hub import cached_file

from genenv.backends.local import hub, loading
from genenv.backends.local.export.agent import TrainedAgent
from genenv.backends.local.player_weights import ADAPTER
from genenv.chat.template import with_variables
from genenv.errors import UsageError

log = logging.getLogger(__name__)

ADAPTER_SETTINGS = "adapter_config.json"
_PROCESSORS = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
_IF_THERE = {
    f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "connection_errors", "gated_repo")
}


def save_model(agent: TrainedAgent, folder: Path) -> None:
    """Write a merged agent: weights, configuration, tokenizer with its chat template, when to stop."""
    agent.causal.generation_config = _generation(agent)
    agent.causal.save_pretrained(folder)
    _add_what_older_readers_look_for(folder / "config.json")
    save_tokenizer(agent, folder)
    if loading.other_inputs(agent.causal):
        _copy_processors(agent.base, folder)


def _copy_processors(base: str, folder: Path) -> None:
    """Bring along how images become the model's input, as the base has it."""
    try:
        place = hub.check(loading.resolve(base))
    except UsageError as error:
        log.warning("the settings of image processors are not in %s: %s", folder, error)
        return
    for name in _PROCESSORS:
        found = cached_file(place, name, **_IF_THERE)
        if found is not None:
            shutil.copyfile(found, folder / name)


def save_adapter(agent: TrainedAgent, folder: Path, base: str) -> None:
    """Write the adapter alone, as PEFT has it.

    Args:
        agent: the agent, not merged.
        folder: where to.
        base: the name or the folder under which others load the base.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(agent.folder / ADAPTER, folder / ADAPTER)
    settings = json.loads((agent.folder / ADAPTER_SETTINGS).read_text(encoding="utf-8"))
    settings |= {"base_model_name_or_path": base, "inference_mode": True}
    text = json.dumps(settings, indent=2, sort_keys=True)
    (folder / ADAPTER_SETTINGS).write_text(text + "\n", encoding="utf-8")
    save_tokenizer(agent, folder)


def save_tokenizer(agent: TrainedAgent, folder: Path) -> None:
    """Write the tokenizer; its chat template has the run's variables for its own."""
    tokenizer = agent.tokenizer
    kept = tokenizer.chat_template
    try:
        tokenizer.chat_template = with_variables(kept, agent.config.chat_template_kwargs)
        tokenizer.save_pretrained(folder)
    finally:
        tokenizer.chat_template = kept
    _name_the_class(folder / "tokenizer_config.json")


def _generation(agent: TrainedAgent) -> transformers.GenerationConfig:
    """Greedy, as `genenv eval` asks, until the turn ends.

    How the base's makers would have it sampled (a penalty for repeating, for one) is not what was trained.
    """
    own, tokenizer = agent.causal.generation_config, agent.tokenizer
    before = own.eos_token_id if own is not None else None
    ends = [agent.chat.end_id, tokenizer.eos_token_id, *(before if isinstance(before, list) else [before])]
    return transformers.GenerationConfig(
        eos_token_id=list(dict.fromkeys(end for end in ends if end is not None)),
        pad_token_id=agent.chat.end_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        do_sample=False,
    )


def _add_what_older_readers_look_for(path: Path) -> None:
    """Also say how positions are rotated as transformers said it before version 5.

    An older reader finds no `rope_theta`, and takes its own without a word.
    """
    config = json.loads(path.read_text(encoding="utf-8"))
    for text in (config, config.get("text_config") or {}):
        rope = text.get("rope_parameters")
        if isinstance(rope, dict) and "rope_theta" in rope:
            scaled = {name: value for name, value in rope.items() if name != "rope_theta"}
            text["rope_theta"] = rope["rope_theta"]
            text["rope_scaling"] = None if rope.get("rope_type", "default") == "default" else scaled
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _name_the_class(path: Path) -> None:
    """Name the tokenizer's class as all versions of transformers know it."""
    settings = json.loads(path.read_text(encoding="utf-8"))
    if settings.get("tokenizer_class") == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    for name in ("is_local", "local_files_only"):
        settings.pop(name, None)
    text = json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
