"""All settings of a run: the sections of their owners put together, read from TOML, and written back.

Later wins: defaults, then the preset, then the file, then `--set`. A wrong key or value ends in one sentence.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar, cast

from pydantic import BaseModel, Field, SerializeAsAny, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from genenv.agent.settings import AgentConfig
from genenv.backends.settings import EMBEDDED, PolicyConfig
from genenv.config.base import Settings, allowed, is_place, section_of, walk
from genenv.curriculum.presets import preset
from genenv.curriculum.settings import CurriculumConfig
from genenv.domains import domain_config
from genenv.errors import UsageError, unknown_name
from genenv.runs.metrics import LoggingConfig
from genenv.simulator.settings import SimulatorConfig
from genenv.types import Json, JsonObject


class RunSettings(Settings, frozen=True):
    """The run as a whole."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)
    """Name of the run: of its folder below `runs/`, and in charts."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of all randomness: two runs with equal settings on one machine are equal."""
    rounds: int = Field(default=10, ge=1, le=1_000_000)
    """How many rounds to train."""
    eval_every: int = Field(default=5, ge=0, le=1_000_000)
    """Measure on held-out tasks every so many rounds, and before the first and after the last; 0: never."""
    eval_tasks: int = Field(default=64, ge=1, le=1_000_000)
    """How many held-out tasks to measure on; all of them when there are fewer."""
    keep_checkpoints: int = Field(default=2, ge=1, le=1_000_000)
    """How many of the newest checkpoints stay on the disk."""


class DomainConfig(Settings, frozen=True):
    """Which world the tasks are of. The domain's own settings stand beside `name` in the file."""

    name: str = "tool_calling"
    """The domain."""
    settings: SerializeAsAny[BaseModel] = Field(default_factory=lambda: domain_config("tool_calling")())
    """The domain's own settings."""


class RunConfig(Settings, frozen=True):
    """Everything that decides how a run goes."""

    preset: Literal["paper", "robust"] = "robust"
    """What the settings you leave out are: as published, or with the corrections."""
    run: RunSettings = Field(default_factory=RunSettings)
    """The run as a whole."""
    domain: DomainConfig = Field(default_factory=DomainConfig)
    """The world of the tasks."""
    curriculum: CurriculumConfig = Field(default_factory=CurriculumConfig)
    """Which tasks are wanted, and which come back."""
    simulator: SimulatorConfig = Field(default_factory=SimulatorConfig)
    """The player that writes tasks."""
    agent: AgentConfig = Field(default_factory=AgentConfig)
    """The player that solves tasks."""
    policy: PolicyConfig = Field(default_factory=PolicyConfig)
    """The models behind both players."""
    logging: LoggingConfig = Field(default_factory=LoggingConfig)
    """Where metrics go."""

    @model_validator(mode="before")
    @classmethod
    def _preset_beneath(cls, values: object) -> object:
        """Put the preset beneath what is given; a section given whole, as an object, is left as it is."""
        if not isinstance(values, Mapping):
            return values
        given = cast(Mapping[str, Json], values)
        chosen = given.get("preset", cls.model_fields["preset"].default)
        return _merge(preset(chosen), given) if isinstance(chosen, str) else given


def load_config(path: Path | None = None, overrides: Sequence[str] = ()) -> RunConfig:
    """Read the settings of a run.

    Args:
        path: a TOML file; left out, the defaults.
        overrides: `key=value` each, e.g. `curriculum.alpha=0.6`; the value is TOML, or else taken as text.

    Raises:
        UsageError: the file cannot be read, a key is unknown or a value is not allowed.
    """
    document = read_tables(path) if path is not None else {}
    for override in overrides:
        apply_override(document, override)
    return resolve(document)


