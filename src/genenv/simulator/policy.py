"""The simulator policy: a model that writes tasks for contexts and is trained on their rewards."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from genenv.algorithms.datum import Datum, Trainer
from genenv.algorithms.reward_weighting import simulator_credit
from genenv.algorithms.update import learn, lr_scale
from genenv.environments.base import Environment
from genenv.errors import GenenvError, RolloutError
from genenv.progress import advance
from genenv.sampling import Completion, Sampler, SampleRequest
from genenv.seeding import generator, stream
from genenv.simulator.settings import SimulatorConfig
from genenv.types import AGENT, Context, Feedback, Generation, JsonObject, Message, Profile, Scored, Seed

log = logging.getLogger(__name__)

_LOOKED_AT = 16
"""Maximum number of generations per round for `decision_metrics`."""
_FORCED = 1e-6
"""Nats. A token with a smaller surprisal had no alternative."""


class NothingWrittenError(GenenvError):
    """A source could not write any of the specs that it was asked for."""


class TaskSource:
    """Writes specs for contexts, and may be trained on their rewards; the training loop calls it.

    The base class of all sources. As it is, it is the source `none`: no new tasks, so that a round has only
    base tasks. All of its methods do nothing.
    """

    learns = False
    """Whether the source learns from rounds."""

    def __init__(self, config: SimulatorConfig, *, seed: int) -> None:
        self.config, self.seed = config, seed

    async def propose(self, env: Environment, contexts: Sequence[Context]) -> list[Generation]:
        """Write `simulator.variations` specs for each context; return them in order."""
        return []

    async def decision_metrics(
        self, generations: Sequence[Generation], schemas: Mapping[str, JsonObject]
    ) -> Mapping[str, float]:
        """Return the entropy of the source's decisions and their KL (`Simulator`); empty without a policy."""
        return {}

    async def learn(
        self, env: Environment, feedback: Feedback, *, round_: int, rounds: int
    ) -> Mapping[str, float]:
        """Update from what became of a round's specs, and return metrics; called only if `learns`."""
        return {}

    async def publish(self) -> None:
        """Write by what was learned from now on; called only if `learns`."""

    async def save(self, folder: Path) -> None:
        """Write the state of the source into an empty folder."""

    async def load(self, folder: Path) -> None:
        """Restore the state that `save` wrote."""

    def tokens_sampled_elsewhere(self) -> int:
        """Return the tokens that a remote server, or the writer of a file, sampled since the last call."""
        return 0

    def end_round(self) -> None:
        """Free the memory that only the finished round needed."""


