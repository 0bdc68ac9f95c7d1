"""Settings as a program gives them: values by their dotted keys."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from genenv.errors import UsageError

Values = Mapping[str, object]
"""Such as `{"run.rounds": 4, "policy.model": "smollm2-135m"}`."""


def words(values: Values) -> list[str]:
    """`key=value` of each, as for `--set`.

    Raises:
        UsageError: a value has no form in TOML.
    """
    return [f"{key}={_toml(key, value)}" for key, value in values.items()]


def _toml(key: str, value: object) -> str:
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, Mapping):
        table = cast("Mapping[object, object]", value)
        inner = ", ".join(f"{_toml(key, str(name))} = {_toml(key, one)}" for name, one in table.items())
        return f"{{{inner}}}"
    if isinstance(value, list | tuple):
        listed = ", ".join(_toml(key, one) for one in cast("Sequence[object]", value))
        return f"[{listed}]"
    if isinstance(value, str | bool | int):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float):
        return repr(value)
    raise UsageError(f"{key} cannot be {value!r}; give text, a number, true or false, or a list of these")
