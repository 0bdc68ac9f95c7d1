"""What parameters of the apps take, as types that pydantic reads."""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints

State = dict[str, Any]
"""What an app holds: plain data."""
Found = dict[str, Any]
"""What a tool returns: plain data."""

_YEARS = range(1900, 2101)


def _day(text: str) -> str:
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text) or date.fromisoformat(text).year not in _YEARS:
        raise ValueError("it must be a real date in the form YYYY-MM-DD, between 1900 and 2100")
    return text


Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Date = Annotated[str, AfterValidator(_day), Field(json_schema_extra={"format": "date"})]
Time = Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$", json_schema_extra={"format": "time"})]
