"""What two players do on SkyRL's server, in a process of its own: see `backend_cases`."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

from backend_cases import PROMPT, attempted, imitated, main, opened, trainer

from genenv.algorithms.datum import Datum, Objective, UpdateBatch
from genenv.algorithms.update import Done, learn
from genenv.backends.base import Opened
from genenv.backends.tinker.policy import TinkerTrainer

RATE = 3e-3
GOOD, BAD, PLAIN = (40, 41, 42, 43), (50, 51, 52), (60, 61, 62, 63, 64, 65)
HEAVY, LIGHT = (70, 71, 72, 73), (80, 81, 82, 83)
GRPO = Objective(kl_coefficient=0.05, kl="k3")
RWR = Objective(kl_coefficient=0.05, kl="exact")

_kept: dict[str, Opened] = {}


def _seen(*ids: int) -> Datum:
    return Datum(prompt_ids=PROMPT, completion_ids=ids, weights=(1.0,) * len(ids), loss="nll")


ATTEMPTS = [_seen(*ids) for ids in (GOOD, BAD, PLAIN)]
SPECS = [_seen(*ids) for ids in (HEAVY, LIGHT)]


def _totals(rows: list[tuple[float, ...]]) -> list[float]:
    return [math.fsum(row) for row in rows]


async def _learn(one: TinkerTrainer, data: list[Datum], objective: Objective, **more: Any) -> Done:
    lesson = UpdateBatch(units=[[datum] for datum in data], objective=objective, steps=1, **more)
    return await learn(one, lesson, player="player", learning_rate=RATE, seed=1)


async def _grpo(one: TinkerTrainer) -> Done:
    """Attempts at one task: one was right, one wrong, one average."""
    old = await one.logprobs(ATTEMPTS)
    pairs = zip((GOOD, BAD, PLAIN), (1.0, -1.0, 0.0), old, strict=True)
    return await _learn(one, [attempted(*ids, advantage=a, old=row) for ids, a, row in pairs], GRPO)


async def _rwr(one: TinkerTrainer, **more: Any) -> Done:
    """Two specs, of which one has four times the weight."""
    return await _learn(one, [imitated(*HEAVY, weight=0.4), imitated(*LIGHT, weight=0.1)], RWR, **more)


def found(url: str) -> Any:
    """What was found of the server; its players are kept for what follows."""
    _kept[url] = opened(url, timeout_s=240, lora_rank=8)
    return _kept[url].found["models"]["tiny"]  # type: ignore[index]


def rounds(url: str) -> dict[str, Any]:
    """A GRPO step of the agent, an RWR step of the simulator: what each has moved, and what of the other."""
    agent, simulator = trainer(_kept[url]), trainer(_kept[url], "simulator")

    async def play() -> dict[str, Any]:
        data = ATTEMPTS + SPECS
        before = await agent.logprobs(data), await simulator.logprobs(data)
        done = await _grpo(agent)
        between = await agent.logprobs(data), await simulator.logprobs(data)
        taught = await _rwr(simulator)
        after = await agent.logprobs(data), await simulator.logprobs(data)
        return {
            "steps": [done.metrics()["player/steps"], taught.metrics()["player/steps"]],
            "agent": [b - a for a, b in zip(_totals(before[0]), _totals(between[0]), strict=True)],
            "simulator": [b - a for a, b in zip(_totals(before[1]), _totals(after[1]), strict=True)],
            "others_equal": [before[1] == between[1], between[0] == after[0]],
        }

    return asyncio.run(play())


def summed(url: str) -> list[float]:
    """Norms of gradients: of a sequence, of two copies at half the weight, and beside one without credit."""
    one = trainer(_kept[url])

    async def norm(*data: Datum) -> float:
        await one.forward_backward(data, Objective())
        return (await one.step(1e-12))["grad_norm"]

    async def play() -> list[float]:
        (old, long) = await one.logprobs([_seen(*GOOD), _seen(*PLAIN)])
        whole = attempted(*GOOD, advantage=1.0, old=old)
        half = attempted(*GOOD, advantage=0.5, old=old)
        idle = attempted(*PLAIN, advantage=0.0, old=long)
        return [await norm(whole), await norm(half, half), await norm(whole, idle)]

    return asyncio.run(play())


def taken_back(url: str) -> dict[str, Any]:
    """A step under a cap, and an update that is no number: neither leaves anything behind it."""
    agent, simulator = trainer(_kept[url]), trainer(_kept[url], "simulator")

    async def play() -> dict[str, Any]:
        await simulator.publish()
        before = await simulator.logprobs(SPECS)
        free = await _rwr(simulator, cap=1e9)
        far = free.metrics()["player/kl_step"]
        await simulator.publish()
        capped = await _rwr(simulator, cap=far / 20, cap_retries=6)
        bad = attempted(*GOOD, advantage=math.nan, old=(-1.0,) * len(GOOD))
        await simulator.publish()
        now, others = await simulator.logprobs(SPECS), await agent.logprobs(ATTEMPTS)
        spoilt = await _learn(simulator, [bad], Objective())
        others_equal = await agent.logprobs(ATTEMPTS) == others
        same = await simulator.logprobs(SPECS) == now
        moved = await _rwr(simulator)
        after = await simulator.logprobs(SPECS)
        await simulator.publish()
        return {
            "far": far,
            "capped": capped.metrics(),
            "spoilt": spoilt.metrics()["player/skipped_updates"],
            "same": same,
            "others_equal": others_equal,
            "next": moved.metrics()["player/steps"],
            "finite": all(math.isfinite(value) for row in after for value in row),
            "began": _totals(before),
            "ended": _totals(after),
        }

    return asyncio.run(play())


async def _next(agent: TinkerTrainer, simulator: TinkerTrainer) -> Any:
    await _grpo(agent)
    await _rwr(simulator)
    data = ATTEMPTS + SPECS
    own = [await one.logprobs(data) for one in (agent, simulator)]
    return [own, [await one.logprobs(data, reference=True) for one in (agent, simulator)]]


def saved(url: str, folder: str) -> Any:
    """Both players' warm-up ends, a step, a checkpoint; what comes after it."""
    agent, simulator = trainer(_kept[url]), trainer(_kept[url], "simulator")

    async def play() -> Any:
        await agent.anchor("both")
        await simulator.anchor("both")
        await _next(agent, simulator)
        for name, one in (("agent", agent), ("simulator", simulator)):
            await one.publish()
            await one.save(Path(folder) / name)
        return await _next(agent, simulator)

    return asyncio.run(play())


def restored(url: str, folder: str) -> Any:
    """The same, out of the checkpoint, on a server that was started anew."""
    found(url)
    agent, simulator = trainer(_kept[url]), trainer(_kept[url], "simulator")

    async def play() -> Any:
        for name, one in (("agent", agent), ("simulator", simulator)):
            await one.load(Path(folder) / name)
        return await _next(agent, simulator)

    return asyncio.run(play())


if __name__ == "__main__":
    main(globals())
