"""Do recipes of tinker-cookbook run, unmodified, against `genenv tinker-server`?

    python bench/tinker_cookbook.py sl_loop --python PYTHON
    python bench/tinker_cookbook.py rl_loop --python PYTHON --set group_size=8

PYTHON is one that has tinker-cookbook. The recipe runs in a folder that holds what it names on the hub: a
little data of our own, called `HuggingFaceH4/no_robots` and `openai/gsm8k`, and the tokenizer, called like a
base model that it knows. A line of JSON for each step, and one for all.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from genenv.backends.settings import EMBEDDED, PolicyConfig
from genenv.servers.tinker.serving import KEY, TinkerServer, open_base

ALIAS = "Qwen/Qwen3-8B-Base"
"""A name that the recipes know: its prompts are text alone, without tokens that only some models have."""
_COLOURS = ("red", "green", "blue", "white")
_WORDS = ("sky", "tea", "sun", "cat", "dog", "hat", "rain", "tree", "wolf", "snow", "apple", "stone", "river")
_RECIPES = {
    "sl_loop": ("batch_size=8", "max_length=256", "learning_rate=0.001"),
    "rl_loop": ("batch_size=4", "group_size=4", "max_tokens=24", "learning_rate=0.001"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", choices=sorted(_RECIPES))
    parser.add_argument("--python", default=sys.executable, help="a Python that has tinker-cookbook")
    parser.add_argument("--model", default=EMBEDDED)
    parser.add_argument("--out", type=Path, default=Path("runs/tinker-cookbook"))
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--set", action="append", default=[], help="a setting of the recipe")
    parser.add_argument("--dtype", default="auto")
    chosen = parser.parse_args()
    out = chosen.out.resolve()
    base = open_base(PolicyConfig(model=chosen.model, dtype=chosen.dtype), out / "server")
    with TinkerServer(base, out / "server", name=ALIAS) as server:
        _lay_out(out, Path(base.tokenizer_place), rows=64)
        log = out / f"{chosen.recipe}-{time.time_ns()}"
        settings = [*_RECIPES[chosen.recipe], f"max_steps={chosen.steps}", *chosen.set]
        command = [chosen.python, "-m", f"tinker_cookbook.recipes.{chosen.recipe}"]
        start = time.monotonic()
        done = subprocess.run(  # noqa: S603
            [*command, f"base_url={server.url}", f"log_path={log}", f"model_name={ALIAS}", *settings],
            cwd=out,
            env=os.environ | {"TINKER_API_KEY": KEY, "TINKER_TELEMETRY": "0", "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        took_s = time.monotonic() - start
    if done.returncode:
        sys.exit(f"the recipe ended with {done.returncode}:\n{done.stderr[-4000:]}")
    lines = (log / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    for line in lines:
        print(line)
    said = {"recipe": chosen.recipe, "model": chosen.model, "steps": len(lines), "took_s": round(took_s, 1)}
    print(json.dumps({**said, "checkpoints": _checkpoints(log)}))


def _lay_out(out: Path, tokenizer: Path, rows: int) -> None:
    """What the recipes look for by name."""
    place = out / ALIAS
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.exists():
        place.symlink_to(tokenizer, target_is_directory=True)
    robots, sums = out / "HuggingFaceH4" / "no_robots", out / "openai" / "gsm8k"
    for folder in (robots, sums):
        folder.mkdir(parents=True, exist_ok=True)
    chats, problems = [], []
    for number in range(rows):
        word, colour = _WORDS[number % len(_WORDS)], _COLOURS[number % len(_COLOURS)]
        asked = {"role": "user", "content": f"What colour is the {word}?"}
        chats.append({"messages": [asked, {"role": "assistant", "content": f"The {word} is {colour}."}]})
        question = f"How many letters has the word {word}?"
        problems.append({"question": question, "answer": f"Count them. #### {len(word)}"})
    for file, lines in ((robots / "train.jsonl", chats), (sums / "train.jsonl", problems)):
        file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    about = "---\nconfigs:\n- config_name: main\n  data_files: train.jsonl\n---\n"
    (sums / "README.md").write_text(about, encoding="utf-8")


def _checkpoints(log: Path) -> list[str]:
    """Paths of what the recipe saved."""
    lines = (log / "checkpoints.jsonl").read_text(encoding="utf-8").splitlines()
    return [path for line in lines for name, path in json.loads(line).items() if name.endswith("_path")]


if __name__ == "__main__":
    main()
