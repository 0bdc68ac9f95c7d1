"""A chat template with values for some of its variables, which whoever applies it need not give."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from genenv.types import Json


def with_variables(template: object, values: Mapping[str, Json]) -> object:
    """The template with defaults: a variable that is not given has the value that is named here.

    Args:
        template: the text of one, or several by name; anything else stays as it is.
        values: by variable, such as `{"enable_thinking": False}`.
    """
    if isinstance(template, Mapping):
        named = cast("Mapping[str, object]", template)
        return {name: with_variables(text, values) for name, text in named.items()}
    if not isinstance(template, str):
        return template
    settings = (
        f"{{%- if {name} is not defined %}}{{%- set {name} = {_literal(value)} %}}{{%- endif %}}"
        for name, value in sorted(values.items())
    )
    return "".join([*settings, template])


def _literal(value: Json) -> str:
    """A value as Jinja writes it, which is JSON but for `none`."""
    return "none" if value is None else json.dumps(value, ensure_ascii=False)
