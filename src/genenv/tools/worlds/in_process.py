"""Python functions and methods as tools: their schemas, and a world that calls them in this process.

Only tools of installed packages are trusted to run here; a user's own file runs in a child process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import importlib
import inspect
import json
import re
import sys
import typing
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Sized
from types import FunctionType, MappingProxyType, ModuleType, UnionType
from typing import Any, NotRequired, Required, cast

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from typing_extensions import TypedDict

from genenv.errors import UsageError, first_line, first_problem
from genenv.tools.worlds.base import (
    Call,
    KnownPrograms,
    LoadedWorld,
    Outcome,
    Played,
    Step,
    Tool,
)
from genenv.tools.worlds.jsonable import OWN_MODULES, result_of
from genenv.types import Json, JsonObject


class NoTool(ValueError):
    """A function cannot be offered as a tool. The message is the end of a sentence."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Reads the JSON arguments of a Python function as the types that it wants."""

    model: type[BaseModel]
    positional: tuple[str, ...]
    """Parameters that cannot be given by name."""
    given: Mapping[str, object]
    """Values of the parameters that the agent does not choose."""
    unset: frozenset[str]
    """Parameters whose default, if there is one, is that of a pydantic `Field`: the function has none."""

    @classmethod
    def of(
        cls,
        function: Callable[..., object],
        name: str,
        notes: Mapping[str, str] = MappingProxyType({}),
        given: Mapping[str, object] = MappingProxyType({}),
        *,
        with_schema: bool = False,
    ) -> Arguments:
        """The arguments of a function.

        Args:
            function: to be called with them.
            name: of the tool.
            notes: what each parameter is, for its schema.
            given: values of parameters that the agent does not choose, by name; other names are ignored.
            with_schema: whether types that pydantic reads, but finds no JSON schema for, count as such that
                no JSON can stand for. Making schemas takes longer than all else.

        Raises:
            NoTool: a parameter has a type that no JSON can stand for, or any number of arguments is taken.
        """
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except Exception as error:
            raise NoTool(f"its types cannot be read: {error}") from error
        fields: dict[str, Any] = {}
        positional: list[str] = []
        parameters = inspect.signature(function).parameters
        for number, parameter in enumerate(parameters.values()):
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise NoTool(f"it takes any number of arguments (*{parameter.name})")
            if parameter.kind is parameter.POSITIONAL_ONLY:
                positional.append(parameter.name)
            if parameter.name not in given:
                fields[f"p{number}"] = _field(parameter, hints.get(parameter.name, Any), notes)
        return cls(
            model=_model(name, fields, with_schema=with_schema),
            positional=tuple(positional),
            given={one: given[one] for one in parameters if one in given},
            unset=frozenset(
                name
                for name, one in parameters.items()
                if one.default is one.empty or isinstance(one.default, FieldInfo)
            ),
        )

    def checked(self, given: Mapping[str, object]) -> BaseModel:
        """Arguments as values of the types that the function wants, and the defaults of the others.

        Raises:
            pydantic.ValidationError: one is not as the signature says.
        """
        return self.model.model_validate(dict(given))

    def placed(self, checked: BaseModel) -> tuple[list[object], dict[str, object]]:
        """Arguments that were given, without the function's defaults: by position, and by name."""
        values = {
            (field.alias or name): getattr(checked, name)
            for name, field in self.model.model_fields.items()
            if name in checked.model_fields_set or field.alias in self.unset
        } | dict(self.given)
        return [values.pop(name) for name in self.positional if name in values], values


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A Python function described as a tool."""

    name: str
    description: str
    schema: JsonObject
    """Of its arguments: a JSON schema of an object."""
    arguments: Arguments


def described(
    function: Callable[..., object],
    name: str,
    given: Mapping[str, object] = MappingProxyType({}),
    description: str = "",
) -> Described:
    """Describe a function.

    Args:
        function: the tool.
        name: its name.
        given: values of parameters that the agent does not choose, by name.
        description: what to say of it; empty: its docstring.

    Raises:
        NoTool: a parameter has a type that no JSON can stand for, or any number of arguments is taken.
    """
    told = docstring_parser.parse(inspect.getdoc(function) or "")
    notes = {one.arg_name: " ".join((one.description or "").split()) for one in told.params}
    arguments = Arguments.of(function, name, notes, given)
    try:
        with _no_schema():
            schema = arguments.model.model_json_schema(by_alias=True)
    except NoTool:
        arguments = Arguments.of(function, name, notes, given, with_schema=True)
        schema = arguments.model.model_json_schema(by_alias=True)
    schema.pop("title", None)
    said = docstring_parser.parse(description) if description else told
    short = " ".join((said.short_description or "").split())
    schema = _untitled(schema)
    if "properties" in schema:
        schema["properties"] = {key: _with_described_fields(one) for key, one in schema["properties"].items()}
    return Described(name=name, description=short, schema=schema, arguments=arguments)


_FIELDS = re.compile(r"\{\s*(['\"][\w-]+['\"]\s*:[^{}]+)\}")
_FIELD = re.compile(r"['\"]([\w-]+)['\"]\s*:\s*([^,]+?)\s*(?:,|$)")
_TYPES = {"int": "integer", "str": "string", "text": "string", "float": "number", "bool": "boolean"}


def _with_described_fields(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a parameter with the fields of its records, where its description says what they are.

    So of `lines: list[dict]`, described as `each {"product_id": int, "quantity": 2}`.
    """
    found = _FIELDS.search(str(schema.get("description", "")))
    record = schema.get("items", {}) if schema.get("type") == "array" else schema
    if found is None or record.get("type") != "object" or "properties" in record:
        return schema
    fields = {name: _field_schema(text) for name, text in _FIELD.findall(found[1])}
    added = {"properties": fields, "required": [*fields]}
    return {**schema, "items": {**record, **added}} if record is not schema else {**schema, **added}


