"""What a person types at `genenv`, for tests of the command line."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from genenv.cli.app import app


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def succeeds(*words: object) -> Result:
    result = run(*words)
    assert result.exit_code == 0, (result.exception, result.stderr)
    return result
