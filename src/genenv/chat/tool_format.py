# pyright: standard
"""Tools in a model's own form: its template writes them, its calls are read, known solutions are written so.

Between a model and an environment calls are text in one form, that of Hermes and Qwen: `<tool_call>`, a line
with `{"name": ..., "arguments": {...}}`, `</tool_call>`. A reply in whatever form the model has becomes that
text (`heard`), and a known solution in that text becomes what the model would have to say
(`ToolFormat.reply`).
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from genenv.chat.assistant import ChatMessage, Reply, ToolCall
from genenv.chat.call_formats import read_calls
from genenv.chat.reasoning import USUAL, Spelling, answer_of
from genenv.chat.template import ChatTemplate
from genenv.errors import RolloutError, UsageError
from genenv.types import JsonObject

_PROBE: JsonObject = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "Probe.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
    },
}
_PROBE_CALL = ToolCall(name="probe_tool", arguments={"x": "y"}, id="call00000")
_SAID = "\u2403"
_IN_THE_PROMPT = "describe them in the prompt (environment.style = 'python' or 'json'), or use another model"
_ASKED: ChatMessage = {"role": "user", "content": "u"}


class ToolFormat:
    """How one template writes tools, calls and what tools say."""

    def __init__(
        self, template: ChatTemplate, end: str, sounds: Callable[[str], str], spelling: Spelling = USUAL
    ) -> None:
        """Take a template.

        Args:
            template: applied to messages and tools.
            end: the token that ends an assistant's turn.
            sounds: what the template writes as it is heard from a model: special tokens are left out.
            spelling: of thoughts.
        """
        self._template, self._end, self._sounds, self._spelling = template, end, sounds, spelling

    @functools.cached_property
    def is_readable(self) -> bool:
        """Whether the template writes down tools, and calls in a form that can be read again."""
        try:
            before = self._template.text([_ASKED], [_PROBE], reply=True)
            after = self._template.text([_ASKED, _said((_PROBE_CALL,))], [_PROBE], reply=False)
        except Exception:  # noqa: BLE001 - templates are programs: they raise what they like
            return False
        written = self._written(before, after)
        if written is None:
            begins = os.path.commonprefix([before, after])  # noqa: RUF071 - it is text, letter by letter
            written = after[len(begins) :]
        calls = read_calls(answer_of(self._sounds(written)))[1]
        found = [(call.name, call.arguments) for call in calls]
        return "probe_tool" in before and found == [(_PROBE_CALL.name, _PROBE_CALL.arguments)]

    def check(self) -> None:
        """Refuse a template that cannot play tasks with tools in its own form.

        Raises:
            UsageError: it has no such form, or one that is not known here.
        """
        if self.is_readable and not self._is_playable:
            raise UsageError(
                "the model's chat template ends a turn with calls otherwise than one without, which is not "
                f"sampled here; {_IN_THE_PROMPT}"
            )
        if not self._is_playable:
            raise UsageError(
                "the model's chat template has no form of its own for tools that can be read again; "
                f"{_IN_THE_PROMPT}"
            )

    @functools.cached_property
    def _is_playable(self) -> bool:
        if not self.is_readable:
            return False
        call = json.dumps({"name": _PROBE_CALL.name, "arguments": _PROBE_CALL.arguments})
        solution = f"<tool_call>{call}</tool_call>"
        try:
            self.reply(message_of(solution), [_PROBE])
            told = self.continuation([{"role": "tool", "content": _SAID}], [_PROBE], message_of(solution))
            return _SAID in told
        except Exception:  # noqa: BLE001 - as above
            return False

    def reply(self, message: ChatMessage, tools: Sequence[JsonObject]) -> str:
        """What a model would have to say for its turn to be this message, up to the end of the turn."""
        prompt = self._template.text([_ASKED], tools, reply=True)
        whole = self._template.text([_ASKED, message], tools, reply=False)
        written = self._written(prompt, whole)
        if written is None or self._end not in written:
            raise RolloutError("the chat template writes such a reply otherwise than a model could say it")
        return written.rpartition(self._end)[0]

    def continuation(
        self, messages: Sequence[ChatMessage], tools: Sequence[JsonObject], after: ChatMessage
    ) -> str:
        """What the template adds after the end of a reply, when these messages answer it."""
        calls = after.get("tool_calls") or []
        answers = iter(calls)
        messages = [
            {**m, "tool_call_id": call["id"], "name": call["function"]["name"]}
            if m["role"] == "tool" and (call := next(answers, None))
            else m
            for m in messages
        ]
        before = self._template.text([_ASKED, after], tools, reply=False)
        whole = self._template.text([_ASKED, after, *messages], tools, reply=True)
        return self._end.join(whole.split(self._end)[before.count(self._end) :])

    def _written(self, prompt: str, whole: str) -> str | None:
        """What a template puts where a reply belongs; a thought that the prompt begins is ended first.

        None where the template writes something else before it than before a reply to come.
        """
        opening = self._spelling.opening.rstrip()
        header = prompt[: prompt.rindex(opening)] if self._spelling.opens(prompt) else prompt
        if whole.startswith(prompt):
            return whole[len(prompt) :]
        return self._spelling.closing + whole[len(header) :] if whole.startswith(header) else None


def heard(text: str, tools: Sequence[JsonObject] = ()) -> str:
    """A model's answer with the calls in it as an environment reads them."""
    return as_text(*read_calls(text, tools))


def as_text(words: str, calls: Iterable[ToolCall]) -> str:
    """Words and calls as one text that an environment reads."""
    blocks = (json.dumps({"name": c.name, "arguments": c.arguments}, ensure_ascii=False) for c in calls)
    return "\n".join([*filter(None, [words]), *(f"<tool_call>\n{block}\n</tool_call>" for block in blocks)])


def message_of(text: str) -> ChatMessage:
    """The message that text in an environment's form is."""
    words, calls = read_calls(text)
    return _said(numbered(calls), words)


def numbered(calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
    """Calls with ids: nine letters and digits, as the strictest templates want them."""
    return tuple(replace(call, id=call.id or f"call{index:05d}") for index, call in enumerate(calls))


def _said(calls: Iterable[ToolCall], words: str = "") -> ChatMessage:
    return Reply(text=words, calls=tuple(calls)).message()
