from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from genenv.errors import DataError, UsageError
from genenv.evaluation.data import DataFolder, known_hashes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.jsonl").write_text('{"a": 1}\n\n{"a": 2}\n', encoding="utf-8")
    (tmp_path / "b" / "x.json").write_text('{\n"a": [1,\n}', encoding="utf-8")
    return tmp_path


def test_lines_come_with_their_numbers_and_the_hash_is_kept(folder: Path) -> None:
    data = DataFolder(folder)
    assert list(data.json_lines("b/x.jsonl")) == [(1, {"a": 1}), (3, {"a": 2})]
    assert data.hashes == {"b/x.jsonl": hashlib.sha256(b'{"a": 1}\n\n{"a": 2}\n').hexdigest()}


def test_a_missing_file_is_named(folder: Path) -> None:
    with pytest.raises(DataError, match=r"b/y\.jsonl is missing; docs/guides/evaluation\.md"):
        DataFolder(folder).read("b/y.jsonl")


def test_a_folder_without_such_files_is_named(folder: Path) -> None:
    with pytest.raises(DataError, match=r"b holds no \*\.csv"):
        DataFolder(folder).files("b", "*.csv")


def test_a_line_that_is_cut_off_is_named(folder: Path) -> None:
    path = folder / "b" / "x.jsonl"
    path.write_text(path.read_text()[:-4], encoding="utf-8")
    with pytest.raises(DataError, match=r"x\.jsonl, line 3: it is not a JSON object"):
        list(DataFolder(folder).json_lines("b/x.jsonl"))


def test_json_that_is_none_names_the_line(folder: Path) -> None:
    with pytest.raises(DataError, match=r"x\.json, line 3: it is not JSON"):
        DataFolder(folder).json("b/x.json")


def test_bytes_that_are_no_text_name_the_line(folder: Path) -> None:
    (folder / "b" / "x.jsonl").write_bytes(b'{"a": 1}\n{"a": "\xff"}\n')
    with pytest.raises(DataError, match=r"x\.jsonl, line 2: it is not UTF-8"):
        list(DataFolder(folder).json_lines("b/x.jsonl"))


def test_a_changed_file_is_refused_unless_that_is_allowed(folder: Path) -> None:
    known = {"b/x.jsonl": "0" * 64}
    with pytest.raises(DataError, match=r"x\.jsonl is not the file that this benchmark is known by"):
        DataFolder(folder, known=known).read("b/x.jsonl")
    assert DataFolder(folder, known=known, allow_changed=True).read("b/x.jsonl")


def test_another_folder_shares_the_record_of_hashes(folder: Path) -> None:
    data = DataFolder(folder)
    data.elsewhere(folder / "b").read("x.jsonl")
    assert list(data.hashes) == ["x.jsonl"]


def test_what_a_part_lacks_is_a_sentence(folder: Path) -> None:
    data = DataFolder(folder)
    with pytest.raises(DataError, match=r"x\.jsonl, line 3: it is not as expected \(KeyError: 'b'\)"):
        data.reading("b/x.jsonl", "line 3", lambda: {"a": 1}["b"])


def test_without_a_folder_the_variable_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GENENV_DATA", raising=False)
    nowhere = DataFolder.from_environment()  # enough for a benchmark that comes in a package
    with pytest.raises(UsageError, match="set GENENV_DATA"):
        nowhere.read("b/x.jsonl")
    monkeypatch.setenv("GENENV_DATA", str(tmp_path / "gone"))
    with pytest.raises(UsageError, match="there is no folder"):
        DataFolder.from_environment()


def test_the_real_files_are_the_known_ones(data_folder: DataFolder) -> None:
    names = [name for name in known_hashes() if (data_folder.root / name).is_file()]
    assert len(names) > 280
    for name in names:
        data_folder.read(name)
