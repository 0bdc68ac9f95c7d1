import asyncio
import itertools
import json
import random
from collections.abc import Sequence
from datetime import date as Day
from typing import Any

import pytest

from genenv.domains.base import Domain, OutOfTurns
from genenv.domains.tool_calling.blanks import with_blanks
from genenv.domains.tool_calling.build import skills_of
from genenv.domains.tool_calling.domain import ToolCalling
from genenv.domains.tool_calling.grammar import spec_schema
from genenv.domains.tool_calling.phrasings.combinations import TRAINING_COMBINATIONS
from genenv.domains.tool_calling.prompting import offered
from genenv.domains.tool_calling.settings import ToolCallingConfig
from genenv.domains.tool_calling.spec import Call, ToolSpec
from genenv.domains.tool_calling.toolbox import TOOLS
from genenv.domains.tool_calling.worlds import today_of
from genenv.gate.gate import base_tasks
from genenv.types import Lineage, Message, Origin, Profile, Seed, Task

DENTIST = {"title": "Dentist", "date": "2025-03-17", "start": "09:30"}
DENTIST_WORDS = 'Put "Dentist" in my calendar on 2025-03-17 at 09:30'
ONE = ToolSpec.model_validate(
    {
        "n_calls": 1,
        "dependent": False,
        "n_tools": 3,
        "phrasing": "explicit",
        "gap": "none",
        "calls": [{"tool": "create_event", "args": DENTIST}],
        "instruction": DENTIST_WORDS,
    }
)
CHAIN = ToolSpec.model_validate(
    {
        "n_calls": 2,
        "dependent": True,
        "n_tools": 4,
        "phrasing": "explicit",
        "gap": "none",
        "calls": [
            {"tool": "find_contact", "args": {"name": "Anna Berg"}},
            {"tool": "send_email", "args": {"to": "$1.email", "subject": "Lake", "body": "See you there."}},
        ],
        "instruction": 'Look up Anna Berg, then email her "Lake": "See you there."',
    }
)


def seed_of(spec: ToolSpec) -> Seed:
    return Seed(id="seed-1", domain="tool_calling", spec=spec.model_dump(mode="json"), skills=skills_of(spec))


def task_of(domain: ToolCalling, spec: ToolSpec) -> Task:
    lineage = Lineage(origin=Origin.GENERATED, seed_id="seed-1")
    task = domain.build(spec, task_id="t", lineage=lineage, rng=random.Random(0))
    assert isinstance(task, Task), task
    return task


def test_it_is_a_domain() -> None:
    domain: Domain = ToolCalling()
    assert domain.name == "tool_calling"
    assert domain.spec is ToolSpec


class Script:
    """An agent that says what it is told to, and remembers what it heard."""

    def __init__(self, replies: Sequence[str]) -> None:
        self.replies = list(replies)
        self.heard: list[Message] = []

    async def ask(self, messages: Sequence[Message]) -> str:
        self.heard += messages
        return self.replies.pop(0)


def played(domain: ToolCalling, task: Task, replies: Sequence[str]) -> Script:
    script = Script(replies)
    asyncio.run(domain.episode(task).run(script.ask))
    return script


def test_a_single_turn_is_one_question() -> None:
    domain = ToolCalling()
    task = task_of(domain, ONE)
    script = played(domain, task, [*task.oracle, "never said"])
    assert script.heard == list(task.messages)
    assert script.replies == ["never said"]


def test_over_several_turns_the_agent_hears_results_until_it_stops_calling() -> None:
    domain = ToolCalling()
    task = task_of(domain, CHAIN)
    script = played(domain, task, [*task.oracle, "never said"])
    assert script.replies == ["never said"]
    found, sent = script.heard[len(task.messages) :]
    assert found.role == sent.role == "tool"
    assert json.loads(found.content)["name"] == "Anna Berg"
    assert found.content == json.dumps(json.loads(found.content), ensure_ascii=False, separators=(",", ":"))


def test_errors_are_told_as_json_and_each_call_gets_an_answer() -> None:
    domain = ToolCalling()
    task = task_of(domain, CHAIN)
    script = played(domain, task, ["launch_rocket()\nfind_contact(nam=3)", "I give up."])
    told = [json.loads(message.content) for message in script.heard[len(task.messages) :]]
    assert told == [
        {"error": "There is no tool 'launch_rocket'."},
        {"error": "find_contact has no parameter 'nam'."},
    ]


@pytest.mark.parametrize("reply", ["find_contact(", "", "No."])
def test_a_reply_without_readable_calls_ends_the_episode(reply: str) -> None:
    domain = ToolCalling()
    assert played(domain, task_of(domain, CHAIN), [reply]).replies == []


