"""What the backend does on a server, in a process of its own: the SDK leaves connections open for good.

Line after line of JSON, a case each: reads `{"case": ..., "arguments": {...}}`, writes `{"result": ...}` or
`{"error": ...}`, a traceback.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

os.environ.setdefault("TINKER_TELEMETRY", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from genenv.agent.policy import AgentConfig
from genenv.algorithms.datum import Datum, Objective
from genenv.algorithms.settings import OptimizerConfig
from genenv.algorithms.update import TrustRegion
from genenv.backends.base import Opened, Role, open_backend
from genenv.backends.local.backend import open_local
from genenv.backends.settings import PolicyConfig, TinkerConfig
from genenv.backends.tinker.policy import TinkerTrainer
from genenv.backends.tinker.service import ServerError, Service
from genenv.errors import GenenvError, UpdateSkipped
from genenv.sampling import SampleRequest
from genenv.types import Message

SETTINGS = OptimizerConfig(lr=3e-3)
ROLES = [Role(name=name, optimizer=SETTINGS, reference=True) for name in ("agent", "simulator")]
PROMPT = (3, 4, 5)
HERE = {"dtype": "float32", "device": "cpu", "threads": 1, "packed_weights": False, "compiled": False}


def opened(url: str, *, timeout_s: float = 60.0, entropy: float = 0.0, **settings: Any) -> Opened:
    server = TinkerConfig(address=url, timeout_s=timeout_s)
    config = PolicyConfig(backend="tinker", model="tiny", tinker=server, **settings)
    agent = Role(name="agent", optimizer=AgentConfig(entropy_coefficient=entropy), reference=True)
    return open_backend(config, [agent] if entropy else ROLES, cast(Any, None), seed=1)


def trainer(found: Opened, role: str = "agent") -> TinkerTrainer:
    return cast(TinkerTrainer, found.trainers[role])


def imitated(*ids: int, weight: float = 1.0) -> Datum:
    weights = (weight, 0.0, *(weight,) * (len(ids) - 2))
    return Datum(prompt_ids=PROMPT, completion_ids=ids, weights=weights, loss="nll")


def attempted(*ids: int, advantage: float, old: tuple[float, ...]) -> Datum:
    return Datum(
        prompt_ids=PROMPT,
        completion_ids=ids,
        weights=(0.25,) * len(ids),
        loss="ppo",
        advantages=(advantage,) * len(ids),
        old_logprobs=old,
    )


DATA = [imitated(7, 8, 9, weight=0.5), imitated(10, 11, 12, 13, weight=0.1)]


async def stepped(
    one: Any, data: list[Datum], objective: Objective, rate: float = 3e-3
) -> Mapping[str, float]:
    return {**await one.forward_backward(data, objective), **await one.step(rate)}


def near(rows: Any, others: Any, *, within: float) -> None:
    for a, b in zip(rows, others, strict=True):
        for x, y in zip(a, b, strict=True):
            assert abs(x - y) < within, (rows, others)


def as_local(url: str, kl: Any) -> bool:
    """Three steps beside the local trainer from the same adapter; whether cross_entropy is used."""
    found = opened(url, lora_rank=16)
    here = open_local(PolicyConfig(model="tiny", lora_rank=16, **HERE), ROLES, cast(Any, None), 1)
    objective = Objective(kl_coefficient=0.1 if kl == "k3" else 0.0, kl=kl)

    async def both() -> None:
        one, other = trainer(found), here.trainers["agent"]
        (old,) = await other.logprobs([imitated(7, 8, 9)])
        data = [
            *DATA,
            attempted(7, 8, 9, advantage=1.0, old=old),
            attempted(5, 6, advantage=-2.0, old=(-3.0, -4.5)),
        ]
        for _ in range(3):
            mine, theirs = await stepped(one, data, objective), await stepped(other, data, objective)
            near(
                [[mine[n] for n in ("loss", "clip_rate", "old_kl")]],
                [[theirs[n] for n in ("loss", "clip_rate", "old_kl")]],
                within=1e-3,
            )
            near(await one.logprobs(data), await other.logprobs(data), within=5e-4)

    asyncio.run(both())
    return trainer(found).base.sums.weighs


def apart(url: str) -> None:
    """One learns, the other stays, bit for bit; what is published is what is sampled."""
    found = opened(url)

    async def play() -> None:
        one, other = trainer(found), trainer(found, "simulator")
        then, there = await one.logprobs(DATA), await other.logprobs(DATA)
        for _ in range(4):
            await stepped(one, DATA, Objective())
        assert await one.publish() == 1
        now = await one.logprobs(DATA)
        assert all(sum(a) > sum(b) + 0.05 for a, b in zip(now, then, strict=True))
        assert await other.logprobs(DATA) == there
        sampler = found.samplers["agent"]
        prompt = sampler.render([Message(role="user", content="hello")], first=True)
        done = await sampler.sample(SampleRequest(prompt_ids=prompt, max_tokens=12, stream=5))
        again = await sampler.sample(SampleRequest(prompt_ids=prompt, max_tokens=12, stream=5))
        assert (done.version, done.token_ids) == (1, again.token_ids)
        ones = (1.0,) * len(done.token_ids)
        datum = Datum(prompt_ids=prompt, completion_ids=done.token_ids, weights=ones, loss="nll")
        near([done.logprobs], await one.logprobs([datum]), within=1e-4)

    asyncio.run(play())


def stale(url: str) -> str:
    """What is said of a server that says it has published weights, and samples with those before."""
    found = opened(url)

    async def play() -> str:
        one = trainer(found)
        assert await one.publish() == 1
        before = one.sampler.client

        async def same() -> Any:
            return before

        for _ in range(2):
            await stepped(one, DATA, Objective())
        one.client.save_weights_and_get_sampling_client_async = same
        try:
            await one.publish()
        except ServerError as error:
            return str(error)
        return "nothing"

    return asyncio.run(play())


def shortened(url: str) -> None:
    """A step at half the rate is as if it had been the first; one that stays too long is taken back."""
    found, fresh = opened(url), opened(url)

    async def play() -> None:
        one, other = trainer(found), trainer(fresh)
        await one.watch(DATA)
        await one.forward_backward(DATA, Objective())
        await one.step(0.004)
        whole = await one.moved()
        await one.shorten(0.5)
        half = await one.moved()
        assert one._steps == 1
        assert 0 < half < 0.6 * whole, (half, whole)
        await one.publish()
        await stepped(other, DATA, Objective(), rate=0.002)
        before = await one.logprobs(DATA)
        near(before, await other.logprobs(DATA), within=1e-5)
        region = TrustRegion(cap=half / 8, retries=1)
        await one.watch(DATA)
        await one.forward_backward(DATA, Objective())
        try:
            await region.step(one, 0.5)
        except UpdateSkipped as reason:
            assert "even the smallest step" in str(reason)  # noqa: PT017
        else:
            raise AssertionError("it was not taken back")
        assert (await one.logprobs(DATA), region.halved, one._steps) == (before, 1, 1)

    asyncio.run(play())


def anchored(url: str) -> None:
    """The reference is first the base, then the weights at the anchor."""
    found = opened(url)

    async def play() -> None:
        one = trainer(found)
        near(await one.logprobs(DATA, reference=True), await one.logprobs(DATA), within=1e-5)
        await stepped(one, DATA, Objective())
        await one.anchor("none")
        then = await one.logprobs(DATA)
        await stepped(one, DATA, Objective())
        await one.publish()
        near(await one.logprobs(DATA, reference=True), then, within=1e-5)
        assert await one.logprobs(DATA) != then

    asyncio.run(play())


KL = Objective(kl_coefficient=0.1, kl="exact")


async def _next(one: TinkerTrainer) -> Any:
    await stepped(one, DATA, KL)
    return [await one.logprobs(DATA), await one.logprobs(DATA, reference=True)]


def saved(url: str, folder: str) -> Any:
    """What comes after a checkpoint."""
    found = opened(url)

    async def play() -> Any:
        one = trainer(found)
        await stepped(one, DATA, Objective())
        await one.anchor("both")
        await stepped(one, DATA, KL)
        await one.publish()
        await one.save(Path(folder))
        return await _next(one)

    return asyncio.run(play())


def restored(url: str, folder: str) -> Any:
    """The same, out of the checkpoint."""
    found = opened(url)

    async def play() -> Any:
        one = trainer(found)
        await one.load(Path(folder))
        assert (one.version, found.samplers["agent"].version) == (1, 1)  # type: ignore[attr-defined]
        return await _next(one)

    return asyncio.run(play())


def given_up(url: str, checkpoints: str) -> str:
    """States of checkpoints that are gone are deleted; what the server says of one."""
    found = opened(url)
    folders = [Path(checkpoints) / f"round-{n:04d}" / "agent" for n in range(3)]

    async def play() -> str:
        one = trainer(found)
        for folder in folders[:2]:
            await one.save(folder)
        gone = json.loads((folders[0] / "tinker.json").read_text())["state"]
        (folders[0] / "tinker.json").unlink()
        await one.save(folders[2])
        await one.load(folders[1])
        try:
            await one._open(gone, optimizer=True)
        except ServerError as error:
            return str(error)
        return ""

    return asyncio.run(play())


def not_finite(url: str) -> None:
    """A loss that is no number takes the update back, and the next one goes on."""
    found = opened(url)

    async def play() -> None:
        one = trainer(found)
        before = await one.logprobs(DATA)
        await stepped(one, DATA, Objective())
        bad = attempted(7, 8, 9, advantage=float("nan"), old=(-1.0, -1.0, -1.0))
        try:
            await one.forward_backward([bad], Objective())
        except UpdateSkipped as reason:
            assert "not finite" in str(reason)  # noqa: PT017
        else:
            raise AssertionError("it was not skipped")
        assert await one.logprobs(DATA) == before
        assert one._steps == 0  # the ramp begins anew, too
        await stepped(one, DATA, Objective())
        assert one._steps == 1

    asyncio.run(play())


_kept: dict[str, Opened] = {}


def open_and_keep(url: str) -> None:
    _kept[url] = opened(url)


def score_with_kept(url: str) -> str:
    async def play() -> None:
        await trainer(_kept[url]).logprobs(DATA)

    try:
        asyncio.run(play())
    except ServerError as error:
        return str(error)
    return ""


def told(url: str) -> Any:
    """What was found of a server."""
    return cast(Any, opened(url).found)["models"]["tiny"]


def refusal(url: str, **settings: Any) -> str:
    """Why it is not opened."""
    try:
        opened(url, **settings)
    except GenenvError as error:
        return str(error)
    return ""


def met(url: str) -> str:
    """The address that a session is with, which ends at once."""
    service = Service.connect(TinkerConfig(address=url))
    asyncio.run(service.close())
    return service.address


def environment(**values: str | None) -> None:
    for name, value in values.items():
        os.environ.pop(name, None)
        os.environ |= {} if value is None else {name: value}


def main(cases: Mapping[str, Any]) -> None:
    """Run cases by their names."""
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            said = {"result": cases[asked["case"]](**asked["arguments"])}
        except BaseException:  # noqa: BLE001 - told to the test
            said = {"error": traceback.format_exc()}
        print("\n@" + json.dumps(said), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(globals())
