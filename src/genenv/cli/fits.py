"""`genenv doctor CONFIG`: whether a run fits into the memory of this machine, worked out before it begins."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from genenv.config.run import RunConfig
from genenv.errors import UsageError

_GIB = 2**30
_CLOSE = 0.9
"""More than this share of all memory leaves nothing for others."""


def show_fit(config: RunConfig, console: Console, *, processes: int = 1) -> None:
    """Print what its players take, part by part, and what to change where that is too much.

    Args:
        config: the run.
        console: is printed to.
        processes: how many train together; what each of them takes.

    Raises:
        UsageError: the model is not to be had, learns elsewhere, or not in so many processes.
    """
    if config.policy.backend not in ("local", "vllm"):
        raise UsageError(
            f'policy.backend is "{config.policy.backend}": its models take no memory of this machine'
        )
    if processes > 1 and config.policy.backend != "vllm":
        raise UsageError(
            "several processes train beside servers that sample: set policy.backend to vllm, or leave out "
            "--processes"
        )
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
