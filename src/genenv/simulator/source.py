"""Where tasks come from: what stands in the simulator's place, `simulator.source`.

All of them write specs for the same contexts, which pass the same gate into the same store. Only a model has
tokens, and weights to learn with.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from genenv.algorithms.datum import Lesson
from genenv.environments.base import Environment
from genenv.errors import DataError, UsageError
from genenv.progress import advance
from genenv.seeding import generator
from genenv.simulator.schema_sampling import sample_json
from genenv.types import Context, Generation, Json, JsonObject


class TaskSource(Protocol):
    """What writes specs for contexts, and may learn from what they were worth."""

    learns: bool
    """Whether there are weights that a round changes."""

    async def propose(self, env: Environment, contexts: Sequence[Context]) -> list[Generation]:
        """Write `simulator.variations` specs for each context, in order."""
        ...

    async def decided(
        self, generations: Sequence[Generation], schemas: Mapping[str, JsonObject]
    ) -> Mapping[str, float]:
        """How freely it decides where the grammar leaves a choice; see `Simulator`."""
        ...

    async def learn(self, lesson: Lesson, *, round_: int, rounds: int) -> Mapping[str, float]:
        """Take a round's lesson; asked only of what learns. Returns metrics of the update."""
        ...

    async def publish(self) -> None:
        """Write with what was learned from now on; asked only of what learns."""
        ...

    async def save(self, folder: Path) -> None:
        """Write what it has learned into an empty folder."""
        ...

    async def load(self, folder: Path) -> None:
        """Restore what `save` wrote."""
        ...

    def sampled_elsewhere(self) -> int:
        """Tokens that others sampled for it since this was last asked."""
        ...

    def end_round(self) -> None:
        """Let go of what only the round that is over needed."""
        ...


class Unlearning:
    """A source without weights."""

    learns = False

    async def decided(
        self, generations: Sequence[Generation], schemas: Mapping[str, JsonObject]
    ) -> Mapping[str, float]:
        """It has no policy to ask."""
        return {}

    async def learn(self, lesson: Lesson, *, round_: int, rounds: int) -> Mapping[str, float]:
        """Nothing is learned."""
        return {}

    async def publish(self) -> None:
        """Nothing was."""

    async def save(self, folder: Path) -> None:
        """There is nothing to write."""

    async def load(self, folder: Path) -> None:
        """There is nothing to restore."""

    def sampled_elsewhere(self) -> int:
        """None."""
        return 0

    def end_round(self) -> None:
        """Nothing is kept."""


class VariationSource(Unlearning):
    """`variation`: the environment's own random variation of the seed. No model takes part."""

    def __init__(self, variations: int, *, seed: int) -> None:
        self._variations, self._seed = variations, seed

    async def propose(self, env: Environment, contexts: Sequence[Context]) -> list[Generation]:
        """Vary the seed of each context."""
        return [
            given(context, name, env.variation(context.seed, generator(self._seed, "variation", name)))
            for context, name in names(contexts, self._variations)
        ]


class GrammarSource(Unlearning):
    """`grammar`: uniform over the choices of the spec's schema. Free text is random characters."""

    def __init__(self, variations: int, *, seed: int) -> None:
        self._variations, self._seed = variations, seed

    async def propose(self, env: Environment, contexts: Sequence[Context]) -> list[Generation]:
        """Draw specs that the grammar of each context's seed allows."""
        schemas = {context.id: env.spec_schema(context.seed) for context in contexts}
        return [
            given(context, name, sample_json(schemas[context.id], generator(self._seed, "grammar", name)))
            for context, name in names(contexts, self._variations)
        ]


class NoSource(Unlearning):
    """`none`: no new tasks; a round plays base tasks only."""

    async def propose(self, env: Environment, contexts: Sequence[Context]) -> list[Generation]:
        """Write nothing."""
        return []


class FileSource(Unlearning):
    """`file`: specs of a JSON Lines file (`genenv generate`), each once before any comes twice."""

    def __init__(self, path: Path, variations: int, *, per_round: int, seed: int) -> None:
        """Read the file.

        Args:
            path: one JSON object a line, with a `spec`.
            variations: specs a context.
            per_round: specs a round asks for, so that each round knows where the one before it stopped.
            seed: of the order in which specs come; it is another one each time through the file.

        Raises:
            UsageError: the file cannot be read or holds no spec.
            DataError: a line is no JSON object with a spec.
        """
        self._specs, self._variations = read_specs(path), variations
        self._per_round, self._seed = per_round, seed

    async def propose(self, env: Environment, contexts: Sequence[Context]) -> list[Generation]:
        """Hand out the next specs; which context they stand under says nothing of their content."""
        wanted = list(names(contexts, self._variations))
        start = (contexts[0].round - 1) * self._per_round if contexts else 0
        return [
            given(context, name, self._spec(start + place)) for place, (context, name) in enumerate(wanted)
        ]

    def _spec(self, place: int) -> JsonObject:
        time, within = divmod(place, len(self._specs))
        order = list(range(len(self._specs)))
        generator(self._seed, "file", time).shuffle(order)
        return self._specs[order[within]]


def read_specs(path: Path) -> list[JsonObject]:
    """The specs of a JSON Lines file.

    Raises:
        UsageError: the file cannot be read or holds no spec.
        DataError: a line is no JSON object with a spec.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"simulator.file: {path} cannot be read ({getattr(error, 'strerror', None) or error}); "
            "name a JSON Lines file that `genenv generate --out` wrote"
        ) from error
    specs: list[JsonObject] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            found: Json = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number} is not JSON: {error}") from error
        spec = found.get("spec") if isinstance(found, Mapping) else None
        if not isinstance(spec, Mapping):
            raise DataError(f'{path}, line {number} is no object with a "spec"')
        specs.append(spec)
    if not specs:
        raise UsageError(f"simulator.file: {path} holds no spec; write some with `genenv generate --out`")
    return specs


def names(contexts: Sequence[Context], variations: int) -> Iterator[tuple[Context, str]]:
    """Each context as often as it is varied, with the id of each generation."""
    return ((context, f"{context.id}-g{i}") for context, i in itertools.product(contexts, range(variations)))


def given(context: Context, name: str, spec: Json) -> Generation:
    """A spec that no model of ours has sampled, as a generation."""
    advance(items=1)
    return without_tokens(context, name, json.dumps(spec, ensure_ascii=False, separators=(",", ":")))


def without_tokens(context: Context, name: str, text: str, *, finished: bool = True) -> Generation:
    """A generation of which the text alone is known."""
    return Generation(
        id=name,
        context_id=context.id,
        prompt_ids=(),
        token_ids=(),
        logprobs=(),
        text=text,
        finished=finished,
    )
