"""Everything about a task or a trajectory of a store, and its whole texts."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from glob import escape
from itertools import groupby, pairwise
from pathlib import Path
from sqlite3 import Row
from typing import cast

from genenv.algorithms.advantages import ADVANTAGES
from genenv.backends.scripted import END
from genenv.backends.settings import EMBEDDED, TINY
from genenv.chat.tool_calls import read_calls
from genenv.runs.store.codec import from_text
from genenv.runs.store.database import Database
from genenv.runs.store.reader import VERDICT, rollouts_that_count
from genenv.types import Json, seat_of
from genenv.viewer.folders import NotFound
from genenv.viewer.lists import of_seed, relatives

_MOST_TRACES, _MOST_FAMILY = 64, 30
"""Rollouts, and relatives, that the page of a task shows."""
_MOST_STEPS = 200
"""Calls of a trajectory that are compared."""
_MOST_CHARS = 400_000
"""Longer conversations are left out of a list; their own pages show them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One message of a conversation; the role of one that cannot be read is `unreadable`."""

    role: str
    content: str


def conversation(stored: str | bytes | None) -> list[Told]:
    """Return stored messages. What cannot be parsed is one message, as it is."""
    found = parsed(stored)
    if isinstance(found, list):
        items = [cast("Mapping[str, object]", one) for one in found if isinstance(one, Mapping)]
        if len(items) == len(found):
            return [Told(role=str(one.get("role", "")), content=str(one.get("content", ""))) for one in items]
    return [Told(role="unreadable", content=readable(stored))]


def parsed(stored: str | bytes | None) -> Json:
    """Return stored JSON; the text itself if it is none."""
    text = readable(stored)
    try:
        return cast("Json", json.loads(text))
    except (ValueError, RecursionError):
        return text


def strings(stored: str | bytes | None) -> list[str]:
    """Return a stored list of strings; anything else is one string."""
    found = parsed(stored)
    return [str(one) for one in found] if isinstance(found, list) else [readable(stored)]


def readable(stored: object) -> str:
    """Return text of a column: `to_text` writes lone surrogates as bytes, and damage may be no UTF-8."""
    if not isinstance(stored, bytes):
        return str(stored or "")
    try:
        return from_text(stored)
    except UnicodeDecodeError:
        return stored.decode(errors="replace")


def _one(rows: Sequence[Row], what: str) -> Row:
    if not rows:
        raise NotFound(f"the store has no {what}")
    return rows[0]


def owner(db: Database, task: str | None = None) -> str:
    """Return the id of the run that a store, and a task in it, are of.

    Raises:
        NotFound: there is no such task.
    """
    if task is not None:
        _one(db.rows("SELECT 1 FROM tasks WHERE id = ?", (task,)), f"task {task!r}")
    return str(_one(db.rows("SELECT id FROM run"), "run")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPage:
    """What the page of a task shows."""

    run: str
    """The id of the run, which its store has."""
    task: Row
    messages: list[Told]
    skills: list[str]
    spec: Json
    payload: Json
    oracle: list[str]
    written: Row | None
    """The generation with its context and batch; None for base and held-out tasks."""
    context: list[Told]
    """What the simulator saw."""
    rounds: list[Row]
    """`round`, `tried` and `solved` of each round in which the task was rolled out."""
    evaluations: list[Row]
    group: list[Row]
    """The rollouts of the round that is shown, side by side."""
    shown: int | None
    """This round."""
    seed: Row | None
    """The base task that the task is a variation of."""
    siblings: list[Row]
    """The variations of the same context, with the task itself."""
    children: list[Row]
    """The newest generated tasks of the same seed."""


_AGENT = "(SELECT agent FROM groups WHERE groups.round = traces.round AND position = group_position)"
"""The agent of a trajectory."""


def task_page(db: Database, id_: str, round_: int | None, *, family: str | None) -> TaskPage:
    """Return everything about a task.

    Args:
        db: the store.
        id_: the id of the task.
        round_: the round whose rollouts are shown; None for the last one.
        family: where tasks of the same seed are found: `side` for the side file, `main` for the store; None
            to leave them out.

    Raises:
        NotFound: there is no such task.
    """
    task = _one(db.rows("SELECT * FROM tasks WHERE id = ?", (id_,)), f"task {id_!r}")
    rounds = _rounds(db, id_)
    known = [int(row["round"]) for row in rounds]
    shown = round_ if round_ in known else (known[-1] if known else None)
    sql = f"""SELECT id, {_AGENT} AS agent, reward, success, explanation, stop_reason, version, prompt_tokens,
                     length(sampled) - prompt_tokens AS tokens,
                     CASE WHEN length(messages) <= {_MOST_CHARS} THEN messages END AS messages
              FROM traces WHERE task_id = ? AND round = ? ORDER BY n LIMIT {_MOST_TRACES}"""  # noqa: S608
    written = db.rows(
        """SELECT generations.text, generations.novelty, generations.scored_only, contexts.messages,
                  contexts.round, contexts.agent,
                  batches.p_hat, batches.env_reward, batches.selected, contexts.id,
                  (SELECT count(*) FROM generations JOIN rejections ON generation_id = generations.id
                   WHERE context_id = contexts.id) AS refused
           FROM generations JOIN contexts ON contexts.id = generations.context_id
                LEFT JOIN batches ON batches.context_id = contexts.id WHERE generations.id = ?""",
        (task["generation_id"],),
    )
    evaluations = db.rows(
        """SELECT round, agent, success, reward, explanation FROM evaluations WHERE task_id = ?
           ORDER BY round, position""",
        (id_,),
    )
    group = db.rows(sql, (id_, shown))
    siblings = relatives(db, f"tasks.context_id = ? ORDER BY n LIMIT {_MOST_FAMILY}", task["context_id"])
    seeds = of_seed(db, family, task["seed_id"], "seed", 1) if family else []
    children = of_seed(db, family, task["seed_id"], "generated", _MOST_FAMILY) if family else []
    return TaskPage(
        run=owner(db),
        task=task,
        messages=conversation(task["messages"]),
        skills=strings(task["skills"]),
        spec=parsed(task["spec"]),
        payload=parsed(task["payload"]),
        oracle=strings(task["oracle"]),
        written=written[0] if written else None,
        context=conversation(written[0]["messages"]) if written else [],
        rounds=rounds,
        evaluations=evaluations,
        group=group,
        shown=shown,
        seed=seeds[0] if seeds else None,
        siblings=siblings,
        children=children,
    )


def _rounds(db: Database, id_: str, agent: str = "") -> list[Row]:
    """Return `round`, `tried` and `solved` of each round in which a task, or one agent, was rolled out.

    Without an agent it is the leading seat, in a run with seats.
    """
    own = f"{VERDICT} AND {_AGENT} = ?2" if agent else rollouts_that_count(db)
    return db.rows(
        f"""SELECT round, count(*) AS tried, sum(success) AS solved FROM traces
            WHERE task_id = ?1 AND {own} GROUP BY round ORDER BY round""",  # noqa: S608 - constants
        (id_, agent) if agent else (id_,),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """What became of a task in a run: the outcomes of its evaluations, and its rollouts by round."""

    run: str
    agent: str
    """Whose outcomes they are; empty of a run with one agent."""
    outcomes: str
    """1 and 0 by evaluation."""
    rounds: list[Row]
    """`round`, `tried` and `solved`."""

    @property
    def flips(self) -> int:
        """How often the outcome changed from one evaluation to the next."""
        return sum(one != other for one, other in pairwise(self.outcomes))


def elsewhere(db: Database, run: str, task: Row) -> list[Elsewhere]:
    """Return what became of a task in another run, for each of its agents.

    Empty if that run has no such task with the same text.
    """
    found = db.rows("SELECT messages, spec FROM tasks WHERE id = ?", (task["id"],))
    if not found or (found[0]["messages"], found[0]["spec"]) != (task["messages"], task["spec"]):
        return []
    id_ = task["id"]
    known = """SELECT agent FROM groups WHERE task_id = ?1 UNION
               SELECT agent FROM evaluations WHERE task_id = ?1"""
    names = [str(row[0]) for row in db.rows(known, (id_,))]
    if len(names) < 2:
        return [Elsewhere(run=run, agent="", outcomes=_outcomes(db, id_), rounds=_rounds(db, id_))]
    return [
        Elsewhere(run=run, agent=name, outcomes=_outcomes(db, id_, name), rounds=_rounds(db, id_, name))
        for name in names
    ]


def _outcomes(db: Database, id_: str, agent: str = "") -> str:
    """Return 1 and 0 by evaluation of a task, of one agent if it is named."""
    sql = """SELECT success FROM evaluations WHERE task_id = ?1 AND ?2 IN ('', agent)
             ORDER BY round, position"""
    return "".join(str(int(bool(row[0]))) for row in db.rows(sql, (id_, agent)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A call, or a text, of the agent or of the demonstration."""

    name: str
    """"" for a text that calls nothing."""
    arguments: str
    """As JSON; the text if it calls nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A step of the demonstration beside one of the agent."""

    kind: str
    """`same`, `other arguments`, `other text`, `missing`, or `extra`."""
    wanted: Step | None
    made: Step | None


