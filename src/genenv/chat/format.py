# pyright: standard
"""Conversion of messages to token ids turn by turn, without tokenizing sampled tokens again."""

from __future__ import annotations

import bisect
import contextlib
import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from genenv.chat.assistant import ChatMessage
from genenv.chat.plain_text import PlainText
from genenv.chat.reasoning import CLOSING, USUAL, spelling_of
from genenv.chat.template import ChatTemplate
from genenv.chat.tool_calls import CALL_TOKENS, ToolFormat, message_of
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

    def __init__(self, tokenizer: Any, arguments: Mapping[str, Json] | None = None) -> None:  # noqa: ANN401
        """Probe a tokenizer's template once.

        Args:
            tokenizer: a tokenizer with a chat template.
            arguments: variables for every application of the template.

        Raises:
            UsageError: the template cannot be applied to a plain conversation.
        """
        self.tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer, arguments)
        self.spelling = spelling_of(str(tokenizer.chat_template))
        self.end_id = self._end_of_turn()
        self._end: str = tokenizer.convert_ids_to_tokens(self.end_id)
        self.plain = PlainText(tokenizer, self._control())
        self.tool_format = ToolFormat(self.template, self._end, self._read_reply, self.spelling)
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
            RolloutError: the template or the tokenizer does not accept the reply.
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
            return (*self.plain.encode(self.tool_format.reply(message, offered), mark), self.end_id)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of template text, in which the strings of control tokens become control tokens."""
        return self.plain.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of sampled ids: thoughts in `<think>`, no special tokens except those of calls."""
        kept = [number for number in ids if number not in self._silent]
        return self.spelling.read(self.raw(kept))

    def raw(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        # Some tokenizers "clean up" spaces before punctuation by default, which changes what was said.
        text = self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text)

    def _without_meaning(self) -> set[int]:
        """Return the ids of special tokens to drop from a reply: all except those of thoughts and calls."""
        read = {*CALL_TOKENS, *self.spelling.tokens} - {self._end}
        added = self.tokenizer.added_tokens_decoder
        special = {number for number, token in added.items() if token.special} | {
            *self.tokenizer.all_special_ids
        }
        return {number for number in special if self.tokenizer.convert_ids_to_tokens(number) not in read}

    def left_out(self, role: str, prompt: Sequence[int], reply: Sequence[int]) -> tuple[int, int, int]:
        """Count the tokens of an earlier turn that the template drops once a message with this role follows.

        Args:
            role: the role of the message that follows.
            prompt: the ids of the turn's prompt.
            reply: the ids of its reply; another end-of-turn token may replace the last once a message
                follows.

        Returns:
            Three counts: tokens at the end of the prompt that only a pending reply has, tokens of the reply's
                thought at its beginning, and tokens at its end. All are 0 if the template keeps thoughts.
        """
        kept, only_last, ends = self._earlier_turns(role)
        if kept:
            return 0, 0, 0
        tail = next((n for n in range(1, len(only_last) + 1) if self.raw(prompt[-n:]) == only_last), 0)
        last = int(not ends and list(reply[-1:]) == [self.end_id])
        return tail if only_last else 0, self._thought(reply), last

    def _thought(self, reply: Sequence[int]) -> int:
        """Return the number of tokens of a reply's thought and of the separator before the answer."""
        read = self.decode(reply)
        if "</think>" not in read or not (self.opens_thought or read.lstrip().startswith("<think>")):
            return 0
        count = bisect.bisect_left(
            range(len(reply)), 1, key=lambda n: int("</think>" in self.decode(reply[:n]))
        )
        if self.spelling.answer:  # the template writes it before every answer
            first = self.encode(self.spelling.answer)[0]
            return next((n for n in range(count, len(reply)) if reply[n] == first), count)
        while count < len(reply) and not self.raw(reply[count : count + 1]).strip():
            count += 1
        return count

    def _probe_earlier_turns(self, role: str) -> tuple[bool, str, bool]:
        """Find out how a template writes an earlier turn once a message with this role follows.

        Returns:
            Whether the thought stays, the text before a pending reply, and whether the turn ends as usual.
        """
        follows: ChatMessage = {"role": role, "content": "v"}
        thought = f"{self.spelling.opening}{_THOUGHT}{self.spelling.ending}\n\n{_MARKER}"
        try:
            before, _, after = self.template.text(
                [_USER_MESSAGE, _reply(_MARKER), follows], reply=True
            ).partition(_MARKER)
        except Exception:  # noqa: BLE001 - templates are programs: they raise what they like
            return True, "", True
        try:
            kept = _THOUGHT in self.template.text([_USER_MESSAGE, _reply(thought), follows], reply=True)
        except Exception:  # noqa: BLE001 - it takes answers alone
            kept = False
        ready = self.template.text([_USER_MESSAGE], reply=True)
        ends = after.lstrip().startswith(self._end)
        if not kept and not ready.startswith(before) and before != ready + self.spelling.answer:
            log.warning(
                "the chat template writes something else in the place of earlier thoughts; in conversations "
                "of several turns they stay in what is sampled and trained, and a server drops them"
            )
            kept = True
        return kept, ready[len(before) :] if ready.startswith(before) else "", ends

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
        # Not all that a tokenizer holds to be special is in its list of special tokens.
        special = {number for number, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        found = ids and ids[0] in special.union(self.tokenizer.all_special_ids)
        return int(ids[0] if found else self.tokenizer.eos_token_id)

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
