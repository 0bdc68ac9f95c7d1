# pyright: standard
"""A parser of tool calls in a model's text, and the tool format of a chat template. Nothing is evaluated.

    Hermes, Qwen 2.5 and 3      <tool_call>{"name": ..., "arguments": {...}}</tool_call>
    Qwen 3.5, Seed, Nemotron    <tool_call><function=NAME><parameter=KEY>V</parameter></function></tool_call>
    GLM                         <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>
    DeepSeek                    <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>
    DeepSeek V3.2, MiniMax      <invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>, prefixed
    Gemma 4                     <|tool_call>call:NAME{key:<|"|>text<|"|>}<tool_call|>
    gpt-oss                     to=functions.NAME<|channel|>commentary json<|message|>{...}<|call|>
    Mistral                     [TOOL_CALLS]NAME[ARGS]{...}, earlier [TOOL_CALLS] and a list of objects
    Llama 4, LFM 2              [NAME(key="value"), ...], between marks or without
    Llama 3                     JSON and nothing else, an object, several with `; ` between, or a list

An unreadable call is still a call, with arguments that no tool accepts, because an endpoint would return it
as a call too.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

from genenv.chat.assistant import ChatMessage, Reply, ToolCall
from genenv.chat.reasoning import USUAL, Spelling, answer_of
from genenv.chat.template import ChatTemplate
from genenv.errors import RolloutError, UsageError
from genenv.texts import clean
from genenv.types import Json, JsonObject
from genenv.untrusted.schemas import BadSchema, Validator, plain_schema

MAX_CHARS = 200_000
"""Longer text is not searched for calls."""
MAX_DEPTH = 64
"""Maximum nesting of lists and objects in arguments."""
UNREADABLE: JsonObject = {"": "arguments that cannot be read"}
CALL_TOKENS = (
    *("<tool_call>", "</tool_call>", "<seed:tool_call>", "</seed:tool_call>", "<|tool_call>", "<tool_call|>"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    *("<｜tool▁sep｜>", "｜DSML｜", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", '<|"|>', "<|call|>"),
    *("<|channel|>", "<|constrain|>", "<|message|>", "<|tool_call_start|>", "<|tool_call_end|>"),
    *("<|python_start|>", "<|python_end|>"),
)
"""Tokens that mark calls and may be special; decoding a reply must keep them."""

_BLOCKS = re.compile(
    r"<tool_call>(?P<tagged>.*?)(?:</tool_call>|\Z)"
    r"|<seed:tool_call>(?P<seed>.*?)(?:</seed:tool_call>|\Z)"
    r"|(?:<｜tool▁calls▁begin｜>\s*)?<｜tool▁call▁begin｜>(?P<deepseek>.*?)(?:<｜tool▁call▁end｜>|\Z)"
    r"|<\|tool_call>(?P<gemma>.*?)(?:<tool_call\|>|\Z)"
    r"|<(?P<mark>\S{0,12}?)invoke (?P<invoked>name=.*?)(?:</(?P=mark)invoke>|\Z)"
    r"|\[TOOL_CALLS\]\s*(?P<mistral>[\w.-]+(?:\[CALL_ID\]\w+)?\[ARGS\].*?)(?=\[TOOL_CALLS\]|\Z)"
    r"|\[TOOL_CALLS\]\s*(?P<listed>[\[{].*)"
    r"|(?:<\|start\|>assistant)?(?P<harmony>(?: ?to=[^\s<]{1,200}+\s*<\|channel\|>"
    r"|<\|channel\|>\w++\s+to=[^\s<]++)[^<]*+(?:<\|constrain\|>[^<]*+)?<\|message\|>.*?)(?:<\|call\|>|\Z)"
    r"|<\|(?:tool_call|python)_start\|>(?P<python>.*?)(?:<\|(?:tool_call|python)_end\|>|\Z)",
    re.DOTALL,
)
_AROUND = re.compile(r"</?\S{0,12}(?:function_calls|minimax:tool_call)>|<｜tool▁calls▁(?:begin|end)｜>")
"""Markup around a group of calls."""
_BEFORE = re.compile(r"\A\s*(?:<\|python_tag\|>|```(?:json)?)")
_AFTER = re.compile(r"```\s*\Z")
_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(
    r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>(?:(?!<parameter=).)*?)\n?(?:</parameter>|(?=<parameter=))",
    re.DOTALL,
)
_PAIR = re.compile(
    r"<arg_key>(?P<key>[^<]*)</arg_key>\s*<arg_value>(?P<value>(?:(?!<arg_key>).)*?)</arg_value>", re.DOTALL
)
_NAMED = re.compile(
    r'parameter name="(?P<key>[^"]*)"(?P<text>[^>]*)>'
    r'(?P<value>(?:(?!parameter name=").)*?)</\S{0,12}?parameter>',
    re.DOTALL,
)
_LAX = re.compile(
    r'<\|"\|>(.*?)<\|"\|>|(?<=[{,])\s*([A-Za-z_][\w.-]*)\s*:|(?<=[:,\[])\s*(None|True|False)\b', re.DOTALL
)
_FENCE = re.compile(r"\A\s*```(?:json)?|```\s*\Z")
_BETWEEN = re.compile(r"[\s;]*")
_CONSTANTS = {"None": None, "True": True, "False": False}
_NOT_PYTHON = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)


def read_calls(text: str, tools: Sequence[JsonObject] = ()) -> tuple[str, tuple[ToolCall, ...]]:
    """Return the text of a reply without its tool calls, and the calls.

    Args:
        text: the reply.
        tools: the tools in OpenAI's form. Their schemas tell strings from JSON if the format does not.
    """
    if len(text) > MAX_CHARS:
        return text, ()
    blocks = list(_BLOCKS.finditer(text))
    if blocks:
        calls = [call for block in blocks for call in _READERS[str(block.lastgroup)](block, tools)]
        return _AROUND.sub("", _BLOCKS.sub("", text)).strip(), tuple(calls)
    bare = _AFTER.sub("", _BEFORE.sub("", text)).strip()
    calls = list(_bare(bare)) if bare[:1] in ("{", "[") else []
    if not calls and bare[:1] == "[":
        calls = _pythonic(bare) or []
    return ("", tuple(calls)) if calls else (text, ())


def _tagged(body: str, tools: Sequence[JsonObject]) -> Iterator[ToolCall]:
    """Parse the content of `<tool_call>`: JSON, functions in tags, or a name with pairs."""
    is_json = body.lstrip()[:1] in ("{", "[")
    functions = [] if is_json else list(_FUNCTION.finditer(body))
    if functions:
        for name, inner in (function.groups() for function in functions):
            yield _in_tags(name, _PARAMETER.finditer(inner), tools)
    elif not is_json and "<arg_key>" in body:
        yield _in_tags(body.partition("<arg_key>")[0], _PAIR.finditer(body), tools)
    elif re.fullmatch(r"\s*[\w.-]+\s*", body) and not _loads(body):
        yield ToolCall(name=body.strip(), arguments={})
    else:
        yield from _block(body)


def _deepseek(body: str) -> ToolCall:
    name, _, given = body.removeprefix("function<｜tool▁sep｜>").partition("<｜tool▁sep｜>")
    if not given:
        name, _, given = name.partition("\n")
    return ToolCall(name=clean(name.strip()), arguments=arguments_of(_FENCE.sub("", given)))


def _gemma(body: str) -> ToolCall:
    name, brace, given = body.strip().removeprefix("call:").partition("{")

    def quoted(match: re.Match[str]) -> str:
        if match[3]:
            return json.dumps(_CONSTANTS[match[3]])
        return json.dumps(match[1]) if match[2] is None else f"{json.dumps(match[2])}:"

    return ToolCall(name=clean(name.strip()), arguments=arguments_of(_LAX.sub(quoted, brace + given)))


def _invoked(body: str, tools: Sequence[JsonObject]) -> ToolCall:
    name, _, inner = body.removeprefix('name="').partition('"')
    return _in_tags(name, _NAMED.finditer(inner), tools)


def _mistral(body: str) -> ToolCall:
    name, _, given = body.partition("[ARGS]")
    return ToolCall(name=clean(name.partition("[CALL_ID]")[0].strip()), arguments=arguments_of(given))


def _harmony(body: str) -> ToolCall:
    header, _, given = body.partition("<|message|>")
    name = re.search(r"to=(?:functions\.)?([^\s<]+)", header)
    return ToolCall(name=clean(name[1]) if name else "", arguments=arguments_of(given))


def _pythonic(text: str) -> list[ToolCall] | None:
    """Parse a list of calls in Python syntax without running it; return None for any other text."""
    parsed = _python(text)
    calls = parsed.elts if isinstance(parsed, ast.List | ast.Tuple) else [parsed]
    if not calls or not all(isinstance(call, ast.Call) for call in calls):
        return None
    return [_python_call(call) for call in calls if isinstance(call, ast.Call)]


def _python(text: str) -> ast.expr | None:
    with contextlib.suppress(*_NOT_PYTHON), warnings.catch_warnings(action="ignore"):  # of escapes in strings
        return ast.parse(text.strip(), mode="eval").body
    return None


def _python_call(call: ast.Call) -> ToolCall:
    name, arguments = "", UNREADABLE
    with contextlib.suppress(*_NOT_PYTHON):
        name = ast.unparse(call.func)
        if not call.args and all(one.arg for one in call.keywords):
            given = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
            arguments = json.loads(json.dumps(given))
    return ToolCall(name=clean(name), arguments=arguments_of(arguments))


_READERS: Mapping[str, Callable[[re.Match[str], Sequence[JsonObject]], Iterable[ToolCall]]] = {
    "tagged": lambda block, tools: _tagged(block["tagged"], tools),
    "seed": lambda block, tools: _tagged(block["seed"], tools),
    "deepseek": lambda block, _: [_deepseek(block["deepseek"])],
    "gemma": lambda block, _: [_gemma(block["gemma"])],
    "invoked": lambda block, tools: [_invoked(block["invoked"], tools)],
    "mistral": lambda block, _: [_mistral(block["mistral"])],
    "listed": lambda block, _: _block(block["listed"]),
    "harmony": lambda block, _: [_harmony(block["harmony"])],
    "python": lambda block, _: _pythonic(block["python"]) or [ToolCall(name="", arguments=UNREADABLE)],
}
"""Name of a group in `_BLOCKS` -> its parser."""


def _in_tags(name: str, found: Iterable[re.Match[str]], tools: Sequence[JsonObject]) -> ToolCall:
    """Return a call from values without types; the schemas of the tool's parameters tell the types."""
    own = clean(name.strip())
    schemas = _parameters(own, tools)
    arguments: dict[str, Json] = {}
    for key, match in {clean(one["key"].strip()): one for one in found}.items():
        is_text = 'string="true"' in (match.groupdict().get("text") or "")
        arguments[key] = _value(match["value"], {"type": "string"} if is_text else schemas.get(key, {}))
    return ToolCall(name=own, arguments=arguments_of(arguments))


