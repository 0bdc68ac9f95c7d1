"""A model is used when every number in it is its file's own; all else is refused in a sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from genenv.errors import DataError, UsageError

UP = "model.layers.1.mlp.up_proj.weight"
State = dict[str, torch.Tensor]


def edit(file: Path, change: Callable[[State], object]) -> None:
    state = safetensors.torch.load_file(file)
    change(state)
    safetensors.torch.save_file(state, file, metadata={"format": "pt"})


@pytest.fixture
def copied(tiny: Any, tmp_path: Path) -> Callable[..., Path]:
    """A copy of a tiny model's folder, its weights changed."""

    def copy(change: Callable[[State], object] = len, kind: str = "llama", **changes: Any) -> Path:
        folder = shutil.copytree(tiny.folder(kind, **changes), tmp_path / "model")
        edit(folder / "model.safetensors", change)
        return folder

    return copy


def damage(name: str) -> Callable[[State], object]:
    def grow(state: State) -> None:
        state["extra.weight"] = torch.ones(3)

    def shrink(state: State) -> None:
        state["model.embed_tokens.weight"] = state["model.embed_tokens.weight"][:300].clone()

    def spoil(value: float) -> Callable[[State], object]:
        return lambda state: state[UP][3].fill_(value)

    return {
        "missing": lambda state: state.pop(UP),
        "missing layer": lambda state: [state.pop(n) for n in list(state) if ".layers.1." in n],
        "extra": grow,
        "shape": shrink,
        "nan": spoil(float("nan")),
        "infinite": spoil(float("-inf")),
    }[name]


SENTENCES = {
    "missing": rf"the weight {UP} is missing, and would be random numbers; get the whole folder",
    "missing layer": r"9 weights \(model\.layers\.1\..*, model\.layers\.1\..*, \.\.\.\) are missing",
    "extra": r"the weight extra\.weight is not used by a LlamaForCausalLM",
    "shape": r"of another shape than config\.json says \(.*weight is \(300, 64\), not \(331, 64\)\)",
    "nan": rf"the weight {UP} is not finite \(NaN or infinity\)",
    "infinite": rf"the weight {UP} is not finite",
}


@pytest.mark.parametrize("name", SENTENCES)
def test_a_folder_whose_weights_are_not_the_models_own_is_refused(copied, tiny, caplog, name) -> None:
    folder = copied(damage(name))
    with pytest.raises(UsageError, match=r"the weights of .* could not be loaded: .*" + SENTENCES[name]):
        tiny.model(folder=folder)
    assert "LOAD REPORT" not in caplog.text


@pytest.mark.parametrize("name", SENTENCES)
def test_a_checkpoint_of_a_whole_model_is_held_to_the_same(tiny, tmp_path, name) -> None:
    policy = tiny.player(adapter=None)
    policy.weights.save(tmp_path)
    edit(tmp_path / "model.safetensors", damage(name))
    with pytest.raises(DataError, match=r"the weights in .* cannot be read: .*" + SENTENCES[name]):
        policy.weights.load(tmp_path)


@pytest.mark.parametrize("part", [".", "reference"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_adapter_with_numbers_that_are_not_finite_is_refused(tiny, tmp_path, part, value) -> None:
    policy = tiny.player(noise=0.1)
    policy.weights.anchor()
    policy.weights.save(tmp_path)
    before = tiny.values(policy)
    edit(tmp_path / part / "adapter_model.safetensors", lambda state: next(iter(state.values())).fill_(value))
    with pytest.raises(DataError, match="holds numbers that are not finite"):
        policy.weights.load(tmp_path)
    assert all(torch.equal(before[name], after) for name, after in tiny.values(policy).items())


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma3_text", "gpt_neox", "mistral", "phi3", "olmo2"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_whole_folder_loads_whether_its_output_layer_is_tied_or_not(copied, tiny, kind, tied) -> None:
    folder = copied(kind=kind, tie_word_embeddings=tied)
    names = safetensors.torch.load_file(folder / "model.safetensors").keys()
    assert any(name in names for name in ("lm_head.weight", "embed_out.weight")) is not tied
    ends = tiny.model(kind, folder).causal
    same = ends.get_input_embeddings().weight is ends.get_output_embeddings().weight
    assert same is tied


def test_an_output_layer_that_is_neither_tied_nor_there_is_refused(copied, tiny) -> None:
    folder = copied(lambda state: state.pop("lm_head.weight"), tie_word_embeddings=False)
    with pytest.raises(UsageError, match=r"the weight lm_head\.weight is missing, and would be random"):
        tiny.model(folder=folder)


def test_what_old_files_keep_and_models_now_make_themselves_is_no_obstacle(copied, tiny) -> None:
    def frequencies(state: State) -> None:
        state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)

    assert tiny.model(folder=copied(frequencies)).causal is not None


def test_a_vocabulary_smaller_than_the_tokenizers_is_refused(tiny) -> None:
    with pytest.raises(
        UsageError, match=r"31 of its tokens \(such as .*\) lie beyond the 300 that the model has"
    ):
        tiny.model(folder=tiny.folder(vocab_size=300))
    assert tiny.model(folder=tiny.folder(vocab_size=384)).vocabulary == 384  # padded, as many models are


@pytest.mark.parametrize(("said", "fits"), [("", True), ("<image>", False)])
def test_a_token_of_other_media_may_lie_beyond_the_vocabulary_unless_the_template_says_it(
    tiny, tmp_path, said, fits
) -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    tokenizer.chat_template += said
    folder = shutil.copytree(tiny.folder(), tmp_path / "model")
    tokenizer.save_pretrained(folder)
    if fits:
        tiny.model(folder=folder)
    else:
        with pytest.raises(UsageError, match=r"1 of its tokens \(such as '<image>'\) lie beyond the 331"):
            tiny.model(folder=folder)


def test_a_folder_without_a_tokenizer_is_refused(copied, tiny) -> None:
    folder = copied()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).unlink()
    with pytest.raises(
        UsageError, match=r"the tokenizer of .* could not be loaded: there is no tokenizer\.json"
    ):
        tiny.model(folder=folder)


def test_an_index_that_names_fewer_weights_than_the_model_has_is_refused(copied, tiny) -> None:
    folder = copied(damage("missing"))
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    names = safetensors.torch.load_file(folder / "model-00001-of-00001.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(UsageError, match=rf"the weight {UP} is missing"):
        tiny.model(folder=folder)
