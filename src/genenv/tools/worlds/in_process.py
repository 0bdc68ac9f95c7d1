"""Tools that come with an installed package, called in this process: there is nothing to fence off."""

from __future__ import annotations

import importlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError

from genenv.errors import UsageError
from genenv.tools.worlds.base import Call, Outcome, Played, Tool
from genenv.tools.worlds.jsonable import result_of
from genenv.tools.worlds.python_signatures import described, methods
from genenv.types import Json

_KEPT = 512
"""So many programs that were played last are remembered."""


class OwnWorld:
    """The methods of a class.

    Args:
        where: `package.module:Class`; made without arguments, its attributes are the state: plain data.

    Raises:
        UsageError: there is no such class.
    """

    def __init__(self, where: str) -> None:
        module, _, name = where.partition(":")
        try:
            self._class = cast("type[Any]", getattr(importlib.import_module(module), name))
        except (ModuleNotFoundError, AttributeError) as error:
            raise UsageError(f"{where} is not installed: {error}") from error
        made = self._class()
        self._tools = {name: described(getattr(made, name), name) for name in methods(self._class)}
        self.tools: dict[str, Tool] = {
            one.name: Tool(name=one.name, description=one.description, parameters=one.schema)
            for one in self._tools.values()
        }
        self.left_out: Mapping[str, str] = {}
        self.network = False
        self.confined = True
        self.received = 0
        self.asked: Sequence[str] = ()
        self._known: OrderedDict[tuple[str, bool], Played] = OrderedDict()

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        """See `World`."""
        key = repr([(call.tool, call.args) for call in calls]), watch
        if key not in self._known:
            self._known[key] = self.again(calls, watch=watch)
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return self._known[key]

    def again(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        """See `Remembers`."""
        made = self._class()
        before = json.dumps(vars(made)) if watch else ""
        outcomes: list[Outcome] = []
        for call in calls:
            result, error = self._called(made, call)
            changed = False
            if watch:
                after = json.dumps(vars(made))
                before, changed = after, after != before
            outcomes.append(Outcome(result=result, error=error, changed=changed))
        state: Json = json.loads(before or json.dumps(vars(made)))
        return Played(outcomes=tuple(outcomes), state=state)

    def _called(self, made: object, call: Call) -> tuple[Json, str | None]:
        """What a call returns or raises."""
        tool = self._tools.get(call.tool)
        if tool is None:
            return None, f"There is no tool {call.tool!r}."
        try:
            placed, named = tool.arguments(call.args)
            return cast(Json, result_of(getattr(made, call.tool)(*placed, **named))), None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "arguments"
            return None, f"{where}: {first['msg']}"
        except ValueError as error:
            return None, str(error)
        except Exception as error:  # noqa: BLE001 - whatever a tool does with numbers and texts of a model
            return None, f"{type(error).__name__}: {error}"

    def close(self) -> None:
        """See `World`: there is nothing to let go of."""