def _field_schema(text: str) -> dict[str, str]:
    """The schema of a field, from the name of its type or an example value; any value, if it is neither."""
    if (name := _TYPES.get(text, text)) in {*_TYPES.values()}:
        return {"type": name}
    try:
        value = json.loads(text.replace("'", '"'))
    except ValueError:
        return {}
    return {"type": _TYPES[type(value).__name__]} if type(value).__name__ in _TYPES else {}


def _model(name: str, fields: Mapping[str, Any], *, with_schema: bool) -> type[BaseModel]:
    """A model with these fields.

    Of an argument that may be left out, types that no JSON can stand for are dropped: `str | NotGiven`.

    Args:
        name: of the tool.
        fields: types and settings, by name.
        with_schema: see `Arguments.of`.

    Raises:
        NoTool: a field has a type that no JSON can stand for.
    """
    fits = functools.partial(_made, name, with_schema=with_schema)
    if (model := fits(fields)) is not None:
        return model
    made = dict(fields)
    for key, (hint, field) in fields.items():
        if fits({key: (hint, field)}) is not None:
            continue
        among = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, UnionType) else ()
        able = [one for one in among if not field.is_required() and fits({key: (one, Field(...))})]
        if not able:
            raise NoTool(
                f"no JSON can stand for its argument {field.alias!r}; give it with "
                f"--given {field.alias}=MODULE:NAME"
            )
        made[key] = typing.Union[tuple(able)], field  # noqa: UP007 - made at run time
    with _no_schema():
        return create_model(name, __config__=_FORBID, **cast(Any, made))


_FORBID = ConfigDict(extra="forbid", arbitrary_types_allowed=False)


def _made(name: str, fields: Mapping[str, Any], *, with_schema: bool) -> type[BaseModel] | None:
    """A model with these fields; None if one has a type that no JSON can stand for."""
    try:
        with _no_schema():
            made = create_model(name, __config__=_FORBID, **cast(Any, fields))
            if with_schema:
                made.model_json_schema()
    except NoTool:
        return None
    return made


