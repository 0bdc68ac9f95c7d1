# pyright: standard
"""Opens both policies on a Tinker server: one adapter each, after a probe of how the server trains.

The protocol does not specify what the result of a step depends on. The probe measures how gradients add up,
although it cannot read a gradient. AdamW with beta1 = beta2 = 0 and a large eps steps by
-lr g / (|g| + eps), nearly along the gradient g of the loss. The log-likelihood of a sequence s then rises by
about (lr / eps) g_s . g, which is linear in g. So half the weight must move a sequence half as far. Two
halves of a sequence, trained separately, must together move it as far as the whole. If the server sums over
tokens, as the protocol says, a tail with weight 0 changes nothing, and two copies at half the weight move a
sequence as far as one. For servers that take means, the trainer scales its data up (`losses.Sums`). Each
measurement starts from the same restored weights.

The probe uses a separate adapter, which it releases at the end.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import tinker

from genenv.algorithms.datum import Datum
from genenv.backends.base import Opened, Role
from genenv.backends.local import loading
from genenv.backends.sampler_check import MAX_GAP, PROBE_PROMPT, PROBE_TOKENS, mean_gap
from genenv.backends.settings import ALL_LAYERS, PolicyConfig
from genenv.backends.tinker import service as wire
from genenv.backends.tinker.losses import Sums
from genenv.backends.tinker.policy import Base, TinkerSampler, TinkerTrainer
from genenv.backends.tinker.service import ServerError, Service, States, reason
from genenv.chat.format import ChatFormat
from genenv.environments.base import Environment
from genenv.errors import GenenvError, UsageError
from genenv.seeding import stream
from genenv.threads import run_coroutine
from genenv.types import Message

log = logging.getLogger(__name__)

_OPENING_S = 1800.0
"""Timeout for probing the server and creating adapters; the server may have to load a large base first."""


def open_tinker(config: PolicyConfig, roles: Sequence[Role], env: Environment, seed: int) -> Opened:
    """Open both policies on the Tinker server that the settings name.

    Raises:
        UsageError: the settings need a feature that Tinker servers lack, the server cannot be reached, or it
            fails a check that training depends on.
    """
    _check(config, roles)
    service = Service.connect(config.tinker)
    try:
        opened = run_coroutine(lambda: _open(service, config, roles, seed), _OPENING_S)
    except GenenvError as error:
        raise UsageError(str(error)) from error
    except TimeoutError as error:
        raise UsageError(
            f"the Tinker server at {service.address} makes no adapter: {reason(error)}"
        ) from error
    return opened


async def _open(service: Service, config: PolicyConfig, roles: Sequence[Role], seed: int) -> Opened:
    known = await service.within(service.client.get_server_capabilities_async(), "say what it can do")
    lengths = {
        model.model_name: model.max_context_length for model in known.supported_models if model.model_name
    }
    formats: dict[str, ChatFormat] = {}
    samplers: dict[str, TinkerSampler] = {}
    trainers: dict[str, TinkerTrainer] = {}
    facts: dict[str, Facts] = {}
    for role in roles:
        named = config.simulator_model if role.name == "simulator" else role.model
        source = named or config.model
        model = _served(service, config, source, list(lengths))
        if model not in formats:
            place = loading.resolve(source)
            tokenizer = loading.load_tokenizer(place)
            formats[model] = ChatFormat(tokenizer, config.chat_template_kwargs, loading.stop_ids(place))
        chat = formats[model]
        if model not in facts:
            prompt = chat.render([Message(role="user", content=PROBE_PROMPT)], first=True)
            facts[model] = await probe(
                service, model, rank=config.lora_rank, prompt=prompt, stop_ids=sorted(chat.stop_ids)
            )
            _tell(service, model, facts[model])
        own = Base(
            model=model,
            rank=config.lora_rank,
            seed=stream(seed, "adapter", role.name) % 2**31,
            sums=facts[model].sums,
            gap=facts[model].gap,
            live_load=facts[model].live_load,
        )
        client = await service.adapter(model, own.rank, seed=own.seed)
        context = min(config.context_tokens, lengths[model] or config.context_tokens)
        base = service.client.create_sampling_client_async(base_model=model)
        samplers[role.name] = TinkerSampler(
            service,
            await service.within(base, f"sample with {model}"),
            chat,
            context_tokens=context,
            max_thinking_tokens=config.max_thinking_tokens,
        )
        trainers[role.name] = TinkerTrainer(service, client, samplers[role.name], own, role)
    return Opened(
        samplers=samplers,
        trainers=trainers,
        settled=config,
        parallel_updates=True,
        # If a client cannot load a saved state, a new client replaces it. The weights that the old client
        # published may then vanish while they are sampled from.
        async_rollouts=all(one.live_load for one in facts.values()),
        close=service.close,
        found={"server": service.address, "models": {model: one.said() for model, one in facts.items()}},
    )


def _served(service: Service, config: PolicyConfig, source: str, offered: Sequence[str]) -> str:
    """Return the server's name for a model.

    Raises:
        UsageError: the server does not offer the model.
    """
    wanted = config.tinker.model if config.tinker.model and source == config.model else source
    if wanted in offered:
        return wanted
    shown = ", ".join(sorted(offered)[:8]) + (" and more" if len(offered) > 8 else "")
    raise UsageError(
        f"the Tinker server at {service.address} has no model {wanted!r}, but {shown or 'none at all'}; set "
        "policy.tinker.model to the one that policy.model is the tokenizer of"
    )


def _tell(service: Service, model: str, facts: Facts) -> None:
    """Refuse a server that a run cannot train on; log its other deviations."""
    facts.check()
    if not facts.ends:
        raise UsageError(
            f"the Tinker server at {service.address} leaves out the token that ends a reply of {model}: "
            "nobody could learn to end one"
        )
    if not facts.sums.weighs:
        log.info("the server's cross_entropy scales weights away: imitation goes by importance_sampling")
    if not facts.seeds:
        log.warning(
            "the Tinker server draws other tokens for the same seed: this run cannot be repeated exactly"
        )


def _check(config: PolicyConfig, roles: Sequence[Role]) -> None:
    """Refuse settings that no Tinker server supports.

    Raises:
        UsageError: a setting is not supported.
    """
    if config.tuning != "lora":
        raise UsageError('a Tinker server trains adapters: set policy.tuning to "lora"')
    if config.quantize != "none":
        raise UsageError('a Tinker server holds the base as it does: set policy.quantize to "none"')
    if config.lora_targets not in ALL_LAYERS:
        raise UsageError('a Tinker server adapts all linear layers: set policy.lora_targets to "auto"')
    for role in roles:
        if getattr(role.optimizer, "entropy_coefficient", 0):
            section = role.name if role.name in ("agent", "simulator") else f"agents.{role.name}"
            raise UsageError(
                f"a Tinker server gives no entropy to learn from: set {section}.entropy_coefficient to 0"
            )
        if getattr(getattr(role.optimizer, "warmup", None), "kept_moments", "none") == "second":
            raise UsageError(
                "a Tinker server keeps all moments of its optimizer or none: set "
                f'{role.name}.warmup.kept_moments to "none" or "both"'
            )


LOSSES: Sequence[tinker.types.LossFnType] = ("cross_entropy", "importance_sampling", "ppo")
"""The losses that a run may request."""

_CREDITED: Sequence[tinker.types.LossFnType] = ("importance_sampling", "ppo")
"""The losses that are weighted by advantages."""
_EPS = 1000.0
"""Epsilon of AdamW: far larger than any element of the gradient."""
_FIRST_RATE = 10.0
_FAR = 0.06
"""The first step should raise the log-likelihood by this share of its distance from 0."""
_ABOUT = 1.8
"""Factor by which the rise may miss that target."""
_TRIES = 8
"""Maximum number of learning rates tried to reach that target."""
_STRAIGHT = 0.05
"""Linearity: at 1/2 and 3/4 of the learning rate, the rise may miss 1/2 and 3/4 by this much."""
_HALVINGS = 10
"""How often a learning rate is halved to reach linearity; beyond, rounding would dominate the rise."""
_NEAR = 0.12
"""Tolerance of a ratio that should be 0.5, in proportion for others: steps are not infinitely small."""
_LEARNED = 64
"""Number of tokens to train on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The measured behavior of a server. A rise is that of a sequence's log-likelihood in one step."""

    sdk: str
    """Version of the Tinker SDK."""
    losses: Mapping[str, str]
    """`yes` for each supported loss, else the server's refusal."""
    scales: Mapping[str, float] = field(default_factory=dict[str, float])
    """Per loss: rise at half the weight, relative to the full weight; 0.5 if weights count.

    Empty if it cannot be measured, for example if the server ignores eps.
    """
    adds_up: Mapping[str, float] = field(default_factory=dict[str, float])
    """Of cross_entropy: summed rises by the two halves of a sequence, relative to the whole; 1 under sums."""
    tails: Mapping[str, float] = field(default_factory=dict[str, float])
    """Per loss: rise with a tail of the same length and weight 0, relative to no tail; 1 under sums, 0.5
    if the server divides by a sequence's length."""
    copies: Mapping[str, float] = field(default_factory=dict[str, float])
    """Of losses with advantages: rise by two copies at half of it, relative to one copy; 1 under sums,
    0.5 if the server divides by the number of sequences."""
    scored: int = 0
    """Number of log-probabilities that a sampler returns for n tokens, minus n."""
    gap: float = 0.0
    """Mean |log pi(sampler) - log pi(trainer)| over sampled tokens at equal weights. Nats."""
    seeds: bool = False
    """Whether equal seeds draw equal tokens."""
    live_load: bool = False
    """Whether a client that has trained can load a saved state."""
    ends: bool = True
    """Whether completions include the token that ends a reply."""

    def said(self) -> dict[str, object]:
        """Return the facts as a JSON object."""
        return asdict(self)

    @property
    def sums(self) -> Sums:
        """Return how the server sums the losses of tokens."""
        weighs = [self.scales, 0.5], [self.adds_up, 1.0], [self.tails, 1.0]
        return Sums(
            weighs=all(_near(ratios.get("cross_entropy", 0), wanted) for ratios, wanted in weighs),
            by_length=_near(self.tails.get(_CREDITED[0], 1), 0.5),
            by_count=_near(self.copies.get(_CREDITED[0], 1), 0.5),
        )

    def check(self) -> None:
        """Refuse a server that a run cannot train on.

        Raises:
            UsageError: a loss is missing, weights or lengths do not scale it as they should, or the server
                samples from another model than it trains.
        """
        sums = self.sums
        for loss in _CREDITED:
            if self.losses.get(loss) != "yes":
                raise UsageError(
                    f"the Tinker server lacks the loss {loss}: {self.losses.get(loss, 'not tried')}"
                )
            if loss not in self.scales:
                continue
            wants = (
                ("half the advantage moves a sequence", self.scales, 0.5),
                ("a tail without credit has a sequence move", self.tails, 0.5 if sums.by_length else 1.0),
                ("two copies at half the advantage move", self.copies, 0.5 if sums.by_count else 1.0),
            )
            for what, ratios, wanted in wants:
                if not _near(ratios[loss], wanted):
                    raise UsageError(
                        f"under the Tinker server's {loss} {what} {ratios[loss]:.2f} times as far, and "
                        f"should {wanted:g} times: rewards would not count as they are"
                    )
        if not math.isfinite(self.gap) or self.gap > MAX_GAP:
            raise UsageError(
                f"the Tinker server samples with log-probabilities {self.gap:.2f} nats from those that it "
                "trains with: that is another model"
            )


