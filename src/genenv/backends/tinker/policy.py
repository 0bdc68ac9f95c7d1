# pyright: standard
"""A policy on a Tinker server: it samples and trains there, and its state is a path there.

A step that goes too far, or a loss that is no number, is undone by restoring a state that was saved before:
an accumulated gradient cannot be discarded there in any other way.

Shapes: T = tokens of a completion.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tinker

from genenv.algorithms.datum import Datum, Objective
from genenv.algorithms.settings import Moments
from genenv.backends.base import Role
from genenv.backends.sampler_check import (
    MAX_GAP,
    OLDER_RATIO,
    PROBE_PROMPT,
    PROBE_TOKENS,
    ROUNDING_GAP,
    completion_problem,
    is_older,
    mean_gap,
)
from genenv.backends.tinker import service as wire
from genenv.backends.tinker.losses import Call, Sums, calls, distance, measures, wants_own, wants_reference
from genenv.backends.tinker.service import ServerError, Service, States
from genenv.chat.format import ChatFormat
from genenv.chat.sampler import ChatSampler
from genenv.errors import DataError, UpdateSkipped, UsageError
from genenv.progress import advance
from genenv.sampling import COLDEST, Completion, SampleRequest, sampling_params
from genenv.types import Message

SEEDS = 2**31 - 1
"""Seeds of requests are below it: servers take 32 bits with a sign."""


class TinkerSampler(ChatSampler):
    """Samples with the weights that its trainer published last.

    Nothing holds a completion to a schema there: a simulator that was warmed up writes freely, and the gate
    refuses. Log-probabilities are those at temperature 1, whatever the sampling's.
    """

    def __init__(
        self,
        service: Service,
        client: tinker.SamplingClient,
        chat: ChatFormat,
        *,
        context_tokens: int,
        max_thinking_tokens: int | None = None,
    ) -> None:
        """A sampler.

        Args:
            service: the server.
            client: the weights there.
            chat: the model's chat format.
            context_tokens: the longest sequence.
            max_thinking_tokens: closes thoughts after so many tokens; None: never.
        """
        super().__init__(chat, context_tokens=context_tokens, max_thinking_tokens=max_thinking_tokens)
        self.service = service
        self.client, self.version = client, 0

    async def _sample(self, request: SampleRequest) -> Completion:
        """One completion.

        Raises:
            UsageError: the reply has to be one of some, which a server cannot be asked for.
            ServerError: the server does not answer.
        """
        if request.choices:
            raise UsageError(
                "a Tinker server cannot be held to a list of replies: set the environment so that the agent "
                'replies freely, or policy.backend to "local"'
            )
        version = self.version
        answer = self.client.sample_async(
            prompt=tinker.ModelInput.from_ints(list(request.prompt_ids)),
            num_samples=1,
            sampling_params=tinker.SamplingParams(
                max_tokens=request.max_tokens,
                seed=request.stream % SEEDS,
                stop=[self.chat.end_id],
                **sampling_params(request, greedy_below=COLDEST),
            ),
        )
        found = await self.service.within(answer, "sample")
        (sequence,) = found.sequences
        ids = tuple(map(int, sequence.tokens))
        logprobs = tuple(map(float, sequence.logprobs or ()))
        limits = {"max_tokens": request.max_tokens, "vocabulary": len(self.chat.tokenizer)}
        if (wrong := completion_problem(ids, logprobs, **limits)) is not None:
            raise ServerError(
                f"the Tinker server at {self.service.address} answers {wrong}; committed rounds are kept, "
                "continue with --resume"
            )
        advance(tokens=len(ids))
        return Completion(
            token_ids=ids,
            logprobs=logprobs,
            text=self.chat.decode(ids),
            finished=ids[-1:] == (self.chat.end_id,),
            version=version,
        )

    def end_round(self) -> None:
        """Nothing is kept here."""


STATE = "tinker.json"
"""File, inside a player's checkpoint, of where its weights are."""
_EPS = 1e-8
"""Of AdamW, as torch has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What a player's weights are an adapter of."""

    model: str
    """As the server calls it."""
    rank: int
    seed: int
    sums: Sums
    """How the server adds up."""
    live_load: bool
    """Whether it takes a state into a client that has learned already."""
    gap: float = 0.0
    """Mean difference of log-probabilities between its sampler and its trainer, of equal weights. Nats."""


