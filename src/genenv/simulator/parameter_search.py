"""Searches over task parameters without a network: a table, the cross-entropy method, PLR, ACCEL and SFL.

They take the place of the model that writes parameters (`simulator.writes = "parameters"`), as baselines for
a trained simulator. Rewards, gate and rollouts are the same. No search samples a token.

`table`: one softmax for each parameter and set of values that the earlier parameters allow. It is trained by
the loss of `rwr_credit`, with the same weights and the same KL to its initial distribution, which is uniform.
`cem`: the same softmaxes, set by the cross-entropy method (Rubinstein 1999; de Boer et al. 2005).
`plr`: a buffer of parameters whose tasks had mixed outcomes, replayed (Jiang et al., arXiv:2010.03934).
`accel`: the same, and replayed parameters are edited as well (Parker-Holder et al., arXiv:2203.01302).
`sfl`: a buffer of the parameters with the highest rewards among many that are rolled out only to score them
(Rutherford et al., arXiv:2408.15099).
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from statistics import fmean
from typing import ClassVar, Generic, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from genenv.algorithms.update import evenly, lr_scale
from genenv.environments.base import Environment, HasEdits, Options, base_spec
from genenv.environments.common import at_random, by_field, options_of, parsed_spec
from genenv.errors import DataError
from genenv.files import write_whole
from genenv.seeding import generator
from genenv.simulator.policy import TaskSource, names, spec_schemas
from genenv.simulator.settings import SimulatorConfig
from genenv.simulator.source import given
from genenv.types import Context, Feedback, Generation, Json, JsonObject, Rejection, Seed

STATE = "search.json"
"""The file of a search in a checkpoint."""

Floats = NDArray[np.float64]
StateT = TypeVar("StateT", bound=BaseModel)


class Slot(NamedTuple):
    """A place of a round: what may be written there, and its source of randomness."""

    options: Options
    rng: random.Random

    def anew(self) -> JsonObject:
        """Draw parameters uniformly."""
        return at_random(self.options, self.rng)

    def kept(self, level: JsonObject) -> JsonObject:
        """Return a level with random values where it does not fit."""
        return fitted(level, self.options, self.rng)

    def changed(self, level: JsonObject) -> JsonObject:
        """Return an edit of a level."""
        return edited(level, self.options, self.rng)


class WholeSlot(NamedTuple):
    """The same for levels that are whole specs (`simulator.writes = "spec"`)."""

    env: Environment
    seed: Seed
    rng: random.Random

    def anew(self) -> JsonObject:
        """Draw a level."""
        return self.env.variation(self.seed, self.rng)

    def kept(self, level: JsonObject) -> JsonObject:
        """Return the level, or a new one if it is of another system, before a shift; it fits every seed."""
        fits = not isinstance(parsed_spec(base_spec(self.env), level), Rejection)
        return level if fits else self.anew()

    def changed(self, level: JsonObject) -> JsonObject:
        """Return the environment's edit of a level; whether there are any is asked before a run."""
        return cast(HasEdits, self.env).edited(self.kept(level), self.rng)


AnySlot = Slot | WholeSlot
Draw = tuple[JsonObject, bool]
"""Parameters, and whether rollouts only score them (`Generation.scored_only`)."""


