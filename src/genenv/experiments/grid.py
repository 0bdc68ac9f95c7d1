"""A grid of runs: variants times seeds of one configuration, in one folder that can be moved.

SWEEP/sweep.json             what the grid is of
SWEEP/config.toml            what CONFIG said, with all that was set
SWEEP/<variant>/seed-<n>/    a run
SWEEP/<variant>/seed-<n>.log what it printed
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from genenv.config.files import apply_override, dump_tables, read_tables
from genenv.config.run import load_config
from genenv.errors import DataError, UsageError
from genenv.runs.files import write_whole
from genenv.runs.folder import RunFolder
from genenv.runs.store.identity import read_last_round

FILE = "sweep.json"


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a grid."""

    variant: str
    seed: int
    path: Path

    @property
    def log(self) -> Path:
        """What its process printed."""
        return self.path.with_name(f"{self.path.name}.log")

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.variant}, seed {self.seed}"


class _File(BaseModel, extra="forbid"):
    """`sweep.json`."""

    format: Literal[1]
    variants: list[str]
    seeds: list[int]
    contrasts: list[tuple[str, str]]
    """Pairs of variants whose comparison was named before any run began."""
    origin: str | None = None
    """RUN@ROUND that all runs go on from."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A folder of runs."""

    path: Path
    variants: Sequence[str]
    seeds: Sequence[int]
    contrasts: Sequence[tuple[str, str]]
    origin: str | None

    @property
    def config(self) -> Path:
        """The settings that all cells share, TOML."""
        return self.path / "config.toml"

    def cells(self) -> Iterator[Cell]:
        """All of them, seed after seed: what is stopped half-way has as many seeds of each variant."""
        for seed in self.seeds:
            for variant in self.variants:
                yield Cell(variant, seed, self.path / variant / f"seed-{seed}")

    @classmethod
    def open(cls, path: Path) -> Grid:
        """A sweep that was begun.

        Raises:
            UsageError: the folder holds no sweep.
            DataError: its file is damaged.
        """
        file = path / FILE
        if not file.is_file():
            raise UsageError(f"{path} holds no sweep; name a folder that `genenv sweep` made")
        try:
            found = _File.model_validate_json(file.read_bytes())
        except ValidationError as error:
            what = error.errors()[0]["msg"]
            raise DataError(f"{file} is damaged ({what}); begin the sweep anew") from error
        return cls(path, found.variants, found.seeds, found.contrasts, found.origin)

    @classmethod
    def begin(  # noqa: PLR0913 - what a grid is of
        cls,
        path: Path,
        config: Path,
        overrides: Sequence[str],
        *,
        variants: Sequence[str],
        seeds: Sequence[int],
        contrasts: Sequence[tuple[str, str]] = (),
        origin: str | None = None,
    ) -> Grid:
        """Begin a sweep, or go on with one: variants and seeds may be added, settings may not change.

        Args:
            path: its folder; made when it is missing.
            config: TOML file that all cells share.
            overrides: `key=value` each, for all cells.
            variants: names of variants, or several joined by `+`.
            seeds: `run.seed` of each row of the grid.
            contrasts: which pairs are to be compared.
            origin: RUN@ROUND that all of them go on from.

        Raises:
            UsageError: a variant or setting is wrong, or the folder holds a sweep of other settings.
            DataError: the sweep that it holds is damaged.
        """
        document = read_tables(config)
        for override in overrides:
            apply_override(document, override)
        for variant in variants:
            load_config(config, overrides, variant=variant)  # what is wrong is known before the first run
        unknown = [name for pair in contrasts for name in pair if name not in variants]
        if unknown:
            raise UsageError(f"a contrast names {unknown[0]!r}, which is no variant of this sweep")
        text = dump_tables(document)
        grid = cls(path, list(variants), list(seeds), list(contrasts), origin)
        if (path / FILE).is_file():
            grid = cls.open(path)._extended(grid, text)
        elif path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UsageError(f"{path} is there already and holds no sweep; choose another --out")
        path.mkdir(parents=True, exist_ok=True)
        write_whole(grid.config, text)
        write_whole(path / FILE, json.dumps(grid._as_json(), indent=2) + "\n")
        return grid

    def _extended(self, other: Grid, text: str) -> Grid:
        """The grid with another one's variants and seeds added.

        Raises:
            UsageError: the settings that all share differ.
        """
        if not self.config.is_file() or self.config.read_text(encoding="utf-8") != text:
            raise UsageError(
                f"{self.path} is a sweep of other settings (see {self.config}); choose another --out"
            )
        if other.origin != self.origin:
            raise UsageError(
                f"{self.path} is a sweep from {self.origin or 'the start'}; choose another --out"
            )

        return Grid(
            self.path,
            list(dict.fromkeys([*self.variants, *other.variants])),
            sorted({*self.seeds, *other.seeds}),
            list(dict.fromkeys([*self.contrasts, *other.contrasts])),
            self.origin,
        )

    def _as_json(self) -> dict[str, object]:
        return _File(
            format=1,
            variants=list(self.variants),
            seeds=list(self.seeds),
            contrasts=list(self.contrasts),
            origin=self.origin,
        ).model_dump(mode="json")


def rounds_done(cell: Cell) -> tuple[int, int] | None:
    """How many rounds a cell's run has committed, and of how many; None before it has begun.

    Raises:
        GenenvError: the run is damaged.
    """
    if not (cell.path / "config.toml").is_file():
        return None
    folder = RunFolder.open(cell.path)
    last = read_last_round(folder.pool)
    return last or 0, load_config(folder.config).run.rounds
