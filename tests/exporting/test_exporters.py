"""The commands that serve and ask: what they name is what was written, however it is called."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from genenv.exporting.exporters import Form, Served, ways


def commands(form: Form, **changes: Any) -> list[str]:
    values: dict[str, Any] = {
        "form": form,
        "name": "desk-8",
        "folder": "out of it",
        "base": "some/model",
        "rank": 24,
        "run": "runs/desk",
        "agent": "",
        "context_tokens": 512,
        "example": True,
        "own_tools": True,
    }
    return [command for way in ways(Served(**(values | changes))) for command in way.commands]


def test_vllm_serves_the_folder_greedily() -> None:
    words = shlex.split(commands(Form.MODEL)[0])
    assert words[:5] == ["vllm", "serve", "out of it", "--served-model-name", "desk-8"]
    assert words[5:] == ["--override-generation-config", '{"temperature": 0}']


def test_an_agent_of_several_is_measured_with_its_own_limits() -> None:
    measured = [one for one in commands(Form.MODEL, agent="helper") if "held-out" in one]
    assert measured
    assert all(one.endswith("--set held_out.run=runs/desk --set held_out.agent=helper") for one in measured)


def test_vllm_takes_only_some_ranks_of_adapters() -> None:
    words = shlex.split(commands(Form.ADAPTER)[0])
    assert words[:6] == ["vllm", "serve", "some/model", "--enable-lora", "--max-lora-rank", "32"]
    assert "desk-8=out of it" in words
    assert "out of it/chat_template.jinja" in words
    assert shlex.split(commands(Form.ADAPTER, rank=16)[0])[5] == "16"
    assert not any("vllm serve" in one for one in commands(Form.ADAPTER, rank=600))


def test_a_gguf_file_is_served_by_two() -> None:
    made, _, served, *_ = commands(Form.GGUF)
    assert shlex.split(made) == ["ollama", "create", "desk-8", "-f", "out of it/Modelfile"]
    assert shlex.split(served)[:3] == ["llama-server", "-m", "out of it/desk-8.gguf"]
    assert "11434" in "".join(commands(Form.GGUF))


@pytest.mark.parametrize("form", list(Form))
def test_there_is_try_for_tools_of_ones_own_and_an_example_where_there_is_one(form: Form) -> None:
    assert any(command.startswith("genenv try runs/desk --policy ") for command in commands(form))
    assert any("@out of it/example.json" in shlex.split(command) for command in commands(form))
    fewer = commands(form, own_tools=False, example=False)
    assert not any("genenv try" in command or "example.json" in command for command in fewer)
