"""An agent that uses all its turns is graded by what it did, and the trace says why it ended."""

from __future__ import annotations

import asyncio
import random

from genenv.backends.scripted import ScriptedSampler
from genenv.gate.gate import base_task
from genenv.rollout.driver import Sampling, roll_out
from genenv.tools.tool_calling.environment import ToolCalling, ToolCallingConfig
from genenv.types import StopReason


def test_running_out_of_turns_is_a_stop_reason_of_its_own() -> None:
    env = ToolCalling(ToolCallingConfig(max_turns=3))
    seed = next(seed for seed in env.seeds() if seed.spec["chained"])
    task = base_task(env, seed.id, seed.spec, seed=0)

    def same_call_again(prompt: str, rng: random.Random) -> str:
        return task.oracle[0]

    sampling = Sampling(temperature=1.0, max_new_tokens=500, timeout_s=60.0, seed=0)
    (group,) = asyncio.run(
        roll_out(env, ScriptedSampler(same_call_again), [task], rollouts=1, sampling=sampling)
    )
    assert group.traces[0].stop_reason is StopReason.MAX_TURNS
    assert len(group.traces[0].replies) == 3
    assert group.valid == group.traces
    assert not group.traces[0].success