@contextlib.contextmanager
def _no_schema() -> Generator[None]:
    """Say that a function is no tool where pydantic finds no schema."""
    try:
        yield
    except Exception as error:
        raise NoTool(f"its arguments have no JSON schema: {first_line(error)}") from error


def _field(parameter: inspect.Parameter, hint: object, notes: Mapping[str, str]) -> tuple[object, object]:
    hint, default = _with_fields(hint), parameter.default
    told: dict[str, Any] = {"alias": parameter.name}
    if notes.get(parameter.name):
        told["description"] = notes[parameter.name]
    if (default.default if isinstance(default, FieldInfo) else default) is None and hint is not Any:
        hint = typing.Optional[hint]  # noqa: UP045 - made at run time
    if isinstance(default, FieldInfo):
        hint = typing.Annotated[hint, default]
    elif default is not parameter.empty:
        told["default"] = default
    return hint, Field(**told)


def _with_fields(hint: object) -> Any:  # noqa: ANN401 - a type
    """A type without `typing.TypedDict`, which pydantic refuses in Python 3.11: a TypedDict that it takes."""
    if typing.is_typeddict(hint) and type(hint).__module__ == "typing":
        made = cast(Any, hint)
        fields: dict[str, object] = {}
        for name, one in typing.get_type_hints(made, include_extras=True).items():
            marked = typing.get_origin(one) in (Required, NotRequired)
            mark = Required if name in made.__required_keys__ else NotRequired
            fields[name] = _with_fields(one if marked else mark[one])
        return cast(Any, TypedDict)(made.__name__, fields)
    args, origin = typing.get_args(hint), cast(Any, typing.get_origin(hint))
    inner = tuple(map(_with_fields, args))
    if inner == args:
        return hint
    chosen = inner[0] if len(inner) == 1 else inner
    return typing.Union[chosen] if origin is UnionType else origin[chosen]  # noqa: UP007 - made at run time


def _untitled(schema: object, *, of_fields: bool = False) -> Any:  # noqa: ANN401 - JSON
    """A schema, or the schemas of fields by name, without the titles that pydantic makes of names."""
    if isinstance(schema, list):
        return [_untitled(one) for one in cast("list[object]", schema)]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _untitled(value, of_fields=key == "properties" and not of_fields)
        for key, value in cast("dict[str, object]", schema).items()
        if of_fields or key != "title" or not isinstance(value, str)
    }


def public_functions(module: ModuleType) -> dict[str, Callable[..., object]]:
    """The functions of a module that can be tools, by name.

    If a framework's decorators made tools of some functions (`decorated`), these; else the functions of
    `__all__`; else all functions without a leading underscore.
    """
    if found := decorated(module):
        return {one.name: one.function for one in found.values()}
    return {name: cast("Callable[..., object]", value) for name, value in _own(module) if _is_function(value)}


def _is_function(value: object) -> bool:
    """Whether a value is a function that returns once, also one that is cached (`functools.cache`)."""
    itself: object = inspect.unwrap(value) if callable(value) and hasattr(value, "cache_info") else value
    return inspect.isfunction(itself) and not inspect.isgeneratorfunction(itself)


@dataclasses.dataclass(frozen=True, slots=True)
class Decorated:
    """A tool object that some agent framework made of a function."""

    name: str
    function: Callable[..., object]
    description: str


