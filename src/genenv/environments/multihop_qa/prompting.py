"""What the simulator is told: the job, the starts and relations on offer, how the agent does, an example."""

from __future__ import annotations

from typing import TYPE_CHECKING

from genenv.environments.common import request
from genenv.environments.multihop_qa.grammar import offered
from genenv.types import Message, Profile, Seed

if TYPE_CHECKING:
    from genenv.environments.multihop_qa.environment import MultihopQA


def simulator_messages(env: MultihopQA, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
    """The conversation that asks the simulator for a variation of a seed.

    Args:
        env: whose facts the questions are about.
        seed: the item to vary.
        profile: the agent's success per skill.
        target: the success rate to aim at, in (0, 1).
    """
    base, chains = env.world.base, offered(env.world, seed)
    starts = dict.fromkeys(chain.start for chain in chains)
    hops = dict.fromkeys(hop.name for chain in chains for hop in chain.hops)
    system = (
        "Write quiz questions over several facts, as JSON: number of hops, kind of answer, start, relations "
        "from the start on, then a question that asks for the last one first and has <start> for the start. "
        f"More hops are harder. It should be solved {target:.0%} of the time.\n"
        f"Starts, each a {base.kind(next(iter(starts)))}: {', '.join(starts)}.\n"
        f"Relations: {', '.join(hops)}."
    )
    return request(system, seed.spec, profile, seed.skills, thing="question")
