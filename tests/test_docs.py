"""What the documentation says is true: its Python runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import itertools
import linecache
import re
import runpy
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import click
import pytest
import typer.main
import yaml

from genenv.cli.app import COMMANDS, app, load_command
from genenv.config.run import load_config
from genenv.errors import UsageError
from genenv.evaluation.config import load_evaluation_config
from typed import succeeds

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
GUIDES = [page for page in PAGES if page.name != "CHANGELOG.md"]
"""Pages that describe the present; the changelog may speak of what is gone."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block: where its first line of content is, its language, its lines."""

    line: int
    language: str
    lines: list[str]


def split_page(text: str) -> tuple[list[Block], list[tuple[int, str]]]:
    """The fenced blocks of a page, and its other lines with their numbers."""
    blocks: list[Block] = []
    prose: list[tuple[int, str]] = []
    mark = ""
    for number, line in enumerate(text.splitlines(), start=1):
        fence = re.match(r"\s*(`{3,}|~{3,})\s*([\w-]*)", line)
        if mark:
            if line.strip() == mark:
                mark = ""
            else:
                blocks[-1].lines.append(line)
        elif fence is not None:
            mark = fence[1]
            blocks.append(Block(line=number + 1, language=fence[2], lines=[]))
        else:
            prose.append((number, line))
    return blocks, prose


def place(page: Path, line: int) -> str:
    return f"{page.relative_to(ROOT)}:{line}"


def python_blocks(pages: Iterable[Path] = GUIDES) -> dict[str, str]:
    """Every Python example of the guides, or of other pages, by its place."""
    return {
        place(page, block.line): "\n".join(block.lines)
        for page in pages
        for block in split_page(page.read_text(encoding="utf-8"))[0]
        if block.language == "python"
    }


def commands_in(text: str, program: str) -> Iterator[tuple[int, str]]:
    """Every call of a program in fenced blocks (a trailing backslash joins lines) and in `code` of prose."""
    blocks, prose = split_page(text)
    start = re.compile(rf"(?:^|&&|;)\s*\$?\s*(?:[A-Z_]+=\S*\s+)*(?:\S*/)?{program}\s+([^;&|#`]+)")
    for block in blocks:
        if block.language in ("python", "toml", "json"):
            continue
        joined = ""
        for number, line in enumerate(block.lines, start=block.line):
            joined += line.removesuffix("\\")
            if line.endswith("\\"):
                continue
            yield from ((number, found.strip()) for found in start.findall(joined))
            joined = ""
    for number, line in prose:
        for code in re.findall(r"`([^`]+)`", line):
            yield from ((number, found.strip()) for found in start.findall(code))


def all_commands(program: str) -> list[tuple[str, str]]:
    return [
        (place(page, line), command)
        for page in GUIDES
        for line, command in commands_in(page.read_text(encoding="utf-8"), program)
    ]


def options_of(command: click.Command) -> set[str]:
    return {"--help"} | {
        name
        for option in command.params
        for name in (*option.opts, *option.secondary_opts)
        if name.startswith("-")
    }


@cache
def cli_commands() -> dict[str, click.Command]:
    return {name: load_command(name) for name in COMMANDS}


def complaint_about(command_line: str) -> str | None:
    """What is wrong with the words after `genenv`, or None. Understands synopses with [brackets] and ...."""
    words = [word.strip("[]()") for word in shlex.split(command_line.replace("...", ""))]
    known = cli_commands()
    first = next((word for word in words if word), "")
    if first.startswith("-"):
        return None if first in options_of(typer.main.get_command(app)) else f"genenv has no option {first}"
    if first not in known:
        return f"genenv has no command {first!r}; it has {', '.join(known)}"
    for word in itertools.takewhile(
        lambda word: word != "--", words
    ):  # what comes after is another program's
        option = word.partition("=")[0]
        if option.startswith("-") and option not in options_of(known[first]):
            return f"genenv {first} has no option {option}"
    missing = [word for word in words if word.startswith("configs/") and not (ROOT / word).exists()]
    return f"no such file: {missing[0]}" if missing else None


