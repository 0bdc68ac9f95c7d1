"""The viewer beside other processes: one that writes a run until it is killed, and the command itself."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from genenv.viewer.pages import address
from running import comes_true
from viewer_runs import write_run

pytestmark = pytest.mark.long

WRITER = """
import sys, time
from pathlib import Path
from genenv.runs.folder import RunFolder
from genenv.runs.store.store import PoolStore
from genenv.types import Seed
from viewer_runs import commit

folder = RunFolder.open(Path(sys.argv[1]))
seed = Seed(id="seed plain", environment="sums", spec={"text": "plain"}, skills=("adding",))
for number in range(1, 10_000):
    with folder.lock(), PoolStore.open(folder.pool, create=False) as store:
        commit(folder, store, number, seed=seed)
    print(number, flush=True)
"""


def test_every_page_is_whole_while_a_process_opens_writes_and_closes_the_store_and_after_it_is_killed(
    tmp_path: Path, serve: Any
) -> None:
    folder = write_run(tmp_path / "demo", rounds=1, planned=20_000)
    reader = serve(tmp_path)
    paths = [address("demo", page) for page in ("", "tasks", "refused", "curves")]
    paths += [address("demo", "task", id="base plain")]
    wrong = list[tuple[str, int, str]]()

    def read() -> None:
        for path in paths * 12:
            answer = reader.ask(path)
            if answer.status != 200 or b"cannot be shown" in answer.body:
                wrong.append((path, answer.status, answer.text[-900:]))

    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder.path)],
        env={"PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "1\n"
            readers = [threading.Thread(target=read) for _ in range(3)]
            for one in readers:
                one.start()
            for one in readers:
                one.join()
            assert int(writer.stdout.readline()) > 1, "it goes on"
        finally:
            writer.kill()
    assert not wrong, wrong[0]
    assert "stopped" in reader.page(address("demo"))
    read()
    assert not wrong, wrong[0]


def test_the_command_prints_where_it_serves_and_ends_by_hand(tmp_path: Path) -> None:
    write_run(tmp_path / "demo", rounds=1)
    command = [sys.executable, "-m", "genenv", "view", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        found = re.search(r" at (http://127\.0\.0\.1:\d+) \(Ctrl-C ends it\)", process.stdout.readline())
        assert found is not None
        with urllib.request.urlopen(found[1]) as answer:  # noqa: S310 - an address on loopback
            assert b"demo" in answer.read()
        process.send_signal(signal.SIGINT)
        assert comes_true(lambda: process.poll() is not None)
        assert "Traceback" not in process.stderr.read()
