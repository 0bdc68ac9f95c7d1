"""Metrics sinks besides `metrics.jsonl`: TensorBoard and Weights & Biases."""

from __future__ import annotations

import importlib
import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Protocol

from genenv.config.run import LoggingConfig
from genenv.errors import UsageError, first_line
from genenv.runs.metrics import check_names, describe
from genenv.types import JsonObject

log = logging.getLogger(__name__)

_MODULES = {"tensorboard": "tensorboard.summary", "wandb": "wandb"}
"""Setting and package of a sink -> the module that is used."""


class Sink(Protocol):
    """A destination of metrics. `TensorBoardSink` and `WandbSink` implement it."""

    def write(self, round_: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of a round. A resumed run writes its last round again."""
        ...

    def close(self) -> None:
        """Flush and close. Nothing is written afterwards."""
        ...


class TensorBoardSink:
    """Writes event files for TensorBoard. A round that is written twice has two equal points.

    Args:
        folder: the folder of the event files.

    Raises:
        UsageError: the package is missing.
    """

    def __init__(self, folder: Path) -> None:
        summary = _package("tensorboard")
        self._writer = summary.Writer(str(folder))

    def write(self, round_: int, metrics: Mapping[str, float]) -> None:
        """Record one scalar per metric and flush."""
        check_names(metrics)
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, round_, description=describe(name).about)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class WandbSink:
    """Logs to Weights & Biases, which ignores a round that is written twice.

    Args:
        folder: the run's folder; a resumed run of that folder continues the same chart.
        project: the project in Weights & Biases.
        name: the run's name.
        settings: the resolved settings, shown with the charts.

    Raises:
        UsageError: the package is missing, or Weights & Biases does not open a run.
    """

    def __init__(self, folder: Path, *, project: str, name: str, settings: JsonObject) -> None:
        wandb = _package("wandb")
        saved = folder / "wandb_id"
        run_id = saved.read_text(encoding="utf-8").strip() if saved.exists() else secrets.token_hex(4)
        folder.mkdir(parents=True, exist_ok=True)
        own = {"id": run_id, "dir": str(folder), "config": dict(settings), "resume": "allow"}
        try:
            self._run = wandb.init(project=project, name=name, **own)
        except Exception as error:
            raise UsageError(
                f"logging.wandb: no run of Weights & Biases can be opened ({first_line(error)}); run wandb "
                "login, set WANDB_MODE=offline, or leave the setting out"
            ) from error
        saved.write_text(f"{run_id}\n", encoding="utf-8")

    def write(self, round_: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a round as one step, without delay."""
        check_names(metrics)
        self._run.log(dict(metrics), step=round_, commit=True)

    def close(self) -> None:
        """Wait until everything is uploaded."""
        self._run.finish()


def write_all(sinks: Iterable[Sink], round_: int, metrics: Mapping[str, float]) -> None:
    """Write the metrics of a round to every sink. A sink that fails misses the round, with a warning."""
    for sink in sinks:
        try:
            sink.write(round_, metrics)
        except Exception as error:  # noqa: BLE001 - training goes on despite any error of a sink
            log.warning("%s: round %d was not written: %s", type(sink).__name__, round_, error)


def close_all(sinks: Iterable[Sink]) -> None:
    """Close every sink. A failure is only a warning, because the metrics are in the run's folder."""
    for sink in sinks:
        try:
            sink.close()
        except Exception as error:  # noqa: BLE001 - as above
            log.warning("%s: it was not closed: %s", type(sink).__name__, error)


def check_packages(config: LoggingConfig) -> None:
    """Refuse sinks whose packages are missing, before models are loaded.

    Args:
        config: the requested sinks.

    Raises:
        UsageError: a package is missing.
    """
    for name in _MODULES:
        if getattr(config, name):
            _package(name)


def open_sinks(config: LoggingConfig, folder: Path, *, name: str, settings: JsonObject) -> Sequence[Sink]:
    """Return the sinks that the settings request besides `metrics.jsonl`.

    Args:
        config: the requested sinks.
        folder: the run's folder.
        name: the run's name.
        settings: the resolved settings.

    Raises:
        UsageError: a package is missing, or Weights & Biases does not open a run.
    """
    sinks: list[Sink] = []
    if config.tensorboard:
        sinks.append(TensorBoardSink(folder / "tensorboard"))
    if config.wandb:
        sinks.append(WandbSink(folder, project=config.wandb_project, name=name, settings=settings))
    return sinks


def _package(name: str) -> ModuleType:
    try:
        return importlib.import_module(_MODULES[name])
    except ImportError as err:
        raise UsageError(
            f"logging.{name} needs a package that is not installed; run: pip install {name}"
        ) from err
