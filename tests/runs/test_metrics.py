from __future__ import annotations

import sys
from pathlib import Path

import pytest

from genenv.errors import UsageError
from genenv.runs.metrics import (
    FAMILIES,
    METRICS,
    LoggingConfig,
    TensorBoardSink,
    WandbSink,
    check_names,
    close_all,
    describe,
    late_p_hats,
    open_sinks,
    target_band,
)
from genenv.types import RejectReason


def test_the_list_holds_every_metric_of_the_design_and_every_reason(design_metrics: frozenset[str]) -> None:
    check_names([*design_metrics, *(f"simulator/rejected/{reason}" for reason in RejectReason)])


def test_every_metric_has_a_family_a_unit_and_a_sentence() -> None:
    for metric in [*METRICS.values(), *FAMILIES.values()]:
        assert metric.name.count("/") >= 1
        assert metric.unit
        assert metric.about.endswith((".", "follows."))


@pytest.mark.parametrize(
    ("alpha", "band"), [(0.5, (0.35, 0.65)), (0.3, (0.15, 0.45)), (0.1, (0, 0.25)), (0.9, (0.75, 1))]
)
def test_the_target_band_lies_around_alpha(alpha: float, band: tuple[float, float]) -> None:
    assert target_band(alpha) == pytest.approx(band)


@pytest.mark.parametrize(
    ("rounds", "late"),
    [
        (12, [9, 10, 11, 12]),
        (10, [7, 8, 9, 10]),
        (9, [7, 8, 9]),
        (8, [6, 7, 8]),
        (5, [4, 5]),
        (2, [2]),
        (1, [1]),
    ],
)
def test_the_last_third_of_the_rounds_is_rounded_up(rounds: int, late: list[int]) -> None:
    metrics = {number: {"curriculum/p_hat_mean": number / 10} for number in range(rounds + 1)}
    assert late_p_hats(metrics) == [number / 10 for number in late]


def test_a_run_that_has_played_no_round_has_no_late_one() -> None:
    assert late_p_hats({0: {"curriculum/p_hat_mean": 0.5}}) == []


def test_a_late_round_without_p_hat_is_left_out() -> None:
    metrics = {number: {"curriculum/p_hat_mean": number / 10} for number in range(1, 7)}
    assert late_p_hats({**metrics, 6: {}}) == [0.5]


def test_a_family_takes_the_names_of_skills() -> None:
    assert describe("tasks/share/calls:2").unit == "share"


@pytest.mark.parametrize(
    "name", ["agent/succes_rate", "tasks/share/", "tasks/share/a b", "simulator/rejected/mood", ""]
)
def test_a_name_that_is_not_in_the_list_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="unknown metric"):
        check_names([name])


def test_a_misspelt_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'agent/success_rate'"):
        describe("agent/succes_rate")


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
