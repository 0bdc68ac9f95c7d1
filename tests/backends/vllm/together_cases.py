"""What several processes do to two players: run by torchrun, and once alone. Rank 0 prints what it found."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, cast

from genenv.algorithms.datum import Datum, Objective
from genenv.algorithms.settings import OptimizerConfig
from genenv.backends.base import Role, process_rank
from genenv.backends.local.backend import follow_rank_0, open_local, release_followers
from genenv.backends.local.packing import bundle_by_prompt, micro_batches
from genenv.backends.settings import PolicyConfig
from lessons import imitated

HERE: dict[str, Any] = {"dtype": "float32", "device": "cpu", "threads": 1, "compiled": False}
ROLES = [Role(name=name, optimizer=OptimizerConfig(), reference=True) for name in ("agent", "simulator")]
TOKENS = 10
PROMPTS = [(7, 8, 9, 10), (7, 8, 11), (12, 13)]


def attempted(prompt: tuple[int, ...], ids: tuple[int, ...], advantage: float) -> Datum:
    many = len(ids)
    return Datum(
        prompt_ids=prompt,
        completion_ids=ids,
        weights=(1.0 / many,) * many,
        loss="ppo",
        advantages=(advantage,) * many,
        old_logprobs=(-4.0,) * many,
    )


def lessons() -> list[Datum]:
    """Five micro-batches of 10 tokens: with three processes one of them has none in the last turn."""
    mixed = [attempted(prompt, tuple(range(20, 26)), 1.0 - place) for place, prompt in enumerate(PROMPTS)]
    return [*mixed, *(imitated(prompt, tuple(range(30, 36)), 0.2) for prompt in PROMPTS[:2])]


async def played(players: Any, folder: Path) -> dict[str, Any]:
    """Steps of both players, of all kinds; what is saved is loaded again."""
    agent, simulator = players["agent"], players["simulator"]
    data, found = lessons(), dict[str, Any]()
    await agent.anchor("second")
    for kl in ("k3", "exact"):
        done = await agent.forward_backward(data, Objective(kl=kl, kl_coefficient=0.1))
        found[kl] = {**done, **await agent.step(3e-3)}
    found["measured"] = await agent.forward_backward(data, Objective(kl="k3"))
    await agent.watch(data)
    await agent.step(3e-3)
    found["moved"] = await agent.moved()
    await agent.shorten(0.5)
    found["shortened"] = await agent.moved()
    found["version"] = await agent.publish()
    found["agent"] = await agent.logprobs(data)
    await agent.save(folder)
    found["reference"] = await agent.logprobs(data, reference=True)
    found["simulator"] = await simulator.logprobs(data)
    await agent.forward_backward(data, Objective())
    await agent.step(3e-3)
    found["learned"] = await agent.logprobs(data)
    await agent.load(folder)
    found["loaded"] = await agent.logprobs(data)
    return found


def main() -> None:
    if process_rank():
        follow_rank_0()
        return
    config = PolicyConfig(backend="vllm", model="tiny", tokens_per_microbatch=TOKENS, **HERE)
    opened = open_local(config, ROLES, cast(Any, None), 1)
    found = asyncio.run(played(opened.trainers, Path(sys.argv[1])))
    weights = cast(Any, opened.trainers["agent"]).weights
    layers = weights.model.causal.get_decoder().layers
    base = [p for name, p in layers.named_parameters() if "lora" not in name]
    found["batches"] = len(micro_batches(bundle_by_prompt(lessons()), TOKENS))
    found["held"] = sum(getattr(p, "to_local", lambda p=p: p)().numel() for p in base)
    found["whole"] = sum(p.numel() for p in base)
    sys.stdout.write(f"found {json.dumps(found)}\n")
    release_followers()


if __name__ == "__main__":
    main()
