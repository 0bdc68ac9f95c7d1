"""Queries of a store for the pages of tasks, trajectories and refusals. Each is one short list of rows."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from glob import escape
from itertools import groupby
from pathlib import Path
from sqlite3 import Row
from typing import cast

from genenv.backends.scripted import END
from genenv.backends.settings import EMBEDDED, TINY
from genenv.errors import DataError
from genenv.runs.store.codec import from_text
from genenv.runs.store.database import Database
from genenv.types import Json
from genenv.viewer.folders import NotFound

PAGE = 50
"""Rows of a page."""
_MOST_TRACES, _MOST_FAMILY = 64, 30
"""Rollouts, and relatives, that the page of a task shows."""
_MOST_CHARS = 400_000
"""Longer conversations are left out of a list; their own pages show them."""

SORTS = {
    "new": ("n", "DESC"),
    "old": ("n", "ASC"),
    "hard": ("rate", "ASC"),
    "easy": ("rate", "DESC"),
}
"""Order of tasks -> column and direction."""

_HELD = "(SELECT {} FROM evaluations WHERE task_id = tasks.id {})"
_LAST = _HELD.format("success", "ORDER BY round DESC, position DESC LIMIT 1")
CHANGES = {
    "unlearned": f"{_LAST} < {_HELD.format('max(success)', '')}",
    "learned": f"{_LAST} > {_HELD.format('success', 'ORDER BY round, position LIMIT 1')}",
}
"""Change of a held-out task -> its condition: solved before and not now, or now and not at first."""

_VERDICT = "stop_reason NOT IN ('error', 'timeout')"
_ASKED = "CASE WHEN json_valid(messages) THEN substr(json_extract(messages, '$[#-1].content'), 1, 400) END"
_RATES = f"""(SELECT count(*) FROM traces WHERE task_id = tasks.id AND {_VERDICT}) AS tried,
             (SELECT sum(success) FROM traces WHERE task_id = tasks.id AND {_VERDICT}) AS solved"""  # noqa: S608


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which tasks a page lists, and where it begins."""

    round: int | None = None
    """Tasks that were written or rolled out in it; their rates are then those of this round."""
    origin: str = ""
    skill: str = ""
    change: str = ""
    """A key of `CHANGES`."""
    low: float | None = None
    high: float | None = None
    """Bounds of the success rate."""
    reward_low: float | None = None
    reward_high: float | None = None
    """Bounds of the simulator's reward for the batch of the task; the upper one is not included."""
    text: str = ""
    """A part of the messages, the demonstration or the id."""
    sort: str = "new"
    after: str = ""
    """The sorting key of the last row of the page before, as `n` or `n,rate`."""


