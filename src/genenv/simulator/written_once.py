"""A fixed number of specs for each seed, drawn from for the rest of the run: GenEnv-Static.

The published variant writes five variations of each seed before training. Here a spec is written when it is
first drawn, which makes no difference as long as what writes it does not learn and is told nothing of the
agent; specs that are never drawn cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from genenv.algorithms.datum import Lesson
from genenv.environments.base import Environment
from genenv.seeding import generator
from genenv.simulator.source import TaskSource, names, without_tokens
from genenv.types import Context, Generation, JsonObject

Spec = tuple[str, bool]
"""The text, and whether it was finished."""


class WrittenOnce:
    """Draws from what another source has written for a seed, and lets it write what is not there yet."""

    learns = False

    def __init__(self, source: TaskSource, *, per_seed: int, variations: int, seed: int) -> None:
        """Start without any spec.

        Args:
            source: writes one spec a context.
            per_seed: specs there are of a seed.
            variations: specs a context takes, at most `per_seed`.
            seed: of the draws.
        """
        self._source, self._per_seed = source, per_seed
        self._variations, self._seed = variations, seed
        self._written: dict[tuple[str, int], Spec] = {}

    async def propose(self, env: Environment, contexts: Sequence[Context]) -> list[Generation]:
        """Draw `variations` different specs of each context's seed."""
        wanted = list(self._drawn(contexts))
        new = [one for one in wanted if (one[0].seed.id, one[2]) not in self._written]
        fresh = await self._source.propose(env, [replace(context, id=name) for context, name, _ in new])
        found: dict[str, Generation] = {}
        for (context, name, which), written in zip(new, fresh, strict=True):
            found[name] = replace(written, id=name, context_id=context.id)
            self._written[context.seed.id, which] = (written.text, written.finished)
        return [found.get(name) or self._again(context, name, which) for context, name, which in wanted]

    def recall(self, contexts: Sequence[Context], generations: Iterable[Generation]) -> None:
        """Know again what was written in the rounds that a run has.

        Args:
            contexts: of all committed rounds, in order.
            generations: what was written for them.
        """
        texts = {one.id: (one.text, one.finished) for one in generations}
        for context, name, which in self._drawn(contexts):
            if name in texts:
                self._written.setdefault((context.seed.id, which), texts[name])

    def _drawn(self, contexts: Sequence[Context]) -> Iterable[tuple[Context, str, int]]:
        """Which of its seed's specs each generation is; the same for the same run and context."""
        for context in contexts:
            rng = generator(self._seed, "drawn", context.id)
            places = rng.sample(range(self._per_seed), self._variations)
            for (_, name), which in zip(names([context], self._variations), places, strict=True):
                yield context, name, which

    def _again(self, context: Context, name: str, which: int) -> Generation:
        text, finished = self._written[context.seed.id, which]
        return without_tokens(context, name, text, finished=finished)

    async def decided(
        self, generations: Sequence[Generation], schemas: Mapping[str, JsonObject]
    ) -> Mapping[str, float]:
        """Most of a round was written in another one."""
        return {}

    async def learn(self, lesson: Lesson, *, round_: int, rounds: int) -> Mapping[str, float]:
        """Nothing is learned."""
        return {}

    async def publish(self) -> None:
        """Nothing was."""

    async def save(self, folder: Path) -> None:
        """What writes is as it was; a model is needed again when a run goes on."""
        await self._source.save(folder)

    async def load(self, folder: Path) -> None:
        """Restore what writes."""
        await self._source.load(folder)

    def sampled_elsewhere(self) -> int:
        """As what writes says."""
        return self._source.sampled_elsewhere()

    def end_round(self) -> None:
        """As what writes does."""
        self._source.end_round()
