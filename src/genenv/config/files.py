"""TOML files and `key=value` words as nested tables, and tables as TOML again; nothing is checked here."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from genenv.errors import UsageError
from genenv.types import Json, JsonObject
from genenv.untrusted.documents import Unreadable, read_toml


def read_tables(path: Path) -> dict[str, Json]:
    """What a file says and nothing else, unchecked; a name without a file is that of one that comes along.

    Raises:
        UsageError: it cannot be read.
    """
    bundled = bundled_configs()
    if not path.is_file() and str(path) in bundled:
        path = bundled[str(path)]
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a TOML file, or one of {', '.join(bundled)}")
    try:
        return read_toml(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError as err:
        raise UsageError(f"there is no file {path}; {_named(path, bundled)}") from err
    except (Unreadable, UnicodeDecodeError) as err:
        why = str(err) if isinstance(err, Unreadable) else f"{path} is not valid TOML: {err}"
        raise UsageError(f"{why}; mend it or name another file") from err
    except OSError as err:
        raise UsageError(f"cannot read {path}: {err.strerror}; name a TOML file that you may read") from err


def _named(path: Path, bundled: Collection[str]) -> str:
    """What to name instead of a file that is not there."""
    close = difflib.get_close_matches(path.stem, bundled, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}, which comes with genenv?"
    return f"name a TOML file, or one that comes with genenv: {', '.join(bundled)}"


def bundled_configs() -> dict[str, Path]:
    """The configurations that come with genenv, by name: in the package, or in `configs/` of a clone."""
    package = Path(__file__).parents[1]
    folder = next((f for f in (package / "configs", package.parents[1] / "configs") if f.is_dir()), package)
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def apply_override(document: dict[str, Json], override: str) -> None:
    """Set one `a.b=c` in nested tables.

    Raises:
        UsageError: it has another form, or sets a value where a section belongs.
    """
    dotted, equals, raw = override.partition("=")
    keys = [key.strip() for key in dotted.split(".")]
    if not equals or not all(keys):
        raise UsageError(f"--set takes key=value, such as curriculum.alpha=0.6, not {override!r}")
    put(document, ".".join(keys), _parsed(raw.strip()), said=f"--set {override}: ")


def _parsed(raw: str) -> Json:
    """A TOML value; text that is not one stands for itself."""
    try:
        found = read_toml(f"value = {raw}", "the value")
    except Unreadable:
        return raw
    return found["value"] if found.keys() == {"value"} else raw


def put(tables: dict[str, Json], key: str, value: Json, *, said: str = "") -> None:
    """Set a dotted key in nested tables.

    Args:
        tables: the nested tables; missing ones are made.
        key: such as `curriculum.alpha`.
        value: of the setting.
        said: who asks, for the sentence.

    Raises:
        UsageError: there is a value where a section belongs.
    """
    *sections, last = key.split(".")
    for depth, section in enumerate(sections, start=1):
        inner = tables.setdefault(section, {})
        if not isinstance(inner, dict):
            raise UsageError(f"{said}{'.'.join(sections[:depth])!r} is a value, not a section")
        tables = inner
    tables[last] = value


def flat(tables: JsonObject) -> dict[str, Json]:
    """Settings by dotted key, in the order in which they stand."""
    found: dict[str, Json] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            found |= {f"{key}.{inner}": below for inner, below in flat(value).items()}
        else:
            found[key] = value
    return found


def merged(beneath: Mapping[str, Json], above: Mapping[str, Json]) -> dict[str, Json]:
    """Nested tables put on top of others."""
    found = dict(beneath)
    for key, value in above.items():
        below = found.get(key)
        found[key] = (
            merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
        )
    return found


def dump_tables(tables: JsonObject) -> str:
    """Nested tables as TOML."""
    return "\n".join(_toml_lines(tables, "")).lstrip("\n") + "\n"


def _toml_lines(table: JsonObject, prefix: str) -> Iterator[str]:
    """Values first, then a block for each section."""
    for key, value in table.items():
        if not isinstance(value, Mapping):
            yield f"{key} = {toml_value(value)}"
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield f"\n[{prefix}{key}]"
            yield from _toml_lines(value, f"{prefix}{key}.")


def toml_value(value: Json) -> str:
    """A value as TOML has it, on one line."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        inner = (f"{toml_value(key)} = {toml_value(one)}" for key, one in value.items())
        return f"{{{', '.join(inner)}}}"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(toml_value, value))}]"
    return repr(value)