def resolve(document: JsonObject) -> RunConfig:
    """Check settings given as nested tables, in the form of a file, and fill in what they leave out.

    Raises:
        UsageError: a key is unknown or a value is not allowed.
    """
    name_field = DomainConfig.model_fields["name"]
    domain = document.get("domain", {})
    domain_name = (
        domain.get("name", name_field.default) if isinstance(domain, Mapping) else name_field.default
    )
    if not isinstance(domain_name, str):
        raise UsageError(_not_allowed("domain.name", domain_name, name_field))
    own = domain_config(domain_name)
    check_keys(document, [key for key, _ in all_settings(domain_name)])
    inner = {key: value for key, value in cast(JsonObject, domain).items() if key != "name"}
    sections: dict[str, object] = {**document}
    sections["domain"] = DomainConfig(name=domain_name, settings=validated(own, inner, "domain."))
    return validated(RunConfig, sections, "")


def all_settings(domain_name: str) -> Iterator[tuple[str, FieldInfo]]:
    """Every setting by its dotted key, for one domain."""
    yield from (pair for pair in walk(RunConfig) if not pair[0].startswith("domain."))
    yield "domain.name", DomainConfig.model_fields["name"]
    yield from walk(domain_config(domain_name), "domain.")


def as_tables(config: RunConfig) -> dict[str, Json]:
    """The settings as nested tables, as in a file: what `resolve` takes. Settings left out are absent."""
    tables = cast(dict[str, Json], config.model_dump(mode="json", exclude_none=True))
    domain = cast(dict[str, Json], tables["domain"])
    tables["domain"] = {"name": domain["name"], **cast(JsonObject, domain["settings"])}
    return tables


def dump_toml(config: RunConfig) -> str:
    """The resolved settings as TOML; reading it gives equal settings again."""
    return dump_tables(as_tables(config))


def dump_tables(tables: JsonObject) -> str:
    """Nested tables as TOML."""
    return "\n".join(_toml_lines(tables, "")).lstrip("\n") + "\n"


def flat(tables: JsonObject) -> dict[str, Json]:
    """Settings by dotted key, in the order in which they stand."""
    found: dict[str, Json] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            found |= {f"{key}.{inner}": below for inner, below in flat(value).items()}
        else:
            found[key] = value
    return found


def put(tables: dict[str, Json], key: str, value: Json) -> None:
    """Set a dotted key in nested tables."""
    *sections, last = key.split(".")
    for section in sections:
        tables = cast(dict[str, Json], tables.setdefault(section, {}))
    tables[last] = value


def anchored(config: RunConfig) -> RunConfig:
    """The settings with files and folders named from the root on, so that a run finds them from anywhere."""
    tables = as_tables(config)
    values = flat(tables)
    for key, field in all_settings(config.domain.name):
        name = values.get(key)
        if is_place(field) and isinstance(name, str) and name not in ("", EMBEDDED):
            place = Path(name).expanduser()
            if place.exists():
                put(tables, key, str(place.resolve()))
    return resolve(tables)


def bundled_configs() -> dict[str, Path]:
    """The configurations that come with genenv, by name: in the package, or in `configs/` of a clone."""
    package = Path(__file__).parents[1]
    folder = next((f for f in (package / "configs", package.parents[1] / "configs") if f.is_dir()), package)
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


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
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as err:
        raise UsageError(f"there is no file {path}; {_named(path, bundled)}") from err
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as err:
        raise UsageError(f"{path} is not valid TOML: {err}; mend it or name another file") from err
    except OSError as err:
        raise UsageError(f"cannot read {path}: {err.strerror}; name a TOML file that you may read") from err


def _named(path: Path, bundled: Collection[str]) -> str:
    """What to name instead of a file that is not there."""
    close = difflib.get_close_matches(path.stem, bundled, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}, which comes with genenv?"
    return f"name a TOML file, or one that comes with genenv: {', '.join(bundled)}"


def apply_override(document: dict[str, Json], override: str) -> None:
    """Set one `a.b=c` in nested tables.

    Raises:
        UsageError: it has another form, or sets a value where a section belongs.
    """
    dotted, equals, raw = override.partition("=")
    keys = [key.strip() for key in dotted.split(".")]
    if not equals or not all(keys):
        raise UsageError(f"--set takes key=value, such as curriculum.alpha=0.6, not {override!r}")
    table = document
    for depth, key in enumerate(keys[:-1], start=1):
        inner = table.setdefault(key, {})
        if not isinstance(inner, dict):
            raise UsageError(f"--set {override}: {'.'.join(keys[:depth])!r} is a value, not a section")
        table = inner
    table[keys[-1]] = _parsed(raw.strip())


