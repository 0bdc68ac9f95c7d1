"""The model `tiny`: made once, the same everywhere, a token a character."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from genenv.backends.local import hub, loading
from genenv.backends.local.model import LocalModel
from genenv.backends.settings import TINY, PolicyConfig
from genenv.errors import UsageError
from genenv.types import Message


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("GENENV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_it_is_written_once_with_equal_weights_whatever_was_drawn_before(cache, tmp_path, monkeypatch):
    folder = Path(loading.resolve(TINY))
    assert list(cache.iterdir()) == [folder]
    assert loading.resolve(TINY) == hub.check(str(folder)) == str(folder)
    monkeypatch.setenv("GENENV_CACHE", str(tmp_path / "other"))
    torch.manual_seed(5)
    state = torch.get_rng_state()
    other = Path(loading.resolve(TINY))
    assert torch.equal(torch.get_rng_state(), state)
    first, second = (safetensors.torch.load_file(path / "model.safetensors") for path in (folder, other))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert sum(value.numel() for value in first.values()) < 150_000


def test_a_character_is_a_token_and_a_conversation_begins_with_a_token_of_its_turn(cache):
    chat = LocalModel(TINY, PolicyConfig(model=TINY, tuning="full", device="cpu", context_tokens=64)).chat
    prompt = chat.render([Message(role="user", content="4306>ruf=")], first=True)
    assert len(prompt) == len("4306>ruf=") + 3
    assert chat.decode(prompt) == "4306>ruf="
    assert chat.encode_reply("7") == (*chat.encode("7"), chat.end_id)
    assert chat.decode(chat.encode_reply('{"d":1} ü')) == '{"d":1} ü'
    with_turns = chat.render(
        [Message(role="system", content="s"), Message(role="user", content="<a>")], first=True
    )
    assert chat.decode(with_turns) == "s<a>"


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    monkeypatch.setenv("GENENV_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UsageError, match=r"the tiny model could not be written into .* set GENENV_CACHE"):
        loading.resolve(TINY)


def test_who_is_slower_takes_what_another_process_has_made(cache, monkeypatch):
    rename = Path.rename

    def late(self: Path, target: Path) -> Path:
        if not Path(target).exists():
            target.mkdir()
            for file in self.iterdir():
                rename(file, target / file.name)
            (self / "left").write_text("x", encoding="utf-8")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    folder = Path(loading.resolve(TINY))
    assert list(cache.iterdir()) == [folder]
    assert not (folder / "left").exists()
