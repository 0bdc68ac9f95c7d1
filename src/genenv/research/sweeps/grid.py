"""Grids of runs (variants times seeds of one configuration), each in one folder that can be moved.

SWEEP/sweep.json             the variants, seeds and contrasts of the grid
SWEEP/config.toml            the content of CONFIG with all overrides
SWEEP/<variant>/seed-<n>/    a run; in the folder's name : and / of the variant are %3A and %2F
SWEEP/<variant>/seed-<n>.log the output of the run's process
SWEEP/warm-up/seed-<n>/      only round 0, if all variants of a seed start from it
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from pydantic import BaseModel, Field, ValidationError

from genenv.agent.policy import check_agents
from genenv.config.resolved import by_key
from genenv.config.run import RunConfig, parse_config
from genenv.config.tables import apply_override, dump_tables, read_tables
from genenv.config.variants import with_variant
from genenv.errors import DataError, UsageError, first_problem
from genenv.files import check_writable, write_whole
from genenv.runs.folder import RunFolder
from genenv.runs.store.reader import read_last_round
from genenv.settings import is_own
from genenv.simulator.settings import check_simulator
from genenv.training.opening import check_own_parts

FILE = "sweep.json"
_LONGEST = 200
"""The most characters of a folder's name."""
WARM_UP = "warm-up"
"""The folder of the shared warm-up runs."""
_SEED = re.compile(r"(^|\+)\s*run\.seed\s*=")
"""An override or a part of a variant that sets the seed."""
_FOLDER = re.compile(r"[A-Za-z][A-Za-z0-9+=._:/-]{0,199}")


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a grid."""

    variant: str
    """The variant's name; empty: the warm-up shared by the variants of a seed."""
    seed: int
    path: Path
    origin: str | None = None
    """RUN@ROUND from which the run starts."""

    @property
    def log(self) -> Path:
        """Return the path of the file with the output of the run's process."""
        return self.path.with_name(f"{self.path.name}.log")

    @property
    def name(self) -> str:
        """Return the cell's name for display."""
        return f"{self.variant or WARM_UP}, seed {self.seed}"


class _File(BaseModel, frozen=True, extra="forbid"):
    """The contents of `sweep.json`."""

    format: Literal[1]
    variants: list[str]
    seeds: list[int]
    contrasts: list[tuple[str, str]]
    """Pairs of variants to compare; those that were named after a run had begun are in `later` too."""
    origin: str | None = None
    """RUN@ROUND from which all runs start."""
    shared_warmup: bool = False
    """The variants of a seed go on from one warm-up, that of the settings without any variant."""
    later: list[str] = Field(default_factory=list[str])
    """Seeds and contrasts that were added when runs were there already, as readers of a test must know."""


