"""Ctrl-C stops a run at once, wherever it is: a real signal to a real process, on scripted players."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from genenv.runs.store.store import PoolStore

HANGING = """
    import sys, time
    from pathlib import Path
    sys.path.insert(0, {tests!r})
    import scripted_genenv as fakes
    from genenv.training import opening
    from genenv.agent.policy import Agent

    def hang(*_):  # like a batch or an update: Python code that gives the event loop no turn
        print("hanging", flush=True)
        while True:
            time.sleep(0.01)

    def begin(self, *arguments, round_, **options):
        if round_ == 2:
            {patch} = hang
        return roll_out(self, *arguments, round_=round_, **options)

    roll_out, Agent.roll_out = Agent.roll_out, begin
    fakes.few_base_data()
    opening.load_players = fakes.scripted_players
    Path(sys.argv[2]).write_text(fakes.SETTINGS.format(rounds=3))
    fakes.main()
"""

IN_A_DEL = """
    import sys, time, weakref

    class Held:
        pass

    def ended(*_):
        print("ending", flush=True)
        time.sleep(20)

    def work():
        held = Held()
        if {where!r} == "del":
            Held.__del__ = ended
        reference = weakref.ref(held, None if {where!r} == "del" else ended)
        del held  # here the signal arrives, and Python discards what its handler raises
        time.sleep(2)
        print("went on", flush=True)

    from genenv.cli import app, console

    def command():
        with console.stoppable("what was done is kept"):
            work()

    app.COMMANDS["doctor"] = "__main__:command"
    sys.argv = ["genenv", "doctor"]
    app.main()
"""


def stopped(
    words: Sequence[str], announced: str, number: signal.Signals, timeout_s: float
) -> tuple[int, str, str]:
    """The status of a program that gets a signal when it announces itself, and what it says after that."""
    with subprocess.Popen(
        [sys.executable, "-c", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in a background job
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{announced}\n"
        process.send_signal(number)
        try:
            rest, told = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
    return process.returncode, rest, told


@pytest.mark.long
@pytest.mark.parametrize("where", ["del", "weak reference"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_arrives_while_an_object_is_deleted_stops_too(
    where: str, number: signal.Signals
) -> None:
    program = textwrap.dedent(IN_A_DEL).format(where=where)
    found = stopped([program], "ending", number, timeout_s=15)
    assert found == (128 + number, "", "genenv: stopped; what was done is kept\n")


@pytest.mark.long
@pytest.mark.parametrize(
    ("patch", "number"),
    [
        ("self.sampler.script", signal.SIGINT),
        ("self.trainer.on_update", signal.SIGINT),
        ("self.trainer.on_update", signal.SIGTERM),
    ],
)
def test_one_interrupt_stops_sampling_and_updates_and_keeps_committed_rounds(
    tmp_path: Path, patch: str, number: signal.Signals
) -> None:
    program = textwrap.dedent(HANGING).format(tests=str(Path(__file__).parents[1]), patch=patch)
    words = [program, "train", str(tmp_path / "a.toml"), "--out", str(tmp_path / "run")]
    status, _, told = stopped(words, "hanging", number, timeout_s=20)
    assert status == 128 + number
    assert "Traceback" not in told
    assert not (tmp_path / "run" / "live.json").exists()
    sentences = [line for line in told.splitlines() if line.startswith("genenv")]
    assert sentences == told.splitlines()[-1:]
    assert sentences[0].startswith("genenv: stopped; committed rounds are kept")
    with PoolStore.open(tmp_path / "run/pool.db", create=False) as store:
        assert store.rounds() == (0, 1)
