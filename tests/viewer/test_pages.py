"""The pages of the viewer over real runs: what they say, which tasks they list, and what they never do."""

from __future__ import annotations

import hashlib
import html
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import pytest

from genenv.errors import DataError, UsageError
from genenv.runs.folder import RunFolder
from genenv.runs.store.store import PoolStore
from genenv.types import Seed
from genenv.viewer import folders, pages, tasks
from genenv.viewer.curves import heats
from genenv.viewer.folders import NotFound, Runs, reading
from genenv.viewer.pages import Viewer, address
from typed import succeeds
from viewer_runs import HOSTILE, Reader, Tags, commit, ids_of, text_of, write_run

DEEP = "sweep/rl/seed-0"
TASKS = address(DEEP, "tasks")


def test_the_list_has_every_run_with_its_state_and_numbers(reader: Reader) -> None:
    text = text_of(reader.page("/"))
    assert re.search(rf"{DEEP} seed 7 ■ stopped 11 of 20 0\.25 → 0\.80 0\.50 → 0\.50 0\.50 – sums –", text)
    assert "hostile" in text
    assert "notes" not in text


def test_a_run_that_a_process_writes_is_running_and_pages_that_may_change_are_asked_for_again(
    tmp_path: Path, serve: Any
) -> None:
    folder = write_run(tmp_path / "demo", rounds=1)
    write_run(tmp_path / "done", rounds=3)
    reader = serve(tmp_path)
    assert 'hx-trigger="every 2s"' in reader.page("/")
    assert 'hx-trigger="every 2s"' not in reader.page(address("done"))
    with folder.lock():
        assert "● running" in text_of(reader.page("/"))
        assert 'hx-trigger="every 2s"' in reader.page(address("demo"))
    assert "■ stopped" in text_of(reader.page("/"))


def test_a_poll_gets_the_part_that_changes_alone(reader: Reader) -> None:
    part = reader.ask(address(DEEP), HX_Request="true").text
    assert 'data-done="12"' in part
    assert "<html" not in part


def test_a_folder_of_one_run_is_served_as_that_run(runs: Path, serve: Any) -> None:
    reader = serve(runs / DEEP)
    assert "seed-0" in text_of(reader.page("/"))
    reader.page(address("seed-0"))
    reader.page(address("hostile"), status=404)


def test_a_run_in_a_hidden_folder_is_served_if_it_is_named_itself(tmp_path: Path, serve: Any) -> None:
    reader = serve(write_run(tmp_path / ".demo", rounds=1).path)
    assert ".demo" in text_of(reader.page("/"))
    reader.page(address(".demo"))


def test_the_page_of_a_run_has_its_curves_its_metrics_and_its_alarms(reader: Reader) -> None:
    page = reader.page(address(DEEP))
    text = text_of(page)
    assert "round 11 of 20 · sums" in text
    assert "agent/eval_success 0.8 share Held-out tasks solved" in text
    found = json.loads(reader.page(address(DEEP, "curves")))
    assert found["rounds"] == list(range(12))
    charts = {chart["title"]: chart for chart in found["charts"]}
    assert charts["Reasons of refusal"]["series"] == [{"name": "leak", "values": [1.0] * 12, "mean": None}]
    assert charts["Seconds by stage"]["series"][0]["name"] == "rollout"
    assert charts["Tokens sampled per second"]["series"][0]["values"][0] == 20
    assert charts["Mean p̂ and mixed outcomes"]["band"] == [0.35, 0.65]
    assert page.count("<figure ") == len(charts)


def test_the_curves_and_maps_of_a_range_of_rounds_are_those_rounds(reader: Reader) -> None:
    page = reader.page(f"{address(DEEP)}?from=3&to=5")
    assert "round 11 of 20" in text_of(page), "the run itself is the whole"
    (data,) = re.findall(r'data-curves="([^"]*)"', page)
    assert json.loads(reader.page(html.unescape(data)))["rounds"] == [3, 4, 5]
    reader.page(f"{address(DEEP)}?from=x", status=400)


def test_a_bar_of_the_rewards_and_a_share_of_the_map_list_their_tasks(tmp_path: Path, serve: Any) -> None:
    folder = write_run(tmp_path / "demo", rounds=4)
    with closing(sqlite3.connect(folder.pool)) as db:
        db.execute("UPDATE batches SET env_reward = 1.0 WHERE round = 2")
        db.execute("UPDATE batches SET env_reward = 0.0 WHERE round = 1")
        db.execute("DELETE FROM tasks WHERE round = 1")
        db.commit()
    metrics = [json.loads(line) for line in folder.metrics.read_text(encoding="utf-8").splitlines()]
    metrics[3] |= {"tasks/mixed": 1.0, "tasks/p_hat/60-80": 1.0, "tasks/share/adding": 1.0}
    folder.metrics.write_text("".join(f"{json.dumps(one)}\n" for one in metrics), encoding="utf-8")
    reader = serve(tmp_path)
    page = reader.page(address("demo"))
    text = text_of(page)
    assert "R env of the new tasks of round 3" in text
    assert "0.5 to 0.55 1 tasks with R_env 0.5 to 0.55" in text
    assert "Round 2" in text
    assert "1 batch has no accepted task" in text_of(reader.page(f"{address('demo')}?round=1"))

    def tasks(page: str, query: str) -> list[list[str]]:
        links = re.findall(r'href="([^"]*)"', page)
        found = [urljoin(address("demo"), html.unescape(link)) for link in links if query in link]
        return [ids_of(reader.page(link)) for link in found]

    assert tasks(page, "reward_low") == [["task-3 plain"]]
    assert tasks(reader.page(f"{address('demo')}?round=2"), "reward_low") == [["task-2 plain"]]
    assert tasks(page, "low=0.6") == [["task-3 plain"]]
    assert tasks(page, "skill=adding") == [["task-3 plain"]]
    assert '60 to 80% ▸<span class="unseen"> in the target band' in page


