"""A service on the network: asked when the bundle is made, replayed ever after."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from bundles import EXAMPLES, call
from genenv.errors import DataError, UsageError
from genenv.gate.gate import base_tasks, examined
from genenv.progress import Silent
from genenv.tools.bundle import Bundle
from genenv.tools.environment import Tools
from genenv.tools.generate.make_bundle import Wanted, make
from genenv.tools.worlds.limits import Limits
from genenv.tools.worlds.origins import origin_of
from genenv.tools.worlds.recorded import FILE, RecordedTool, Recording
from genenv.tools.worlds.sources import RecordedSource


@dataclass(frozen=True, slots=True)
class Shop:
    """A server that runs, and what it was asked."""

    address: str
    log: Path
    process: subprocess.Popen[bytes]

    def asked(self, tool: str) -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if line.split()[0] == tool]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with running(tmp_path_factory.mktemp("shop") / "log") as found:
        yield found


@contextmanager
def running(log: Path, *calls: str) -> Iterator[Shop]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(EXAMPLES / "shop_server.py"), str(port), str(log), *calls]
    process = subprocess.Popen(command)
    try:
        for _ in range(200):
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield Shop(f"http://127.0.0.1:{port}/mcp", log, process)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def reading(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "shop"
    make(folder, Wanted(origin=origin_of(f"mcp:{shop.address}"), base=40, held_out=10), examined, Silent())
    return folder


@pytest.mark.long
def test_what_may_write_is_left_out_and_never_called(shop: Shop, reading: Path) -> None:
    assert list(Bundle.open(reading).graph.recipes) == ["list_orders", "get_order", "get_customer"]
    assert shop.asked("cancel_order") == []
    told = (reading / "README.md").read_text()
    assert "`cancel_order` is no tool: it may write (it has no readOnlyHint), and --allow-writes" in told


@pytest.mark.long
def test_values_and_chains_come_from_what_was_answered(reading: Path) -> None:
    bundle = Bundle.open(reading)
    assert dict(bundle.graph.recipes["get_customer"].ways) == {"customer_id": "get_order().customer_id"}
    assert ("get_order", "get_customer") in {(link.reader, link.user) for link in bundle.graph.links}
    assert any(program.chained for program in bundle.base.values())


@pytest.mark.long
def test_in_training_nothing_is_asked_and_what_was_not_recorded_is_an_error(
    shop: Shop, reading: Path
) -> None:
    before = shop.log.read_text()
    env = Tools(folder=reading)
    tasks = base_tasks(env, env.seeds(), seed=0)
    assert len(tasks) == 40
    assert all(env.check(task, task.oracle).success for task in tasks.values())
    (known, other) = env.world.play(
        [call("get_order", order_id="O-5001"), call("get_order", order_id="O-1")]
    ).outcomes
    assert known.result == {"order_id": "O-5001", "item": "kettle", "price": 90, "customer_id": "C-104"}
    assert other.text == (
        '{"error":"This call was not recorded when the bundle was made, and the service is not asked now."}'
    )
    assert shop.log.read_text() == before


@pytest.mark.long
def test_with_leave_tools_that_write_are_called_each_call_once_and_reads_are_those_before(
    shop: Shop, reading: Path, tmp_path: Path
) -> None:
    del reading  # made before anything is written
    folder = tmp_path / "writing"
    origin = origin_of(f"mcp:{shop.address}", writes=True)
    make(folder, Wanted(origin=origin, base=30, held_out=5), examined, Silent())
    cancelled = shop.asked("cancel_order")
    assert len(cancelled) == len(set(cancelled)) >= 3
    last_read = max(
        number for number, line in enumerate(shop.log.read_text().splitlines()) if line.startswith("get_")
    )
    assert "cancel_order" not in "".join(shop.log.read_text().splitlines()[:last_read])
    world = RecordedSource(address=shop.address).open(folder / "files")
    found = [one.split()[1] for one in cancelled if " O-5" in one and len(one.split()[1]) == 6]
    first, second = (call("cancel_order", order_id=one) for one in found[:2])
    one_way, other_way = world.play([first, second]), world.play([second, first])
    assert one_way.state == other_way.state != world.play([first]).state
    assert [one.changed for one in one_way.outcomes] == [True, True]
    late = world.play([first, call("list_orders")]).outcomes[1]
    assert late.error == (
        "What the service finds after something was written was not recorded; look before you write."
    )


@pytest.mark.long
def test_of_a_server_that_dies_in_the_middle_what_it_answered_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "short"
    with running(tmp_path / "log", "25") as shop:
        origin = origin_of(f"mcp:{shop.address}")
        make(folder, Wanted(origin=origin, base=10, held_out=2), examined, Silent())
    kept = Recording.load(folder / "files")
    assert len(kept.answers) == 25
    assert kept.ended
    assert "Not all was recorded: it does" in (folder / "README.md").read_text()


@pytest.mark.long
@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(seconds=0.0), "took more than 0 s (0 programs"),
        (Limits(mib=0), "took more than 0 MiB of answers"),
    ],
)
def test_recording_a_server_stays_within_the_limits_of_time_and_bytes(
    tmp_path: Path, limits: Limits, said: str
) -> None:
    with running(tmp_path / "log") as shop:
        origin = origin_of(f"mcp:{shop.address}")
        with pytest.raises(UsageError) as caught:
            make(tmp_path / "made", Wanted(origin=origin, limits=limits), examined, Silent())
        assert said in str(caught.value)
        assert not shop.log.exists()  # its list of tools alone took more
    assert not (tmp_path / "made").exists()


def test_a_service_that_only_writes_or_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    origin = origin_of("mcp:http://127.0.0.1:9/mcp")
    with pytest.raises(UsageError, match=r"^http://127\.0\.0\.1:9/mcp gives no tools: .*failed$"):
        origin.bring(tmp_path / "files")


def test_the_proxy_of_the_environment_is_for_services_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks4://127.0.0.1:9")
    monkeypatch.delenv("http_proxy", raising=False)
    with pytest.raises(UsageError, match=r"gives no tools: .*connection.*failed$"):
        origin_of("mcp:http://127.0.0.1:9/mcp").bring(tmp_path / "files")
    with pytest.raises(UsageError, match=r"gives no tools: .* as the proxy for far\.example"):
        origin_of("mcp:http://far.example/mcp").bring(tmp_path / "files")


@pytest.mark.parametrize(
    ("text", "folder", "writes", "said"),
    [
        ("mcp:http://x/mcp", Path(), False, "one with an address has none"),
        ("tools.py", None, True, "--allow-writes is for an MCP server with an address"),
        ("mcp:server", None, True, "--allow-writes is for an MCP server with an address"),
    ],
)
def test_options_that_do_not_fit_are_one_sentence(
    text: str, folder: Path | None, writes: bool, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        origin_of(text, folder=folder, writes=writes)


def test_a_damaged_recording_is_one_sentence(tmp_path: Path) -> None:
    source = RecordedSource(address="http://x")
    with pytest.raises(DataError, match="cannot be read: No such file"):
        source.open(tmp_path)
    (tmp_path / FILE).write_text('{"tools": [{"name": 3}]}')
    with pytest.raises(DataError, match=r"recorded.json: tools\.0\.name: Input should be a valid string"):
        source.open(tmp_path)


def test_a_recording_is_kept_as_it_was(tmp_path: Path) -> None:
    one = Recording(tools=(RecordedTool(name="look", parameters={"type": "object"}),), left_out={"a": "b"})
    one.save(tmp_path / "files")
    assert Recording.load(tmp_path / "files") == one
