"""What fits where and what can be done with it: ALFWorld's own tables, from its wheel."""

from __future__ import annotations

import importlib
from typing import Any

from genenv.errors import UsageError


def _alfworld() -> Any:  # noqa: ANN401
    try:
        return importlib.import_module("alfworld.gen.constants")
    except ImportError as error:
        raise UsageError(
            "the household environment needs ALFWorld's tables: pip install --no-deps alfworld"
        ) from error


_constants = _alfworld()

CAN_CONTAIN: dict[str, frozenset[str]] = {
    place: frozenset(kinds) for place, kinds in _constants.VAL_RECEPTACLE_OBJECTS.items()
}
"""Type of receptacle -> types of objects that it can hold."""
CLEANABLE: frozenset[str] = frozenset(_constants.VAL_ACTION_OBJECTS["Cleanable"])
HEATABLE: frozenset[str] = frozenset(_constants.VAL_ACTION_OBJECTS["Heatable"])
COOLABLE: frozenset[str] = frozenset(_constants.VAL_ACTION_OBJECTS["Coolable"])
SLICEABLE = frozenset({"Apple", "Bread", "Egg", "Lettuce", "Potato", "Tomato"})
OPENABLE = frozenset({"Cabinet", "Drawer", "Fridge", "Microwave", "Safe"})
LAMPS = frozenset({"DeskLamp", "FloorLamp"})
INNER_RECEPTACLES = frozenset({"Bowl", "Box", "Cup", "Mug", "Pan", "Plate", "Pot"})
"""Objects that the grammar describes by what is in them."""
