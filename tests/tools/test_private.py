"""Folders that are filled before they have their name: nobody else can be there first."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from bundles import made
from genenv.files import filled


def test_a_folder_is_filled_where_nobody_else_may_enter_and_then_has_its_name_and_usual_rights(
    tmp_path: Path,
) -> None:
    (tmp_path / "usual").mkdir()
    with filled(tmp_path / "desk") as new:
        assert stat.S_IMODE(new.parent.stat().st_mode) == 0o700
        (new / "bundle.toml").write_text("")
        assert not (tmp_path / "desk").exists()
    assert (tmp_path / "desk" / "bundle.toml").is_file()
    assert (tmp_path / "desk").stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["desk", "usual"]


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with filled(tmp_path / "desk") as new:
            (new / "half").write_text("")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_a_bundle_is_not_made_in_a_folder_that_somebody_has_put_there_before(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / ".desk.new").symlink_to(elsewhere)
    bundle = made(tmp_path / "desk", base=2, held_out=1).bundle
    assert bundle.path == tmp_path / "desk"
    assert not list(elsewhere.iterdir())


@pytest.mark.long
def test_what_a_killed_process_has_left_half_filled_goes_the_next_time(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from genenv.files import filled\n"
        "with filled(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "desk")], check=False)
    assert [path.name.startswith(".desk.new-") for path in tmp_path.iterdir()] == [True]
    with filled(tmp_path / "desk"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["desk"]
