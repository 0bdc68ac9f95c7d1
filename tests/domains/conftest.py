"""What tests of domains share: whether a grammar lets a text through, and specs made wrong."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from genenv.types import JsonObject


@pytest.fixture(scope="module")
def written_under() -> Callable[[JsonObject, JsonObject], bool]:
    """Whether a spec is one that a simulator could write under a schema."""
    xgrammar = pytest.importorskip("xgrammar")
    vocabulary = [*sorted({chr(code) for code in range(32, 127)} | set("éèáíóúñçãäöüåøß")), "</s>"]
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


@pytest.fixture(scope="module")
def mutants(request: pytest.FixtureRequest) -> Callable[..., Iterator[tuple[str, Any]]]:
    """`mutants(spec, rng)` of the file mutations.py beside a test."""
    path = Path(request.path).parent / "mutations.py"
    found = importlib.util.spec_from_file_location(f"mutations_{path.parent.name}", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module.mutants
