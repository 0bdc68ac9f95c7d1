"""The files of an exported environment that are the same for all of them, but for a name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

_INIT = '''"""Written by `genenv export-env`. As a module of verifiers: a taskset and its harness."""

from pathlib import Path
from typing import Any

__all__ = ["GenenvHarness", "GenenvTaskset"]

FOLDER = Path(__file__).parent / "data"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from genenv.interop.verifiers import classes

    globals()["GenenvTaskset"], globals()["GenenvHarness"] = classes(FOLDER)
    return globals()[name]
'''
_TRL = '''"""For TRL: GRPOTrainer(..., reward_funcs=reward, environment_factory=Environment)."""

from functools import partial

from genenv.interop import trl

from . import FOLDER

Environment = trl.environment_class(FOLDER)
reward = trl.reward_function(FOLDER)
dataset = partial(trl.dataset, FOLDER)
with_tools = trl.with_tools
'''
_OPENENV = '''"""For OpenEnv: uvicorn PACKAGE.openenv_app:app --port 8000"""

from genenv.interop import openenv

from . import FOLDER

app = openenv.app(FOLDER)
'''
_GYM = '''"""For Gymnasium: import PACKAGE.gym_env; gymnasium.make("genenv/PACKAGE-v0")"""

from genenv.interop import gym

from . import FOLDER

ENV_ID = gym.register("PACKAGE", FOLDER)
'''
_PYPROJECT = """\
[project]
name = "PACKAGE"
version = "0.1.0"
description = "An environment that genenv export-env wrote"
requires-python = ">=3.11"
dependencies = ["genenv"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["PACKAGE"]
"""
_OPENENV_YAML = """\
spec_version: 1
name: PACKAGE
type: space
runtime: fastapi
app: PACKAGE.openenv_app:app
port: 8000
"""

FILES: Mapping[str, str] = {
    "{package}/__init__.py": _INIT,
    "{package}/trl_env.py": _TRL,
    "{package}/openenv_app.py": _OPENENV,
    "{package}/gym_env.py": _GYM,
    "pyproject.toml": _PYPROJECT,
    "openenv.yaml": _OPENENV_YAML,
}
"""Text by path; PACKAGE stands for the name of the package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the README says."""

    package: str
    environment: str
    train: int
    held_out: int
    settings: Mapping[str, object]
    replies: str
    """How a reply to a task is written, in sentences."""


def readme(told: Told) -> str:
    """How to use it, for people."""
    settings = ", ".join(f"{key} = {json.dumps(value)}" for key, value in told.settings.items()) or "defaults"
    return f"""\
# {told.package}

Written by `genenv export-env` of the environment `{told.environment}` ({settings}): {told.train} tasks for
training, {told.held_out} for measuring. A row (`{told.package}/data/*.jsonl`) holds everything that an
attempt begins with, and code grades it: equal rows and equal replies get equal verdicts, in genenv and in
each of these.

```sh
pip install -e .    # beside genenv, without its extra mcp: verifiers and OpenEnv want another one
```

**TRL**

```python
from {told.package}.trl_env import Environment, dataset, reward, with_tools
from trl import GRPOConfig, GRPOTrainer

model, tokenizer = with_tools("smollm2-135m")    # or a folder, or a name on the hub: Qwen/Qwen3-0.6B
trainer = GRPOTrainer(model, processing_class=tokenizer, reward_funcs=reward, train_dataset=dataset(),
                      environment_factory=Environment, args=GRPOConfig(output_dir="out"))
trainer.train()
```

TRL refuses a model whose chat template offers no tools, such as SmolLM2's. `with_tools` gives one that knows
ChatML the template of Qwen3. Where a task is one reply without tools, leave `environment_factory` out.

**verifiers**

```sh
vf-eval {told.package} --env.agent.runtime.type subprocess --model MODEL --client.base-url URL --no-push
```

**OpenEnv**

```sh
uvicorn {told.package}.openenv_app:app --port 8000
```

A WebSocket is a session: `reset(seed=3)` or `reset(task_id=..., split="held_out")`, then
`step({{"content": ..., "tool_calls": [...]}})` until `done`.

**Gymnasium**

```python
import gymnasium
import {told.package}.gym_env

env = gymnasium.make("genenv/{told.package}-v0")
text, info = env.reset(seed=3)
text, reward, terminated, truncated, info = env.step(reply)
```

{told.replies}
"""