class ParameterSearch(TaskSource, Generic[StateT]):
    """Base class: a subclass writes the specs of a round from its state, and `learn` changes the state."""

    name: ClassVar[str]
    reads: ClassVar[Set[str]] = frozenset()
    """Names of other searches whose state this one can go on with."""

    def __init__(self, state: StateT, config: SimulatorConfig, *, seed: int) -> None:
        super().__init__(config, seed=seed)
        self.learns = config.train
        self._learned, self._published = state, state.model_copy(deep=True)

    def _written(self, slots: Sequence[AnySlot], number: int) -> Iterator[Draw]:
        """Yield the parameters of each slot of a round, by the published state."""
        raise NotImplementedError

    async def propose(self, env: Environment, contexts: Sequence[Context]) -> list[Generation]:
        """Write `variations` sets of parameters for each context."""
        wanted = list(names(contexts, self.config.variations))
        rngs = [generator(self.seed, self.name, name) for _, name in wanted]
        slots: list[AnySlot]
        if self.config.writes == "spec":
            slots = [WholeSlot(env, one.seed, rng) for (one, _), rng in zip(wanted, rngs, strict=True)]
        else:
            options = {name: options_of(schema) for name, schema in spec_schemas(env, contexts).items()}
            slots = [Slot(options[one.id], rng) for (one, _), rng in zip(wanted, rngs, strict=True)]
        written = self._written(slots, contexts[0].round if contexts else 0)
        return [
            given(context, name, spec, scored_only=scored_only)
            for (context, name), (spec, scored_only) in zip(wanted, written, strict=True)
        ]

    async def publish(self) -> None:
        """Write by what was learned from now on."""
        self._published = self._learned.model_copy(deep=True)

    async def save(self, folder: Path) -> None:
        """Write the state into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        state = self._learned.model_dump(mode="json")
        named = {"source": self.name, "writes": self.config.writes, "state": state}
        write_whole(folder / STATE, json.dumps(named, allow_nan=False))

    async def load(self, folder: Path) -> None:
        """Restore the state that `save` wrote. A branch of a run that searched otherwise starts anew.

        Raises:
            DataError: the state is damaged.
        """
        if not (path := folder / STATE).exists():
            return
        try:
            saved = cast(Json, json.loads(path.read_text(encoding="utf-8")))
            if isinstance(saved, Mapping) and "source" in saved:  # earlier versions did not name the search
                known = saved["source"] in {self.name, *self.reads}
                if not known or saved.get("writes", self.config.writes) != self.config.writes:
                    return
                saved = saved.get("state")
            self._learned = type(self._learned).model_validate(saved)
        except ValueError as error:  # of JSON, of UTF-8, or of Pydantic
            raise DataError(f"{path} is damaged: it is no state of simulator.source {self.name!r}") from error
        await self.publish()


class Decision(NamedTuple):
    """The choice of one parameter's value."""

    parameter: str
    values: tuple[Json, ...]
    """The values that the earlier parameters allow."""
    chosen: Json

    @property
    def row(self) -> str:
        """The name of the softmax that decides it."""
        return json.dumps([self.parameter, *self.values])


def decisions(options: Options, parameters: JsonObject) -> list[Decision]:
    """Return the decisions that set these parameters; those without an alternative are left out."""
    found: list[Decision] = []

    def pick(name: str, values: Sequence[Json]) -> Json:
        found.append(Decision(name, tuple(values), parameters[name]))
        return parameters[name]

    by_field(options, pick)
    return [one for one in found if len(one.values) > 1]


class _Softmaxes(BaseModel, extra="forbid"):
    """Softmaxes by row. A row that was never updated is uniform."""

    logits: dict[str, list[float]] = Field(default_factory=dict)

    def row(self, decision: Decision) -> Floats:
        """Return the log-probabilities of a decision's values. Nats."""
        z = np.asarray(self.logits.get(decision.row, [0.0] * len(decision.values)))
        return z - np.logaddexp.reduce(z)

    def drawn(self, options: Options, rng: random.Random) -> JsonObject:
        """Draw parameters field by field."""

        def pick(name: str, values: Sequence[Json]) -> Json:
            chances = np.exp(self.row(Decision(name, tuple(values), None)))
            return rng.choices(values, chances.tolist())[0]

        return by_field(options, pick)


SoftmaxesT = TypeVar("SoftmaxesT", bound=_Softmaxes)


class _FromSoftmaxes(ParameterSearch[SoftmaxesT]):
    """A search that draws from softmaxes, and with the chance `simulator.explore` uniformly."""

    def _written(self, slots: Sequence[AnySlot], number: int) -> Iterator[Draw]:
        for slot in cast(Sequence[Slot], slots):  # the settings refuse whole specs
            uniform = slot.rng.random() < self.config.explore
            yield (slot.anew() if uniform else self._published.drawn(slot.options, slot.rng)), False

    async def decision_metrics(
        self, generations: Sequence[Generation], schemas: Mapping[str, JsonObject]
    ) -> Mapping[str, float]:
        """Return the mean entropy of the round's decisions and their KL to uniform draws. Nats a decision."""
        made = [
            (self._published.row(decision), len(decision.values))
            for one in generations
            for decision in _decided(one, schemas)
        ]
        if not made:
            return {}
        entropies = [_entropy(row) for row, _ in made]
        distances = [math.log(size) - entropy for (_, size), entropy in zip(made, entropies, strict=True)]
        return {
            "simulator/decision_entropy": fmean(entropies),
            "simulator/decision_kl": fmean(distances),
        }


