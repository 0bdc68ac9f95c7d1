"""Rows of `genenv reproduce`, or runs of a sweep, kept as lines of JSON: several machines make one table.

    python bench/paper_rows.py keep runs/smollm2-paper --commit 0123abc --file rows.jsonl
    python bench/paper_rows.py table docs/results/appendix/smollm2-paper.toml --offline 192 --file rows.jsonl
    python bench/paper_rows.py contrasts bench/python_output/python_output.toml --file open-text.jsonl \
      --contrast simulator.train=true:frozen

`keep` appends the finished runs of a reproduction or a sweep that the file does not have: held-out successes,
budgets, and metrics. It refuses a file with runs of another experiment. `table` prints the page of
`genenv reproduce` from them, and the differences at the end and at equal tokens. `contrasts` prints such
differences between variants of a sweep.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from genenv.cli.console import pair_of, seeds_of
from genenv.config.resolved import ARITHMETIC, FREE, by_key
from genenv.config.run import RunConfig, load_config
from genenv.errors import GenenvError, UsageError
from genenv.research.reproduce import AGAINST, differences, markdown, subtitle, tables
from genenv.research.reproduction import PARAMETERS, ROWS, collect_runs, rows_of
from genenv.research.sweeps.compare import AT_THE_END, Comparison, compare_runs, rows
from genenv.research.sweeps.grid import FILE
from genenv.research.sweeps.readings import MeasuredRun, Measurement, read_all

METRICS = (
    *("time/round_s", "agent/new_success", "tasks/text_tokens", "tasks/required_response_tokens"),
    *("tasks/mixed", "tasks/new", "simulator/valid_rate"),
)
"""The metrics that pages read."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    keeping = commands.add_parser("keep", help="append finished runs to the file")
    keeping.add_argument("out", type=Path, help="the folder of the reproduction")
    keeping.add_argument("--commit", required=True, help="the commit with which they were trained")
    table = commands.add_parser("table", help="print the page of the runs in the file")
    table.add_argument("config", type=Path, help="the settings that the runs share")
    table.add_argument("--offline", type=int, nargs="+", default=[957, 1777])
    table.add_argument(
        "--seeds", default="", help="only these, as of genenv reproduce: 1-1 is seed 1 (default: all)"
    )
    of_sweep = commands.add_parser("contrasts", help="print differences between variants of a sweep")
    of_sweep.add_argument("config", type=Path, help="the settings that the runs share")
    of_sweep.add_argument("--contrast", action="append", required=True, help="two variants, A:B")
    for one in (keeping, table, of_sweep):
        one.add_argument("--file", type=Path, required=True, help="the lines of JSON")
    options = parser.parse_args(arguments)
    try:
        if options.command == "keep":
            new, notes = keep(options.out, options.file, options.commit)
            print(*notes, f"{new} runs are new in {options.file}", sep="\n")
        elif options.command == "contrasts":
            runs = [run_of(line, load_config(options.config)) for line in lines(options.file)]
            compared = compare_runs(runs, [pair_of(text) for text in options.contrast])
            notes = (f"note: {note}" for note in compared.notes)
            print(*at_equal_amounts(compared), *notes, sep="\n")
        else:
            print(page(options.config, options.file, options.offline, options.seeds))
    except GenenvError as error:
        parser.error(str(error))


def keep(out: Path, file: Path, commit: str) -> tuple[int, list[str]]:
    """Append the finished runs of a reproduction or a sweep that the file does not have.

    Returns:
        The number of runs that are new, and a sentence for each that is left out.

    Raises:
        UsageError: the folder holds neither, scores cannot be kept, or the file has runs of another commit or
            of other settings, or other results of the same run; nothing is written.
    """
    is_sweep = (out / FILE).is_file()
    sweeps = [out] if is_sweep else [path for path in (out / "rows", out / PARAMETERS) if path.is_dir()]
    if not sweeps:
        raise UsageError(f"{out} holds no reproduction; name the --out of genenv reproduce, or of a sweep")
    kept = lines(file)
    known = {(one["variant"], one["seed"]) for one in kept}
    tasks = kept[-1]["tasks"] if kept else None
    runs, _, notes = read_all(sweeps)
    found = [line_of(run, commit) for run in runs if run.finished]
    for line in found:
        for one in kept:
            if differing := _differing(one, line):
                theirs, ours = (f"{of['variant']}, seed {of['seed']}" for of in (one, line))
                raise UsageError(
                    f"{file} has {theirs}, of {differing} than {ours}, in {out}; name another --file"
                )
    new = [line for line in found if (line["variant"], line["seed"]) not in known]
    with file.open("a", encoding="utf-8") as appended:
        for line in new:
            told, tasks = line["tasks"] != tasks, line["tasks"]
            short = line if told else {key: value for key, value in line.items() if key != "tasks"}
            appended.write(json.dumps(short, separators=(",", ":")) + "\n")
    return len(new), notes


