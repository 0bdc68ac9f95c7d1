# pyright: standard
"""The model `tiny`: a transformer of two layers with random weights and a token for every character.

It knows nothing. What a run on it learns, the run has taught it, within a minute on one core.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from genenv.backends.local.made_once import made_once

_VERSION = 1
"""Of what is written: a change of shape, tokens or seed is another one."""
_SEED = 1
_USER, _ASSISTANT, _END = "<u>", "<a>", "<e>"
_TEMPLATE = (
    "{% for m in messages %}{{ '<a>' if m.role == 'assistant' else '<u>' }}{{ m.content }}<e>{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)
_SHAPE = {
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
    """The folder of the model, made where it is not there yet.

    Raises:
        UsageError: the cache folder cannot be written.
    """

    def write(folder: Path) -> None:
        tokenizer = _tokenizer()
        _causal(tokenizer).save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return made_once(f"tiny-{_VERSION}", write, failed="the tiny model could not be written")


def _tokenizer() -> Any:  # noqa: ANN401
    """A token for every byte, so for every ASCII character, and three for the turns."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=_END, pad_token=_END, extra_special_tokens=[_USER, _ASSISTANT]
    )
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def _causal(tokenizer: Any) -> Any:  # noqa: ANN401
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, bos_token_id=None, **_SHAPE
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
