"""A grid of runs: variants times seeds of one configuration, in one folder that can be moved.

SWEEP/sweep.json             what the grid is of
SWEEP/config.toml            what CONFIG said, with all that was set
SWEEP/<variant>/seed-<n>/    a run
SWEEP/<variant>/seed-<n>.log what it printed
SWEEP/warm-up/seed-<n>/      round 0 alone, where all variants of a seed go on from it
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from genenv.config.run import load_config, parse_config
from genenv.config.tables import apply_override, dump_tables, read_tables, renamed
from genenv.config.variants import with_variant
from genenv.errors import DataError, UsageError
from genenv.files import check_writable, write_whole
from genenv.runs.folder import RunFolder
from genenv.runs.store.reader import read_last_round
from genenv.simulator.settings import check_simulator

FILE = "sweep.json"
WARM_UP = "warm-up"
"""Folder, beside those of the variants, of the runs that are a warm-up alone."""
_FOLDER = re.compile(r"[A-Za-z][A-Za-z0-9+=._-]{0,199}")


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a grid."""

    variant: str
    """Empty: none, the warm-up that the variants of a seed share."""
    seed: int
    path: Path
    origin: str | None = None
    """RUN@ROUND that it goes on from."""

    @property
    def log(self) -> Path:
        """What its process printed."""
        return self.path.with_name(f"{self.path.name}.log")

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.variant or WARM_UP}, seed {self.seed}"


class _File(BaseModel, extra="forbid"):
    """`sweep.json`."""

    format: Literal[1]
    variants: list[str]
    seeds: list[int]
    contrasts: list[tuple[str, str]]
    """Pairs of variants whose comparison was named before any run began."""
    origin: str | None = None
    """RUN@ROUND that all runs go on from."""
    shared_warmup: bool = False


@dataclass(frozen=True, slots=True)
class Grid:
    """A folder of runs."""

    path: Path
    variants: Sequence[str]
    seeds: Sequence[int]
    contrasts: Sequence[tuple[str, str]]
    origin: str | None
    shared_warmup: bool = False
    """The variants of a seed go on from one warm-up, that of the settings without any variant."""

    @property
    def config(self) -> Path:
        """The settings that all cells share, TOML."""
        return self.path / "config.toml"

    def cells(self) -> Iterator[Cell]:
        """All of them, seed after seed: what is stopped half-way has as many seeds of each variant."""
        for seed in self.seeds:
            for variant in self.variants:
                yield Cell(variant, seed, self.path / variant / f"seed-{seed}", self._origin(seed))

    def warm_ups(self) -> Iterator[Cell]:
        """What has to be played before any other: nothing, or the shared warm-up of each seed."""
        for seed in self.seeds if self.shared_warmup else ():
            yield Cell("", seed, self.path / WARM_UP / f"seed-{seed}")

    def _origin(self, seed: int) -> str | None:
        return f"{self.path / WARM_UP / f'seed-{seed}'}@0" if self.shared_warmup else self.origin

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
        return cls(path, found.variants, found.seeds, found.contrasts, found.origin, found.shared_warmup)

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
        shared_warmup: bool = False,
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
            shared_warmup: the variants of a seed go on from one warm-up.

        Raises:
            UsageError: a variant or setting is wrong, or the folder holds a sweep of other settings.
            DataError: the sweep that it holds is damaged.
        """
        document = renamed(read_tables(config), warn=True)
        for override in overrides:
            apply_override(document, override)
        for variant in variants:
            if not _FOLDER.fullmatch(variant):
                raise UsageError(
                    f"no folder can be called {variant!r}; variants have letters, digits and + = . _ -, "
                    "200 of them at most: settings that all share go into CONFIG or --set"
                )
            read = parse_config(with_variant(document, variant))  # as its runs will read it
            check_simulator(read.simulator)
        unknown = [name for pair in contrasts for name in pair if name not in variants]
        if unknown:
            raise UsageError(f"a contrast names {unknown[0]!r}, which is no variant of this sweep")
        if origin is not None and shared_warmup:
            raise UsageError("--from names a warm-up already; leave out --shared-warmup")
        text = dump_tables(document)
        grid = cls(path, list(variants), list(seeds), list(contrasts), origin, shared_warmup)
        if (path / FILE).is_file():
            grid = cls.open(path)._extended(grid, text)
        elif path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UsageError(f"{path} is there already and holds no sweep; choose another --out")
        check_writable(path)
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
        if (other.origin, other.shared_warmup) != (self.origin, self.shared_warmup):
            begun = "one warm-up a seed" if self.shared_warmup else self.origin or "the start"
            raise UsageError(f"{self.path} is a sweep from {begun}; choose another --out")
        return Grid(
            self.path,
            list(dict.fromkeys([*self.variants, *other.variants])),
            sorted({*self.seeds, *other.seeds}),
            list(dict.fromkeys([*self.contrasts, *other.contrasts])),
            self.origin,
            self.shared_warmup,
        )

    def _as_json(self) -> dict[str, object]:
        return _File(
            format=1,
            variants=list(self.variants),
            seeds=list(self.seeds),
            contrasts=list(self.contrasts),
            origin=self.origin,
            shared_warmup=self.shared_warmup,
        ).model_dump(mode="json")


def rounds_done(cell: Cell) -> tuple[int, int] | None:
    """How many rounds a cell's run has committed, and of how many; None before its warm-up is.

    Raises:
        GenenvError: the run is damaged.
    """
    if not (cell.path / "config.toml").is_file():
        return None
    folder = RunFolder.open(cell.path)
    last = read_last_round(folder.pool)
    return None if last is None else (last, load_config(folder.config).run.rounds)
