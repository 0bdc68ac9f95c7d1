"""Sources of tasks, `simulator.source`: random variations, grammars, files, endpoints, and fixed task sets.

All sources write specs for the same contexts. The specs pass the same gate into the same store. Only the
model of `simulator.policy` has trainable weights.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from genenv.backends.settings import EndpointConfig, SamplingConfig
from genenv.chat.assistant import ChatMessage
from genenv.environments.base import Environment
from genenv.environments.common import MOST_SCHEMA_CHARS
from genenv.errors import DataError, RolloutError, UsageError
from genenv.progress import advance
from genenv.seeding import generator, stream
from genenv.simulator.policy import NothingWrittenError, TaskSource, names, spec_schemas
from genenv.simulator.schema_sampling import sample_json
from genenv.simulator.settings import SimulatorConfig
from genenv.types import Context, Generation, Json, JsonObject

log = logging.getLogger(__name__)


class VariationSource(TaskSource):
    """`variation`: the environment varies each seed at random, without a model."""

    async def propose(self, env: Environment, contexts: Sequence[Context]) -> list[Generation]:
        """Return random variations of each context's seed."""
        return [
            given(context, name, env.variation(context.seed, generator(self.seed, "variation", name)))
            for context, name in names(contexts, self.config.variations)
        ]


class GrammarSource(TaskSource):
    """`grammar`: draws uniformly from the choices of the spec's schema. Free text is random characters."""

    async def propose(self, env: Environment, contexts: Sequence[Context]) -> list[Generation]:
        """Return random specs that are valid for the schema of each context's seed."""
        schemas = spec_schemas(env, contexts)
        return [
            given(context, name, sample_json(schemas[context.id], generator(self.seed, "grammar", name)))
            for context, name in names(contexts, self.config.variations)
        ]


class FileSource(TaskSource):
    """`file`: specs of a JSON Lines file (`genenv generate`); each comes once before any comes twice."""

    def __init__(self, config: SimulatorConfig, *, seed: int) -> None:
        """Read the file.

        Args:
            config: the file, and how many specs a context and a round have.
            seed: seed of the order of the specs, which differs in each pass through the file.

        Raises:
            UsageError: the file cannot be read or contains no spec.
            DataError: a line is not a JSON object with a spec.
        """
        super().__init__(config, seed=seed)
        self._specs = read_specs(Path(config.file or ""))[: config.file_tasks or None]
        self._pass, self._order = -1, list[int]()
        self._tokens = 0

    async def propose(self, env: Environment, contexts: Sequence[Context]) -> list[Generation]:
        """Return the next specs. Their content has no relation to the seeds of the contexts."""
        wanted = list(names(contexts, self.config.variations))
        per_round = max(self.config.contexts * self.config.variations, len(wanted))  # more are candidates
        start = (contexts[0].round - 1) * per_round if contexts else 0
        return [
            replace(given(context, name, spec), stream=f"file {line}")
            for (context, name), (line, spec) in zip(
                wanted, map(self._spec, range(start, start + len(wanted))), strict=True
            )
        ]

    def _spec(self, place: int) -> tuple[int, JsonObject]:
        """Return the spec at a place of all passes through the file, and its number in the file."""
        time, within = divmod(place, len(self._specs))
        if time != self._pass:
            self._pass, self._order = time, list(range(len(self._specs)))
            generator(self.seed, "file", time).shuffle(self._order)
        number = self._order[within]
        spec, tokens = self._specs[number]
        self._tokens += tokens if time == 0 else 0
        return number, spec

    def tokens_sampled_elsewhere(self) -> int:
        """Return the tokens that wrote the specs which were used for the first time since the last call."""
        tokens, self._tokens = self._tokens, 0
        return tokens