def anchors(page: Path) -> set[str]:
    """The names that headings get on a page: lower case, no punctuation, spaces become hyphens."""
    prose = split_page(page.read_text(encoding="utf-8"))[1]
    titles = [line.lstrip("#").strip() for _, line in prose if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(page: Path) -> Iterator[tuple[int, str]]:
    """Relative targets of Markdown links and images, and of HTML src and href."""
    for number, line in split_page(page.read_text(encoding="utf-8"))[1]:
        plain = re.sub(r"`[^`]*`", "", line)
        targets = re.findall(r"\]\(\s*<?([^)\s>]+)", plain) + re.findall(r"(?:src|href)=\"([^\"]+)\"", plain)
        yield from ((number, target) for target in targets if not re.match(r"[a-z][a-z0-9+.-]*:", target))


def broken_links(page: Path) -> list[str]:
    broken = []
    for line, target in links(page):
        path, _, anchor = target.partition("#")
        goal = (page.parent / path).resolve() if path else page
        if not goal.exists() or (anchor and goal.suffix == ".md" and anchor not in anchors(goal)):
            broken.append(f"line {line}: {target}")
    return broken


@pytest.mark.long
@pytest.mark.parametrize(("where", "source"), list(python_blocks().items()))
def test_every_python_example_runs(
    where: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "gymnasium" in source:
        pytest.importorskip("gymnasium", reason="the example needs gymnasium: pip install 'genenv[mujoco]'")
    monkeypatch.chdir(tmp_path)
    linecache.cache[where] = (len(source), None, source.splitlines(keepends=True), where)  # as notebooks do
    exec(compile(source, where, "exec"), {"__name__": "example"})  # noqa: S102 - our own pages


def test_every_command_line_in_the_docs_exists() -> None:
    wrong = [
        f"{where}: `genenv {command_line}`: {complaint}"
        for where, command_line in all_commands("genenv")
        if (complaint := complaint_about(command_line))
    ]
    assert not wrong


@pytest.fixture(scope="module")
def own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The modules that the pages have readers save, which begin with their name."""
    folder = tmp_path_factory.mktemp("modules")
    for source in python_blocks(PAGES).values():
        if named := re.match(r'"""(\w+\.py): ', source):
            (folder / named[1]).write_text(source, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder


def check_settings(command_line: str) -> None:
    """Raise a UsageError that names the setting that is none."""
    overrides = re.findall(r"--set[ =]'?(\w+\.[\w.]+=(?:\[.*?\]|[^\s']+))", command_line)
    named = [
        ROOT / "configs" / f"{Path(word).stem}.toml"
        for word in command_line.split()[1:2]
        if not word.startswith("runs/")
    ]
    path = next((one for one in named if one.exists()), None)
    load = load_evaluation_config if command_line.startswith("eval ") else partial(load_config, path)
    load(overrides)


def test_every_setting_in_the_docs_is_one(own_modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own_modules)
    wrong = dict[str, str]()
    for where, command_line in all_commands("genenv"):
        if "--set" in command_line and command_line not in wrong:
            try:
                check_settings(command_line)
            except UsageError as error:
                wrong[command_line] = f"{where}: {error}"
    assert not wrong


def test_every_make_target_in_the_docs_exists() -> None:
    targets = set(
        re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    unknown = [
        f"{where}: make {line}" for where, line in all_commands("make") if line.split()[0] not in targets
    ]
    assert not unknown


def test_every_relative_link_leads_somewhere() -> None:
    assert {page: broken for page in PAGES if (broken := broken_links(page))} == {}


def test_the_layout_lists_what_there_is() -> None:
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
    listed = [part for row in rows for part in re.findall(r"`([^`]+)`", row)]
    package = ROOT / "src" / "genenv"
    existing = {path.name for path in package.glob("[!_]*.py")}
    existing |= {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}
    assert sorted(existing) == sorted(listed)


def test_every_command_is_documented() -> None:
    documented = {line.split()[0] for _, line in all_commands("genenv")}
    assert set(cli_commands()) <= documented


def test_every_page_of_results_is_in_its_table_of_contents() -> None:
    index = ROOT / "docs" / "results" / "index.md"
    listed_pages = {(index.parent / target.partition("#")[0]).resolve() for _, target in links(index)}
    assert {page for page in PAGES if page.is_relative_to(index.parent) and page != index} <= listed_pages


def listed(entry: object) -> Iterator[str]:
    """The pages below an entry of the site's navigation."""
    if isinstance(entry, str):
        yield entry
    for part in entry if isinstance(entry, list) else entry.values() if isinstance(entry, dict) else ():
        yield from listed(part)


def test_every_page_of_the_docs_is_in_the_navigation_of_the_site() -> None:
    """Those of results are put there by `docs/results_navigation.py`."""
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    written = set(listed(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    assert written == {page for page in pages if not page.startswith("results/")}
    config = {"docs_dir": str(DOCS), "nav": []}
    runpy.run_path(str(DOCS / "results_navigation.py"))["on_config"](config)
    assert set(listed(config["nav"])) == pages - written


def test_the_home_page_lists_tutorials_guides_and_reference() -> None:
    home = DOCS / "index.md"
    known = {(DOCS / target.partition("#")[0]).resolve() for _, target in links(home)}
    folders = ("tutorials", "guides", "reference")
    assert {page for folder in folders for page in (DOCS / folder).glob("*.md")} <= known


def test_no_page_of_the_site_links_to_a_file_outside_of_it() -> None:
    """`mkdocs build --strict` refuses such a link."""
    outside = [
        (page, target)
        for page in DOCS.rglob("*.md")
        for _, target in links(page)
        if not (page.parent / target.partition("#")[0]).resolve().is_relative_to(DOCS)
    ]
    assert outside == []


def test_a_tutorial_is_short() -> None:
    pages = (DOCS / "tutorials").glob("*.md")
    assert [page for page in pages if page.read_text(encoding="utf-8").count("\n") >= 150] == []


def test_the_front_page_is_short_and_begins_with_a_command() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    command = next(number for number, line in enumerate(lines, start=1) if line.startswith("make "))
    assert len(lines) < 90
    assert command <= 20
    assert len(re.findall(r"\d[\d.,]*", " ".join(lines[: command - 1]))) <= 10


def test_the_index_for_language_models_lists_what_there_is() -> None:
    assert broken_links(ROOT / "llms.txt") == []
    listed = {target for _, target in links(ROOT / "llms.txt")}
    folders = ("tutorials", "guides", "reference")
    pages = {page.relative_to(ROOT).as_posix() for folder in folders for page in (DOCS / folder).glob("*.md")}
    assert pages <= listed


def tutorial(name: str, language: str) -> list[str]:
    """The blocks of a tutorial in one language."""
    blocks, _ = split_page((DOCS / "tutorials" / name).read_text(encoding="utf-8"))
    return ["\n".join(block.lines) + "\n" for block in blocks if block.language == language]


@pytest.mark.long
def test_the_environment_of_the_tutorial_is_sound_and_a_run_on_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (code,), (settings,) = tutorial("an-environment.md", "python"), tutorial("an-environment.md", "toml")
    Path("sums.py").write_text(code, encoding="utf-8")
    Path("sums.toml").write_text(settings, encoding="utf-8")
    checked = succeeds("check", "sums:Sums", "--n", 50).stdout
    assert "good" in checked
    assert not re.search("poor|broken", checked)
    succeeds("train", "sums.toml", "--set", "policy.backend=scripted", "--out", "runs/tried")


@pytest.mark.long
def test_the_tools_of_the_tutorial_become_an_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = tutorial("your-own-tools.md", "python")
    make, _, dry, *_ = tutorial("your-own-tools.md", "sh")
    Path("library.py").write_text(code, encoding="utf-8")
    new, check = (line.split()[1:] for line in make.splitlines())
    succeeds(*new)
    checked = succeeds(*check, "--n", 20).stdout
    assert "good" in checked
    assert not re.search("poor|broken", checked)
    quick = ("run.rounds=1", "run.eval_tasks=4", "simulator.contexts=2", "agent.rollouts=2")
    succeeds(*dry.split()[1:], *(word for one in quick for word in ("--set", one)))


@pytest.mark.long
def test_the_system_of_the_tutorial_is_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (code,), commands = tutorial("control.md", "python"), tutorial("control.md", "sh")
    Path("hover.py").write_text(code, encoding="utf-8")
    _, words = commands[-1].replace("\\\n", "").split("genenv ")
    said = succeeds(*words.split())
    (end,) = re.findall(r"held-out success: [\d.]+% -> ([\d.]+)%", said.stdout + said.stderr)
    assert float(end) > 40


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "module", "part"),
    [
        ("a-curriculum.md", "my_curriculum", "my_curriculum.py:MostFailed"),
        ("a-reward-and-a-loss.md", "my_loss", "my_loss.py:truncated"),
    ],
)
def test_parts_of_ones_own_of_a_tutorial_take_part_in_a_run_that_goes_on(
    page: str, module: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (code,) = [block for block in tutorial(page, "python") if f'"""{module}.py' in block]
    (settings,) = tutorial(page, "toml")
    Path(f"{module}.py").write_text(code, encoding="utf-8")
    Path("mine.toml").write_text(settings, encoding="utf-8")
    quick = ("policy.backend=scripted", "run.rounds=1", "run.eval_tasks=4", "simulator.contexts=3")
    succeeds("train", "mine.toml", *(word for one in quick for word in ("--set", one)), "--out", "runs/mine")
    assert f'= "{tmp_path}/{part}"' in Path("runs/mine/config.toml").read_text(encoding="utf-8")
    succeeds("train", "--resume", "--out", "runs/mine", "--set", "run.rounds=2")


def test_blocks_and_prose_are_told_apart() -> None:
    blocks, prose = split_page("text\n```python\nx = 1\n```\nmore `code`\n~~~\n$ genenv doctor\n~~~\n")
    assert [(block.line, block.language, block.lines) for block in blocks] == [
        (3, "python", ["x = 1"]),
        (7, "", ["$ genenv doctor"]),
    ]
    assert prose == [(1, "text"), (5, "more `code`")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```\ngenenv train a.toml \\\n    --out x\n```", ["train a.toml     --out x"]),
        ("```console\n$ .venv/bin/genenv doctor  # what works\n```", ["doctor"]),
        ("Type `genenv report RUN`, not genenv report.", ["report RUN"]),
        ("```\ncd genenv; genenv doctor && genenv report runs/a\n```", ["doctor", "report runs/a"]),
        ("`genenv` is a name and `genenv.types` a module.", []),
    ],
)
def test_command_lines_are_found_where_people_write_them(text: str, expected: list[str]) -> None:
    assert [command for _, command in commands_in(text, "genenv")] == expected


@pytest.mark.parametrize(
    ("command_line", "complaint"),
    [
        ("train CONFIG [--out DIR] [--set k=v ...] [--resume]", None),
        ("trian configs/quickstart.toml", "no command 'trian'"),
        ("report runs/demo --fast", "report has no option --fast"),
        ("train configs/nowhere.toml", "no such file: configs/nowhere.toml"),
    ],
)
def test_a_wrong_command_line_is_noticed(command_line: str, complaint: str | None) -> None:
    found = complaint_about(command_line)
    assert (found is None) == (complaint is None)
    assert (complaint or "") in (found or "")


GONE = frozenset(
    [
        "test_a_call_that_adds_days_itself_takes_the_day_that_they_are_counted_from",
        "test_a_picture_of_some_thousand_rounds_has_hardly_more_parts_than_one_of_some_hundred",
        "test_the_columns_of_a_picture_keep_every_round",
        "test_the_share_of_a_column_counts_tasks_and_not_rounds",
        "test_audit",
        "test_blanks",
        "test_a_value_that_is_only_said_not_to_be_meant_is_known",
        "test_bad_tasks_are_rejected_with_the_reason",
        "test_a_variation_with_blanks_is_the_same_task_as_without",
        "test_literals",
        "test_words_are_found_as_whole_words",
        "test_more_than_the_bank_can_hold_is_still_refused",
        "test_what_earlier_calls_spend_is_there_as_well",
        "test_the_gates_precision_and_recall_are_what_we_publish",
        "test_thirty_variations_of_every_seed_are_the_same_tasks_with_blanks_as_without",
    ]
)
"""Tests of what read requests back from English; they went with it."""


def test_every_test_that_a_page_of_results_names_exists() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    known = {path.stem for path in sources}
    known |= {name for text in sources.values() for name in re.findall(r"def (test_\w+)", text)}
    pages = (ROOT / "docs" / "results").rglob("*.md")
    named = {name for page in pages for name in re.findall(r"\btest_\w+", page.read_text(encoding="utf-8"))}
    assert len(named) > 100
    assert named <= known | GONE
    assert not GONE & known