def _parameters(name: str, tools: Sequence[JsonObject]) -> Mapping[str, JsonObject]:
    """Return the schemas of a tool's parameters by name, without references."""
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, dict) and function.get("name") == name:
            with contextlib.suppress(BadSchema):
                schema = plain_schema(function.get("parameters"))
                return cast("Mapping[str, JsonObject]", schema.get("properties", {}))
    return {}


def _value(text: str, schema: JsonObject) -> Json:
    """Return the first reading of a value that its schema allows, or else one of the right type.

    The text itself comes after JSON and Python values of other types, but before a string in quotes.
    """
    readings = sorted([text, *_literals(text.strip())], key=lambda one: isinstance(one, str))
    kind: JsonObject = {"type": schema["type"]} if "type" in schema else {}
    allowed = (
        one
        for validator in map(Validator, filter(None, (schema, kind)))
        for one in readings
        if _is_shallow(one) and validator.problem(one) is None
    )
    return next(allowed, readings[0])


def _literals(text: str) -> list[Json]:
    """Return the value that a text stands for in JSON, or else in Python; empty if there is none."""
    with contextlib.suppress(ValueError, RecursionError):
        return [json.loads(text)]
    parsed = _python(text) if text in _CONSTANTS or text[:1] in ("[", "{") else None
    with contextlib.suppress(*_NOT_PYTHON):
        return [json.loads(json.dumps(ast.literal_eval(parsed)))] if parsed else []
    return []


