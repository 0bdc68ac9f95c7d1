# pyright: standard
"""Tokenization that keeps data as data: no content of a conversation ever becomes a control token.

A tokenizer turns `<|im_end|>` into the end-of-turn token, whether a template or a tool's result contains it.
This module hides the strings of control tokens in contents before the template is applied, so the remaining
ones are the template's. A copy of the tokenizer with renamed control tokens then encodes the whole text, so
merges across the borders of a content are as usual. Conversations without such strings get the same ids as
ever.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from tokenizers import Tokenizer

_PRIVATE = range(0xF0000, 0xFFFFE, 2)
"""Pairs of private-use characters; a pair that occurs in no content marks begin and end of hidden strings."""
_Value = TypeVar("_Value")


class PlainText:
    """Encodes template text whose contents may contain the strings of control tokens."""

    def __init__(self, tokenizer: Any, control: Collection[str]) -> None:  # noqa: ANN401
        """Take a tokenizer.

        Args:
            tokenizer: a tokenizer of transformers.
            control: strings of the added tokens that contents must not become.
        """
        self._tokenizer = tokenizer
        self.control = sorted(filter(None, control), key=lambda text: (-len(text), text))
        self._pattern = re.compile("|".join(map(re.escape, self.control)) or "(?!)")
        self._guards: dict[str, Tokenizer | None] = {}

    def hide(self, value: _Value) -> tuple[_Value, str]:
        """Return a value with the strings of control tokens hidden, and the mark that surrounds them.

        The value is messages, tools or text. The mark is empty if nothing had to be hidden.
        """
        texts = list(_texts(value))
        if not any(map(self._is_harmful, texts)):
            return value, ""
        held = frozenset("".join(texts))
        mark = next(pair for code in _PRIVATE if held.isdisjoint(pair := chr(code) + chr(code + 1)))
        number = {text: str(index) for index, text in enumerate(self.control)}

        def hidden(text: str) -> str:
            return self._pattern.sub(lambda match: number[match[0]].join(mark), text)

        return cast("_Value", _mapped(value, hidden)), mark

    def encode(self, text: str, mark: str = "") -> tuple[int, ...]:
        """Return the token ids of template text; the strings that a mark hides become plain text."""
        if not mark:
            return tuple(self._tokenizer.encode(text, add_special_tokens=False))
        guard = self._guard(mark)
        if guard is None:
            return self._in_pieces(text, mark)
        named = self._pattern.sub(lambda match: _name(match[0], mark), text)
        return tuple(guard.encode(self._shown(named, mark), add_special_tokens=False).ids)

    def encode_data(self, text: str) -> tuple[int, ...]:
        """Return the token ids of text as content, without control tokens."""
        return self.encode(*self.hide(text))

    def _is_harmful(self, text: str) -> bool:
        if self._pattern.search(text):
            return True
        normalizer = getattr(getattr(self._tokenizer, "backend_tokenizer", None), "normalizer", None)
        return normalizer is not None and bool(self._pattern.search(normalizer.normalize_str(text)))

    def _shown(self, text: str, mark: str) -> str:
        """Return the text with the hidden strings restored."""
        return _hidden(mark).sub(lambda match: self.control[int(match[1])], text)

    def _guard(self, mark: str) -> Tokenizer | None:
        """Return the tokenizer with renamed control tokens, or None if it cannot be copied."""
        if mark not in self._guards:
            names = {text: _name(text, mark) for text in self.control}
            self._guards = dict([*self._guards.items()][-1:]) | {mark: _renamed(self._tokenizer, names)}
        return self._guards[mark]

    def _in_pieces(self, text: str, mark: str) -> tuple[int, ...]:
        """Encode without a copy: each hidden string is cut in two, so that no half is a control token."""
        ids: list[int] = []
        for index, piece in enumerate(_hidden(mark).split(text)):
            halves = [piece] if index % 2 == 0 else _halves(self.control[int(piece)])
            for part in filter(None, halves):
                ids += self._tokenizer.encode(part, add_special_tokens=False)
        return tuple(ids)


def _hidden(mark: str) -> re.Pattern[str]:
    return re.compile(f"{mark[0]}([0-9]+){mark[1]}")


def _name(text: str, mark: str) -> str:
    """Return the name of a control token in the copy; its letter distinguishes it from hidden strings."""
    return f"{mark[0]}c{text.encode().hex()}{mark[1]}"


def _halves(text: str) -> list[str]:
    return [text[: len(text) // 2], text[len(text) // 2 :]]


def _renamed(tokenizer: Any, names: Mapping[str, str]) -> Tokenizer | None:  # noqa: ANN401
    """Return a copy of a fast tokenizer in which some tokens have other names but the same ids, or None."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        return None
    made = json.loads(backend.to_str())
    made.update(post_processor=None, truncation=None, padding=None)
    for token in made["added_tokens"]:
        if token["content"] in names:
            token.update(content=names[token["content"]], normalized=False)
    _rename_in_model(made["model"], names)
    copy = Tokenizer.from_str(json.dumps(made))
    same = all(copy.token_to_id(new) == backend.token_to_id(old) for old, new in names.items())
    return copy if same else None


def _rename_in_model(model: dict[str, Any], names: Mapping[str, str]) -> None:
    """Rename tokens of a vocabulary, and remove merges that would produce an old name."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(text, text): number for text, number in vocabulary.items()}
    else:
        model["vocab"] = [[names.get(text, text), score] for text, score in vocabulary]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        model["merges"] = [merge for merge in model["merges"] if not _touches(merge, names)]


def _touches(merge: str | Sequence[str], names: Collection[str]) -> bool:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left in names or right in names or left + right in names


def _texts(value: object) -> Iterator[str]:
    """Yield all strings in a JSON value, including keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, Sequence):
        for inner in value:
            yield from _texts(inner)


def _mapped(value: object, change: Any) -> object:  # noqa: ANN401
    """Return a JSON value with all of its strings changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key) if isinstance(key, str) else key: _mapped(v, change) for key, v in value.items()}
    if isinstance(value, Sequence):
        return [_mapped(inner, change) for inner in value]
    return value
