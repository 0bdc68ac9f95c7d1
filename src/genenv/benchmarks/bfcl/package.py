# pyright: standard
"""The package bfcl-eval as it is read here: its data, prompts and constants. `official.py` runs its code."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType

from genenv.errors import UsageError, first_line

VERSION = "2026.3.23"
INSTALL = (
    f"pip install --no-deps bfcl-eval=={VERSION} and pip install mpmath==1.3.0 rank-bm25==0.2.2 "
    "tree_sitter==0.21.3 tree-sitter-java==0.21.0 tree-sitter-javascript==0.21.4"
)


@cache
def data_folder() -> Path:
    """Where the package keeps its data.

    Raises:
        UsageError: the package is not installed.
    """
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or spec.origin is None:
        raise UsageError(f"BFCL's data and checker are in the package bfcl-eval: {INSTALL}")
    return Path(spec.origin).parent / "data"


def version() -> str:
    """The installed version of bfcl-eval; empty where there is none."""
    try:
        return metadata.version("bfcl-eval")
    except metadata.PackageNotFoundError:
        return ""


@cache
def prompts() -> ModuleType:
    """The official prompts: templates and constants."""
    return _module("bfcl_eval.constants.default_prompts")


@cache
def openapi_types() -> dict[str, str]:
    """The types of the data, and what they are called in OpenAI's tools."""
    return _module("bfcl_eval.constants.type_mappings").GORILLA_TO_OPENAPI


@cache
def memory_scenarios() -> tuple[str, ...]:
    """Whom the conversations of the memory categories are with, in the official order."""
    return tuple(_module("bfcl_eval.constants.category_mapping").MEMORY_SCENARIO_NAME)


def prompt_formats() -> list[str]:
    """The configurations of the prompt under which format sensitivity is measured, in the official order.

    Source: `get_all_format_sensitivity_configs` of bfcl-eval's `utils.py`: every combination of a format of
    calls, a tag around them and a format of the functions, and two others.
    """
    form = "ret_fmt={}&tool_call_tag={}&func_doc_fmt={}&prompt_fmt={}&style={}"
    calls = ("python", "json", "verbose_xml", "concise_xml")
    combined = itertools.product(calls, ("True", "False"), ("python", "xml", "json"))
    return [
        *(form.format(*each, "plaintext", "classic") for each in combined),
        form.format("python", "False", "json", "markdown", "classic"),
        form.format("python", "False", "json", "plaintext", "experimental"),
    ]


@cache
def world_apis() -> dict[str, str]:
    """The simulated APIs of the multi-turn categories, and the files of `multi_turn_func_doc` on them."""
    files = _module("bfcl_eval.constants.executable_backend_config").MULTI_TURN_FUNC_DOC_FILE_MAPPING
    return {name: file for name, file in files.items() if not name.startswith(("Memory", "WebSearch"))}


def _module(name: str) -> ModuleType:
    data_folder()
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"the package bfcl-eval cannot be used ({first_line(error)}): {INSTALL}") from error
