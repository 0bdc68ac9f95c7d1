# pyright: standard
"""The backend `ppo`: the agent is a policy network with a value network, for the environment `control`.

    action ~ N(mean(s), (temperature * std)^2), or softmax(logits(s) / temperature) over `System.choices`
    A_t = sum_k (gamma * gae_lambda)^k (c r_{t+k} + gamma V(s_{t+k+1}) - V(s_{t+k}))        (arXiv:1506.02438)
    c = T_max / (1 + gamma + ... + gamma^(T_max - 1)): discounted returns are near 1, as the first values are
    loss = loss of `agent.loss` (PPO's clipped ratio, arXiv:1707.06347) + value_coefficient (V(s_t) - R_t)^2

The sampler steps all requests that wait at the same time in one simulation. A completion has one token per
action, and its text is the action in thousandths. The trainer runs the physics again for the states; so a
checkpoint has only weights, and stored trajectories are those of any other policy.

Shapes: N = trajectories, T = steps, D = observed numbers, K = outputs of the policy, M = weighted tokens.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from genenv.algorithms.datum import Datum, Objective
from genenv.algorithms.settings import Moments
from genenv.backends.base import Opened, Role
from genenv.backends.local.losses import Tokens, token_losses
from genenv.backends.local.optimizer import Optimizer, read_version, readable, write_version
from genenv.backends.scripted import END, ScriptedSampler
from genenv.backends.settings import PolicyConfig, PpoConfig, SamplingConfig
from genenv.chat.assistant import ChatMessage, Reply, Talk
from genenv.environments.base import Environment
from genenv.environments.control.simulation import (
    MOST,
    UNIT,
    Level,
    Simulation,
    read_actions,
    to_unit,
)
from genenv.environments.control.simulation import written as text_of
from genenv.environments.control.systems import System, find_system
from genenv.errors import ContextOverflow, RolloutError, UpdateSkipped, UsageError
from genenv.progress import advance
from genenv.sampling import COLDEST, Completion, SampleRequest, WaitingRequests, blocking, sampling_params
from genenv.seeding import stream
from genenv.types import JsonObject, Message

FIRST = END + 1 + MOST
"""Token of the action 0; an action of k thousandths is token `FIRST` + k."""
WEIGHTS = "policy.safetensors"


class PolicyNetwork(nn.Module):
    """The distribution of the action in a state, and the value of a state, by networks of two tanh layers.

    A subclass says what the outputs of the policy (K numbers for a state) mean.
    """

    def __init__(self, observed: int, config: PpoConfig, *, outputs: int) -> None:
        super().__init__()
        self.mean = _network(observed, config.hidden, outputs, gain=0.01)
        self.value = _network(observed, config.hidden, 1, gain=1.0)

    def of(self, outputs: Tensor, temperature: float | Tensor) -> torch.distributions.Distribution:
        """Return the distribution of the action for [M, K] outputs; the temperature is one number or [M]."""
        raise NotImplementedError

    def noise(self, rng: np.random.Generator, steps: int) -> np.ndarray:
        """Return the random numbers of a trajectory, [T] or [T, K]."""
        raise NotImplementedError

    def pick(self, outputs: Tensor, noise: np.ndarray, temperature_N: np.ndarray) -> np.ndarray:
        """Return [N] actions by the noise of a step, not rounded; at temperature 0 the most probable ones."""
        raise NotImplementedError

    def at(self, states: Tensor, temperature: float | Tensor) -> torch.distributions.Distribution:
        """Return the distribution of the action in each of [M] states."""
        return self.of(self.mean(states), temperature)

    def logprobs(self, states: Tensor, actions: Tensor, temperature: float | Tensor) -> Tensor:
        """Return [M] log-densities of actions. Nats."""
        return self.at(states, temperature).log_prob(actions)


class GaussianPolicy(PolicyNetwork):
    """The action is any number. Its standard deviation is the same in every state."""

    def __init__(self, observed: int, config: PpoConfig) -> None:
        super().__init__(observed, config, outputs=1)
        self.log_std = nn.Parameter(torch.tensor(math.log(config.initial_std)))

    def of(self, outputs: Tensor, temperature: float | Tensor) -> torch.distributions.Normal:
        """See `PolicyNetwork`."""
        std = self.log_std.exp() * temperature
        return torch.distributions.Normal(outputs[:, 0], std, validate_args=False)

    def noise(self, rng: np.random.Generator, steps: int) -> np.ndarray:
        """See `PolicyNetwork`."""
        return rng.standard_normal(steps)

    def pick(self, outputs: Tensor, noise: np.ndarray, temperature_N: np.ndarray) -> np.ndarray:
        """See `PolicyNetwork`."""
        return outputs[:, 0].double().numpy() + self.log_std.exp().item() * temperature_N * noise


class ChoicePolicy(PolicyNetwork):
    """The action is one of K numbers (`System.choices`); the outputs are logits."""

    def __init__(self, observed: int, config: PpoConfig, choices: Sequence[float]) -> None:
        super().__init__(observed, config, outputs=len(choices))
        self.choices = torch.tensor(choices)

    def of(self, outputs: Tensor, temperature: float | Tensor) -> _Choice:
        """See `PolicyNetwork`."""
        return _Choice(self.choices, outputs / torch.as_tensor(temperature).reshape(-1, 1))

    def noise(self, rng: np.random.Generator, steps: int) -> np.ndarray:
        """See `PolicyNetwork`."""
        return rng.gumbel(size=(steps, len(self.choices)))

    def pick(self, outputs: Tensor, noise: np.ndarray, temperature_N: np.ndarray) -> np.ndarray:
        """See `PolicyNetwork`: argmax(logits + temperature * Gumbel noise), a draw from the softmax."""
        scores_NK = outputs.double().numpy() + temperature_N[:, None] * noise
        return self.choices.double().numpy()[scores_NK.argmax(1)] + 0 * scores_NK.sum(1)  # NaN stays NaN


class _Choice(torch.distributions.Categorical):
    """A categorical distribution over numbers."""

    def __init__(self, choices: Tensor, logits: Tensor) -> None:
        super().__init__(logits=logits, validate_args=False)
        self.choices = choices

    def log_prob(self, value: Tensor) -> Tensor:
        """Return [M] log-probabilities of numbers; of any other number, those of the nearest choice."""
        return super().log_prob((value[:, None] - self.choices).abs().argmin(1))


def _network(observed: int, hidden: int, outputs: int, *, gain: float) -> nn.Sequential:
    """Return a network; weights are orthogonal, and `gain` is that of the last layer."""
    layers: list[nn.Module] = []
    shapes = (observed, hidden, 2**0.5), (hidden, hidden, 2**0.5), (hidden, outputs, gain)
    for width_in, width, scale in shapes:
        linear = nn.Linear(width_in, width)
        nn.init.orthogonal_(linear.weight, scale)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class ActionSampler(ScriptedSampler):
    """Samples whole trajectories in closed loop (implements `Sampler`). Prompts are bytes."""

    def __init__(self, system: System, network: PolicyNetwork, *, context_tokens: int) -> None:
        super().__init__(lambda prompt, rng: "", context_tokens=context_tokens)
        self.system, self.network, self.version = system, network, 0
        self._waiting = WaitingRequests(self._sampled)

    def encode_reply(self, text: str, tools: Sequence[object] = ()) -> tuple[int, ...]:
        """Return one token for each number of a trajectory, and the end token; of other text the bytes."""
        actions = read_actions(text)
        if actions is None:
            return super().encode_reply(text)
        return (*(FIRST + to_unit(one) for one in actions), END)

    async def sample(self, request: SampleRequest) -> Completion:
        """Sample the trajectory of a level; requests that wait at the same time are simulated together.

        Raises:
            RolloutError: the prompt has no level of this system, or the network returned NaN.
        """
        _level(self.system, request.prompt_ids)  # before it can spoil a batch
        if len(request.prompt_ids) + request.max_tokens > self.context_tokens:
            raise RolloutError("the prompt leaves no room in the context window")
        return await self._waiting.sample(request)

    @torch.no_grad()
    def _sampled(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        simulation = Simulation(self.system, [_level(self.system, one.prompt_ids) for one in requests])
        room_N = np.array([one.max_tokens - 1 for one in requests])  # the end token has a place as well
        steps = max(1, min(self.system.steps, int(room_N.max())))
        temperature_N = np.array([one.temperature for one in requests])
        rngs = [np.random.default_rng(one.stream) for one in requests]
        noise_NT = np.stack([self.network.noise(rng, steps) for rng in rngs])
        spread_N = torch.from_numpy(np.maximum(temperature_N, 1e-3).astype(np.float32))
        lengths_N, taken = np.zeros(len(requests), dtype=int), list[np.ndarray]()
        logprobs = list[np.ndarray]()
        for t in range(steps):
            outputs = self.network.mean(torch.from_numpy(simulation.observe()))
            wanted_N = self.network.pick(outputs, noise_NT[:, t], temperature_N)
            if not np.isfinite(wanted_N).all():
                raise RolloutError(_NOT_FINITE)
            ids_N = np.clip(np.rint(wanted_N * UNIT), -MOST, MOST).astype(int)
            actions = torch.from_numpy((ids_N / UNIT).astype(np.float32))
            logprobs.append(self.network.of(outputs, spread_N).log_prob(actions).numpy())
            taken.append(ids_N)
            lengths_N += ~simulation.done
            simulation.step(ids_N / UNIT)
            if simulation.done.all():
                break
        ids_NT, logprobs_NT = np.stack(taken, 1).tolist(), np.stack(logprobs, 1).tolist()
        advance(tokens=int(lengths_N.sum()))
        return [
            self._completion(ids[:length], own[:length], finished=finished)
            for ids, own, length, finished in zip(
                ids_NT,
                logprobs_NT,
                np.minimum(lengths_N, room_N).tolist(),
                (simulation.done & (lengths_N <= room_N)).tolist(),
                strict=True,
            )
        ]

    def _completion(self, ids: Sequence[int], logprobs: Sequence[float], *, finished: bool) -> Completion:
        """Return a trajectory as a completion. Its end is not sampled, as it follows from the physics."""
        end = (END,) if finished else ()
        return Completion(
            token_ids=(*(FIRST + one for one in ids), *end),
            logprobs=(*logprobs, *(0.0,) * len(end)),
            text=text_of([one / UNIT for one in ids]),
            finished=finished,
            forced=range(len(ids), len(ids) + 1),
            version=self.version,
        )


_NOT_FINITE = (
    "the policy network returned a number that is not finite; committed rounds are kept: continue with "
    "--resume and a lower agent.lr"
)


def _level(system: System, prompt_ids: Sequence[int]) -> Level:
    """Return the level of a prompt.

    Raises:
        RolloutError: there is none of this system.
    """
    try:
        level = Level.read(bytes(one for one in prompt_ids if one < END).decode(errors="replace"))
    except ValueError as error:
        raise RolloutError(f"the policy network cannot act: {error}") from error
    if find_system(level.system) is not system or level.physics.keys() != system.parameters.keys():
        raise RolloutError(f"the task is one of {level.system}, but the network controls {system.name}")
    return level


@dataclass(slots=True)
class _Trajectory:
    """A completion as the trainer sees it."""

    states_TD: Tensor
    actions_T: Tensor
    rewards_T: np.ndarray
    returns_T: Tensor | None = None
    """Targets of the value network; None where no advantages were computed."""


Key = tuple[tuple[int, ...], tuple[int, ...]]


class PpoTrainer:
    """Trains a policy network (implements `Trainer` and `Critic`)."""

    def __init__(self, sampler: ActionSampler, role: Role, config: PpoConfig) -> None:
        self.sampler, self.config = sampler, config
        self.network = copy.deepcopy(sampler.network)
        self.reference = copy.deepcopy(self.network).requires_grad_(False) if role.reference else None
        self.optimizer = Optimizer(list(self.network.named_parameters()), role.optimizer)
        self._known: dict[Key, _Trajectory] = {}
        self._watched: tuple[Tensor, torch.distributions.Distribution, float] | None = None

    def _trajectories(self, data: Sequence[Datum]) -> list[_Trajectory]:
        """Return the states of completions, by the physics. They are kept until the next `publish`."""
        keys = [(datum.prompt_ids, datum.completion_ids) for datum in data]
        new = [key for key in dict.fromkeys(keys) if key not in self._known]
        if new:
            system = self.sampler.system
            actions = [[(one - FIRST) / UNIT for one in ids if one != END] for _, ids in new]
            simulation = Simulation(system, [_level(system, prompt) for prompt, _ in new])
            longest = max(map(len, actions))
            actions_NT = np.array([[*own, *(0.0,) * (longest - len(own))] for own in actions])
            states, rewards = [], []
            for t in range(longest):
                states.append(simulation.observe())
                rewards.append(simulation.step(actions_NT[:, t]))
            states_NTD, rewards_NT = np.stack(states, 1), np.stack(rewards, 1)
            for i, (key, own) in enumerate(zip(new, actions, strict=True)):
                self._known[key] = _Trajectory(
                    torch.from_numpy(states_NTD[i, : len(own)]),
                    torch.tensor(own, dtype=torch.float32),
                    rewards_NT[i, : len(own)],
                )
        return [self._known[key] for key in keys]

    async def advantages(self, data: Sequence[Datum]) -> list[tuple[float, ...]]:
        """Return [T] advantages by GAE, with mean 0 and variance 1 over all data. See `Critic`."""
        with blocking():
            found = self._trajectories(data)
            gamma, decay = self.config.gamma, self.config.gamma * self.config.gae_lambda
            steps = self.sampler.system.steps
            scale = steps / math.fsum(gamma**t for t in range(steps))
            with torch.no_grad():
                values = self.network.value(torch.cat([one.states_TD for one in found]))[:, 0]
            parts: list[np.ndarray] = []
            for one, value in zip(found, values.split([len(one.actions_T) for one in found]), strict=True):
                value_T = value.numpy()
                error_T = scale * one.rewards_T - value_T
                error_T[:-1] += gamma * value_T[1:]
                for t in range(len(error_T) - 2, -1, -1):
                    error_T[t] += decay * error_T[t + 1]
                one.returns_T = torch.from_numpy((error_T + value_T).astype(np.float32))
                parts.append(error_T)
            together = np.concatenate(parts)
            mean, std = together.mean(), together.std() + 1e-8
        return [
            (*((part - mean) / std).tolist(), *(0.0,) * (len(datum.completion_ids) - len(part)))
            for datum, part in zip(data, parts, strict=True)
        ]

    async def forward_backward(self, data: Sequence[Datum], objective: Objective) -> Mapping[str, float]:
        """Accumulate the gradient of the policy's and of the value's loss. See `Trainer`."""
        tokens = sum(datum.tokens for datum in data)
        if not tokens:
            raise UpdateSkipped("there is no token to learn from")
        with blocking():
            data = [_of_actions(datum) for datum in data]
            found, tokens_M = self._trajectories(data), Tokens.of(data, torch.device("cpu"))
            counts, lengths = [_counts(datum) for datum in data], tokens_M.lengths
            states = torch.cat([one.states_TD[own] for one, own in zip(found, counts, strict=True)])
            actions = torch.cat([one.actions_T[own] for one, own in zip(found, counts, strict=True)])
            temperature = torch.tensor([one.temperature for one in data]).repeat_interleave(
                torch.tensor(lengths)
            )
            policy = self.network.at(states, temperature)
            reference = None
            if self.reference is not None and objective.kl_coefficient:
                reference = self.reference.logprobs(states, actions, temperature)
            entropy = policy.entropy() if objective.entropy_coefficient else None
            loss, sums = token_losses(policy.log_prob(actions), tokens_M, objective, reference, entropy)
            parts = zip(found, counts, states.split(lengths), tokens_M.weight_M.split(lengths), strict=True)
            judged = [
                (own_states, one.returns_T[own], weights)
                for one, own, own_states, weights in parts
                if one.returns_T is not None
            ]
            if judged:  # not demonstrations
                judged_states, returns_M, weight_M = map(torch.cat, zip(*judged, strict=True))
                error_M = (self.network.value(judged_states)[:, 0] - returns_M) ** 2
                loss = loss + self.config.value_coefficient * (error_M * weight_M).sum()
            if not math.isfinite(loss.item()):
                self.optimizer.clear()
                raise UpdateSkipped("the loss is not finite")
            loss.backward()
        advance(tokens=tokens, items=len(data))
        return {name: float(value) for name, value in sums.items()} | {
            "loss": loss.item(),
            "tokens": float(tokens),
        }

    async def step(self, learning_rate: float) -> Mapping[str, float]:
        """Make one step of AdamW. See `Trainer`."""
        return {"grad_norm": self.optimizer.step(learning_rate, keep_before=self._watched is not None)}

    async def watch(self, data: Sequence[Datum]) -> None:
        """Record the distributions of the actions. See `Trainer`."""
        states = torch.cat([one.states_TD for one in self._trajectories(data)])
        temperature = data[0].temperature
        with torch.no_grad():
            self._watched = states, self.network.at(states, temperature), temperature

    async def moved(self) -> float:
        """Return the mean KL of the action's distributions. See `Trainer`."""
        if self._watched is None:
            raise RuntimeError("watch comes before moved")
        states, before, temperature = self._watched
        with torch.no_grad():
            now = self.network.at(states, temperature)
            return torch.distributions.kl_divergence(now, before).mean().item()

    async def shorten(self, fraction: float) -> None:
        """Undo part of the last step. See `Trainer`."""
        self.optimizer.shorten(fraction)

    async def logprobs(
        self, data: Sequence[Datum], *, reference: bool = False, written: Path | None = None
    ) -> list[tuple[float, ...]]:
        """Return log-densities of actions, and 0 for the end token. See `Trainer`."""
        network = (self.reference if reference else None) or self.network
        if written is not None:
            network = copy.deepcopy(self.network)
            _read(network, written / WEIGHTS)
        advance(items=len(data))
        pairs = list(zip(self._trajectories(data), data, strict=True))
        with torch.no_grad():
            own = [network.logprobs(one.states_TD, one.actions_T, datum.temperature) for one, datum in pairs]
        return [
            (*row.tolist(), *(0.0,) * (len(datum.completion_ids) - len(row)))
            for row, datum in zip(own, data, strict=True)
        ]

    async def anchor(self, moments: Moments) -> None:
        """Make the present weights the reference. See `Trainer`."""
        self.optimizer.keep(moments)
        if self.reference is not None:
            self.reference.load_state_dict(self.network.state_dict())

    async def publish(self) -> int:
        """Give the present weights to the sampler. See `Trainer`."""
        self._known.clear()
        self._watched = None
        self.sampler.network.load_state_dict(self.network.state_dict())
        self.sampler.version += 1
        return self.sampler.version

    async def save(self, folder: Path) -> None:
        """Write weights, reference, optimizer and version. See `Trainer`."""
        folder.mkdir(parents=True, exist_ok=True)
        safetensors.torch.save_file(self.network.state_dict(), folder / WEIGHTS)
        if self.reference is not None:
            safetensors.torch.save_file(self.reference.state_dict(), folder / f"reference-{WEIGHTS}")
        self.optimizer.save(folder)
        write_version(folder, self.sampler.version)

    async def load(self, folder: Path) -> None:
        """Restore what `save` wrote. See `Trainer`."""
        _read(self.network, folder / WEIGHTS)
        if self.reference is not None and (folder / f"reference-{WEIGHTS}").exists():  # see `PolicyWeights`
            _read(self.reference, folder / f"reference-{WEIGHTS}")
        self.optimizer.load(folder)
        version = read_version(folder)
        await self.publish()
        self.sampler.version = version


