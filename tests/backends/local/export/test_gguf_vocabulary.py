"""Tokenizers as llama.cpp has them: by which rule texts are cut is read from the tokenizer itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN2

from genenv.backends.local.export_gguf import Vocabulary
from genenv.errors import UsageError

LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False)


def by_regex(pattern: str) -> Any:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, BYTES])


def tokenizer_of(cuts: Any, *, normalizer: Any = None, **options: Any) -> Any:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*alphabet, "ab", "abc"])}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b"), ("ab", "c")], **options))
    inner.pre_tokenizer, inner.decoder = cuts, decoders.ByteLevel()
    if normalizer is not None:
        inner.normalizer = normalizer
    ends = {"eos_token": "<e>", "bos_token": "<b>"}
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **ends)
    made.add_tokens([AddedToken("<think>", normalized=False)])
    return made


@pytest.mark.parametrize(
    ("cuts", "whole_words", "rule"),
    [
        (WORDS, False, "gpt-2"),
        (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), WORDS]), False, "smollm"),
        (by_regex(QWEN2), False, "qwen2"),
        (by_regex(LLAMA3), True, "llama-bpe"),
        (by_regex(LLAMA3), False, "smaug-bpe"),
    ],
)
def test_the_rule_is_that_of_the_tokenizer(cuts: Any, whole_words: bool, rule: str) -> None:
    made = tokenizer_of(cuts, normalizer=normalizers.NFC(), ignore_merges=whole_words)
    assert Vocabulary(made, "mine", 261).rule == rule


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (tokenizer_of(by_regex(r"\w+")), "it cuts texts by a rule of its own"),
        (tokenizer_of(WORDS, ignore_merges=True), "it cuts texts by a rule of its own"),
        (tokenizer_of(pre_tokenizers.Whitespace()), "it cuts texts by a rule of its own"),
        (
            tokenizer_of(WORDS, normalizer=normalizers.Lowercase()),
            r"it changes texts beforehand \(Lowercase\)",
        ),
        (tokenizer_of(WORDS, byte_fallback=True), "it has bytes for what it does not know alone"),
        (tokenizer_of(WORDS, end_of_word_suffix="</w>"), "it marks the pieces of words"),
    ],
)
def test_what_llama_cpp_has_not_is_one_sentence(made: Any, why: str) -> None:
    with pytest.raises(UsageError, match=f"the tokenizer of mine cannot be written to GGUF: {why}"):
        Vocabulary(made, "mine", 261)


def test_each_row_of_the_model_is_a_token_of_its_kind(tmp_path: Path) -> None:
    made = tokenizer_of(WORDS)
    made.save_pretrained(tmp_path / "saved")
    writer = gguf.GGUFWriter(tmp_path / "vocabulary.gguf", "llama")
    Vocabulary(made, "mine", 263).add_to(writer, tmp_path / "saved", end_id=259)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    fields = gguf.GGUFReader(tmp_path / "vocabulary.gguf").fields

    def said(name: str) -> Any:
        return fields[f"tokenizer.ggml.{name}"].contents()

    assert said("tokens")[256:] == ["ab", "abc", "<b>", "<e>", "<think>", "[PAD261]", "[PAD262]"]
    kinds = gguf.TokenType
    assert said("token_type")[256:] == [
        *(kinds.NORMAL, kinds.NORMAL, kinds.CONTROL, kinds.CONTROL),
        *(kinds.USER_DEFINED, kinds.UNUSED, kinds.UNUSED),
    ]
    assert said("merges") == ["a b", "ab c"]
    assert (said("eos_token_id"), said("bos_token_id"), said("eot_token_id")) == (259, 258, 259)
    assert (said("add_bos_token"), said("add_eos_token")) == (False, False)