def tasks(db: Database, wanted: Wanted) -> tuple[list[Row], str]:
    """Return rows of tasks with `tried` and `solved`, and the key after which the next page begins."""
    values: dict[str, str | int | float | None] = {"most": PAGE + 1}
    where, rates, per_round = ["1"], ["1"], ""
    if wanted.round is not None:
        values["round"], per_round = wanted.round, " AND traces.round = :round"
        where.append(
            "tasks.id IN (SELECT task_id FROM groups WHERE round = :round "
            "UNION SELECT id FROM tasks WHERE round = :round)"
        )
    if wanted.origin:
        where.append("origin = :origin")
        values["origin"] = wanted.origin
    if wanted.skill:
        where.append("json_valid(skills) AND EXISTS (SELECT 1 FROM json_each(skills) WHERE value = :skill)")
        values["skill"] = wanted.skill
    if wanted.change in CHANGES:
        where += ["tasks.id IN (SELECT task_id FROM evaluations)", CHANGES[wanted.change]]
    if wanted.text:
        columns = ("messages", "oracle", "id")
        where.append(f"({' OR '.join(f'{one} LIKE :text ESCAPE char(92)' for one in columns)})")
        values["text"] = _like(wanted.text)
    for name, sign, bound in (("low", ">=", wanted.low), ("high", "<=", wanted.high)):
        if bound is not None:
            rates.append(f"tried > 0 AND rate {sign} :{name}")
            values[name] = bound
    if wanted.reward_low is not None or wanted.reward_high is not None:
        low, high = wanted.reward_low, wanted.reward_high
        values |= {"least": -1e9 if low is None else low, "below": 1e9 if high is None else high}
        condition = "env_reward >= :least AND env_reward < :below"
        condition += " AND batches.round = :round" if wanted.round is not None else ""
        where.append(f"tasks.context_id IN (SELECT context_id FROM batches WHERE {condition})")  # noqa: S608
    column, direction = SORTS.get(wanted.sort, SORTS["new"])
    if column == "rate":
        rates.append("tried > 0")
    if wanted.after:
        sign, key = ">" if direction == "ASC" else "<", wanted.after.split(",")
        try:
            values |= {"n": int(key[0]), "key": float(key[-1])}
        except ValueError:
            raise NotFound("the address of this page is not whole") from None
        (rates if column == "rate" else where).append(
            f"(rate, n) {sign} (:key, :n)" if column == "rate" else f"n {sign} :n"
        )
    order = f"{column} {direction}, n {direction}"
    sql = f"""
        SELECT tasks.id, tasks.round, tasks.origin, tasks.skills, {_ASKED} AS asked, page.*,
               {_HELD.format("count(*)", "")} AS evaluated, {_HELD.format("sum(success)", "")} AS held
        FROM (SELECT * FROM (
                  SELECT n, tried, solved, solved * 1.0 / nullif(tried, 0) AS rate
                  FROM (SELECT n, {_RATES.replace(_VERDICT, _VERDICT + per_round)}
                        FROM tasks WHERE {" AND ".join(where)})
              ) WHERE {" AND ".join(rates)} ORDER BY {order} LIMIT :most
        ) AS page JOIN tasks ON tasks.n = page.n ORDER BY page.{column} {direction}, page.n {direction}"""  # noqa: S608 - constants
    return _page(db.rows(sql, values), column)


def refusals(
    db: Database, *, reason: str, round_: int | None, text: str, after: str
) -> tuple[list[Row], str]:
    """Return rows of refused generations, newest first, and the key after which the next page begins."""
    values: dict[str, str | int | float | None] = {"most": PAGE + 1}
    where = ["1"]
    for name, condition, given in (
        ("reason", "reason = :reason", reason or None),
        ("round", "contexts.round = :round", round_),
        (
            "text",
            "(generations.text LIKE :text ESCAPE char(92) OR explanation LIKE :text ESCAPE char(92))",
            text,
        ),
        ("n", "generations.n < :n", after),
    ):
        if given not in (None, ""):
            where.append(condition)
            values[name] = _like(text, encoded=False) if name == "text" else given
    if after and not after.isdecimal():
        raise NotFound("the address of this page is not whole")
    sql = f"""
        SELECT generations.n, generations.id, substr(generations.text, 1, 3000) AS text,
               length(generations.text) > 3000 AS more, reason, explanation, contexts.round, contexts.seed_id,
               contexts.id AS context_id
        FROM generations JOIN rejections ON generation_id = generations.id
             JOIN contexts ON contexts.id = context_id
        WHERE {" AND ".join(where)} ORDER BY generations.n DESC LIMIT :most"""  # noqa: S608 - constants
    return _page(db.rows(sql, values), "n")


def _page(rows: list[Row], column: str) -> tuple[list[Row], str]:
    shown = rows[:PAGE]
    if len(rows) <= PAGE:
        return shown, ""
    return shown, f"{shown[-1]['n']}" + (f",{shown[-1]['rate']!r}" if column == "rate" else "")


def _like(text: str, *, encoded: bool = True) -> str:
    """Return the pattern of LIKE for a part of a text; `encoded`: of a text inside of JSON."""
    part = json.dumps(text, ensure_ascii=False)[1:-1] if encoded else text
    for special in "\\%_":
        part = part.replace(special, f"\\{special}")
    return f"%{part}%"


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


def _strings(stored: str | bytes | None) -> list[str]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPage:
    """What the page of a task shows."""

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
    missing: str
    """A sentence if the relatives took too long."""


