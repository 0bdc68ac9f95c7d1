"""How time and memory of an agent's step grow: with prompts, group size, prompt length; and over many rounds.

    python bench/scaling.py step
    python bench/scaling.py rounds --rounds 200

`step` repeats the step of `bench/round.py` with up to 16 times the work, one quantity at a time, and prints
a JSON line for each size, with its time over that of the smallest divided by its share of the work: 1 is
linear, less is better. `rounds` trains a tiny model with random weights and watches the resident memory of
the process; it prints how much it has grown after round 10.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from turns import alternate, machine, resident_kib, say, settle, sides_of

ROUND = Path(__file__).with_name("round.py")
SMALLEST = {"prompts": 4, "group": 4, "length": 128, "new": 32}
MICROBATCH = 4096
"""Tokens, as a run has it unless told: the longest prompt fits."""
SIZES = (1, 2, 4, 8, 16)
SETTINGS = """
[run]
rounds = {rounds}
eval_tasks = 4
eval_every = {rounds}

[simulator]
contexts = 2
variations = 2
max_new_tokens = 48

[agent]
rollouts = 4
max_new_tokens = 24

[policy]
model = "{model}"
dtype = "float32"
threads = 1
context_tokens = 1024
"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["step", "rounds"])
    parser.add_argument("--model", default="smollm2-135m", help="of the step")
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], default="auto")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="genenv-bench-"))
    if options.what == "rounds":
        many_rounds(options.rounds, folder)
        return
    settle(options)
    for quantity in ("prompts", "group", "length"):
        grow(quantity, options, folder)


def grow(quantity: str, options: argparse.Namespace, folder: Path) -> None:
    """One line for each size of one quantity."""
    smallest = None
    for times in SIZES:
        size = {**SMALLEST, quantity: SMALLEST[quantity] * times}
        own = folder / f"{quantity}-{times}"
        own.mkdir()
        asked = argparse.Namespace(**{**vars(options), **size, "folder": own, "microbatch": MICROBATCH})
        keys = ("model", "folder", "dtype", "microbatch", *size)
        (side,) = sides_of(str(ROUND), asked, keys, {"ours": sys.executable}, own)
        alternate([side], options.repeats)
        # what goes through the model: each prompt once, each completion
        tokens = size["prompts"] * (size["length"] + size["group"] * size["new"])
        smallest = smallest or (side.seconds, tokens)
        say(
            bench="scaling",
            of=quantity,
            **size,
            tokens=tokens,
            step_s=side.seconds,
            tokens_per_s=tokens / side.seconds,
            over_linear=side.seconds / smallest[0] / (tokens / smallest[1]),
            peak_gib=side.peak_gib,
            **machine(),
        )
        side.end()


def many_rounds(rounds: int, folder: Path) -> None:
    """Resident memory, round by round."""
    config = folder / "settings.toml"
    config.write_text(SETTINGS.format(rounds=rounds, model=tiny_model(folder)), encoding="utf-8")
    out = folder / "run"
    words = [sys.executable, "-m", "genenv", "train", str(config), "--out", str(out)]
    begin = time.perf_counter()
    with (folder / "run.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)  # noqa: S603 - our own program
        resident = dict(watch(process, out / "metrics.jsonl"))
    if process.returncode or len(resident) <= 20:
        sys.exit(f"the run ended early, see {folder / 'run.log'}")
    # A round in the making needs more, how much more depends on its tasks: what stays counts. A collection
    # may come late, so medians of ten rounds are compared.
    numbers = sorted(resident)
    early = statistics.median(resident[n] for n in numbers if 10 < n <= 20)
    late = statistics.median(resident[n] for n in numbers[-10:])
    say(
        bench="rounds",
        rounds=rounds,
        seconds=time.perf_counter() - begin,
        resident_mib_after_10=early,
        resident_mib_every_20={n: round(resident[n]) for n in numbers if n % 20 == 0},
        resident_mib_at_end=late,
        growth=late / early - 1,
        **machine(),
    )


def watch(process: subprocess.Popen[bytes], metrics: Path) -> Iterator[tuple[int, float]]:
    """(round, least resident MiB until the next one is committed) of every committed round but the last."""
    seen, least = 0, float("inf")
    while process.poll() is None:
        written = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        if written > seen:
            if seen:
                yield seen - 1, least
            seen, least = written, float("inf")
        with contextlib.suppress(OSError):  # it has just ended
            least = min(least, resident_kib(process.pid, "VmRSS") / 2**10)
        time.sleep(0.02)


def tiny_model(folder: Path) -> Path:
    """Two layers of random weights with the tokenizer of the embedded model."""
    import torch
    import transformers

    from genenv.backends.local import loading

    source = loading.resolve(loading.EMBEDDED)
    config = transformers.AutoConfig.from_pretrained(source)
    config.update(
        {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
        }
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder / "tiny")
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder / "tiny")
    return folder / "tiny"


if __name__ == "__main__":
    main()
