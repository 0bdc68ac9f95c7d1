# pyright: standard
"""Write a trained agent to a folder for transformers, vLLM and PEFT: as an adapter, or merged into its base.

Shapes: T = tokens of a text, V = vocabulary.
"""

from __future__ import annotations

import copy
import json
import logging
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import safetensors.torch
import torch
import transformers
from peft.tuners.lora import LoraLayer
from torch import Tensor
from transformers.utils.hub import cached_file

from genenv.backends.local import hardware, hub, loading
from genenv.backends.local.adapters import ADAPTER, check_adapter
from genenv.backends.local.optimizer import readable
from genenv.backends.settings import EMBEDDED, PolicyConfig
from genenv.chat.format import ChatFormat
from genenv.chat.template import with_variables
from genenv.errors import UsageError
from genenv.types import Message

log = logging.getLogger(__name__)

FORMATS = ("float32", "bfloat16", "float16")
"""Number formats in which weights can be exported."""
_CPU = torch.device("cpu")
_DEFAULT = "default"
"""PEFT's name for the adapter of a folder."""
_MOST_TOKENS = 256
"""Maximum tokens of each text in the comparison before and after the merge."""
_PART = 0.5
"""The comparison is skipped if the model in float32 takes more than this share of the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearness:
    """Comparison of a merged and rounded model with base plus adapter, both computed in float32."""

    texts: int
    places: int
    """Number of tokens in the texts."""
    same: int
    """Number of positions with the same most probable next token."""
    nats: float
    """Mean absolute difference of that token's log-probability. Nats."""