def test_tasks_are_filtered_by_round_origin_skill_rate_and_text(reader: Reader) -> None:
    assert ids_of(reader.page(f"{TASKS}?round=3")) == ["task-3 plain"]
    assert ids_of(reader.page(f"{TASKS}?origin=seed")) == ["base plain"]
    assert len(ids_of(reader.page(f"{TASKS}?skill=adding"))) == 13
    assert not ids_of(reader.page(f"{TASKS}?skill=add"))
    assert ids_of(reader.page(f"{TASKS}?low=1&sort=old")) == ["task-4 plain", "task-9 plain"]
    assert ids_of(reader.page(f"{TASKS}?low=0.2&high=0.3")) == [f"task-{n} plain" for n in (11, 6, 1)]
    assert ids_of(reader.page(f"{TASKS}?text=TASK-7")) == ["task-7 plain"]
    assert not ids_of(reader.page(f"{TASKS}?text=100%25"))
    assert "1/4" in reader.page(f"{TASKS}?round=1")


@pytest.mark.parametrize(
    ("solved", "kind"),
    [((1, 0, 0), "unlearned"), ((0, 0, 1), "learned"), ((1, 1, 1), ""), ((0, 1, 0), "unlearned")],
)
def test_held_out_tasks_that_were_unlearned_and_learned_are_found(
    solved: tuple[int, ...], kind: str, tmp_path: Path, serve: Any
) -> None:
    folder = write_run(tmp_path / "demo", rounds=3)
    with closing(sqlite3.connect(folder.pool)) as db:
        for number, success in enumerate(solved):
            db.execute("UPDATE evaluations SET success = ? WHERE round = ?", (success, number))
        db.commit()
    reader, tasks = serve(tmp_path), address("demo", "tasks")
    for change in ("unlearned", "learned"):
        for sort in ("new", "hard", "easy"):
            found = ids_of(reader.page(f"{tasks}?change={change}&sort={sort}"))
            assert found == ["held-0"] * (change == kind)
    assert f"solved in {sum(solved)} of 3 evaluations" in text_of(reader.page(f"{tasks}?origin=held_out"))


def test_text_is_found_however_it_is_stored(tmp_path: Path, serve: Any) -> None:
    write_run(tmp_path / "demo", rounds=2, text='Zoë says "a\\b_c" 100%')
    reader = serve(tmp_path)
    for part in ('says "a', "a\\b_c", "Zoë", "100%"):
        assert ids_of(reader.page(address("demo", "tasks", text=part))), part
    assert not ids_of(reader.page(address("demo", "tasks", text="a\\bxc")))


