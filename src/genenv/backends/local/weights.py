# pyright: standard
"""Reading weights so that every number is the file's own: what a file lacks would be drawn at random."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

_SHOWN = 2
"""Names given of those that are wrong."""
_SOURCE = logging.getLogger("transformers.modeling_utils")


def read_causal_lm(source: str, made: Any, *, dtype: torch.dtype) -> Any:  # noqa: ANN401
    """The weights in a folder or of a hub name, all of them read and none but them.

    Args:
        source: the folder or the name.
        made: the class of transformers to read them into.
        dtype: the number format in memory.

    Raises:
        ValueError: weights are missing, of another shape, left over, or not finite; names some.
        OSError: and what else transformers raises for files that it cannot read.
    """
    with _without_report():
        loaded: Any = made.from_pretrained(
            source,
            dtype=dtype,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are refused here, by name
            output_loading_info=True,
        )
    model, found = loaded
    check(model, found)
    return model


def check(model: Any, found: Mapping[str, Iterable[Any]]) -> None:  # noqa: ANN401
    """Hold a loaded model to what its file had.

    Args:
        model: as loaded.
        found: transformers' account of it. What an architecture ties, makes itself or says that it ignores is
            in none of its lists.

    Raises:
        ValueError: the two do not fit; names some of the weights.
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
    """Names of the tensors that hold NaN or an infinity."""
    return [name for name, tensor in tensors if not _is_finite(tensor)]


def _is_finite(tensor: Tensor) -> bool:
    if not tensor.numel() or not tensor.is_floating_point():
        return True
    low, high = tensor.detach().aminmax()  # NaN passes on to both
    return math.isfinite(low.item()) and math.isfinite(high.item())


def _named(names: Iterable[str]) -> str:
    """How many, and some of them: `3 weights (a, b, ...) are`."""
    some = sorted(names)
    shown = ", ".join(some[:_SHOWN]) + (", ..." if len(some) > _SHOWN else "")
    return f"{len(some)} weights ({shown}) are" if len(some) > 1 else f"the weight {shown} is"


@contextlib.contextmanager
def _without_report() -> Iterator[None]:
    """Keep the table from the terminal in which transformers says what `check` says in a sentence."""

    def other(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    _SOURCE.addFilter(other)
    try:
        yield
    finally:
        _SOURCE.removeFilter(other)


def outside(tokenizer: Any, rows: int) -> list[str]:  # noqa: ANN401
    """Tokens that a tokenizer can give and an embedding of so many rows does not have.

    Left out are special tokens that stand in no conversation, such as those of images, which text models keep
    no row for: all but the first and the last of a text, and those in the chat template.
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
