"""Lookup of plugins by name: environments, backends, benchmarks, commands and exporters.

Each plugin is an entry point of a Python distribution. Your package adds one in its `pyproject.toml`:

    [project.entry-points."genenv.environments"]
    warehouse = "my_package.warehouse:Warehouse"

The plugins that come with genenv are declared the same way, in genenv's `pyproject.toml`.
"""

from __future__ import annotations

import functools
import inspect
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType, new_class
from typing import Literal

from genenv.errors import EnvironmentCodeError, GenenvError, UsageError, first_line, line_of

Group = Literal["environments", "environment_kinds", "backends", "benchmarks", "commands", "exporters"]

_PROJECT = Path(__file__).parents[2] / "pyproject.toml"
"""In a checkout this file is read directly, because the metadata of an editable installation may be older. In
an installation the file is missing, or it belongs to a project into whose folder genenv was installed."""


@cache
def parts(group: Group) -> Mapping[str, str]:
    """Return the location of each plugin of a group, `module:attribute` by name. Those of genenv come first.

    Another distribution cannot replace a name that genenv uses.
    """
    checkout = _entry_points_of_checkout(_PROJECT)
    ours = {} if checkout is None else dict(checkout.get(f"genenv.{group}", {}))
    others: dict[str, str] = {}
    for point in entry_points(group=f"genenv.{group}"):
        if point.dist is None or point.dist.name != "genenv":
            others[point.name] = point.value
        elif checkout is None:
            ours[point.name] = point.value
    return ours | {name: others[name] for name in sorted(others) if name not in ours}


@cache
def _entry_points_of_checkout(file: Path) -> Mapping[str, Mapping[str, str]] | None:
    """Return the entry points that genenv's `pyproject.toml` declares; None if the file is not genenv's."""
    if not file.is_file():
        return None
    try:
        project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    except ValueError:  # a damaged file of another project
        return None
    return project.get("entry-points", {}) if project.get("name") == "genenv" else None


def load(where: str) -> object:
    """Import and return the object that `module:attribute` names."""
    module, _, attribute = where.partition(":")
    return getattr(import_module(module), attribute)


def own_part(
    setting: str, where: str, *, takes: Sequence[str] | None = (), methods: Sequence[str] = ()
) -> object:
    """Import the user-defined function or class that a setting names, and check its signature.

    Args:
        setting: dotted key of the setting, for error messages.
        where: value of the setting, `module:name` or `path/to/file.py:name`.
        takes: names of the arguments of a call; those after a `*` are passed by name. None: not checked.
        methods: attributes that a class must have.

    Returns:
        The class or function. Where the function, or one of these methods, fails, it raises an
        EnvironmentCodeError; with `takes` None it is returned as it is.

    Raises:
        UsageError: it cannot be found or cannot be called with these arguments. The message says what is
            wrong.
    """
    module, colon, name = where.rpartition(":")
    is_file = module.endswith(".py")
    if not (colon and (is_file or module.replace(".", "_").isidentifier()) and name.isidentifier()):
        raise UsageError(
            f"{setting} is {where!r}, but a part of your own is named as module:name or FILE.py:name"
        )
    try:
        found: object = getattr(_module_of_file(module) if is_file else import_module(module), name, None)
    except ModuleNotFoundError as error:
        of_itself = not is_file and f"{module}.".startswith(f"{error.name}.")
        what = (
            f"there is no module {error.name!r}; is it on PYTHONPATH?"
            if of_itself
            else f"its module {module!r} needs {error.name!r}, which is not installed"
        )
        raise UsageError(f"{setting} is {where!r}: {what}") from error
    except GenenvError:
        raise
    except (Exception, SystemExit) as error:
        raise EnvironmentCodeError(
            f"{setting} is {where!r}: its module {module!r} cannot be loaded: {type(error).__name__}: "
            f"{first_line(error)}"
        ) from error
    if not callable(found):
        raise UsageError(f"{setting} is {where!r}, but module {module!r} has no function or class {name!r}")
    if missing := [method for method in methods if not hasattr(found, method)]:
        raise UsageError(f"{setting} is {where!r}, but {name} lacks {', '.join(missing)}")
    if takes is None:
        return found
    star = takes.index("*") if "*" in takes else len(takes)
    try:
        inspect.signature(found).bind(*takes[:star], **dict.fromkeys(takes[star + 1 :]))
    except TypeError as error:
        raise UsageError(
            f"{setting} is {where!r}, but {name} must take ({', '.join(takes)}): {error}"
        ) from error
    except ValueError:  # written in C, without a signature to check
        pass
    if not inspect.isclass(found):
        return _guarded(setting, where, found)
    own = {name: inspect.getattr_static(found, name, None) for name in ("__init__", *methods)}
    guarded = {name: _guarded(setting, where, one) for name, one in own.items() if inspect.isfunction(one)}
    named = {"__module__": found.__module__, "__qualname__": found.__qualname__}
    try:
        return new_class(found.__name__, (found,), exec_body=lambda members: members.update(guarded | named))
    except Exception:  # noqa: BLE001 - it may refuse subclasses in any way
        return found


def own_file(where: str) -> Path | None:
    """Return the file of a user-defined part, as `own_part` finds it; None if it is in no file."""
    module, _, _ = where.rpartition(":")
    if module.endswith(".py"):
        return Path(module).expanduser().resolve()
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):  # its package is missing, or it was loaded in another way
        return None
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None


def _guarded(setting: str, where: str, function: Callable[..., object]) -> Callable[..., object]:
    """Return a user-defined function whose errors end in one sentence that names it and the line."""

    @functools.wraps(function)
    def guarded(*args: object, **named: object) -> object:
        try:
            return function(*args, **named)
        except GenenvError:
            raise
        except Exception as error:
            raise EnvironmentCodeError(
                f"{setting} is {where!r}, which raised {type(error).__name__}: {first_line(error)}"
                f"{line_of(error)}"
            ) from error

    return guarded


class _FromSource(SourceFileLoader):
    """Compiles a file whenever it is loaded, and writes no compiled file next to it.

    Python takes a compiled file for current if the source has the same size and was changed in the same
    second.
    """

    def get_code(self, fullname: str) -> CodeType:
        """See `importlib.abc.InspectLoader`."""
        return self.source_to_code(self.get_data(self.path), self.path)


_LOADED: dict[Path, tuple[bytes, ModuleType]] = {}
"""The modules of files, with the source that they were loaded from."""


def _module_of_file(file: str) -> ModuleType:
    """Load a Python file under a name that no other module has; it may import modules of its folder.

    A file that has not changed is loaded once, so that its classes stay the same and it keeps its state.

    Raises:
        UsageError: there is no such file.
    """
    path = Path(file).expanduser().resolve()
    name = f"genenv_file_{path.stem}"
    spec = spec_from_file_location(name, path, loader=_FromSource(name, str(path)))
    if not path.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"there is no Python file {file}")
    source = path.read_bytes()
    if path in _LOADED and _LOADED[path][0] == source:
        return _LOADED[path][1]
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    _LOADED[path] = source, module
    return module