class TrainedAgent:
    """A trained agent in CPU memory, loaded for export."""

    def __init__(self, base: str, config: PolicyConfig, folder: Path) -> None:
        """Load the agent of a run's checkpoint.

        Args:
            base: name of the base model of the run.
            config: the run's settings of the policies.
            folder: of the agent in the checkpoint: an adapter, or a whole model with full tuning.

        Raises:
            UsageError: the base is not available or cannot be loaded.
            DataError: the adapter is damaged, or of another model.
        """
        transformers.utils.logging.disable_progress_bar()
        self.base, self.config, self.folder = base, config, folder
        self.is_whole = config.tuning == "full"
        self.source = str(folder) if self.is_whole else loading.resolve(base)
        """The source of the weights, to which the adapter is added if there is one."""
        self.tokenizer = loading.load_tokenizer(self.source)
        stop_ids = loading.stop_ids(self.source)
        self.chat = ChatFormat(self.tokenizer, config.chat_template_kwargs, stop_ids)
        self.causal = loading.load_causal_lm(self.source, dtype=self._run_dtype(), device=_CPU)
        loading.check_vocabulary(base, self.tokenizer, self.causal)
        self._peft = None if self.is_whole else self._with_adapter()

    def _run_dtype(self) -> torch.dtype:
        """Return the number format of the base in the run; float32 if it was automatic."""
        full = self.is_whole or self.config.dtype == "auto"
        return torch.float32 if full else getattr(torch, self.config.dtype)

    def _with_adapter(self) -> Any:  # noqa: ANN401
        with readable(self.folder), warnings.catch_warnings():
            saved = safetensors.torch.load_file(self.folder / ADAPTER)
            # PEFT uses names that transformers will rename.
            warnings.simplefilter("ignore", FutureWarning)
            made = peft.PeftModel.from_pretrained(self.causal, str(self.folder))
        check_adapter(saved, peft.get_peft_model_state_dict(made, save_embedding_layers=False), self.folder)
        return made.eval()

    def own_dtype(self) -> str:
        """Return the number format of the source files; if they do not state it, that of the loaded model."""
        found = transformers.AutoConfig.from_pretrained(hub.check(self.source), trust_remote_code=False).dtype
        name = str(found).removeprefix("torch.")
        return name if name in FORMATS else str(self.causal.dtype).removeprefix("torch.")

    def shared_base(self) -> tuple[str, bool]:
        """Return the base's public name or folder, and whether it has exactly the weights of the run."""
        if self.base == EMBEDDED:
            return hub.EMBEDDED_HUB, self.source == hub.EMBEDDED_HUB
        path = Path(self.source)
        return (str(path.resolve()) if path.is_dir() else self.base), True

    @property
    def context_tokens(self) -> int:
        """The maximum tokens of an episode in the run, limited by the model."""
        most = getattr(self.causal.config.get_text_config(), "max_position_embeddings", None)
        return min(self.config.context_tokens, most or self.config.context_tokens)

    @property
    def end(self) -> str:
        """The token that ends a turn."""
        return str(self.tokenizer.convert_ids_to_tokens(self.chat.end_id))

    def merge(self, dtype: str, texts: Sequence[Sequence[Message]] = ()) -> Nearness | None:
        """Merge the adapter into the base: W + (alpha / r) B A, summed in float32, then rounded.

        Args:
            dtype: `float32`, `bfloat16` or `float16`.
            texts: conversations on which to compare the model before and after.

        Returns:
            The comparison; None without texts, or if the memory is too small for float32.

        Raises:
            UsageError: weights exceed the range of the number format.
        """
        rounded: torch.dtype = getattr(torch, dtype)
        ids = [self.chat.render(text, first=True)[:_MOST_TOKENS] for text in texts]
        compared = bool(ids) and self._fits_in_float32()
        before_TV = self._read(ids) if compared else None
        if self._peft is not None:
            for layer in self._peft.modules():
                if isinstance(layer, LoraLayer):
                    _add_delta(layer, rounded)
            self.causal, self._peft = self._peft.unload(), None
        self._cast(rounded)
        if bad := loading.not_finite(self.causal.named_parameters()):
            raise UsageError(
                f"{bad[0]} has numbers that {dtype} cannot hold; choose --dtype bfloat16 or float32"
            )
        if before_TV is None:
            return None
        nearness = _nearness(len(ids), before_TV, self._read(ids))
        self._cast(rounded)
        return nearness

    def _fits_in_float32(self) -> bool:
        return _PART * hardware.memory_bytes(_CPU) > 4 * self.causal.num_parameters()

    def _cast(self, dtype: torch.dtype) -> None:
        """Convert the parameters to a number format; computed buffers such as rotations keep theirs."""
        for parameter in (self._peft or self.causal).parameters():
            parameter.data = parameter.data.to(dtype)

    @torch.no_grad()
    def _read(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """Return [T, V] log-probabilities of texts in float32; the parameters stay in float32."""
        self._cast(torch.float32)
        model = self._peft or self.causal
        rows = [model(input_ids=torch.tensor([text])).logits[0].float().log_softmax(-1) for text in ids]
        return torch.cat(rows)


def _add_delta(layer: Any, dtype: torch.dtype) -> None:  # noqa: ANN401
    """Add an adapter's product to the weight of its layer or experts."""
    weight = getattr(layer.get_base_layer(), getattr(layer, "parameter_name", "weight"))
    weight.data = (weight.data.float() + layer.get_delta_weight(_DEFAULT).float()).to(dtype)


def _nearness(texts: int, before_TV: Tensor, after_TV: Tensor) -> Nearness:
    likeliest_T1 = before_TV.argmax(-1, keepdim=True)
    differences_T1 = before_TV.gather(-1, likeliest_T1) - after_TV.gather(-1, likeliest_T1)
    return Nearness(
        texts=texts,
        places=len(likeliest_T1),
        same=int((after_TV.argmax(-1, keepdim=True) == likeliest_T1).sum()),
        nats=float(differences_T1.abs().mean()),
    )


ADAPTER_SETTINGS = "adapter_config.json"
_PROCESSORS = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
_IF_THERE = {
    f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "connection_errors", "gated_repo")
}


def save_model(agent: TrainedAgent, folder: Path) -> None:
    """Write a merged agent: weights, configuration, generation settings, tokenizer and chat template."""
    agent.causal.generation_config = _generation(agent)
    agent.causal.save_pretrained(folder)
    add_what_older_readers_look_for(folder / "config.json")
    save_tokenizer(agent, folder)
    if loading.other_inputs(agent.causal):
        _copy_processors(agent.base, folder)


