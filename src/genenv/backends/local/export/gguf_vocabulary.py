# pyright: standard
"""A tokenizer as GGUF has it: tokens with their types, merges, and by which rule texts are cut beforehand.

llama.cpp has that rule by name in its own code, so only tokenizers with a rule that it knows can be written.
The rule is read from the tokenizer itself: what a model is called says nothing, for the tokenizer with which
the agent was trained may differ from the one of its makers.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf

from genenv.errors import UsageError

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = rf"{_WORDS}|\p{{N}}|{_REST}"
_LLAMA3 = rf"{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_RULES: Mapping[tuple[tuple[str, ...], bool], str] = {
    (("bytes by words",), False): "gpt-2",
    (("digits", "bytes by words"), False): "smollm",
    ((_QWEN2, "bytes"), False): "qwen2",
    ((_LLAMA3, "bytes"), True): "llama-bpe",
    ((_LLAMA3, "bytes"), False): "smaug-bpe",
}
"""How texts are cut, and whether a whole word that is a token is taken without merges: llama.cpp's name."""


class Vocabulary:
    """A tokenizer of byte-level BPE, ready to be written."""

    def __init__(self, tokenizer: Any, base: str, rows: int) -> None:  # noqa: ANN401
        """Read a tokenizer.

        Args:
            tokenizer: of transformers.
            base: the name of its model.
            rows: how many tokens the model has.

        Raises:
            UsageError: llama.cpp has no such tokenizer.
        """
        self._tokenizer, self._rows = tokenizer, rows
        backend = getattr(tokenizer, "backend_tokenizer", None)
        made = json.loads(backend.to_str()) if backend is not None else {"model": {}}
        self._merges: Sequence[Any] = made["model"].get("merges", ())
        why, rule = _oddity(made), ""
        if not why and not self._merges:
            why = "it has no merges"
        if not why:
            rule = _RULES.get((_cuts(made), bool(made["model"].get("ignore_merges"))), "")
            why = "" if rule else "it cuts texts by a rule of its own"
        if why:
            raise UsageError(
                f"the tokenizer of {base} cannot be written to GGUF: {why}; "
                "leave --format out for a folder of safetensors"
            )
        self.rule = rule

    @property
    def begin(self) -> str:
        """The token that is put before every text by itself; empty where none is."""
        return str(self._tokenizer.bos_token) if self._adds(0, "bos") else ""

    def add_to(self, writer: gguf.GGUFWriter, saved: Path, end_id: int) -> None:
        """Write it.

        Args:
            writer: of the file.
            saved: a folder in which the tokenizer was saved.
            end_id: the token that ends a turn.
        """
        tokens, types = self._tokens()
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.rule)
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        logging.getLogger("gguf.vocab").setLevel(logging.ERROR)  # a token without a row is left out, rightly
        special = gguf.SpecialVocab(saved, load_merges=True, n_vocab=self._rows)
        special.special_token_ids |= {"eot": end_id}
        special.add_special_token = {"bos": self._adds(0, "bos"), "eos": self._adds(-1, "eos")}
        special.add_to_gguf(writer, quiet=True)

    def _tokens(self) -> tuple[list[str], list[gguf.TokenType]]:
        """All tokens in the order of the model's rows, and what each is."""
        named = {number: token for token, number in self._tokenizer.get_vocab().items()}
        added = self._tokenizer.added_tokens_decoder
        special = set(self._tokenizer.all_special_ids)
        tokens = [named.get(number, f"[PAD{number}]") for number in range(self._rows)]
        types = [gguf.TokenType.NORMAL] * self._rows
        for number in range(self._rows):
            if number not in named:
                types[number] = gguf.TokenType.UNUSED
            elif number in special or (number in added and added[number].special):
                types[number] = gguf.TokenType.CONTROL
            elif number in added:
                types[number] = gguf.TokenType.USER_DEFINED
        return tokens, types

    def _adds(self, place: int, kind: str) -> bool:
        """Whether the tokenizer puts its first or last token around texts by itself."""
        number = getattr(self._tokenizer, f"{kind}_token_id")
        ids = self._tokenizer.encode("a")
        return number is not None and bool(ids) and ids[place] == number


def _oddity(made: Mapping[str, Any]) -> str:
    """What of a tokenizer has no place in GGUF; empty where all has."""
    model = made["model"]
    if model.get("type") != "BPE":
        return f"it is no byte-level BPE, but {model.get('type') or 'of a kind of its own'}"
    if model.get("byte_fallback"):
        return "it has bytes for what it does not know alone, as SentencePiece"
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return "it marks the pieces of words"
    if (made["normalizer"] or {}).get("type", "NFC") != "NFC":
        return f"it changes texts beforehand ({made['normalizer']['type']})"
    return ""


def _cuts(made: Mapping[str, Any]) -> tuple[str, ...]:
    """The steps by which a tokenizer cuts texts, those that are known in words."""
    step = made["pre_tokenizer"] or {}
    steps = step["pretokenizers"] if step.get("type") == "Sequence" else [step]
    return tuple(map(_cut, steps))


def _cut(step: Mapping[str, Any]) -> str:
    kind = step.get("type")
    if kind == "ByteLevel" and not step["add_prefix_space"]:
        return "bytes by words" if step["use_regex"] else "bytes"
    if kind == "Digits" and step["individual_digits"]:
        return "digits"
    if kind == "Split" and step["behavior"] == "Isolated" and not step["invert"]:
        return str(step["pattern"].get("Regex", ""))
    return str(kind)
