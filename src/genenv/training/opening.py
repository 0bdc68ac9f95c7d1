"""Open what training and task writing need: check settings, open the environment, load both policies.

`start` and `go_on` then train a new run, or resume one, for `genenv train` and `genenv.train`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

from pydantic import BaseModel

from genenv.agent.policy import Agent, AgentConfig, NamedAgentConfig, check_agents
from genenv.algorithms.advantages import agent_credit
from genenv.algorithms.datum import Critic
from genenv.algorithms.losses import find_loss
from genenv.algorithms.reward_weighting import simulator_credit
from genenv.backends.base import Backend, Opened, Role, open_backend
from genenv.config.idle import idle_settings
from genenv.config.resolved import ResolvedConfig, resolve
from genenv.config.run import RunConfig, as_tables, dump_toml
from genenv.config.tables import dump_tables, read_tables
from genenv.curriculum.seed_choice import check_seeds, chooser_class
from genenv.curriculum.simulator_rewards import REWARD_ARGUMENTS
from genenv.environments import close_environment, load_environment
from genenv.environments.base import Environment, tools_of
from genenv.environments.wrappers import ByParameters, ShiftingEnvironment
from genenv.errors import UsageError
from genenv.gate.gate import base_tasks, own_check
from genenv.plugins import own_part
from genenv.progress import Reporter, staged
from genenv.runs.folder import RunFolder
from genenv.runs.sinks import check_packages, close_all, open_sinks
from genenv.runs.store.reader import read_last_round
from genenv.runs.store.store import PoolStore
from genenv.sampling import Sampler
from genenv.settings import is_own
from genenv.simulator.parameter_search import SEARCHES
from genenv.simulator.policy import Simulator, TaskSource
from genenv.simulator.settings import SimulatorConfig, check_simulator
from genenv.simulator.source import (
    EndpointSource,
    FileSource,
    FixedTaskSource,
    GrammarSource,
    VariationSource,
)
from genenv.training.branching import Origin, pinned
from genenv.training.loop import CoEvolution, check_attempted
from genenv.training.resuming import (
    changed_files,
    check_length,
    for_training,
    possible,
    record,
    remember,
    remember_files,
)
from genenv.training.rounds import Policies
from genenv.training.starts import note_start
from genenv.training.warmup import SupervisedWarmup, warm_up

SOURCES: Mapping[str, type[TaskSource]] = {
    "variation": VariationSource,
    "grammar": GrammarSource,
    "file": FileSource,
    "endpoint": EndpointSource,
    "none": TaskSource,
    **SEARCHES,
}
"""The sources of `simulator.source` that are no model of the run, by name."""


def check_models(config: RunConfig) -> None:
    """Refuse model names that do not exist, before anything is loaded.

    Raises:
        UsageError: a model does not exist. The message suggests the most similar name.
    """
    names = dict.fromkeys(
        one.simulator_model or one.model if name == "simulator" else one.model
        for name, one in config.policies.items()
        if one.learns_here
    )
    if not names:
        return
    from genenv.backends.local import hub

    for name in names:
        hub.check(name)


def check_own_parts(config: RunConfig) -> None:
    """Load every part of the user's own that the settings name, before a run begins.

    Raises:
        UsageError: one cannot be found, or cannot be called as its protocol says; names the setting.
    """
    agent, simulator, curriculum = config.agent, config.simulator, config.curriculum
    agents = [agent, *config.agents.values()]
    _ = simulator_credit(simulator), [(agent_credit(one), find_loss(one.loss)) for one in agents]
    advantages = [("agent.advantage", one.advantage) for one in agents]
    for setting, name in (*advantages, ("simulator.advantage", simulator.advantage)):
        if is_own(name):
            _ = own_part(setting, name, takes=("rewards",))
    for setting in ("env_reward", "candidate_reward"):
        if is_own(name := getattr(curriculum, setting)):
            _ = own_part(f"curriculum.{setting}", name, takes=REWARD_ARGUMENTS)
    if is_own(curriculum.seed_choice):
        _ = chooser_class(curriculum.seed_choice)
    if is_own(curriculum.gate):
        _ = own_check(curriculum.gate)


def open_environment(config: RunConfig, reporter: Reporter | None = None) -> Environment:
    """Open the environment, and if it shifts in a later round, the later environment too.

    Too few seeds are refused before models are loaded.

    Args:
        config: settings of the run.
        reporter: shows which tasks the settings leave out.

    Raises:
        GenenvError: an environment cannot be loaded, or has too few seeds.
    """
    with contextlib.ExitStack() as opened:
        env = _env(config, config.environment.settings, reporter, opened)
        if (later := config.later_environment()) is not None:
            env = cast(Environment, ShiftingEnvironment(env, _env(config, later, reporter, opened)))
        opened.pop_all()
    return env


def _env(
    config: RunConfig, settings: BaseModel, reporter: Reporter | None, opened: contextlib.ExitStack
) -> Environment:
    """An environment whose tasks can be written as the settings of the simulator ask."""
    name, writing = config.environment.name, config.simulator
    env = load_environment(name, settings)
    opened.callback(close_environment, env)
    omitted = getattr(env, "omitted", None)
    if reporter is not None and omitted is not None:
        reporter.note(f"{name}: {omitted}")
    if writing.writes == "parameters":
        env = cast(Environment, ByParameters(env))
    elif writing.source == "accel" and not getattr(env, "edits", False):
        raise UsageError(
            f"simulator.source is 'accel' and simulator.writes 'spec', but the environment {env.name} edits "
            "no specs with these settings: set simulator.writes to 'parameters'"
        )
    check_seeds(env.seeds(), 1 if writing.source == "none" else writing.contexts)
    return env


def load_players(config: RunConfig, env: Environment, reporter: Reporter) -> Policies:
    """Load both policies and show that models are being loaded.

    Args:
        config: settings of the run.
        env: the environment of the tasks.
        reporter: shows the progress.

    Raises:
        UsageError: a model cannot be loaded or used on this machine.
    """
    policy = config.policy
    loaded = policy.model if policy.learns_here else f"{policy.backend} players"
    with staged(reporter, f"loading {loaded}", items=None, unit=""):
        return build_players(config, env)


def build_players(config: RunConfig, env: Environment) -> Policies:
    """Build the agent, the source of its tasks and the warm-up on the backend that the settings name.

    Raises:
        UsageError: a model cannot be loaded or used on this machine, or a source of tasks cannot be opened.
    """
    seed, simulator = config.run.seed, None
    once = config.simulator.writes_once
    writing = config.simulator.model_copy(update={"variations": 1}) if once else config.simulator
    written = writing.source == "model"  # other sources refuse a wrong setting before models are loaded
    source = None if written else SOURCES[writing.source](writing, seed=seed)
    opened = _open_policies(config, env, written=written)
    agents = [
        Agent(
            opened.samplers[name],
            opened.trainers[name],
            own,
            seed=seed,
            name=name,
            seats=[seat for seat, agent in config.seated.items() if agent == name],
        )
        for name, own in config.population.items()
    ]
    by_name = {agent.name: agent for agent in agents}
    if source is None:
        simulator = Simulator(opened.samplers["simulator"], opened.trainers["simulator"], writing, seed=seed)
        source = simulator
    warmups = [
        SupervisedWarmup(
            env=env,
            agent=agent,
            simulator=simulator if agent is agents[0] else None,
            target=config.curriculum.alpha,
            seed=seed,
        )
        for agent in agents
    ]
    warmup = warmups[0] if len(warmups) == 1 else partial(warm_up, warmups)
    return Policies(
        agent=agents[0],
        simulator=FixedTaskSource(source, config.simulator, seed=seed) if once else source,
        others=agents[1:],
        seats={seat: by_name[name] for seat, name in config.seated.items()},
        warmup=warmup if opened.warms_up else None,
        backend=opened,
    )


def _open_policies(config: RunConfig, env: Environment, *, written: bool) -> Opened:
    """Open a sampler and a trainer for each agent, and for the simulator if it is a model of this run.

    Raises:
        UsageError: an endpoint does not answer, a model cannot be used, or a backend lacks what is set.
    """
    seed, ahead = config.run.seed, config.run.staleness > 0
    behind = {name: agent for name, agent in config.agents.items() if agent.address is not None}
    here = {name: agent for name, agent in config.population.items() if name not in behind}
    roles = [_role(name, agent, ahead=ahead) for name, agent in here.items()]
    if written:
        roles.append(_role("simulator", config.simulator, ahead=ahead))
    if not behind:
        opened = open_backend(config.policy, roles, env, seed=seed)
    else:
        try:
            from genenv.clients.policy import meet, with_endpoints
        except ImportError as error:
            raise UsageError("endpoints need the openai client: pip install 'genenv[api]'") from error
        met = meet(behind)  # a server that does not answer is refused before models are loaded
        opened = with_endpoints(open_backend(config.policy, roles, env, seed=seed), met)
    if config.curriculum.compares_versions and not opened.scores_written:
        raise UsageError(
            f"backend {config.policy.backend!r} cannot score tasks under an older version of the agent: set "
            'curriculum.env_reward and curriculum.candidate_reward to other rewards than "progress"'
        )
    for name, own in here.items():
        section = f"agents.{name}" if config.agents else "agent"
        backend = config.policy_of(name).backend
        if own.algorithm == "ppo" and not isinstance(opened.trainers[name], Critic):
            raise UsageError(
                f"{section}.algorithm is 'ppo', but backend {backend!r} has no value function: set the "
                f"backend to 'ppo', or {section}.algorithm to 'grpo'"
            )
        if own.max_new_tokens < (most := opened.reply_tokens.get(name, 0)):
            raise UsageError(
                f"{section}.max_new_tokens is {own.max_new_tokens}, which cuts trajectories of {most - 1} "
                f"steps off: set it to {most}"
            )
    return opened


def _role(name: str, config: AgentConfig | SimulatorConfig, *, ahead: bool) -> Role:
    return Role(
        name=name,
        model=config.model if isinstance(config, NamedAgentConfig) else None,
        backend=config.backend if isinstance(config, NamedAgentConfig) else None,
        optimizer=config,
        reference=config.kl_coefficient > 0,
        ahead=ahead,
    )


def start(
    config: RunConfig,
    path: Path,
    reporter: Reporter,
    *,
    file: Path | None = None,
    origin: Origin | None = None,
    begun: Callable[[], None] = lambda: None,
) -> None:
    """Train a new run to its end.

    Args:
        config: settings of the run. Automatic values are decided once, in this function.
        path: folder of the run. It is created only after everything that can fail has succeeded.
        reporter: shows the progress.
        file: the file that the settings were read from.
        origin: a round of another run to start from.
        begun: called once the run is in its folder, before the first round.

    Raises:
        GenenvError: the run cannot start or cannot continue. The message says why.
    """
    folder = RunFolder.vacant(path)
    check_models(config)
    config.policy.vllm.check_options()
    check_simulator(config.simulator, config.curriculum.novelty_threshold)
    check_agents(config.population)
    check_own_parts(config)
    for text in idle_settings(config):
        reporter.note(f"note: {text}")
    resolved = resolve(config)
    if origin is not None:
        origin.check(resolved)
    else:
        resolved = pinned(resolved)
    with _opened(resolved, folder, reporter) as loop:
        settings = ("" if origin is None else origin.note()) + dump_toml(loop.config)
        said = None if file is None else dump_tables(read_tables(file))
        RunFolder.create(path, settings, started=said, fill=None if origin is None else origin.fill)
        _ = remember_files(folder, loop.config)

        def note_begin(last: int | None) -> None:
            _check_ours(folder, settings)
            _ = note_start(folder, loop.policies.backend.found, since=0 if last is None else last + 1)

        _log_servers(folder, loop.policies.backend)
        begun()
        loop.run(note_begin)


def go_on(
    path: Path,
    reporter: Reporter,
    *,
    file: Path | None = None,
    overrides: Sequence[str] = (),
    other_arithmetic: bool = False,
    begun: Callable[[], None] = lambda: None,
) -> str | None:
    """Resume a run and train its remaining rounds.

    Args:
        path: folder of the run.
        reporter: shows the progress, and notes for the user.
        file: the CONFIG of the run. Changes in it that would affect results are refused.
        overrides: settings as `key=value`.
        other_arithmetic: whether results may change in their last digits, because this machine lacks
            something that the run was computed with.
        begun: called before the first round that is left.

    Returns:
        A sentence if no round was left, otherwise None.

    Raises:
        GenenvError: the run cannot continue. The message says why.
    """
    folder = RunFolder.open(path)
    change = for_training(folder, file, overrides, other_arithmetic=other_arithmetic)
    saved = folder.config.read_text(encoding="utf-8")
    if (note := check_length(folder, change)) is not None:
        reporter.note(note)
    if (done := _finished(folder, change.asked)) is not None:
        number, notes = done
        for text in notes:
            reporter.note(f"note: {text}")
        unchanged = "" if notes else ", nothing was changed"
        return f"{folder.path} is finished: all of its {number} rounds are committed{unchanged}"

    resolved = resolve(possible(change, folder, other_arithmetic=other_arithmetic))
    check_own_parts(resolved)
    with _opened(resolved, folder, reporter) as loop:
        final = replace(change, asked=loop.config)

        def note_changes(last: int | None) -> None:
            _check_ours(folder, saved)
            since, edited = 0 if last is None else last + 1, remember_files(folder, loop.config)
            others = note_start(folder, loop.policies.backend.found, since=since)
            if others:
                reporter.note(
                    f"note: {', '.join(others)}: changed since the last start; rounds from {since} on are "
                    "computed by what is here now"
                )
            for one in changed_files(loop.config, edited):
                reporter.note(
                    f"note: {one} has changed since the run was started: rounds from {since} on use it as it "
                    "is now"
                )
            record(folder, final, edited, others, since=since)
            remember(folder, file)

        _log_servers(folder, loop.policies.backend)
        begun()
        loop.run(note_changes)
    return None


def _check_ours(folder: RunFolder, settings: str) -> None:
    """Refuse to train a run whose settings another process has written since this one read or wrote them.

    It is called while this process holds the lock.
    """
    if folder.config.read_text(encoding="utf-8") != settings:
        raise UsageError(
            f"another process has started or continued {folder.path} meanwhile; continue it with --resume, "
            "or choose another --out"
        )


def _finished(folder: RunFolder, config: RunConfig) -> tuple[int, Sequence[str]] | None:
    """The rounds of a finished run, and the notes of its repair; None when some are left.

    Raises:
        GenenvError: the agent rolled out no task in any round.
    """
    notes: list[str] = []
    with folder.lock():
        last = read_last_round(folder.pool)
        if last is None or last < config.run.rounds:
            return None
        with PoolStore.open(folder.pool, create=False) as store:
            folder.restore(store, notes.append)
            check_attempted(config, store)
    return last, notes


@contextlib.contextmanager
def _opened(config: ResolvedConfig, folder: RunFolder, reporter: Reporter) -> Generator[CoEvolution]:
    """The training loop of a run, whose `config` has what only loaded models decide; closed at the end.

    Args:
        config: the settings.
        folder: the run.
        reporter: shows the progress.
    """
    with contextlib.ExitStack() as opened:
        env = open_environment(config, reporter)
        opened.callback(close_environment, env)
        check_packages(config.logging)
        players = load_players(config, env, reporter)
        if players.backend.end is not None:
            opened.callback(players.backend.end)
        if (settled := players.backend.settled) is not None:
            config = config.model_copy(update={"policy": settled})
        for name in config.offered_tools:
            _check_tools(env, players.agents[name].sampler, seed=config.run.seed)
        sinks = open_sinks(config.logging, folder.path, name=config.run.name, settings=as_tables(config))
        opened.callback(close_all, sinks)
        with staged(reporter, "building base tasks", items=len(env.seeds()), unit="tasks"):
            loop = CoEvolution(config, env, players, folder, sinks=sinks, reporter=reporter)
        yield loop


def _log_servers(folder: RunFolder, backend: Backend) -> None:
    """Have the servers that the backend started, if there are any, log into the run's folder."""
    if backend.begin is not None:
        backend.begin(folder.path)


def _check_tools(env: Environment, sampler: Sampler, *, seed: int) -> None:
    """Refuse a model whose chat template does not support the environment's tools, before a run starts."""
    for task in base_tasks(env, env.seeds()[:1], seed=seed).values():
        sampler.render(task.messages, first=True, tools=tools_of(env.episode(task)))
