"""BFCL's format sensitivity here beside the official one, for `parity_bfcl.py`."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from bfcl_mutations import Calls, mutations, python_text, right_calls
from bfcl_official import OFFICIAL, ScriptedHandler
from bfcl_single import Tally, summary_of

from genenv.benchmarks.bfcl.benchmark import Bfcl
from genenv.benchmarks.bfcl.official import NeedsEvaluation, decoded
from genenv.evaluation.base import Item

_HANDLER = ScriptedHandler([], native=False)
_MUTATIONS = 3
"""Tried with each item, of all kinds."""


def formats(benchmark: Bfcl, items: Sequence[Item], rng: random.Random) -> dict[str, Any]:
    """Right answers in the format of each item, mutations of them, the same damaged, and in other formats."""
    tally: Tally = defaultdict(Counter)
    differing: list[list[str]] = []
    entries = {entry["id"]: entry for entry in OFFICIAL.utils.load_dataset_entry("format_sensitivity")}
    assert [item.id for item in items] == [id_ for id_ in entries if id_ in {item.id for item in items}]
    for item in items:
        form = dict(pair.split("=", 1) for pair in item.data.prompt_format.split("&"))
        for kind, text in _texts(item, form["ret_fmt"], form["tool_call_tag"] == "True", rng):
            ours = benchmark.grade(item, {"text": text}).score == 1.0
            theirs = _official_verdict(item, text, entries[item.id])
            named = form["ret_fmt"]
            if ours != theirs and _needs_evaluation(item, text):
                tally[named]["needs_evaluation_different"] += 1
                continue
            tally[named]["officially_valid"] += theirs
            tally[named][f"{kind}_valid"] += theirs if kind == "right" else 0
            tally[named][kind] += kind == "right"
            tally[named]["equal" if ours == theirs else "different"] += 1
            differing += [[item.id, kind, str(ours), text[:200]]] if ours != theirs else []
    return summary_of(tally, differing)


def _official_verdict(item: Item, text: str, entry: dict[str, Any]) -> bool:
    """As `format_sensitivity_runner` has it; what it raises ends the official run, and is wrong here."""
    returned, tagged, *_ = OFFICIAL.handler.parse_prompt_variation_params(item.data.prompt_format)
    try:
        result = OFFICIAL.runner._evaluate_single_ast_entry(
            *(_HANDLER, item.id, text, item.data.possible, copy.deepcopy(entry), "text"),
            *("format_sensitivity", OFFICIAL.Language.PYTHON, OFFICIAL.ReturnFormat(returned), tagged),
        )
    except Exception:  # noqa: BLE001 - whatever it raises
        return False
    return bool(result["valid"])


def _needs_evaluation(item: Item, text: str) -> bool:
    try:
        decoded(text, "python", item.data.prompt_format)
    except NeedsEvaluation:
        return True
    except Exception:  # noqa: BLE001 - as officially
        return False
    return False


def _texts(item: Item, returned: str, tagged: bool, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Replies by kind."""
    calls = right_calls(item.data.possible, item.data.functions)
    right = _written(calls, returned)
    yield "right", _tagged(right) if tagged else right
    yield "tag", right if tagged else _tagged(right)
    for kind, changed in rng.sample(list(mutations(calls, rng)), _MUTATIONS):
        text = _written(changed, returned)
        yield kind, _tagged(text) if tagged else text
    other = rng.choice([name for name in _WRITERS if name != returned])
    text = _written(calls, other)
    yield f"as_{other}", _tagged(text) if tagged else text
    for kind, odd in rng.sample(list(_damaged(right)), _MUTATIONS):
        yield kind, _tagged(odd) if tagged and rng.random() < 0.8 else odd


def _tagged(text: str) -> str:
    return f"<TOOLCALL>{text}</TOOLCALL>"


def _damaged(text: str) -> Iterator[tuple[str, str]]:
    yield "fenced", f"```\n{text}\n```"
    yield "prose_before", f"Here it is: {text}"
    yield "prose_after", f"{text} I hope [that] helps."
    yield "cut", text[: len(text) * 2 // 3]
    yield "lines", text.replace(" ", "\n")
    yield "twice", f"{text}\n{text}"
    yield "half_a_tag", f"<TOOLCALL>{text}"
    yield "two_tags", f"<TOOLCALL></TOOLCALL><TOOLCALL>{text}</TOOLCALL>"
    yield "single_quotes", text.replace('"', "'")
    yield "ampersand", text.replace("=", "=&", 1)
    yield "types_changed", text.replace("string", "integer").replace("integer", "array", 1)
    yield "upper", text.upper()
    yield "renamed", text.replace("parameters", "arguments").replace("param", "parameter")
    yield "entities", f'<!DOCTYPE a [<!ENTITY b "c">]>{text}'
    yield "nothing", ""
    yield "brackets", "[]"
    yield "no_functions", "<functions></functions>"
    yield "an_object", "[{}]"
    yield "prose", "I cannot do that."


# Calls as text.


def _written(calls: Calls, returned: str) -> str:
    return _WRITERS[returned](calls)


def _json(calls: Calls) -> str:
    made = [{"function": name, "parameters": words} for call in calls for name, words in call.items()]
    return f"```json\n{json.dumps(made, default=str)}\n```"


def _verbose_xml(calls: Calls) -> str:
    def param(name: str, value: Any) -> str:  # noqa: ANN401
        return f'<param name={quoteattr(str(name))} value={quoteattr(_text(value))} type="{_type(value)}"/>'

    return _functions(calls, lambda words: f"<params>{_each(words, param)}</params>")


def _concise_xml(calls: Calls) -> str:
    def param(name: str, value: Any) -> str:  # noqa: ANN401
        return f'<param name={quoteattr(str(name))} type="{_type(value)}">{escape(_text(value))}</param>'

    return _functions(calls, lambda words: _each(words, param))


def _functions(calls: Calls, inside: Callable[[dict[str, Any]], str]) -> str:
    made = [
        f"<function name={quoteattr(name)}>{inside(words)}</function>"
        for call in calls
        for name, words in call.items()
    ]
    return f"<functions>{''.join(made)}</functions>"


def _each(words: Mapping[str, Any], write: Callable[[str, Any], str]) -> str:
    return "".join(write(name, value) for name, value in words.items())


def _text(value: Any) -> str:  # noqa: ANN401
    return value if isinstance(value, str) else str(value)


def _type(value: Any) -> str:  # noqa: ANN401
    names = {bool: "boolean", int: "integer", float: "float", list: "array", dict: "dict", tuple: "tuple"}
    return names.get(type(value), "string")


_WRITERS: Mapping[str, Callable[[Calls], str]] = {
    "python": python_text,
    "json": _json,
    "verbose_xml": _verbose_xml,
    "concise_xml": _concise_xml,
}
