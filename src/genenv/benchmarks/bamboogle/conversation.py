"""What a model is asked: the question alone, or with searches in a corpus; and what a judge is asked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from genenv.chat.assistant import ChatMessage, Reply, Talk
from genenv.chat.reasoning import without_thoughts
from genenv.types import JsonObject

_MAX_QUERY_CHARS = 200
_MAX_QUERIES = 4
"""Searches of one reply that are answered."""
_MAX_REPLY_CHARS = 20_000
_END = (
    'end with a line that begins with "Answer:" and gives only the final answer, in as few words as possible.'
    "\n\nQuestion: {question}"
)
_CLOSED_BOOK = "Answer the question. Think step by step, briefly, then " + _END
_SEARCH = (
    "Answer the question. {how} You may search {searches} times. Think step by step, briefly. When you know "
    "the answer, " + _END
)
_BY_TOOL = "Look up what you need with the tool `search`."
_BY_TEXT = (
    "To look something up, end your reply with a line `Search: <a few words>`; you will be shown passages."
)
_NONE_LEFT = "No searches are left. Give the final answer now."
_JUDGE = """Does the given answer to the question mean the same as the right answer?
More detail is fine if it does not contradict the right answer. Reply with "yes" or "no" alone.

Question: {question}
Right answer: {right}
Given answer: {given}"""
_LINE = re.compile(r"^[ \t*]*+Search:[ \t*]*+(?P<line>[^\n]*\S)[^\n]*|<search>(?P<tag>[^<]*)</search>", re.M)
_ANSWERED = re.compile(r"<answer>|^[ \t*]*+Answer[ \t*]*+:", re.M | re.IGNORECASE)
_VERDICT = re.compile(r"\b(?:yes|no)\b", re.IGNORECASE)
_TOOL: JsonObject = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Find passages by words.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "A few words."}},
            "required": ["query"],
        },
    },
}


class Passages(Protocol):
    """What is searched."""

    def search(self, query: str, *, results: int, chars: int) -> str:
        """Passages, one a line, best first."""
        ...


async def ask(question: str, talk: Talk) -> str:
    """The reply to the question alone."""
    return (await talk([{"role": "user", "content": _CLOSED_BOOK.format(question=question)}])).text


class Searching:
    """One conversation with searches: by the model's own tool calls where it has them, else by text."""

    def __init__(self, passages: Passages, talk: Talk, *, limits: tuple[int, int, int]) -> None:
        """Prepare one.

        Args:
            passages: what is searched.
            talk: with whom.
            limits: how many searches, how many passages each shows, and of how many characters.
        """
        self.used = 0
        self._passages, self._talk = passages, talk
        self._most, self._results, self._chars = limits

    async def ask(self, question: str) -> str:
        """The reply that ends the conversation: the first without a search, or the one after all searches."""
        how = _BY_TOOL if self._talk.native_tools else _BY_TEXT
        text = _SEARCH.format(how=how, searches=self._most, question=question)
        messages: list[ChatMessage] = [{"role": "user", "content": text}]
        tools: Sequence[JsonObject] = [_TOOL] if self._talk.native_tools else ()
        for _ in range(self._most + 1):
            reply = await self._talk(messages, tools=tools)
            more = self._by_tool(reply) if reply.calls else self._by_text(reply)
            if not more:
                return reply.text
            messages += more
        return (await self._talk(messages, tools=tools)).text

    def _by_tool(self, reply: Reply) -> list[ChatMessage]:
        said = reply.message()
        answers: list[ChatMessage] = []
        for place, call in enumerate(reply.calls):
            query = call.arguments.get("query") if call.name == "search" else None
            known = isinstance(query, str) and place < _MAX_QUERIES
            content = self._find(str(query)) if known else "Only search(query) can be called."
            answers.append({"role": "tool", "tool_call_id": call.id or f"call_{place}", "content": content})
        return [said, *answers]

    def _by_text(self, reply: Reply) -> list[ChatMessage]:
        """The reply up to its first search, as what follows was made up; nothing if it answers before."""
        text = reply.text[:_MAX_REPLY_CHARS]
        thoughtless = without_thoughts(text)
        found, answered = _LINE.search(thoughtless), _ANSWERED.search(thoughtless)
        if found is None or (answered and answered.start() < found.start()):
            return []
        said = thoughtless[: found.end()].strip()
        content = self._find(found["line"] or found["tag"])
        return [{"role": "assistant", "content": said}, {"role": "user", "content": content}]

    def _find(self, query: str) -> str:
        if self.used >= self._most:
            return _NONE_LEFT
        self.used += 1
        return self._passages.search(query[:_MAX_QUERY_CHARS], results=self._results, chars=self._chars)


async def judged(question: str, right: str, given: str, talk: Talk) -> str:
    """What a judge says of an answer."""
    text = _JUDGE.format(question=question, right=right, given=given)
    return (await talk([{"role": "user", "content": text}])).text


def says_yes(verdict: str) -> bool:
    """Whether a judge's reply is a yes: its first yes or no, thoughts aside. Neither of them is a no."""
    found = _VERDICT.search(without_thoughts(verdict[:_MAX_REPLY_CHARS]))
    return found is not None and found[0].lower() == "yes"
