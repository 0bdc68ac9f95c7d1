"""What several processes do that train all weights of two players: run by torchrun, and once alone."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, cast

from backends.vllm.together_cases import ROLES, TOKENS, lessons
from genenv.algorithms.datum import Objective
from genenv.backends.base import process_rank
from genenv.backends.local.backend import follow_rank_0, open_local, release_followers
from genenv.backends.settings import PolicyConfig
from genenv.sampling import SampleRequest

HERE: dict[str, Any] = {"device": "cpu", "threads": 1, "compiled": False}
LEARNING_RATE = 1e-4


async def sampled(sampler: Any) -> list[int]:
    wanted = SampleRequest(prompt_ids=(7, 8, 9), max_tokens=6, temperature=1.0, stream=3)
    return list((await sampler.sample(wanted)).token_ids)


async def played(opened: Any, folder: Path, other: Path | None) -> dict[str, Any]:
    """Steps of both players, of all kinds; what is saved is loaded again, here or from other processes."""
    agent, simulator = opened.trainers["agent"], opened.trainers["simulator"]
    data, found = lessons(), dict[str, Any]()
    found["first"] = await agent.logprobs(data)
    for kl in ("k3", "exact"):
        done = await agent.forward_backward(data, Objective(kl=kl, kl_coefficient=0.1))
        found[kl] = {**done, **await agent.step(LEARNING_RATE)}
    await agent.anchor("second")
    found["measured"] = await agent.forward_backward(data, Objective(kl="k3", entropy_coefficient=0.1))
    await agent.watch(data)
    await agent.step(LEARNING_RATE)
    found["moved"] = await agent.moved()
    await agent.shorten(0.5)
    found["shortened"] = await agent.moved()
    found["version"] = await agent.publish()
    found["agent"] = await agent.logprobs(data)
    found["reference"] = await agent.logprobs(data, reference=True)
    await simulator.forward_backward(data[3:], Objective())
    await simulator.step(LEARNING_RATE)
    found["simulator"] = await simulator.logprobs(data)
    found["sampled"] = [await sampled(opened.samplers[name]) for name in ("agent", "simulator", "agent")]
    await agent.save(folder / "agent")
    await simulator.save(folder / "simulator")
    await agent.forward_backward(data, Objective())
    await agent.step(LEARNING_RATE)
    found["learned"] = await agent.logprobs(data)
    await agent.load((other or folder) / "agent")
    found["loaded"] = await agent.logprobs(data)
    found["written"] = await simulator.logprobs(data, written=folder / "agent")
    await agent.forward_backward(data, Objective())
    await agent.step(LEARNING_RATE)
    await agent.save(folder / "continued")
    found["sampled again"] = await sampled(opened.samplers["agent"])
    return found


def main() -> None:
    if process_rank():
        follow_rank_0()
        return
    folder, model, dtype, *rest = sys.argv[1:]
    settings: dict[str, Any] = HERE | {"dtype": dtype, "tokens_per_microbatch": TOKENS}
    opened = open_local(PolicyConfig(model=model, tuning="full", **settings), ROLES, cast(Any, None), 1)
    try:
        found = asyncio.run(played(opened, Path(folder), Path(rest[0]) if rest else None))
    finally:
        release_followers()
    weights = cast(Any, opened.trainers["agent"]).weights
    moments = cast(Any, opened.trainers["agent"]).optimizer._moments().values()
    for name, own in {
        "weights": weights.model.causal.parameters(),
        "reference": weights._initial.parameters(),
        "moments": moments,
    }.items():
        held = [(getattr(p, "to_local", lambda p=p: p)().numel(), p.numel()) for p in own if p.ndim]
        found[f"held {name}"] = sum(own for own, _ in held) / sum(whole for _, whole in held)
    sys.stdout.write(f"found {json.dumps(found)}\n")


if __name__ == "__main__":
    main()
