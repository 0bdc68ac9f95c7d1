"""A model behind a real endpoint writes wordings, well, sloppily or with malice: what is kept and said."""

from __future__ import annotations

import random
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("openai", reason="the openai client is not installed: pip install 'genenv[api]'")

import genenv
from bundles import fewer
from endpoints import Answer, Server, refused, said
from genenv.errors import GenenvError, UsageError
from genenv.gate.gate import base_tasks, examined
from genenv.progress import Silent
from genenv.tools.bundle import Bundle
from genenv.tools.environment import Tools
from genenv.tools.language.model_wordings import Wanted, reasons, write_wordings
from genenv.tools.language.wording import same_words
from genenv.tools.language.wording_rules import Reason, Rules
from genenv.tools.settings import ToolsConfig
from typed import refused as sentence
from typed import succeeds

GOOD = {
    "find_customer": [
        "look {name} up",
        "who goes by {name}",
        "tell me the customer's record of {name}",
        "search for {name} among the people",
    ],
    "list_orders": [
        "show me everything that {customer_id} has bought",
        "give me the purchases of {customer_id}",
        "list what was ever sold to {customer_id}",
        "look for what {customer_id} bought and cancel it",
    ],
    "get_order": [
        "tell me about {order_id}",
        "look into {order_id} for me",
        "let me see the details of {order_id}",
    ],
    "refund_order": [
        "give {amount} dollars back for {order_id}",
        "return some of the money: {arguments}",
        "transfer {amount} back to the buyer of {order_id}",
    ],
    "cancel_order": [
        "call off {order_id}",
        "stop the delivery of {order_id}",
        "make sure that nobody sends {order_id}",
    ],
    "open_ticket": [
        "start a ticket for {customer_id} about {subject}",
        "write down a complaint of {customer_id}: {arguments}",
        "note {priority} priority for {customer_id}, who asks about {subject}",
    ],
    "close_ticket": [
        "mark {ticket_id} as done: {resolution}",
        "finish {ticket_id} and say {resolution}",
        "settle {ticket_id} with {resolution}",
    ],
    "update_email": [
        "set the address of {customer_id} to {email}",
        "write to {customer_id} at {email} from now on",
        "replace the address on file of {customer_id} by {email}",
    ],
}
"""What a good model writes; some of it is refused all the same."""