class Simulator(TaskSource):
    """The trainable `TaskSource`: a sampler that writes specs, and the trainer of its weights.

    The weights are fixed if `train` is off (GenEnv-Random).
    """

    def __init__(self, sampler: Sampler, trainer: Trainer, config: SimulatorConfig, *, seed: int) -> None:
        super().__init__(config, seed=seed)
        self.sampler, self.trainer = sampler, trainer
        self.learns = config.train
        self._most_asked = 0
        """The most specs requested in one call so far. Failures in a much smaller call are only logged."""

    async def propose(self, env: Environment, contexts: Sequence[Context]) -> list[Generation]:
        """Write `variations` specs for each context, under the grammar of the environment's spec.

        Raises:
            NothingWrittenError: no spec could be sampled, in a call of the usual size.
        """
        schemas = spec_schemas(env, contexts)
        wanted = [
            (context, simulator_prompt(self.sampler, context.messages), name)
            for context, name in names(contexts, self.config.variations)
        ]
        failed: list[str] = []
        found = await asyncio.gather(
            *(
                self._written(env, context, prompt, name, schemas[context.id], failed)
                for context, prompt, name in wanted
            )
        )
        self._most_asked = max(self._most_asked, len(wanted))
        if failed:
            self._tell(failed, len(failed) + sum(not one.drawn for one in found))
        return found

    def _tell(self, failed: Sequence[str], asked_for: int) -> None:
        """Log once per round why specs could not be sampled.

        Raises:
            NothingWrittenError: no spec could be sampled, in a call of the usual size.
        """
        ((why, count),) = Counter(failed).most_common(1)
        if len(failed) < asked_for or 2 * asked_for < self._most_asked:
            log.warning(
                "the simulator could not write %d of %d tasks; %d: %s", len(failed), asked_for, count, why
            )
            return
        raise NothingWrittenError(
            f"the simulator could not write any of {asked_for} tasks; {count}: {why}; where they do not fit, "
            f"raise policy.context_tokens ({self.sampler.context_tokens} here), or lower "
            f"simulator.max_new_tokens ({self.config.max_new_tokens})"
        )

    async def _written(
        self,
        env: Environment,
        context: Context,
        prompt: tuple[int, ...],
        name: str,
        schema: JsonObject,
        failed: list[str],
    ) -> Generation:
        """Return one spec: sampled, or with probability `explore` drawn at random by the environment.

        If sampling fails, the reason is appended to `failed`.
        """
        rng = generator(self.seed, "explore", name)
        if self.config.explore and rng.random() < self.config.explore:
            text = json.dumps(env.variation(context.seed, rng), ensure_ascii=False, separators=(",", ":"))
            done = Completion(
                token_ids=self.sampler.encode_reply(text), logprobs=(), text=text, finished=True
            )
            advance(items=1)
        else:
            done = await self._sample(
                SampleRequest(
                    prompt_ids=prompt,
                    max_tokens=self.config.max_new_tokens,
                    temperature=self.config.temperature,
                    stream=stream(self.seed, "propose", name),
                    schema=schema,
                ),
                failed,
            )
        return Generation(
            id=name,
            context_id=context.id,
            prompt_ids=prompt,
            token_ids=done.token_ids,
            logprobs=done.logprobs,
            text=done.text,
            finished=done.finished,
        )

    async def _sample(self, request: SampleRequest, failed: list[str]) -> Completion:
        """Sample one completion. A failed request becomes an unfinished generation."""
        try:
            completion = await self.sampler.sample(request)
        except RolloutError as error:
            failed.append(str(error))
            completion = Completion(token_ids=(), logprobs=(), text="", finished=False)
        advance(items=1)
        return completion

    async def decision_metrics(
        self, generations: Sequence[Generation], schemas: Mapping[str, JsonObject]
    ) -> Mapping[str, float]:
        """Estimate the entropy of the simulator's decisions and their KL to the reference model.

            entropy = mean over decision tokens of -log pi(t),   KL = mean of log pi(t) - log pi_ref(t)

        pi is the sampling policy: at the sampling temperature, masked by the grammar. A decision is a token
        that had an alternative. Both estimates are unbiased for the sampled tokens.

        Args:
            generations: generations of the round, before its update; at most 16, evenly spaced, are used.
            schemas: JSON schema of the specs, by context id.

        Returns:
            `simulator/decision_entropy`, and `simulator/decision_kl` if there is a reference model. Nats per
            token.
        """
        written = [one for one in generations if one.finished and not one.drawn]
        chosen = written[:: -(-len(written) // _LOOKED_AT)] if written else []
        data = [
            Datum(
                prompt_ids=one.prompt_ids,
                completion_ids=one.token_ids,
                weights=(1.0,) * len(one.token_ids),
                loss="nll",
                temperature=self.config.temperature,
                schema=schemas.get(one.context_id),
            )
            for one in chosen
        ]
        own = [value for row in await self.trainer.logprobs(data) for value in row]
        decisions = [place for place, value in enumerate(own) if value < -_FORCED]
        if not decisions:
            return {}
        found = {"simulator/decision_entropy": -fmean(own[place] for place in decisions)}
        if self.config.kl_coefficient > 0:
            then = [value for row in await self.trainer.logprobs(data, reference=True) for value in row]
            found["simulator/decision_kl"] = fmean(own[place] - then[place] for place in decisions)
        return found

    async def learn(
        self, env: Environment, feedback: Feedback, *, round_: int, rounds: int
    ) -> Mapping[str, float]:
        """Update the weights by `simulator.algorithm`.

        Args:
            env: the environment of the tasks.
            feedback: what became of the specs of the round.
            round_: number of the round, from 1; names the random stream.
            rounds: number of rounds of the run, for the learning-rate schedule.

        Returns:
            Metrics of the update, and `tokens/trained`.
        """
        earned = feedback.scored
        if self.config.algorithm == "hindsight":
            contexts = {batch.context.id: batch.context for batch in feedback.batches}
            profile = feedback.profile
            earned = [
                self._in_hindsight(env, contexts[one.generation.context_id], profile, one) for one in earned
            ]
        batch = simulator_credit(self.config)(
            feedback.samples,
            feedback.schemas,
            self.config,
            temperature=self.config.temperature,
            scored=earned,
        )
        rate = self.config.lr * lr_scale(self.config.lr_schedule, round_, rounds)
        seed = stream(self.seed, "simulator-update", round_)
        done = await learn(self.trainer, batch, player="simulator", learning_rate=rate, seed=seed)
        return done.metrics()

    def _in_hindsight(self, env: Environment, context: Context, profile: Profile, one: Scored) -> Scored:
        """Return the generation with a prompt that requests its success rate, rounded to a tenth."""
        if one.rate is None:
            return one
        messages = env.simulator_messages(context.seed, profile.of(context.agent), round(one.rate, 1))
        return replace(one, prompt_ids=simulator_prompt(self.sampler, messages))

    async def publish(self) -> None:
        """Sample with the updated weights from now on."""
        await self.trainer.publish()

    async def save(self, folder: Path) -> None:
        """Write weights and optimizer state into a folder."""
        await self.trainer.save(folder)

    async def load(self, folder: Path) -> None:
        """Restore the state that `save` wrote."""
        await self.trainer.load(folder)

    def end_round(self) -> None:
        """Free the sampler's grammars and prompts of the round."""
        self.sampler.end_round()


def names(contexts: Sequence[Context], variations: int) -> Iterator[tuple[Context, str]]:
    """Each context as often as it is varied, with the id of each generation."""
    return ((context, f"{context.id}-g{i}") for context, i in itertools.product(contexts, range(variations)))


def simulator_prompt(sampler: Sampler, messages: Sequence[Message]) -> tuple[int, ...]:
    """Return the token ids of a simulator prompt. A thought that the template opens is closed immediately."""
    return (*sampler.render(messages, first=True), *sampler.end_of_thought)


def spec_schemas(env: Environment, contexts: Sequence[Context]) -> dict[str, JsonObject]:
    """Return the JSON schema of the specs for each context, by context id."""
    return {context.id: env.spec_schema(context.seed) for context in contexts}


def make_contexts(
    env: Environment,
    seeds: Sequence[Seed],
    profile: Profile,
    *,
    round_: int,
    target: float,
    agents: Sequence[str] = (),
) -> list[Context]:
    """Return one context per seed: the simulator's input for this round.

    Args:
        env: the environment of the tasks.
        seeds: the seeds to vary.
        profile: success rates that the simulator is given; of several agents, those of each.
        round_: number of the round.
        target: success rate that the tasks should have.
        agents: for which agent each context is; empty: for the only one.
    """
    return [
        Context(
            id=f"r{round_:04d}-c{i:02d}",
            round=round_,
            seed=seed,
            messages=env.simulator_messages(seed, profile.of(agent), target),
            agent=agent,
        )
        for i, (seed, agent) in enumerate(zip(seeds, agents or [AGENT] * len(seeds), strict=True))
    ]
