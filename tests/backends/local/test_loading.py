"""Finding and loading models: what the disk, the memory or the model itself stands in the way of."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
import transformers

from genenv.backends.local import loading
from genenv.cli.doctor import _embedded_model
from genenv.errors import UsageError


@pytest.fixture
def cache(tiny, tmp_path, monkeypatch) -> Path:
    """The cache of an embedded model that is a tiny one, not yet unpacked."""
    gguf = tmp_path / "tiny.gguf"
    gguf.write_bytes(b"GGUF")
    model, tokenizer = tiny.plain(), tiny.tokenizer()
    monkeypatch.setattr(loading, "_embedded_gguf", lambda: gguf)
    found = {"missing_keys": set(), "mismatched_keys": set(), "unexpected_keys": set()}
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", lambda *a, **o: (model, found))
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *a, **o: tokenizer)
    monkeypatch.setenv("GENENV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_embedded_model_is_unpacked_once_and_nothing_else_is_left(cache):
    folder = Path(loading.resolve(loading.EMBEDDED))
    assert list(cache.iterdir()) == [folder]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
    written = (folder / "config.json").stat().st_mtime_ns
    assert loading.resolve(loading.EMBEDDED) == str(folder)
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
        loading.resolve(loading.EMBEDDED)
    assert list(cache.iterdir()) == []
    here, note = _embedded_model()
    assert here == "does not work"
    assert "No space left on device" in note


def test_an_embedded_model_that_lacks_a_weight_is_not_unpacked(cache, tiny, monkeypatch):
    found = {"missing_keys": {"model.norm.weight"}, "mismatched_keys": set(), "unexpected_keys": set()}
    monkeypatch.setattr(
        transformers.AutoModelForCausalLM, "from_pretrained", lambda *a, **o: (tiny.plain, found)
    )
    with pytest.raises(UsageError, match=r"unpacked: the weight model\.norm\.weight is missing"):
        loading.resolve(loading.EMBEDDED)
    assert list(cache.iterdir()) == []


def test_what_goes_wrong_otherwise_while_unpacking_is_a_bug_and_leaves_nothing(cache, monkeypatch):
    def broken(self, folder) -> None:
        raise TypeError("a bug")

    monkeypatch.setattr(transformers.PreTrainedModel, "save_pretrained", broken)
    with pytest.raises(TypeError, match="a bug"):
        loading.resolve(loading.EMBEDDED)
    assert list(cache.iterdir()) == []


def changed(folder: Path, to: Path, name: str, **values) -> Path:
    """A copy of a model's folder with other values in one of its JSON files."""
    file = shutil.copytree(folder, to / "model") / name
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | values), encoding="utf-8")
    return file.parent


CODE = {
    "AutoConfig": "code.Config",
    "AutoModelForCausalLM": "code.Model",
    "AutoTokenizer": ["code.Words", None],
}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("config.json", {"model_type": "odd", "architectures": ["OddForCausalLM"]}),
        ("tokenizer_config.json", {"tokenizer_class": "OddTokenizer"}),
    ],
)
def test_a_model_with_code_of_its_own_is_refused_without_a_question(
    tiny, tmp_path, monkeypatch, name, values
):
    asked = []
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or "y")
    folder = changed(tiny.folder(), tmp_path, name, auto_map=CODE, **values)
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')", encoding="utf-8")
    with pytest.raises(
        UsageError, match=r"could not be loaded: it needs Python code of its own, .* never run"
    ):
        tiny.model(folder=folder)
    assert not asked
    assert not (tmp_path / "ran").exists()


def test_weights_in_another_format_than_safetensors_are_one_sentence(tiny, tmp_path):
    folder = shutil.copytree(tiny.folder(), tmp_path / "model")
    weights = folder / "model.safetensors"
    torch.save(safetensors.torch.load_file(weights), folder / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(UsageError, match=r"there is no model\.safetensors, and no other format is read"):
        tiny.model(folder=folder)


@pytest.mark.parametrize(
    ("name", "values", "sentence"),
    [
        (
            "config.json",
            {"quantization_config": {"quant_method": "aqlm"}},
            r"the weights .* requires AQLM.*;",
        ),
        ("tokenizer_config.json", {"tokenizer_class": "XLMTokenizer"}, r"the tokenizer .* sacremoses .*;"),
    ],
)
def test_a_model_that_needs_more_packages_is_one_sentence(tiny, tmp_path, name, values, sentence):
    with pytest.raises(UsageError, match=sentence + " install that, or choose another model"):
        tiny.model(folder=changed(tiny.folder(), tmp_path, name, **values))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes."),
    ],
)
def test_a_model_that_does_not_fit_into_memory_is_one_sentence(tiny, monkeypatch, error):
    def full(self, device) -> None:
        raise error

    monkeypatch.setattr(transformers.PreTrainedModel, "to", full)
    with pytest.raises(UsageError, match=r"memory ran out; choose a smaller model, or another policy\.dtype"):
        tiny.model()