@pytest.mark.parametrize("sort", ["new", "old", "hard", "easy"])
def test_pages_of_a_list_follow_each_other_without_gap_or_repetition(
    sort: str, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("genenv.viewer.lists.PAGE", 3)
    path, seen = f"{TASKS}?sort={sort}", list[str]()
    for _ in range(9):
        page = reader.page(path)
        seen += ids_of(page)
        links = re.findall(r'href="([^"]*)" rel="next"', page)
        if not links:
            break
        path = urljoin(path, html.unescape(links[0]))
    rolled_out = [f"task-{n} plain" for n in range(1, 12)]
    others = ["base plain", "held-0"] if sort in ("new", "old") else []
    assert sorted(seen) == sorted([*rolled_out, *others])
    rates = [int(name[5:7]) % 5 for name in seen if name.startswith("task")]
    if sort == "hard":
        assert rates == sorted(rates)
    if sort == "easy":
        assert rates == sorted(rates, reverse=True)


def test_an_outcome_that_is_a_reason_leads_to_what_was_refused(reader: Reader) -> None:
    answer = reader.ask(f"{TASKS}?outcome=leak&round=2")
    assert (answer.status, answer.headers["location"]) == (
        303,
        address(DEEP, "refused", reason="leak", round=2),
    )
    text = text_of(reader.page(answer.headers["location"]))
    assert "✗ leak it says the answer plain" in text
    assert "c2-g1" in text
    assert "c3-g1" not in text
    assert "No refusal fits" in text_of(reader.page(address(DEEP, "refused", reason="schema")))


def test_a_task_shows_its_texts_its_group_and_its_relatives(reader: Reader) -> None:
    page = reader.page(address(DEEP, "task", id="task-2 plain"))
    text = text_of(page)
    for part in (
        "2 + 2? plain",
        "round 2 2/4",
        "4 plain",
        "write plain",
        "spec plain",
        "novelty 0.50",
        "p̂ 0.50",
    ):
        assert part in text, part
    assert (text.count("✓ solved"), text.count("✗ not solved")) == (2, 2)
    assert address(DEEP, "task", id="base plain") in html.unescape(page), "its seed"
    assert address(DEEP, "task", id="task-9 plain") in html.unescape(page), "another task of its seed"
    held_out = text_of(reader.page(address(DEEP, "task", id="held-0")))
    assert "None in training: it is a held-out task, which is evaluated alone." in held_out
    assert "round 11: ✓ solved" in held_out


def test_a_trajectory_shows_its_turns_its_tokens_and_its_neighbors(reader: Reader) -> None:
    page = reader.page(address(DEEP, "trace", id="task-2 plain/1"))
    text = text_of(page)
    assert "✓ solved reward 1 · ended by the environment · sampled by version 2 of the weights" in text
    assert "rollout 2 of 4, round 2" in text
    assert "3 · agent 4 plain" in text
    assert 'class="t p1" title="token 52, log-probability -0.050"' in page
    assert 'class="t p4" title="token 256, log-probability -3.000"' in page
    links = [html.unescape(one) for one in re.findall(r'href="([^"]*)" rel=', page)]
    assert links == [address(DEEP, "trace", id=f"task-2 plain/{n}") for n in (0, 2)]


@pytest.mark.long
def test_a_run_of_scripted_players_shows_calls_and_tokens_as_text(trained: Path, serve: Any) -> None:
    reader = serve(trained.parent)
    assert re.search(r"trained .*✓ finished 3 of 3 .* tool_calling ", text_of(reader.page("/")))
    tasks = ids_of(reader.page(address("trained", "tasks", origin="generated")))
    page = reader.page(address("trained", "task", id=tasks[0]))
    links = [html.unescape(one) for one in re.findall(r'href="([^"]*/-/trace[^"]*)"', page)]
    trace = text_of(reader.page(links[0]))
    assert "get_weather" in trace or "I cannot do that." in trace
    assert "✗ syntax" in text_of(reader.page(address("trained", "refused"))), "what the simulator broke off"


def test_the_shares_of_a_map_are_those_of_the_tasks_that_they_open(trained: Path, serve: Any) -> None:
    reader, run = serve(trained.parent), Runs(trained.parent).find("trained")
    (found,) = (heat for heat in heats(run) if heat.title == "p̂ of new tasks")
    assert [row.label for row in found.rows][1:-1] == [f"{low} to {low + 20}%" for low in (80, 60, 40, 20, 0)]
    seen = 0
    for place, (number, _) in enumerate(found.columns):
        new = run.rounds[number]["tasks/new"]
        assert sum(row.shares[place] or 0.0 for row in found.rows) == pytest.approx(1)
        for row in found.rows:
            listed = ids_of(reader.page(urljoin(address("trained"), row.links[place])))
            assert len(listed) == round(new * (row.shares[place] or 0.0)), (number, row.label)
            seen += len(listed)
    assert seen == sum(values.get("tasks/new", 0) for values in run.rounds.values()) > 5


@pytest.mark.long
def test_trajectories_of_control_are_drawn(tmp_path: Path, serve: Any) -> None:
    smaller = ("run.rounds=1", "simulator.contexts=2", "agent.rollouts=2", "run.eval_every=0")
    smaller += ("environment.base_tasks=8", "environment.held_out_tasks=3")
    words = [word for one in smaller for word in ("--set", one)]
    succeeds("train", "pendulum", *words, "--out", tmp_path / "run")
    with PoolStore.open(tmp_path / "run" / "pool.db", create=False) as store:
        trace = store.groups(1)[0].traces[0]
    reader = serve(tmp_path)
    page = reader.page(address("run", "trace", id=trace.id))
    assert "<h2>Film strip</h2>" in page
    assert page.count('role="img" aria-label="12 states') == 1
    page = reader.page(address("run", "task", id=trace.task_id))
    assert page.count('role="img" aria-label="3 states of a trajectory') == 2


def crawled(reader: Reader, start: str) -> dict[str, str]:
    """Every page that links lead to, by its path."""
    left, found = [start], dict[str, str]()
    while left:
        path = left.pop()
        if path in found:
            continue
        answer = reader.ask(path)
        assert answer.status == 200, (path, answer.status, answer.text[:1000])
        found[path] = answer.text
        if answer.headers["content-type"].startswith("text/html"):
            for _, attributes in Tags(answer.text).tags:
                if target := attributes.get("href"):
                    to = urlsplit(urljoin(path, target))
                    assert to.netloc == "", target
                    left.append(f"{to.path}?{to.query}" if to.query else to.path)
    return found


@pytest.mark.long
def test_every_link_leads_to_a_page_and_no_text_of_a_model_is_markup(reader: Reader) -> None:
    pages = crawled(reader, address("hostile"))
    assert len(pages) > 25
    assert {urlsplit(path).path.rpartition("/")[2] for path in pages} >= {
        "task",
        "tasks",
        "trace",
        "refused",
        "text",
    }
    for path, page in pages.items():
        if "/static/" in path or "raw=yes" in path:
            continue
        tags = Tags(page)
        page_of = urlsplit(path).path
        bare = page_of.endswith(("/-/", "/-/sql", "/-/config")) or "hostile" not in path or "/-/" not in path
        assert bare or "alert(1)" in page or path.endswith("s?round=0"), path
        assert {tag for tag, _ in tags.tags}.isdisjoint({"img", "style", "iframe", "object"}), path
        for tag, attributes in tags.tags:
            assert tag != "script" or (attributes.get("src") or "").startswith("/static/")
            assert not [name for name in attributes if name.startswith("on") or name == "style"], (path, tag)
            assert not (attributes.get("href") or "").startswith("javascript:")
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", page), path
        assert "49" not in re.findall(r"\{\{ 7\*7 \}\}|\b49\b", page)


def test_invisible_characters_are_shown_as_marks(reader: Reader) -> None:
    text = text_of(
        reader.page(address("hostile", "task", id=f"task-1 {HOSTILE}".replace("\ud800", "\ufffd")))
    )
    assert "\\u202eturned\\u202c" in text
    assert "\\u001b[2J" in text
    assert "<script>alert(1)</script>" in text, "as text"


def test_a_long_text_is_cut_and_its_whole_is_plain_text(tmp_path: Path, serve: Any) -> None:
    long = "<b>word</b> " * 400_000
    write_run(tmp_path / "demo", rounds=2, text="x")
    with closing(sqlite3.connect(tmp_path / "demo" / "pool.db")) as db:
        messages = json.dumps([{"role": "user", "content": long}])
        db.execute("UPDATE tasks SET messages = ? WHERE id = 'task-1 x'", (messages,))
        db.execute(
            "UPDATE traces SET messages = ? WHERE id = 'task-1 x/0'", (messages.replace("user", "assistant"),)
        )
        db.commit()
    reader = serve(tmp_path)
    for page in ("task", "trace"):
        path = address("demo", page, id="task-1 x" + ("/0" if page == "trace" else ""))
        shown = reader.page(path)
        assert len(shown) < 60_000
        link = next(html.unescape(one) for one in re.findall(r'href="([^"]*/-/text[^"]*)"', shown))
        whole = reader.page(link)
        assert len(whole) < 2_000_000
        assert "4,800,000 characters" in whole
        assert "What the agent sees: task task-1 x" in Tags(whole).text.partition(" To the content")[0]
        raw = next(html.unescape(one) for one in re.findall(r'href="([^"]*raw=yes)"', whole))
        answer = reader.ask(urljoin(link, raw))
        assert answer.text == long
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert len(reader.page(address("demo", "tasks"))) < 60_000


def test_text_that_is_not_utf8_and_json_that_is_none_are_shown(tmp_path: Path, serve: Any) -> None:
    write_run(tmp_path / "demo", rounds=2, text="x")
    with closing(sqlite3.connect(tmp_path / "demo" / "pool.db")) as db:
        db.execute(
            "UPDATE tasks SET messages = CAST(x'ff7b22' AS TEXT), skills = 'no json' WHERE id = 'task-1 x'"
        )
        db.execute("UPDATE traces SET explanation = CAST(x'fffe41' AS TEXT), token_ids = x'010203'")
        db.execute("UPDATE traces SET messages = ? WHERE id = 'task-1 x/0'", ("[" * 100_000,))
        db.commit()
    reader = serve(tmp_path)
    assert "\ufffd{" in reader.page(address("demo", "task", id="task-1 x"))
    assert "\ufffd\ufffdA" in reader.page(address("demo", "trace", id="task-1 x/0"))
    assert "(no text)" in reader.page(address("demo", "tasks"))


OUTSIDE = [
    "/runs/../notes/-/", "/runs/%2e%2e/-/", "/runs/..%2f..%2fetc/-/", "/runs/trained/../../etc/-/",
    "/runs//etc/-/", "/runs/%2fetc/-/", "/runs/trained%00/-/", "/runs/./trained/-/", "/runs/notes/-/",
    "/runs/link/-/", "/runs/inner/-/", "/runs/-/", "/runs/trained%5c..%5cnotes/-/", "/runs/.hidden/-/",
    "/static/../pages.py", "/static/%2e%2e/pages.py", "/static/..%2fpages.py", "/static//etc/passwd",
    "/static/", "/nothing", "/runs/trained/-/nothing", "/runs/trained", "/runs/none/-/tasks",
]  # fmt: skip


def test_nothing_outside_of_the_folder_is_read(tmp_path: Path, serve: Any) -> None:
    write_run(tmp_path / "outside" / "run", rounds=1)
    write_run(tmp_path / "runs" / ".hidden", rounds=1)
    write_run(tmp_path / "runs" / "trained", rounds=1)
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "outside" / "run")
    (tmp_path / "runs" / "inner").symlink_to(tmp_path / "runs" / "trained")
    reader = serve(tmp_path / "runs")
    for path in OUTSIDE:
        answer = reader.ask(path)
        assert answer.status == 404, path
        assert "def " not in answer.text
    assert text_of(reader.page("/")).count("stopped") == 1