def decorated(module: ModuleType) -> dict[str, Decorated]:
    """Objects that hold one of the module's functions under its name, with a description, by variable.

    So the tools of LangChain, smolagents, pydantic-ai, the OpenAI agents SDK and the like are known by what
    they are: no framework is imported or named here.
    """
    found: dict[str, Decorated] = {}
    for variable, value in list(vars(module).items()):
        name = getattr(value, "name", None)
        if isinstance(value, type | ModuleType) or inspect.isroutine(value) or not isinstance(name, str):
            continue
        if not isinstance(getattr(value, "description", None), str):
            continue
        function = _function_inside(value, name, module.__name__)
        if function is not None:
            found[variable] = Decorated(name, function, str(value.description))
    for variable, value in list(vars(module).items()):
        found |= {f"{variable}.{one.name}": one for one in registered(value, module)}
    return found


_TOOL_OBJECTS: dict[int, tuple[object, Sequence[object]]] = {}
"""Objects by id, which are kept so that no other gets it -> the tool objects in them."""
_REGISTERED: dict[tuple[int, str], Sequence[Decorated]] = {}
"""Such an object, and a module's name -> the module's tools among them."""


def registered(value: object, module: ModuleType) -> Sequence[Decorated]:
    """The functions of a module that an object of an installed package knows as tools, as a server does.

    `@mcp.tool()` of FastMCP leaves the function as it is. The object is code then, not state. It is looked at
    once, after the module is imported; what can be counted is never such an object.
    """
    if isinstance(value, type | ModuleType | Sized) or inspect.isroutine(value) or _is_plain(value):
        return ()
    if id(value) not in _TOOL_OBJECTS:
        inside = _inside([value], _MOST_REGISTERED, lambda one: type(one).__module__ not in OWN_MODULES)
        _TOOL_OBJECTS[id(value)] = value, [one for one in inside if "tool" in type(one).__name__.lower()]
    key = id(value), module.__name__
    if key not in _REGISTERED:
        _REGISTERED[key] = _tools_of(_TOOL_OBJECTS[id(value)][1], module)
    return _REGISTERED[key]


def _tools_of(objects: Sequence[object], module: ModuleType) -> Sequence[Decorated]:
    tools = list[Decorated]()
    for one in objects:
        with contextlib.suppress(Exception):
            name, about = cast(Any, one).name, cast(Any, one).description
            function = _function_inside(one, name, module.__name__)
            if isinstance(name, str) and isinstance(about, str | None) and function is not None:
                tools.append(Decorated(name, function, about or ""))
    return tools


def _is_plain(value: object) -> bool:
    """Whether an object is of the standard library, or of the user's own classes."""
    made = type(value).__module__
    return made in OWN_MODULES or made.partition(".")[0] in sys.stdlib_module_names


_MOST_LOOKED_AT, _MOST_REGISTERED = 500, 5000


def _inside(starts: Sequence[object], most: int, is_entered: Callable[[object], bool]) -> Iterator[object]:
    """Yield objects and what they refer to, the nearest first, without classes and modules.

    Args:
        starts: the objects.
        most: maximum number of objects.
        is_entered: whether what an object refers to is wanted.
    """
    waiting, seen = deque(starts), set(map(id, starts))
    while waiting and len(seen) < most:
        value = waiting.popleft()
        yield value
        with contextlib.suppress(Exception):
            for inner in _held_by(value) if is_entered(value) else ():
                if id(inner) not in seen and not isinstance(inner, type | ModuleType):
                    seen.add(id(inner))
                    waiting.append(inner)


def _function_inside(holder: object, name: str, module: str) -> Callable[..., object] | None:
    """The function of a module that an object holds, as an attribute or in a closure; None if there is none.

    Args:
        holder: the object.
        name: the function is wanted that has this name, or else the only one.
        module: name of the module that defines the function.
    """

    def is_own(value: object) -> bool:
        own = isinstance(value, FunctionType) and value.__module__ == module
        return own and next(iter(inspect.signature(cast(FunctionType, value)).parameters), "") != "self"

    of_class = [getattr(one, "__wrapped__", None) for one in vars(type(holder)).values()]  # without `self`
    inside = _inside([holder, *of_class], _MOST_LOOKED_AT, lambda one: not is_own(one))
    own = [cast(FunctionType, one) for one in inside if is_own(one)]
    named = [one for one in own if one.__name__ == name]
    return (named or own)[0] if named or len(own) == 1 else None