def differences(oracle: Sequence[str], replies: Sequence[str]) -> list[Difference]:
    """Return how a trajectory differs from the demonstration, call by call.

    The order of calls does not count. A call with other arguments stands beside the one of that name.
    """
    wanted, left = _steps(oracle), _steps(replies)
    made: dict[int, tuple[str, Step]] = {}
    for place, step in enumerate(wanted):
        if step in left:
            left.remove(step)
            made[place] = ("same", step)
    for place, step in enumerate(wanted):
        other = next((one for one in left if one.name == step.name), None)
        if place not in made and other is not None:
            left.remove(other)
            made[place] = ("other arguments" if step.name else "other text", other)
    found = [
        Difference(
            kind=made.get(place, ("missing",))[0], wanted=step, made=made[place][1] if place in made else None
        )
        for place, step in enumerate(wanted)
    ]
    return found + [Difference(kind="extra", wanted=None, made=step) for step in left]


def _steps(replies: Sequence[str]) -> list[Step]:
    found = list[Step]()
    for reply in replies[:_MOST_STEPS]:
        text, calls = read_calls(reply)
        if not calls and len(reply) < _MOST_CHARS:  # a call a line, as Python writes it
            read = [(line, read_calls(f"[{line}]")[1]) for line in reply.splitlines() if line.strip()]
            calls = tuple(call for _, line_calls in read for call in line_calls)
            text = "\n".join(line for line, line_calls in read if not line_calls)
        for call in calls:
            arguments = json.dumps(call.arguments, ensure_ascii=False, sort_keys=True)
            found.append(Step(name=call.name, arguments=arguments))
        if text.strip():
            found.append(Step(name="", arguments=text.strip()))
    return found[:_MOST_STEPS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A sampled token."""

    id: int
    logprob: float
    """Nats."""
    text: str
    """"" if the tokenizer is not known, or if the character ends with a later token."""
    forced: bool = False
    """Whether the policy had no choice: no other token was allowed, or a limit put it in."""

    @property
    def shade(self) -> int:
        """How surprising it was: 0 for certain, to 5."""
        return sum(self.logprob < bound for bound in (0.0, -0.1, -0.7, -2.3, -4.6))


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePage:
    """What the page of a trajectory shows."""

    trace: Row
    seat: str
    """The agent's seat, as the id has it; empty without seats."""
    task: Row
    asked: list[Told]
    messages: list[Told]
    replies: list[list[Token]]
    """The tokens of each reply; of a trajectory of several replies only those that were sampled."""
    before: str | None
    after: str | None
    """Ids of the trajectories before and after it in the store."""
    place: int
    """Its place in the group of its task, from 1."""
    group: int
    differences: list[Difference]
    """From the demonstration; empty if none is known."""
    advantage: float | None
    """Of each of its tokens; None if there is none, or the run computes advantages by its own function."""
    scored_only: bool
    """Whether it only scored the task, so that the agent did not train on it."""

    @property
    def shows_forced(self) -> bool:
        """Whether the tokens that were forced are told from those of the environment."""
        return _is_one_reply(self.messages)

    @property
    def calls_something(self) -> bool:
        """Whether a reply calls a tool."""
        return any(step.name for step in _steps([m.content for m in self.messages if m.role == "assistant"]))

    @property
    def spelled(self) -> bool:
        """Whether the texts of the tokens are known."""
        return any(token.text for reply in self.replies for token in reply)


Texts = Callable[[Sequence[int]], list[str]]
"""Token ids -> the text of each."""


def trace_page(
    db: Database, id_: str, texts: Callable[[str], Texts], advantage: Callable[[str], str]
) -> TracePage:
    """Return everything about a trajectory.

    Args:
        db: the store.
        id_: the id of the trajectory.
        texts: returns what gives the texts of an agent's tokens, by its name.
        advantage: returns the setting `advantage` of an agent, by its name.

    Raises:
        NotFound: there is no such trajectory.
    """
    sql = f"SELECT traces.*, {_AGENT} AS agent FROM traces WHERE id = ?"  # noqa: S608 - a constant
    trace = _one(db.rows(sql, (id_,)), f"trajectory {id_!r}")
    task = _one(db.rows("SELECT * FROM tasks WHERE id = ?", (trace["task_id"],)), "task of this trajectory")
    neighbors = [
        db.rows(f"SELECT id FROM traces WHERE n {sign} ? ORDER BY n {order} LIMIT 1", (trace["n"],))  # noqa: S608
        for sign, order in (("<", "DESC"), (">", "ASC"))
    ]
    before, after = (str(rows[0]["id"]) if rows else None for rows in neighbors)
    of_group = "SELECT n, reward, stop_reason FROM traces WHERE round = ? AND group_position = ? ORDER BY n"
    rows = db.rows(of_group, (trace["round"], trace["group_position"]))
    valid = [row for row in rows if row["stop_reason"] not in ("error", "timeout")]
    values = dict[int, float]()
    name = advantage(str(trace["agent"]))
    sql = """SELECT 1 FROM generations JOIN contexts ON contexts.id = context_id
             WHERE generations.id = ? AND round = ? AND scored_only"""
    scored_only = bool(db.rows(sql, (task["generation_id"], trace["round"])))
    if name in ADVANTAGES and len(valid) > 1 and not scored_only:
        found = ADVANTAGES[name]([float(row["reward"]) for row in valid])
        values = {int(row["n"]): value for row, value in zip(valid, found, strict=True)}
    messages, group = conversation(trace["messages"]), [int(row["n"]) for row in rows]
    first_seat = not messages or messages[0].role == "assistant"  # a later seat has a prompt of its own
    oracle = strings(task["oracle"]) if first_seat else []
    replies = [one.content for one in messages if one.role == "assistant"]
    return TracePage(
        trace=trace,
        seat=seat_of(id_),
        task=task,
        asked=conversation(task["messages"]) if first_seat else [],
        messages=messages,
        replies=_replies(trace, texts(str(trace["agent"])), messages),
        before=before,
        after=after,
        place=group.index(trace["n"]) + 1,
        group=len(group),
        differences=differences(oracle, replies) if oracle else [],
        advantage=values.get(int(trace["n"])),
        scored_only=scored_only,
    )


def _is_one_reply(messages: Sequence[Told]) -> bool:
    return len(messages) == 1 and messages[0].role == "assistant"


def _replies(trace: Row, texts: Texts, messages: Sequence[Told]) -> list[list[Token]]:
    """Return the tokens of each reply; a blob of a wrong length gives those that it has.

    The store says which tokens were sampled. The others after the prompt were forced in a reply, or are of
    the environment's messages. With one reply and nothing after it, all of them were forced.
    """
    ids, logprobs = _unpacked("I", trace["token_ids"]), _unpacked("d", trace["logprobs"])
    tokens = list(zip(bytes(trace["sampled"]), map(int, ids), logprobs, strict=False))
    if _is_one_reply(messages):
        runs = [tokens[int(trace["prompt_tokens"]) :]]
    else:
        runs = [list(run) for sampled, run in groupby(tokens, key=lambda token: bool(token[0])) if sampled]
    return [
        [
            Token(id=id_, logprob=logprob, text=text, forced=not sampled)
            for (sampled, id_, logprob), text in zip(run, texts([id_ for _, id_, _ in run]), strict=True)
        ]
        for run in runs
        if any(sampled for sampled, *_ in run)
    ]


@dataclass(frozen=True, slots=True)
class CallChange:
    """A call of the agent that was executed again, and what it changed."""

    call: str
    result: str
    """What the agent got."""
    changed: Sequence[tuple[str, str, str]]
    """Place in the environment's state, and the value there before and after; "" where there is none."""


Replay = Callable[
    [Mapping[str, object], Json, Sequence[str]],
    Sequence[tuple[str, str, Sequence[tuple[str, str, str]]]] | None,
]
"""Settings, payload of a task, replies -> fields of a `CallChange` for each call; None if they cannot run."""


def changes(
    page: TracePage, settings: Mapping[str, object], replay: Replay | None
) -> tuple[list[CallChange], str]:
    """Return what each call of a trajectory changed, or a sentence about why that is not known."""
    if not page.calls_something:
        return [], ""
    replies = [one.content for one in page.messages if one.role == "assistant"]
    found = replay(settings, parsed(page.task["payload"]), replies) if replay is not None else None
    if found is None:
        return [], (
            "A store has no states of the environment. The viewer computes them for the environment "
            "tool_calling alone, as it never executes tools of yours."
        )
    recorded = [one.content for one in page.messages if one.role == "tool"]
    if recorded != [result for _, result, _ in found][: len(recorded)]:
        return [], "Executed again, the calls give other results than those recorded."
    return [CallChange(*one) for one in found], ""


def _unpacked(code: str, blob: object) -> tuple[float, ...]:
    data = blob if isinstance(blob, bytes) else b""
    count = len(data) // struct.calcsize(f"<{code}")
    return struct.unpack_from(f"<{count}{code}", data)


def texts_of(backend: str, model: str, caches: Sequence[Path]) -> Texts:
    """Return a function from token ids to texts, with the tokenizer on this machine if there is one.

    Args:
        backend: `policy.backend` of the run; the tokens of `scripted` are bytes, those of `ppo` actions.
        model: `policy.model` of the run.
        caches: folders that may hold the model's folder.
    """
    if known := {"scripted": _bytes, "ppo": actions}.get(backend):
        return known
    names = {EMBEDDED: "SmolLM2-135M-Instruct*", TINY: "tiny-*"}
    hub = f"models--{escape(model.replace('/', '--'))}/snapshots/*"
    places = [Path(model)] if Path(model).is_absolute() else []
    places += [found for cache in caches for found in sorted(cache.glob(names.get(model, hub)))]
    file = next((place / "tokenizer.json" for place in places if (place / "tokenizer.json").is_file()), None)
    return _unknown if file is None else _of_tokenizer(file)


@lru_cache(maxsize=4)
def _of_tokenizer(file: Path) -> Texts:
    from tokenizers import Tokenizer  # takes a moment to load, and few pages need it

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:
        if type(error) is Exception:  # what the library raises for a file that is no tokenizer
            return _unknown
        raise
    return lambda ids: tokenizer.decode_batch([[one] for one in ids], skip_special_tokens=False)


def _unknown(ids: Sequence[int]) -> list[str]:
    return [""] * len(ids)


def _bytes(ids: Sequence[int]) -> list[str]:
    """Return the text of byte tokens: each character stands at its last byte."""
    found, held = list[str](), b""
    for one in ids:
        held += bytes([one]) if one < END else b""
        try:
            found.append(held.decode() if one != END else "⏹")
            held = b""
        except UnicodeDecodeError as error:
            whole = len(held) > 3 or error.reason != "unexpected end of data"
            found.append(held.decode(errors="replace") if whole else "")
            held = b"" if whole else held
    return found


def actions(ids: Sequence[int]) -> list[str]:
    """Return the numbers of a policy network's actions, whose tokens follow those of bytes."""
    from genenv.environments.control.simulation import MOST, UNIT  # imports numpy, and few pages need it

    return [f"{(one - END - 1 - MOST) / UNIT:g} " if one > END else _bytes([one])[0] for one in ids]


PARTS: Mapping[tuple[str, str], str] = {
    ("task", "messages"): "What the agent sees",
    ("task", "spec"): "Spec",
    ("task", "payload"): "Data of the checker",
    ("task", "oracle"): "A solution",
    ("trace", "messages"): "Conversation",
    ("trace", "explanation"): "Explanation",
    ("generation", "text"): "What the simulator wrote",
    ("context", "messages"): "What the simulator saw",
}
"""Kind of a record, and a column of it whose whole text has a page -> what it is."""


def whole_text(db: Database, kind: str, id_: str, part: str, place: int | None) -> str:
    """Return a whole text that a page has cut.

    Args:
        db: the store.
        kind: of a record, as in `PARTS`.
        id_: of the record.
        part: a column of it.
        place: of messages and of demonstrations: which one; None for all.

    Raises:
        NotFound: there is no such text.
    """
    if (kind, part) not in PARTS:
        raise NotFound("there is no such text")
    row = _one(db.rows(f"SELECT {part} FROM {kind}s WHERE id = ?", (id_,)), f"{kind} {id_!r}")  # noqa: S608
    if part == "messages":
        texts = [
            one.content if place is not None else f"[{one.role}]\n{one.content}"
            for one in conversation(row[0])
        ]
    elif part == "oracle":
        texts = strings(row[0])
    else:
        texts = [readable(row[0])]
    if place is None:
        return "\n\n".join(texts)
    if not 0 <= place < len(texts):
        raise NotFound("there is no such text")
    return texts[place]
