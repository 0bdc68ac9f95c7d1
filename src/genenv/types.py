"""The data types of genenv: frozen values that flow from a seed to an update. This module imports no torch.

Seed --context--> Generation --decode--> Task (or Rejection) --rollout--> Trace. The G traces of one task form
a `Group`. All variations written for one context form a `TaskBatch`, the unit of p_hat.

Shapes: T = tokens of one episode (prompt, completions and environment replies), G = rollouts per task.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from genenv.texts import Json as Json
from genenv.texts import JsonObject as JsonObject
from genenv.texts import clean

Role = Literal["system", "user", "assistant", "tool"]

AGENT = "agent"
"""Name of the only agent of a run without `[agents.NAME]` sections."""


class RejectReason(StrEnum):
    """The reasons for rejecting a generation. The list is closed: each value is also a metric."""

    UNFINISHED = "unfinished"
    """The generation reached the token limit before the spec ended."""
    SYNTAX = "syntax"
    """The text is not JSON, or too long."""
    SCHEMA = "schema"
    """The text is JSON, but it is not a spec of the environment."""
    INCONSISTENT = "inconsistent"
    """The difficulty fields do not describe the rest of the spec."""
    EXECUTION = "execution"
    """The environment could not execute the spec, so there is no ground truth."""
    ORACLE_FAILS = "oracle_fails"
    """The demonstration that the spec contains does not pass the checker."""
    TRIVIAL = "trivial"
    """An empty or a random solution passes the checker."""
    CHECKS_DISAGREE = "checks_disagree"
    """Two checks of the same solution give different verdicts."""
    UNSTATED = "unstated"
    """The task does not state a literal that the answer needs."""
    LEAK = "leak"
    """The task gives its answer away."""
    DUPLICATE = "duplicate"
    """The task is too similar to a task in the archive."""
    HELD_OUT = "held_out"
    """The task is too similar to a held-out task."""


class StopReason(StrEnum):
    """The reasons for the end of an episode."""

    DONE = "done"
    """The environment ended the episode."""
    MAX_TURNS = "max_turns"
    """The agent used all its turns."""
    LENGTH = "length"
    """A completion reached the token limit."""
    CONTEXT = "context"
    """The episode no longer fits into the context window."""
    TIMEOUT = "timeout"
    """The episode took longer than its time limit."""
    ERROR = "error"
    """The policy could not return a reply."""


_BROKEN = frozenset({StopReason.ERROR, StopReason.TIMEOUT})
"""Stop reasons of rollouts that have no verdict."""


class Origin(StrEnum):
    """The origin of a task."""

    SEED = "seed"
    GENERATED = "generated"
    HELD_OUT = "held_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: str
    """Text. Lone surrogates, which no tokenizer can encode, are replaced."""

    def __post_init__(self) -> None:
        """Replace the characters of the content that cannot be encoded."""
        object.__setattr__(self, "content", clean(self.content))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """One item of base data. The simulator writes variations of it."""

    id: str
    environment: str
    spec: JsonObject
    """The spec as JSON, in the format of the environment."""
    skills: tuple[str, ...]
    """Skills that the item needs, e.g. `("calendar", "calls:2", "relative")`; keys of the agent profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The input of the simulator: a seed and the agent's recent success rates."""

    id: str
    """Unique in a run, e.g. `r0003-c05`."""
    round: int
    seed: Seed
    messages: tuple[Message, ...]
    """The conversation that the simulator continues with a spec."""
    agent: str = AGENT
    """Name of the agent for whom the task is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The simulator's output for one context, before the gate checks it."""

    id: str
    """Unique in a run, e.g. `r0003-c05-g1`."""
    context_id: str
    prompt_ids: tuple[int, ...] = ()
    """None where the text alone is known, as that of another model; nor are the two below."""
    token_ids: tuple[int, ...] = ()
    """The sampled token ids, including the end-of-turn token if the model emitted it."""
    logprobs: tuple[float, ...] = ()
    """The log-probability of each sampled token, unmasked, at the sampling temperature, in nats. Empty if the
    simulator did not sample the spec, for example if it was drawn at random (`simulator.explore`)."""
    text: str
    finished: bool
    """False if the token limit cut the generation off."""
    scored_only: bool = False
    """Whether the rollouts of its task in this round only score it: the agent does not train on them. They
    count in everything else, such as tokens, success rates and rewards."""
    stream: str = field(default="", compare=False)
    """Names the random stream by which its task is built; empty: its id. It is not stored."""

    @property
    def drawn(self) -> bool:
        """Whether the simulator did not sample the spec, so that it has no log-probabilities."""
        return not self.logprobs


