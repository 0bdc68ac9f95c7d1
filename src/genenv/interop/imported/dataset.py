"""A dataset with a reward function as an environment: `[environment] name = "dataset"`.

Each row is a task, and the reward function grades the conversation. No simulator writes rows: a run draws
them uniformly, or a task bandit chooses among kinds of rows, or their demonstrations' likelihood decides.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar, cast

from pydantic import BaseModel, Field

from genenv.environments.base import Ask, Episode, OutOfTurns, failed
from genenv.environments.common import QuestionEnvironment, closed_object, held_out_tasks
from genenv.environments.stepwise import StepwiseRollout
from genenv.errors import UsageError
from genenv.interop.imported.environment import RANDOM_WORDS, skills_of, with_system
from genenv.interop.imported.rows import Reward, Row, chat, read_rows
from genenv.interop.imported.settings import DatasetConfig
from genenv.tools.build import how_to_call
from genenv.tools.environment import Conversation
from genenv.tools.worlds.base import LoadedWorld, Session
from genenv.tools.worlds.origins import PythonOrigin
from genenv.types import (
    JsonObject,
    Lineage,
    Message,
    Origin,
    Rejection,
    RejectReason,
    Seed,
    Task,
    Verdict,
)


class Line(BaseModel, frozen=True, extra="forbid"):
    """The spec of a task: which row it is."""

    line: int = Field(ge=1)
    """Line of the row in its file."""
    row: str = ""
    """A hash of the row, so that a run notices another one in its place."""


class Dataset(QuestionEnvironment):
    """A dataset with a reward function as an environment.

    Args:
        settings: see `DatasetConfig`.

    Raises:
        UsageError: there is no such file or function, or a row lacks something.
    """

    name: ClassVar[str] = "dataset"
    spec: ClassVar[type[BaseModel]] = Line
    config: ClassVar[type[BaseModel]] = DatasetConfig
    job: ClassVar[str] = "Choose a row of a dataset as a task for an agent, as JSON: its line."

    def __init__(self, settings: DatasetConfig | None = None) -> None:
        super().__init__(settings)
        chosen = self.chosen = cast(DatasetConfig, self.settings)
        for key, example in (("data", "tasks.jsonl"), ("reward", "reward.py:score")):
            if not getattr(chosen, key):
                raise UsageError(f"environment.{key} is not set; name it, such as {example} (--{key})")
        self.reward = Reward(chosen.reward, chosen.reward_s)
        needed = self.reward.needs(["state"] if chosen.tools else [])
        needed |= dict.fromkeys(chosen.columns, "environment.columns")
        if chosen.demonstration:
            needed[chosen.demonstration] = "environment.demonstration"
        self._train, self._held_out, self.omitted = _split(chosen, needed)

    @cached_property
    def world(self) -> LoadedWorld | None:
        """The tools, ready to be called; None if there are none."""
        if not self.chosen.tools:
            return None
        file, code, name = self.chosen.tools.partition(".py:")
        folder = tempfile.mkdtemp(prefix="genenv-tools-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        files = Path(folder) / "files"
        return PythonOrigin(Path(file + code.rstrip(":")), name).bring(files).open(files)

    def seeds(self) -> Sequence[Seed]:
        """Return the rows for training."""
        return [
            Seed(id=f"line{line}", environment=self.name, spec=row.spec, skills=self._skills(row))
            for line, row in self._train.items()
        ]

    def held_out(self) -> Sequence[Task]:
        """Return the held-out rows as tasks: their prompts are those of no row for training."""
        lines = ((f"held-out-line{line}", Line(line=line)) for line in self._held_out)
        return held_out_tasks(self, lines)

    def spec_schema(self, seed: Seed) -> JsonObject:
        """Return a schema that allows the lines of all rows for training."""
        return closed_object({"line": {"enum": list(self._train)}})

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """Return a row for training, drawn uniformly."""
        return self._train[rng.choice(list(self._train))].spec

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """Return the task of a row."""
        row, style = self._row(cast(Line, spec), lineage), self.chosen.style
        if row is None:
            return Rejection(RejectReason.SCHEMA, "It is no row for training.")
        messages, column = row.messages, self.chosen.demonstration
        if self.world is not None and style != "native":
            messages = with_system(messages, how_to_call(list(self.world.tools.values()), style))
        return Task(
            id=task_id,
            environment=self.name,
            skills=self._skills(row),
            messages=messages,
            spec=row.spec,
            payload={},
            oracle=(str(row.columns[column]),) if column else (),
            lineage=lineage,
        )

    def _skills(self, row: Row) -> tuple[str, ...]:
        return skills_of({name: row.columns[name] for name in self.chosen.columns}) or (self.name,)

    def _row(self, spec: Line, lineage: Lineage) -> Row | None:
        rows = self._held_out if lineage.origin is Origin.HELD_OUT else self._train
        row = rows.get(spec.line)
        return row if row is not None and spec.row in ("", row.key) else None

    def row_of(self, task: Task) -> Row:
        """Return the row of a task.

        Raises:
            UsageError: the task is of other data.
        """
        row = self._row(Line.model_validate(task.spec), task.lineage)
        if row is None:
            raise UsageError(f"{task.id} is no row of {self.chosen.data}; name the data that it is of")
        return row

    def steps(self, task: Task) -> int:
        """Return 1, as the number of steps is unknown."""
        return 1

    def surface(self, task: Task) -> str:
        """Return a hash of the prompt; rows with equal prompts are duplicates."""
        return self.row_of(task).prompt_key

    def random_replies(self, task: Task, rng: random.Random) -> tuple[str, ...]:
        """Return a reply that knows nothing of the task."""
        return (rng.choice(RANDOM_WORDS),)

    def episode(self, task: Task) -> Episode:
        """Return a fresh episode: one reply; with tools, replies until one calls none."""
        return DatasetEpisode(self, task)

    def check(self, task: Task, replies: Sequence[str]) -> Verdict:
        """Run the episode with these replies, and return its verdict."""
        made = StepwiseRollout(self, task)
        for reply in replies:
            if not made.done:
                made.reply(reply)
        return made.verdict() if made.done else failed("The episode has not ended.")


class DatasetEpisode:
    """An episode of a row: one reply; with tools, replies until one calls none, in a session of the tools."""

    def __init__(self, env: Dataset, task: Task) -> None:
        self._env, self._task = env, task
        tools = () if env.world is None else tuple(env.world.tools.values())
        self.max_turns = env.chosen.max_turns if tools else 1
        self.tools = [tool.schema for tool in tools] if env.chosen.style == "native" else []
        self._verdict = failed("The episode has not ended.")

    async def run(self, ask: Ask) -> None:
        """Hold the conversation, and grade it.

        Raises:
            EnvironmentCodeError: the reward function has a fault.
            OutOfTurns: the last reply that is allowed calls a tool.
        """
        world, messages = self._env.world, self._task.messages
        if world is None:
            await self._grade([Message(role="assistant", content=await ask(messages))])
            return
        known = {name: list(tool.properties) for name, tool in world.tools.items()}
        talk = Conversation(world, self._env.chosen.style, known, list(known))
        async with world.session() as session:
            ended = await talk.converse(session, ask, messages, self.max_turns)
            await self._grade(talk.messages, session)
        if not ended:
            raise OutOfTurns

    async def _grade(self, said: Sequence[Message], session: Session | None = None) -> None:
        env, row = self._env, self._env.row_of(self._task)
        in_chat = row.is_chat or session is not None
        given = {
            **row.columns,
            "prompt": chat(row.messages) if in_chat else row.messages[0].content,
            "completion": chat(said) if in_chat else said[0].content,
        }
        if session is not None and "state" in env.reward.takes:
            given["state"] = await session.state()
        reward = await env.reward.of(given, row.place)
        self._verdict = Verdict(
            reward=reward,
            success=reward >= env.chosen.success_at,
            explanation=f"The reward function gives {reward:g}.",
            readable=any(one.content.strip() for one in said),
        )

    def verdict(self) -> Verdict:
        """See `HasVerdict`."""
        return self._verdict


def _split(
    chosen: DatasetConfig, needed: Mapping[str, str]
) -> tuple[dict[int, Row], dict[int, Row], str | None]:
    """Return the rows for training and the held-out rows, by line, and a note about rows that are left out.

    Raises:
        UsageError: the rows cannot be read, or none is left for training.
    """
    rows, note = read_rows(chosen.data, needed)
    if chosen.eval_data:
        held_out, _ = read_rows(chosen.eval_data, needed)
        keys = {row.prompt_key for row in held_out}
        if lost := sum(row.prompt_key in keys for row in rows):
            note += f"{'; ' * bool(note)}{lost} rows are left out, as their prompts are held out"
    else:
        shares = {row.prompt_key: int(row.prompt_key[:8], 16) / 16**8 for row in rows}
        most = max(chosen.held_out, min(shares.values())) if chosen.held_out else -1.0
        keys = {key for key, share in shares.items() if share <= most}
        held_out = [row for row in rows if row.prompt_key in keys]
    train = {row.line: row for row in rows if row.prompt_key not in keys}
    if not train:
        raise UsageError(
            f"all rows of {chosen.data} are held out (environment.held_out or eval_data); add rows with "
            "other prompts, or set environment.held_out to 0 and no eval_data"
        )
    return train, {row.line: row for row in held_out}, note or None