def read_specs(path: Path) -> list[tuple[JsonObject, int]]:
    """Return the specs of a JSON Lines file, and the tokens that writing each took; 0 where no line says.

    Raises:
        UsageError: the file cannot be read or contains no spec.
        DataError: a line is not a JSON object with a spec.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"simulator.file: {path} cannot be read ({getattr(error, 'strerror', None) or error}); "
            "name a JSON Lines file that `genenv generate --out` wrote"
        ) from error
    specs: list[tuple[JsonObject, int]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            found: Json = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number} is not JSON: {error}") from error
        spec = found.get("spec") if isinstance(found, Mapping) else None
        if not isinstance(spec, Mapping):
            raise DataError(f'{path}, line {number} is no object with a "spec"')
        tokens = found.get("tokens") if isinstance(found, Mapping) else None
        specs.append((spec, tokens if type(tokens) is int and tokens > 0 else 0))
    if not specs:
        raise UsageError(f"simulator.file: {path} holds no spec; write some with `genenv generate --out`")
    return specs


def given(context: Context, name: str, spec: Json, *, scored_only: bool = False) -> Generation:
    """Return a spec that was not sampled by a model as a generation, and count it as progress."""
    advance(items=1)
    text = json.dumps(spec, ensure_ascii=False, separators=(",", ":"))
    return Generation(id=name, context_id=context.id, text=text, finished=True, scored_only=scored_only)


Spec = tuple[str, bool]
"""The text, and whether it is complete."""
_LOST: Spec = ("", False)
"""What is there of a spec whose request was not answered."""


class FixedTaskSource(TaskSource):
    """Draws from what another source has written for a seed, and lets it write what is not there yet.

    Nothing is said of its decisions: most of a round was written in another one.
    """

    def __init__(self, source: TaskSource, config: SimulatorConfig, *, seed: int) -> None:
        """Start without any spec.

        Args:
            source: writes one spec per context.
            config: the number of specs per seed, and of specs per context.
            seed: seed of the draws.
        """
        super().__init__(config, seed=seed)
        self._source = source
        self._written: dict[tuple[str, int], Spec] = {}

    async def propose(self, env: Environment, contexts: Sequence[Context]) -> list[Generation]:
        """Return `variations` different specs of each context's seed.

        A spec that cannot be written is asked for again in later rounds.

        Raises:
            NothingWrittenError: the round has no spec at all.
        """
        wanted = list(self._drawn(contexts))
        new: dict[tuple[str, int], tuple[Context, str]] = {}
        for context, name, which in wanted:
            if (context.seed.id, which) not in self._written:
                new.setdefault((context.seed.id, which), (context, name))
        asked = [replace(context, id=name) for context, name in new.values()]
        found: dict[str, Generation] = {}
        try:
            specs = await self._source.propose(env, asked)
        except NothingWrittenError as problem:
            if not any((context.seed.id, which) in self._written for context, _, which in wanted):
                raise
            log.warning("a round goes on with tasks that were written before: %s", problem)
            specs = [Generation(id=one.id, context_id=one.id, text="", finished=False) for one in asked]
        for (slot, (context, name)), written in zip(new.items(), specs, strict=True):
            found[name] = replace(
                written, id=name, context_id=context.id, stream=self._stream(context, slot[1])
            )
            self._keep(slot, (written.text, written.finished))
        return [found.get(name) or self._again(context, name, which) for context, name, which in wanted]

    def recall(self, contexts: Sequence[Context], generations: Iterable[Generation]) -> None:
        """Restore the specs that were written in the committed rounds of a run.

        Args:
            contexts: contexts of all committed rounds, in order.
            generations: generations for these contexts.
        """
        texts = {one.id: (one.text, one.finished) for one in generations}
        for context, name, which in self._drawn(contexts):
            if name in texts:
                self._keep((context.seed.id, which), texts[name])

    def _keep(self, slot: tuple[str, int], spec: Spec) -> None:
        """Keep the first spec of a slot. Nothing at all is what a lost request gives: it is asked again."""
        if spec != _LOST:
            self._written.setdefault(slot, spec)

    def _drawn(self, contexts: Sequence[Context]) -> Iterable[tuple[Context, str, int]]:
        """Yield the context, id and spec number of each generation; they depend only on run and context."""
        for context in contexts:
            rng = generator(self.seed, "drawn", context.id)
            places = rng.sample(range(self.config.per_seed), self.config.variations)
            for (_, name), which in zip(names([context], self.config.variations), places, strict=True):
                yield context, name, which

    def _again(self, context: Context, name: str, which: int) -> Generation:
        text, finished = self._written.get((context.seed.id, which), _LOST)
        stream = self._stream(context, which)
        return Generation(id=name, context_id=context.id, text=text, finished=finished, stream=stream)

    def _stream(self, context: Context, which: int) -> str:
        """Return the random stream with which code makes the task: the same one each time it comes."""
        return f"{context.seed.id} {which}"

    async def save(self, folder: Path) -> None:
        """Save the wrapped source; if it is a model, a resumed run needs the weights."""
        await self._source.save(folder)

    async def load(self, folder: Path) -> None:
        """Restore the wrapped source."""
        await self._source.load(folder)

    def tokens_sampled_elsewhere(self) -> int:
        """Return the count of the wrapped source."""
        return self._source.tokens_sampled_elsewhere()

    def end_round(self) -> None:
        """End the round of the wrapped source."""
        self._source.end_round()


_NO_SCHEMA = {400, 404, 422, 501}
_REFUSALS = 3
"""After this many refused schemas and none accepted, requests to a server have no schema."""


class EndpointSource(TaskSource):
    """`endpoint`: a model behind an API. It gets the simulator's messages; the same gate checks its specs."""

    def __init__(self, config: SimulatorConfig, *, seed: int) -> None:
        """Connect.

        Args:
            config: the address, limits of requests, and how specs are written.
            seed: seed of the requests.

        Raises:
            UsageError: the server cannot be used.
        """
        from genenv.clients.endpoint import EndpointAssistant  # needs the extra `api`

        super().__init__(config, seed=seed)
        endpoint = EndpointConfig.model_validate(config.endpoint.model_dump() | {"tools": "text"})
        sampling = SamplingConfig(temperature=config.temperature, max_new_tokens=config.max_new_tokens)
        self._assistant = EndpointAssistant(config.address, endpoint, sampling)
        self._slots = endpoint.concurrency
        self._counted = self._held = self._refused = 0

    async def propose(self, env: Environment, contexts: Sequence[Context]) -> list[Generation]:
        """Request each spec. A request without an answer becomes an unfinished generation.

        Raises:
            NothingWrittenError: no request was answered.
        """
        slots = asyncio.Semaphore(self._slots)
        schemas = spec_schemas(env, contexts)
        problems: list[RolloutError] = []

        async def write(context: Context, name: str) -> Generation:
            async with slots:
                try:
                    text, finished = await self._ask(context, schemas[context.id], name)
                except RolloutError as problem:
                    problems.append(problem)
                    text, finished = "", False
            advance(items=1)
            return Generation(id=name, context_id=context.id, text=text, finished=finished)

        try:
            written = await asyncio.gather(
                *(write(context, name) for context, name in names(contexts, self.config.variations))
            )
        finally:
            await self._assistant.close()
        if written and len(problems) == len(written):
            raise NothingWrittenError(
                f"{self._assistant.address.shown} answered none of {len(written)} requests for tasks: "
                f"{problems[0]}; committed rounds are kept, continue with --resume when it answers"
            )
        return written

    async def _ask(self, context: Context, schema: JsonObject, name: str) -> tuple[str, bool]:
        """Return a spec's text and whether it is complete.

        Raises:
            RolloutError: there was no answer.
        """
        from genenv.clients.endpoint import Refused

        messages: list[ChatMessage] = [{"role": m.role, "content": m.content} for m in context.messages]
        body = self._assistant.body(messages, (), stream(self.seed, "endpoint", name) % 2**31)
        held: JsonObject = _as_response_format(schema) if self._holds_schemas() else {}
        try:
            reply = await self._assistant.ask({**body, **held}, self.config.max_new_tokens)
            self._held += bool(held)
        except Refused as refusal:
            if not held or refusal.status not in _NO_SCHEMA:
                raise
            self._refused += 1  # what its structured output cannot hold is asked for freely
            reply = await self._assistant.ask(body, self.config.max_new_tokens)
        return _bare(reply.text), reply.finished

    def _holds_schemas(self) -> bool:
        """Return whether to request structured output: False for a server that has only ever refused it."""
        return self._held > 0 or self._refused < _REFUSALS

    def tokens_sampled_elsewhere(self) -> int:
        """Return the number of tokens that the server reports since the last call."""
        before, self._counted = self._counted, self._assistant.spent.tokens
        return self._counted - before


def _as_response_format(schema: JsonObject) -> JsonObject:
    """Return a schema as a request for structured output; empty if the schema is too long."""
    if len(str(schema)) > MOST_SCHEMA_CHARS:
        return {}
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "spec", "schema": dict(schema), "strict": False},
        }
    }


def _bare(text: str) -> str:
    """Return the JSON object in a reply, without the fence and the words that models put around it."""
    start, end = text.find("{"), text.rfind("}")
    return text[start : end + 1] if 0 <= start < end else text
