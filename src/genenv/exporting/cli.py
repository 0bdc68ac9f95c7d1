"""`genenv export-agent`: export a trained agent from a run, so that others can serve it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from genenv.cli.console import begin
from genenv.errors import UsageError, unknown_name
from genenv.exporting.agent import DTYPES, Exported, Wanted
from genenv.exporting.agent import export_agent as export
from genenv.exporting.exporters import Form
from genenv.plugins import parts
from genenv.texts import inert

KEPT = "nothing was written"
"""A phrase for `genenv.cli.app` about the work that is preserved if the command ends early."""

_SAFETENSORS = "safetensors"
"""The format of two exporters, `model` and `adapter`."""

Run = Annotated[
    str, typer.Argument(metavar="RUN", help="A run, or a round of it: runs/desk@8.", show_default=False)
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="The folder that is made; exports/RUN-ROUND when left out."),
]
Merge = Annotated[
    bool,
    typer.Option(
        "--merge/--adapter", help="The whole model, or the adapter alone, which is served on the base."
    ),
]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="safetensors|gguf",
        help="A folder for transformers and vLLM, one GGUF file for llama.cpp and Ollama, or a form that an "
        "installed package adds.",
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        metavar="|".join(DTYPES),
        help="Number format of the merged weights; auto: that of the files they come from, float16 for GGUF.",
    ),
]


def export_agent(
    run: Run, out: Out = None, merge: Merge = True, format: Format = _SAFETENSORS, dtype: Dtype = "auto"
) -> None:
    """Take a trained agent out of a run: a folder for transformers, vLLM, PEFT, llama.cpp or Ollama."""
    others = [name for name in parts("exporters") if name not in (Form.MODEL, Form.ADAPTER)]
    if format not in (_SAFETENSORS, *others):
        raise unknown_name("--format", format, (_SAFETENSORS, *others))
    if dtype not in DTYPES:
        raise unknown_name("--dtype", dtype, DTYPES)
    if format != _SAFETENSORS and not merge:
        raise UsageError(f"--adapter is a folder for PEFT and vLLM; leave out --adapter or --format {format}")
    form = format if format != _SAFETENSORS else Form.MODEL if merge else Form.ADAPTER
    begin(f"loading {run}")
    start = time.monotonic()
    wanted = Wanted(run=run, form=form, out=out, dtype=dtype)
    exported = export(wanted, lambda: datetime.now(UTC).date().isoformat())
    _show(exported, time.monotonic() - start)


def _show(exported: Exported, seconds: float) -> None:
    size = f"{exported.bytes / 1e6:,.0f} MB"
    typer.echo(inert(f"{exported.folder}: {size}, in {seconds:.0f} s; README.md says what it is"))
    near = exported.nearness
    if near is not None:
        typer.echo(
            f"compared with base and adapter apart on {near.texts} tasks: the same likeliest next token at "
            f"{near.same} of {near.places} places"
        )
    for way in exported.ways:
        typer.echo(inert("\n".join([f"\n{way.words}:", *(f"  {command}" for command in way.commands)])))