def _read(network: nn.Module, file: Path) -> None:
    """Load the weights of a file.

    Raises:
        DataError: it is damaged, or of another network.
    """
    with readable(file):
        network.load_state_dict(safetensors.torch.load_file(file))


def _of_actions(datum: Datum) -> Datum:
    """Return a datum with weight 0 on the end token; demonstrations have a weight there."""
    if datum.completion_ids[-1:] != (END,) or not datum.weights[-1]:
        return datum
    return replace(datum, weights=(*datum.weights[:-1], 0.0))


def _counts(datum: Datum) -> Tensor:
    """Return [T] flags of the actions with a weight."""
    counts = torch.tensor(datum.weights) > 0
    return counts[: len(counts) - datum.completion_ids.count(END)]


def open_ppo(config: PolicyConfig, roles: Sequence[Role], env: Environment, seed: int) -> Opened:
    """Open a policy network for each agent. A simulator that is a model is opened on the backend `local`.

    Raises:
        UsageError: the environment is not `control`.
    """
    torch.set_num_threads(config.threads or 1)
    agents = [role for role in roles if role.name != "simulator"]
    others = [role for role in roles if role.name == "simulator"]
    samplers = {role.name: _sampler(config, env, seed, role.name) for role in agents}
    rest = Opened(samplers={}, trainers={})
    if others:  # imports transformers and PEFT, which a network does without
        from genenv.backends.local.backend import open_local

        rest = open_local(config, others, env, seed)
    return replace(
        rest,
        samplers={**rest.samplers, **samplers},
        trainers={
            **rest.trainers,
            **{role.name: PpoTrainer(samplers[role.name], role, config.ppo) for role in agents},
        },
        settled=rest.settled or config,
        scores_written=True,
        reply_tokens={name: sampler.system.steps + 1 for name, sampler in samplers.items()},
    )