async def probe(
    service: Service, model: str, *, rank: int, prompt: Sequence[int], stop_ids: Sequence[int]
) -> Facts:
    """Measure how a server samples and trains.

    Args:
        service: the server.
        model: the server's name for the base model.
        rank: of the adapters of the run.
        prompt: any prompt in the model's format.
        stop_ids: the tokens that end a reply.

    Raises:
        ServerError: the server does not answer.
    """
    client = await service.adapter(model, rank, seed=1)
    states, paths = States(service, "probe", model=model, rank=rank), list[str]()
    try:
        return await _found(service, client, states, paths, tuple(prompt), stop_ids)
    finally:
        for path in paths:
            await states.delete(path)
        await states.let_go(client)


async def _found(
    service: Service,
    client: tinker.TrainingClient,
    states: States,
    paths: list[str],
    prompt: tuple[int, ...],
    stop_ids: Sequence[int],
) -> Facts:
    sampler = await service.within(client.save_weights_and_get_sampling_client_async(), "publish weights")
    drawn = [await _drawn(service, sampler, prompt, seed=seed, stop_ids=stop_ids) for seed in (7, 7, 8)]
    first = drawn[0]
    whole = Datum(
        prompt_ids=prompt,
        completion_ids=tuple(first.tokens),
        weights=(1.0,) * len(first.tokens),
        loss="nll",
    )
    (own,) = await service.scored(client, [whole])
    scored = await service.within(
        sampler.compute_logprobs_async(tinker.ModelInput.from_ints([*prompt, *first.tokens])), "score tokens"
    )
    _ = wire.tail(scored, whole)
    facts = Facts(
        sdk=tinker.__version__,
        losses={},
        scored=len(scored) - len(prompt) - len(first.tokens),
        gap=mean_gap([first.logprobs or ()], [own]),
        seeds=list(first.tokens) == list(drawn[1].tokens),
        ends=all(one.stop_reason != "stop" or one.tokens[-1] in stop_ids for one in drawn),
    )
    paths.append(await states.save(client))
    unlikely = _unlikely(prompt, first.tokens)
    (before,) = await service.scored(client, [unlikely])
    mover = _Mover(service, client, states, paths[0], unlikely, before)
    losses, scales, adds_up = dict[str, str](), dict[str, float](), dict[str, float]()
    tails, copies = dict[str, float](), dict[str, float]()
    try:
        for loss in LOSSES:
            try:
                all_of_it = await mover.moves(loss, 1.0)
            except ServerError as problem:
                losses[loss] = reason(problem.__cause__ or problem)
                continue
            losses[loss] = "yes"
            if all_of_it:
                scales[loss] = await mover.moves(loss, 0.5) / all_of_it
                tails[loss] = await mover.moves(loss, 1.0, tail=True) / all_of_it
                if loss in _CREDITED:
                    copies[loss] = await mover.moves(loss, 0.5, copies=2) / all_of_it
                else:
                    halves = [await mover.moves(loss, 1.0, part) for part in mover.halves]
                    adds_up[loss] = sum(halves) / all_of_it
    finally:
        if mover.client is not client:
            await states.let_go(mover.client)
    found = {"losses": losses, "scales": scales, "adds_up": adds_up, "tails": tails, "copies": copies}
    return replace(facts, **found, live_load=bool(mover.live_load))


