"""Finding and loading models: what the disk, the memory or the model itself stands in the way of."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import safetensors
import transformers

from genenv.doctor import _embedded_model
from genenv.errors import UsageError
from genenv.policies import models


@pytest.fixture
def cache(tiny, tmp_path, monkeypatch) -> Path:
    """The cache of an embedded model that is a tiny one, not yet unpacked."""
    gguf = tmp_path / "tiny.gguf"
    gguf.write_bytes(b"GGUF")
    model, tokenizer = tiny.plain(), tiny.tokenizer()
    monkeypatch.setattr(models, "_embedded_gguf", lambda: gguf)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", lambda *a, **o: model)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *a, **o: tokenizer)
    monkeypatch.setenv("GENENV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_embedded_model_is_unpacked_once_and_nothing_else_is_left(cache):
    folder = Path(models.resolve(models.EMBEDDED))
    assert list(cache.iterdir()) == [folder]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
    written = (folder / "config.json").stat().st_mtime_ns
    assert models.resolve(models.EMBEDDED) == str(folder)
    assert (folder / "config.json").stat().st_mtime_ns == written


@pytest.mark.parametrize(
    ("writer", "error"),
    [
        ("PreTrainedModel", safetensors.SafetensorError("I/O error: No space left on device (os error 28)")),
        ("PreTrainedTokenizerBase", Exception("No space left on device (os error 28)")),  # by tokenizers
        ("PreTrainedTokenizerBase", OSError(errno.ENOSPC, "No space left on device")),
    ],
)
def test_a_full_disk_while_unpacking_is_one_sentence_and_leaves_nothing(cache, monkeypatch, writer, error):
    def full(self, folder, **options) -> None:
        Path(folder).mkdir(exist_ok=True)
        Path(folder, "half").write_bytes(b"x")
        raise error

    monkeypatch.setattr(getattr(transformers, writer), "save_pretrained", full)
    with pytest.raises(UsageError, match=r"could not be unpacked .*No space left.*set GENENV_CACHE"):
        models.resolve(models.EMBEDDED)
    assert list(cache.iterdir()) == []
    here, note = _embedded_model()
    assert here == "does not work"
    assert "No space left on device" in note


def test_what_goes_wrong_otherwise_while_unpacking_is_a_bug_and_leaves_nothing(cache, monkeypatch):
    def broken(self, folder) -> None:
        raise TypeError("a bug")

    monkeypatch.setattr(transformers.PreTrainedModel, "save_pretrained", broken)
    with pytest.raises(TypeError, match="a bug"):
        models.resolve(models.EMBEDDED)
    assert list(cache.iterdir()) == []
