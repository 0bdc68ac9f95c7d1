"""The promise of `--resume`, held to with real kills of a real process, on scripted players."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
BENCH = TESTS.parent / "bench" / "kill_resume.py"
SETTINGS = """
[run]
rounds = 12
eval_tasks = 4

[simulator]
contexts = 3
variations = 2
max_new_tokens = 2000

[agent]
rollouts = 4
max_new_tokens = 2000

[policy]
dtype = "float32"
"""


@pytest.mark.slow
def test_a_run_that_was_killed_three_times_equals_an_unbroken_one(tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    config.write_text(SETTINGS, encoding="utf-8")
    program = shlex.join([sys.executable, str(TESTS / "scripted_genenv.py")])
    words = [sys.executable, str(BENCH), str(config), "--kills", "3", "--out", str(tmp_path / "runs")]
    done = subprocess.run([*words, "--command", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["kills"] == 3
    assert result["aimed_at_commit"] == 1
    assert (result["lost"], result["doubled"]) == (0, 0)
    equal = {"gap_free", "prefix_equal", "digest_equal", "metrics_equal", "checkpoint_equal", "passed"}
    assert {name for name in equal if result[name]} == equal