def arguments_of(given: object) -> JsonObject:
    """Return a call's arguments from JSON text or an object, or `UNREADABLE`; null and "" mean none."""
    if given is None or (isinstance(given, str) and given.strip() in ("", "null")):
        return {}
    value = _loads(given) if isinstance(given, str) else given
    if not isinstance(value, dict) or not _is_shallow(cast(object, value)):
        return UNREADABLE
    return cast(JsonObject, _cleaned(cast(object, value)))


def _block(text: str) -> Iterator[ToolCall]:
    for one in _values(text) or [None]:
        fields = cast("dict[str, object]", one) if isinstance(one, dict) else {}
        name = fields.get("name")
        given = fields.get("arguments", fields.get("parameters", {} if fields else UNREADABLE))
        yield ToolCall(name=clean(name) if isinstance(name, str) else "", arguments=arguments_of(given))


def _bare(text: str) -> Iterator[ToolCall]:
    """Yield calls if the whole text is JSON of that form; other JSON is plain text."""
    for one in _values(text):
        fields = cast("dict[str, object]", one) if isinstance(one, dict) else {}
        name, given = fields.get("name"), fields.get("arguments", fields.get("parameters", ()))
        if isinstance(name, str) and isinstance(given, dict | str | None):
            yield ToolCall(name=clean(name), arguments=arguments_of(cast(object, given)))


