# pyright: standard
"""The sampler and trainer of one policy on a Tinker server; the weights stay on the server.

A step that goes too far, or a loss that is not finite, is undone by restoring a saved state: the protocol has
no other way to discard an accumulated gradient.

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
"""Request seeds are taken modulo this, because servers take signed 32-bit integers."""


class TinkerSampler(ChatSampler):
    """Samples with the weights that its trainer published last.

    The protocol has no constrained decoding: the simulator writes specs freely, and the gate rejects invalid
    ones. Log-probabilities are at temperature 1, whatever the sampling temperature.
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
        """Create a sampler.

        Args:
            service: the server.
            client: the server's handle of the weights to sample from.
            chat: the model's chat format.
            context_tokens: the longest sequence.
            max_thinking_tokens: limit of a thought, after which it is closed; None: no limit.
        """
        super().__init__(chat, context_tokens=context_tokens, max_thinking_tokens=max_thinking_tokens)
        self.service = service
        self.client, self.version = client, 0

    async def _sample(self, request: SampleRequest) -> Completion:
        """Return one completion.

        Raises:
            UsageError: the reply must be one of given choices, which the protocol cannot express.
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
                stop=sorted(self.chat.stop_ids),
                **sampling_params(request, greedy_below=COLDEST),
            ),
        )
        found = await self.service.within(answer, "sample")
        (sequence,) = found.sequences
        ids = tuple(map(int, sequence.tokens))
        logprobs = tuple(map(float, sequence.logprobs or ()))
        rows = -(-len(self.chat.tokenizer) // _ROWS) * _ROWS
        limits = {"max_tokens": request.max_tokens, "vocabulary": rows}
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
            finished=bool(ids) and ids[-1] in self.chat.stop_ids,
            version=version,
        )


_ROWS = 1024
"""Output layers have up to so many more rows than the tokenizer has tokens: their number is rounded up."""
STATE = "tinker.json"
"""File in a policy's checkpoint that names the saved state on the server."""
_EPS = 1e-8
"""Epsilon of AdamW, as in torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The base model and adapter settings of one policy, with what the probe measured about the server."""

    model: str
    """The server's name for the base model."""
    rank: int
    seed: int
    sums: Sums
    """How the server sums the losses of tokens."""
    live_load: bool
    """Whether a client that has trained can load a saved state."""
    gap: float = 0.0
    """Mean difference of log-probabilities between the server's sampler and trainer at equal weights.
    Nats."""


