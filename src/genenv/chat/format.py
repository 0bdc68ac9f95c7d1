# pyright: standard
"""Conversion of messages to token ids turn by turn, without tokenizing sampled tokens again.

Data stay data: no content of a conversation ever becomes a control token. A tokenizer turns `<|im_end|>` into
the end-of-turn token, whether a template or a tool's result contains it. `PlainText` hides the strings of
control tokens in contents before the template is applied, so the remaining ones are the template's. A copy of
the tokenizer with renamed control tokens then encodes the whole text, so merges across the borders of a
content are as usual. Conversations without such strings get the same ids as ever.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from tokenizers import Tokenizer

from genenv.chat.assistant import ChatMessage
from genenv.chat.reasoning import CLOSING, USUAL, answer_of, spelling_of
from genenv.chat.template import ChatTemplate
from genenv.chat.tool_calls import CALL_TOKENS, NOT_SAYABLE, ToolFormat, begins_with, message_of, read_calls
from genenv.errors import GenenvError, RolloutError, first_line
from genenv.types import Json, JsonObject, Message

log = logging.getLogger(__name__)

_MARKER = "\u2402"
"""A placeholder for an assistant's text, used to find the text that a template writes after it."""

_THOUGHT = "\u2404"
"""A placeholder for a thought, used to find out whether a template drops thoughts."""

_OPENINGS = 256
"""The number of cached conversation beginnings; all rollouts of a task share one beginning."""

_USER_MESSAGE: ChatMessage = {"role": "user", "content": "u"}