@pytest.fixture(scope="module")
def desk(desk_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fewer(desk_bundle, tmp_path_factory.mktemp("bundles") / "desk", base=24, held_out=8)


@pytest.fixture
def folder(desk: Path, tmp_path: Path) -> Path:
    return shutil.copytree(desk, tmp_path / "desk")


class Model:
    """What answers at the endpoint: it writes what it was given, and knows whose words it wrote."""

    def __init__(self, replies: dict[str, str], *, takes_for: str = "") -> None:
        self._replies, self._takes_for = replies, takes_for
        self.orders: list[list[str]] = []
        self.asked: list[str] = []

    def __call__(self, body: dict[str, Any]) -> Answer:
        text = body["messages"][0]["content"]
        if "Which one tool" in text:
            return said(self._takes_for or self._named(text))
        if match := re.search(r'\{"name": "(\w+)"', text):
            self.asked.append(match[1])
            return said(self._replies.get(match[1], ""))
        return said("hello")

    def _named(self, text: str) -> str:
        """The tool whose words these are, as a model would find out by reading."""
        listed, _, request = text.partition("A user says: ")
        self.orders.append(re.findall(r"^(\w+): ", listed, flags=re.MULTILINE))
        for tool, reply in self._replies.items():
            for line in reply.splitlines():
                words = [
                    re.escape(part)
                    for part in re.split(r"\{\w+\}", line.lstrip("*-1234567890. "))
                    if part.strip()
                ]
                if words and re.search(".*".join(words)[1:], request, flags=re.IGNORECASE):
                    return f"The answer is {tool}."
        return "I do not know."


def lines(found: dict[str, list[str]]) -> dict[str, str]:
    return {
        tool: "\n".join(f"{n}. {one}" for n, one in enumerate(listed, 1)) for tool, listed in found.items()
    }


def write(folder: Path, server: Server, **wanted: Any) -> list[Any]:
    return write_wordings(folder, Wanted(by=f"{server.url}#m", **wanted), Silent())


def wordings(folder: Path) -> dict[str, list[str]]:
    return tomllib.loads((folder / "wordings.toml").read_text(encoding="utf-8"))


@pytest.mark.long
def test_good_wordings_are_added_and_what_was_there_stays(folder: Path, server: Server) -> None:
    before = wordings(folder)
    file = folder / "wordings.toml"
    file.write_text(
        "# mine\n" + file.read_text().replace("list_orders = [", "list_orders = [\n  # best:\n  ")
    )
    model = server.answer = Model(lines(GOOD))
    done = write(folder, server)
    after = wordings(folder)
    assert {name: listed[: len(before[name])] for name, listed in after.items()} == before
    kept = sum(len(one.kept) for one in done)
    assert kept == sum(map(len, after.values())) - sum(map(len, before.values()))
    assert kept >= 20
    assert reasons(done) == {Reason.FORM: 1, Reason.OPPOSITE: 1}  # "who goes by", "and cancel it"
    assert "# mine\n" in file.read_text()
    assert "# best:\n" in file.read_text()
    orders = [tuple(order) for order in model.orders]
    assert len(orders) == 2 * kept
    assert set(orders) == {order[::-1] for order in orders}
    assert all(len(order) == 8 for order in orders)
    Bundle.open(folder).wordings  # noqa: B018 - it can be read


@pytest.mark.long
def test_tasks_ask_for_the_same_and_pass_the_gate_in_the_new_words(folder: Path, server: Server) -> None:
    def built() -> dict[str, Any]:
        env = Tools(ToolsConfig(), folder)
        tasks = {**base_tasks(env, env.seeds(), seed=0), **{one.id: one for one in env.held_out()}}
        rejected = {name: examined(env, task, random.Random(0)) for name, task in tasks.items()}
        env.world.close()
        assert {name: why for name, why in rejected.items() if why is not None} == {}
        return tasks

    before = built()
    server.answer = Model(lines(GOOD))
    kept = [text for one in write(folder, server) for text in one.kept]
    after = built()
    assert before.keys() == after.keys()
    assert len(after) == 32
    for name, task in after.items():
        assert (task.spec, task.payload["calls"], task.payload["answers"], task.payload["before"]) == (
            before[name].spec,
            before[name].payload["calls"],
            before[name].payload["answers"],
            before[name].payload["before"],
        )
        assert task.oracle == before[name].oracle
    texts = "\n".join(task.messages[-1].content for task in after.values()).lower()
    used = [one for one in kept if one.split("{")[0].strip()[1:].lower() in texts]
    assert len(used) > len(kept) / 2


@pytest.mark.long
def test_typed_again_it_goes_on_with_tools_that_have_too_few(folder: Path, server: Server) -> None:
    model = server.answer = Model(lines({"get_order": GOOD["get_order"]}))
    write(folder, server, each=4)
    assert len(model.asked) == 8
    assert len(wordings(folder)["get_order"]) == 4, "one of a new bundle, and three of the model"
    again = server.answer = Model(lines(GOOD))
    write(folder, server, each=4)
    assert sorted(again.asked) == sorted({*GOOD} - {"get_order"})
    assert write(folder, server, each=2) == []


@pytest.mark.long
def test_an_endpoint_that_dies_in_the_middle_loses_nothing(folder: Path, server: Server) -> None:
    model, before = Model(lines(GOOD)), wordings(folder)

    def dying(body: dict[str, Any]) -> Answer:
        if (
            "close_ticket" in body["messages"][0]["content"]
            and "Write 6 ways" in body["messages"][0]["content"]
        ):
            return refused("out of order", 500) if len(model.orders) > 4 else (500, "", {})
        return model(body)

    server.answer = dying
    few = ("endpoint.retries=2", "endpoint.concurrency=1")
    with pytest.raises(
        GenenvError, match=r"gave no answer about close_ticket: .* typed again, it goes on"
    ) as caught:
        write(folder, server, overrides=few)
    kept = sum(map(len, wordings(folder).values())) - sum(map(len, before.values()))
    assert f" {kept} wordings that passed before are in " in str(caught.value)
    server.answer = model
    write(folder, server)
    assert all(len(listed) > len(before[name]) for name, listed in wordings(folder).items())


@pytest.mark.long
def test_what_the_model_takes_for_another_tool_is_refused(folder: Path, server: Server) -> None:
    server.answer = Model(lines(GOOD), takes_for="get_order")
    done = write(folder, server)
    assert [one.tool for one in done if one.kept] == ["get_order"]
    assert reasons(done)[Reason.ROUND_TRIP] > 10


@pytest.mark.long
def test_a_model_that_is_right_in_one_order_alone_has_not_understood(folder: Path, server: Server) -> None:
    def first_listed(body: dict[str, Any]) -> Answer:
        text = body["messages"][0]["content"]
        if "Which one tool" not in text:
            return model(body)
        return said(re.findall(r"^(\w+): ", text, flags=re.MULTILINE)[0])

    model = Model(lines(GOOD))
    server.answer = first_listed
    with pytest.raises(UsageError, match="round trip"):
        write(folder, server)


HOSTILE: dict[str, Callable[[str], str]] = {
    "empty": lambda _: "",
    "another tool's words": lambda tool: GOOD["cancel_order" if tool != "cancel_order" else "get_order"][0],
    "no blanks": lambda _: "please do it now\ndo what I asked for\nget on with it",
    "opposites": lambda tool: f"undo {tool.replace('_', ' ')}: {{arguments}}\nnever do that: {{arguments}}",
    "ten thousand lines": lambda _: "\n".join(f"{n}. do number {n} of {{order_id}}" for n in range(10_000)),
    "one line without end": lambda _: "do " * 100_000,
    "html": lambda _: "<html><body><h1>404 {order_id}</h1><script>alert({amount})</script></body></html>",
    "toml": lambda _: 'do it: {arguments}"]\nname = ["x"\n[table]\ndo it: {arguments}\\',
    "control characters": lambda _: "do \x1b[31m it\x00 now\u202e: {arguments}\ndo\u2028it: {arguments}",
    "half a character": lambda _: "do \ud800 it: {arguments}",
    "deep JSON": lambda _: "[" * 50_000 + "]" * 50_000,
    "values": lambda _: "do O-5003 for Ada Wong: {arguments}\nput C-101 right: {arguments}",
    "code": lambda _: "{order_id.__class__} {0} {} {{}} %s ${x}: {arguments}",
    "the question": lambda _: "Which one tool does this ask for? Answer with its name. {arguments}",
}


@pytest.mark.long
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_reply_adds_nothing_and_breaks_nothing(kind: str, folder: Path, server: Server) -> None:
    before, write_as = (folder / "wordings.toml").read_bytes(), HOSTILE[kind]

    def answer(body: dict[str, Any]) -> Answer:
        text = body["messages"][0]["content"]
        match = re.search(r'\{"name": "(\w+)"', text)
        return said(write_as(match[1]) if match else "get_order" if "Which one" in text else "hello")

    server.answer = answer
    try:
        done = write(folder, server)
    except UsageError as error:
        assert "no wording passes" in str(error)  # noqa: PT017 - it may also pass
        assert (folder / "wordings.toml").read_bytes() == before
    else:
        assert [one.tool for one in done if one.kept] == ["get_order"]  # it is right about one tool by chance
    assert len(server.requests) < 120


PIECES = st.sampled_from(
    [*"abc \n-*\"'`{}[]<>:,.", "{name}", "{arguments}", "look ", "find ", "1. ", "```\n", "customer ", "Ada "]
)


@pytest.mark.long
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PIECES, max_size=60).map("".join) | st.text())
def test_whatever_the_reply_what_is_kept_satisfies_the_rules(desk: Path, server: Server, reply: str) -> None:
    mine = desk.with_name("drawn")
    shutil.rmtree(mine, ignore_errors=True)
    shutil.copytree(desk, mine)
    (mine / "wordings.toml").write_text(
        "\n".join(f"{tool} = ['{tool} it', 'do it']" for tool in GOOD if tool != "find_customer")
    )

    def answer(body: dict[str, Any]) -> Answer:
        text = body["messages"][0]["content"]
        return said("find_customer" if "Which one tool" in text else reply)

    server.answer = answer
    before = wordings(mine)
    try:
        (done,) = write(mine, server, each=2)
    except UsageError:
        assert wordings(mine) == before
        return
    assert wordings(mine) == {**before, "find_customer": done.kept}
    env = Tools(ToolsConfig(), mine)
    rules = Rules(env.world.tools, env.graph, env.world.play([]).state)
    for number, text in enumerate(done.kept):
        known = {**before, "find_customer": done.kept[:number]}
        assert rules.problem("find_customer", text, known) is None
        assert not any(same_words(text, other) for listed in known.values() for other in listed)
    assert env.held_out()
    env.world.close()


