"""Generates the reference of all settings from their definitions.

Run `python -m genenv.cli.settings_reference > docs/reference/configuration.md` after changing a setting.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable

from pydantic.fields import FieldInfo

from genenv.agent.policy import AgentConfig, NamedAgentConfig
from genenv.config.resolved import ARITHMETIC, FREE
from genenv.config.run import RunConfig, all_settings
from genenv.config.tables import flat
from genenv.curriculum.settings import PRESETS
from genenv.environments import environment_names, environment_seats
from genenv.evaluation.config import evaluation_default, evaluation_settings
from genenv.evaluation.config import sections as evaluation_sections
from genenv.settings import allowed, section_of, walk, why_it_may_change

_INTRODUCTION = """# Configuration

A run is described by one TOML file; `--set key=value` on the command line overrides single settings. Later
wins: defaults, preset, file, variant, `--set`. An unknown key or a value out of range ends in one
sentence that names what is allowed.

This page is made from the code (`python -m genenv.cli.settings_reference`); a test holds it to that.
"""

_CONTINUING = """## Continuing a run

`genenv train --resume --out RUN` goes on with the run's own settings, its `config.toml`. A CONFIG named again
asks for nothing as long as it says what it said when the run was started (`started.toml`), whatever `--set`
added then. What it says differently by now, what `--set` says, and what was edited in `config.toml` (compared
with its copy `trained.toml`) takes effect where the table has it; anything else is refused by its name.
`config.toml` notes at its top what changed, and from which round on.
If a file of yours that the settings name has changed, such as a reward function, the run says so and goes on
with the file as it is. Seeds, base tasks and held-out tasks stay those of the start: other ones are refused.

{free}

{arithmetic} change results in their last digits. What is automatic among them is decided when a run starts
and kept in its `config.toml`; `auto` and 0 then mean what was decided. Where a machine cannot follow (no
compiler, fewer cores, another device), continuing is refused with the reason. `--allow-other-arithmetic`
decides anew what is not there, lets `--set` change the rest, and the change is noted.

A relative path to a model or a file is read from the folder where the command is typed, and kept whole.
"""

_GAMES = "textarena:GAME"
_TASKSETS = "verifiers:TASKSET"

_SEVERAL = """One of several agents, with one simulator. It has all settings of `[agent]`, whose values it
inherits, and these:"""

_EVALUATION = """## Evaluation

Settings of `genenv eval`, set on its command line alone: `--set bfcl.protocol=genenv`. Which model, and which
of its weights, `--policy` says. [Evaluation](../guides/evaluation.md) explains them.
"""


def render_reference() -> str:
    """Return all settings as Markdown, by section and then by environment."""
    of_environments = ("environment.", "shift.environment.")
    common = [
        pair for pair in all_settings(environment_names()[0]) if not pair[0].startswith(of_environments)
    ]
    parts = [_INTRODUCTION, _presets()]
    by_section: dict[str, list[tuple[str, FieldInfo]]] = {}
    for pair in common:
        by_section.setdefault(pair[0].rpartition(".")[0], []).append(pair)
    parts += [_section(section, pairs) for section, pairs in by_section.items()]
    own = [(f"agents.NAME.{key}", field) for key, field in _of_named_agents()]
    parts.append(f"## `[agents.NAME]`\n\n{_SEVERAL}\n\n{_rows(own)}")
    of_others = ("openenv:http://HOST:PORT", _TASKSETS, _GAMES)
    for name in (*environment_names(), "path/to/bundle", *of_others):
        has_seats = name in (_GAMES, _TASKSETS) or environment_seats(name)
        left_out = () if has_seats else ("environment.seats",)
        own = [
            pair
            for pair in all_settings(name)
            if pair[0].startswith("environment.") and pair[0] not in left_out
        ]
        parts.append(_section("environment", own, f' with name = "{name}"'))
    parts += [_continuing(), _EVALUATION]
    of_evaluation = list(evaluation_settings())
    for section, model in evaluation_sections().items():
        pairs = [pair for pair in of_evaluation if pair[0].startswith(f"{section}.")]
        if pairs:
            about = (model.__doc__ or "").partition("\n")[0]
            parts.append(f"### `{section}`\n\n{about}\n\n{_rows(pairs, evaluation_default)}")
    return "\n".join(parts)


def _of_named_agents() -> list[tuple[str, FieldInfo]]:
    """Return the settings that `[agents.NAME]` has beside those of `[agent]`."""
    shared = dict(walk(AgentConfig))
    return [(key, field) for key, field in walk(NamedAgentConfig) if key not in shared]


def _continuing() -> str:
    free = ["| setting | why it may change |", "| --- | --- |"]
    free += [f"| `{key}` | {reason} |" for key, reason in FREE.items()]
    arithmetic = ", ".join(f"`{key}`" for key in sorted(ARITHMETIC))
    return _CONTINUING.format(free="\n".join(free), arithmetic=arithmetic)


def _presets() -> str:
    names = list(PRESETS)
    keys = dict.fromkeys(key for name in names for key in flat(PRESETS[name]))
    rows = [[f"`{key}`", *(_code(flat(PRESETS[name]).get(key)) for name in names)] for key in keys]
    lead = (
        "## Presets\n\n`preset` chooses what lies beneath your own settings: `paper` behaves as published, "
        "`robust`\n(the default) corrects its weak points. Each line can be set on its own.\n"
        "What is left out has its default, as in the tables below. The learning rates of `paper` are those\n"
        "for all weights of 7B models: with adapters or small models set your own.\n"
    )
    return f"{lead}\n{_table(['setting', *(f'`{name}`' for name in names)], rows)}"


def _section(name: str, pairs: Iterable[tuple[str, FieldInfo]], note: str = "") -> str:
    title = f"`[{name}]`{note}" if name else "Top level"
    about = f"{_about(name)}\n\n" if name else ""
    return f"## {title}\n\n{about}{_rows(pairs)}"


def _rows(pairs: Iterable[tuple[str, FieldInfo]], instead: Callable[[str], object] = lambda _: None) -> str:
    """Return a table of settings. `instead` maps a key to another default, or to None for the field's."""
    rows = [
        [f"`{key}`", _code(_first(instead(key), _default(field))), allowed(field), _meaning(field)]
        for key, field in pairs
    ]
    return _table(["key", "default", "allowed", "meaning"], rows)


def _meaning(field: FieldInfo) -> str:
    free = why_it_may_change(field) is not None
    return f"{field.description or ''}{' May change when a run is resumed.' if free else ''}"


def _first(one: object, other: object) -> object:
    return other if one is None else one


def _about(section: str) -> str:
    """Return the description of the field that holds a section."""
    holder, text = RunConfig, ""
    for part in section.split("."):
        field = holder.model_fields[part]
        text, holder = field.description or "", section_of(field) or RunConfig
    return text


def _default(field: FieldInfo) -> object:
    return field.get_default(call_default_factory=True)


def _code(value: object) -> str:
    return "left out" if value is None else f"`{json.dumps(value)}`"


def _table(titles: list[str], rows: Iterable[list[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    escaped = ([" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


if __name__ == "__main__":
    sys.stdout.write(render_reference())
