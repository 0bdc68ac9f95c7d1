"""The environment `mixture`: tasks of several environments, its members, for one agent.

GenEnv (arXiv:2512.19682) trains one agent on five benchmarks at once. A mixture does so with any
environments, those made from your own tools included:

    [environment]
    name = "mixture"

    [environment.members.rooms]
    name = "household"
    share = 2
    mode = "single"

    [environment.members.desk]
    name = "bundles/desk"

Each task keeps the episode, the checker and the audit of its member. The simulator gets the prompt and the
grammar of the member whose seed it varies, and the success rates of that member alone. Ids and skills begin
with the member's name, `rooms:pick`; the name itself is a skill too, so that success rates and shares of
tasks are known by member. A task's spec is `{"member": "rooms", "spec": {...}}`.
"""

from __future__ import annotations

import contextlib
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self, TypeVar, cast

from pydantic import BaseModel, Field, JsonValue, ValidationError, field_validator, model_validator

from genenv.environments import (
    close_environment,
    environment_config,
    environment_name,
    is_folder,
    load_environment,
)
from genenv.environments.base import Environment, ForwardingEnvironment, HasParameters, Options, base_spec
from genenv.environments.common import parsed_spec
from genenv.errors import UsageError, unknown_name
from genenv.settings import Settings, allowed, is_in_file, placed
from genenv.types import (
    JsonObject,
    Lineage,
    Message,
    Profile,
    Rejection,
    RejectReason,
    Seed,
    Task,
)

NAME = "mixture"
_MARK = ":"
_MOST_SKILL = 64
"""The longest name of a skill (`genenv.environments.promises.SKILL`)."""
_MEMBER = re.compile(r"[a-z][a-z0-9_-]{0,15}")
_OWN = ("name", "share")
"""Keys of a member's table that are not settings of its environment."""

T = TypeVar("T")


class _Head(Settings, frozen=True):
    """What a mixture has to know of a member."""

    name: str = Field(min_length=1)
    share: float = Field(default=1.0, gt=0, le=1_000_000, strict=False)