def test_without_several_turns_there_are_no_dependent_tasks_at_all() -> None:
    domain = ToolCalling(ToolCallingConfig(mode="single"))
    tasks = [*domain.held_out(), *base_tasks(domain, domain.seeds(), seed=0).values()]
    assert len(tasks) == len(domain.seeds()) + len(domain.held_out()) > 600
    assert not any(task.spec["dependent"] for task in tasks)
    assert all(domain.check(task, task.oracle).success for task in tasks)
    seed = next(seed for seed in domain.seeds() if seed.spec["n_calls"] == 2)
    alternatives = domain.spec_schema(seed)["anyOf"]
    assert {alternative["properties"]["dependent"]["const"] for alternative in alternatives} == {False}


def test_an_episode_ends_after_max_turns() -> None:
    domain = ToolCalling(ToolCallingConfig(max_turns=3))
    asked: list[Message] = []

    async def ask(messages: Sequence[Message]) -> str:
        asked.extend(messages[-1:])
        return 'find_contact(name="Anna Berg")'

    with pytest.raises(OutOfTurns):
        asyncio.run(domain.episode(task_of(domain, CHAIN)).run(ask))
    assert len(asked) == 3


def test_each_episode_has_a_world_of_its_own() -> None:
    domain = ToolCalling(ToolCallingConfig(mode="multi"))
    task = task_of(domain, ONE)
    for _ in range(2):
        script = played(domain, task, task.oracle)
        assert "error" not in script.heard[-1].content
        assert domain.check(task, task.oracle).success


def test_random_replies_fail_and_the_audit_passes() -> None:
    domain = ToolCalling()
    for spec in (ONE, CHAIN):
        task = task_of(domain, spec)
        assert domain.audit(task, random.Random(0)) is None
        assert not domain.check(task, domain.random_replies(task, random.Random(0))).success


def test_the_surface_is_the_words_and_the_skeleton_of_the_calls() -> None:
    domain = ToolCalling()
    assert domain.surface(task_of(domain, ONE)) == f"{DENTIST_WORDS}\ncreate_event(date, start, title)"


def test_the_simulator_is_told_the_date_the_task_will_play_on() -> None:
    domain = ToolCalling()
    messages = domain.simulator_messages(seed_of(ONE), Profile(), 0.5)
    today = f"Today is {today_of('seed-1'):%A}, {today_of('seed-1').isoformat()}."
    assert today in messages[0].content
    assert today in task_of(domain, ONE).messages[0].content
    assert [message.role for message in messages] == ["system", "user"]


def test_the_simulator_sees_the_seed_its_tools_two_others_and_the_profile() -> None:
    profile = Profile(success={"calendar": 0.9, "calls:1": 0.4, "bank": 0.1, "home": 1.0}, overall=0.42)
    system, user = ToolCalling().simulator_messages(seed_of(ONE), profile, 0.5)
    offered = [name for name, tool in TOOLS.items() if tool.signature in system.content]
    assert len(offered) == 3
    assert "create_event" in offered
    assert "It should solve 50%." in system.content
    assert "It solves 42% now, calendar 90%, calls:1 40%, best home 100%, worst bank 10%." in user.content
    assert """"instruction":"Put '<title>' in my calendar on <date> at <start>\"""" in user.content


def test_before_the_first_attempt_the_simulator_hears_no_rates() -> None:
    _, user = ToolCalling().simulator_messages(seed_of(ONE), Profile(), 0.5)
    assert "%" not in user.content


TOOLS_OF_ONE = ("create_event", "find_free_slot", "cancel_order")


def test_the_schema_keeps_the_order_of_the_spec_and_knows_the_tools_that_the_simulator_is_told_of() -> None:
    domain = ToolCalling()
    for seed in domain.seeds()[::20]:
        schema: Any = domain.spec_schema(seed)
        used: set[str] = set()
        for alternative in schema["anyOf"]:
            assert list(alternative["properties"]) == list(ToolSpec.model_fields) == alternative["required"]
            calls = alternative["properties"]["calls"]["prefixItems"]
            assert [alternative["properties"]["n_calls"]["const"]] == [len(calls)]
            used |= {call["properties"]["tool"]["const"] for call in calls}
            for call in calls:
                args = call["properties"]["args"]
                parameters = TOOLS[call["properties"]["tool"]["const"]].parameters
                ordered = [p.name for p in parameters if p.name in args["properties"]]
                assert list(args["properties"]) == ordered == args["required"]
                absent = [p.name for p in parameters if p.required and p.name not in args["properties"]]
                gap = alternative["properties"]["gap"]["enum"]
                assert len(absent) == (gap == ["missing_info"])
        system, _ = domain.simulator_messages(seed, Profile(), 0.5)
        assert used == {name for name, tool in TOOLS.items() if tool.signature in system.content}


