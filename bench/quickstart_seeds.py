"""How the quickstart goes over several seeds: runs it, and prints figures from the stores.

    python bench/quickstart_seeds.py configs/quickstart.toml --seeds 0,1,2 --out runs/seeds

Each run is a process of its own, one after the other; its wall time and peak memory are the system's. A seed
whose run is in --out already, whole, is not run again, so that a bench that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

from genenv.cli.console import seeds_of
from genenv.runs.metrics import late_p_hats, target_band
from genenv.runs.store.store import PoolStore

TARGET_BAND = target_band(0.5)  # the quickstart's alpha
BYTES_PER_RSS = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class Figures:
    """One run."""

    seed: int
    rounds: int
    warmup_steps: float | None
    held_out_first: float | None
    """Held-out success after the warm-up."""
    held_out_last: float | None
    gain_points: float | None
    valid_first: float
    valid_last: float
    valid_first_three: float
    valid_last_three: float
    p_hat_late: list[float]
    """Mean p_hat of each round in the last third of the rounds."""
    p_hat_mean: float | None
    p_hat_in_band: bool
    """Whether that mean lies in the band."""
    p_hat_all_in_band: bool
    """Whether each of these rounds does."""
    minutes: float
    peak_gib: float


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    runs = [one_run(options, seed) for seed in options.seeds]
    print_tables(runs)
    print(json.dumps([asdict(run) for run in runs]))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("config", help="the settings of the runs, TOML")
    parser.add_argument(
        "--seeds", type=lambda text: seeds_of(f"{text},"), default=[0, 1, 2], help="0,1,2 or 100-109"
    )
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--command", default="", help="the program; default: python -m genenv")
    return parser.parse_args(arguments)


def one_run(options: argparse.Namespace, seed: int) -> Figures:
    """Run a seed, unless it was run, and read its store."""
    folder, cost = options.out / f"seed-{seed}", options.out / f"seed-{seed}.cost.json"
    if not cost.exists():
        if folder.exists():  # it was interrupted, and its minutes have to be of one go
            print(f"seed {seed}: {folder} was interrupted and is trained anew", file=sys.stderr, flush=True)
            shutil.rmtree(folder)
        cost.write_text(json.dumps(run(options, seed, folder)), encoding="utf-8")
    return read_figures(folder, seed, **json.loads(cost.read_text(encoding="utf-8")))


def run(options: argparse.Namespace, seed: int, folder: Path) -> dict[str, float]:
    """One `genenv train`; returns what it cost."""
    words = [*(shlex.split(options.command) or [sys.executable, "-m", "genenv"]), "train", options.config]
    for override in [*options.overrides, f"run.seed={seed}"]:
        words += ["--set", override]
    log = folder.with_suffix(".log")
    print(
        f"seed {seed}: {shlex.join([*words, '--out', str(folder)])}, log in {log}",
        file=sys.stderr,
        flush=True,
    )
    begin = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen([*words, "--out", str(folder)], stdout=file, stderr=file)  # noqa: S603
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        sys.exit("\n".join([f"seed {seed} ended with status {process.returncode}:", *tail]))
    return {
        "minutes": (time.monotonic() - begin) / 60,
        "peak_gib": usage.ru_maxrss * BYTES_PER_RSS / 2**30,
    }


def read_figures(folder: Path, seed: int, *, minutes: float, peak_gib: float) -> Figures:
    """What the store of a run says."""
    with PoolStore.open(folder / "pool.db", create=False) as store:
        metrics = {number: store.metrics(number) for number in store.rounds()}
    held_out = [m["agent/eval_success"] for m in metrics.values() if "agent/eval_success" in m]
    first, last = (held_out[0], held_out[-1]) if held_out else (None, None)
    played = [number for number in metrics if number > 0]
    valid = [metrics[number]["simulator/valid_rate"] for number in played]
    late = late_p_hats(metrics)
    return Figures(
        seed=seed,
        rounds=len(played),
        warmup_steps=metrics[0].get("agent/warmup_steps"),
        held_out_first=first,
        held_out_last=last,
        gain_points=None if first is None or last is None else 100 * (last - first),
        valid_first=valid[0],
        valid_last=valid[-1],
        valid_first_three=mean(valid[:3]),
        valid_last_three=mean(valid[-3:]),
        p_hat_late=late,
        p_hat_mean=mean(late) if late else None,
        p_hat_in_band=bool(late) and in_band(mean(late)),
        p_hat_all_in_band=bool(late) and all(map(in_band, late)),
        minutes=minutes,
        peak_gib=peak_gib,
    )


def in_band(p_hat: float) -> bool:
    low, high = TARGET_BAND
    return low <= p_hat <= high


def print_tables(runs: Sequence[Figures]) -> None:
    row(
        "seed",
        "rounds",
        "warm-up steps",
        "held-out, round 0",
        "held-out, last",
        "gain, points",
        "minutes",
        "peak GiB",
    )
    row(*["---"] * 8)
    for r in runs:
        row(
            r.seed,
            r.rounds,
            "-" if r.warmup_steps is None else f"{r.warmup_steps:.0f}",
            percent(r.held_out_first),
            percent(r.held_out_last),
            "-" if r.gain_points is None else f"{r.gain_points:+.1f}",
            f"{r.minutes:.1f}",
            f"{r.peak_gib:.2f}",
        )
    gains = [r.gain_points for r in runs if r.gain_points is not None]
    if gains:
        minutes, peak = mean(r.minutes for r in runs), max(r.peak_gib for r in runs)
        row("mean", "", "", "", "", f"{mean(gains):+.1f}", f"{minutes:.1f}", f"{peak:.2f} (max)")
    print()
    row(
        "seed", "valid, round 1", "valid, last", "valid, first three", "valid, last three",
        "p_hat per round, last third", "mean", "min", "max", f"mean in {list(TARGET_BAND)}", "all in it",
    )  # fmt: skip
    row(*["---"] * 11)
    for r in runs:
        late = r.p_hat_late
        row(
            r.seed,
            percent(r.valid_first),
            percent(r.valid_last),
            percent(r.valid_first_three),
            percent(r.valid_last_three),
            ", ".join(f"{p:.2f}" for p in late) or "-",
            *((f"{mean(late):.3f}", f"{min(late):.2f}", f"{max(late):.2f}") if late else ("-", "-", "-")),
            "yes" if r.p_hat_in_band else "no",
            "yes" if r.p_hat_all_in_band else "no",
        )
    print()


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main()