class TinkerTrainer:
    """Trains the adapter of one policy on a Tinker server (implements `Trainer`)."""

    def __init__(
        self,
        service: Service,
        client: tinker.TrainingClient,
        sampler: TinkerSampler,
        base: Base,
        role: Role,
    ) -> None:
        """Create a trainer.

        Args:
            service: the server.
            client: the server's handle of a fresh adapter.
            sampler: receives the published weights.
            base: the base model, and the measured behavior of the server.
            role: the policy and its optimizer settings.
        """
        self.service, self.client, self.sampler, self.base = service, client, sampler, base
        self.settings, self.version = role.optimizer, 0
        self.states = States(service, role.name, model=base.model, rank=base.rank)
        self._ramped, self._steps = False, 0
        self._base: tinker.SamplingClient | None = None
        """The base model as reference, until `anchor` is called."""
        self._reference: tinker.TrainingClient | None = None
        """The reference after `anchor`: an adapter that is never trained. It is a training client, because a
        server may replace the weights of a sampling client with those being trained."""
        self._reference_path: str | None = None
        self._watched: tuple[Sequence[Datum], Sequence[tuple[float, ...]]] | None = None
        self._restore_point: str | None = None
        """Path of a state from before the last step."""
        self._restore_steps = 0
        """Number of steps before that state, since the moments were reset."""
        self._passes_made: list[Call] = []
        """Forward and backward passes since the restore point."""
        self._rate, self._stepped = 0.0, False
        """Learning rate of the last step; whether there was a step since the restore point."""
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[float, ...]] = {}
        """Log-probabilities under the reference, by (prompt, completion), for this update."""

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
        """Make one step of AdamW. See `Trainer`."""
        self._rate = learning_rate * (
            1 - self.settings.betas[0] ** (self._steps + 1) if self._ramped else 1.0
        )
        self._steps += 1
        self._stepped = True
        return await self._step(self._rate)

    async def watch(self, data: Sequence[Datum]) -> None:
        """Store the present log-probabilities of data for `moved`. See `Trainer`."""
        self._watched = data, await self.logprobs(data)

    async def moved(self) -> float:
        """Return an estimate of the KL since `watch`; the protocol has no exact value."""
        if self._watched is None:
            raise RuntimeError("watch comes before moved")
        data, then = self._watched
        return distance(await self.logprobs(data), then)

    async def shorten(self, fraction: float) -> None:
        """Undo the last step and repeat it with a smaller learning rate. See `Trainer`."""
        made = list(self._passes_made)
        await self._restore()
        if fraction <= 0:
            return
        await self._repeat_passes(made)
        await self._step(self._rate * fraction)
        self._steps += 1
        self._passes_made, self._stepped = made, True

    async def logprobs(
        self, data: Sequence[Datum], *, reference: bool = False, written: Path | None = None
    ) -> list[tuple[float, ...]]:
        """Return the log-probability of each token of each completion at temperature 1; see `Trainer`.

        Raises:
            UsageError: `written` is given; see `Opened.scores_written`.
        """
        if written is not None:
            raise UsageError("a Tinker server does not score data under weights of a folder")
        places = range(len(data))
        if reference:
            rows = await self._reference_rows(data, places)
        else:
            rows = await self._scored(self.client, data, places)
        return [rows[place] for place in places]

    async def anchor(self, moments: Moments) -> None:
        """Make the present weights the reference. See `Trainer`."""
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
        """Have the server save its state, and write the path of that state to a file."""
        path = await self.states.save(self.client)
        folder.mkdir(parents=True, exist_ok=True)
        kept = {
            "address": self.service.address,
            "model": self.base.model,
            "state": path,
            "reference": self._reference_path,
            "version": self.version,
            "steps": self._steps,
            "ramped": self._ramped,
        }
        (folder / STATE).write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
        await self.states.forget_unless(path, folder.parent.parent.glob(f"*/{folder.name}/{STATE}"))

    async def load(self, folder: Path) -> None:
        """Restore the state on the server that `save` recorded.

        Raises:
            DataError: the file is damaged, or is of another model.
            ServerError: the server no longer has the state.
        """
        path = folder / STATE
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            state, model = str(kept["state"]), str(kept["model"])
            version, steps, reference = int(kept["version"]), int(kept["steps"]), kept["reference"]
            ramped = bool(kept.get("ramped", True))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} cannot be read: {error}") from error
        if model != self.base.model:
            raise DataError(f"{path} is of {model}, and the settings say {self.base.model}")
        await self._open(state, optimizer=True)
        if reference:
            await self._set_reference(str(reference))
        self.version, self._steps, self._ramped = version, steps, ramped
        await self._publish_sampler()

    async def _save_restore_point(self) -> None:
        """Save a state to restore: before each update, and before each further step that may be shortened."""
        if self._restore_point is None or (self._watched is not None and self._stepped):
            self._restore_point = await self.states.save(self.client, replaces=self._restore_point)
            self._restore_steps = self._steps
            self._passes_made, self._stepped = [], False

    async def _run_passes(self, made: Sequence[Call], data: Sequence[Datum]) -> dict[int, tuple[float, ...]]:
        """Request all forward and backward passes at once, then wait for the results.

        Returns:
            Log-probabilities before the step, by index in the data.

        Raises:
            UpdateSkipped: a loss is not finite; the weights are restored to those before the update.
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
        """Restore the last state if the server refused because of a number that is not finite.

        Raises:
            UpdateSkipped: it refused for that reason.
        """
        if isinstance(refused.__cause__, tinker.RequestFailedError) and "finite" in str(refused):
            await self._restore()
            raise UpdateSkipped(f"{refused.__cause__}; the update so far is taken back") from refused

    async def _restore(self) -> None:
        """Restore weights, moments and the number of steps of the last saved state."""
        if self._restore_point is None:
            raise RuntimeError("nothing was saved to go back to")
        if self.base.live_load:
            asked = self.client.load_state_with_optimizer(self._restore_point)
            await self.service.within(asked, "go back to before the step")
        else:
            await self._discard_gradient()
            await self._open(self._restore_point, optimizer=True)
        self._steps = self._restore_steps
        self._passes_made, self._stepped = [], False

    async def _discard_gradient(self) -> None:
        """Consume the accumulated gradient in a step with learning rate 0, before the adapter is released.

        Otherwise a server may keep the gradient for the next adapter in its slot.
        """
        nothing = tinker.AdamParams(learning_rate=0.0)
        with contextlib.suppress(ServerError):
            await self.service.within(self.client.optim_step(nothing), "forget a gradient")

    async def _open(self, path: str, *, optimizer: bool) -> None:
        """Replace the client by a new one with a saved state, and release the old one."""
        old, self.client = self.client, await self.states.opened(path, optimizer=optimizer)
        await self.states.let_go(old)

    async def _publish_sampler(self) -> None:
        before, asked = self.sampler.client, self.client.save_weights_and_get_sampling_client_async()
        self.sampler.client = await self.service.within(asked, "publish weights")
        self.sampler.version = self.version
        await self._check_sampler(before)

    async def _check_sampler(self, before: tinker.SamplingClient) -> None:
        """Have the trainer score a completion, to check that the sampler uses the published weights.

        Args:
            before: the sampling client of the weights published before.

        Raises:
            ServerError: the server samples from other weights.
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
        """Return log-probabilities under an adapter, by index in the data."""
        if not places:
            return {}
        own = [data[place] for place in places]
        rows = await self.service.scored(client, own)
        advance(tokens=sum(len(one.prompt_ids) + len(one.completion_ids) for one in own), items=len(own))
        return dict(zip(places, rows, strict=True))

    async def _reference_rows(
        self, data: Sequence[Datum], places: Sequence[int]
    ) -> dict[int, tuple[float, ...]]:
        """Return log-probabilities under the reference, by index; each sequence is scored once per update."""
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