class TinkerTrainer:
    """Trains one player's adapter."""

    def __init__(
        self,
        service: Service,
        client: tinker.TrainingClient,
        sampler: TinkerSampler,
        base: Base,
        role: Role,
    ) -> None:
        """A trainer.

        Args:
            service: the server.
            client: a fresh adapter there.
            sampler: is given what is published.
            base: what it is an adapter of.
            role: the player, and how it steps.
        """
        self.service, self.client, self.sampler, self.base = service, client, sampler, base
        self.settings, self.version = role.optimizer, 0
        self.states = States(service, role.name, model=base.model, rank=base.rank)
        self._ramped, self._steps = False, 0
        self._ramps_when_loaded = role.ramped
        self._base: tinker.SamplingClient | None = None
        """The reference, before there is an anchor."""
        self._reference: tinker.TrainingClient | None = None
        """The reference since then: an adapter that nobody trains, for a server may put weights that are
        sampled with in the place of those that are trained."""
        self._reference_path: str | None = None
        self._watched: tuple[Sequence[Datum], Sequence[tuple[float, ...]]] | None = None
        self._restore_point: str | None = None
        """A state before the last step."""
        self._passes_made: list[Call] = []
        """Passes since then."""
        self._rate, self._stepped = 0.0, False
        """Learning rate of the last step, and whether there was one since then."""
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[float, ...]] = {}
        """What the reference says, of sequences of this update."""

    async def forward_backward(self, data: Sequence[Datum], objective: Objective) -> Mapping[str, float]:
        """Accumulate the gradient of the loss. See `Trainer`."""
        if not sum(datum.tokens for datum in data):
            raise UpdateSkipped("there is no token to learn from")
        if objective.entropy_coefficient:
            raise UsageError(
                "a Tinker server gives no entropy to learn from: set agent.entropy_coefficient to 0"
            )
        await self._save_restore_point()
        sums = self.base.sums
        own = await self._scored(self.client, data, wants_own(data, objective, sums))
        reference = await self._reference_rows(data, wants_reference(data, objective))
        made = calls(data, objective, own, reference, sums)
        now = own | await self._run_passes(made, data)
        if self._watched is not None:
            self._passes_made += made
        return measures(data, objective, now, reference)

    async def step(self, learning_rate: float) -> Mapping[str, float]:
        """One step of AdamW. See `Trainer`."""
        self._rate = learning_rate * (
            1 - self.settings.betas[0] ** (self._steps + 1) if self._ramped else 1.0
        )
        self._steps += 1
        self._stepped = True
        return await self._step(self._rate)

    async def watch(self, data: Sequence[Datum]) -> None:
        """Remember what the weights say of data now. See `Trainer`."""
        self._watched = data, await self.logprobs(data)

    async def moved(self) -> float:
        """How far the weights have gone since `watch`, estimated: nothing there gives it exactly."""
        if self._watched is None:
            raise RuntimeError("watch comes before moved")
        data, then = self._watched
        return distance(await self.logprobs(data), then)

    async def shorten(self, fraction: float) -> None:
        """Go back to before the last step, and make it again with a smaller learning rate. See `Trainer`."""
        made = list(self._passes_made)
        await self._restore()
        if fraction <= 0:
            self._steps -= 1
            return
        await self._repeat_passes(made)
        await self._step(self._rate * fraction)
        self._passes_made, self._stepped = made, True

    async def logprobs(self, data: Sequence[Datum], *, reference: bool = False) -> list[tuple[float, ...]]:
        """Log-probabilities of whole completions, each token's, at temperature 1; see `Trainer`."""
        places = range(len(data))
        if reference:
            rows = await self._reference_rows(data, places)
        else:
            rows = await self._scored(self.client, data, places)
        return [rows[place] for place in places]

    async def anchor(self, moments: Moments) -> None:
        """The present weights become the reference. See `Trainer`."""
        path = await self.states.save(self.client)
        await self._set_reference(path)
        if moments == "none":
            await self._open(path, optimizer=False)
            self._steps, self._ramped = 0, True
            await self._publish_sampler()  # what the client before had published may go with it
        self._known.clear()

    async def publish(self) -> int:
        """Have the server sample with the present weights. See `Trainer`."""
        before, self._restore_point = self._restore_point, None
        self._watched, self._passes_made, self._stepped = None, [], False
        if before is not None:
            await self.states.delete(before)
        self._known.clear()
        self.version += 1
        await self._publish_sampler()
        return self.version

    async def save(self, folder: Path) -> None:
        """Have the server write its state, and remember where."""
        path = await self.states.save(self.client)
        folder.mkdir(parents=True, exist_ok=True)
        kept = {
            "address": self.service.address,
            "model": self.base.model,
            "state": path,
            "reference": self._reference_path,
            "version": self.version,
            "steps": self._steps,
        }
        (folder / STATE).write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
        await self.states.forget_unless(path, folder.parent.parent.glob(f"*/{folder.name}/{STATE}"))

    async def load(self, folder: Path) -> None:
        """Restore what `save` wrote, from the server's own copy.

        Raises:
            DataError: the file is damaged, or of another model.
            ServerError: the server has it no more.
        """
        path = folder / STATE
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            state, model = str(kept["state"]), str(kept["model"])
            version, steps, reference = int(kept["version"]), int(kept["steps"]), kept["reference"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} cannot be read: {error}") from error
        if model != self.base.model:
            raise DataError(f"{path} is of {model}, and the settings say {self.base.model}")
        await self._open(state, optimizer=True)
        if reference:
            await self._set_reference(str(reference))
        self.version, self._steps, self._ramped = version, steps, self._ramps_when_loaded
        await self._publish_sampler()

    async def _save_restore_point(self) -> None:
        """Know a state to go back to: from before the update, and before each step that may be shortened."""
        if self._restore_point is None or (self._watched is not None and self._stepped):
            self._restore_point = await self.states.save(self.client, replaces=self._restore_point)
            self._passes_made, self._stepped = [], False

    async def _run_passes(self, made: Sequence[Call], data: Sequence[Datum]) -> dict[int, tuple[float, ...]]:
        """Ask for passes, all at once.

        Returns:
            Log-probabilities before the step, by place in the data.

        Raises:
            UpdateSkipped: a loss is no number; the weights are as before the update.
        """
        asked = [self.client.forward_backward(list(c.sequences), c.loss, c.config) for c in made]
        try:
            answers = [await self.service.within(answer, "learn") for answer in asked]
        except ServerError as refused:
            await self._restore_unless_finite(refused)
            raise
        found: dict[int, tuple[float, ...]] = {}
        for call, answer in zip(made, answers, strict=True):
            own = [data[place] for place in call.places]
            rows = wire.logprobs_of(answer.loss_fn_outputs, own)
            sums = [float(value) for name, value in answer.metrics.items() if "loss" in name]
            if not wire.all_finite([*rows, sums, *wire.losses_of(answer.loss_fn_outputs)]):
                await self._restore()
                raise UpdateSkipped("the server's loss is not finite; the update so far is taken back")
            found |= dict(zip(call.places, rows, strict=True))
            advance(tokens=sum(len(one.prompt_ids) + len(one.completion_ids) for one in own), items=len(own))
        return found

    async def _repeat_passes(self, made: Sequence[Call]) -> None:
        for call in made:
            asked = self.client.forward_backward(list(call.sequences), call.loss, call.config)
            await self.service.within(asked, "learn again, with a shorter step")

    async def _step(self, rate: float) -> Mapping[str, float]:
        settings = self.settings
        asked = self.client.optim_step(
            tinker.AdamParams(
                learning_rate=rate,
                beta1=settings.betas[0],
                beta2=settings.betas[1],
                eps=_EPS,
                weight_decay=settings.weight_decay,
                grad_clip_norm=settings.max_grad_norm,
            )
        )
        try:
            answer = await self.service.within(asked, "make a step")
        except ServerError as refused:
            await self._restore_unless_finite(refused)
            raise
        norms = [float(v) for name, v in (answer.metrics or {}).items() if "grad_norm" in name]
        if not wire.all_finite([norms]):
            await self._restore()
            raise UpdateSkipped("the server's gradient is not finite; the update so far is taken back")
        return {"grad_norm": norms[0]} if norms else {}

    async def _restore_unless_finite(self, refused: ServerError) -> None:
        """Go back, where what a server refuses is a number that is none.

        Raises:
            UpdateSkipped: it is.
        """
        if isinstance(refused.__cause__, tinker.RequestFailedError) and "finite" in str(refused):
            await self._restore()
            raise UpdateSkipped(f"{refused.__cause__}; the update so far is taken back") from refused

    async def _restore(self) -> None:
        """The weights and the moments are those of the state that was saved."""
        if self._restore_point is None:
            raise RuntimeError("nothing was saved to go back to")
        if self.base.live_load:
            asked = self.client.load_state_with_optimizer(self._restore_point)
            await self.service.within(asked, "go back to before the step")
        else:
            await self._discard_gradient()
            await self._open(self._restore_point, optimizer=True)
        self._passes_made, self._stepped = [], False

    async def _discard_gradient(self) -> None:
        """Have a step spend it before an adapter goes: a server may keep it for who gets the place."""
        nothing = tinker.AdamParams(learning_rate=0.0)
        with contextlib.suppress(ServerError):
            await self.service.within(self.client.optim_step(nothing), "forget a gradient")

    async def _open(self, path: str, *, optimizer: bool) -> None:
        """A new client with a state; the one before is let go of."""
        old, self.client = self.client, await self.states.opened(path, optimizer=optimizer)
        await self.states.let_go(old)

    async def _publish_sampler(self) -> None:
        before, asked = self.sampler.client, self.client.save_weights_and_get_sampling_client_async()
        self.sampler.client = await self.service.within(asked, "publish weights")
        self.sampler.version = self.version
        await self._check_sampler(before)

    async def _check_sampler(self, before: tinker.SamplingClient) -> None:
        """Have the server score what it samples with the weights that were just published.

        Args:
            before: what it sampled with until now.

        Raises:
            ServerError: it samples with other weights.
        """
        prompt = self.sampler.render([Message(role="user", content=PROBE_PROMPT)], first=True)
        most = min(PROBE_TOKENS, self.sampler.context_tokens - len(prompt))
        if most < 1:
            return
        done = await self.sampler.sample(SampleRequest(prompt_ids=prompt, max_tokens=most))
        weights = (1.0,) * len(done.token_ids)
        datum = Datum(prompt_ids=prompt, completion_ids=done.token_ids, weights=weights, loss="nll")
        gap = mean_gap([done.logprobs], await self.logprobs([datum]))
        what = f"the Tinker server at {self.service.address} does not sample from version {self.version} of"
        what += f" the weights of {self.base.model} that it was asked to publish"
        if not gap <= MAX_GAP:
            raise ServerError(f"{what}: its log-probabilities are {gap:.2f} nats from those that it scores")
        if gap <= max(ROUNDING_GAP, OLDER_RATIO * self.base.gap):
            return  # as large as between a sampler and a trainer of equal weights
        try:
            older = await self._scored_alone(datum, before)
        except (ServerError, ValueError):  # a server may have let go of the one before
            return
        if is_older(gap, mean_gap([done.logprobs], [older]), tokens=len(done.token_ids)):
            raise ServerError(f"{what}, but from those before; committed rounds are kept")

    async def _set_reference(self, path: str) -> None:
        before, self._reference = self._reference, await self.states.opened(path, optimizer=False)
        self._reference_path = path
        if before is not None:
            await self.states.let_go(before)

    async def _scored(
        self, client: tinker.TrainingClient, data: Sequence[Datum], places: Sequence[int]
    ) -> dict[int, tuple[float, ...]]:
        """Log-probabilities under an adapter, by place."""
        if not places:
            return {}
        own = [data[place] for place in places]
        rows = await self.service.scored(client, own)
        advance(tokens=sum(len(one.prompt_ids) + len(one.completion_ids) for one in own), items=len(own))
        return dict(zip(places, rows, strict=True))

    async def _reference_rows(
        self, data: Sequence[Datum], places: Sequence[int]
    ) -> dict[int, tuple[float, ...]]:
        """Log-probabilities under the reference, by place; those of an update are asked for once."""
        keys = {place: (data[place].prompt_ids, data[place].completion_ids) for place in places}
        missing = list({key: place for place, key in keys.items() if key not in self._known}.values())
        if self._reference is not None:
            found = await self._scored(self._reference, data, missing)
        else:
            found = await self._scored_by_base(data, missing)
        self._known |= {keys[place]: row for place, row in found.items()}
        return {place: self._known[key] for place, key in keys.items()}

    async def _scored_by_base(
        self, data: Sequence[Datum], places: Sequence[int]
    ) -> dict[int, tuple[float, ...]]:
        if self._base is None and places:
            made = self.service.client.create_sampling_client_async(base_model=self.base.model)
            self._base = await self.service.within(made, "sample with the base model")
        base = self._base
        if base is None:
            return {}
        rows = await asyncio.gather(*(self._scored_alone(data[place], base) for place in places))
        return dict(zip(places, rows, strict=True))

    async def _scored_alone(self, datum: Datum, by: tinker.SamplingClient) -> tuple[float, ...]:
        whole = tinker.ModelInput.from_ints([*datum.prompt_ids, *datum.completion_ids])
        values = await self.service.within(by.compute_logprobs_async(whole), "score tokens")
        return wire.tail(values, datum)