@pytest.fixture(scope="module")
def accepts():
    """Whether a text is one that the simulator could write with these tools."""
    xgrammar = pytest.importorskip("xgrammar")
    vocabulary = [chr(code) for code in range(32, 127)] + ["</s>"]
    info = xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[len(vocabulary) - 1])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)

    def accept(spec: ToolSpec | str, tools: tuple[str, ...] = TOOLS_OF_ONE) -> bool:
        text = spec if isinstance(spec, str) else _written(spec)
        compiled = compiler.compile_json_schema(
            json.dumps(spec_schema(tools)), any_whitespace=False, separators=(",", ":")
        )
        matcher = xgrammar.GrammarMatcher(compiled)
        return all(matcher.accept_token(vocabulary.index(char)) for char in text) and matcher.accept_token(
            len(vocabulary) - 1
        )

    return accept


def _written(spec: ToolSpec) -> str:
    """A spec as the simulator would write it."""
    return json.dumps(with_blanks(spec, Day(2025, 3, 10)).model_dump(mode="json"), separators=(",", ":"))


LINKED = CHAIN.model_copy(
    update={
        "calls": (
            Call(tool="find_free_slot", args={"date": "2025-03-17", "minutes": 30}),
            Call(tool="create_event", args={"title": "Lake", "date": "2025-03-17", "start": "$1.start"}),
        ),
        "instruction": 'Find 30 minutes on 2025-03-17 and put "Lake" there.',
    }
)


def test_the_schema_compiles_to_a_grammar_that_takes_specs_and_nothing_else(accepts) -> None:
    for spec in (ONE, LINKED):
        text = _written(spec)
        assert accepts(text)
        assert not accepts(text[:-1])
        assert not accepts(text.replace('"n_tools":', '"tools":'))
        assert not accepts(text.replace("create_event", "launch"))
    one = _written(ONE)
    assert not accepts(one.replace("2025-03-17", "2025-13-17", 1))
    assert not accepts(one.replace('"09:30"', '"9:30"', 1))


def test_what_the_difficulty_fields_announce_the_grammar_holds_to(accepts) -> None:
    one, linked = _written(ONE), _written(LINKED)
    assert not accepts(one.replace('"n_calls":1', '"n_calls":2'))
    assert not accepts(
        linked.replace('"n_calls":2', '"n_calls":1').replace('"dependent":true', '"dependent":false')
    )
    assert not accepts(one.replace('"dependent":false', '"dependent":true'))
    assert not accepts(one.replace('"09:30"', '"$1.start"', 1))
    without = one.replace('"date":"2025-03-17",', "").replace(" on <date>", "")
    gap = ('"gap":"none"', '"gap":"missing_info"')
    assert not accepts(without)
    assert accepts(without.replace(*gap))
    assert not accepts(one.replace(*gap))
    two_absent = without.replace('"start":"09:30"', '"minutes":30').replace("<start>", "<minutes>")
    assert not accepts(two_absent.replace(*gap))
    assert not accepts(linked.replace(*gap))


def test_a_dependent_spec_has_a_reference_where_the_base_data_have_one(accepts) -> None:
    linked = _written(LINKED)
    three = (
        linked.replace('"n_calls":2', '"n_calls":3')
        .replace("}}],", '}},{"tool":"cancel_order","args":{"order_id":7}}],')
        .replace("there.", "there. Call off <order_id>.")
    )
    assert accepts(three)
    for text in (linked, three):
        assert not accepts(text.replace('"date":"2025-03-17","minutes"', '"date":"$1.day","minutes"'))
        for wrong in ("10:00", "$2.start", "$1.day"):
            assert not accepts(text.replace("$1.start", wrong))
    notes = ("read_file", "add_note")
    note = '[{"tool":"read_file","args":{"path":"a"}},{"tool":"add_note","args":{"title":"b","text":"%s"}}]'
    spec = linked[: linked.index("[")] + note + linked[linked.index("]") + 1 :]
    spec = spec[: spec.index('"instruction"')] + '"instruction":"Note <path> as <title>."}'
    assert accepts(spec % "$1.content", notes)
    assert not accepts(spec % "c", notes)  # to xgrammar these differ by "title" alone


def test_the_words_for_one_call_have_its_blanks_in_any_order_and_no_other(accepts) -> None:
    one = _written(ONE)
    words = json.loads(one)["instruction"]
    for good in ("At <start> on <date>: '<title>'!", "<date><start><title>", "Oh! <title>, <date>, <start>"):
        assert accepts(one.replace(words, good)), good
    for wrong in (
        "7: <title> <date> <start>",
        "A. B. <title> <date> <start>",
        "<title> on <date>",
        "<title> <date> <start> <city>",
        "{<title>} <date> <start>",
    ):
        assert not accepts(one.replace(words, wrong)), wrong


