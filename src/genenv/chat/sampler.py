"""Shared parts of the samplers of chat models: chat format, reply choices, and limits on thoughts."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

from genenv.chat.format import ChatFormat
from genenv.chat.reasoning import CLOSING, without_thoughts
from genenv.errors import RolloutError
from genenv.sampling import Completion, Conversation, Sampler, SampleRequest
from genenv.seeding import stream
from genenv.texts import clean
from genenv.types import Json, JsonObject, Message

_SHORT_TEXT = 32
"""Strings of at most so many characters keep their length limits in a grammar."""
_VALUES = frozenset(("const", "enum", "default", "example", "examples"))
"""Keywords that hold values, not schemas."""


def encode_choices(texts: Sequence[str], sampler: Sampler, *, thinks: bool) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of the allowed replies in the form in which they would be sampled.

    Args:
        texts: the allowed replies.
        sampler: encodes the replies.
        thinks: whether the prompt begins a thought, which is then closed at once.
    """
    return tuple(sampler.encode_reply((CLOSING if thinks else "") + text) for text in dict.fromkeys(texts))


def forced_places(reply: Sequence[int], choices: Sequence[tuple[int, ...]]) -> frozenset[int]:
    """Return the positions of a chosen reply at which only one token was possible; empty without choices."""
    left, forced = list(choices), set[int]()
    for place, token in enumerate(reply if left else ()):
        if len({choice[place] for choice in left}) == 1:
            forced.add(place)
        left = [choice for choice in left if choice[place] == token]
    return frozenset(forced)


def with_free_text(schema: Json) -> Json:
    """Return a schema without the length limits of strings that hold free text.

    Under such a limit xgrammar allows no escape, so that no text could hold a quote or a line break. The
    parser of the spec still checks the length. Strings of at most 32 characters keep their limits. Sampler
    and trainer must use the same grammar, so every engine of xgrammar gets a schema in this form.
    """
    if isinstance(schema, Mapping):
        most = schema.get("maxLength")
        is_short = isinstance(most, int) and most <= _SHORT_TEXT
        if schema.get("type") == "string" and "pattern" not in schema and not is_short:
            schema = {name: part for name, part in schema.items() if name not in ("minLength", "maxLength")}
        return {name: part if name in _VALUES else with_free_text(part) for name, part in schema.items()}
    if isinstance(schema, str) or not isinstance(schema, Sequence):
        return schema
    return [with_free_text(one) for one in schema]


def structural_tag(choices: Sequence[tuple[int, ...]]) -> str:
    """Return choices as a structural tag of xgrammar, in tokens because a text has many tokenizations.

    Args:
        choices: token ids that end with the end-of-turn token, which the server adds itself.
    """
    spelled = [
        {"type": "sequence", "elements": [{"type": "token", "token": token} for token in choice[:-1]]}
        for choice in choices
    ]
    return json.dumps({"type": "structural_tag", "format": {"type": "or", "elements": spelled}})


def parse_structural_tag(tag: str, end_id: int) -> tuple[tuple[int, ...], ...]:
    """Return the choices that `structural_tag` encoded.

    Raises:
        ValueError: the tag has another form.
    """
    try:
        spelled = [one["elements"] for one in json.loads(tag)["format"]["elements"]]
        replies = tuple((*(part["token"] for part in parts), end_id) for parts in spelled)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(_UNKNOWN_TAG) from error
    if not replies or any(type(token) is not int for reply in replies for token in reply):
        raise ValueError(_UNKNOWN_TAG)
    return replies


_UNKNOWN_TAG = "of structural tags only replies to choose from, token by token, are known here"


