"""Runs and agents in Python: train, resume, read results, query a trained agent, roll it out on tasks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from genenv.api.environment import Environment, named, words
from genenv.chat.assistant import Assistant, ChatMessage, Closes, Reply
from genenv.cli.progress import ConsoleReporter
from genenv.config.run import RunConfig, load_config
from genenv.environments.base import failed, verdict_of
from genenv.errors import RolloutError, UsageError
from genenv.evaluation.config import load_evaluation_config
from genenv.evaluation.held_out import Conversation, Limits
from genenv.evaluation.models import assistant, named_policy
from genenv.progress import Reporter
from genenv.rollout.driver import UNFINISHED
from genenv.runs.folder import RunFolder
from genenv.runs.store.store import PoolStore
from genenv.runs.summary import summarise
from genenv.threads import run_with_own_loop
from genenv.training import opening as training
from genenv.training.branching import Origin as Branching
from genenv.types import JsonObject, Message, Origin, StopReason, Task, Verdict
from genenv.viewer.frozen import write_report

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Attempted:
    """The result of one rollout of a task."""

    task: Task
    replies: tuple[str, ...]
    """The agent's replies, one per turn."""
    verdict: Verdict


class Agent:
    """A model that answers: a trained agent, an untrained model, or a model behind an endpoint.

    Args:
        name: name as for `load_agent`.
        assistant: the model's chat interface.
        limits: limits of a rollout.
        env: the environment that the agent was trained on; None if the model is not from a run.
    """

    def __init__(self, name: str, assistant: Assistant, limits: Limits, env: Environment | None) -> None:
        self.name, self.env = name, env
        self._assistant, self._limits = assistant, limits
        self._conversations = itertools.count()

    def reply(
        self,
        messages: Sequence[ChatMessage | Message],
        *,
        tools: Sequence[JsonObject] = (),
        max_tokens: int | None = None,
    ) -> Reply:
        """Return the agent's answer to a conversation.

        Args:
            messages: the whole conversation, in OpenAI's chat format or as messages of a task.
            tools: tools in OpenAI's format, if the model's template supports them.
            max_tokens: maximum number of new tokens; None: as in training.

        Raises:
            ContextOverflow: the conversation does not fit into the model's context window.
            RolloutError: the model returned no answer.
        """
        chat = [_chat(message) for message in messages]
        talk = self._assistant.talk(next(self._conversations))
        most = max_tokens or self._limits.max_new_tokens

        return self._run(lambda: talk(chat, tools=tools, max_tokens=most))

    def _run(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Run what asks the model in an event loop of its own, at whose end its connections are closed."""

        async def run() -> T:
            try:
                return await ask()
            finally:
                if isinstance(self._assistant, Closes):
                    await self._assistant.close()

        return run_with_own_loop(lambda: asyncio.run(run()))

    def attempt(
        self, tasks: Task | Sequence[Task], env: Environment | str | Path | None = None
    ) -> list[Attempted]:
        """Roll out tasks concurrently and return the results. A rollout that breaks off has failed.

        Args:
            tasks: tasks of an environment, such as `environment.held_out`.
            env: the environment of the tasks; None: the one that the agent was trained on.

        Raises:
            UsageError: the environment of the tasks is not known.
        """
        of = self.env if env is None else named(env)
        if of is None:
            raise UsageError(
                f"{self.name} was trained on no environment here; say whose tasks these are: env=..."
            )
        listed = [tasks] if isinstance(tasks, Task) else list(tasks)
        return self._run(lambda: self._attempted(of, listed))

    async def _attempted(self, env: Environment, tasks: Sequence[Task]) -> list[Attempted]:
        world, many = env.world, any(env.world.episode(task).max_turns > 1 for task in tasks[:1])
        free = asyncio.Semaphore(self._assistant.concurrency(many_turns=many))

        async def one(task: Task) -> Attempted:
            talk = self._assistant.talk(next(self._conversations), many_turns=many)
            held = Conversation(talk, self._limits)
            episode = world.episode(task)
            try:
                async with free:
                    await held.run(episode)
            except RolloutError as error:
                return Attempted(task, tuple(held.replies), failed(str(error)))
            cut = UNFINISHED[StopReason.LENGTH]
            verdict = failed(cut) if held.cut else verdict_of(world, task, episode, held.replies)
            return Attempted(task, tuple(held.replies), verdict)

        return list(await asyncio.gather(*(one(task) for task in tasks)))

    def __repr__(self) -> str:
        """Return the call that loads the agent."""
        return f"load_agent({self.name!r})"


def load_agent(name: str | Path, settings: Mapping[str, object] | None = None) -> Agent:
    """Load a trained agent, an untrained model, or a model behind an endpoint.

    Args:
        name: a run (`"runs/desk"`, `"runs/desk@8"`), a model's short name, folder or hub name, or
            `"openai:BASE_URL#MODEL"`.
        settings: `policy.*` says how a local model is loaded, `sampling.*` how it samples (greedily by
            default, as in evaluation), `endpoint.*` how requests to an endpoint are sent.

    Raises:
        UsageError: the model cannot be loaded, or a setting has no effect on it.
        DataError: a checkpoint is damaged.
    """
    found = str(name)
    asked = load_evaluation_config(words(settings or {}), [found])
    named = named_policy(found)
    config = load_config() if named is None else RunFolder.open(named.run).settings()
    which = None if named is None else config.agent_of(named.policy)
    env = None if named is None else Environment.of_run(config, which)
    answering = run_with_own_loop(
        lambda: assistant(found, asked.policy, asked.endpoint, asked.sampling)  # an endpoint is asked at once
    )
    return Agent(found, answering, Limits.of_run(config, which), env)


def _chat(message: ChatMessage | Message) -> ChatMessage:
    if isinstance(message, Message):
        return {"role": message.role, "content": message.content}
    return message


class Run:
    """A run on disk: its settings, metrics, tasks and agents.

    Args:
        path: folder of the run.

    Raises:
        UsageError: the folder has no run.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._folder = RunFolder.open(self.path)

    @property
    def config(self) -> RunConfig:
        """The run's settings, with automatic values decided."""
        return self._folder.settings()

    @property
    def metrics(self) -> dict[int, dict[str, float]]:
        """Metrics by round; docs/reference/configuration.md lists the names. Round 0 is before training."""
        with PoolStore.open(self._folder.pool, create=False, check=False) as store:
            return {number: dict(found) for number, found in store.metrics_by_round().items()}

    @property
    def held_out(self) -> dict[int, float]:
        """Success on held-out tasks, in [0, 1], by the round after which it was evaluated."""
        rates = {number: found.get("agent/eval_success") for number, found in self.metrics.items()}
        return {number: rate for number, rate in rates.items() if rate is not None}

    @cached_property
    def environment(self) -> Environment:
        """The environment that the run was trained on."""
        return Environment.of_run(self.config)

    def tasks(self, round_: int | None = None) -> tuple[Task, ...]:
        """Return the generated tasks that passed the gate.

        Args:
            round_: only tasks of this round; None: all.
        """
        rounds = None if round_ is None else range(round_, round_ + 1)
        with PoolStore.open(self._folder.pool, create=False, check=False) as store:
            return store.tasks(origin=Origin.GENERATED, rounds=rounds)

    def agent(self, round_: int | None = None, settings: Mapping[str, object] | None = None) -> Agent:
        """Load the agent after a round.

        Args:
            round_: the round; None: the last one. Only some of the newest are available:
                `run.keep_checkpoints`.
            settings: settings as for `load_agent`.
        """
        name = self.path.as_posix() if round_ is None else f"{self.path.as_posix()}@{round_}"
        return load_agent(name, settings)

    def report(self) -> Path:
        """Write the HTML report of the run; return its path."""
        return write_report(self.path)

    def __str__(self) -> str:
        """Return a summary in six lines."""
        return "\n".join(summarise(self.path))

    def __repr__(self) -> str:
        """Return the call that opens the run."""
        return f"Run({self.path.as_posix()!r})"


def train(  # noqa: PLR0913 - as the command's options
    config: RunConfig | Environment | str | Path,
    out: str | Path | None = None,
    *,
    settings: Mapping[str, object] | None = None,
    variant: str = "",
    start_from: str = "",
    resume: bool = False,
    reporter: Reporter | None = None,
) -> Run:
    """Co-evolve an agent and its simulator; return the run when all rounds are committed.

    Args:
        config: the settings: a TOML file, the name of a bundled configuration (`"demo"`), a `RunConfig`, or
            an `Environment`, which may suggest settings in its bundle.
        out: folder of the run; None: `runs/NAME`.
        settings: overrides, such as `{"run.rounds": 4}`.
        variant: named overrides, as with `--variant`.
        start_from: `RUN@ROUND`: start with the weights, pools and statistics of this round.
        resume: continue the run in `out` if it exists; otherwise an existing run is refused. Changed settings
            are refused, except those that may change, such as `run.rounds`.
        reporter: shows the progress; None: on standard error. `Silent()` shows nothing.

    Raises:
        UsageError: a setting is not allowed, a model cannot be loaded, or `out` has a run.
        GenenvError: the run cannot continue. Committed rounds stay, and `resume=True` continues from them.
    """
    overrides = words(settings or {})
    file: Path | None = None
    if isinstance(config, RunConfig):
        if overrides or variant:
            raise UsageError(
                "settings and variant are for a file or an environment; a RunConfig has all of its own"
            )
        chosen = config
    else:
        if isinstance(config, Environment):
            file, overrides = config.suggested, [*config.overrides, *overrides]
        else:
            file = Path(config)
        chosen = load_config(file, overrides, variant=variant)
    shown = reporter or ConsoleReporter(simulated=chosen.simulator.writes_tasks)
    path = Path(out) if out is not None else Path("runs") / chosen.run.name
    if not (resume and (path / "config.toml").is_file()):
        origin = Branching.named(start_from) if start_from else None
        run_with_own_loop(lambda: training.start(chosen, path, shown, file=file, origin=origin))
        return Run(path)
    if variant or start_from or isinstance(config, RunConfig):
        raise UsageError(
            "a run that is continued has its settings: with resume=True name them by a file or an "
            "environment, and "
            "leave variant and start_from out"
        )
    done = run_with_own_loop(lambda: training.go_on(path, shown, file=file, overrides=overrides))
    if done is not None:
        shown.note(done)
    return Run(path)