@pytest.mark.long
def test_the_command_says_what_came_of_it(folder: Path, server: Server) -> None:
    sloppy = {
        **lines(GOOD),
        "get_order": "Sure:\n* Tell me about {order_id}.\n* cancel what is in {order_id}\n* show O-5003",
    }
    server.answer = Model(sloppy)
    shown = succeeds("env", "words", folder, "--by", f"{server.url}#m", "--each", 4).stdout
    assert "get_order: 1 were there, 3 read, 1 added\n  + tell me about {order_id}\n" in shown
    assert (
        "refused, other verb: 1, such as 'cancel what is in {order_id}': get_order does not cancel" in shown
    )
    assert "wordings pass; they are in" in shown
    again = succeeds("env", "words", folder, "--by", f"openai:{server.url}#m", "--each", 2).stdout
    assert "every tool has 2 wordings or more" in again


@pytest.mark.long
def test_a_world_in_a_programs_hands_is_worded_too(folder: Path, server: Server) -> None:
    server.answer = Model(lines(GOOD))
    with genenv.Environment(folder) as env:
        before = [task.messages[-1].content for task in env.held_out]
        added = env.words(f"{server.url}#m", reporter=Silent())
        assert sum(len(one.kept) for one in added) >= 20
        after = [task.messages[-1].content for task in env.held_out]
    assert len(before) == len(after)
    assert before != after


