"""Settings as nested tables: reads, checks, merges and writes TOML files and `key=value` overrides.

A wrong key or value ends in one sentence: what is wrong, and what is allowed or was probably meant.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from genenv.errors import UsageError, unknown_name
from genenv.settings import allowed, section_of
from genenv.texts import masked
from genenv.types import Json, JsonObject
from genenv.untrusted.documents import Unreadable, read_toml

_BARE = re.compile(r"[A-Za-z0-9_-]+")
"""Keys that TOML takes without quotes."""

_SYNONYMS: Mapping[str, Sequence[str]] = {
    other: names.split()
    for names, others in {
        "lr": "learning_rate learningrate step_size init_lr actor_lr",
        "lr_schedule": "lr_scheduler lr_scheduler_type scheduler schedule lr_decay_style",
        "batch groups_per_step tokens_per_microbatch": "batch_size bs train_batch_size minibatch_size "
        "mini_batch_size per_device_train_batch_size",
        "tokens_per_microbatch": "micro_batch_size microbatch_size gradient_accumulation_steps grad_accum",
        "activation_gib": "gradient_checkpointing",
        "epochs": "epoch num_epochs n_epochs num_train_epochs ppo_epochs num_iterations",
        "rounds": "steps num_steps max_steps total_steps num_rounds n_rounds iterations num_train_steps",
        "warmup.steps": "warmup_steps num_warmup_steps warmup_ratio",
        "rollouts": "num_generations group_size num_rollouts n_rollouts samples_per_prompt num_samples n",
        "kl_coefficient": "beta kl kl_coef kl_coeff kl_beta kl_penalty kl_weight init_kl_coef kl_loss_coef",
        "entropy_coefficient": "entropy entropy_coef entropy_coeff entropy_bonus",
        "clip_high clip_low": "clip clip_range cliprange clip_ratio clip_eps eps_clip epsilon epsilon_high",
        "max_grad_norm": "grad_clip gradient_clipping clip_grad clip_grad_norm max_norm grad_norm",
        "betas": "adam_betas adam_beta1 adam_beta2",
        "max_new_tokens": "max_tokens max_completion_length max_response_length response_length max_length "
        "max_gen_tokens",
        "context_tokens": "max_prompt_length max_seq_len max_seq_length max_model_len context_length seq_len "
        "max_context",
        "temperature": "temp sampling_temperature",
        "model": "model_name model_name_or_path base_model model_path model_id pretrained",
        "lora_rank": "rank lora_r r lora_dim",
        "lora_alpha": "alpha",
        "lora_targets": "target_modules lora_target_modules",
        "tuning": "lora use_lora use_peft full_finetuning",
        "dtype": "precision torch_dtype bf16 fp16",
        "seed": "random_seed rng_seed",
        "eval_every": "eval_steps eval_interval eval_freq eval_frequency test_freq",
        "eval_tasks": "eval_size num_eval eval_samples",
        "keep_checkpoints": "save_total_limit save_steps save_every save_freq",
        "max_turns": "max_rounds max_interactions turns",
        "wandb": "use_wandb report_to",
        "address addresses": "base_url api_base url endpoint server_url",
        "concurrency at_once": "num_workers max_concurrency workers",
    }.items()
    for other in others.split()
}
"""Names of settings in other libraries, with the endings of the corresponding keys of genenv."""
_MOST_NAMED = 2
"""Maximum number of settings that an error message suggests."""

_Model = TypeVar("_Model", bound=BaseModel)


def read_tables(path: Path) -> dict[str, Json]:
    """Return the contents of a TOML file, unchecked. The name of a bundled configuration also works.

    Raises:
        UsageError: the file cannot be read.
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
    """Return a suggestion for a file that does not exist."""
    close = difflib.get_close_matches(path.stem, bundled, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}, which comes with genenv?"
    return f"name a TOML file, or one that comes with genenv: {', '.join(bundled)}"


