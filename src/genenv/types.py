"""The data types of genenv: frozen values that flow from a seed to an update. Nothing here knows torch.

Seed --context--> Generation --decode--> Task (or Rejection) --rollout--> Trace; the G traces of one task
are a `Group`, all variations written for one context are a `TaskBatch`, the unit of p_hat.

Shapes: T = tokens of one episode (prompt, completions and environment replies), G = rollouts per task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from genenv.texts import Json as Json
from genenv.texts import JsonObject as JsonObject
from genenv.texts import clean

Role = Literal["system", "user", "assistant", "tool"]


class RejectReason(StrEnum):
    """Why a generation did not become a task. A closed list: each value is also a metric."""

    UNFINISHED = "unfinished"
    """The token limit came before the end of the spec."""
    SYNTAX = "syntax"
    """Not JSON."""
    SCHEMA = "schema"
    """JSON, but not a spec of the environment."""
    INCONSISTENT = "inconsistent"
    """The difficulty fields do not describe the rest of the spec."""
    EXECUTION = "execution"
    """The runtime could not carry out the spec: there is no ground truth."""
    ORACLE_FAILS = "oracle_fails"
    """The spec's own solution does not pass the checker."""
    TRIVIAL = "trivial"
    """An empty or a random solution passes the checker."""
    CHECKS_DISAGREE = "checks_disagree"
    """Two ways of checking the same solution give different verdicts."""
    UNSTATED = "unstated"
    """A literal that the answer needs cannot be read in the task."""
    LEAK = "leak"
    """The task gives its answer away."""
    DUPLICATE = "duplicate"
    """Too close to a task of the archive."""
    HELD_OUT = "held_out"
    """Too close to a held-out task."""


class StopReason(StrEnum):
    """Why an episode ended."""

    DONE = "done"
    """The episode came to its own end."""
    MAX_TURNS = "max_turns"
    """The agent used all its turns."""
    LENGTH = "length"
    """A completion reached the token limit."""
    CONTEXT = "context"
    """The episode no longer fits into the context window."""
    TIMEOUT = "timeout"
    """The episode took longer than its time limit."""
    ERROR = "error"
    """The policy failed to answer."""


_BROKEN = frozenset({StopReason.ERROR, StopReason.TIMEOUT})
"""Ends without a verdict."""


