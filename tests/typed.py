"""What a person types at `genenv`, for tests of the command line."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner, Result

from genenv.cli.app import app
from genenv.gate.gate import Gate


def run(*words: object, typed: str = "") -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], input=typed)


def succeeds(*words: object) -> Result:
    result = run(*words)
    assert result.exit_code == 0, (result.exception, result.stderr)
    return result


def refused(*words: object) -> str:
    """The one sentence in which a command ends."""
    result = run(*words)
    assert result.exit_code == 2, (result.exception, result.stderr)
    sentences = [line for line in result.stderr.splitlines() if line.startswith("genenv: ")]
    assert sentences == result.stderr.splitlines()[-1:]
    assert "Traceback" not in result.stderr
    return sentences[0].removeprefix("genenv: ")


def stopped_in_round_two(*words: object) -> None:
    """A command that plays rounds, interrupted by hand in the second one."""
    admit, calls = Gate.admit, []

    def stop(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return admit(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gate, "admit", stop)
        result = run(*words)
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1].startswith("genenv: stopped; committed rounds are kept")