class Grid(_File, frozen=True):
    """A sweep: a folder with a run for each variant and seed."""

    path: Path = Field(exclude=True)

    @property
    def config(self) -> Path:
        """Return the path of the TOML file with the settings that all cells share."""
        return self.path / "config.toml"

    def cells(self) -> Iterator[Cell]:
        """Yield all cells, seed by seed, so that a stopped sweep has equally many seeds of each variant."""
        for seed in self.seeds:
            for variant in self.variants:
                yield Cell(variant, seed, self.path / folder_of(variant) / f"seed-{seed}", self._origin(seed))

    def warm_ups(self) -> Iterator[Cell]:
        """Yield the cells to run before all others: the shared warm-up of each seed, if there is one."""
        for seed in self.seeds if self.shared_warmup else ():
            yield Cell("", seed, self.path / WARM_UP / f"seed-{seed}")

    def unused_warmups(self) -> Iterator[str]:
        """Yield a sentence for each variant with settings of a warm-up that the shared one ignores."""
        document = read_tables(self.config)
        shared = by_key(parse_config(document))
        for variant in self.variants if self.shared_warmup else ():
            own = by_key(parse_config(with_variant(document, variant)))
            keys = sorted(one for one in own if ".warmup." in one and own[one] != shared.get(one))
            if keys:
                named = ", ".join(keys)
                yield f"{named} of {variant} have no effect: all variants share the warm-up of CONFIG"

    def replaced_parts(self) -> Iterator[str]:
        """Yield a sentence for each part of the user's own in CONFIG that a variant replaces by another."""
        document = read_tables(self.config)
        given = by_key(parse_config(document))
        shared = {key: value for key, value in given.items() if isinstance(value, str) and is_own(value)}
        for variant in self.variants:
            own = by_key(parse_config(with_variant(document, variant)))
            for key in sorted(key for key in shared if own.get(key) != shared[key]):
                yield (
                    f"{variant} sets {key} to {own.get(key)!r} instead of {shared[key]!r} in CONFIG; to keep "
                    f"that, name the variant {variant}+{key}={shared[key]}"
                )

    def _origin(self, seed: int) -> str | None:
        return f"{self.path / WARM_UP / f'seed-{seed}'}@0" if self.shared_warmup else self.origin

    @classmethod
    def open(cls, path: Path) -> Grid:
        """Open an existing sweep.

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
            raise DataError(f"{file} is damaged ({first_problem(error)}); begin the sweep anew") from error
        return cls(path=path, **dict(found))

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
        """Start or continue a sweep: variants and seeds may be added, settings may not change.

        Args:
            path: the folder of the sweep, created if missing.
            config: the TOML file that all cells share.
            overrides: settings of the form `key=value`, for all cells.
            variants: names of variants, or several joined by `+`.
            seeds: the values of `run.seed`.
            contrasts: the pairs of variants to compare.
            origin: RUN@ROUND from which all runs start.
            shared_warmup: whether the variants of a seed start from one warm-up.

        Raises:
            UsageError: a variant or setting is wrong, or the folder holds a sweep of other settings.
            DataError: the existing sweep is damaged.
        """
        document = read_tables(config)
        if not variants:
            raise UsageError("--variants names no variant, such as random,genenv")
        seeded = [one for one in (*overrides, *variants) if _SEED.search(one)]
        if seeded:
            raise UsageError(f"{seeded[0]!r} sets run.seed, which --seeds gives each run; leave it out")
        for override in overrides:
            apply_override(document, override)
        known = cls.open(path).variants if (path / FILE).is_file() else []
        for variant in variants:
            if not _FOLDER.fullmatch(variant) or len(folder_of(variant)) > _LONGEST:
                raise UsageError(
                    f"no folder can be called {variant!r}; variants have letters, digits and + = . _ - : /, "
                    f"{_LONGEST} of them at most: settings that all share go into CONFIG or --set"
                )
            tables = with_variant(document, variant)
            if tables["variant"] != variant:
                raise UsageError(f"the variant {variant!r} is written {tables['variant']!r}: name it so")
            read = parse_config(tables)  # as its runs will read it
            if variant not in known:
                check_simulator(read.simulator, read.curriculum.novelty_threshold)
            check_agents(read.population)
            check_own_parts(read)
            if shared_warmup:
                _check_interface(parse_config(document), read, variant)
        if origin is not None and shared_warmup:
            raise UsageError("--from names a warm-up already; leave out --shared-warmup")
        text = dump_tables(document)
        grid = cls(
            path=path,
            format=1,
            variants=list(dict.fromkeys(variants)),
            seeds=list(seeds),
            contrasts=list(contrasts),
            origin=origin,
            shared_warmup=shared_warmup,
        )
        if (path / FILE).is_file():
            grid = cls.open(path)._extended(grid, text)
        elif path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UsageError(f"{path} is there already and holds no sweep; choose another --out")
        unknown = [name for pair in contrasts for name in pair if name not in grid.variants]
        if unknown:
            raise UsageError(f"a contrast names {unknown[0]!r}, which is no variant of this sweep")
        check_writable(path)
        path.mkdir(parents=True, exist_ok=True)
        write_whole(grid.config, text)
        kept = grid.model_dump(mode="json", exclude=None if grid.later else {"later"})
        write_whole(path / FILE, json.dumps(kept, indent=2) + "\n")
        return grid

    def _extended(self, other: Grid, text: str) -> Grid:
        """Return the grid with the variants, seeds and contrasts of another one added.

        Raises:
            UsageError: the shared settings or the starting points differ.
        """
        if not self.config.is_file() or self.config.read_text(encoding="utf-8") != text:
            raise UsageError(
                f"{self.path} is a sweep of other settings (see {self.config}); choose another --out"
            )
        if (other.origin, other.shared_warmup) != (self.origin, self.shared_warmup):
            begun = "one warm-up a seed" if self.shared_warmup else self.origin or "the start"
            raise UsageError(f"{self.path} is a sweep from {begun}; choose another --out")
        more_seeds = [one for one in other.seeds if one not in self.seeds]
        contrasts = [one for one in other.contrasts if one not in self.contrasts]
        later = [*(f"seed {one}" for one in more_seeds), *(f"contrast {':'.join(one)}" for one in contrasts)]
        has_runs = any(cell.path.exists() for cell in self.cells())
        return self.model_copy(
            update={
                "later": [*self.later, *later] if has_runs else self.later,
                "variants": list(dict.fromkeys([*self.variants, *other.variants])),
                "seeds": sorted({*self.seeds, *other.seeds}),
                "contrasts": list(dict.fromkeys([*self.contrasts, *other.contrasts])),
            }
        )


def folder_of(variant: str) -> str:
    """Return the name of the folder of a variant's runs."""
    return quote(variant, safe="+=")


def rounds_done(cell: Cell) -> tuple[int, int] | None:
    """Return a cell's number of committed rounds and its total; None before the warm-up is committed.

    Raises:
        GenenvError: the run is damaged.
    """
    if not (cell.path / "config.toml").is_file():
        return None
    folder = RunFolder.open(cell.path)
    last = read_last_round(folder.pool)
    return None if last is None else (last, folder.settings().run.rounds)


def _check_interface(shared: RunConfig, own: RunConfig, variant: str) -> None:
    """Refuse a shared warm-up in which the simulator learns to write what it does not write in a variant.

    Raises:
        UsageError: it writes specs in one and parameters in the other.
    """
    warmed, written = shared.simulator, own.simulator
    if written.source == "model" and warmed.warmup.steps and warmed.writes != written.writes:
        raise UsageError(
            f"simulator.writes is {written.writes!r} in {variant} and {warmed.writes!r} in CONFIG, so that a "
            "shared warm-up would train its simulator on the wrong format; run it in a sweep of its own, "
            f"with --set 'simulator.writes=\"{written.writes}\"'"
        )
