"""Arguments that the agent does not choose, and files that stand beside the tools."""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bundles import call
from genenv.errors import UsageError
from genenv.tools.bundle import About, about_toml
from genenv.tools.worlds.base import LoadedWorld
from genenv.tools.worlds.origins import OpenApiOrigin, PythonOrigin, configure, given_of
from genenv.tools.worlds.sources import PythonSource


def written(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def opened(origin: PythonOrigin, to: Path, *given: str) -> LoadedWorld:
    configure(origin, (), given_of(given))
    return origin.bring(to).open(to)


CONTEXT = """
    from dataclasses import dataclass, field

    class Session:
        def __init__(self):
            self.seats = {"A1": "", "A2": "", "B1": "Ann"}

    def book(session: Session, seat: str, name: str) -> str:
        if session.seats[seat]:
            raise ValueError(f"{seat} is taken")
        session.seats[seat] = name
        return f"{name} has {seat}"

    def free(session: Session) -> list[str]:
        return [seat for seat, name in session.seats.items() if not name]
"""


@pytest.mark.long
def test_a_context_is_given_is_state_and_is_no_argument_of_the_agent(tmp_path: Path) -> None:
    written(
        tmp_path / "a",
        {"tools.py": CONTEXT, "made.py": "import tools\nasync def new(): return tools.Session()"},
    )
    for number, where in enumerate(("Session", "made:new")):
        world = opened(PythonOrigin(tmp_path / "a" / "tools.py"), tmp_path / f"{number}", f"session={where}")
        assert set(world.tools["book"].properties) == {"seat", "name"}
        played = world.play([call("book", seat="A1", name="Bo"), call("free")], watch=True)
        assert [one.changed for one in played.outcomes] == [True, False]
        assert played.outcomes[1].result == ["A2"]
        assert world.play([call("free")]).outcomes[0].result == ["A1", "A2"]
        state: Any = played.state
        assert state["session"]["seats"]["A1"] == "Bo"
        world.close()


def test_without_it_the_argument_is_named(tmp_path: Path) -> None:
    written(tmp_path, {"tools.py": CONTEXT})
    with pytest.raises(
        UsageError,
        match=r"book: no JSON can stand for its argument 'session'; give it with --given session=MODULE:NAME",
    ):
        opened(PythonOrigin(tmp_path / "tools.py"), tmp_path / "out")


def test_a_type_that_stands_for_nothing_given_is_left_out_of_the_schema(tmp_path: Path) -> None:
    text = """
        class NotGiven: pass
        NOT_GIVEN = NotGiven()
        orders = {"A-1": {"item": "lamp", "count": 2}}

        def change(
            order_id: str, item: str | NotGiven = NOT_GIVEN, count: int | None | NotGiven = NOT_GIVEN
        ) -> dict:
            given = {"item": item, "count": count}
            orders[order_id] |= {name: one for name, one in given.items() if not isinstance(one, NotGiven)}
            return orders[order_id]
        """
    written(tmp_path, {"tools.py": text})
    world = opened(PythonOrigin(tmp_path / "tools.py"), tmp_path / "out")
    assert world.tools["change"].properties["item"] == {"type": "string"}
    changed = world.play([call("change", order_id="A-1", count=5)]).outcomes[0]
    assert changed.result == {"item": "lamp", "count": 5}
    world.close()


@pytest.mark.long
def test_a_constructor_is_given_its_arguments(tmp_path: Path) -> None:
    files = {
        "shop/__init__.py": "",
        "shop/data.py": "class Stock:\n    rows = ()\n    @classmethod\n    def load(cls):\n"
        "        made = cls()\n        made.rows = {'nail': 3}\n        return made\n",
        "shop/tools.py": "class Shop:\n    def __init__(self, stock, name='x'):\n        self.stock = stock\n"
        "    def take(self, what: str) -> int:\n        self.stock.rows[what] -= 1\n"
        "        return self.stock.rows[what]\n",
    }
    written(tmp_path, files)
    file = tmp_path / "shop" / "tools.py"
    world = opened(PythonOrigin(file), tmp_path / "out", "stock=shop.data:Stock.load")
    played = world.play([call("take", what="nail")], watch=True)
    assert played.outcomes[0].result == 2
    assert played.state == {"stock": {"rows": {"nail": 2}}}
    world.close()
    source = PythonSource(file="shop/tools.py", given={"stock": "shop.data:Stock.load"})
    about = About(name="shop", source=source)
    assert About.model_validate(tomllib.loads(about_toml(about))).source == source
    with pytest.raises(UsageError, match=r"Shop cannot begin without stock; .* --given stock=MODULE:NAME"):
        opened(PythonOrigin(file), tmp_path / "none")
    for wrong, said in (
        ("shop.data:Nothing", "no attribute 'Nothing'"),
        ("shop.nowhere:x", "No module named 'shop.nowhere'"),
        ("shop.data:Stock.load.x", "no attribute 'x'"),
    ):
        with pytest.raises(UsageError, match=f"--given stock={wrong} cannot be had: .*{said}"):
            opened(PythonOrigin(file), tmp_path / wrong.replace(":", "-"), f"stock={wrong}")


@pytest.mark.parametrize("text", ["stock", "stock=", "=a:b", "a b=c", "stock=a:b:c", "stock=a/b.py:c"])
def test_a_given_argument_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not PARAMETER=MODULE:NAME"):
        given_of([text])


def test_what_is_given_is_for_python_files() -> None:
    with pytest.raises(UsageError, match="--given is for a Python file"):
        configure(OpenApiOrigin("openapi.json", ()), (), {"a": "b:c"})


def test_a_script_in_a_package_imports_its_neighbors(tmp_path: Path) -> None:
    files = {
        "my-shop/__init__.py": "",
        "my-shop/database.py": "rows = ['a']",
        "my-shop/main.py": "import database\ndef add(name: str) -> int:\n    database.rows.append(name)\n"
        "    return len(database.rows)\n",
    }
    written(tmp_path, files)
    world = opened(PythonOrigin(tmp_path / "my-shop" / "main.py"), tmp_path / "out")
    played = world.play([call("add", name="b")], watch=True)
    assert (played.outcomes[0].result, played.outcomes[0].changed) == (2, True)
    world.close()


@pytest.mark.long
def test_a_folder_above_the_file_is_copied_where_it_is_named(tmp_path: Path) -> None:
    files = {
        "app/src/tools.py": "import json, pathlib\n"
        "PLACE = pathlib.Path(__file__).parent.parent / 'data' / 'rows.json'\n"
        "def add(name: str) -> int:\n    rows = json.loads(PLACE.read_text()) + [name]\n"
        "    PLACE.write_text(json.dumps(rows))\n    return len(rows)\n",
        "app/data/rows.json": '["a"]',
        "app/secret.txt": "not asked for",
    }
    written(tmp_path, files)
    origin = PythonOrigin(tmp_path / "app" / "src" / "tools.py", root=tmp_path / "app")
    to = tmp_path / "out"
    source = origin.bring(to)
    with_asked = source.open(to)
    assert with_asked.play([call("add", name="b")]).outcomes[0].error is not None
    origin.complete(with_asked, source, to)  # brings what was asked for
    with_asked.close()
    world = source.open(to)
    played = world.play([call("add", name="b")], watch=True)
    assert (played.outcomes[0].result, played.outcomes[0].changed) == (2, True)
    assert not (to / "secret.txt").exists()
    assert (tmp_path / "app" / "data" / "rows.json").read_text() == '["a"]'
    world.close()
    with pytest.raises(UsageError, match="is not in --files"):
        PythonOrigin(tmp_path / "app" / "src" / "tools.py", root=tmp_path / "app" / "data").bring(
            tmp_path / "x"
        )