def test_no_value_in_the_grammar_is_a_blank_or_code(accepts) -> None:
    one = _written(ONE)
    assert accepts(one.replace('"Dentist"', '"Dr. O\'Neil, 2nd floor"', 1))
    for wrong in ("<title>", "${x}", "{}", "$1.title", ""):
        assert not accepts(one.replace('"Dentist"', f'"{wrong}"', 1)), wrong


def test_the_words_for_two_calls_have_the_blanks_of_the_first_one_first(accepts) -> None:
    words = ToolSpec.model_validate(
        {
            "n_calls": 2,
            "dependent": False,
            "n_tools": 4,
            "phrasing": "explicit",
            "gap": "none",
            "calls": [
                {"tool": "cancel_order", "args": {"order_id": 7}},
                {"tool": "find_free_slot", "args": {"date": "2025-03-17", "minutes": 30}},
            ],
            "instruction": "Call off 7 and find 30 minutes on 2025-03-17.",
        }
    )
    text = _written(words)
    assert accepts(text)
    for wrong in ("<minutes> <date> <order_id>", "<order_id> <date>", "Call off 7: <minutes> <date>"):
        assert not accepts(text.replace("Call off <order_id> and find <minutes> minutes on <date>.", wrong))


def test_tools_that_meet_in_held_out_tasks_do_not_meet_in_the_grammar() -> None:
    pairs = [
        (first.name, second.name) for first, second in itertools.permutations(list(TOOLS.values())[::3], 2)
    ]
    apart = [pair for pair in pairs if not TRAINING_COMBINATIONS.allows(pair)]
    assert apart
    for pair in apart:
        alternatives: Any = spec_schema(pair)["anyOf"]
        assert {one["properties"]["n_calls"]["const"] for one in alternatives} == {1}


@pytest.mark.long
def test_the_grammar_takes_seeds_with_blanks_and_their_variations(accepts) -> None:
    domain, rng = ToolCalling(), random.Random(0)
    for seed in domain.seeds()[::30]:
        own = with_blanks(ToolSpec.model_validate(seed.spec), today_of(seed.id)).model_dump(mode="json")
        tools = tuple(tool.name for tool in offered(seed))
        for spec in (own, domain.variation(seed, rng)):
            text = json.dumps(spec, separators=(",", ":"))
            assert not text.isascii() or accepts(text, tools), text


def test_every_setting_changes_something() -> None:
    """All are read; apps has tests of its own."""
    assert set(ToolCallingConfig.model_fields) == {
        "mode",
        "style",
        "reward",
        "success_threshold",
        "max_turns",
        "descriptions",
        "apps",
    }
    bare = task_of(ToolCalling(ToolCallingConfig(descriptions=False)), ONE).messages[0].content
    assert "  # " in task_of(ToolCalling(), ONE).messages[0].content
    assert "  # " not in bare
    partly = (task_of(ToolCalling(), ONE).oracle[0].replace("17", "18"),)
    soft = ToolCalling(ToolCallingConfig(reward="soft"))
    lenient = ToolCalling(ToolCallingConfig(reward="soft", success_threshold=0.5))
    verdicts = [domain.check(task_of(domain, ONE), partly) for domain in (ToolCalling(), soft, lenient)]
    assert [(verdict.reward > 0, verdict.success) for verdict in verdicts] == [
        (False, False),
        (True, False),
        (True, True),
    ]


def test_the_base_data_passes_the_domains_own_gate() -> None:
    """Every sixteenth seed and a variation of it; all of them are checked where the seeds are."""
    domain = ToolCalling()
    for seed in domain.seeds()[::16]:
        for spec in (seed.spec, domain.variation(seed, random.Random(seed.id))):
            lineage = Lineage(origin=Origin.SEED, seed_id=seed.id)
            task = domain.build(
                ToolSpec.model_validate(spec), task_id=seed.id, lineage=lineage, rng=random.Random(seed.id)
            )
            assert isinstance(task, Task), task
            assert domain.audit(task, random.Random(seed.id)) is None, spec


@pytest.mark.long
def test_held_out_tasks_are_stable_and_solvable() -> None:
    domain = ToolCalling()
    tasks = domain.held_out()
    assert tasks == domain.held_out()
    assert all(domain.check(task, task.oracle).success for task in tasks)
    assert {task.lineage.origin for task in tasks} == {Origin.HELD_OUT}