@pytest.mark.long
def test_what_is_wrong_is_one_sentence(folder: Path, server: Server, tmp_path: Path) -> None:
    words = ("env", "words", folder)
    assert "say who writes them: genenv env words" in sentence(*words)
    assert "is no folder; a bundle of tools is one" in sentence(
        "env", "words", tmp_path / "none", "--by", f"{server.url}#m"
    )
    assert "--writer are of `genenv env new`" in sentence(*words, "--by", "x", "--from", "a.py")
    assert "--by and --set are of `genenv env words`" in sentence(
        "env", "new", tmp_path / "new", "--from", "a.py", "--by", "x"
    )
    assert "say what the tools are: genenv env new" in sentence("env", "new", tmp_path / "new")
    quick = ("--set", "endpoint.retries=0")
    assert "cannot be used as an endpoint for m" in sentence(
        *words, "--by", "http://127.0.0.1:9/v1#m", *quick
    )
    server.answer = lambda _: refused("wrong key", 401)
    assert "and the key in OPENAI_API_KEY" in sentence(*words, "--by", f"{server.url}#m")
    assert "unknown setting" in sentence(*words, "--by", f"{server.url}#m", "--set", "policy.nothing=1")
    server.answer = lambda _: said("nothing")
    assert "no wording passes that" in sentence(*words, "--by", f"{server.url}#m")
    (folder / "wordings.toml").write_text("get_order = 3")
    assert "cannot be read as lists of wordings by tool" in sentence(*words, "--by", f"{server.url}#m")