def _copy_processors(base: str, folder: Path) -> None:
    """Copy the base's image processor settings, if it has any."""
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
    """Write the adapter without its base, in PEFT's format.

    Args:
        agent: the agent, not merged.
        folder: the folder to write to.
        base: name or folder of the base for those who load the adapter.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(agent.folder / ADAPTER, folder / ADAPTER)
    settings = json.loads((agent.folder / ADAPTER_SETTINGS).read_text(encoding="utf-8"))
    settings |= {"base_model_name_or_path": base, "inference_mode": True}
    text = json.dumps(settings, indent=2, sort_keys=True)
    (folder / ADAPTER_SETTINGS).write_text(text + "\n", encoding="utf-8")
    save_tokenizer(agent, folder)


def save_tokenizer(agent: TrainedAgent, folder: Path) -> None:
    """Write the tokenizer, with the run's template variables built into its chat template."""
    tokenizer = agent.tokenizer
    kept = tokenizer.chat_template
    try:
        tokenizer.chat_template = with_variables(kept, agent.config.chat_template_kwargs)
        tokenizer.save_pretrained(folder)
    finally:
        tokenizer.chat_template = kept
    _name_the_class(folder / "tokenizer_config.json")


def _generation(agent: TrainedAgent) -> transformers.GenerationConfig:
    """Return greedy generation settings that stop at the end of the turn, as in `genenv eval`.

    The base's own settings, for example a repetition penalty, do not match how the agent was trained.
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


_SLIDING = {
    "gemma3_text": "rope_local_base_freq",
    "gemma3n_text": "rope_local_base_freq",
    "olmo3": "rope_theta",
}
"""Types of models whose layers with a window have a rotary base of their own: its old name."""
_RENAMED = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
"""Old names of GPT-NeoX."""


def add_what_older_readers_look_for(path: Path) -> None:
    """Add the rotary settings in the form of transformers before version 5.

    Older versions find no `rope_theta` otherwise, and silently use their default. Names that do not say
    everything, or that the present version reads otherwise, are left out.
    """
    config = json.loads(path.read_text(encoding="utf-8"))
    wanted = copy.deepcopy(config)
    texts = [text for text in (wanted, wanted.get("text_config") or {}) if text.get("rope_parameters")]
    if not texts:
        return
    said = all(_add_old_names(text, text["rope_parameters"]) for text in texts)
    if said and _read_equally(config, wanted):
        path.write_text(json.dumps(wanted, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        return
    log.warning(
        "%s needs transformers 5 or newer: older versions have no names for its rotary positions", path
    )


def _read_equally(*configs: dict[str, Any]) -> bool:
    """Return whether transformers reads the same rotary settings from configurations."""
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            read = [transformers.AutoConfig.for_model(**copy.deepcopy(config)) for config in configs]
    except Exception:  # noqa: BLE001 - each kind of model has its own code
        return False
    ropes = [config.get_text_config().rope_parameters for config in read]
    return all(rope == ropes[0] for rope in ropes)


def _add_old_names(text: dict[str, Any], rope: dict[str, Any]) -> bool:
    """Add rotary settings under their old names; return whether these say everything."""
    kind = str(text.get("model_type"))
    whole = rope.get("full_attention", rope)
    if "rope_theta" not in whole:
        return False
    scaled = {name: value for name, value in whole.items() if name != "rope_theta"}
    text["rope_scaling"] = None if whole.get("rope_type", "default") == "default" else scaled
    for name in _RENAMED.keys() & whole.keys():
        text[name] = whole[name]
        if kind.startswith("gpt_neox"):
            text[_RENAMED[name]] = whole[name]
    if whole is rope:
        return True
    sliding, name = rope.get("sliding_attention") or {}, _SLIDING.get(kind)
    theta = sliding.get("rope_theta")
    if name is None or text.setdefault(name, theta) != theta:
        return False
    return sliding.get("rope_type", "default") == "default"


def _name_the_class(path: Path) -> None:
    """Name the tokenizer's class so that all versions of transformers know it."""
    settings = json.loads(path.read_text(encoding="utf-8"))
    if settings.get("tokenizer_class") == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    for name in ("is_local", "local_files_only"):
        settings.pop(name, None)
    text = json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
