"""A taskset of verifiers as an environment: `[environment] name = "verifiers:TASKSET"`.

Its rows are tasks, its rewards verdicts, and its own rollouts are played, in another process, whose Python
has the package: genenv's own need not. A row cannot be varied; what `vary` names are settings of the taskset.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, cast, get_args

from pydantic import BaseModel

from genenv.errors import RolloutError, UsageError
from genenv.interop.imported.actions import random_call, words_and_calls
from genenv.interop.imported.environment import ImportedEnvironment, Setting, Talk
from genenv.interop.imported.process import Process
from genenv.interop.imported.settings import VerifiersConfig
from genenv.interop.imported.space import Space
from genenv.texts import inert
from genenv.types import JsonObject, Message, Role


class Verifiers(ImportedEnvironment):
    """A taskset of verifiers.

    Args:
        settings: see `VerifiersConfig`.
        taskset: its id, or the folder of its package.
    """

    name: ClassVar[str] = "verifiers"
    config: ClassVar[type[BaseModel]] = VerifiersConfig

    def __init__(self, settings: VerifiersConfig | None, taskset: str) -> None:
        chosen = settings or VerifiersConfig()
        self.chosen = chosen
        name, path = _found(taskset, chosen.path)
        self.world = Process(
            {
                "taskset": name,
                "path": path,
                "harness": chosen.harness,
                "env": chosen.env,
                "max_turns": chosen.max_turns,
            },
            python=chosen.python or sys.executable,
            limit_s=chosen.step_s,
        )
        super().__init__(chosen, Space(chosen.vary, "row", chosen.rows), 0)

    def seeds(self) -> Sequence[Any]:
        """See `ImportedEnvironment`; how many rows there are is known by then."""
        self._counted()
        return super().seeds()

    def spec_schema(self, seed: Any) -> JsonObject:  # noqa: ANN401 - a seed
        """See `ImportedEnvironment`."""
        self._counted()
        return super().spec_schema(seed)

    def _counted(self) -> None:
        """Know how many rows there are: that decides which of them are held out."""
        self.space.numbers, self._first_held_out = self._split

    @cached_property
    def _split(self) -> tuple[int, int]:
        """How many rows are for training, and the first that is held out."""
        chosen = self.chosen
        first = self.space.spread(1, 0)[0]
        given = self.space.given(first, cast(JsonObject, chosen.given))
        apart = 0 if chosen.given_held_out else chosen.held_out
        count = self.world.count(given, chosen.rows + apart)
        if count <= apart:
            raise UsageError(
                f"the taskset {self.world.shown} has {count} rows, and environment.held_out is {apart}; "
                "set it lower"
            )
        rows = min(chosen.rows, count - apart)
        return rows, 0 if chosen.given_held_out else rows

    def held_out(self) -> Sequence[Any]:
        """See `ImportedEnvironment`."""
        self._counted()
        return super().held_out()

    def begin(self, setting: Setting) -> Talk:
        """See `ImportedEnvironment`."""
        return VerifiersTalk(self.world, setting)


class VerifiersTalk(Talk):
    """One attempt, in a rollout of verifiers."""

    def __init__(self, world: Process, setting: Setting) -> None:
        self._world = world
        self._name = world.begin({"given": setting.given, "row": setting.number or 0})
        self._reward = 0.0
        try:
            self._heard(world.answer(self._name))
        except BaseException:
            self.close()
            raise

    def reply(self, text: str) -> None:
        """See `Talk`."""
        words, calls = words_and_calls(text) if self.tools else (text, ())
        listed = [{"name": call.name, "arguments": call.arguments} for call in calls]
        self._world.tell({"op": "reply", "id": self._name, "content": words, "calls": listed})
        self._heard(self._world.answer(self._name))

    @property
    def total(self) -> float:
        """What its rewards come to, with their weights."""
        return self._reward

    def uninformed(self, rng: random.Random) -> str:
        """See `Talk`."""
        return random_call(self.tools, rng)

    def close(self) -> None:
        """See `Talk`: what has not ended is broken off."""
        if not self.done:
            self._world.end(self._name)

    def _heard(self, answer: Mapping[str, Any]) -> None:
        """Take in what the rollout asks, or how it ended."""
        ended = answer.get("ended")
        if ended is None:
            asked = answer["asks"]
            self.messages = tuple(_message(one) for one in asked["messages"])
            self.tools = self.tools or list(asked["tools"])
            return
        self.messages, self.done = (), True
        if "error" in ended:
            raise RolloutError(f"The environment failed: {inert(str(ended['error']))}")
        self._reward = float(ended["reward"])
        parts = ", ".join(f"{name} {value:g}" for name, value in ended["parts"].items())
        self.explanation = f"The environment gives {self._reward:g}{f' ({parts})' if parts else ''}."
        if not math.isfinite(self._reward):
            raise RolloutError(f"The environment gave the reward {self._reward}.")


def _found(taskset: str, path: str) -> tuple[str, str]:
    """The id of a taskset, and the folder where it is found.

    Raises:
        UsageError: a folder holds no package.
    """
    if "/" not in taskset and taskset not in (".", ".."):
        return taskset, str(Path(path).resolve()) if path else ""
    folder = Path(taskset).expanduser().resolve()
    if (folder / "__init__.py").is_file():
        return folder.name, str(folder.parent)
    inside = folder.name.replace("-", "_").lower()
    if (folder / inside / "__init__.py").is_file():
        return inside, str(folder)
    raise UsageError(
        f"environment 'verifiers:{taskset}': {folder} is no Python package and holds none called {inside!r}"
    )


def _message(said: Mapping[str, Any]) -> Message:
    role = said.get("role")
    return Message(role=cast(Role, role if role in get_args(Role) else "user"), content=str(said["content"]))
