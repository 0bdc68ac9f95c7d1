"""The knowledge base can be written anew, and comes out as it is."""

from pathlib import Path

import pytest

import rebuild_facts
from genenv.environments.multihop_qa.kb import built_in
from genenv.errors import UsageError


def needs_packages() -> None:
    for name in rebuild_facts.NEEDS:
        if name != "mendeleev":  # of which only the data file is read
            pytest.importorskip(name)


def test_every_alias_and_denial_of_a_rebuild_must_be_of_something_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(name in built_in() for name in rebuild_facts.ALIASES)
    needs_packages()
    monkeypatch.setattr(rebuild_facts, "ALIASES", {"Netherlands": ("Holland",)})
    with pytest.raises(UsageError, match="ALIASES has 'Netherlands', of which there is no fact"):
        rebuild_facts.main(tmp_path)
    monkeypatch.setattr(rebuild_facts, "DENIED", {("Oz", "capital"): "nowhere"})
    with pytest.raises(UsageError, match="no longer say"):
        rebuild_facts.main(tmp_path)


def test_a_rebuild_gives_the_same_files(tmp_path: Path) -> None:
    needs_packages()
    rebuild_facts.main(tmp_path)
    for name in ("facts.tsv", "aliases.tsv"):
        assert (tmp_path / name).read_bytes() == (rebuild_facts.DATA / name).read_bytes()


def test_a_rebuild_without_its_packages_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild_facts, "NEEDS", ("no_such_data_package",))
    with pytest.raises(UsageError, match=r"no_such_data_package .*tools/requirements.txt"):
        rebuild_facts.main(Path("unused"))


def test_the_sources_and_their_licences_are_named_beside_the_data() -> None:
    text = (rebuild_facts.DATA / "README.md").read_text(encoding="utf-8")
    assert all(name in text.lower() for name in (*rebuild_facts.NEEDS, "cc by 4.0", "unicode license v3"))
