"""What the simulator is told: the job, the starts and relations on offer, how the agent does, an example."""

from __future__ import annotations

from genenv.environments.common import request
from genenv.environments.multihop_qa.grammar import offered
from genenv.environments.multihop_qa.world import World
from genenv.types import Message, Profile, Seed


def simulator_messages(world: World, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
    """The conversation that asks the simulator for a variation of a seed.

    Args:
        world: whose facts the questions are about.
        seed: the item to vary.
        profile: the agent's success per skill.
        target: the success rate to aim at, in (0, 1).
    """
    base, chains = world.base, offered(world, seed)
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
