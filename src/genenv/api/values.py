"""Settings as a program gives them: values by their dotted keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import cast

from genenv.config.tables import toml_value
from genenv.errors import UsageError
from genenv.types import Json

Values = Mapping[str, object]
"""Such as `{"run.rounds": 4, "policy.model": "smollm2-135m"}`."""


def words(values: Values) -> list[str]:
    """`key=value` of each, as for `--set`.

    Raises:
        UsageError: a value has no form in TOML.
    """
    return [f"{key}={toml_value(_plain(key, value))}" for key, value in values.items()]


def _plain(key: str, value: object) -> Json:
    """A value as JSON has it; a path, and a number of numpy's, are values too."""
    if isinstance(value, Mapping):
        table = cast("Mapping[object, object]", value)
        return {str(name): _plain(key, one) for name, one in table.items()}
    if isinstance(value, list | tuple):
        return [_plain(key, one) for one in cast("Sequence[object]", value)]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise UsageError(f"{key} cannot be {value!r}; give text, a number, true or false, or a list of these")