@pytest.mark.parametrize("name", ["pool.db", "config.toml", "metrics.jsonl"])
def test_a_file_of_a_run_that_is_a_link_is_not_read(name: str, tmp_path: Path, serve: Any) -> None:
    folder = write_run(tmp_path / "runs" / "demo", rounds=1)
    (folder.path / name).rename(tmp_path / name)
    (folder.path / name).symlink_to(tmp_path / name)
    reader = serve(tmp_path / "runs")
    assert f"{name} is a link" in (page := text_of(reader.page(address("demo")))) or "it is a link" in page
    if name == "pool.db":
        assert "it is a link" in text_of(reader.page(address("demo", "tasks"), status=503))


def test_only_get_and_head_are_answered(reader: Reader) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
        assert reader.ask(address(DEEP), method).status == 405, method
    head = reader.ask(address(DEEP), "HEAD")
    assert (head.status, head.body) == (200, b"")


def test_every_answer_has_headers_that_keep_text_harmless(reader: Reader) -> None:
    for path in ("/", address(DEEP), address(DEEP, "curves"), "/nothing", "/static/viewer.js"):
        headers = reader.ask(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self';" in policy, path
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_other_names_and_other_sites_are_refused(reader: Reader) -> None:
    assert reader.ask("/", Host="evil.example").status == 400
    assert (
        reader.ask("/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="cors", Sec_Fetch_Dest="empty").status
        == 403
    )
    assert (
        reader.ask("/", Sec_Fetch_Site="same-site", Sec_Fetch_Mode="navigate", Sec_Fetch_Dest="iframe").status
        == 403
    )
    assert reader.ask("/", Origin="http://evil.example", Sec_Fetch_Site="same-origin").status == 403
    assert reader.ask("/", Origin=f"http://{reader.host}", Sec_Fetch_Site="same-origin").status == 200
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert reader.ask("/", **link).status == 200, "a permanent link in a mail"


def test_beyond_loopback_the_token_of_the_printed_address_is_needed(runs: Path, serve: Any) -> None:
    reader = serve(runs, "0.0.0.0")  # noqa: S104 - the test of this address
    key = reader.server.access.key
    assert key is not None
    assert reader.server.entrance.endswith(f"/enter?token={key}")
    assert reader.ask("/").status == 401
    assert reader.ask("/static/viewer.js").status == 401
    assert reader.ask("/enter?token=wrong").status == 401
    assert reader.ask("/", Cookie="genenv-view=wrong").status == 401
    entered = reader.ask(f"/enter?token={quote(key)}")
    assert (entered.status, entered.headers["location"]) == (303, "/")
    cookie = entered.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert reader.ask("/", Cookie=f"a=b; {cookie.partition(';')[0]}").status == 200
    assert reader.ask("/", Authorization=f"Bearer {key}").status == 200


def damaged(folder: RunFolder, kind: str) -> str:
    """Break the store of a run; return a part of what the pages then say."""
    pool = folder.pool
    if kind in ("older", "newer"):
        with closing(sqlite3.connect(pool)) as db:
            db.execute(f"PRAGMA user_version = {3 if kind == 'older' else 99}")
        return f"pool.db was written by {'an earlier' if kind == 'older' else 'a newer'} version of genenv"
    if kind == "another program's":
        pool.unlink()
        with closing(sqlite3.connect(pool)) as db:
            db.execute("CREATE TABLE other (a)")
        return "pool.db is not a store of genenv"
    if kind == "corrupt":
        data = bytearray(pool.read_bytes())
        data[4096:] = b"\xff" * (len(data) - 4096)
        pool.write_bytes(bytes(data))
        return "pool.db is damaged"
    if kind == "missing":
        pool.unlink()
        return "pool.db is missing"
    pool.write_bytes(b"" if kind == "empty" else b"not a database " * 1000)
    return "pool.db is"


KINDS = ["older", "newer", "another program's", "corrupt", "missing", "empty", "text"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_cannot_be_read_gives_a_sentence_and_the_rest_works(
    kind: str, tmp_path: Path, serve: Any
) -> None:
    folder = write_run(tmp_path / "demo", rounds=3)
    write_run(tmp_path / "other", rounds=1)
    sentence = damaged(folder, kind)
    reader = serve(tmp_path)
    assert "✓ finished 2 of 2" in text_of(reader.page("/"))
    page = text_of(reader.page(address("demo")))
    assert sentence in page
    assert "Its tasks cannot be shown" in page
    assert "0.25 → 0.35" in page
    for name in ("tasks", "refused", "task?id=x", "trace?id=x"):
        said = text_of(reader.page(address("demo") + name, status=503))
        assert sentence in said
        assert str(tmp_path) not in said
    reader.page(address("other", "tasks"))


def test_a_store_that_another_program_locks_gives_a_sentence(
    tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "LIMIT_S", 0.1)
    folder = write_run(tmp_path / "demo", rounds=1)
    reader = serve(tmp_path)
    with closing(sqlite3.connect(folder.pool, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("BEGIN EXCLUSIVE")
        db.execute("UPDATE run SET id = id")
        assert "in use by another process" in text_of(reader.page(address("demo", "tasks"), status=503))
    reader.page(address("demo", "tasks"))


def test_damaged_settings_and_metrics_are_named(tmp_path: Path, serve: Any) -> None:
    folder = write_run(tmp_path / "demo", rounds=2)
    folder.config.write_bytes(b"\xff= [")
    folder.metrics.write_bytes(
        folder.metrics.read_bytes() + b'\xff\n[1, 2]\n{"round": "x"}\n{"round": 9, "a": NaN'
    )
    reader = serve(tmp_path)
    text = text_of(reader.page(address("demo")))
    assert "config.toml cannot be read" in text
    assert "0.25 → 0.30" in text
    reader.page("/")


def test_rounds_arrive_while_the_run_is_written_and_reading_leaves_nothing_behind(
    tmp_path: Path, serve: Any
) -> None:
    folder = write_run(tmp_path / "demo", rounds=1, planned=9)
    reader = serve(tmp_path)
    seed = Seed(id="seed plain", environment="sums", spec={"text": "plain"}, skills=("adding",))
    with folder.lock(), PoolStore.open(folder.pool, create=False) as store:
        for number in range(1, 5):
            commit(folder, store, number, seed=seed)
            assert f"round {number} of 9" in text_of(reader.page(address("demo")))
            assert f"task-{number} plain" in ids_of(reader.page(address("demo", "tasks")))
    assert not folder.pool.with_name("pool.db-wal").exists(), "the run closed its store as if alone"
    before = contents(folder.path)
    for page in ("", "tasks", "task?id=task-1+plain", "trace?id=task-1+plain%2F0", "refused", "curves"):
        reader.page(address("demo") + page)
    assert contents(folder.path) == before


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_read_only_folder_is_shown(tmp_path: Path, serve: Any) -> None:
    folder = write_run(tmp_path / "demo", rounds=2)
    folder.path.chmod(0o500)
    try:
        reader = serve(tmp_path)
        assert ids_of(reader.page(address("demo", "tasks")))
    finally:
        folder.path.chmod(0o700)


def test_a_query_ends_at_its_limit_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "LIMIT_S", 0.05)
    run = Runs(write_run(tmp_path / "demo", rounds=1).path).find("demo")
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(DataError, match="too large for this within the limit of time"):
        reading(run, lambda db: db.rows(endless))


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("round=x", "round is 'x': give a number."),
        ("round=1.5", "round is 1.5: give a whole number."),
        ("round=inf", "round is inf: give a whole number."),
        ("round=nan", "round is nan: give a whole number."),
        ("low=a%00b", "give a number."),
    ],
)
def test_a_wrong_filter_is_named(query: str, sentence: str, reader: Reader) -> None:
    assert sentence in text_of(reader.page(f"{TASKS}?{query}", status=400))


@pytest.mark.parametrize(
    "path",
    ["task?id=none", "trace?id=", "text?of=task&id=base+plain&part=n", "text?of=sqlite_schema&id=1&part=sql",
     "text?of=task&id=base+plain&part=oracle&place=9", "tasks?after=x", "refused?after=x",
     "tasks?sort=hard&after=1,x", f"tasks?after={2**63}", f"tasks?sort=hard&after={2**63},0.5",
     f"refused?after={2**63}", "tasks?after=-1", "refused?after=%C2%B2"],
)  # fmt: skip
def test_what_the_store_does_not_have_is_not_found(path: str, reader: Reader) -> None:
    reader.page(address(DEEP) + path, status=404)


def test_a_folder_that_is_none_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder; name the folder that holds your runs"):
        Viewer(tmp_path / "none", "127.0.0.1", 0)
    with pytest.raises(NotFound, match="is not the folder of a run"):
        Runs(tmp_path).find("none")


def test_an_empty_folder_says_how_a_run_is_made(tmp_path: Path, serve: Any) -> None:
    assert "There is no run below" in text_of(serve(tmp_path).page("/"))


def test_the_files_of_others_are_those_that_their_list_names() -> None:
    vendor = Path(pages.__file__).parent / "static" / "vendor"
    listed = re.findall(
        r"^\| `([^`]+)` .* `([^`]+)` \(.* `([0-9a-f]{64})` \|$", (vendor / "README.md").read_text(), re.M
    )
    known = {name: sha256 for name, _, sha256 in listed}
    assert {path.name for path in vendor.iterdir()} == {
        *known,
        *(licence for _, licence, _ in listed),
        "README.md",
    }
    for name, sha256 in known.items():
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == sha256


def test_the_picture_of_a_lineage_has_the_seed_the_contexts_and_the_tasks(reader: Reader) -> None:
    page = reader.page(address(DEEP, "task", id="task-2 plain"))
    picture = re.findall(r"<svg class=\"lineage\".*?</svg>", page, re.S)[0]
    text = text_of(picture)
    for part in ("base plain: not rolled out", "round 2: p̂ 0.50 · c2", "task-2 plain: 2 of 4 solved"):
        assert part in text, part
    links = [html.unescape(one) for one in re.findall(r'<a href="([^"]*)"', picture)]
    assert links == [
        address(DEEP, "task", id=id_) for id_ in ("base plain", *(f"task-{n} plain" for n in range(1, 12)))
    ]
    assert picture.count('class="node here"') == 2, "the task and its context"
    assert picture.count("<path") == 22
    assert "as a list" in text_of(page), "the same in words"
    assert "<svg class" not in reader.page(address(DEEP, "task", id="held-0")), "it has no seed"


def test_a_large_family_is_drawn_as_far_as_there_is_room(tmp_path: Path, serve: Any) -> None:
    write_run(tmp_path / "demo", rounds=20)
    page = serve(tmp_path).page(address("demo", "task", id="task-1 plain"))
    assert "task-1 plain: 1 of 4 solved" in text_of(page), "the task itself is always there"
    assert page.count('class="node') == 1 + 14 + 14
    assert "5 more of the seed's newest tasks are in the list alone" in text_of(page)


def test_a_task_is_followed_through_the_runs_of_the_folder(tmp_path: Path, serve: Any) -> None:
    write_run(tmp_path / "one", rounds=4)
    other = write_run(tmp_path / "other", rounds=6)
    write_run(tmp_path / "texts", rounds=2, text="not the same text")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "pool.db").write_bytes(b"no store")
    with closing(sqlite3.connect(other.pool)) as db:
        db.execute("UPDATE evaluations SET success = round % 2")
        db.commit()
    text = text_of(serve(tmp_path).page(address("one", "task", id="held-0")))
    assert re.search(r"one ✓✓✓✓ 4 of 4 0 .* other ✗✓✗✓✗✓ 3 of 6 5 ", text), text
    assert "texts" not in text
    assert "rollouts by round one – – – 2 : 2/4" in text_of(
        serve(tmp_path).page(address("one", "task", id="task-2 plain"))
    )


@pytest.mark.parametrize(
    ("oracle", "replies", "found"),
    [
        (['a(x=1, y="b")\nc()'], ['a(y="b", x=1)\nc()'], ["same", "same"]),
        (['a(x="1")'], ['a(x="2")', "b()"], ["other arguments", "extra"]),
        (["a()\nb()"], ["b()"], ["missing", "same"]),
        (["a()"], ["a()\na()"], ["same", "extra"]),
        (['<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>'], ["a(x=1)"], ["same"]),
        (["a()", "The answer is 4."], ["a()", "It is 5."], ["same", "other text"]),
        (["take knife"], ["look", "take knife"], ["same", "extra"]),
        (["4"], [], ["missing"]),
        (["a()"], ["<tool_call>{{{</tool_call>[[[("], ["missing", "extra", "extra"]),
        (["a()"], ["[" * 100_000], ["missing", "extra"]),
    ],
)
def test_a_trajectory_differs_from_the_demonstration_call_by_call(
    oracle: list[str], replies: list[str], found: list[str]
) -> None:
    assert [one.kind for one in tasks.differences(oracle, replies)] == found


def test_a_trajectory_shows_its_difference_and_its_advantage(tmp_path: Path, serve: Any) -> None:
    folder = write_run(tmp_path / "demo", rounds=3)
    folder.config.write_text(
        folder.config.read_text(encoding="utf-8") + '[agent]\nadvantage = "centred"\n', encoding="utf-8"
    )
    reader = serve(tmp_path)
    right, wrong = (text_of(reader.page(address("demo", "trace", id=f"task-1 plain/{n}"))) for n in (0, 1))
    assert "The agent made the same calls." in right
    assert "▲ Every token has advantage +0.750" in right
    assert "1 other text." in wrong
    assert "≠ other text 4 plain 5 plain" in wrong
    assert "▼ Every token has advantage −0.250" in wrong
    shown = folder.config.read_text(encoding="utf-8")
    for elsewhere in (
        shown.replace("centred", "own:function"),
        f'{shown}advantage_of = "success"\n',
        f"{shown}team_weight = 0.5\n",
        f"{shown}[agents.other]\n[agents.agent]\nteam_weight = 0.5\n",
    ):
        folder.config.write_text(elsewhere, encoding="utf-8")
        assert "advantage" not in text_of(reader.page(address("demo", "trace", id="task-1 plain/0")))


@pytest.mark.long
def test_rollouts_that_only_scored_a_task_have_no_advantage(tmp_path: Path, serve: Any) -> None:
    folder = write_run(tmp_path / "demo", rounds=2)
    folder.config.write_text(
        folder.config.read_text(encoding="utf-8") + '[agent]\nadvantage = "centred"\n', encoding="utf-8"
    )
    pages = [address("demo", "task", id="task-1 plain"), address("demo", "trace", id="task-1 plain/0")]
    said = "only scored the task: the agent did not train on"
    assert not any(said in text_of(serve(tmp_path).page(page)) for page in pages)
    with closing(sqlite3.connect(folder.pool)) as db:
        db.execute("UPDATE generations SET scored_only = 1")
        db.commit()
    task, trace = (text_of(serve(tmp_path).page(page)) for page in pages)
    assert said in task
    assert said in trace
    assert "Every token has advantage" not in trace


def test_a_refusal_leads_to_the_task_that_it_names(tmp_path: Path, serve: Any) -> None:
    folder = write_run(tmp_path / "demo", rounds=2, text="x")
    with closing(sqlite3.connect(folder.pool)) as db:
        db.execute("UPDATE tasks SET id = 'base-x' WHERE id = 'base x'")
        db.execute("UPDATE rejections SET explanation = 'It shares 96% of its words with base-x.'")
        db.commit()
    page = serve(tmp_path).page(address("demo", "refused", reason="leak"))
    assert "leak: the task gives its answer away." in text_of(page)
    assert address("demo", "task", id="base-x") in html.unescape(page)
    said = text_of(page)
    assert "What the simulator wrote spec x base-x 2 + 2? x" in said, "both texts are side by side"
    assert '{"left":2,"text":"x"}' in said


def test_refusals_are_grouped_by_what_was_written_and_name_base_tasks(tmp_path: Path, serve: Any) -> None:
    folder = write_run(tmp_path / "demo", rounds=5)
    with closing(sqlite3.connect(folder.pool)) as db:
        db.execute("UPDATE rejections SET explanation = 'It shares 96% of its words with base-one.'")
        db.execute("UPDATE seeds SET id = 'one'")
        db.execute("UPDATE contexts SET seed_id = 'one'")
        db.execute("UPDATE generations SET text = 'another' WHERE id = 'c4-g1'")
        db.commit()
    reader = serve(tmp_path)
    page = reader.page(address("demo", "refused"))
    said = text_of(page)
    assert "refused what the simulator wrote 3 spec plain Equal texts among the newest" in said
    assert "base-one, a base task {" in said, "the store has the spec of a seed alone"
    (link,) = re.findall(r'href="([^"]*same=[^"]*)"', page)
    same = text_of(reader.page(html.unescape(link)))
    assert (same.count("✗ leak"), "another" in same) == (3, False)


def test_metrics_that_are_added_cost_their_own_lines_alone(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "demo", rounds=2)
    runs = Runs(tmp_path)
    first = runs.find("demo").rounds
    with folder.metrics.open("ab") as file:
        file.write(b'{"round": 2, "a/b": 1}\n{"round": 3, "a/b"')
    second = runs.find("demo").rounds
    assert (list(first), list(second)) == ([0, 1], [0, 1, 2])
    assert second[0] is first[0], "not parsed again"
    with folder.metrics.open("ab") as file:
        file.write(b": 2}\n")
    assert runs.find("demo").rounds[3] == {"a/b": 2.0}
    folder.metrics.write_bytes(b'{"round": 7, "a/b": 1}\n' * 90)
    assert list(runs.find("demo").rounds) == [7], "another file of this name"


def test_what_each_call_changed_is_shown_if_the_results_are_those_recorded(
    tmp_path: Path, serve: Any
) -> None:
    folder = write_run(tmp_path / "demo", rounds=2)
    messages = [
        {"role": "assistant", "content": 'save(text="<b>x</b>")'},
        {"role": "tool", "content": '"saved"'},
        {"role": "assistant", "content": "Done."},
    ]
    with closing(sqlite3.connect(folder.pool)) as db:
        db.execute("UPDATE traces SET messages = ?", (json.dumps(messages),))
        db.commit()
    reader = serve(tmp_path)
    page = address("demo", "trace", id="task-1 plain/0")
    assert "it never executes tools of yours" in text_of(reader.page(page))
    asked = list[Any]()

    def replayed(result: str) -> Any:
        def replay(settings: Any, payload: Any, replies: Any) -> Any:
            asked.append((settings["environment.name"], payload, replies))
            return [('save(text="<b>x</b>")', result, [("notes.<i>1</i>", "", '"<b>x</b>"')])]

        return replay

    reader.server.data.replay = replayed('"saved"')
    text = text_of(reader.page(page))
    assert 'save(text="<b>x</b>") notes.<i>1</i> – "<b>x</b>"' in text
    assert "They gave the results that the agent got." in text
    assert asked == [("sums", {"right": "plain"}, ['save(text="<b>x</b>")', "Done."])]
    reader.server.data.replay = replayed('"other"')
    assert "other results than those recorded" in text_of(reader.page(page))
    assert "What changed" not in text_of(reader.page(address("demo", "trace", id="base plain/0"), 404))


def test_forced_tokens_of_a_single_reply_are_told_from_sampled_ones(tmp_path: Path, serve: Any) -> None:
    folder = write_run(tmp_path / "demo", rounds=2)
    with closing(sqlite3.connect(folder.pool)) as db:
        db.execute("UPDATE traces SET sampled = x'000100' WHERE id LIKE '%/0'")
        two = json.dumps([{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}])
        db.execute("UPDATE traces SET sampled = x'000100', messages = ? WHERE id LIKE '%/1'", (two,))
        db.commit()
    reader = serve(tmp_path)
    page = reader.page(address("demo", "trace", id="task-1 plain/0"))
    assert "reply 1: 1 token sampled, 1 forced, mean log-probability -0.050" in text_of(page)
    assert re.findall(r'<span class="t (\w+)" title="token (\d+), ([^"]*)"', page) == [
        ("p1", "52", "log-probability -0.050"),
        ("forced", "256", "forced"),
    ]
    assert "no other token was allowed" in page
    several = reader.page(address("demo", "trace", id="task-1 plain/1"))
    assert "forced" not in text_of(several)


@pytest.mark.parametrize(
    ("settings", "agent", "found"),
    [
        ({}, "agent", ("local", "base")),
        ({"agents.a": {"model": "own"}, "agents.b": {}}, "a", ("local", "own")),
        ({"agents.a": {"address": "http://x#m"}, "agents.b": {"model": "own"}}, "a", ("local", "own")),
        ({"agents.a": {"address": "http://x#m"}}, "a", ("local", "writer")),
        (
            {"agents.a": {"address": "http://x#m"}, "agents.b": {"address": "http://x#n"}},
            "b",
            ("local", "writer"),
        ),
    ],
)
def test_a_trajectory_is_in_the_tokens_of_the_model_that_answered_or_of_the_first_that_has_weights(
    settings: dict[str, object], agent: str, found: tuple[str, str]
) -> None:
    shared = {"policy.backend": "local", "policy.model": "base", "policy.simulator_model": "writer"}
    run = folders.Run(name="r", path=Path("r"), settings={**shared, **settings}, rounds={}, notes=())
    assert run.tokens_of(agent) == found
