"""A world of some apps: nothing in it is of another one."""

from __future__ import annotations

import random
from typing import get_args

import pytest

from genenv.domains.tool_calling.domain import ToolCalling
from genenv.domains.tool_calling.settings import App, ToolCallingConfig
from genenv.domains.tool_calling.spec import ToolSpec
from genenv.domains.tool_calling.toolbox import APPS, TOOLS
from genenv.gate.gate import base_tasks, examined
from genenv.types import Lineage, Origin, Rejection, RejectReason

SOME = ToolCalling(ToolCallingConfig(apps=("bank", "calendar", "convert", "notes")))


def test_all_apps_can_be_named() -> None:
    assert get_args(App) == APPS
    assert ToolCallingConfig().apps == APPS


@pytest.mark.long
def test_tasks_ask_for_and_show_tools_of_these_apps_only() -> None:
    tasks = [*base_tasks(SOME, SOME.seeds(), seed=0).values(), *SOME.held_out()[:60]]
    assert len(tasks) == len(SOME.seeds()) + 60
    for task in tasks:
        shown = task.payload["tools"]
        assert isinstance(shown, list)
        assert len(shown) == task.spec["n_tools"]
        assert {TOOLS[str(name)].app for name in shown} <= set(SOME.settings.apps)
        assert examined(SOME, task, random.Random(0)) is None


def test_what_is_written_for_it_stays_there_and_what_is_of_another_app_is_refused() -> None:
    rng, lineage = random.Random(1), Lineage(origin=Origin.GENERATED, seed_id="seed-001")
    for seed in SOME.seeds()[:30]:
        spec = ToolSpec.model_validate(SOME.variation(seed, rng))
        assert {TOOLS[call.tool].app for call in spec.calls} <= set(SOME.settings.apps)
    mail = next(one for one in ToolCalling().seeds() if "email" in one.skills)
    outcome = SOME.build(ToolSpec.model_validate(mail.spec), task_id="t", lineage=lineage, rng=rng)
    assert isinstance(outcome, Rejection)
    assert outcome.reason is RejectReason.SCHEMA
