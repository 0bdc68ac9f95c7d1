"""What tests of environments share: texts that a grammar lets through, and specs made wrong."""

from __future__ import annotations

import json
import random
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from genenv.simulator.schema_sampling import sample_json
from genenv.types import JsonObject


@pytest.fixture(scope="module")
def written_under() -> Callable[[JsonObject, JsonObject], bool]:
    """Whether a spec is one that a simulator could write under a schema."""
    xgrammar = pytest.importorskip("xgrammar")
    vocabulary = [*map(chr, (*range(0x20, 0x7F), *range(0xA0, 0x250))), *"‘’–", "</s>"]
    info = xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[len(vocabulary) - 1])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)

    def accept(schema: JsonObject, spec: JsonObject) -> bool:
        text = json.dumps(spec, ensure_ascii=False, separators=(",", ":"))
        compiled = compiler.compile_json_schema(
            json.dumps(schema), any_whitespace=False, separators=(",", ":")
        )
        matcher = xgrammar.GrammarMatcher(compiled)
        return all(matcher.accept_token(vocabulary.index(char)) for char in text) and matcher.accept_token(
            len(vocabulary) - 1
        )

    return accept


@pytest.fixture(scope="session")
def draw() -> Callable[[JsonObject, random.Random], Any]:
    """`draw(schema, rng)`: a value that a schema allows."""
    return sample_json


@pytest.fixture(scope="module")
def mutants(request: pytest.FixtureRequest) -> Callable[..., Iterator[tuple[str, Any]]]:
    """`mutants(spec, rng)` of the file mutations.py beside a test."""
    return runpy.run_path(str(Path(request.path).parent / "mutations.py"))["mutants"]
