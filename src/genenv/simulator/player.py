"""Player 1: the simulator, which writes tasks for contexts and learns from what they were worth."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from genenv.backends.base import Completion, Policy, SampleRequest, SimulatorLearner
from genenv.domains.base import Domain
from genenv.errors import RolloutError
from genenv.learning.schedules import lr_scale
from genenv.runs.progress import Stage
from genenv.seeding import stream
from genenv.simulator.settings import SimulatorConfig
from genenv.types import Context, Generation, JsonObject, Message, Profile, Seed, SimulatorSample

log = logging.getLogger(__name__)


class Simulator:
    """A policy that writes specs, and the learner that updates it (unless `train` is off: GenEnv-Random)."""

    def __init__(
        self, policy: Policy, learner: SimulatorLearner, config: SimulatorConfig, *, seed: int
    ) -> None:
        self.policy, self.learner, self.config, self.seed = policy, learner, config, seed

    async def propose(self, domain: Domain, contexts: Sequence[Context], *, stage: Stage) -> list[Generation]:
        """Write `variations` specs for each context, under the grammar of the domain's spec."""
        self.policy.progress = stage
        schemas = _schemas(domain, contexts)
        wanted = [
            (context, asked(self.policy, context.messages), f"{context.id}-g{i}")
            for context in contexts
            for i in range(self.config.variations)
        ]
        completions = await asyncio.gather(
            *(
                self._sample(
                    SampleRequest(
                        prompt_ids=prompt,
                        max_tokens=self.config.max_new_tokens,
                        temperature=self.config.temperature,
                        stream=stream(self.seed, "propose", name),
                        schema=schemas[context.id],
                    )
                )
                for context, prompt, name in wanted
            )
        )
        return [
            Generation(
                id=name,
                context_id=context.id,
                prompt_ids=prompt,
                token_ids=completion.token_ids,
                logprobs=completion.logprobs,
                text=completion.text,
                finished=completion.finished,
            )
            for (context, prompt, name), completion in zip(wanted, completions, strict=True)
        ]

    async def _sample(self, request: SampleRequest) -> Completion:
        """One completion; a request that cannot be answered becomes an unfinished generation."""
        try:
            return await self.policy.sample(request)
        except RolloutError as error:
            log.warning("the simulator could not write a task: %s", error)
            return Completion(token_ids=(), logprobs=(), text="", finished=False)

    def update(
        self,
        domain: Domain,
        contexts: Sequence[Context],
        samples: Sequence[SimulatorSample],
        *,
        round_: int,
        rounds: int,
        stage: Stage,
    ) -> Mapping[str, float]:
        """Learn from a round's weighted generations, each under the grammar it was written under.

        Args:
            domain: whose specs they are.
            contexts: what they were written for.
            samples: the generations and their weights.
            round_: this round, from 1.
            rounds: of the whole run.
            stage: told of progress.

        Returns:
            The learner's metrics.
        """
        if not self.config.train:
            return {}
        self.learner.progress = stage
        schemas = _schemas(domain, contexts)
        return self.learner.update(
            [replace(sample, schema=schemas.get(sample.generation.context_id)) for sample in samples],
            seed=stream(self.seed, "simulator-update", round_),
            lr_scale=lr_scale(self.config.lr_schedule, round_, rounds),
        )


def asked(policy: Policy, messages: Sequence[Message]) -> tuple[int, ...]:
    """A simulator's prompt. A spec is written without a thought: one that the template begins is ended."""
    return (*policy.render(messages, first=True), *policy.closing)


def _schemas(domain: Domain, contexts: Sequence[Context]) -> dict[str, JsonObject]:
    """By the context's id: the schema of the specs that are written for it."""
    return {context.id: domain.spec_schema(context.seed) for context in contexts}


def make_contexts(
    domain: Domain, seeds: Sequence[Seed], profile: Profile, *, round_: int, target: float
) -> list[Context]:
    """One context per seed: what the simulator is told this round."""
    return [
        Context(
            id=f"r{round_:04d}-c{i:02d}",
            round=round_,
            seed=seed,
            messages=domain.simulator_messages(seed, profile, target),
        )
        for i, seed in enumerate(seeds)
    ]