def _held_by(value: object) -> list[object]:
    """What an object refers to: attributes, items, and of a function the variables of its closure."""
    if isinstance(value, str | bytes | int | float | None):
        return []
    if isinstance(value, Mapping):
        return list(cast("Mapping[object, object]", value).values())
    if isinstance(value, list | tuple):
        return list(cast("Sequence[object]", value))
    found: list[object] = list(getattr(value, "__dict__", {}).values())
    if not hasattr(type(value), "__getattr__"):  # which may make what it is asked for
        found += [getattr(value, name, None) for name in ("func", "__func__", "__self__", "__wrapped__")]
    return [*found, *closure_of(value).values()] if isinstance(value, FunctionType) else found


def closure_of(function: FunctionType) -> dict[str, object]:
    """Return the variables of a function's closure that have a value, by name."""
    found: dict[str, object] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # a cell that is still empty
            found[name] = cell.cell_contents
    return found


def public_classes(module: ModuleType) -> dict[str, type[object]]:
    """Classes that could hold tools: with public methods, and neither data nor errors.

    A dataclass is one if there is no other class, and it can be made without arguments.
    """
    no_tools = (BaseModel, enum.Enum, BaseException, tuple, dict)
    found: dict[str, type[object]] = {}
    for name, value in _own(module):
        made = cast("type[object]", value)
        if isinstance(value, type) and not issubclass(made, no_tools) and any(True for _ in methods(made)):
            found[name] = made
    plain = {name: one for name, one in found.items() if not dataclasses.is_dataclass(one)}
    return plain or {name: one for name, one in found.items() if not needed_by(one)}


def needed_by(made: type[object]) -> list[str]:
    """The parameters of a class's constructor that have no default."""
    return [
        name
        for name, one in inspect.signature(made).parameters.items()
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]


def methods(made: type) -> Iterator[str]:
    """The names of a class's public methods, inherited ones too."""
    for name in dict.fromkeys(name for one in reversed(made.__mro__[:-1]) for name in vars(one)):
        if not name.startswith("_"):
            found: object = inspect.getattr_static(made, name)
            if inspect.isfunction(found) or isinstance(found, staticmethod | classmethod):
                yield name


def _own(module: ModuleType) -> list[tuple[str, object]]:
    names: Sequence[str] | None = getattr(module, "__all__", None)
    if names is not None:
        return [(name, getattr(module, name)) for name in names if hasattr(module, name)]
    return [
        (name, value)
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


_KEPT = 512
"""Size of the cache of executed programs (least recently used)."""


class InProcessWorld(LoadedWorld):
    """A world whose tools are the methods of an installed class, called in this process.

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
        if not inspect.isclass(self._class):
            raise UsageError(f"{where} is no class")
        made = self._class()
        self._tools = {name: described(getattr(made, name), name) for name in methods(self._class)}
        self.tools = {
            one.name: Tool(name=one.name, description=one.description, parameters=one.schema)
            for one in self._tools.values()
        }
        self.left_out = {}
        self._known = KnownPrograms(_KEPT)

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        """See `World`."""
        return self._known.play(
            calls, watch=watch, execute=lambda: [Step(self.play_uncached(calls, watch=watch), 0)]
        )

    def play_uncached(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        """See `World`."""
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
            placed, named = tool.arguments.placed(tool.arguments.checked(call.args))
            return cast(Json, result_of(getattr(made, call.tool)(*placed, **named))), None
        except ValidationError as error:
            return None, first_problem(error, "arguments")
        except ValueError as error:
            return None, str(error)
        except Exception as error:  # noqa: BLE001 - whatever a tool does with numbers and texts of a model
            return None, f"{type(error).__name__}: {error}"