def task_page(db: Database, id_: str, round_: int | None) -> TaskPage:
    """Return everything about a task.

    Args:
        db: the store.
        id_: the id of the task.
        round_: the round whose rollouts are shown; None for the last one.

    Raises:
        NotFound: there is no such task.
    """
    task = _one(db.rows("SELECT * FROM tasks WHERE id = ?", (id_,)), f"task {id_!r}")
    rounds = db.rows(
        f"""SELECT round, count(*) AS tried, sum(success) AS solved FROM traces
            WHERE task_id = ? AND {_VERDICT} GROUP BY round ORDER BY round""",  # noqa: S608 - a constant
        (id_,),
    )
    known = [int(row["round"]) for row in rounds]
    shown = round_ if round_ in known else (known[-1] if known else None)
    sql = f"""SELECT id, reward, success, explanation, stop_reason, version, prompt_tokens,
                     length(sampled) - prompt_tokens AS tokens,
                     CASE WHEN length(messages) <= {_MOST_CHARS} THEN messages END AS messages
              FROM traces WHERE task_id = ? AND round = ? ORDER BY n LIMIT {_MOST_TRACES}"""  # noqa: S608
    written = db.rows(
        """SELECT generations.text, generations.novelty, contexts.messages, contexts.round, batches.p_hat,
                  batches.env_reward, batches.selected, contexts.id
           FROM generations JOIN contexts ON contexts.id = generations.context_id
                LEFT JOIN batches ON batches.context_id = contexts.id WHERE generations.id = ?""",
        (task["generation_id"],),
    )
    evaluations = db.rows(
        "SELECT round, success, reward, explanation FROM evaluations WHERE task_id = ? ORDER BY round", (id_,)
    )
    group = db.rows(sql, (id_, shown))
    seed, siblings, children, missing = None, list[Row](), list[Row](), ""
    relative = f"SELECT id, round, {_ASKED} AS asked, {_RATES} FROM tasks WHERE"  # noqa: S608 - constants
    try:
        siblings = db.rows(
            f"{relative} context_id = ? ORDER BY n LIMIT {_MOST_FAMILY}", (task["context_id"],)
        )
        seeds = db.rows(f"{relative} origin = 'seed' AND seed_id = ? LIMIT 1", (task["seed_id"],))
        seed = seeds[0] if seeds else None
        generated = f"origin = 'generated' AND seed_id = ? ORDER BY n DESC LIMIT {_MOST_FAMILY}"
        children = db.rows(f"{relative} {generated}", (task["seed_id"],))
    except DataError as error:
        missing = str(error)
    return TaskPage(
        task=task,
        messages=conversation(task["messages"]),
        skills=_strings(task["skills"]),
        spec=parsed(task["spec"]),
        payload=parsed(task["payload"]),
        oracle=_strings(task["oracle"]),
        written=written[0] if written else None,
        context=conversation(written[0]["messages"]) if written else [],
        rounds=rounds,
        evaluations=evaluations,
        group=group,
        shown=shown,
        seed=seed,
        siblings=siblings,
        children=children,
        missing=missing,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A sampled token."""

    id: int
    logprob: float
    """Nats."""
    text: str
    """"" if the tokenizer is not known, or if the character ends with a later token."""

    @property
    def shade(self) -> int:
        """How surprising it was: 0 for certain, to 5."""
        return sum(self.logprob < bound for bound in (0.0, -0.1, -0.7, -2.3, -4.6))


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePage:
    """What the page of a trajectory shows."""

    trace: Row
    task: Row
    asked: list[Told]
    messages: list[Told]
    replies: list[list[Token]]
    """The sampled tokens of each reply."""
    before: str | None
    after: str | None
    """Ids of the trajectories before and after it in the store."""
    place: int
    """Its place in the group of its task, from 1."""
    group: int

    @property
    def spelled(self) -> bool:
        """Whether the texts of the tokens are known."""
        return any(token.text for reply in self.replies for token in reply)


Texts = Callable[[Sequence[int]], list[str]]
"""Token ids -> the text of each."""


def trace_page(db: Database, id_: str, texts: Texts) -> TracePage:
    """Return everything about a trajectory.

    Raises:
        NotFound: there is no such trajectory.
    """
    trace = _one(db.rows("SELECT * FROM traces WHERE id = ?", (id_,)), f"trajectory {id_!r}")
    task = _one(db.rows("SELECT * FROM tasks WHERE id = ?", (trace["task_id"],)), "task of this trajectory")
    neighbors = [
        db.rows(f"SELECT id FROM traces WHERE n {sign} ? ORDER BY n {order} LIMIT 1", (trace["n"],))  # noqa: S608
        for sign, order in (("<", "DESC"), (">", "ASC"))
    ]
    before, after = (str(rows[0]["id"]) if rows else None for rows in neighbors)
    group = [
        row["n"]
        for row in db.rows(
            "SELECT n FROM traces WHERE round = ? AND group_position = ? ORDER BY n",
            (trace["round"], trace["group_position"]),
        )
    ]
    return TracePage(
        trace=trace,
        task=task,
        asked=conversation(task["messages"]),
        messages=conversation(trace["messages"]),
        replies=_replies(trace, texts),
        before=before,
        after=after,
        place=group.index(trace["n"]) + 1,
        group=len(group),
    )


def _replies(trace: Row, texts: Texts) -> list[list[Token]]:
    """Return the sampled tokens of each reply; a blob of a wrong length gives those that it has."""
    ids, logprobs = _unpacked("I", trace["token_ids"]), _unpacked("d", trace["logprobs"])
    tokens = zip(bytes(trace["sampled"]), map(int, ids), logprobs, strict=False)
    replies: list[list[Token]] = []
    for sampled, run in groupby(tokens, key=lambda token: bool(token[0])):
        if sampled:
            kept = [(id_, logprob) for _, id_, logprob in run]
            shown = texts([id_ for id_, _ in kept])
            replies.append(
                [
                    Token(id=id_, logprob=logprob, text=text)
                    for (id_, logprob), text in zip(kept, shown, strict=True)
                ]
            )
    return replies


def _unpacked(code: str, blob: object) -> tuple[float, ...]:
    data = blob if isinstance(blob, bytes) else b""
    count = len(data) // struct.calcsize(f"<{code}")
    return struct.unpack_from(f"<{count}{code}", data)


def texts_of(backend: str, model: str, caches: Sequence[Path]) -> Texts:
    """Return a function from token ids to texts, with the tokenizer on this machine if there is one.

    Args:
        backend: `policy.backend` of the run; the tokens of `scripted` are bytes.
        model: `policy.model` of the run.
        caches: folders that may hold the model's folder.
    """
    if backend == "scripted":
        return _bytes
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


_TEXTS = {
    "task": ("tasks", ("messages", "spec", "payload", "oracle")),
    "trace": ("traces", ("messages", "explanation")),
    "generation": ("generations", ("text",)),
    "context": ("contexts", ("messages",)),
}
"""Kinds of records -> table, and columns whose whole text has a page."""


def whole_text(db: Database, kind: str, id_: str, part: str, place: int | None) -> str:
    """Return a whole text that a page has cut.

    Args:
        db: the store.
        kind: a key of `_TEXTS`.
        id_: of the record.
        part: a column of it.
        place: of messages and of demonstrations: which one; None for all.

    Raises:
        NotFound: there is no such text.
    """
    table, columns = _TEXTS.get(kind, ("", ()))
    if part not in columns:
        raise NotFound("there is no such text")
    row = _one(db.rows(f"SELECT {part} FROM {table} WHERE id = ?", (id_,)), f"{kind} {id_!r}")  # noqa: S608
    if part == "messages":
        texts = [
            one.content if place is not None else f"[{one.role}]\n{one.content}"
            for one in conversation(row[0])
        ]
    elif part == "oracle":
        texts = _strings(row[0])
    else:
        texts = [readable(row[0])]
    if place is None:
        return "\n\n".join(texts)
    if not 0 <= place < len(texts):
        raise NotFound("there is no such text")
    return texts[place]
