"""Generations that the gate refused: how often for a reason, which texts occur often, and the evidence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from sqlite3 import Row

from markupsafe import Markup

from genenv.runs.store.database import Database
from genenv.viewer.curves import family, picture, plain
from genenv.viewer.folders import NotFound, Run
from genenv.viewer.lists import ASKED, PAGE, page, phrase, row_number

REASONS = {
    "unfinished": "the generation reached the token limit before the spec ended.",
    "syntax": "the text is not JSON, or too long.",
    "schema": "the text is JSON, but not a spec of the environment.",
    "inconsistent": "the difficulty fields do not describe the rest of the spec.",
    "execution": "the environment could not execute the spec, so there is no ground truth.",
    "oracle_fails": "the demonstration that the spec contains does not pass the checker.",
    "trivial": "an empty or a random solution passes the checker.",
    "checks_disagree": "two checks of the same solution give different verdicts.",
    "unstated": "the task does not state a literal that the answer needs.",
    "leak": "the task gives its answer away.",
    "duplicate": "the task is too similar to a task that the run has.",
    "held_out": "the task is too similar to a held-out task.",
}
"""Reason of a refusal -> what it means."""

_NEWEST, _MOST_TEXTS, _LONGEST = 1000, 8, 3000
"""Refusals of which equal texts are counted, texts that are shown, and characters of one."""
_BASE = "base-"
"""What the gate calls a base task: this and the id of its seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """How often the gate refused a generation for a reason."""

    reason: str
    count: int
    share: float
    """Of all refusals."""
    early: float | None
    late: float | None
    """Share of the refusals in the first and in the last third of the rounds; None without any."""
    line: Markup
    """A small picture: refusals by round."""


