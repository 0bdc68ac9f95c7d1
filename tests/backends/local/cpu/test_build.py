"""Where compiled code cannot be had, one sentence is logged and torch is used."""

from __future__ import annotations

import logging

import pytest
from torch import nn

from genenv.backends.local.cpu import build
from genenv.backends.local.cpu.build import WrongResult, check
from genenv.backends.local.cpu.kernels import Kernels
from tensors import compiled


def load_anew(monkeypatch, caplog, tmp_path, compiler: str) -> Kernels | None:
    monkeypatch.setenv("GENENV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", compiler)
    with caplog.at_level(logging.INFO):
        return build.load.__wrapped__()


def test_without_a_compiler_one_sentence_says_so(monkeypatch, caplog, tmp_path):
    assert load_anew(monkeypatch, caplog, tmp_path, str(tmp_path / "nowhere")) is None
    (record,) = caplog.records
    assert "there is no C++ compiler" in record.getMessage()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'kernels.cpp: fatal error: unknown option' >&2; exit 1", "fatal error: unknown option"),
        ("while [ $1 != -o ]; do shift; done; echo nonsense > $2", "file too short"),
    ],
)
def test_a_compiler_that_fails_leaves_torch_in_its_place(monkeypatch, caplog, tmp_path, script, reason):
    compiler = tmp_path / "compiler"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    assert load_anew(monkeypatch, caplog, tmp_path, str(compiler)) is None
    (record,) = caplog.records
    assert reason in record.getMessage()
    assert not list((tmp_path / "cache").glob("*.so"))


@compiled
def test_compiled_code_with_wrong_results_is_not_used(kernels, monkeypatch):
    monkeypatch.setattr(kernels, "swiglu", lambda joint: nn.functional.silu(joint).chunk(2, -1)[0])
    with pytest.raises(WrongResult, match="swiglu is off by"):
        check(kernels)


@compiled
def test_compiled_code_that_passes_on_a_wrong_inverse_is_not_used(kernels, monkeypatch):
    norm = kernels.norm
    monkeypatch.setattr(kernels, "norm", lambda *given: (norm(*given)[0], 2 * norm(*given)[1]))
    with pytest.raises(WrongResult, match="norm_back is off by"):
        check(kernels)
