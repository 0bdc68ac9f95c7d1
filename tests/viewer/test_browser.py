"""The viewer in a real browser: rounds arrive, keys and charts work, and narrow screens hold the pages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from genenv.progress import LiveFile, Silent, advance, staged
from genenv.runs.store.store import PoolStore
from genenv.types import Seed
from genenv.viewer import address, asking
from genenv.viewer.frozen import write_report
from running import comes_true
from viewer_browser import BROWSER, Window
from viewer_runs import HOSTILE, commit, write_results, write_run

pytestmark = pytest.mark.long
BENCH = Path(__file__).parents[2] / "bench"


def test_a_round_arrives_and_its_tasks_are_read_by_keyboard(browser: Any, tmp_path: Path, serve: Any) -> None:
    folder = write_run(tmp_path / "demo", rounds=5, planned=9)
    server = serve(tmp_path).server
    seed = Seed(id="seed plain", environment="sums", spec={"text": "plain"}, skills=("adding",))
    window = Window(browser, server.url, viewport={"width": 1280, "height": 900})
    page = window.page
    with folder.lock(), PoolStore.open(folder.pool, create=False) as store:
        window.open("/")
        page.get_by_text("● running").wait_for()
        window.picture("runs")
        page.get_by_role("link", name="demo").click()
        page.locator(".chart canvas").first.wait_for()
        assert page.locator(".chart canvas").count() == page.locator("figure").count() == 6
        page.evaluate("window.mine = true")
        commit(folder, store, 5, seed=seed)
        page.get_by_text("round 5 of 9").wait_for()
        page.wait_for_function("document.querySelector('.u-legend .u-value').textContent === 'last'")
        assert page.evaluate("window.mine"), "the page was not loaded again"
        window.picture("run")
        page.get_by_role("link", name="Tasks", exact=True).click()
        page.get_by_label("round").fill("2")
        page.keyboard.press("Enter")
        page.get_by_role("link", name="task-2 plain").click()
        page.locator(".group article").first.wait_for()
        assert page.locator(".group article").count() == 4
        window.picture("task")
        page.get_by_role("link", name="Rollout 1").click()
        heading = page.get_by_role("heading", level=1)
        assert heading.text_content() == "Trajectory task-2 plain/0"
        window.picture("trace")
        page.wait_for_load_state()
        page.keyboard.press("j")
        page.wait_for_url("**%2F1")
        assert heading.text_content() == "Trajectory task-2 plain/1"
        page.keyboard.press("k")
        page.wait_for_url("**%2F0")
        window.open(address("demo", "refused"))
        assert page.get_by_text("✗ leak").count() == 5
        window.picture("refused")
    assert not window.faults


def test_narrow_and_dark_pages_of_hostile_texts_fit_and_run_nothing(
    browser: Any, tmp_path: Path, serve: Any
) -> None:
    write_run(tmp_path / "demo", rounds=4, text=HOSTILE)
    server = serve(tmp_path).server
    window = Window(browser, server.url, viewport={"width": 400, "height": 800}, color_scheme="dark")
    window.open("/")
    for name, link in (
        ("runs", None),
        ("run", "demo"),
        ("tasks", "Tasks"),
        ("task", "task-2"),
        ("trace", "Rollout 2"),
        ("refused", "Refused"),
        ("rounds", "Rounds"),
    ):
        if link is not None:
            window.page.get_by_role("link", name=link).first.click()
            window.page.wait_for_load_state()
        assert window.is_narrow(), name
        window.picture(f"narrow-{name}")
    assert not window.faults
    dark = window.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark == "rgb(21, 23, 26)"


def test_runs_are_marked_and_compared_by_keyboard_while_one_is_written(
    browser: Any, tmp_path: Path, serve: Any
) -> None:
    for name, alpha in (("a", ""), ("b", "beta = 3.0\n")):
        for number in range(2):
            write_run(tmp_path / name / f"seed-{number}", rounds=5, run_seed=number, more=alpha)
    folder = write_run(tmp_path / "live", rounds=2, planned=9)
    server = serve(tmp_path).server
    seed = Seed(id="seed plain", environment="sums", spec={"text": "plain"}, skills=("adding",))
    window = Window(browser, server.url, viewport={"width": 1280, "height": 900})
    page = window.page
    with folder.lock(), PoolStore.open(folder.pool, create=False) as store:
        window.open("/")
        for name in ("a/seed-0", "a/seed-1", "b/seed-0"):
            page.get_by_label(f"compare {name}").press("Space")
        commit(folder, store, 2, seed=seed)
        page.get_by_text("2 of 9").wait_for()
        assert page.locator("input:checked").count() == 3, "marks outlast new rounds"
        page.get_by_label("compare b/seed-1").press("Space")
        page.get_by_role("button", name="Compare the marked runs").press("Enter")
        page.locator(".chart canvas").first.wait_for()
    assert page.get_by_role("heading", level=1).text_content() == "2 configurations compared"
    assert page.url.count("run=") == 4
    assert "a (n = 2)" in page.locator(".u-legend").first.inner_text()
    page.get_by_label("along").select_option("tokens")
    page.get_by_role("button", name="Show").press("Enter")
    page.get_by_text("tokens sampled so far").first.wait_for()
    assert page.url.count("run=") == 4
    window.picture("compare")
    page.get_by_role("link", name="choose other runs").press("Enter")
    page.wait_for_url("**/?run=*")
    assert page.locator("input:checked").count() == 4
    plain = Window(browser, server.url, java_script_enabled=False)
    plain.open("/")
    plain.page.get_by_label("compare a/seed-0").check()
    plain.page.get_by_label("compare a/seed-1").check()
    plain.page.get_by_role("button", name="Compare the marked runs").click()
    assert plain.page.get_by_text("0.45 at last").first.is_visible()
    assert not window.faults + plain.faults


def test_marks_of_folders_outlast_a_filter_and_a_comparison_fits_a_narrow_window(
    browser: Any, tmp_path: Path, serve: Any
) -> None:
    long = "simulator.source=variation+history+curriculum.candidates=64"
    for name, more in ((long, ""), ("frozen", "beta = 3.0\n"), ("other", "beta = 4.0\n")):
        for number in range(2):
            write_run(tmp_path / "sweep" / name / f"seed-{number}", rounds=5, run_seed=number, more=more)
    window = Window(browser, serve(tmp_path).server.url, viewport={"width": 400, "height": 900})
    page = window.page
    window.open("/")
    assert window.is_narrow()
    page.get_by_label("compare all runs in sweep/frozen").check()
    page.get_by_label("words of name or variant").fill("history sweep")
    page.get_by_role("button", name="Filter").click()
    assert page.get_by_text("Marked, but not in this list").is_visible()
    page.get_by_label(f"compare all runs in sweep/{long}").check()
    page.get_by_role("button", name="Compare the marked runs").click()
    page.locator(".chart canvas").first.wait_for()
    assert page.get_by_role("heading", level=1).text_content() == "2 configurations compared"
    assert window.is_narrow()
    shown = page.locator("table.paired").first
    assert shown.evaluate("one => one.getBoundingClientRect().right <= innerWidth"), "nothing is cut off"
    window.picture("narrow-compare")
    page.set_viewport_size({"width": 1280, "height": 900})
    assert shown.evaluate("one => one.scrollWidth <= one.parentElement.clientWidth")
    assert not window.barriers()
    window.open("/")
    page.get_by_role("button", name="Compare the marked runs").click()
    assert page.get_by_text("Mark two or more runs").is_visible()
    run = (
        address(f"sweep/{long}/seed-0", "config"),
        address(f"sweep/{long}/seed-0", "text", of="context", id="c1", part="messages"),
    )
    for path in run:
        window.open(path)
        assert page.title()
        assert page.get_by_role("navigation", name="Pages of the run").is_visible()
        assert not window.barriers()
    assert not window.faults


def test_the_list_of_runs_is_not_wider_than_its_window(browser: Any, tmp_path: Path, serve: Any) -> None:
    name = "household-learnability-and-other-words/with-a-base-share-of-a-half/seed-0"
    more = '[policy]\nmodel = "somebody/A-Model-With-A-Long-Name-14B-Instruct-2507"\n'
    head = 'variant = "learnability+expected_reward"\n'
    folder = write_run(tmp_path / name, rounds=12, planned=12_000, run_seed=1234, head=head, more=more)
    server = serve(tmp_path).server
    window = Window(browser, server.url, viewport={"width": 1280, "height": 800})
    live = LiveFile(folder.live, Silent())
    with folder.lock(), live, staged(live, "round 4/9: rollouts", items=4, unit="rollouts"):
        advance(items=3)
        window.open("/")
        window.page.locator(".stage").first.wait_for()
        assert window.page.evaluate(
            "[...document.querySelectorAll('.scroll')].every((one) => one.scrollWidth <= one.clientWidth)"
        )
    assert not window.faults


def test_rounds_of_charts_and_shares_of_maps_are_reached_by_keyboard(
    browser: Any, tmp_path: Path, serve: Any
) -> None:
    folder = write_run(tmp_path / "demo", rounds=5)
    lines = [json.loads(line) for line in folder.metrics.read_text(encoding="utf-8").splitlines()]
    mixed = [
        line | {"tasks/mixed": 1.0, "tasks/p_hat/40-60": 0.5, "tasks/p_hat/80-100": 0.5} for line in lines
    ]
    folder.metrics.write_text("".join(f"{json.dumps(line)}\n" for line in mixed), encoding="utf-8")
    window = Window(browser, serve(tmp_path).server.url, viewport={"width": 400, "height": 900})
    page = window.page
    window.open(address("demo"))
    chart = page.get_by_role("slider").first
    chart.press("ArrowLeft")
    chart.press("ArrowLeft")
    assert chart.get_attribute("aria-valuetext") == "round 3, success 0.4"
    chart.press("Enter")
    page.wait_for_url("**/rounds?round=3#held-out")
    assert page.get_by_role("heading", level=1).text_content() == "Round 3 against round 2"
    page.go_back()
    for title, opened in (("p̂", "tasks"), ("Reasons of refusal", "refused")):
        other = page.locator(
            f".chart[data-title*='{title}'] [role=slider], .chart[data-title*='{title}'][role=slider]"
        )
        other.first.press("ArrowLeft")
        other.first.press("ArrowLeft")
        other.first.press("Enter")
        page.wait_for_url(f"**/{opened}?round=3")
        page.go_back()
    page.locator(".chart canvas").first.wait_for()
    links = page.locator("table.heat a")
    assert links.evaluate_all("all => all.filter((one) => one.tabIndex === 0).length") == 1
    page.locator("table.heat tbody a[tabindex='0']").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.wait_for_url("**/tasks?round=3&origin=new&low=0.8&high=0.9999")
    assert not window.faults


def test_marks_lineages_sql_and_evaluations_of_hostile_texts_fit_a_narrow_window(
    browser: Any, tmp_path: Path, serve: Any
) -> None:
    write_run(tmp_path / "runs" / "demo", rounds=6, text=HOSTILE)
    for name in ("one", "other"):
        write_results(
            tmp_path / "evaluations" / f"{name}.jsonl", [1, 0, 0.5, -1], policy=HOSTILE, text=HOSTILE
        )
    server = serve(tmp_path / "runs", evaluations=tmp_path / "evaluations").server
    window = Window(browser, server.url, viewport={"width": 400, "height": 800}, color_scheme="dark")
    window.open(address("demo", "tasks", sort="hard"))
    window.page.get_by_role("link", name="task-2").first.click()
    window.page.get_by_role("button", name="Mark: does not say what is asked").click()
    window.page.get_by_text("You marked it").wait_for()
    assert window.page.locator("svg.lineage a").count() == 6
    pair = {"one": "evaluations/one", "other": "evaluations/other"}
    for name, path in (
        ("marked", address("demo", "tasks", marked="yes")),
        ("sql", address("demo", "sql", sql="SELECT * FROM traces")),
        ("sql-wrong", address("demo", "sql", sql=f"SELECT '{HOSTILE}")),
        ("evaluations", "/evaluations"),
        ("items", asking("/evaluations/items", **pair)),
        ("item", asking("/evaluations/item", **pair, id="item-1")),
    ):
        window.open(path)
        assert window.is_narrow(), name
        window.picture(f"narrow-{name}")
    assert not window.faults


_PLOTS = """document.addEventListener("DOMContentLoaded", () => {
    const real = uPlot;
    window.plots = [];
    window.uPlot = Object.assign(function (...given) {
        const made = new real(...given);
        plots.push(made);
        return made;
    }, real);
})"""
"""A script that keeps the charts of a page in `plots`."""


def _spans(page: Any) -> dict[str, tuple[float, float]]:
    """The least and the largest value of the axis of each chart."""
    comes_true(
        lambda: page.evaluate("plots.length && plots.length === document.querySelectorAll('figure').length")
    )
    found = page.evaluate(
        "plots.map((one) => [one.root.parentElement.dataset.title, one.scales.y.min, one.scales.y.max])"
    )
    return {title: (low, high) for title, low, high in found}


def test_values_below_zero_are_inside_of_their_charts(browser: Any, tmp_path: Path, serve: Any) -> None:
    """A regret between -0.3 and -0.2, a loss from -0.004 to -0.01, and valid rates between 0.5 and 0.6."""
    for name in ("a", "b"):
        folder = write_run(tmp_path / name, rounds=5, run_seed=ord(name), more="alpha_last = 0.8\n")
        lines = [json.loads(line) for line in folder.metrics.read_text(encoding="utf-8").splitlines()]
        for number, line in enumerate(lines):
            line |= {"curriculum/regret": -0.3 + 0.025 * number, "agent/loss": -0.004 - 0.0015 * number}
            line |= {"simulator/valid_rate": 0.5 + 0.025 * number}
        folder.metrics.write_text("".join(f"{json.dumps(one)}\n" for one in lines), encoding="utf-8")
    window = Window(browser, serve(tmp_path).server.url, viewport={"width": 900, "height": 900})
    window.page.add_init_script(_PLOTS)
    for path, title, low, high in (
        ("/compare?run=a&run=b&show=curriculum", "curriculum/regret", -0.3, -0.2),
        ("/compare?run=a&run=b&show=agent", "agent/loss", -0.01, -0.004),
        (address("a"), "Regret", -0.3, -0.2),
    ):
        window.open(path)
        least, most = _spans(window.page)[title]
        assert low - 0.2 * (high - low) < least < low < high < most < high + 0.2 * (high - low), title
        window.picture(f"negative-{title.rpartition('/')[2]}")
    assert _spans(window.page)["Valid rate of the simulator"] == pytest.approx((0.45, 0.65))
    window.open("/compare?run=a&run=b&show=tokens")
    assert _spans(window.page)["tokens/sampled"] == pytest.approx((0, 86.4)), "from 0 on"
    assert not window.faults


def test_a_click_on_a_chart_of_a_report_opens_nothing(browser: Any, tmp_path: Path) -> None:
    file = write_report(write_run(tmp_path / "demo", rounds=5).path).as_uri()
    window = Window(browser, file, viewport={"width": 900, "height": 500})
    window._asked = lambda _: None  # type: ignore[method-assign] - the file itself
    page = window.page
    page.goto(file)
    chart = page.get_by_role("slider").last
    chart.scroll_into_view_if_needed()
    page.evaluate("window.mine = true")
    place = page.evaluate("scrollY")
    chart.locator(".u-over").click()
    chart.press("Enter")
    chart.press("ArrowLeft")
    assert "round" in str(chart.get_attribute("aria-valuetext")), "the keys move as in the viewer"
    assert page.evaluate("window.mine"), "the page was not loaded again"
    assert (page.url, page.evaluate("scrollY")) == (file, place)
    assert not window.faults


def test_pictures_of_pages_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if BROWSER is None:
        pytest.skip("no browser: install the Debian package chromium")
    write_run(tmp_path / "runs" / "demo", rounds=3)
    monkeypatch.setenv("GENENV_CACHE", str(tmp_path / "cache"))
    command = [sys.executable, BENCH / "viewer_pictures.py", tmp_path / "runs", "--browser", BROWSER]
    given = ["--page", address("demo", "rounds"), "--to", "#held-out", "--out", tmp_path / "picture.webp"]
    subprocess.run([*map(str, command), *map(str, given)], check=True, capture_output=True)
    assert (tmp_path / "picture.webp").read_bytes()[8:12] == b"WEBP"