def _differing(kept: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return how a kept run differs from the experiment of a new one; empty if it does not.

    Runs that were kept by older versions have no digest of their settings.
    """
    if not (kept["commit"].startswith(new["commit"]) or new["commit"].startswith(kept["commit"])):
        return f"another commit ({kept['commit']})"
    if kept["variant"] != new["variant"]:
        return ""
    if kept.get("settings", new["settings"]) != new["settings"]:
        return "other settings"
    is_same = kept["seed"] != new["seed"] or all(kept[key] == new[key] for key in ("tasks", "measured"))
    return "" if is_same else "other results"


def lines(file: Path) -> list[dict[str, Any]]:
    """Return the runs in a file; none if it does not exist."""
    if not file.is_file():
        return []
    found: list[dict[str, Any]] = []
    for line in file.read_text(encoding="utf-8").splitlines():  # tasks stand in the first of equal ones
        own = json.loads(line)
        found.append({**({"tasks": found[-1]["tasks"]} if "tasks" not in own else {}), **own})
    return found


def line_of(run: MeasuredRun, commit: str) -> dict[str, Any]:
    """Return a run as JSON, with 1 for each task that was solved and 0 for each of the others.

    Raises:
        UsageError: a score is neither 0 nor 1, as with several agents.
    """
    tasks = list(run.measured[0].scores)
    if {score for one in run.measured for score in one.scores.values()} - {0.0, 1.0}:
        raise UsageError(f"{run.path} has scores between 0 and 1, which cannot be kept")
    return {
        "variant": run.variant,
        "seed": run.seed,
        "commit": commit,
        "settings": _digest(run.config),
        "tasks": tasks,
        "measured": [
            {
                "round": one.round,
                "spent": one.spent,
                "scores": "".join(str(int(one.scores[task])) for task in tasks),
            }
            for one in run.measured
        ],
        "metrics": {
            number: {name: round(values[name], 4) for name in METRICS if name in values}
            for number, values in run.metrics.items()
        },
    }


def _digest(config: RunConfig) -> str:
    """Return a digest of the settings in which the runs of a variant agree, on several machines too."""
    own = FREE.keys() - {"run.rounds", "run.eval_every"} | ARITHMETIC | {"run.seed"}
    kept = {
        key: Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
        for key, value in by_key(config).items()
        if key not in own
    }
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def run_of(line: Mapping[str, Any], config: RunConfig) -> MeasuredRun:
    """Return a run as `genenv compare` reads it from its folder."""
    measured = [
        Measurement(
            one["round"],
            one["spent"],
            dict(zip(line["tasks"], map(float, one["scores"]), strict=True)),
        )
        for one in line["measured"]
    ]
    metrics = {int(number): values for number, values in line["metrics"].items()}
    where = Path(line["variant"], f"seed-{line['seed']}")
    return MeasuredRun(where, line["variant"], line["seed"], config, measured, metrics)


def page(config: Path, file: Path, offline: Sequence[int], seeds: str = "") -> str:
    """Return the page of `genenv reproduce` of the runs in a file, or of those of some seeds."""
    settings, chosen = load_config(config), seeds_of(seeds) if seeds else None
    runs = [run_of(line, settings) for line in lines(file) if chosen is None or line["seed"] in chosen]
    results = collect_runs(settings, rows_of(list(ROWS), offline), runs, place=file)
    found, notes = differences(results)
    found, notes = [*found, *at_the_end(runs)], [*results.notes, *notes]
    return markdown(config.stem, subtitle(results), tables(results), found, notes)


def at_the_end(runs: Sequence[MeasuredRun]) -> list[str]:
    """Return each variant held against GenEnv-Random at the end, and at equal tokens, with p after Holm."""
    against, names = AGAINST[0], list(dict.fromkeys(run.variant for run in runs))
    pairs = [(name, against) for name in names if name != against]
    if against not in names or not pairs:
        return []
    return at_equal_amounts(compare_runs(runs, pairs))


def at_equal_amounts(compared: Comparison) -> list[str]:
    """Return the differences of pairs of variants at the end and at equal tokens, with p after Holm."""
    return [", ".join(cells) for cells in rows(compared) if cells[0] in (AT_THE_END, "all tokens")]


if __name__ == "__main__":
    main()