class ChatFormat:
    """A model's chat template, applied incrementally; used by all samplers of chat models."""

    def __init__(
        self,
        tokenizer: Any,  # noqa: ANN401
        arguments: Mapping[str, Json] | None = None,
        stop_ids: Collection[int] = (),
    ) -> None:
        """Probe a tokenizer's template once.

        Args:
            tokenizer: a tokenizer with a chat template.
            arguments: variables for every application of the template.
            stop_ids: further tokens that end a reply, as the model's files list them. Those that are not
                special tokens of the tokenizer are ignored.

        Raises:
            UsageError: the template cannot be applied to a plain conversation.
        """
        self.tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer, arguments)
        self.spelling = spelling_of(str(tokenizer.chat_template))
        self._special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._special |= {*tokenizer.all_special_ids}
        self.end_id = self._end_of_turn()
        """The token that ends the replies of demonstrations, which the template writes after a reply."""
        self.stop_ids = frozenset(
            {self.end_id, tokenizer.eos_token_id, *self._special.intersection(stop_ids)}
        )
        """All tokens that end a sampled reply, `end_id` included."""
        self._end: str = tokenizer.convert_ids_to_tokens(self.end_id)
        self.plain = PlainText(tokenizer, self._control())
        ends = tokenizer.convert_ids_to_tokens(
            sorted(self.stop_ids, key=lambda one: (one != self.end_id, one))
        )
        self.tool_format = ToolFormat(self.template, ends, self._read_reply, self.spelling)
        self._silent = self._without_meaning()
        self._earlier_turns = functools.cache(self._probe_earlier_turns)
        self._opening = functools.lru_cache(maxsize=_OPENINGS)(self._open)
        self.opens_thought = self.spelling.opens(self.template.text([_USER_MESSAGE], reply=True))
        """Whether the template begins a reply with a thought."""

    def render(
        self,
        messages: Sequence[Message],
        *,
        first: bool,
        tools: Sequence[JsonObject] = (),
        after: str = "",
    ) -> tuple[int, ...]:
        """Return the token ids of new messages, up to the start of the assistant's reply.

        Args:
            messages: the new messages of the conversation.
            first: False if the ids continue an assistant turn that ended with the end-of-turn token.
            tools: tools that the template offers in the model's format.
            after: with tools, the reply that the messages answer, in the form of `tool_format`.

        Raises:
            UsageError: the template has no format for tools.
            RolloutError: the template or the tokenizer does not accept the messages.
        """
        if first and not tools:
            return self._opening(tuple(messages))
        if tools:
            self.tool_format.check()
        given = [_as_dict(message) for message in messages], list(tools), message_of(after if tools else "")
        with _refusals():
            (safe, offered, replied), mark = self.plain.hide(given)
            if first:
                text = self.template.text(safe, offered, reply=True)
            elif tools:
                text = self.tool_format.continuation(safe, offered, replied)
            else:
                text = self._continuation(safe)
            return self.plain.encode(text, mark)

    def _open(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """Return the ids of a conversation's beginning; cached, because all rollouts of a task share it."""
        with _refusals():
            (safe,), mark = self.plain.hide(([_as_dict(message) for message in messages],))
            return self.plain.encode(self.template.text(safe, reply=True), mark)

    def render_whole(
        self, messages: Sequence[ChatMessage], tools: Sequence[JsonObject] = ()
    ) -> tuple[tuple[int, ...], bool]:
        """Return the ids of a whole conversation up to the reply, and whether they begin a thought.

        Raises:
            RolloutError: the chat template or the tokenizer does not accept the conversation.
        """
        with _refusals():
            (safe, offered), mark = self.plain.hide((list(messages), list(tools)))
            text = self.template.text(safe, offered, reply=True)
            return self.plain.encode(text, mark), self.spelling.opens(text)

    def encode_reply(self, text: str, tools: Sequence[JsonObject] = ()) -> tuple[int, ...]:
        """Return the ids of an assistant's reply with its end-of-turn token; calls are in the model's format.

        Raises:
            UsageError: the template has no format for tools.
            RolloutError: the template or the tokenizer does not accept the reply, or changes it.
        """
        if tools:
            self.tool_format.check()
        with _refusals():
            if not tools:
                thought = text.startswith(CLOSING) and self.spelling is not USUAL
                begins = self.spelling.closing if thought else self.spelling.answer
                said = self.plain.encode_data(text[len(CLOSING) :] if thought else text)
                return (*(self.plain.encode(begins) if begins else ()), *said, self.end_id)
            (message, offered), mark = self.plain.hide((message_of(text), list(tools)))
            said, end = self.tool_format.reply(message, offered)
            ids = (*self.plain.encode(said, mark), int(self.tokenizer.convert_tokens_to_ids(end)))
            words, calls = self._read(text, tools)
            read = self.decode(ids)
            words_read, calls_read = self._read(read, tools)
            if calls != calls_read or words not in words_read or not begins_with(words, read):
                raise RolloutError(NOT_SAYABLE)
            return ids

    def _read(self, text: str, tools: Sequence[JsonObject]) -> tuple[str, list[tuple[str, str]]]:
        """Return the words of a reply, and its calls in a form that can be compared."""
        words, calls = read_calls(answer_of(text, opened=self.opens_thought), tools)
        return words.strip(), [(call.name, json.dumps(call.arguments, sort_keys=True)) for call in calls]

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of template text, in which the strings of control tokens become control tokens."""
        return self.plain.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of sampled ids: thoughts in `<think>`, no special tokens except those of calls."""
        said = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        kept = [number for number in said if number not in self._silent]
        return self.spelling.read(self.raw(kept))

    def raw(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        # Some tokenizers "clean up" spaces before punctuation by default, which changes what was said.
        text = self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text)

    def _without_meaning(self) -> set[int]:
        """Return the ids of special tokens to drop from a reply: all except those of thoughts and calls."""
        read = {*CALL_TOKENS, *self.spelling.tokens} - {self._end}
        return {one for one in self._special if self.tokenizer.convert_ids_to_tokens(one) not in read}

    def left_out(
        self, roles: Sequence[str], prompt: Sequence[int], reply: Sequence[int]
    ) -> tuple[int, int, int]:
        """Count the tokens of an earlier turn that the template drops once messages with these roles follow.

        Args:
            roles: the roles of the messages that follow.
            prompt: the ids of the turn's prompt.
            reply: the ids of its reply; another end-of-turn token may replace the last once a message
                follows, unless that is what the template writes next.

        Returns:
            Three counts: tokens at the end of the prompt that only a pending reply has, tokens of the reply's
                thought at its beginning, and tokens at its end. If the template keeps thoughts, only an empty
                one at the end of the prompt is left out.
        """
        kept, only_last, after = self._earlier_turns(tuple(role for role, _ in itertools.groupby(roles)))
        tail = next((n for n in range(1, len(only_last) + 1) if self.raw(prompt[-n:]) == only_last), 0)
        if kept:
            return tail if self.spelling.ending in only_last else 0, 0, 0
        stopped = bool(reply) and reply[-1] in self.stop_ids
        end = self.raw(reply[-1:])
        ends_calls = end == self.tool_format.end_of_calls != self._end
        last = int(stopped and not ends_calls and not after.startswith((self._end, end)))
        return tail, self._thought(reply), last

    def _thought(self, reply: Sequence[int]) -> int:
        """Return the number of tokens of a reply's thought and of the separator before the answer."""
        read = self.decode(reply)
        if "</think>" not in read or not (self.opens_thought or read.lstrip().startswith("<think>")):
            return 0
        count = bisect.bisect_left(
            range(len(reply)), 1, key=lambda n: int("</think>" in self.decode(reply[:n]))
        )
        if self.spelling.answer:  # the header of another message ends the thought
            header = self.spelling.closing.removesuffix(self.spelling.answer)
            ends = range(count, min(count + len(header), len(reply)) + 1)
            return next((n for n in ends if self.raw(reply[:n]).endswith(header)), count)
        while count < len(reply) and not self.raw(reply[count : count + 1]).strip():
            count += 1
        return count

    def _probe_earlier_turns(self, roles: tuple[str, ...]) -> tuple[bool, str, str]:
        """Find out how a template writes an earlier turn once messages with these roles follow.

        Returns:
            Whether the thought stays, the text before a pending reply, and the text after the reply.
        """
        follows: list[ChatMessage] = [{"role": role, "content": "v"} for role in roles]
        thought = f"{self.spelling.opening}{_THOUGHT}{self.spelling.ending}\n\n{_MARKER}"
        try:
            before, _, after = self.template.text(
                [_USER_MESSAGE, _reply(_MARKER), *follows], reply=True
            ).partition(_MARKER)
        except Exception:  # noqa: BLE001 - templates are programs: they raise what they like
            return True, "", ""
        try:
            kept = _THOUGHT in self.template.text([_USER_MESSAGE, _reply(thought), *follows], reply=True)
        except Exception:  # noqa: BLE001 - it takes answers alone
            kept = False
        ready = self.template.text([_USER_MESSAGE], reply=True)
        if not kept and not ready.startswith(before) and before != ready + self.spelling.answer:
            log.warning(
                "the chat template writes something else in the place of earlier thoughts; in conversations "
                "of several turns they stay in what is sampled and trained, and a server drops them"
            )
            kept = True
        return kept, ready[len(before) :] if ready.startswith(before) else "", after.lstrip()

    def _read_reply(self, text: str) -> str:
        return self.decode(self.encode(text))

    def _continuation(self, messages: Sequence[ChatMessage]) -> str:
        """Return the text that the template adds after an assistant's end-of-turn token."""
        after = self._text_after_reply(messages, reply=True)
        return (
            after[len(self._end) :] if after.startswith(self._end) else after.lstrip().removeprefix(self._end)
        )

    def _text_after_reply(self, messages: Sequence[ChatMessage], *, reply: bool) -> str:
        """Return the text that the template writes after an assistant's text if these messages follow."""
        before = [_USER_MESSAGE, _reply(_MARKER)]
        return self.template.text([*before, *messages], reply=reply).partition(_MARKER)[2]

    def _end_of_turn(self) -> int:
        """Return the special token that the template writes after an assistant's text, or else the EOS token.

        In some models the two differ, and replies would never end if only EOS stopped them.
        """
        ids = self.tokenizer.encode(
            self._text_after_reply([], reply=False).lstrip(), add_special_tokens=False
        )
        return int(ids[0] if ids and ids[0] in self._special else self.tokenizer.eos_token_id)

    def _control(self) -> set[str]:
        """Return the strings of tokens that content must not become: special tokens, frames of tool answers.

        Other added tokens are allowed: they are common text such as runs of spaces, or strings like `<think>`
        and `<tool_call>` that a prompt may have to mention.
        """
        framed = ""
        if self.template.takes_tool_role:
            framed = self._text_after_reply([{"role": "tool", "content": "t"}], reply=False)
        added = self.tokenizer.added_tokens_decoder.values()
        return {
            token.content
            for token in added
            if token.special or (token.content.strip() and token.content in framed)
        } | set(self.tokenizer.all_special_tokens)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except GenenvError:
        raise
    except Exception as error:  # templates are programs: they raise what they like
        raise RolloutError(
            f"the chat template does not take the conversation: {first_line(error)}"
        ) from error


def _reply(content: str) -> ChatMessage:
    return {"role": "assistant", "content": content}


def _as_dict(message: Message) -> ChatMessage:
    return {"role": message.role, "content": message.content}


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
