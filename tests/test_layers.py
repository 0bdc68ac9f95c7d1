"""The architecture as a test: who may import whom, and what stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"

CORE = (
    "errors",
    "texts",
    "types",
    "seeding",
    "statistics",
    "progress",
    "settings",
    "plugins",
    "files",
    "sampling",
    "threads",
    "untrusted",
    "http",
    "curriculum",
    "environments",
    "gate",
    "algorithms",
    "chat",
    "rollout",
    "backends",
    "agent",
    "clients",
    "simulator",
    "config",
    "runs",
    "training",
)
"""The packages that train an agent, lowest first. They import no other package of `LAYERS`: those register
themselves by entry points."""

LAYERS = (
    *CORE,
    "evaluation",
    "cli",
    "viewer",
    "benchmarks",
    "tools",
    "exporting",
    "interop",
    "servers",
    "cluster",
    "research",
    "api",
    "genenv",
    "__main__",
)
"""One package a line: a package may import from itself and from the lines above it."""

HEAVY = {"torch", "transformers", "peft", "xgrammar", "safetensors", "gguf", "trl", "ray", "vllm"}
"""Libraries that take seconds to load, or that a machine may lack."""

HEAVY_ROOMS = (
    "genenv.backends.local.",
    "genenv.backends.tinker.losses",
    "genenv.cli.doctor",
    "genenv.cluster.on_ray",
)
"""Who may name one: the local backend knows torch, and so does Tinker's package; the doctor looks whether it
is there, and one module knows Ray."""


def module_name(path: Path, root: Path = SRC) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def module_files() -> dict[str, Path]:
    return {module_name(path): path for path in sorted((SRC / "genenv").rglob("*.py"))}


FILES = module_files()


def imports(name: str, source: str, *, known: set[str], is_package: bool) -> Iterator[tuple[int, str]]:
    """Every import of a module, inside functions and under TYPE_CHECKING too: (line, what is imported)."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                package = name.split(".") if is_package else name.split(".")[:-1]
                base = package[: len(package) - node.level + 1]
                origin = ".".join([*base, *([origin] if origin else [])])
            for alias in node.names:
                member = f"{origin}.{alias.name}"
                yield node.lineno, member if member in known else origin


@cache
def imports_of(name: str) -> list[tuple[int, str]]:
    path = FILES[name]
    source = path.read_text(encoding="utf-8")
    return list(imports(name, source, known=set(FILES), is_package=path.name == "__init__.py"))


def part_of(module: str) -> str:
    """The line of LAYERS that a module belongs to: `rollout` for `genenv.rollout.driver`."""
    part = module.removeprefix("genenv.").partition(".")[0]
    assert part in LAYERS, f"{module} has no layer: add a line to LAYERS, and to docs/guides/architecture.md"
    return part


def may_import(importer: str, imported: str) -> bool:
    return LAYERS.index(part_of(imported)) <= LAYERS.index(part_of(importer))


def refused(names: Iterable[str], is_wrong: Callable[[str, str], bool]) -> list[str]:
    """The imports of modules that a rule refuses."""
    return [
        f"{name}, line {line}: {target}"
        for name in names
        for line, target in imports_of(name)
        if is_wrong(name, target)
    ]


def test_a_module_imports_only_from_its_own_layer_or_an_earlier_one() -> None:
    assert not refused(
        FILES, lambda name, target: target.split(".")[0] == "genenv" and not may_import(name, target)
    )


def test_only_the_local_backend_names_a_heavy_library() -> None:
    light = [name for name in FILES if not name.startswith(HEAVY_ROOMS)]
    assert not refused(light, lambda _, target: target.split(".")[0] in HEAVY)


BACKENDS = ("genenv.backends.local.", "genenv.backends.tinker.", "genenv.backends.vllm.")
"""Found by their entry points: they are no part of the core, though they lie in a package of it."""


OF_THE_CORE = [
    name
    for name in FILES
    if name.startswith(tuple(f"genenv.{part}." for part in CORE)) and not name.startswith(BACKENDS)
]