def _values(text: str) -> list[object]:
    """Return the values of JSON text, one or several, and lists as their elements; empty for other text."""
    found, text, at = list[object](), text.strip(), 0
    try:
        while at < len(text):
            value, end = json.JSONDecoder().raw_decode(text, at)
            found += value if isinstance(value, list) else [value]
            at = cast("re.Match[str]", _BETWEEN.match(text, end)).end()
    except (ValueError, RecursionError):
        return []
    return found


def _loads(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_shallow(value: object) -> bool:
    """Return whether the nesting of lists and objects is within `MAX_DEPTH`. Not recursive."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        inside: list[object] = []
        for one in level:
            if isinstance(one, dict):
                inside += cast("dict[str, object]", one).values()
            elif isinstance(one, list):
                inside += cast("list[object]", one)
        if not inside:
            return True
        level = inside
    return False


def _cleaned(value: object) -> object:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): _cleaned(inner) for key, inner in cast("dict[str, object]", value).items()}
    if isinstance(value, list):
        return [_cleaned(inner) for inner in cast("list[object]", value)]
    return value


_PROBE: JsonObject = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "Probe.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
    },
}
_PROBE_CALL = ToolCall(name="probe_tool", arguments={"x": "y"}, id="call00000")
_MARK_TEXT = "\u2403"
NOT_SAYABLE = "the chat template writes such a reply otherwise than a model could say it"
_IN_THE_PROMPT = "describe them in the prompt (environment.style = 'python' or 'json'), or use another model"
_USER_MESSAGE: ChatMessage = {"role": "user", "content": "u"}


class ToolFormat:
    """The form in which a chat template writes tools, calls and tool results."""

    def __init__(
        self,
        template: ChatTemplate,
        ends: Sequence[str],
        read_reply: Callable[[str], str],
        spelling: Spelling = USUAL,
    ) -> None:
        """Take a template.

        Args:
            template: the chat template.
            ends: the tokens that end a reply, first the one after a reply without calls.
            read_reply: returns template text in the form of a decoded reply, without special tokens.
            spelling: the model's markup of thoughts.
        """
        self._template, self._read_reply, self._spelling = template, read_reply, spelling
        self._end, *self._other_ends = ends

    @functools.cached_property
    def is_readable(self) -> bool:
        """Whether the template writes tools, and writes calls in a form that `read_calls` can parse."""
        try:
            before = self._template.text([_USER_MESSAGE], [_PROBE], reply=True)
            after = self._template.text(
                [_USER_MESSAGE, _assistant_message((_PROBE_CALL,))], [_PROBE], reply=False
            )
        except Exception:  # noqa: BLE001 - templates are programs: they raise what they like
            return False
        written = self._written(before, after)
        if written is None:
            begins = os.path.commonprefix([before, after])  # noqa: RUF071 - it is text, letter by letter
            written = after[len(begins) :]
        calls = read_calls(answer_of(self._read_reply(written)))[1]
        found = [(call.name, call.arguments) for call in calls]
        return "probe_tool" in before and found == [(_PROBE_CALL.name, _PROBE_CALL.arguments)]

    def check(self) -> None:
        """Refuse a template that cannot represent rollouts with tools.

        Raises:
            UsageError: the template has no format for tools, or an unknown one.
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
            told = self.continuation(
                [{"role": "tool", "content": _MARK_TEXT}], [_PROBE], message_of(solution)
            )
            return _MARK_TEXT in told
        except Exception:  # noqa: BLE001 - as above
            return False

    @functools.cached_property
    def end_of_calls(self) -> str:
        """The token that ends a reply with calls; empty if the template has no form for them."""
        return self.reply(_assistant_message((_PROBE_CALL,)), [_PROBE])[1] if self._is_playable else ""

    def reply(self, message: ChatMessage, tools: Sequence[JsonObject]) -> tuple[str, str]:
        """Return the text that a model must sample to produce this message, and the token that ends it.

        Raises:
            RolloutError: the template writes the message in a form that no reply has.
        """
        prompt = self._template.text([_USER_MESSAGE], tools, reply=True)
        whole = self._template.text([_USER_MESSAGE, message], tools, reply=False)
        written = self._written(prompt, whole)
        if written is None:
            raise RolloutError(NOT_SAYABLE)
        if self._end in written:
            return written.rpartition(self._end)[0], self._end
        for end in self._other_ends:
            if written.rstrip().endswith(end):
                return written.rstrip().removesuffix(end), end
        if self._other_ends:  # the token that begins the next message ends the reply
            calls = message.get("tool_calls") or []
            answers = [{"role": "tool", "content": _MARK_TEXT} for _ in calls]
            follows = self._after(answers or [_USER_MESSAGE], tools, message, reply=False)
            for end in self._other_ends:
                if follows.removeprefix(whole).lstrip().startswith(end):
                    return written.rstrip(), end
        raise RolloutError(NOT_SAYABLE)

    def continuation(
        self, messages: Sequence[ChatMessage], tools: Sequence[JsonObject], after: ChatMessage
    ) -> str:
        """Return the text that the template adds after the end of a reply to which the messages respond.

        If the template replaces the token that ends the reply, the text begins with the other one.

        Raises:
            RolloutError: the template writes the reply otherwise once messages follow.
        """
        if after.get("tool_calls"):  # some templates write words behind the results then
            after = {**after, "content": ""}
        before = self._template.text([_USER_MESSAGE, after], tools, reply=False)
        whole = self._after(messages, tools, after, reply=True)
        said = before.rstrip()
        if self._other_ends and not said.endswith(self._end) and whole.startswith(said):
            end, rest = self.reply(after, tools)[1], whole[len(said) :]
            if end != self._end:
                return rest.lstrip() if rest.lstrip().startswith(end) else rest
        if not whole.startswith(said) and whole.startswith(unended := said.removesuffix(self._end)):
            return whole[len(unended) :]
        told = self._end.join(whole.split(self._end)[before.count(self._end) :])
        if any(one["role"] == "user" and str(one["content"]).strip() not in told for one in messages):
            raise RolloutError("the chat template writes an earlier reply otherwise once messages follow")
        return told

    def _after(
        self, messages: Sequence[ChatMessage], tools: Sequence[JsonObject], after: ChatMessage, *, reply: bool
    ) -> str:
        """Return the text of a conversation in which messages respond to a reply, each result to its call."""
        answers = iter(after.get("tool_calls") or [])
        messages = [
            {**m, "tool_call_id": call["id"], "name": call["function"]["name"]}
            if m["role"] == "tool" and (call := next(answers, None))
            else m
            for m in messages
        ]
        return self._template.text([_USER_MESSAGE, after, *messages], tools, reply=reply)

    def _written(self, prompt: str, whole: str) -> str | None:
        """Return the template's text of a reply; a thought that the prompt begins is closed first.

        None if the text before the reply differs from the text before a pending reply.
        """
        opening = self._spelling.opening.rstrip()
        header = prompt[: prompt.rindex(opening)] if self._spelling.opens(prompt) else prompt
        if whole.startswith(prompt):
            return whole[len(prompt) :]
        if not whole.startswith(header):
            return None
        written = whole[len(header) :]
        is_open = written.startswith(opening)  # an empty thought, of which the prompt has the beginning
        return written.removeprefix(opening) if is_open else self._spelling.closing + written


def begins_with(words: str, text: str) -> bool:
    """Whether words stand in a reply before its first call, or anywhere if it has no call."""
    first = _BLOCKS.search(text)
    return words in (text[: first.start()] if first else text)


def normalize_tool_calls(text: str, tools: Sequence[JsonObject] = ()) -> str:
    """Return a model's answer with its calls in the form that environments parse."""
    return as_text(*read_calls(text, tools))


def as_text(words: str, calls: Iterable[ToolCall]) -> str:
    """Return text and calls as one string in the form that environments parse."""
    blocks = (json.dumps({"name": c.name, "arguments": c.arguments}, ensure_ascii=False) for c in calls)
    return "\n".join([*filter(None, [words]), *(f"<tool_call>\n{block}\n</tool_call>" for block in blocks)])


def message_of(text: str) -> ChatMessage:
    """Return the message for a string in the form that environments parse."""
    words, calls = read_calls(text)
    return _assistant_message(with_call_ids(calls), words)


def with_call_ids(calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
    """Return the calls with ids of nine letters and digits, as the strictest templates require."""
    return tuple(replace(call, id=call.id or f"call{index:05d}") for index, call in enumerate(calls))


def _assistant_message(calls: Iterable[ToolCall], words: str = "") -> ChatMessage:
    return Reply(text=words, calls=tuple(calls)).message()
