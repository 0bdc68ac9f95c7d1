"""Thoughts of bounded length: after so many tokens they are closed, and the answer begins.

What closes a thought is not sampled: it stands in the reply, flagged, and nothing is learned from it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from genenv.chat.reasoning import USUAL, Spelling, without_thoughts
from genenv.sampling import Completion, Conversation, SampleRequest
from genenv.seeding import stream

Sample = Callable[[SampleRequest], Awaitable[Completion]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtLimit:
    """At most so many tokens of thought in a reply."""

    tokens: int
    """0 closes a thought as soon as it is open."""
    opened: bool
    """Whether the prompt begins it; else the reply may."""
    encode: Callable[[str], tuple[int, ...]]
    decode: Callable[[Sequence[int]], str]
    spelling: Spelling = USUAL

    async def sample(self, request: SampleRequest, sample: Sample) -> Completion:
        """One completion. Its thought, the words that close it and its answer have `max_tokens` together.

        Args:
            request: what is wanted.
            sample: gives it without a limit.
        """
        begins = 0 if self.opened else len(self.encode(self.spelling.opening))
        first_tokens = self.tokens + begins
        if first_tokens >= request.max_tokens:
            return await sample(request)
        first = Completion(token_ids=(), logprobs=(), text="", finished=False)
        part = replace(request, conversation=request.conversation or Conversation())
        if first_tokens:
            first = await sample(replace(part, max_tokens=first_tokens, last=False, survives_cut=True))
        if first.finished:
            return first
        forced = self.encode(self.spelling.closing) if self._is_open(first.text) else ()
        left = request.max_tokens - len(first.token_ids) - len(forced)
        if left < 1:
            return first
        rest = await sample(
            replace(
                part,
                prompt_ids=(*request.prompt_ids, *first.token_ids, *forced),
                max_tokens=left,
                stream=stream(request.stream, "answer"),
                last=request.last or request.conversation is None,
            )
        )
        return self._joined(first, forced, rest)

    def _is_open(self, text: str) -> bool:
        return "<think>" in without_thoughts(f"<think>{text}" if self.opened else text)

    def _joined(self, first: Completion, forced: tuple[int, ...], rest: Completion) -> Completion:
        ids = (*first.token_ids, *forced, *rest.token_ids)
        return Completion(
            token_ids=ids,
            logprobs=(*first.logprobs, *(0.0,) * len(forced), *rest.logprobs),
            text=self.decode(ids),
            finished=rest.finished,
            version=rest.version,
            forced=range(len(first.token_ids), len(first.token_ids) + len(forced)),
        )