def test_importing_the_core_imports_no_backend_that_is_found_by_its_entry_point() -> None:
    for name in OF_THE_CORE:
        path = FILES[name]
        body = ast.parse(path.read_text(encoding="utf-8")).body
        top = "\n".join(ast.unparse(node) for node in body if isinstance(node, ast.Import | ast.ImportFrom))
        found = imports(name, top, known=set(FILES), is_package=path.name == "__init__.py")
        assert not [target for _, target in found if target.startswith(BACKENDS)], name


LEFT = [f"genenv.backends.local.{name}" for name in ("cuda.batch", "engine", "model_forward")]
"""The one circle that is left: the engine's two kinds of batches name its class for type checking."""


def circles(graph: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Groups of modules in which each one leads to all others: the strongly connected components (Tarjan)."""
    order, lowest, path, found = dict[str, int](), dict[str, int](), list[str](), list[list[str]]()

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        path.append(name)
        for other in graph[name]:
            if other not in order:
                visit(other)
            if other in path:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == order[name]:
            group = path[path.index(name) :]
            del path[path.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in graph:
        if name not in order:
            visit(name)
    return found


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {name: {target for _, target in imports_of(name) if target in FILES} - {name} for name in FILES}
    assert [sorted(group) for group in circles(graph)] == [LEFT], "what both need belongs into a module below"


def test_a_circle_is_found_however_long_it_is() -> None:
    line = {"a": "b", "b": "c", "c": ""}
    assert circles(line) == []
    assert circles({**line, "c": "a", "d": "a"}) == [["a", "b", "c"]]
    assert circles({"a": "b", "b": "a", "c": "ad", "d": "c"}) == [["a", "b"], ["c", "d"]]


_KNOWN_TO_SETTINGS = (
    *("genenv.types", "genenv.errors", "genenv.settings", "genenv.plugins", "genenv.sampling"),
    *("genenv.algorithms.settings", "genenv.backends.settings", "genenv.tools.settings"),
)


def test_settings_know_only_the_core_and_pydantic() -> None:
    allowed = {*sys.stdlib_module_names, "pydantic", "annotated_types"}
    assert not refused(
        [name for name in FILES if name.endswith(".settings")],
        lambda _, target: target.split(".")[0] not in allowed and target not in _KNOWN_TO_SETTINGS,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "module", ["genenv", "genenv.training.loop", "genenv.config.run", "genenv.cli.app", "genenv.cli.train"]
)
def test_importing_it_loads_no_heavy_library(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "", f"import {module} also loads {done.stdout.strip()}"


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("genenv.training.loop", "genenv.agent.policy", True),
        ("genenv.rollout.driver", "genenv.simulator.policy", False),
        ("genenv.simulator.policy", "genenv.rollout.driver", True),
        ("genenv.curriculum.simulator_rewards", "genenv", False),
        ("genenv.environments.base", "genenv.backends.base", False),
        ("genenv.algorithms.datum", "genenv.backends.base", False),
        ("genenv.types", "genenv.curriculum.simulator_rewards", False),
        ("genenv.config.run", "genenv.simulator.settings", True),
        ("genenv.config.run", "genenv.evaluation.settings", False),
        ("genenv.training.loop", "genenv.evaluation.settings", False),
    ],
)
def test_the_rule_itself(importer: str, imported: str, allowed: bool) -> None:
    assert may_import(importer, imported) is allowed


def test_imports_are_seen_wherever_and_however_they_are_written() -> None:
    source = "\n".join(
        [
            "import json",
            "from genenv.runs import metrics, __doc__",
            "from ..types import Task",
            "from . import policy",
            "def late():",
            "    from genenv.agent.grpo import loss",
        ]
    )
    known = {"genenv.runs.metrics", "genenv.simulator.policy", "genenv.types", "genenv.agent.grpo"}
    found = list(imports("genenv.simulator.propose", source, known=known, is_package=False))
    assert sorted(found) == [
        (1, "json"),
        (2, "genenv.runs"),
        (2, "genenv.runs.metrics"),
        (3, "genenv.types"),
        (4, "genenv.simulator.policy"),
        (6, "genenv.agent.grpo"),
    ]


def test_a_package_reads_its_relative_imports_from_itself() -> None:
    known = {"genenv.gate.gate"}
    found = list(imports("genenv.gate", "from .gate import admit", known=known, is_package=True))
    assert found == [(1, "genenv.gate.gate")]