class MixtureConfig(Settings, frozen=True):
    """Settings of a mixture of environments: `[environment] name = "mixture"`."""

    members: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    """The members, a table each, `[environment.members.NAME]`: `name` is the environment (any that
    `environment.name` can be), `share` its weight among the seeds (1 if left out), and the other keys are
    settings of that environment."""

    @field_validator("members")
    @classmethod
    def _can_be_opened(cls, members: dict[str, dict[str, JsonValue]]) -> dict[str, dict[str, JsonValue]]:
        seen: list[tuple[str, tuple[str, BaseModel]]] = []
        for member, table in members.items():
            if not _MEMBER.fullmatch(member):
                raise ValueError(
                    f"{member[:40]!r} is no name of a member: up to 16 small letters, digits, - and _, the "
                    "first a letter"
                )
            found = member_settings(member, table)
            if twins := [other for other, same in seen if same == found]:
                raise ValueError(
                    f"{twins[0]} and {member} are the same environment with the same settings: leave one "
                    "out, and give the other a larger share"
                )
            seen.append((member, found))
        return members

    def with_places(self, change: Callable[[str], str]) -> Self:
        """Return the settings with the paths of members, and those in their settings, changed."""

        def of_member(table: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
            fields = environment_config(str(table["name"])).model_fields

            def of(key: str, value: JsonValue) -> JsonValue:
                if key == "name" and isinstance(value, str):
                    return change(value) if is_folder(value) or is_in_file(value) else value
                return cast(JsonValue, placed(value, fields.get(key), change))

            return {key: of(key, value) for key, value in table.items()}

        return self.model_copy(
            update={"members": {member: of_member(table) for member, table in self.members.items()}}
        )


def member_settings(member: str, table: Mapping[str, JsonValue]) -> tuple[str, BaseModel]:
    """Return the environment's name of a member of a mixture, and its settings.

    Raises:
        ValueError: a key or a value is not allowed.
        UsageError: there is no such environment.
    """
    head = _checked(_Head, member, {key: value for key, value in table.items() if key in _OWN})
    name = environment_name(head.name)
    if name == NAME:
        raise ValueError(f"{member} is a mixture itself; list its members instead")
    try:
        kind = environment_config(name)
    except UsageError as error:
        raise ValueError(f"{member}: {error}") from error
    own = {key: value for key, value in table.items() if key not in _OWN}
    if unknown := [key for key in own if key not in kind.model_fields]:
        known = [*_OWN, *kind.model_fields]
        raise ValueError(f"{member}: {unknown_name('setting', unknown[0], known)}")
    return name, _checked(kind, member, own)


_SettingsT = TypeVar("_SettingsT", bound=BaseModel)


def _checked(kind: type[_SettingsT], member: str, table: Mapping[str, JsonValue]) -> _SettingsT:
    try:
        return kind.model_validate(dict(table))
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "missing":
            raise ValueError(f"{member} names no environment; add name = ...") from error
        key = str(first["loc"][0]) if first["loc"] else ""
        why = first["msg"].removeprefix("Value error, ")
        if key not in kind.model_fields or first["type"] == "value_error":
            raise ValueError(f"{member}{key and f'.{key}'}: {why}") from error
        shown = repr(table.get(key))[:80]
        raise ValueError(f"{member}.{key} is {shown}; allowed: {allowed(kind.model_fields[key])}") from error


class MixtureSpec(BaseModel, frozen=True):
    """A spec of a member: `{"member": "rooms", "spec": {...}}`. A bare spec is of the seed's member."""

    member: str = ""
    spec: Any
    """As JSON, or already parsed."""

    @model_validator(mode="before")
    @classmethod
    def _may_be_bare(cls, given: object) -> object:
        if not isinstance(given, Mapping):
            raise ValueError("a spec is a JSON object")
        spec = cast(Mapping[str, object], given)
        return spec if set(spec) == {"member", "spec"} else {"spec": spec}


class MixtureParameters(BaseModel, frozen=True, extra="allow"):
    """Parameters of a member's task; which member is known from the seed."""


@dataclass(frozen=True, slots=True)
class _Member:
    """One environment of a mixture, and how its seeds and tasks are called there."""

    name: str
    share: float
    env: Environment

    @property
    def mark(self) -> str:
        """The start of its ids and skills."""
        return self.name + _MARK

    def seed(self, seed: Seed) -> Seed:
        """Return one of its seeds as a seed of the mixture."""
        spec = {"member": self.name, "spec": seed.spec}
        return replace(
            seed, id=self.mark + seed.id, environment=NAME, spec=spec, skills=self.skills(seed.skills)
        )

    def task(self, task: Task, *, task_id: str, lineage: Lineage) -> Task:
        """Return one of its tasks as a task of the mixture."""
        return replace(
            task,
            id=task_id,
            environment=NAME,
            skills=self.skills(task.skills),
            spec={"member": self.name, "spec": task.spec},
            lineage=lineage,
        )

    def skills(self, skills: Iterable[str]) -> tuple[str, ...]:
        """Return the names of its skills in the mixture; the first is the member."""
        return (self.name, *((self.mark + skill)[:_MOST_SKILL] for skill in skills))

    def own_id(self, name: str) -> str:
        """Return an id without the member: `base-7` for `base-rooms:7`."""
        return name.replace(self.mark, "", 1)

    def own_lineage(self, lineage: Lineage) -> Lineage:
        """Return a lineage whose seed is the member's; a seed of another member is left out."""
        seed_id = lineage.seed_id or ""
        return replace(lineage, seed_id=self.own_id(seed_id) if seed_id.startswith(self.mark) else None)

    def own_task(self, task: Task) -> Task:
        """Return a task of the mixture as the member built it."""
        return replace(
            task,
            id=self.own_id(task.id),
            environment=self.env.name,
            skills=tuple(skill.removeprefix(self.mark) for skill in task.skills[1:]),
            spec=cast(JsonObject, task.spec["spec"]),
            lineage=self.own_lineage(task.lineage),
        )

    def own_profile(self, profile: Profile) -> Profile:
        """Return the agent's success rates on the member's tasks alone."""
        success, attempts = (
            {name.removeprefix(self.mark): rate for name, rate in rates.items() if name.startswith(self.mark)}
            for rates in (profile.success, profile.attempts)
        )
        return Profile(success=success, attempts=attempts, overall=profile.success.get(self.name))


class Mixture(ForwardingEnvironment):
    """Several environments as one; implements `Environment`, and `HasParameters` if all members do.

    What is asked about a seed or a task is answered by its member. So specs are written bare, and no task may
    resemble a held-out one of another member.

    Args:
        settings: see `MixtureConfig`.

    Raises:
        UsageError: there are fewer than two members, one cannot be opened, or one has no seeds.
    """

    name: ClassVar[str] = NAME
    spec: ClassVar[type[BaseModel]] = MixtureSpec
    config: ClassVar[type[BaseModel]] = MixtureConfig

    def __init__(self, settings: MixtureConfig | None = None) -> None:
        self.settings = settings or MixtureConfig()
        if len(self.settings.members) < 2:
            raise UsageError(
                "a mixture needs two members or more: a table [environment.members.NAME] for each, with "
                "the name of an environment"
            )
        self._members: dict[str, _Member] = {}
        with contextlib.ExitStack() as opened:
            for member, table in self.settings.members.items():
                name, own = member_settings(member, table)
                share = float(cast(float, table.get("share", 1.0)))
                self._members[member] = _Member(member, share, env := load_environment(name, own))
                opened.callback(close_environment, env)
            self._opened = opened.pop_all()
        self.without_parameters = [
            name for name, env in self.members.items() if not isinstance(env, HasParameters)
        ]
        """The members for which a simulator cannot write parameters."""
        if not self.without_parameters:
            self.parameters = MixtureParameters

    @property
    def members(self) -> Mapping[str, Environment]:
        """The members by name."""
        return {name: member.env for name, member in self._members.items()}

    @property
    def world(self) -> Self:
        """What `close_environment` closes: itself."""
        return self

    def close(self) -> None:
        """End the processes of all members that have any."""
        self._opened.close()

    # base data

    @cached_property
    def _seeds(self) -> dict[str, tuple[_Member, Seed, Seed]]:
        """By id: the member, its own seed, and the same seed in the mixture."""
        every = {name: list(member.env.seeds()) for name, member in self._members.items()}
        if empty := [name for name, found in every.items() if not found]:
            raise UsageError(f"member {empty[0]!r} of the mixture has no seeds; leave it out")
        shares = {name: member.share for name, member in self._members.items()}
        kept = [
            [(self._members[name], seed) for seed in spread(every[name], most)]
            for name, most in seeds_by_share(
                {name: len(found) for name, found in every.items()}, shares
            ).items()
        ]
        return {
            (outer := member.seed(seed)).id: (member, seed, outer)
            for member, seed in interleaved(kept, even=True)
        }

    @property
    def omitted(self) -> str | None:
        """Which tasks of members are left out, and why; None if none is."""
        kept = dict.fromkeys(self._members, 0)
        for member, _, _ in self._seeds.values():
            kept[member.name] += 1
        parts = [
            f"{kept[name]} of {total} seeds of {name} are used, so that the shares hold"
            for name, member in self._members.items()
            if kept[name] < (total := len(member.env.seeds()))
        ]
        own = {name: getattr(member.env, "omitted", None) for name, member in self._members.items()}
        parts += [f"{name}: {told}" for name, told in own.items() if told]
        return "; ".join(parts) or None

    def seeds(self) -> Sequence[Seed]:
        """Return the base data: seeds of all members in proportion to their shares, evenly mixed.

        The member with the fewest seeds for its share decides how many there are; no seed is repeated. Of
        the others, seeds at equal distances are used.
        """
        return [outer for _, _, outer in self._seeds.values()]

    @cached_property
    def _held_out(self) -> tuple[list[Task], int]:
        first, rest = list[list[Task]](), list[list[Task]]()
        for member in self._members.values():
            found = [
                member.task(task, task_id=member.mark + task.id, lineage=task.lineage)
                for task in member.env.held_out()
            ]
            main: int = getattr(member.env, "main_held_out", len(found))
            first.append(found[:main])
            rest.append(found[main:])
        return [*interleaved(first), *interleaved(rest)], sum(map(len, first))

    def held_out(self) -> Sequence[Task]:
        """Return the held-out tasks of all members, in turn, whatever their shares.

        So the first n have about equally many of each member, as far as it has them.
        """
        return self._held_out[0]

    @property
    def main_held_out(self) -> int:
        """The number of held-out tasks, from the first, that an evaluation uses by default."""
        return self._held_out[1]

    # the simulator

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as of the base class
        """Call a method of the member of a seed or a task, with its own seed or task, and success rates."""
        about, *rest = args
        member, own = self._of(about) if isinstance(about, Seed) else self._in(about)
        rest = [member.own_profile(one) if isinstance(one, Profile) else one for one in rest]
        return getattr(member.env, method)(own, *rest, **kwargs)

    def parameter_options(self, seed: Seed) -> Options:
        """See `HasParameters`."""
        return self.call("parameter_options", seed)

    def parameter_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """See `HasParameters`."""
        return self.call("parameter_messages", seed, profile, target)

    def drawn(self, parameters: BaseModel, seed: Seed, rng: random.Random) -> BaseModel | Rejection:
        """See `HasParameters`."""
        member, own = self._of(seed)
        drawing = cast(HasParameters, member.env)
        parsed = parsed_spec(drawing.parameters, parameters.model_dump())
        if isinstance(parsed, Rejection):
            return parsed
        spec = drawing.drawn(parsed, own, rng)
        return (
            spec
            if isinstance(spec, Rejection)
            else MixtureSpec.model_construct(member=member.name, spec=spec)
        )

    # tasks

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """Build a task of the member that the spec names, or else of the seed's."""
        given = cast(MixtureSpec, spec)
        name = given.member or (lineage.seed_id or "").partition(_MARK)[0]
        member = self._members.get(name)
        if member is None:
            return Rejection(RejectReason.SCHEMA, f"member: the mixture has no member {name[:40]!r}.")
        own = given.spec
        if not isinstance(own, BaseModel):
            own = parsed_spec(base_spec(member.env), own)
        if isinstance(own, Rejection):
            return own
        built = member.env.build(
            own, task_id=member.own_id(task_id), lineage=member.own_lineage(lineage), rng=rng
        )
        return member.task(built, task_id=task_id, lineage=lineage) if isinstance(built, Task) else built

    def findings(self) -> Iterator[Any]:
        """Yield the findings of `genenv check` that are specific to members."""
        for name, env in self.members.items():
            for one in getattr(env, "findings", tuple)():
                yield replace(one, what=f"{name}: {one.what}")

    def _of(self, seed: Seed) -> tuple[_Member, Seed]:
        member, own, _ = self._seeds[seed.id]
        return member, own

    def _in(self, task: Task) -> tuple[_Member, Task]:
        member = self._members[str(task.spec["member"])]
        return member, member.own_task(task)


def member_of(task: Task) -> str | None:
    """Return the member of a mixture that a task is of: its column in an evaluation; None in others."""
    return str(task.spec["member"]) if task.environment == NAME else None


def seeds_by_share(counts: Mapping[str, int], shares: Mapping[str, float]) -> dict[str, int]:
    """Return how many seeds of each member a mixture has: as many as can be, in proportion to the shares.

    Args:
        counts: seeds that each member has, at least 1.
        shares: the shares, > 0; they need not sum to 1.
    """
    scale = min(counts[name] / shares[name] for name in counts)
    return {name: max(1, math.floor(shares[name] * scale + 1e-9)) for name in counts}


def spread(items: Sequence[T], n: int) -> list[T]:
    """Return n items at equal distances, the first among them; 1 <= n <= the number of items."""
    return [items[place * len(items) // n] for place in range(n)]


def interleaved(lists: Sequence[Sequence[T]], *, even: bool = False) -> list[T]:
    """Return the items of all lists, taken in turn until a list is empty.

    Args:
        lists: the lists; the order within each is kept.
        even: instead spread the items of each list evenly over the whole.
    """
    places = [
        ((at + 0.5) / len(one) if even else float(at), which, at)
        for which, one in enumerate(lists)
        for at in range(len(one))
    ]
    return [lists[which][at] for _, which, at in sorted(places)]