def bundled_configs() -> dict[str, Path]:
    """Return the configurations of genenv by name, from the package or from `configs/` of a clone."""
    package = Path(__file__).parents[1]
    folder = next((f for f in (package / "configs", package.parents[1] / "configs") if f.is_dir()), package)
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def apply_override(document: dict[str, Json], override: str, known: Collection[str] = ()) -> None:
    """Set one `a.b=c` in nested tables.

    Args:
        document: the tables.
        override: the setting as `key=value`. A table for a section changes the settings that it names.
        known: the dotted keys of all settings, by which sections are known.

    Raises:
        UsageError: the override has another form, or sets a value in place of a section.
    """
    dotted, equals, raw = override.partition("=")
    keys = [key.strip() for key in dotted.split(".")]
    if not equals or not all(keys):
        raise UsageError(f"--set takes key=value, such as curriculum.alpha=0.6, not {override!r}")
    for key, value in _by_setting(".".join(keys), _parsed(raw.strip()), known):
        put(document, key, value, context=f"--set {override}: ")


def _by_setting(key: str, value: Json, known: Collection[str]) -> Iterator[tuple[str, Json]]:
    """Yield the settings that a table for a section names, with their values; other values as they are."""
    is_section = key == "agents" or any(one.startswith(of_every_agent(f"{key}.")) for one in known)
    if isinstance(value, Mapping) and is_section:
        for name, one in value.items():
            yield from _by_setting(f"{key}.{name}", one, known)
    else:
        yield key, value


def of_every_agent(key: str) -> str:
    """Return the dotted key from which a setting of `[agents.NAME]` is inherited; others as they are."""
    return _OF_AN_AGENT.sub("agent.", key)


_OF_AN_AGENT = re.compile(r"^agents\.[^.]+\.")


def _parsed(raw: str) -> Json:
    """Parse a TOML value; other text is returned unchanged."""
    try:
        found = read_toml(f"value = {raw}", "the value")
    except Unreadable:
        return raw
    return found["value"] if found.keys() == {"value"} else raw


def put(tables: dict[str, Json], key: str, value: Json, *, context: str = "") -> None:
    """Set a dotted key in nested tables.

    Args:
        tables: the nested tables; missing ones are created.
        key: dotted key such as `curriculum.alpha`.
        value: value of the setting.
        context: start of the error message, which says who sets the value.

    Raises:
        UsageError: there is a value in place of a section.
    """
    *sections, last = key.split(".")
    for depth, section in enumerate(sections, start=1):
        inner = tables.setdefault(section, {})
        if not isinstance(inner, dict):
            raise UsageError(f"{context}{'.'.join(sections[:depth])!r} is a value, not a section")
        tables = inner
    tables[last] = value


def flat(tables: JsonObject) -> dict[str, Json]:
    """Return the values of nested tables by dotted key, in order; an empty table is a value."""
    found: dict[str, Json] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping) and value:
            found |= {f"{key}.{inner}": below for inner, below in flat(value).items()}
        else:
            found[key] = value
    return found


def merged(beneath: Mapping[str, Json], above: Mapping[str, Json]) -> dict[str, Json]:
    """Merge two nested tables; values of `above` override those of `beneath`. The result shares no table."""
    found: dict[str, Json] = dict(beneath)
    for key, value in beneath.items():
        if isinstance(value, Mapping):
            found[key] = merged(value, {})
    for key, value in above.items():
        below = found.get(key)
        if isinstance(value, Mapping):
            found[key] = merged(below if isinstance(below, Mapping) else {}, value)
        else:
            found[key] = value
    return found


def dump_tables(tables: JsonObject) -> str:
    """Return nested tables as TOML."""
    return "\n".join(_toml_lines(tables, "")).lstrip("\n") + "\n"


def _toml_lines(table: JsonObject, prefix: str) -> Iterator[str]:
    """Yield the values first, then a block for each section."""
    for key, value in table.items():
        if not isinstance(value, Mapping):
            yield f"{_toml_key(key)} = {toml_value(value)}"
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield f"\n[{prefix}{_toml_key(key)}]"
            yield from _toml_lines(value, f"{prefix}{_toml_key(key)}.")


def _toml_key(key: str) -> str:
    return key if _BARE.fullmatch(key) else toml_value(key)