def _parsed(raw: str) -> Json:
    """A TOML value; text that is not one stands for itself."""
    try:
        found = cast(dict[str, Json], tomllib.loads(f"value = {raw}"))
    except tomllib.TOMLDecodeError:
        return raw
    return found["value"] if found.keys() == {"value"} else raw


def _merge(beneath: Mapping[str, Json], above: Mapping[str, Json]) -> dict[str, Json]:
    """Nested tables put on top of others."""
    merged = dict(beneath)
    for key, value in above.items():
        below = merged.get(key)
        merged[key] = (
            _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
        )
    return merged


def check_keys(document: JsonObject, known: Sequence[str]) -> None:
    """Refuse the first key that is no setting, and a value where a section belongs.

    Raises:
        UsageError: names the key, and the one that may have been meant.
    """
    sections = {".".join(key.split(".")[:depth]) for key in known for depth in range(1, key.count(".") + 1)}
    pending = list(document.items())
    for key, value in pending:
        if key not in sections:
            if key not in known:
                raise _unknown(key, known, sections)
        elif isinstance(value, Mapping):
            pending += [(f"{key}.{inner}", below) for inner, below in value.items()]
        else:
            raise UsageError(f"{key!r} is a section, not a value; write [{key}] and its settings below")


def _unknown(key: str, known: Sequence[str], sections: Collection[str]) -> UsageError:
    """Name the same setting of its right section, or the name that is spelt most alike."""
    section, _, last = key.rpartition(".")
    elsewhere = [name for name in known if name.rpartition(".")[2] == last]
    candidates = known if section in sections else [*known, *sections]
    close = elsewhere or difflib.get_close_matches(key, candidates, n=1, cutoff=0.6)
    if close:
        return UsageError(f"unknown setting {key!r}; did you mean {close[0]!r}?")
    siblings = [name for name in known if name.rpartition(".")[0] == section]
    return unknown_name("setting", key, siblings if section else sections)


_Model = TypeVar("_Model", bound=BaseModel)


def validated(model: type[_Model], values: Mapping[str, object], prefix: str) -> _Model:
    """A section made of values.

    Raises:
        UsageError: a value is not allowed; says which setting, and what is.
    """
    try:
        return model.model_validate(values)
    except ValidationError as err:
        first, more = err.errors()[0], err.error_count() - 1
        others = f" (and {more} more {'setting is' if more == 1 else 'settings are'} wrong)" if more else ""
        raise UsageError(_sentence(model, values, first, prefix) + others) from err


def _sentence(model: type[BaseModel], values: Mapping[str, object], error: ErrorDetails, prefix: str) -> str:
    """What is wrong, in one sentence: which setting, its value, what is allowed."""
    holder, value, key = model, cast(object, values), prefix
    for part in error["loc"]:
        name = str(part)
        key += name
        value = cast(Mapping[str, object], value)[name] if isinstance(value, Mapping) else error["input"]
        inner = section_of(holder.model_fields[name])
        if inner is None:
            return _not_allowed(key, value, holder.model_fields[name])
        holder, key = inner, f"{key}."
    return f"section {key.rstrip('.')!r}: {error['msg'].removeprefix('Value error, ')}"


def _not_allowed(key: str, value: object, field: FieldInfo) -> str:
    shown = json.dumps(value, ensure_ascii=False, default=str)
    return (
        f"setting {key!r} is {shown if len(shown) <= 80 else shown[:77] + '...'}; allowed: {allowed(field)}"
    )


def _toml_lines(table: JsonObject, prefix: str) -> Iterator[str]:
    """Values first, then a block for each section."""
    for key, value in table.items():
        if not isinstance(value, Mapping):
            yield f"{key} = {_toml_value(value)}"
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield f"\n[{prefix}{key}]"
            yield from _toml_lines(value, f"{prefix}{key}.")


def _toml_value(value: Json) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(_toml_value, value))}]"
    return repr(value)
