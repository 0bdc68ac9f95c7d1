# pyright: standard
"""Opens both policies: they train on this machine, and vLLM servers with the same base sample."""

from __future__ import annotations

import atexit
import functools
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

from genenv.backends.base import Opened, Role
from genenv.backends.local.backend import open_local
from genenv.backends.local.trainer import LocalTrainer
from genenv.backends.settings import ADAPTERS_PREFIX, PolicyConfig
from genenv.backends.vllm.client import LOST, Broken, Card, Forgot, Unfit, check_policies
from genenv.backends.vllm.fleet import Fleet
from genenv.backends.vllm.policy import PublishingTrainer, ServedPolicy, VllmSampler, WeightChecks
from genenv.environments.base import Environment
from genenv.errors import GenenvError, UsageError
from genenv.threads import WorkerThread, run_coroutine

T = TypeVar("T")

_OPENING_S = 600.0


def open_vllm(config: PolicyConfig, roles: Sequence[Role], env: Environment, seed: int) -> Opened:
    """Open both policies: trainers on this machine, samplers on the servers that the settings name.

    Raises:
        UsageError: a model cannot be loaded on this machine, or a server cannot be reached, cannot load
            adapters, or serves another model.
    """
    check_policies(config)
    fleet = Fleet(config.vllm)
    cards = run_coroutine(lambda: _closing(fleet, fleet.meet()), _OPENING_S)
    here = open_local(config, roles, env, seed)
    folder, token = _folder(config), uuid.uuid4().hex[:8]
    threads: defaultdict[int, WorkerThread] = defaultdict(lambda: WorkerThread("genenv-trainer"))
    samplers: dict[str, VllmSampler] = {}
    trainers: dict[str, PublishingTrainer] = {}
    for role in roles:
        own = cast(LocalTrainer, here.trainers[role.name])
        model = own.weights.model
        samplers[role.name] = VllmSampler(
            fleet,
            model.chat,
            context_tokens=min(model.context_tokens, *_lengths(cards, model.context_tokens)),
            max_thinking_tokens=config.max_thinking_tokens,
        )
        worker = threads[id(model)] if role.ahead else None
        name = f"genenv-{token}-{role.name}"
        trainers[role.name] = PublishingTrainer(
            own, fleet, samplers[role.name], worker, name=name, folder=folder
        )

    model = cast(LocalTrainer, here.trainers[roles[0].name]).weights.model
    fleet.vocabulary, fleet.context_tokens = model.vocabulary, samplers[roles[0].name].context_tokens
    policies = [
        ServedPolicy(name=role.name, sampler=samplers[role.name], trainer=trainers[role.name])
        for role in roles
    ]
    checks = WeightChecks(fleet, policies)
    try:
        gaps = run_coroutine(lambda: _closing(fleet, _publish_and_check(fleet, policies, checks)), _OPENING_S)
    except GenenvError as error:
        raise UsageError(str(error)) from error
    found = {
        "servers": {address: [card.id for card in own] for address, own in cards.items()},
        "gap": max(gaps.values()),
        "gaps": gaps,
        "chooses": fleet.holds_choices,
    }
    return replace(
        here,
        samplers=samplers,
        trainers=trainers,
        found=found,
        async_rollouts=True,
        check=checks.check,
        close=functools.partial(_close, fleet, threads.values()),
    )


async def _publish_and_check(
    fleet: Fleet, policies: Sequence[ServedPolicy], checks: WeightChecks
) -> dict[str, float]:
    """Have all answering servers load the policies' weights, and check them; return the gap per address.

    Raises:
        UsageError: a server does not sample from these weights.
        GenenvError: no server answers any more.
    """
    for policy in policies:
        await policy.trainer.publish_current()
    gaps: dict[str, float] = {}
    async for server in fleet.answering():
        try:
            holds = await policies[0].sampler.holds_choices(server)
            gaps[server.address] = await checks.gap(server)
        except (*LOST, Broken, Forgot) as error:
            fleet.mark_lost(server, error)
        except Unfit as error:
            fleet.exclude(server, error)
        else:
            server.checked, fleet.holds_choices = True, fleet.holds_choices and holds
    fleet.opening, fleet.admit = False, checks.admit
    return gaps


async def _close(fleet: Fleet, threads: Iterable[WorkerThread]) -> None:
    try:
        await fleet.close()
    finally:
        for thread in threads:
            thread.close()


async def _closing(fleet: Fleet, wanted: Awaitable[T]) -> T:
    try:
        return await wanted
    finally:
        await fleet.close()


def _lengths(cards: Mapping[str, Sequence[Card]], usual: int) -> list[int]:
    """Return the longest sequence that each server accepts, in tokens."""
    return [own[0].max_model_len or usual for own in cards.values()]


def _folder(config: PolicyConfig) -> Path:
    """Return the folder for adapters; a temporary folder is deleted when the process ends."""
    if config.vllm.folder is not None:
        folder = Path(config.vllm.folder)
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    made = tempfile.TemporaryDirectory(prefix=ADAPTERS_PREFIX)
    folder = Path(made.name)
    atexit.register(made.cleanup)
    return folder