def toml_value(value: Json) -> str:
    """Return a value as TOML, on one line."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        inner = (f"{_toml_key(key)} = {toml_value(one)}" for key, one in value.items())
        return f"{{{', '.join(inner)}}}"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(toml_value, value))}]"
    return repr(value)


def check_keys(document: JsonObject, known: Sequence[str]) -> None:
    """Refuse the first key that is not a setting, and a value in place of a section.

    Raises:
        UsageError: the message names the key and suggests a setting.
    """
    sections = {".".join(key.split(".")[:depth]) for key in known for depth in range(1, key.count(".") + 1)}
    pending = [(_toml_key(key), value) for key, value in document.items()]
    for key, value in pending:
        if key not in sections:
            if key not in known:
                raise _unknown(key, known, sections)
        elif isinstance(value, Mapping):
            pending += [(f"{key}.{_toml_key(inner)}", below) for inner, below in value.items()]
        else:
            raise UsageError(f"{key!r} is a section, not a value; write [{key}] and its settings below")


def _unknown(key: str, known: Sequence[str], sections: Collection[str]) -> UsageError:
    """Return the error for an unknown key, with a suggestion.

    First choice is a setting of the same section, by spelling or by its name in other libraries. Second is a
    setting of another section, and last the most similar key.
    """
    section, _, last = key.rpartition(".")
    siblings = [name for name in known if name.rpartition(".")[0] == section]
    slip = difflib.get_close_matches(key, siblings, n=1, cutoff=0.9)
    synonyms = _SYNONYMS.get(last.lower().replace("-", "_"), ())
    elsewhere = [name for name in known if name.rpartition(".")[2] == last]
    meant = [name for synonym in synonyms for name in known if f".{name}".endswith(f".{synonym}")]
    inside = [name for name in meant if section and name.startswith(f"{section}.")]
    in_section = [name for name in inside if name in siblings] or inside
    candidates = known if section in sections else [*known, *sections]
    close = (
        [*in_section, *slip]
        or _agent_first(elsewhere)
        or _agent_first(meant)
        or difflib.get_close_matches(key, candidates, n=1, cutoff=0.6)
    )
    if close:
        return UsageError(
            f"unknown setting {key!r}; did you mean {' or '.join(map(repr, close[:_MOST_NAMED]))}?"
        )
    return unknown_name("setting", key, siblings if section else sections)


def _agent_first(keys: Sequence[str]) -> list[str]:
    """Sort keys: those of the agent first, nested ones last."""
    return sorted(keys, key=lambda key: (key.count("."), not key.startswith("agent.")))


def validated(model: type[_Model], values: Mapping[str, object], prefix: str) -> _Model:
    """Return a section of settings made from values.

    Raises:
        UsageError: a value is not allowed. The message says which setting, and what is allowed.
    """
    try:
        return model.model_validate(values)
    except ValidationError as err:
        first, more = err.errors()[0], err.error_count() - 1
        others = f" (and {more} more {'setting is' if more == 1 else 'settings are'} wrong)" if more else ""
        raise UsageError(_sentence(model, values, first, prefix) + others) from err


def _sentence(model: type[BaseModel], values: Mapping[str, object], error: ErrorDetails, prefix: str) -> str:
    """Return the error in one sentence: which setting, its value, and what is allowed."""
    holder, value, key = model, cast(object, values), prefix
    for part in error["loc"]:
        name = str(part)
        key += name
        if (field := holder.model_fields.get(name)) is None:
            break  # of another name than the field's
        inner = section_of(field)
        table = cast(Mapping[str, object], value) if isinstance(value, Mapping) else {name: error["input"]}
        if name not in table:
            means = f"allowed: {allowed(field)}" if inner is None else f"write [{key}] and its settings below"
            return f"setting {key!r} is required; {means}"
        value = table[name]
        if inner is None:
            if error["type"] == "value_error":  # from a custom validator, whose message says more than a type
                return f"setting {key!r}: {error['msg'].removeprefix('Value error, ')}"
            return not_allowed(key, value, field)
        holder, key = inner, f"{key}."
    where = f"section {key.rstrip('.')!r}: " if key else ""
    return where + error["msg"].removeprefix("Value error, ")


def not_allowed(key: str, value: object, field: FieldInfo) -> str:
    """Return the sentence about a value that is not allowed."""
    shown = masked(json.dumps(value, ensure_ascii=False, default=str))
    return (
        f"setting {key!r} is {shown if len(shown) <= 80 else shown[:77] + '...'}; allowed: {allowed(field)}"
    )
