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


def refused(*words: object) -> str:
    """The one sentence in which a command ends."""
    result = run(*words)
    assert result.exit_code == 2, (result.exception, result.stderr)
    sentences = [line for line in result.stderr.splitlines() if line.startswith("genenv: ")]
    assert sentences == result.stderr.splitlines()[-1:]
    assert "Traceback" not in result.stderr
    return sentences[0].removeprefix("genenv: ")