def _sampler(config: PolicyConfig, env: Environment, seed: int, agent: str) -> ActionSampler:
    """Return a sampler with a new network of an agent for the system of an environment."""
    if env.name != "control":
        raise UsageError(
            f"policy.backend is 'ppo', whose agent writes torques, but tasks of {env.name} are text: set "
            "environment.name to 'control', or another backend"
        )
    level = Level.read(env.held_out()[0].messages[-1].content)
    system = find_system(level.system)
    with torch.random.fork_rng(devices=()):
        of_agent = () if agent == "agent" else (agent,)
        torch.manual_seed(stream(seed, "network", *of_agent) % 2**31)
        observed = Simulation(system, [level]).observe().shape[1]
        network = (
            ChoicePolicy(observed, config.ppo, system.choices)
            if system.choices
            else GaussianPolicy(observed, config.ppo)
        )
    return ActionSampler(system, network, context_tokens=config.context_tokens)


class ActionAssistant:
    """The policy network of a run in evaluations (implements `Assistant` and `Talk`).

    Args:
        config: settings of the run's policies.
        env: the environment of the run.
        folder: the agent in a checkpoint.
        sampling: how actions are sampled.
        name: name in results.
        weights: describes the weights in the summary.

    Raises:
        DataError: the checkpoint is damaged.
    """

    native_tools = False

    def __init__(
        self,
        config: PolicyConfig,
        env: Environment,
        folder: Path,
        sampling: SamplingConfig,
        *,
        name: str,
        weights: JsonObject,
    ) -> None:
        self.name, self._sampling, self._weights = name, sampling, weights
        self._sampler = _sampler(config, env, 0, "agent")
        _read(self._sampler.network, folder / WEIGHTS)

    def concurrency(self, *, many_turns: bool) -> int:
        """Return how many levels are simulated at once."""
        return 1024

    def talk(self, seed: int, *, many_turns: bool = False) -> Talk:
        """Start a new conversation."""

        async def reply(
            messages: Sequence[ChatMessage],
            *,
            tools: Sequence[JsonObject] = (),
            choices: Sequence[str] = (),
            max_tokens: int | None = None,
        ) -> Reply:
            said = [Message(role=one["role"], content=one["content"]) for one in messages]
            ids, window = self._sampler.render(said, first=True), self._sampler.context_tokens
            if len(ids) >= window:
                raise ContextOverflow(f"the level has {len(ids)} tokens, the context window {window}")
            request = SampleRequest(
                prompt_ids=ids,
                max_tokens=min(self._sampling.reply_limit(max_tokens), window - len(ids)),
                stream=stream(seed, "talk"),
                **sampling_params(self._sampling, greedy_below=COLDEST),
            )
            found = await self._sampler.sample(request)
            prompt, tokens = len(request.prompt_ids), len(found.token_ids)
            return Reply(text=found.text, finished=found.finished, prompt_tokens=prompt, tokens=tokens)

        setattr(reply, "native_tools", False)  # noqa: B010 - a function is a `Talk` with it
        return cast(Talk, reply)

    def spending(self) -> JsonObject:
        """Return an empty summary: it costs nothing."""
        return {}

    def describe(self) -> JsonObject:
        """Return the weights, for the summary."""
        return {"kind": "ppo", **self._weights, "context_tokens": self._sampler.context_tokens}