def counts(run: Run) -> list[Counted]:
    """Return the refusals of a run by reason, the most frequent first; without reasons that do not occur."""
    prefix = "simulator/rejected/"
    names, lines = family(run, prefix)
    rounds = sorted({number for name in names for number in lines[name]})
    third = -(-len(rounds) // 3)
    totals = {number: sum(lines[name].get(number, 0.0) for name in names) for number in rounds}

    def share(name: str, some: Sequence[int]) -> float | None:
        total = sum(totals[number] for number in some)
        return sum(lines[name].get(number, 0.0) for number in some) / total if total else None

    return [
        Counted(
            reason=name.removeprefix(prefix),
            count=round(sum(lines[name].values())),
            share=share(name, rounds) or 0.0,
            early=share(name, rounds[:third]),
            late=share(name, rounds[-third:]),
            line=picture(lines[name], f"refusals as {plain(name, prefix)} by round", least_span=1.0),
        )
        for name in names
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which refusals a page lists, and where it begins."""

    reason: str = ""
    """"" for any."""
    round: int | None = None
    """In which they were written; None for any."""
    text: str = ""
    """Words of what was written, or of the explanation."""
    same: str = ""
    """The id of a generation: those with the same text alone, of the newest that fit."""
    after: str = ""
    """The key of the last row of the page before."""

    @property
    def indexed(self) -> bool:
        """Whether the store alone cannot answer this quickly."""
        return bool(self.reason or self.text)


def refused(db: Database, wanted: Wanted) -> tuple[list[Row], str]:
    """Return rows of refused generations, newest first, and the key after which the next page begins.

    Args:
        db: the store, with the side file as `side` if `wanted.indexed`.
        wanted: which refusals.
    """
    newest, values = _newest(wanted, _NEWEST if wanted.same else PAGE + 1)
    same = "WHERE text = (SELECT text FROM main.generations WHERE id = :same)" if wanted.same else ""
    sql = f"""
        SELECT generations.n, generations.id, substr(generations.text, 1, {_LONGEST}) AS text,
               length(generations.text) > {_LONGEST} AS more, rejections.reason, explanation, contexts.round,
               contexts.seed_id, contexts.id AS context_id
        FROM (SELECT n FROM ({newest}) JOIN main.generations USING (n) {same}
              ORDER BY n DESC LIMIT :most) AS page
             JOIN generations ON generations.n = page.n JOIN rejections ON generation_id = generations.id
             JOIN contexts ON contexts.id = context_id
        ORDER BY page.n DESC"""  # noqa: S608 - constants
    return page(db.rows(sql, values), "n")


def repeated(db: Database, wanted: Wanted) -> list[Row]:
    """Return the texts that several of the newest refusals have: `text`, `count`, and the newest `id`."""
    newest, values = _newest(wanted, _NEWEST)
    sql = f"""
        SELECT substr(text, 1, {_LONGEST}) AS text, count(*) AS count, max(n), id
        FROM ({newest}) JOIN main.generations USING (n)
        GROUP BY generations.text HAVING count(*) > 1 ORDER BY count(*) DESC, n DESC LIMIT {_MOST_TEXTS}"""  # noqa: S608
    return db.rows(sql, values)


def _newest(wanted: Wanted, most: int) -> tuple[str, dict[str, str | int | None]]:
    """Return a query of the numbers of the newest refusals that fit, and its values."""
    if wanted.after and row_number(wanted.after) is None:
        raise NotFound("the address of this page is not whole")
    if wanted.indexed:
        n, of, in_round = "one.n", "side.refused AS one", "one.round = :round"
        if wanted.text:
            n = "refused_words.rowid"
            of = f"side.refused_words CROSS JOIN side.refused AS one ON one.n = {n}"
    else:
        n, in_round = "one.n", "contexts.round = :round"
        of = """main.generations AS one JOIN main.rejections ON generation_id = one.id
                JOIN main.contexts ON contexts.id = context_id"""
    given = (
        (wanted.text, "refused_words MATCH :text"),
        (wanted.reason, "one.reason = :reason"),
        (wanted.round is not None, in_round),
        (wanted.after, f"{n} < :after"),
    )
    where = [condition for is_given, condition in given if is_given]
    sql = f"SELECT {n} AS n FROM {of} WHERE {' AND '.join(where or ['1'])} ORDER BY {n} DESC LIMIT {most}"  # noqa: S608
    values: dict[str, str | int | None] = {
        "text": phrase(wanted.text),
        "reason": wanted.reason,
        "round": wanted.round,
        "same": wanted.same,
        "after": row_number(wanted.after) or 0,
        "most": PAGE + 1,
    }
    return sql, values


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A task that the explanation of a refusal names."""

    id: str
    asked: str
    """What it asks; "" for a base task, of which the store has the spec alone."""
    spec: str
    is_task: bool
    """Whether it has a page."""


def named(db: Database, rows: Sequence[Row]) -> dict[str, list[Named]]:
    """Return the tasks that the explanation of each refusal names, by the id of the generation."""
    words = {
        row["id"]: {one.rstrip(".,;:") for one in str(row["explanation"])[:2000].split()} for row in rows
    }
    every = sorted({word for found in words.values() for word in found})
    of_tasks = f"SELECT id, {ASKED} AS asked, spec FROM tasks WHERE id IN (SELECT value FROM json_each(?))"  # noqa: S608
    of_seeds = "SELECT id, '' AS asked, spec FROM seeds WHERE id IN (SELECT value FROM json_each(?))"
    seeds = [word.removeprefix(_BASE) for word in every if word.startswith(_BASE)]
    known = {f"{_BASE}{row['id']}": (row, False) for row in db.rows(of_seeds, (json.dumps(seeds),))}
    known |= {str(row["id"]): (row, True) for row in db.rows(of_tasks, (json.dumps(every),))}
    return {
        id_: [
            Named(id=one, asked=str(row["asked"] or ""), spec=str(row["spec"])[:_LONGEST], is_task=is_task)
            for one in sorted(found & set(known))
            for row, is_task in (known[one],)
        ]
        for id_, found in words.items()
    }