class TableState(_Softmaxes):
    """The softmaxes of a table and the moments of its optimizer, by row."""

    first: dict[str, list[float]] = Field(default_factory=dict)
    second: dict[str, list[float]] = Field(default_factory=dict)
    steps: int = 0


class ParameterTable(_FromSoftmaxes[TableState]):
    """`table`: softmaxes over the parameters instead of a model, trained by reward-weighted regression.

        L = sum_i w_i sum_t -log pi(y_it) / sum_i w_i T_i + kl_coefficient * mean KL(pi || uniform)

    t runs over the decisions of spec i, T_i is their number, and the weights w_i are those of the model's
    update (`curriculum.rwr_lambda`, filter, rewards). Adam takes steps of `simulator.batch` specs with
    `simulator.lr` and `simulator.betas`. There is no cap on the KL of an update.
    """

    name = "table"

    def __init__(self, config: SimulatorConfig, *, seed: int) -> None:
        super().__init__(TableState(), config, seed=seed)

    async def learn(
        self, env: Environment, feedback: Feedback, *, round_: int, rounds: int
    ) -> Mapping[str, float]:
        """Take the steps of a round; return their metrics."""
        config = self.config
        data = [
            (sample.weight, _decided(sample.generation, feedback.schemas))
            for sample in feedback.samples
            if sample.weight > 0
        ]
        data = [(weight, made) for weight, made in data if made]
        if not data:
            return {"simulator/steps": 0.0, "simulator/skipped_updates": 1.0}
        steps = -(-len(data) // config.batch)
        scale = math.fsum(weight * len(made) for weight, made in data) / steps
        rate = config.lr * lr_scale(config.lr_schedule, round_, rounds)
        rng = generator(self.seed, "simulator-update", round_)
        measured: list[dict[str, float]] = []
        for _ in range(config.epochs):
            for part in evenly(rng.sample(data, len(data)), steps):
                measured.append(self._step([(weight / scale, made) for weight, made in part], rate))
        means = {name: fmean(one[name] for one in measured) for name in measured[0]}
        return {**means, "simulator/steps": float(len(measured)), "simulator/skipped_updates": 0.0}

    def _step(self, data: Sequence[tuple[float, Sequence[Decision]]], rate: float) -> dict[str, float]:
        """Take one step on weighted decisions; return the loss, the KL and the norm of the gradient."""
        made = [(weight, decision) for weight, own in data for decision in own]
        gradients: dict[str, Floats] = {}
        loss, kl = 0.0, 0.0
        for weight, decision in made:
            row_V = self._learned.row(decision)
            p_V, place = np.exp(row_V), decision.values.index(decision.chosen)
            surplus_V = row_V + _entropy(row_V)  # of log p(v) over its mean; of log p / uniform as well
            kl += (math.log(len(p_V)) - _entropy(row_V)) / len(made)
            loss -= weight * float(row_V[place])
            own_V = weight * p_V + self.config.kl_coefficient / len(made) * p_V * surplus_V
            own_V[place] -= weight
            gradients[decision.row] = gradients.get(decision.row, np.zeros(len(p_V))) + own_V
        self._adam(gradients, rate)
        norm = math.sqrt(sum(float(one @ one) for one in gradients.values()))
        total = loss + self.config.kl_coefficient * kl
        return {"simulator/loss": total, "simulator/kl": kl, "simulator/grad_norm": norm}

    def _adam(self, gradients: Mapping[str, Floats], rate: float) -> None:
        """Move the logits by Adam (Kingma & Ba, arXiv:1412.6980). Rows without a gradient stay."""
        state, (beta1, beta2) = self._learned, self.config.betas
        state.steps += 1
        for row, gradient in gradients.items():
            zeros = [0.0] * len(gradient)
            first = beta1 * np.asarray(state.first.get(row, zeros)) + (1 - beta1) * gradient
            second = beta2 * np.asarray(state.second.get(row, zeros)) + (1 - beta2) * gradient**2
            way = first / (1 - beta1**state.steps)
            way /= np.sqrt(second / (1 - beta2**state.steps)) + 1e-8
            logits = np.asarray(state.logits.get(row, zeros)) - rate * way
            state.logits[row], state.first[row] = logits.tolist(), first.tolist()
            state.second[row] = second.tolist()


_LEAST_P = 1e-12
"""The least probability of a value, so that its logarithm stays finite."""


class CrossEntropy(_FromSoftmaxes[_Softmaxes]):
    """`cem`: the cross-entropy method (de Boer et al. 2005, A tutorial on the cross-entropy method).

        p <- (1 - smoothing) p + smoothing * frequencies in the elite

    The elite are the specs of the round with the highest rewards. Rejected specs have the reward 0.
    """

    name = "cem"

    def __init__(self, config: SimulatorConfig, *, seed: int) -> None:
        super().__init__(_Softmaxes(), config, seed=seed)

    async def learn(
        self, env: Environment, feedback: Feedback, *, round_: int, rounds: int
    ) -> Mapping[str, float]:
        """Move the probabilities towards the elite."""
        smoothing = self.config.search.smoothing
        if not feedback.scored:
            return {"simulator/skipped_updates": 1.0}
        weights = elite([one.reward for one in feedback.scored], self.config.search.elite_share)
        counts: dict[str, Floats] = {}
        made: dict[str, Decision] = {}
        for one, weight in zip(feedback.scored, weights, strict=True):
            for decision in _decided(one.generation, feedback.schemas) if weight else ():
                row = decision.row
                counts.setdefault(row, np.zeros(len(decision.values)))
                counts[row][decision.values.index(decision.chosen)] += weight
                made[row] = decision
        for row, counts_V in counts.items():
            old_V = np.exp(self._learned.row(made[row]))
            p_V = (1 - smoothing) * old_V + smoothing * counts_V / counts_V.sum()
            self._learned.logits[row] = np.log(np.maximum(p_V, _LEAST_P)).tolist()
        return {"simulator/skipped_updates": 0.0}


def elite(rewards: Sequence[float], share: float) -> list[float]:
    """Return the weight of each spec in the elite: 1 inside, 0 outside.

    Specs that tie at its edge share the places that are left. This is the mean over random choices among
    them, so if all rewards agree, all specs have the same weight.

    Args:
        rewards: at least one.
        share: of the specs, rounded up to a whole number.
    """
    places = math.ceil(share * len(rewards))
    least = sorted(rewards, reverse=True)[places - 1]
    above = sum(reward > least for reward in rewards)
    at_edge = (places - above) / rewards.count(least)
    return [1.0 if reward > least else at_edge if reward == least else 0.0 for reward in rewards]


class _Level(BaseModel, extra="forbid"):
    """Parameters in a buffer."""

    score: float = Field(ge=0, allow_inf_nan=False)
    """Mean reward of their specs, in [0, 1]; with `plr` and `accel` 0 for one that the gate rejected."""
    round: int
    """The round of these rollouts."""


class BufferState(BaseModel, extra="forbid"):
    """The buffer of a search: levels by their parameters, as JSON."""

    levels: dict[str, _Level] = Field(default_factory=dict)


BufferT = TypeVar("BufferT", bound=BufferState)


class _Buffered(ParameterSearch[BufferT]):
    """A search that keeps levels in a buffer, as sets of parameters. Each replay draws the task's text anew.

    The score of a level is the reward of its tasks: with `curriculum.env_reward = "learnability"` that is
    4 p (1 - p) of their success rate p.
    """

    def _earned(self, feedback: Feedback) -> dict[str, list[tuple[float, bool | None]]]:
        """Return the reward of each task by its parameters, and whether its outcomes were mixed.

        None instead: the gate rejected it. Tasks without a valid rollout are left out.
        """
        found: dict[str, list[tuple[float, bool | None]]] = {}
        for one in feedback.scored:
            if one.rate is None or one.mixed is not None:
                found.setdefault(one.generation.text, []).append((one.reward, one.mixed))
        return found


class ReplayedLevels(_Buffered[BufferState]):
    """`plr`: replays parameters whose tasks had mixed outcomes.

    Prioritized Level Replay (Jiang et al., arXiv:2010.03934), with the values that ACCEL's authors use for
    mazes, which are those of JaxUED (examples/maze_plr.py). With the chance `replay_probability` a level of
    the buffer is replayed; otherwise parameters are drawn uniformly. The chance of a level is

        P = (1 - staleness) P_S + staleness P_C    P_S ~ rank(score)^(-1 / rank_temperature), P_C ~ its age

    With `train_on_new = false` rollouts of parameters that are not replayed only score them: robust PLR
    (Jiang et al., arXiv:2110.02439).

    Differences: a level is a set of parameters, whose text is drawn anew each time, because the gate rejects
    copies. With `simulator.writes = "spec"` it is a whole spec, and the same text comes again, which needs
    `curriculum.novelty_threshold = 0`. Its score is the reward of its tasks instead of the positive value
    loss, and only levels with mixed outcomes are kept. Each place of a round is drawn by itself, not the
    round as a whole, and replays begin with the first level, not with a half-filled buffer.
    """

    name = "plr"
    reads = frozenset({"accel"})
    edits: ClassVar[bool] = False
    """Whether an edit of each replayed level takes the next place of the round."""

    def __init__(self, config: SimulatorConfig, *, seed: int) -> None:
        super().__init__(BufferState(), config, seed=seed)

    def _written(self, slots: Sequence[AnySlot], number: int) -> Iterator[Draw]:
        search, levels = self.config.search, list(self._published.levels)
        weights, scored_only = self._chances(self._published.levels, number), not search.train_on_new
        parent: JsonObject | None = None
        for slot in slots:
            if parent is not None:
                yield slot.changed(parent), scored_only
                parent = None
            elif levels and slot.rng.random() < search.replay_probability:
                level = slot.kept(json.loads(slot.rng.choices(levels, weights)[0]))
                yield level, False
                parent = level if self.edits else None
            else:
                yield slot.anew(), scored_only

    def _chances(self, levels: Mapping[str, _Level], number: int) -> list[float]:
        """Return the chance of each level to be replayed in a round, in order."""
        search = self.config.search
        ranked = sorted(levels, key=lambda name: -levels[name].score)
        scores = {name: (1 + place) ** (-1 / search.rank_temperature) for place, name in enumerate(ranked)}
        ages = {name: float(max(0, number - level.round)) for name, level in levels.items()}
        by_score, by_age = math.fsum(scores.values()), math.fsum(ages.values())
        stale = search.staleness if by_age else 0.0
        return [
            (1 - stale) * scores[name] / by_score + (stale * ages[name] / by_age if stale else 0.0)
            for name in levels
        ]

    async def learn(
        self, env: Environment, feedback: Feedback, *, round_: int, rounds: int
    ) -> Mapping[str, float]:
        """Add and update levels whose tasks had mixed outcomes; drop those whose specs all had none."""
        levels = self._learned.levels
        for name, earned in self._earned(feedback).items():
            if any(mixed for _, mixed in earned):
                levels[name] = _Level(score=fmean(reward for reward, _ in earned), round=round_)
            else:
                levels.pop(name, None)
        chances = dict(zip(levels, self._chances(levels, round_ + 1), strict=True))
        for name in sorted(chances, key=lambda name: -chances[name])[self.config.search.buffer_size :]:
            del levels[name]
        return {}


class EditedLevels(ReplayedLevels):
    """`accel`: replays parameters whose tasks had mixed outcomes, and edits them.

    ACCEL (Parker-Holder et al., arXiv:2203.01302) with the authors' values for mazes: PLR, and an edit of
    each replayed level takes the next place of the round. As published, rollouts of new and edited levels
    only score them; that is `train_on_new = false`. By default the agent trains on them too.

    Differences: those of `plr`, and an edit changes one parameter. With `simulator.writes = "spec"` the
    environment edits the spec (`HasEdits`).
    """

    name = "accel"
    reads = frozenset({"plr"})
    edits = True


class LearnableState(BufferState):
    """The buffer of SFL, and the levels that are being scored for the next one."""

    scored: dict[str, list[float]] = Field(default_factory=dict)
    """Rewards by parameters, since the first round of this period."""


class LearnableLevels(_Buffered[LearnableState]):
    """`sfl`: trains on the parameters with the highest rewards among many that it has rolled out for this.

    Sampling for Learnability (Rutherford et al., arXiv:2408.15099). The first `scored_rounds` of every
    `period` rounds draw parameters uniformly, and their rollouts only score them. The share `elite_share`
    with the highest scores is the new buffer. In the other rounds a task has parameters of the buffer, each
    with the same chance, with the chance `buffer_share`, and otherwise uniformly drawn ones.

    As published, a level is kept even if none or all of its rollouts succeeded, if there are not enough
    others. Rejected specs have no score. The authors score 5,000 levels (JaxNav) before every 50 updates,
    43% of all environment steps, and keep 100. Here the scoring rollouts are a fixed share of the rounds, so
    that a run has as many rollouts as one of another source.
    """

    name = "sfl"

    def __init__(self, config: SimulatorConfig, *, seed: int) -> None:
        super().__init__(LearnableState(), config, seed=seed)

    def _written(self, slots: Sequence[AnySlot], number: int) -> Iterator[Draw]:
        search, levels = self.config.search, list(self._published.levels)
        scores = self._place(number) < search.scored_rounds
        for slot in slots:
            if not scores and levels and slot.rng.random() < search.buffer_share:
                yield slot.kept(json.loads(slot.rng.choice(levels))), False
            else:
                yield slot.anew(), scores

    async def learn(
        self, env: Environment, feedback: Feedback, *, round_: int, rounds: int
    ) -> Mapping[str, float]:
        """Keep the scores of a round that only scores; after the last one of a period, make the buffer."""
        search, state, place = self.config.search, self._learned, self._place(round_)
        if place == 0:
            state.scored = {}
        if place >= search.scored_rounds:
            return {}
        for name, earned in self._earned(feedback).items():
            if rewards := [reward for reward, mixed in earned if mixed is not None]:
                state.scored.setdefault(name, []).extend(rewards)
        if place == search.scored_rounds - 1:
            means = {name: fmean(rewards) for name, rewards in state.scored.items()}
            best = sorted(means, key=lambda name: -means[name])[: math.ceil(search.elite_share * len(means))]
            state.levels = {name: _Level(score=means[name], round=round_) for name in best}
            state.scored = {}
        return {}

    def _place(self, number: int) -> int:
        """Return the place of a round in its period, from 0."""
        return (number - 1) % self.config.search.period


def fitted(parameters: JsonObject, options: Options, rng: random.Random) -> JsonObject:
    """Return parameters with a random value for each that the options, or an earlier parameter, exclude."""
    return by_field(
        options,
        lambda name, values: parameters[name] if parameters.get(name) in values else rng.choice(values),
    )


def edited(parameters: JsonObject, options: Options, rng: random.Random) -> JsonObject:
    """Return parameters with one of them changed: a number to a neighbor, another value to any other.

    Later parameters that no longer fit are drawn at random.
    """
    parameters = fitted(parameters, options, rng)
    if not (open_ := decisions(options, parameters)):
        return parameters
    changed = rng.choice(open_)

    def pick(name: str, values: Sequence[Json]) -> Json:
        if name == changed.parameter:
            return rng.choice(_others(values, changed.chosen))
        return parameters[name] if parameters[name] in values else rng.choice(values)

    return by_field(options, pick)


def _others(values: Sequence[Json], old: Json) -> Sequence[Json]:
    """Return the values next to a number; of other types all values but the old one."""
    place = values.index(old)
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return [*values[max(0, place - 1) : place], *values[place + 1 : place + 2]]
    return [*values[:place], *values[place + 1 :]]


def _decided(one: Generation, schemas: Mapping[str, JsonObject]) -> list[Decision]:
    return decisions(options_of(schemas[one.context_id]), cast(JsonObject, json.loads(one.text)))


def _entropy(row_V: Floats) -> float:
    """Return the entropy of log-probabilities. Nats."""
    return -float(np.exp(row_V) @ row_V)


SEARCHES: Mapping[str, type[ParameterTable | CrossEntropy | ReplayedLevels | LearnableLevels]] = {
    search.name: search
    for search in (ParameterTable, CrossEntropy, ReplayedLevels, EditedLevels, LearnableLevels)
}
"""The searches of `simulator.source`, by name."""
