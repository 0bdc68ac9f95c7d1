# pyright: standard
"""Opens both policies: they train on this machine, and vLLM servers with the same base sample."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

from genenv.backends.base import Opened, Role, process_count
from genenv.backends.local import hardware
from genenv.backends.local.backend import open_local
from genenv.backends.local.loading import resolve
from genenv.backends.local.trainer import LocalTrainer
from genenv.backends.settings import ADAPTERS_PREFIX, PolicyConfig
from genenv.backends.vllm.client import LOST, Broken, Card, Forgot, Unfit, check_policies
from genenv.backends.vllm.fleet import Fleet
from genenv.backends.vllm.launcher import (
    Installed,
    LaunchedServer,
    adapters_place,
    examine,
    find_program,
    free_port,
    largest_rank,
    memory_share,
    own_options,
    vllm_command,
)
from genenv.backends.vllm.policy import PublishingTrainer, VllmSampler, WeightChecks
from genenv.environments.base import Environment
from genenv.errors import GenenvError, UsageError
from genenv.files import private_folder
from genenv.threads import WorkerThread, run_coroutine

T = TypeVar("T")

_OPENING_S = 600.0
_LOG = "vllm.log"
"""File in a run's folder with the output of the server that the run started."""


def open_vllm(config: PolicyConfig, roles: Sequence[Role], env: Environment, seed: int) -> Opened:
    """Open both policies: trainers on this machine, samplers on the servers that the settings name.

    If they name none, a vLLM of this machine is started.

    Raises:
        UsageError: a model cannot be loaded on this machine, or a server cannot be started or reached, cannot
            load adapters, or serves another model.
    """
    check_policies(config, roles)
    if config.vllm.addresses or config.vllm.addresses_folder is not None:
        fleet = Fleet(config.vllm)
        cards = run_coroutine(lambda: _closing(fleet, fleet.meet()), _OPENING_S)
        here = open_local(config, roles, env, seed)
        return _opened(config, roles, here, fleet, cards, _folder(config))
    if process_count() > 1:
        raise UsageError(
            "several processes train together, and none of them starts vLLM: start servers with `genenv "
            "serve --vllm`, and name them in policy.vllm.addresses"
        )
    largest_rank(config.lora_rank)  # refused before a model is loaded
    installed = examine(find_program(config.vllm.command))
    here = open_local(config, roles, env, seed)
    launched = _launched(config, roles, here, installed)
    try:
        launched.wait()
        named = config.vllm.model_copy(update={"addresses": (launched.address,)})
        fleet = Fleet(named, launched)
        cards = run_coroutine(lambda: _closing(fleet, fleet.meet()), _OPENING_S)
        opened = _opened(config, roles, here, fleet, cards, _folder(config, _adapters_bytes(config, here)))
    except BaseException:
        launched.end()
        raise
    found = {**opened.found, "vllm": "unknown" if installed is None else installed.version}
    return replace(opened, found=found, begin=lambda run: launched.log_to(run / _LOG), end=launched.end)


def _launched(
    config: PolicyConfig, roles: Sequence[Role], here: Opened, installed: Installed | None
) -> LaunchedServer:
    """Start a server on the device of the trainers.

    Args:
        config: settings of the policies.
        roles: the policies.
        here: the trainers, with their models loaded.
        installed: the vLLM that is there; None if it says nothing of itself.

    Raises:
        UsageError: the device has too little free memory.
    """
    model = cast(LocalTrainer, next(iter(here.trainers.values()))).weights.model
    device, share = model.device, None
    alternate = config.vllm.sleep and not any(role.ahead for role in roles)
    sleeps = installed is not None and installed.sleeps and alternate
    if installed is not None and installed.device == device.type:
        hardware.release_memory(device)
        share = memory_share(
            config.vllm.memory_share,
            total=hardware.memory_bytes(device),
            free=hardware.free_bytes(device),
            weights=sum(one.numel() * one.element_size() for one in model.causal.parameters()),
            device=device.type,
            sleeps=sleeps,
        )
    host, port = "127.0.0.1", free_port("127.0.0.1")
    options, variables = own_options(
        config.vllm, installed, share=share, context=model.context_tokens, sleeps=sleeps
    )
    words = vllm_command(
        config.model_copy(update={"dtype": str(model.dtype).removeprefix("torch.")}),
        resolve(config.model),
        host=host,
        port=port,
        context=model.context_tokens,
        more=["--max-loras", str(2 * len(roles)), *options],  # two versions of each policy
    )
    return LaunchedServer(
        words,
        f"http://{host}:{port}",
        config.vllm,
        variables=variables,
        sleeps=sleeps,
        release=functools.partial(hardware.release_memory, device),
    )


def _opened(
    config: PolicyConfig,
    roles: Sequence[Role],
    here: Opened,
    fleet: Fleet,
    cards: Mapping[str, Sequence[Card]],
    folder: Path,
) -> Opened:
    """Join the trainers of this machine with servers, and check that these sample from their weights.

    Args:
        config: settings of the policies.
        roles: the policies.
        here: the policies as they train on this machine.
        fleet: the servers.
        cards: the models of each server, by address.
        folder: for adapters.

    Raises:
        UsageError: a server cannot load adapters, or serves another model.
    """
    longest = [own[0].max_model_len for own in cards.values() if own[0].max_model_len is not None]
    token = uuid.uuid4().hex[:8]
    threads: defaultdict[int, WorkerThread] = defaultdict(lambda: WorkerThread("genenv-trainer"))
    samplers: dict[str, VllmSampler] = {}
    trainers: dict[str, PublishingTrainer] = {}
    for role in roles:
        own = cast(LocalTrainer, here.trainers[role.name])
        model = own.weights.model
        samplers[role.name] = VllmSampler(
            fleet,
            model.chat,
            context_tokens=min([model.context_tokens, *longest]),
            max_thinking_tokens=config.max_thinking_tokens,
        )
        worker = threads[id(model)] if role.ahead else None
        name = f"genenv-{token}-{role.name}"
        trainers[role.name] = PublishingTrainer(
            own, fleet, samplers[role.name], worker, name=name, folder=folder
        )

    model = cast(LocalTrainer, here.trainers[roles[0].name]).weights.model
    fleet.vocabulary, fleet.context_tokens = model.vocabulary, samplers[roles[0].name].context_tokens
    policies = list(trainers.values())
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
    fleet: Fleet, policies: Sequence[PublishingTrainer], checks: WeightChecks
) -> dict[str, float]:
    """Have all answering servers load the policies' weights, and check them; return the gap per address.

    Raises:
        UsageError: a server does not sample from these weights.
        GenenvError: no server answers any more.
    """
    for policy in policies:
        await policy.publish_current()
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


def _adapters_bytes(config: PolicyConfig, here: Opened) -> float:
    """Return about how much the adapters take that are on disk at a time."""
    own = [cast(LocalTrainer, one).weights.parameters() for one in here.trainers.values()]
    sizes = (one.numel() * one.element_size() for parameters in own for _, one in parameters)
    return float(sum(sizes) * (config.vllm.kept + 2))


def _folder(config: PolicyConfig, needed: float | None = None) -> Path:
    """Return the folder for adapters; a temporary folder is deleted when the process ends.

    Args:
        config: names the folder, or none.
        needed: bytes of all adapters, for servers on this machine: the folder is in memory if there is room.
    """
    if config.vllm.folder is not None:
        folder = Path(config.vllm.folder)
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    place = Path(tempfile.gettempdir()) if needed is None else adapters_place(needed)
    folder, lock = private_folder(ADAPTERS_PREFIX, place)

    def remove() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)

    atexit.register(remove)
    return folder