class ChatSampler(ABC):
    """Base class of samplers with a chat format; a subclass implements `_sample` for one completion."""

    def __init__(self, chat: ChatFormat, *, context_tokens: int, max_thinking_tokens: int | None) -> None:
        """Take the chat format and the limits.

        Args:
            chat: the model's chat format.
            context_tokens: the longest sequence.
            max_thinking_tokens: maximum tokens of a thought; 0 closes it at once, None for no limit.
        """
        self.chat, self.context_tokens = chat, context_tokens
        self._max_thinking_tokens = max_thinking_tokens

    @property
    def end_of_thought(self) -> tuple[int, ...]:
        """The ids that end the thought which the chat template begins; empty if the template begins none."""
        return self.chat.encode(self.chat.spelling.closing) if self.chat.opens_thought else ()

    def render(
        self,
        messages: Sequence[Message],
        *,
        first: bool,
        tools: Sequence[JsonObject] = (),
        after: str = "",
    ) -> tuple[int, ...]:
        """Return the token ids of messages, up to the start of the assistant's reply."""
        return self.chat.render(messages, first=first, tools=tools, after=after)

    def encode_reply(self, text: str, tools: Sequence[JsonObject] = ()) -> tuple[int, ...]:
        """Return the token ids of an assistant's reply, including the end-of-turn token."""
        return self.chat.encode_reply(clean(text), tools)

    def left_out(
        self, roles: Sequence[str], prompt: Sequence[int], reply: Sequence[int]
    ) -> tuple[int, int, int]:
        """Count the tokens of an earlier turn that the template drops; see `ChatFormat.left_out`."""
        return self.chat.left_out(roles, prompt, reply)

    async def sample(self, request: SampleRequest) -> Completion:
        """Sample one completion. Requests of coroutines that wait at the same time may form one batch.

        A thought that reaches its limit is closed, and the answer is sampled after it. Thought, closing text
        and answer share the limit `max_tokens`.

        Raises:
            RolloutError: the prompt leaves no room in the context window, or `_sample` raised the error.
        """
        limit, chat = self._max_thinking_tokens, self.chat
        if limit is None or request.schema is not None or request.choices:
            return await self._within_context(request)
        first_tokens = limit + (0 if chat.opens_thought else len(chat.encode(chat.spelling.opening)))
        if first_tokens >= request.max_tokens:
            return await self._within_context(request)
        first = Completion(token_ids=(), logprobs=(), text="", finished=False)
        part = replace(request, conversation=request.conversation or Conversation())
        if first_tokens:
            cut = replace(part, max_tokens=first_tokens, last=False, survives_cut=True)
            first = await self._within_context(cut)
        if first.finished:
            return first
        is_open = "<think>" in without_thoughts(f"<think>{first.text}" if chat.opens_thought else first.text)
        forced = chat.encode(chat.spelling.closing) if is_open else ()
        left = request.max_tokens - len(first.token_ids) - len(forced)
        if left < 1:
            return first
        rest = await self._within_context(
            replace(
                part,
                prompt_ids=(*request.prompt_ids, *first.token_ids, *forced),
                max_tokens=left,
                stream=stream(request.stream, "answer"),
                last=request.last or request.conversation is None,
            )
        )
        ids = (*first.token_ids, *forced, *rest.token_ids)
        return Completion(
            token_ids=ids,
            logprobs=(*first.logprobs, *(0.0,) * len(forced), *rest.logprobs),
            text=chat.decode(ids),
            finished=rest.finished,
            version=rest.version,
            forced=range(len(first.token_ids), len(first.token_ids) + len(forced)),
        )

    async def _within_context(self, request: SampleRequest) -> Completion:
        if len(request.prompt_ids) + request.max_tokens > self.context_tokens:
            raise RolloutError(
                f"{len(request.prompt_ids)} prompt tokens and {request.max_tokens} new ones pass the context "
                f"window of {self.context_tokens}"
            )
        return await self._sample(request)

    @abstractmethod
    async def _sample(self, request: SampleRequest) -> Completion:
        """Sample one completion whose sequence fits into the context window."""

    def end_round(self) -> None:  # noqa: B027 - most samplers cache nothing
        """Free the memory that only the finished round needed."""