@dataclass(frozen=True, slots=True)
class Rejection:
    """The reason for which the gate rejected a generation."""

    reason: RejectReason
    explanation: str
    """One sentence for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The origin of a task, with ids of the run's store. An id is None if it does not apply."""

    origin: Origin
    seed_id: str | None = None
    context_id: str | None = None
    generation_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A problem that the gate has checked and that the agent policy is rolled out on."""

    id: str
    """Unique in a run. The ids of seeds and held-out tasks are also the same in every run."""
    environment: str
    skills: tuple[str, ...]
    messages: tuple[Message, ...]
    """The first messages that the agent sees, including the descriptions of tools."""
    spec: JsonObject
    """The spec in the format of the environment. The difficulty fields come first."""
    payload: JsonObject
    """The data that the environment's checker needs: initial state, expected calls, expected outputs."""
    oracle: tuple[str, ...]
    """The demonstration: assistant replies, one per turn, that solve the task. Empty if none is known."""
    lineage: Lineage


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of checking a trace."""

    reward: float
    """In [0, 1]: GenEnv eq. (1). 1 for a right structured action, or partial credit by the environment."""
    success: bool
    explanation: str
    """One sentence for a person."""
    readable: bool = True
    """Whether the checker could grade the replies: they parse, and the calls in them can be executed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """A reply that was constrained to a fixed list of possible replies."""

    start: int
    """Index of the reply's first token."""
    replies: tuple[tuple[int, ...], ...]
    """The token ids of each possible reply, including the end-of-turn token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Tokens of an earlier turn that later turns do not see, such as a thought that the template drops."""

    start: int
    end: int
    since: int
    """Index of the first token that was sampled without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The trajectory of one episode: exactly the token ids that were sampled, never re-tokenized."""

    id: str
    task_id: str
    token_ids: tuple[int, ...]  # [T] prompt, completions and environment replies, in order
    sampled: tuple[bool, ...]  # [T] True where the policy chose the token
    logprobs: tuple[float, ...]  # [T] nats at the sampling temperature; 0.0 where the token was not sampled
    prompt_tokens: int
    """Length of the prompt. All traces of a task have the same prompt; not so at a later seat of several."""
    messages: tuple[Message, ...]
    """The messages after the prompt, in order: the agent's replies and the environment's messages between
    them. At a later seat of several they begin with its own prompt, and so not with a reply."""
    reward: float
    """In [0, 1], from the environment's checker."""
    success: bool
    explanation: str
    stop_reason: StopReason
    version: int | None = None
    """Version of the weights that sampled the trace. None if it is unknown or nothing was sampled."""
    readable: bool | None = None
    """Whether the replies parsed, were executed and were graded, whatever the grade. Such a trace is *valid*
    in the sense of the paper and goes into D_train. None if unknown."""
    choices: tuple[Choices, ...] = field(default=(), compare=False, repr=False)
    """The replies that were constrained to a list. Not stored, because only the process that sampled a
    rollout trains on it."""
    left_out: tuple[LeftOut, ...] = field(default=(), compare=False, repr=False)
    """The tokens that later turns did not see. Not stored, for the same reason as `choices`."""
    team: tuple[Verdict, ...] = field(default=(), compare=False, repr=False)
    """The verdicts on all seats of the episode that agents play, this one included; empty without seats. Not
    stored, for the same reason as `choices`."""

    @property
    def replies(self) -> tuple[str, ...]:
        """The agent's replies, one per turn."""
        return tuple(message.content for message in self.messages if message.role == "assistant")

    @property
    def response_tokens(self) -> int:
        """The number of tokens that the policy sampled."""
        return sum(self.sampled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One task and its G traces: the unit over which GRPO computes advantages."""

    task: Task
    traces: tuple[Trace, ...]  # [G]
    agent: str = AGENT
    """Name of the agent that was rolled out."""
    seat: str = field(default="", compare=False)
    """Seat of the agent; empty in an environment without seats. Not stored, except in the ids of traces."""

    @property
    def successes(self) -> int:
        """The number of traces that solved the task: k of GenEnv eq. (2)."""
        return sum(trace.success for trace in self.traces)

    @property
    def valid(self) -> tuple[Trace, ...]:
        """The traces of episodes that ran to a verdict. Only these count as rollouts."""
        return tuple([trace for trace in self.traces if trace.stop_reason not in _BROKEN])


def leading(groups: Sequence[Group]) -> Sequence[Group]:
    """Return the groups that count as a task's success rate: with seats those of the leading one, else all.

    The leading seat is the first one that a trained agent plays; its groups come first.
    """
    if not groups or not groups[0].seat:
        return groups
    return [group for group in groups if group.seat == groups[0].seat]


def seat_of(trace_id: str) -> str:
    """Return the seat in the id of a trajectory, `TASK/NUMBER/SEAT@SEED`; empty if it has none."""
    found = re.search(r"/\d+/([a-z][a-z0-9_-]*)@[0-9a-f]{16}$", trace_id)
    return "" if found is None else found[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A generation and the gate's result for it: a task or a rejection."""

    generation: Generation
    outcome: Task | Rejection
    novelty: float | None = None
    """1 - similarity to the nearest task of the archive, in [0, 1]. None if the gate rejected the generation
    before it measured the novelty."""
    predicted_rate: float | None = None
    """The predicted success rate, in [0, 1]. None if there is no prediction. Not stored."""
    progress: float | None = None
    """Rise of that rate since an older version of the agent, in [-1, 1]. None if there is no prediction. Not
    stored."""


def accepted(proposals: Iterable[Proposal]) -> list[Task]:
    """Return the tasks among proposals, without those that the gate rejected."""
    return [one.outcome for one in proposals if isinstance(one.outcome, Task)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBatch:
    """All variations written for one context: the unit of p_hat and R_env (GenEnv eq. 2, 3)."""

    context: Context
    proposals: tuple[Proposal, ...]
    groups: tuple[Group, ...]
    """The rollouts of the proposals that became tasks."""
    p_hat: float | None
    """Successes / rollouts over the whole batch. None if there are no valid rollouts."""
    env_reward: float
    """R_env in [0, 1]. It is 0 if there are no valid rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorSample:
    """A generation and its weight in the simulator's update."""

    generation: Generation
    weight: float
    """RWR weight in [0, 1]; the weights of an update sum to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A generation and the reward that it earned individually."""

    generation: Generation
    reward: float
    """In [0, 1]; 0 if the generation did not become a task."""
    rate: float | None = None
    """The task's success rate, measured or predicted. None if the generation did not become a task."""
    mixed: bool | None = None
    """Whether rollouts of one agent had mixed outcomes. None without rollouts."""
    prompt_ids: tuple[int, ...] | None = None
    """A simulator prompt that requests this success rate, for hindsight relabelling. None if the algorithm
    does not relabel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The agent's recent success per skill. The simulator's context contains it."""

    success: Mapping[str, float] = field(default_factory=dict[str, float])
    """Posterior mean of the success rate, per skill, in [0, 1]."""
    attempts: Mapping[str, float] = field(default_factory=dict[str, float])
    """Decayed number of rollouts behind each rate."""
    overall: float | None = None
    """Success rate over all recent rollouts. None before the first round."""
    by_agent: Mapping[str, Profile] = field(default_factory=dict[str, "Profile"])
    """With several agents, the profile of each by name; the rates above are then over all of them."""

    def of(self, agent: str) -> Profile:
        """Return the profile of one agent; of a single agent, this one."""
        return self.by_agent.get(agent, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """What became of the specs of a round. The source that wrote them learns from it."""

    batches: Sequence[TaskBatch]
    """The tasks with their rollouts, by context."""
    samples: Sequence[SimulatorSample]
    """Selected and weighted specs, for reward-weighted regression."""
    scored: Sequence[Scored]
    """Every spec with its individual reward, for algorithms that compare specs."""
    profile: Profile
    """The agent's profile in the contexts of the round."""
    schemas: Mapping[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    """The JSON schema of the specs of a context, by its id. Specs of other contexts are free text."""
