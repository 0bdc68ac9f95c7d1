"""Sinks: what asks for a package says how to get it, and no chart can stop a run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from genenv.config.run import LoggingConfig
from genenv.errors import UsageError
from genenv.runs.sinks import TensorBoardSink, WandbSink, close_all, open_sinks


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_a_missing_package_ends_in_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    for module in (package, f"{package}.summary"):
        monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type] - Python's own way to hide one
    config = LoggingConfig.model_validate({package: True})
    with pytest.raises(UsageError, match=rf"logging.{package} .* pip install {package}$"):
        open_sinks(config, tmp_path, name="run", settings={})


def test_tensorboard_gets_one_scalar_per_metric(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    sink = TensorBoardSink(tmp_path)
    sink.write(7, {"agent/reward": 0.5, "tasks/share/add": 1.0})
    sink.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path)).Reload()
    tensor = events.Tensors("agent/reward")[0]
    assert (tensor.step, tensor.tensor_proto.float_val[0]) == (7, 0.5)


class FakeWandb:
    """The part of wandb that a sink uses; remembers what it was told."""

    def __init__(self) -> None:
        self.opened: list[dict[str, object]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.finished = 0

    def init(self, **arguments: object) -> FakeWandb:
        self.opened.append(arguments)
        return self

    def log(self, metrics: dict[str, float], *, step: int, commit: bool) -> None:
        assert commit  # else the step would wait for the next one
        self.logged.append((step, metrics))

    def finish(self) -> None:
        self.finished += 1


def test_a_resumed_run_continues_the_same_wandb_chart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)  # type: ignore[arg-type] - stands for the module
    config = LoggingConfig(wandb=True, wandb_project="mine")
    for round_ in range(2):
        (sink,) = open_sinks(config, tmp_path, name="demo", settings={"seed": 1})
        assert isinstance(sink, WandbSink)
        sink.write(round_, {"agent/reward": 0.5})
        sink.close()
    assert [(opened["project"], opened["name"]) for opened in fake.opened] == [("mine", "demo")] * 2
    assert fake.opened[0]["id"] == fake.opened[1]["id"]
    assert fake.opened[0]["id"]
    assert fake.logged == [(0, {"agent/reward": 0.5}), (1, {"agent/reward": 0.5})]
    assert fake.finished == 2


def test_a_chart_that_cannot_be_opened_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoKey(FakeWandb):
        def init(self, **arguments: object) -> FakeWandb:
            raise ValueError("api_key not configured (no-tty)\ncall wandb.login()")

    monkeypatch.setitem(sys.modules, "wandb", NoKey())  # type: ignore[arg-type] - stands for the module
    with pytest.raises(
        UsageError, match=r"^logging\.wandb: .* \(api_key not configured \(no-tty\)\); run wandb"
    ):
        open_sinks(LoggingConfig(wandb=True), tmp_path, name="run", settings={})


def test_nothing_asked_for_opens_nothing(tmp_path: Path) -> None:
    assert open_sinks(LoggingConfig(), tmp_path, name="run", settings={}) == []


def test_a_sink_that_does_not_close_costs_a_warning_and_the_others_are_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    closed: list[str] = []

    class Chart:
        def __init__(self, problem: str = "") -> None:
            self.problem = problem

        def close(self) -> None:
            if self.problem:
                raise OSError(self.problem)
            closed.append("one")

    close_all([Chart("the network is down"), Chart()])  # type: ignore[list-item]
    assert closed == ["one"]
    assert caplog.messages == ["Chart: it was not closed: the network is down"]
