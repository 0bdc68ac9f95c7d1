"""BFCL's single-turn verdicts here beside the official ones, for `parity_bfcl.py`."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from bfcl_mutations import (
    foreign_text,
    foreign_value,
    mutations,
    odd_expressions,
    odd_texts,
    python_text,
    right_calls,
)
from bfcl_official import OFFICIAL, ScriptedHandler

from genenv.benchmarks.bfcl.benchmark import Bfcl
from genenv.benchmarks.bfcl.data import checks_calls
from genenv.benchmarks.bfcl.official import NeedsEvaluation, decoded
from genenv.chat.tool_calls import UNREADABLE
from genenv.evaluation.base import Item

Tally = dict[str, Counter[str]]


def questions(benchmark: Bfcl, items: Sequence[Item], rng: random.Random, expressions: int) -> dict[str, Any]:
    tally: Tally = defaultdict(Counter)
    differing: list[list[str]] = []
    for item in items:
        for form, kind, answer in answers_to(item, rng, expressions):
            if "text" in answer:
                alike = decoded_alike(item, answer["text"])
                tally[f"{form}_decoding"][alike] += 1
                if alike == "different":
                    differing.append([item.id, f"{form}_decoding", kind, answer["text"][:200]])
                if alike.startswith("needs_evaluation"):
                    ours, theirs = benchmark.grade(item, answer).score == 1.0, _official_verdict(item, answer)
                    same = "equal" if ours == (theirs == "valid") else "different"
                    tally[form][f"needs_evaluation_{same}"] += 1
                    continue
            group = "right" if kind == "right" else "other"
            ours = benchmark.grade(item, answer).score == 1.0
            theirs = _official_verdict(item, answer)
            tally[form][f"{group}_officially_valid"] += theirs == "valid"
            tally[form][group] += 1
            tally[form]["official_raises"] += theirs == "raises"
            agree = ours == (theirs == "valid")
            tally[form]["equal" if agree else "different"] += 1
            if not agree:
                differing.append([item.id, form, kind, theirs, str(ours)])
    return summary_of(tally, differing)


def decoded_alike(item: Item, text: str) -> str:
    """Whether a reply becomes the same calls: `equal`, `different`, or why it was not tried here."""
    ours: Any = None
    theirs: Any = None
    with contextlib.suppress(Exception):  # as officially
        theirs = OFFICIAL.handler.default_decode_ast_prompting(
            text, OFFICIAL.ReturnFormat(item.data.language), False
        )
    try:
        ours = decoded(text, item.data.language)
    except NeedsEvaluation as error:
        if theirs is None:
            return "needs_evaluation_which_fails"
        return "needs_evaluation" if error.likely_read else "needs_evaluation_of_known_names"
    except Exception:  # noqa: BLE001 - as officially
        ours = None
    return "equal" if repr(ours) == repr(theirs) else "different"


def answers_to(item: Item, rng: random.Random, expressions: int) -> Iterator[tuple[str, str, Any]]:
    """Answers to an item: form, kind, and as `grade` takes them."""
    question = item.data
    right = right_calls(question.possible, question.functions)
    if not checks_calls(question.category):
        name = question.functions[0]["name"] if question.functions else "f"
        right = [{name: {"a": 1}}]
    versions = [("right", right), *mutations(right, rng)]
    if question.possible:
        versions += [("right", right_calls(question.possible, question.functions, rng)) for _ in range(3)]
    foreign = question.language != "python"
    for kind, calls in versions:
        native = json.dumps(_native(calls, question), default=str)
        yield "native", kind, {"calls": json.loads(native)}
        if foreign:
            yield "text", kind, {"text": foreign_text(calls, question.functions, question.language)}
        else:
            yield "text", kind, {"text": python_text(calls)}
    calls = _native(right, question)
    spoilt = {**calls[-1], "arguments": UNREADABLE} if calls else {"name": "f", "arguments": UNREADABLE}
    yield "native", "no_json", {"calls": [*calls[:-1], spoilt]}
    yield "native", "no_object", {"calls": [{"name": "f", "arguments": []}]}
    text = foreign_text(right, question.functions, question.language) if foreign else python_text(right)
    for kind, odd in odd_texts(text):
        yield "odd_text", kind, {"text": odd}
    for kind, odd in odd_expressions(text, question.language, rng, expressions):
        yield "odd_expression", kind, {"text": odd}


_NATIVE = ScriptedHandler([], native=True)


def _as_sent(arguments: Any) -> str:  # noqa: ANN401
    """A call's arguments as an endpoint sends them; for those that could not be read, some that cannot."""
    return "{'a': " if arguments == UNREADABLE else json.dumps(arguments)


def _native(calls: Any, question: Any) -> list[Any]:  # noqa: ANN401
    properties = {f["name"]: f["parameters"]["properties"] for f in question.functions}
    made = []
    for call in calls:
        for name, words in call.items():
            if question.language != "python":
                kinds = properties.get(name, {})
                words = {
                    k: foreign_value(v, kinds.get(k, {}), question.language, bare=True)
                    for k, v in words.items()
                }
            made.append({"name": name.replace(".", "_"), "arguments": words})
    return made


def _official_verdict(item: Item, answer: dict[str, Any]) -> str:
    """`valid`, `invalid`, or `raises` where the official code does, which ends its run."""
    question = copy.deepcopy(item.data)
    try:
        if "text" in answer:
            decoded = OFFICIAL.handler.default_decode_ast_prompting(
                answer["text"], OFFICIAL.ReturnFormat(question.language), False
            )
        else:
            said = [{call["name"]: _as_sent(call["arguments"])} for call in answer["calls"]]
            decoded = _NATIVE.decode_ast(said, OFFICIAL.ReturnFormat(question.language), False)
    except Exception:  # noqa: BLE001 - as officially
        decoded = None
    if not checks_calls(question.category):
        called = decoded is not None and not OFFICIAL.utils.is_empty_output(decoded)
        return "valid" if called == ("irrelevance" not in question.category) else "invalid"
    if decoded is None or not OFFICIAL.utils.is_function_calling_format_output(decoded):
        return "invalid"
    try:
        result = OFFICIAL.ast_checker(
            question.functions,
            decoded,
            question.possible,
            OFFICIAL.Language(question.language),
            question.category,
            "text" if "text" in answer else "native",
        )
    except Exception:  # noqa: BLE001 - whatever it raises is counted
        return "raises"
    return "valid" if result["valid"] else "invalid"


def summary_of(tally: Tally, differing: list[list[str]]) -> dict[str, Any]:
    counts = {form: {key: n for key, n in sorted(count.items()) if n} for form, count in tally.items()}
    return {"counts": counts, "differences": len(differing), "first_differences": differing[:8]}
