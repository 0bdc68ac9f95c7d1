"""What API-Bank's grading gives on its own recorded answers and on small changes of them.

Run by hand with `GENENV_DATA` set: `python bench/parity_api_bank.py`. One JSON object of counts is printed.
Official code is run as it is, where a clone of it is named: with `--toolrl FOLDER` ToolRL's `generate.py` and
`evaluate.py` on many kinds of reply, with `--authors FOLDER` the authors' `api_call_extraction.py` on their
recorded requests. With `--rouge FOLDER`, where the package `rouge` lies (`pip install --target FOLDER
rouge==1.0.1`), ROUGE-L is compared with it, pair by pair.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from official import checked_out, run_file
from toolrl_official import FILES, kinds_of_reply, official_verdicts

from genenv.benchmarks.api_bank import ApiBank, ApiBankConfig
from genenv.benchmarks.api_bank.benchmark import request_in, rouge_l
from genenv.evaluation.base import Item
from genenv.evaluation.data import DataFolder

Parameters = dict[str, Any]
AUTHORS_READER = "api-bank/api_call_extraction.py"


def toolrl_reply(name: str, parameters: Parameters) -> str:
    call = json.dumps({"name": name, "parameters": parameters})
    return f"<think> As asked. </think>\n<tool_call>\n{call}\n</tool_call>"


def authors_reply(name: str, parameters: Parameters) -> str:
    return f"API-Request: [{name}({', '.join(f'{key}={value!r}' for key, value in parameters.items())})]"


def mutations(name: str, parameters: Parameters) -> Iterator[tuple[str, str, Parameters]]:
    """Each is one step away from the recorded call: (kind, name, parameters)."""
    for key, value in parameters.items():
        others = {k: v for k, v in parameters.items() if k != key}
        yield "changed", name, {**parameters, key: value + "x"}
        yield "in a list", name, {**parameters, key: [value]}
        if value:
            yield "emptied", name, {**parameters, key: ""}
        if value.swapcase() != value:
            yield "other case", name, {**parameters, key: value.swapcase()}
        yield "dropped", name, others
        yield "renamed", name, {**others, key + "_x": value}
    yield "added", name, {**parameters, "extra_x": "1"}
    yield "other name", name + "X", dict(parameters)


def mutated(bench: ApiBank, items: list[Item], reply: Callable[[str, Parameters], str]) -> dict[str, Any]:
    found: dict[str, Counter[str]] = {}
    for item in items:
        gold = item.data.gold
        for kind, api, parameters in mutations(gold.name, dict(gold.parameters)):
            grade = bench.grade(item, {"reply": reply(api, parameters)})
            counts = found.setdefault(kind, Counter())
            counts["graded"] += 1
            counts["right"] += grade.score == 1
            for name in ("lenient", "typed"):
                if name in grade.measures:
                    counts[f"{name} right"] += grade.measures[name] == 1
    return {kind: dict(counts) for kind, counts in found.items()}


def gold_figures(
    bench: ApiBank, items: list[Item], reply: Callable[[str, Parameters], str]
) -> dict[str, Any]:
    graded = [
        (item, bench.grade(item, {"reply": reply(item.data.gold.name, dict(item.data.gold.parameters))}))
        for item in items
    ]
    return {f"{figure.name} {figure.group}".strip(): figure.value for figure in bench.figures(graded)}


def oddities(items: list[Item], originals: list[Item]) -> dict[str, int]:
    """Recorded calls that no honest reader of the prompt would make, or that its types do not suggest.

    Args:
        items: ToolRL's questions.
        originals: the authors' level 1, in the same order as ToolRL's.
    """
    counts: Counter[str] = Counter()
    damaged = {
        mine.id for mine, theirs in zip(items, originals, strict=False) if _gold(mine) != _gold(theirs)
    }
    for item in items:
        gold, declared = item.data.gold, item.data.declared
        undeclared = [key for key in gold.parameters if key not in declared]
        counts["tool not offered"] += not declared and bool(gold.parameters)
        counts["parameter not declared"] += bool(declared) and bool(undeclared)
        counts["value damaged"] += item.id in damaged
        counts["any of these"] += bool(undeclared) or item.id in damaged
        counts["a type other than str declared"] += any(
            key in declared and declared[key].type != "str" for key in gold.parameters
        )
    return dict(counts)


def _gold(item: Item) -> tuple[str, Parameters]:
    return item.data.gold.name, dict(item.data.gold.parameters)


def recorded(data: DataFolder) -> Iterator[tuple[str, str, str, dict[str, str]]]:
    """Part and text of each recorded request, then API and parameters as the dialogues' files say."""
    folders = {"level-1-api": "level-1-given-desc", "level-2-api": "level-2-toolsearcher"}
    for part, folder in folders.items():
        for entry in data.json(f"api-bank/test-data/{part}.json"):
            lines = [
                line for _, line in data.json_lines(f"api-bank/lv1-lv2-samples/{folder}/{entry['file']}")
            ]
            places = [place for place, line in enumerate(lines) if line["role"] == "API"]
            # The authors' samples: for every API message, the message itself and the one after it.
            record = lines[places[entry["id"] // 2] + entry["id"] % 2]
            yield part, entry["expected_output"], record["api_name"], _texts(record["param_dict"])
    dialogues = data.json("api-bank/test-data/level-3.json")
    for entry in data.json("api-bank/test-data/level-3-batch-inf.json"):
        record = dialogues[entry["sample_id"]]["apis"][entry["api_id"]]
        yield "level-3-batch", entry["output"], record["api_name"], _texts(record["input"])


def _texts(parameters: dict[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in parameters.items()}


def against_recorded(data: DataFolder, clone: Path | None) -> dict[str, Any]:
    """Whether requests, read from their texts here and by the authors' own reader, are the recorded ones."""
    found: dict[str, Counter[str]] = {}
    folder, which = checked_out(clone, [AUTHORS_READER]) if clone else (Path(), {})
    theirs = run_file(folder / AUTHORS_READER) if clone else {}
    for part, text, name, wanted in recorded(data):
        counts = found.setdefault(part, Counter())
        read = request_in(text)
        counts["requests"] += 1
        counts["read here as recorded"] += read is not None and (read.name, read.parameters) == (name, wanted)
        if theirs:
            call = theirs["parse_api_call"](theirs["get_api_call"](text) or text)
            counts["read by the authors' code as recorded"] += call == (name, wanted)
    return {"official": which, **{part: dict(counts) for part, counts in found.items()}}


def rouge_pairs(data: DataFolder) -> Iterator[tuple[str, str]]:
    """Recorded responses against themselves, the next one, their first half, and their words reversed."""
    bench = ApiBank(ApiBankConfig(form="authors"))
    for part in ("level-1-response", "level-2-response", "level-3-response"):
        texts = [item.data.response for item in bench.load(data, part)]
        for text, other in zip(texts, [*texts[1:], texts[0]], strict=True):
            words = text.split()
            yield from ((text, text), (other, text))
            yield " ".join(words[: len(words) // 2 + 1]), text
            yield " ".join(reversed(words)), text
            yield f"{text} {other}", text


def against_rouge(data: DataFolder, folder: Path) -> dict[str, Any]:
    sys.path.insert(0, str(folder))
    from rouge import Rouge  # pyright: ignore[reportMissingImports] - it lies in that folder

    theirs, worst, pairs, refused = Rouge(metrics=["rouge-l"]), 0.0, 0, 0
    for answer, reference in rouge_pairs(data):
        try:
            wanted = theirs.get_scores(answer, reference)[0]["rouge-l"]["f"]
        except ValueError:
            refused += 1
            continue
        worst, pairs = max(worst, abs(wanted - rouge_l(answer, reference))), pairs + 1
    return {"pairs": pairs, "largest_difference": worst, "refused_by_the_package": refused}


def against_toolrl(items: list[Item], clone: Path, every: int) -> dict[str, Any]:
    """Verdicts of ToolRL's own two files beside ours, by kind of reply; every so manieth question."""
    folder, which = checked_out(clone, FILES)
    bench, asked = ApiBank(), [item for item in items if item.data.gold.parameters][::every]
    replies = [(kind, item, reply) for item in asked for kind, reply in kinds_of_reply(item.data.gold)]
    verdicts = official_verdicts([(item.data.gold, reply) for _, item, reply in replies], folder)
    counts: dict[str, Counter[str]] = {}
    for (kind, item, reply), theirs in zip(replies, verdicts, strict=True):
        grade, count = bench.grade(item, {"reply": reply}), counts.setdefault(kind, Counter())
        count["replies"] += 1
        count["by their code"] += theirs
        count["by the paper's rule, here"] += grade.score == 1
        count["the rule is otherwise"] += (grade.score == 1) != theirs
        count["toolrl_code is otherwise"] += (grade.measures["toolrl_code"] == 1) != theirs
    return {
        "official": which,
        "kinds": len(counts),
        "replies": len(replies),
        "differences of toolrl_code": sum(count["toolrl_code is otherwise"] for count in counts.values()),
        "kinds in which the rule differs": {
            kind: dict(count) for kind, count in counts.items() if count["the rule is otherwise"]
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rouge", type=Path, help="a folder with the package rouge")
    parser.add_argument("--toolrl", type=Path, help="a clone of github.com/qiancheng0/ToolRL")
    parser.add_argument("--authors", type=Path, help="a clone of github.com/AlibabaResearch/DAMO-ConvAI")
    parser.add_argument("--every", type=int, default=20, help="of ToolRL's questions, every so manieth")
    options = parser.parse_args()
    folder = options.rouge
    data, found = DataFolder.from_environment(), dict[str, Any]()
    toolrl, authors = ApiBank(), ApiBank(ApiBankConfig(form="authors"))
    start = time.perf_counter()
    items = list(toolrl.load(data, "all"))
    found["load_s"] = round(time.perf_counter() - start, 3)
    start = time.perf_counter()
    found["gold"] = gold_figures(toolrl, items, toolrl_reply)
    found["grade_items_per_s"] = round(len(items) / (time.perf_counter() - start))
    found["oddities"] = oddities(items, list(authors.load(data, "level-1-api")))
    start = time.perf_counter()
    found["mutations"] = mutated(toolrl, items, toolrl_reply)
    found["mutations_s"] = round(time.perf_counter() - start, 3)
    start = time.perf_counter()
    requests = list(authors.load(data, "all"))
    found["authors_load_s"] = round(time.perf_counter() - start, 3)
    found["authors_gold"] = gold_figures(authors, requests, authors_reply)
    found["authors_mutations"] = mutated(authors, requests, authors_reply)
    found["authors_recorded"] = against_recorded(data, options.authors)
    if options.toolrl:
        found["toolrl"] = against_toolrl(items, options.toolrl, options.every)
    found["rouge_l"] = {
        part: [len(responses), sum(authors.grade(i, {"reply": i.data.response}).score for i in responses)]
        for part in ("level-1-response", "level-2-response", "level-3-response")
        for responses in [authors.load(data, part)]
    }
    if folder:
        found["rouge_package"] = against_rouge(data, folder)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
