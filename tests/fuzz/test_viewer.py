"""What the viewer reads of a run: metrics, settings, conversations and tokens, whoever wrote them."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import strategies as st

from fuzzing import Fuzz, json_values
from genenv.viewer import curves
from genenv.viewer.alarms import alarms
from genenv.viewer.folders import Runs
from genenv.viewer.tasks import conversation, texts_of

NUMBERS = st.one_of(st.floats(), st.integers(-(10**400), 10**400), st.integers(-3, 9), st.booleans())
NAMES = st.sampled_from(
    ["round", "agent/kl", "time/a_s", "time/round_s", "tokens/sampled", "tasks/share/", "agent/eval_success"]
)
LINES = st.one_of(
    st.dictionaries(NAMES, NUMBERS).map(json.dumps), json_values(most=4).map(json.dumps), st.text(max_size=40)
)
SETTINGS = st.one_of(
    st.text(max_size=60),
    st.builds("[curriculum]\nalpha = {}\n[run]\nrounds = {}".format, NUMBERS, NUMBERS),
)


def test_metrics_and_settings_are_shown_as_far_as_they_go(fuzz: Fuzz, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()

    def show(files: tuple[list[str], str]) -> None:
        lines, settings = files
        (folder / "metrics.jsonl").write_bytes("\n".join(lines).encode(errors="surrogatepass"))
        (folder / "config.toml").write_bytes(settings.encode(errors="surrogatepass"))
        (run,) = Runs(tmp_path).all()
        json.dumps(curves.charts(run), allow_nan=False)
        json.dumps(list(run.rounds))
        assert run.state in ("running", "finished", "stopped")
        for show in (alarms, curves.numbers, curves.table, curves.spark):
            show(run)

    fuzz(st.tuples(st.lists(LINES, max_size=12), SETTINGS), show)


def test_a_conversation_is_always_a_list_of_messages(fuzz: Fuzz) -> None:
    stored = st.one_of(st.text(), st.binary(), json_values(most=6).map(json.dumps))
    fuzz(stored, lambda value: [one.role + one.content for one in conversation(value)])


def test_bytes_that_were_sampled_have_one_text_each(fuzz: Fuzz) -> None:
    texts = texts_of("scripted", "", ())

    def spell(ids: list[int]) -> None:
        assert len(texts(ids)) == len(ids)

    fuzz(st.lists(st.integers(0, 2**32 - 1)), spell)
    fuzz(st.text().map(lambda text: list(text.encode(errors="replace"))), lambda ids: _same(ids, texts(ids)))


def _same(ids: list[int], shown: list[str]) -> None:
    assert "".join(shown) == bytes(ids).decode()
