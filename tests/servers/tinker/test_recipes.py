"""A recipe of tinker-cookbook runs as it is, where the client's Python has it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tinker_sdk import PYTHON, needs_tinker

BENCH = Path(__file__).parents[3] / "bench" / "tinker_cookbook.py"


@needs_tinker
@pytest.mark.slow
def test_supervised_steps_of_a_recipe(tmp_path: Path) -> None:
    looks = subprocess.run([PYTHON, "-c", "import tinker_cookbook"], capture_output=True, check=False)
    if looks.returncode:
        pytest.skip("the client's Python has no tinker-cookbook (0.5.1 goes with tinker 0.25)")
    words = ("sl_loop", "--python", PYTHON, "--model", "tiny", "--dtype", "float32", "--out", tmp_path)
    command = [sys.executable, str(BENCH), *map(str, words), "--set", "lora_rank=4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *steps, whole = map(json.loads, done.stdout.splitlines())
    assert steps[-1]["train_mean_nll"] < steps[0]["train_mean_nll"]
    assert [path.rpartition("/")[2] for path in whole["checkpoints"]] == ["final", "final"]
