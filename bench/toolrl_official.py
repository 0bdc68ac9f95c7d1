"""ToolRL's own code for API-Bank, run on replies that are made here, for `parity_api_bank.py`.

`generate.py` is run with a stand-in for vLLM that says what it is told to say, then `evaluate.py` on what it
wrote. Both are the repository's files, unchanged.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from genenv.benchmarks.api_bank.questions import Call

_HERE = "benchmarks/API-Bank"
FILES = (f"{_HERE}/generate.py", f"{_HERE}/evaluate.py")
_MODEL = "scripted"


def official_verdicts(answers: Sequence[tuple[Call, str]], folder: Path) -> list[bool]:
    """Whether ToolRL's code says that each reply is right.

    Args:
        answers: the recorded call, and a reply.
        folder: where its files are.
    """
    golds = [[{"name": gold.name, "parameters": dict(gold.parameters)}] for gold, _ in answers]
    with _workplace(golds) as work:
        _run(folder / FILES[0], [reply for _, reply in answers])
        _run(folder / FILES[1], [])
        scores = json.loads((work / f"PATH_TO_YOUR_SCORE_ROOT/{_MODEL}/score.json").read_text("utf-8"))
    return [scores[f"Level1_{place}"]["score"] == 1 for place in range(len(answers))]


@contextmanager
def _workplace(golds: Sequence[Any]) -> Iterator[Path]:
    """A folder with questions of these answers, and no others, in which the two files are run."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        entries = [{"system": "", "user": "", "answer": gold} for gold in golds]
        for level, content in ((1, entries), (2, []), (3, [])):
            Path(name, f"level-{level}-api_processed.json").write_text(json.dumps(content), encoding="utf-8")
        os.chdir(name)
        try:
            yield Path(name)
        finally:
            os.chdir(before)


def _run(path: Path, replies: Sequence[str]) -> None:
    waiting = iter(replies)

    class Scripted:
        def __init__(self, **_: object) -> None: ...

        def chat(self, _: object, **__: object) -> Any:  # noqa: ANN401
            return [SimpleNamespace(outputs=[SimpleNamespace(text=next(waiting))])]

    stand_ins = {
        "vllm": {"LLM": Scripted, "SamplingParams": SimpleNamespace},
        "tqdm": {"tqdm": lambda values: values},
    }
    modules, arguments = dict(sys.modules), sys.argv
    for name, members in stand_ins.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(members)
    sys.argv = [path.name, "--model_paths", _MODEL]
    try:
        with redirect_stdout(StringIO()):
            runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv = arguments
        for name in stand_ins:
            sys.modules.pop(name)
            if name in modules:
                sys.modules[name] = modules[name]


def kinds_of_reply(gold: Call) -> Iterator[tuple[str, str]]:
    """Replies that hold the recorded call, or nearly: (kind, reply). The recorded call has parameters."""
    parameters = dict(gold.parameters)
    right: dict[str, Any] = {"name": gold.name, "parameters": parameters}
    other, line = {"name": "Other", "parameters": {"x": "1"}}, json.dumps(right)
    key = next(iter(parameters))
    spoilt = {"name": gold.name, "parameters": {**parameters, key: f"{parameters[key]}x"}}

    def block(*values: object, between: str = "\n", thought: str = "<think> So. </think>\n") -> str:
        written = between.join(value if isinstance(value, str) else json.dumps(value) for value in values)
        return f"{thought}<tool_call>\n{written}\n</tool_call>"

    yield "right", block(right)
    yield "right, in one line with its marks", f"<tool_call>{line}</tool_call>"
    yield "right, no thoughts", block(right, thought="")
    yield "right, a response after it", f"{block(right)}\n<response> Done. </response>"
    yield "right, block not closed", block(right).removesuffix("</tool_call>")
    yield "right, blank lines around", block("", right, "", "")
    yield "right, indented", block(f"    {line}")
    yield "right, keys in another order", block({"parameters": parameters, "name": gold.name})
    yield (
        "right, parameters in another order",
        block({"name": gold.name, "parameters": dict(reversed(parameters.items()))}),
    )
    yield "right, one more key beside", block({**right, "id": 1})
    yield "right, non-ASCII escaped", block(json.dumps(right, ensure_ascii=True))
    yield "right, thoughts not closed", block(right, thought="<think> So.\n")
    yield "right, thoughts only closed", block(right, thought="So. </think>\n")
    yield "right after another call", block(other, right)
    yield "right before another call", block(right, other)
    yield "right twice", block(right, right)
    yield "right after a spoilt one", block(spoilt, right)
    yield "right after prose in the block", block("I call:", right)
    yield "right before prose in the block", block(right, "That is it.")
    yield "right after a broken line", block(line[:-3], right)
    yield "right in the second block", block(other) + block(right, thought="")
    yield "right in the first of two blocks", block(right) + block(other, thought="")
    yield "right, an empty block after it", block(right) + block(thought="")
    yield "right, over several lines", block(json.dumps(right, indent=2))
    yield "right, in a list", block([right])
    yield "right, in a list of two", block([other, right])
    yield "right, two on one line", block(right, other, between=" ")
    yield "right, comma after it", block(f"{line},")
    yield "right, prose before it on its line", block(f"Call: {line}")
    yield "right, in a fence in the block", block(f"```json\n{line}\n```")
    yield "right, arguments for parameters", block({"name": gold.name, "arguments": parameters})
    yield "right, a number before it", block("1", right)
    yield "right, null before it", block("null", right)
    yield "right, a text before it", block('"so"', right)
    yield "right, within thoughts alone", f"<think> {block(right, thought='')} </think> No."
    yield "right, without any block", line
    yield "right, in a fence without a block", f"```json\n{line}\n```"
    yield "right, as a text of JSON", block(json.dumps(line))
    yield "parameters alone", block(parameters)
    yield "parameters alone, without a block", json.dumps(parameters)
    yield "name alone", block({"name": gold.name})
    yield "parameters as a text", block({"name": gold.name, "parameters": json.dumps(parameters)})
    yield "a value changed", block(spoilt)
    yield (
        "a parameter dropped",
        block({"name": gold.name, "parameters": {k: v for k, v in parameters.items() if k != key}}),
    )
    yield "a parameter added", block({"name": gold.name, "parameters": {**parameters, "x": "1"}})
    yield "another name", block({**right, "name": f"{gold.name}X"})
    yield "other case", block({**right, "name": gold.name.swapcase()})
    yield "empty", ""
    yield "an empty block", block()
    yield "prose", "I cannot do that."
    yield "Python in the block", block(f"{gold.name}()")
    yield "single quotes", block(str(right))
