# pyright: standard
"""Opens both players here to learn, and on servers to sample: adapters on one base that all of them hold."""

from __future__ import annotations

import atexit
import functools
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar, cast

from genenv.backends.apart import apart
from genenv.backends.base import Opened, Role, SampleRequest
from genenv.backends.beside import Beside
from genenv.backends.local.together import open_together
from genenv.backends.local.trainer import LocalTrainer
from genenv.backends.settings import ADAPTERS_PREFIX, PolicyConfig
from genenv.backends.vllm.fleet import Fleet
from genenv.backends.vllm.sampler import VllmSampler
from genenv.backends.vllm.starting import check_players
from genenv.backends.vllm.trainer import PublishingTrainer
from genenv.domains.base import Domain
from genenv.errors import GenenvError, UsageError
from genenv.learning.datum import Datum
from genenv.types import Message

T = TypeVar("T")

_OPENING_S = 600.0
_GAP = 0.5
"""Nats: beyond, the servers hold another model."""
_TOKENS = 24


def open_vllm(config: PolicyConfig, roles: Sequence[Role], domain: Domain, seed: int) -> Opened:
    """Both players: weights here, samplers on the servers of the settings.

    Raises:
        UsageError: a model cannot be loaded here, or a server cannot be reached, loads no adapters or holds
            another model.
    """
    check_players(config)
    fleet = Fleet(config.vllm)
    cards = apart(lambda: _closing(fleet, fleet.meet()), _OPENING_S)
    here = open_together(config, roles, domain, seed)
    folder, token = _folder(config), uuid.uuid4().hex[:8]
    threads: defaultdict[int, Beside] = defaultdict(lambda: Beside("genenv-trainer"))
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
        beside = threads[id(model)] if role.ahead else None
        name = f"genenv-{token}-{role.name}"
        trainers[role.name] = PublishingTrainer(
            own, fleet, samplers[role.name], beside, name=name, folder=folder
        )

    async def shown() -> float:
        for trainer in trainers.values():
            await trainer.show()
        first = samplers[roles[0].name]
        fleet.chooses = await first.holds_choices()
        return await _gap(first, trainers[roles[0].name])

    try:
        gap = apart(lambda: _closing(fleet, shown()), _OPENING_S)
    except GenenvError as error:
        raise UsageError(str(error)) from error
    if not gap <= _GAP:
        raise UsageError(
            f"the servers sample with log-probabilities {gap:.2f} nats from those of {config.model}: they "
            "hold another model"
        )
    found = {
        "servers": {address: [card.get("id") for card in own] for address, own in cards.items()},
        "gap": gap,
        "chooses": fleet.chooses,
    }
    close = functools.partial(_close, fleet, threads.values())
    return replace(here, samplers=samplers, trainers=trainers, found=found, overlaps=True, close=close)


async def _close(fleet: Fleet, threads: Iterable[Beside]) -> None:
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


async def _gap(sampler: VllmSampler, trainer: PublishingTrainer) -> float:
    """Mean |log pi(server) - log pi(here)| of sampled tokens, the same weights. Nats."""
    prompt = sampler.render([Message(role="user", content="Count from one to ten in words.")], first=True)
    done = await sampler.sample(SampleRequest(prompt_ids=prompt, max_tokens=_TOKENS))
    ones = (1.0,) * len(done.token_ids)
    datum = Datum(prompt_ids=prompt, completion_ids=done.token_ids, weights=ones, loss="nll")
    (own,) = await trainer.logprobs([datum])
    return fmean(abs(a - b) for a, b in zip(done.logprobs, own, strict=True))


def _lengths(cards: Any, usual: int) -> list[int]:  # noqa: ANN401
    """The longest sequence of each server."""
    return [int(own[0].get("max_model_len") or usual) for own in cards.values()]


def _folder(config: PolicyConfig) -> Path:
    """Where adapters are written; a temporary one goes with the process."""
    if config.vllm.folder is not None:
        folder = Path(config.vllm.folder)
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    made = tempfile.TemporaryDirectory(prefix=ADAPTERS_PREFIX)
    folder = Path(made.name)
    atexit.register(made.cleanup)
    return folder