def _unlikely(prompt: Sequence[int], tokens: Sequence[int]) -> Datum:
    """Return an improbable reply, whose likelihood can rise: the prompt and the sampled tokens, reversed.

    The likelihood of a probable reply can barely rise, so that rounding would dominate the rise.
    """
    said = (*prompt, *tokens)[::-1]
    reply = tuple(said[at % len(said)] for at in range(_LEARNED))
    return Datum(prompt_ids=tuple(prompt), completion_ids=reply, weights=(1.0,) * _LEARNED, loss="nll")


class _Mover:
    """Measures how far one short training step, always from the same weights, moves a sequence's likelihood.

    First it finds a learning rate in the linear range: half the rate must move the sequence half as far,
    whatever the server does to weights.
    """

    def __init__(
        self,
        service: Service,
        client: tinker.TrainingClient,
        states: States,
        path: str,
        datum: Datum,
        before: Sequence[float],
    ) -> None:
        self.client = client
        self._service, self._states, self._path = service, states, path
        self._datum, self._before = datum, before
        self._rates: dict[str, float] = {}
        """Learning rate per loss, since a server may sum in one loss and average in another. 0: none is
        suitable."""
        self.live_load: bool | None = None

    @property
    def halves(self) -> tuple[range, range]:
        """The indices of the first and second half of the sequence's tokens."""
        half = len(self._before) // 2
        return range(half), range(half, len(self._before))

    async def moves(
        self,
        loss: tinker.types.LossFnType,
        weight: float,
        part: range | None = None,
        *,
        tail: bool = False,
        copies: int = 1,
    ) -> float:
        """Return the rise of the log-likelihood, nats; 0 if no learning rate is suitable.

        Args:
            loss: the server's loss.
            weight: advantage or weight of each token in `part`.
            part: the tokens with this weight; the others have 0. None: all tokens.
            tail: whether to append as many tokens with weight 0.
            copies: how many times the sequence is in the step.
        """
        if loss not in self._rates:
            start = next((rate for rate in self._rates.values() if rate), _FIRST_RATE)
            self._rates[loss] = await self._found_rate(loss, start)
        if not self._rates[loss]:
            return 0.0
        row = [weight if part is None or token in part else 0.0 for token in range(len(self._before))]
        return await self._moved(loss, [self._sequence(loss, row, tail=tail)] * copies, self._rates[loss])

    def _sequence(
        self, loss: tinker.types.LossFnType, row: Sequence[float], *, tail: bool = False
    ) -> tinker.Datum:
        datum, before = self._datum, list(self._before)
        if tail:
            whole = (*datum.prompt_ids, *datum.completion_ids)
            more = whole[: wire.targets(datum)]
            datum = replace(
                datum,
                completion_ids=(*datum.completion_ids, *more),
                weights=(*datum.weights, *(0.0,) * len(more)),
            )
            row, before = [*row, *(0.0,) * len(more)], [*before, *(0.0,) * len(more)]
        if loss == "cross_entropy":
            return wire.encoded(datum, weights=row)
        return wire.encoded(datum, logprobs=before, advantages=row)

    async def _found_rate(self, loss: tinker.types.LossFnType, start: float) -> float:
        """Return the largest tried learning rate at which the rise is linear; 0 if there is none."""
        whole = [self._sequence(loss, [1.0] * len(self._before))]
        rate, moved = await self._far(loss, whole, start)
        for _ in range(_HALVINGS if moved else 0):
            half = await self._moved(loss, whole, rate / 2)
            if abs(half / moved - 0.5) <= _STRAIGHT:
                more = await self._moved(loss, whole, 0.75 * rate)
                if abs(more / moved - 0.75) <= _STRAIGHT:
                    longer = await self._moved(loss, whole, rate, eps=10 * _EPS)
                    return rate if longer < moved / 5 else 0.0  # else the server ignores eps
            rate, moved = rate / 2, half
            if moved <= 0:
                break
        return 0.0

    async def _far(
        self, loss: tinker.types.LossFnType, whole: Sequence[tinker.Datum], rate: float
    ) -> tuple[float, float]:
        """Return a learning rate that gives a large rise, and the rise in nats; 0 if none is found."""
        far = -_FAR * math.fsum(self._before)
        for _ in range(_TRIES):
            moved = await self._moved(loss, whole, rate)
            if far / _ABOUT <= moved <= far * _ABOUT:
                return rate, moved
            rate *= min(max(far / max(moved, 1e-4), 0.05), 50.0)
        return rate, 0.0

    async def _moved(
        self,
        loss: tinker.types.LossFnType,
        sequences: Sequence[tinker.Datum],
        rate: float,
        *,
        eps: float = _EPS,
    ) -> float:
        learned = self.client.forward_backward(list(sequences), loss)
        await self._service.within(learned, f"learn by {loss}")
        step = tinker.AdamParams(learning_rate=rate, beta1=0.0, beta2=0.0, eps=eps)
        await self._service.within(self.client.optim_step(step), "make a step")
        (after,) = await self._service.scored(self.client, [self._datum])
        await self._restore()
        return math.fsum(after) - math.fsum(self._before)

    async def _restore(self) -> None:
        if self.live_load is not False:
            try:
                await self._service.within(
                    self.client.load_state_with_optimizer(self._path), "take a state back"
                )
            except ServerError:
                self.live_load = False
            else:
                self.live_load = True
                return
        old = self.client
        self.client = await self._states.opened(self._path, optimizer=True)
        await self._states.let_go(old)


async def _drawn(
    service: Service,
    sampler: tinker.SamplingClient,
    prompt: tuple[int, ...],
    *,
    seed: int,
    stop_ids: Sequence[int],
) -> tinker.SampledSequence:
    asked = sampler.sample_async(
        prompt=tinker.ModelInput.from_ints(list(prompt)),
        num_samples=1,
        sampling_params=tinker.SamplingParams(
            max_tokens=PROBE_TOKENS, temperature=1.0, seed=seed, stop=list(stop_ids)
        ),
    )
    (sequence,) = (await service.within(asked, "sample")).sequences
    return sequence


def _near(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= _NEAR * 2 * wanted