class Origin(StrEnum):
    """Where a task comes from."""

    SEED = "seed"
    GENERATED = "generated"
    HELD_OUT = "held_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: str
    """Lone halves of surrogate pairs, which no tokenizer can read, are replaced."""

    def __post_init__(self) -> None:
        """Keep text that can be encoded."""
        object.__setattr__(self, "content", clean(self.content))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """One item of base data, which the simulator varies."""

    id: str
    environment: str
    spec: JsonObject
    """The environment's spec, as JSON."""
    skills: tuple[str, ...]
    """What the item exercises, e.g. `("calendar", "calls:2", "relative")`; keys of the agent profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the simulator is told: a seed, and how the agent has been doing."""

    id: str
    """Unique in a run, e.g. `r0003-c05`."""
    round: int
    seed: Seed
    messages: tuple[Message, ...]
    """The conversation that the simulator continues with a spec."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What the simulator wrote for a context."""

    id: str
    """Unique in a run, e.g. `r0003-c05-g1`."""
    context_id: str
    prompt_ids: tuple[int, ...] = ()
    """None where the text alone is known, as that of another model; nor are the two below."""
    token_ids: tuple[int, ...] = ()
    """The sampled ids, the end-of-turn token included when it was reached."""
    logprobs: tuple[float, ...] = ()
    """Log-probability of each sampled id, unmasked, at the sampling temperature. Nats. None where it was not
    sampled but drawn at random (`simulator.explore`)."""
    text: str
    finished: bool
    """False when the token limit cut it off."""

    @property
    def drawn(self) -> bool:
        """Whether the policy that learns from it did not sample it."""
        return not self.logprobs


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a generation is not a task."""

    reason: RejectReason
    explanation: str
    """One sentence a person can read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """How a task came to be. Ids of the run's store; None where it does not apply."""

    origin: Origin
    seed_id: str | None = None
    context_id: str | None = None
    generation_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A checked, solvable problem."""

    id: str
    """Unique in a run; for seeds and held-out tasks also stable between runs."""
    environment: str
    skills: tuple[str, ...]
    messages: tuple[Message, ...]
    """What the agent sees first, tool descriptions included."""
    spec: JsonObject
    """The environment's spec; the difficulty fields first."""
    payload: JsonObject
    """What the environment's checker needs: initial state, expected calls, expected outputs."""
    oracle: tuple[str, ...]
    """Assistant replies, one a turn, that solve the task; none where nobody knows any."""
    lineage: Lineage


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a checker says of a trace."""

    reward: float
    """In [0, 1]: GenEnv eq. (1). 1 for a right structured action, or partial credit by the environment."""
    success: bool
    explanation: str
    """One sentence a person can read."""
    readable: bool = True
    """Whether there was something to grade: the replies parse, and what they ask for can be carried out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """A reply that had to be one of some."""

    start: int
    """Place of its first token."""
    replies: tuple[tuple[int, ...], ...]
    """Ids of each, the end-of-turn token included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Tokens of an earlier turn that the policy no longer sees, such as a thought that the template drops."""

    start: int
    end: int
    since: int
    """Tokens from this place on are sampled without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One episode: exactly the ids that were sampled, never re-tokenised."""

    id: str
    task_id: str
    token_ids: tuple[int, ...]  # [T] prompt, completions and environment replies, in order
    sampled: tuple[bool, ...]  # [T] True where the policy chose the token
    logprobs: tuple[float, ...]  # [T] nats at the sampling temperature; 0.0 where the token was not sampled
    prompt_tokens: int
    """Length of the prompt, which all traces of a task share."""
    messages: tuple[Message, ...]
    """What was said after the prompt, in order: the agent's replies, and the environment between them."""
    reward: float
    """In [0, 1], from the environment's checker."""
    success: bool
    explanation: str
    stop_reason: StopReason
    version: int | None = None
    """Of the weights that sampled it; None where that is not known, or nothing was sampled."""
    readable: bool | None = None
    """Whether it parsed, was carried out and graded, rightly or not: a *valid* trace of the paper, which goes
    into D_train. None where that is not known, as in stores of older formats."""
    choices: tuple[Choices, ...] = field(default=(), compare=False, repr=False)
    """Of replies that were held to some. Not stored: rollouts are learned from where they were sampled."""
    left_out: tuple[LeftOut, ...] = field(default=(), compare=False, repr=False)
    """What later turns were sampled without. Not stored, for the same reason."""

    @property
    def replies(self) -> tuple[str, ...]:
        """The agent's text, one a turn."""
        return tuple(message.content for message in self.messages if message.role == "assistant")

    @property
    def response_tokens(self) -> int:
        """How many tokens the policy chose."""
        return sum(self.sampled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One task and its G traces: the unit of a GRPO advantage."""

    task: Task
    traces: tuple[Trace, ...]  # [G]

    @property
    def successes(self) -> int:
        """How many of the traces solved the task: k of GenEnv eq. (2)."""
        return sum(trace.success for trace in self.traces)

    @property
    def valid(self) -> tuple[Trace, ...]:
        """The traces whose episode ran to a verdict; only those count as rollouts."""
        return tuple([trace for trace in self.traces if trace.stop_reason not in _BROKEN])


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A generation and what the gate made of it."""

    generation: Generation
    outcome: Task | Rejection
    novelty: float | None = None
    """1 - similarity to the nearest task of the archive, in [0, 1]; None when it was rejected before that
    was measured."""
    predicted_rate: float | None = None
    """The success rate that a probe predicted, in [0, 1]; None without one. It is not stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBatch:
    """The variations written for one context: the unit of p_hat and R_env (GenEnv eq. 2, 3)."""

    context: Context
    proposals: tuple[Proposal, ...]
    groups: tuple[Group, ...]
    """The rollouts of those proposals that became tasks."""
    p_hat: float | None
    """Successes / rollouts over the whole batch; None when no proposal became a task."""
    env_reward: float
    """R_env in [0, 1]; 0 when no proposal became a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorSample:
    """One weighted generation for the simulator's update."""

    generation: Generation
    weight: float
    """RWR weight in [0, 1]; the weights of an update sum to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A generation and what it has earned by itself."""

    generation: Generation
    reward: float
    """In [0, 1]; 0 for one that is no task."""
    rate: float | None = None
    """The success rate that it came to, found or predicted; None for one that is no task."""
    prompt_ids: tuple[int, ...] | None = None
    """A simulator's prompt that requests this rate; None where no algorithm relabels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How the agent has been doing, per skill: goes into the simulator's context."""

    success: Mapping[str, float] = field(default_factory=dict[str, float])
    """Posterior mean of the success rate, per skill, in [0, 1]."""
    attempts: Mapping[str, float] = field(default_factory=dict[str, float])
    """Decayed number of rollouts behind each rate."""
    overall: float | None = None
    """Success rate over everything recent; None before the first round."""
