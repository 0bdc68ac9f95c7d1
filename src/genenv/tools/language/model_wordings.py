"""Let a model write wordings for the tools of a bundle, and keep those that pass all checks.

Code checks each wording first (`Rules`, `Trial`). A round trip follows: in a new conversation, the same model
must name the tool that the text asks for, twice, with the tools in two orders. `write_wordings` does all of
it; `with_more` adds wordings to the text of a file that its user may have edited; `Writer` loads a
model that writes wordings or tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import random
import re
import tomllib
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from genenv.chat.assistant import Assistant, Closes
from genenv.errors import DataError, GenenvError, RolloutError, UsageError
from genenv.evaluation.config import load_evaluation_config
from genenv.evaluation.models import ENDPOINT, assistant
from genenv.files import write_whole
from genenv.progress import Reporter, advance, staged
from genenv.seeding import generator, stream
from genenv.texts import masked, tallied
from genenv.threads import run_with_own_loop as apart
from genenv.tools.audit import misstated
from genenv.tools.bundle import Bundle, toml_key
from genenv.tools.environment import Tools
from genenv.tools.generate.fresh_values import fresh
from genenv.tools.language.wording import ARGUMENTS, Said, blanks_of, clause, instruction, said
from genenv.tools.language.wording_rules import Reason, Refusal, Rules, named, naming, proposed, writing
from genenv.tools.settings import ToolsConfig
from genenv.tools.spec import Program
from genenv.types import Json, Lineage, Message, Origin, Task


def with_more(text: str, tool: str, more: Sequence[str]) -> str:
    """Return the text of a wordings file with wordings added to a tool.

    Args:
        text: valid TOML that maps tool names to lists of wordings.
        tool: the tool; if it has no list yet, one is appended.
        more: the new wordings.

    Raises:
        tomllib.TOMLDecodeError: the text is not valid TOML.
    """
    if not more:
        return text
    quoted, end = [json.dumps(one, ensure_ascii=False) for one in more], _end_of_list(text, tool)
    if end is None:
        line_end = "" if not text or text.endswith("\n") else "\n"
        return f"{text}{line_end}{toml_key(tool)} = [{', '.join(quoted)}]\n"
    head = text[:end].rstrip(" \t")
    indents = re.findall(r"^([ \t]+)\S", head, re.MULTILINE)  # the user's own
    indent = indents[-1] if indents else "  "
    added = "".join(f"{indent}{one},\n" for one in quoted) if head.endswith("\n") else ", ".join(quoted)
    try:
        found = f"{head}{added}{text[end:]}"
        tomllib.loads(found)
    except tomllib.TOMLDecodeError:  # the last text has no comma
        found = f"{head}, {added}{text[end:]}"
    return found


def _end_of_list(text: str, tool: str) -> int | None:
    """Return the place of the bracket that closes a tool's list, or None if the tool has no list."""
    if tool not in tomllib.loads(text):
        return None
    keys = tool, toml_key(tool), json.dumps(tool), json.dumps(tool, ensure_ascii=False), f"'{tool}'"
    names = "|".join(map(re.escape, keys))
    found = [key.end() for key in re.finditer(rf"^[ \t]*(?:{names})[ \t]*=", text, re.MULTILINE)]
    for start in (*found, 0):  # 0: its key is spelled in yet another way
        for end in re.compile("]").finditer(text, start):
            with contextlib.suppress(tomllib.TOMLDecodeError):
                if tool in tomllib.loads(text[: end.end()]):
                    return end.start()
    return None


_SAMPLES = 8


class Trial:
    """Checks a new wording on the tasks of a bundle: the gate must accept their new texts.

    Args:
        env: the bundle's environment, whose settings must allow all of its programs.
    """

    def __init__(self, env: Tools) -> None:
        self._env = env
        self._tasks: list[tuple[Program, Task]] = []

    @property
    def size(self) -> int:
        """Number of tasks that `play` executes."""
        return len(self._env.bundle.base) + len(self._env.bundle.held_out)

    def play(self) -> None:
        """Execute all tasks once, and keep those whose text the gate accepts with the default wordings."""
        bundle = self._env.bundle
        for origin, programs in ((Origin.SEED, bundle.base), (Origin.HELD_OUT, bundle.held_out)):
            for name, program in programs.items():
                advance(items=1)
                rng, lineage = random.Random(name), Lineage(origin=origin)
                task = self._env.build(program, task_id=name, lineage=lineage, rng=rng)
                if isinstance(task, Task) and misstated(self._env, self._said(program, task, {})) is None:
                    self._tasks.append((program, task))

    def problem(self, name: str, wording: str) -> str | None:
        """Return why the gate refuses a task with this wording; None if it accepts all tasks.

        Args:
            name: the tool.
            wording: the wording of the tool.
        """
        for program, task in self._tasks:
            if any(step.tool == name for step in program.calls):
                rejection = misstated(self._env, self._said(program, task, {name: [wording]}))
                if rejection is not None:
                    return f"the gate refuses a task of it: {rejection.explanation.rstrip('.')}"
        return None

    def _said(self, program: Program, task: Task, wordings: Mapping[str, Sequence[str]]) -> Task:
        speech = dataclasses.replace(self._env.speech(program), wordings=wordings)
        request = said(self._env.world.tools, program, speech, random.Random(task.id))
        payload = {**task.payload, "implied": [list(names) for names in request.implied]}
        messages = (Message(role="user", content=request.text),)
        return dataclasses.replace(task, messages=messages, payload=payload)

    def sample(self, name: str, wording: str, rng: random.Random) -> str:
        """Return a request for one call in this wording, with values of the bundle's tasks in the blanks.

        Args:
            name: the tool.
            wording: the wording of the tool.
            rng: samples the values.
        """
        tool = self._env.world.tools[name]
        known: list[Mapping[str, Json]] = [
            step.args
            for program in self._env.bundle.base.values()
            for step in program.calls
            if step.tool == name
        ]
        found: dict[str, Json] = {}
        for one in rng.sample(known, min(_SAMPLES, len(known))):
            found = {**one, **found}
        named = dict.fromkeys([*blanks_of(wording), *sorted(tool.required)])
        args = {
            one: found[one] if one in found else fresh(tool, one, rng) for one in named if one != ARGUMENTS
        }
        return instruction([clause(Said(tool=tool, args=args), [wording], rng).text], [], rng)


_USUAL, _BEHIND_ENDPOINT = ("sampling.temperature=0.7",), ('endpoint.tools="text"',)
"""Settings of a model that writes."""
_TOKENS_EACH, _TOKENS_BESIDE = 48, 128
_TOKENS_OF_A_NAME = 256
_MORE = 2
"""Multiple of the requested number of wordings that is checked; longer replies are cut."""
_EXAMPLES = 2


@dataclass(slots=True)
class Added:
    """The result for one tool: how many wordings the model wrote, and which were kept or refused."""

    tool: str
    before: int = 0
    """Number of wordings that the tool had before."""
    read: int = 0
    """Number of wordings that the model wrote."""
    kept: list[str] = field(default_factory=list[str])
    refused: list[tuple[str, Refusal]] = field(default_factory=list[tuple[str, Refusal]])
    """Refused wordings with the reasons."""


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model, and the event loop in which it is asked."""

    name: str
    assistant: Assistant
    seed: int
    runner: asyncio.Runner

    async def answer(self, prompt: str, max_tokens: int, *names: object) -> str:
        """Return the model's answer in a new conversation, whose sampling the names seed.

        Raises:
            RolloutError: it gives no answer.
        """
        talk = self.assistant.talk(stream(self.seed, *names))
        return (await talk([{"role": "user", "content": prompt}], max_tokens=max_tokens)).text


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A model that writes wordings or tasks."""

    by: str
    """As for `genenv eval --policy`, or `BASE_URL#MODEL` for `openai:BASE_URL#MODEL`."""
    overrides: Sequence[str] = ()
    """Settings of the model and its sampling, as `key=value`."""
    seed: int = 0
    """Seed of all random draws."""

    @contextlib.contextmanager
    def model(self, reporter: Reporter) -> Generator[Model]:
        """Load the model, and close it at the end.

        Raises:
            UsageError: it cannot be loaded.
        """
        name = f"{ENDPOINT}{self.by}" if self.by.startswith(("http://", "https://")) else self.by
        usual = (*_USUAL, *(_BEHIND_ENDPOINT if name.startswith(ENDPOINT) else ()))
        settings = load_evaluation_config((*usual, *self.overrides), [name])
        with staged(reporter, f"loading {masked(self.by)}", items=None, unit=""):
            loaded = assistant(name, settings.policy, settings.endpoint, settings.sampling)
        with asyncio.Runner() as runner:
            try:
                yield Model(masked(self.by), loaded, self.seed, runner)
            finally:
                if isinstance(loaded, Closes):
                    runner.run(loaded.close())


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted(Writer):
    """Settings of `write_wordings`: which model writes, and how many wordings."""

    each: int = 6
    """Number of wordings that each tool should have, including existing ones."""


def write_wordings(folder: Path, wanted: Wanted, reporter: Reporter) -> list[Added]:
    """Let a model write wordings for tools of a bundle that have too few, and keep those that pass.

    Args:
        folder: the bundle.
        wanted: the model, and how many wordings.
        reporter: shows the progress.

    Returns:
        The result for each tool that had too few; empty if every tool has enough.

    Raises:
        UsageError: the folder is not a bundle, the model cannot be loaded, or none of its wordings passes.
        GenenvError: the model stopped answering; wordings kept until then are in the file.
    """
    env = Tools(ToolsConfig(most_calls=8), folder)
    try:
        work = _Work(env, wanted, reporter)
        if not work.lacking:
            return []
        done = apart(work.done)
    finally:
        if "world" in vars(env):
            env.world.close()
    if not any(one.kept for one in done):
        raise UsageError(f"no wording passes that {masked(wanted.by)} wrote: {_told(done)}")
    return done


def reasons(done: Sequence[Added]) -> Counter[Reason]:
    """Return the number of refused wordings by reason."""
    return Counter(refusal.reason for one in done for _, refusal in one.refused)


def _told(done: Sequence[Added]) -> str:
    refused = tallied(reasons(done))
    example = next((f"; {text[:80]!r}: {why.why}" for one in done for text, why in one.refused), "")
    return f"{sum(one.read for one in done)} were read{', refused: ' if refused else ''}{refused}{example}"


class _Work:
    """Writes the wordings of several tools concurrently."""

    _model: Model
    _rules: Rules
    _free: asyncio.Semaphore
    """Limits the number of concurrent questions to the model."""
    _places: asyncio.Semaphore
    """Limits the number of concurrent tools, so that the first ones are finished early."""

    def __init__(self, env: Tools, wanted: Wanted, reporter: Reporter) -> None:
        self._env, self._wanted, self._reporter = env, wanted, reporter
        self._file = env.bundle.path / "wordings.toml"
        self._trial = Trial(env)
        self._tried: dict[str, list[str]] = {}
        self._stopped: tuple[str, RolloutError] | None = None
        known = env.bundle.wordings
        self.lacking = [
            name
            for name in env.graph.recipes
            if name in env.world.tools and len(known.get(name, ())) < wanted.each
        ]
        """Tools with fewer wordings than requested."""

    def done(self) -> list[Added]:
        """Load the model, execute the tasks, and write the lacking wordings; return the result by tool."""
        world = self._env.world
        with self._wanted.model(self._reporter) as self._model:
            with staged(self._reporter, "playing tasks", items=self._trial.size, unit="tasks"):
                self._rules = Rules(world.tools, self._env.graph, world.play([]).state)
                self._trial.play()
            with staged(self._reporter, "writing wordings", items=len(self.lacking), unit="tools"):
                return self._model.runner.run(self._all())

    async def _all(self) -> list[Added]:
        many = self._model.assistant.concurrency(many_turns=False)
        self._free = asyncio.Semaphore(many)
        self._places = asyncio.Semaphore(max(1, many // self._wanted.each))
        done = [Added(tool=name) for name in self.lacking]
        await asyncio.gather(*(self._tool(added, done) for added in done))
        if self._stopped is not None:
            name, problem = self._stopped
            kept = sum(len(one.kept) for one in done)
            raise GenenvError(
                f"{self._model.name} gave no answer about {name}: {problem}; {kept} wordings that "
                f"passed before are in {self._file}; typed again, it goes on from there"
            ) from problem
        return done

    async def _tool(self, added: Added, done: Sequence[Added]) -> None:
        """Write the wordings of a tool; note the error if the model stops answering."""
        async with self._places:
            try:
                await self._one(added)
            except RolloutError as problem:
                self._stopped = self._stopped or (added.tool, problem)
            else:
                advance(items=1, note=f"{sum(len(one.kept) for one in done)} kept")

    async def _one(self, added: Added) -> None:
        """Ask for wordings of a tool, check them, and write those that pass to the file."""
        name, each = added.tool, self._wanted.each
        present = self._known().get(name, [])
        added.before = len(present)
        rng = generator(self._wanted.seed, "words", name, added.before)
        tool, parameters = self._env.world.tools[name], self._rules.parameters(name)
        examples = rng.sample(present, min(_EXAMPLES, len(present)))
        request = writing(tool, parameters, examples, each)
        reply = await self._asked(request, _TOKENS_EACH * each + _TOKENS_BESIDE, name, added.before)
        found = proposed(reply, parameters)
        added.read = len(found)
        waiting = found[: _MORE * each]
        while waiting and (room := each - added.before - len(added.kept)) > 0:
            good = self._good(added, waiting, room)
            await self._try(added, good)
        beyond = Refusal(reason=Reason.MORE, why="there are enough")
        added.refused += [(text, beyond) for text in (*waiting, *found[_MORE * each :])]

    def _good(self, added: Added, waiting: list[str], room: int) -> list[str]:
        """Remove wordings from `waiting` until `room` of them pass the checks by code; return those."""
        known, name = self._known(), added.tool
        for tool, texts in self._tried.items():
            known[tool] = [*known.get(tool, ()), *texts]
        good = self._tried[name] = []
        known.setdefault(name, [])
        while waiting and len(good) < room:
            text = waiting.pop(0)
            refusal = self._rules.problem(name, text, known)
            if refusal is None and (why := self._trial.problem(name, text)) is not None:
                refusal = Refusal(reason=Reason.GATE, why=why)
            if refusal is None:
                good.append(text)
                known[name].append(text)
            else:
                added.refused.append((text, refusal))
        return good

    async def _try(self, added: Added, good: Sequence[str]) -> None:
        """Test wordings by the round trip, and write those that pass to the file.

        Raises:
            RolloutError: the model did not answer for a wording.
        """
        asked = [self._round_trip(added.tool, text) for text in good]
        verdicts = await asyncio.gather(*asked, return_exceptions=True)
        passed = [text for text, verdict in zip(good, verdicts, strict=True) if verdict is None]
        if passed:
            text = self._file.read_bytes().decode("utf-8")
            try:
                write_whole(self._file, with_more(text, added.tool, passed))
            except tomllib.TOMLDecodeError as error:
                raise DataError(f"{self._file} is not valid TOML any more: {error}") from error
        added.kept += passed
        for text, verdict in zip(good, verdicts, strict=True):
            if isinstance(verdict, Refusal):
                added.refused.append((text, verdict))
            elif verdict is not None:
                raise verdict

    def _known(self) -> dict[str, list[str]]:
        """Return the current wordings in the file, which the user may edit meanwhile."""
        return Bundle(self._env.bundle.path, self._env.bundle.about).wordings

    async def _round_trip(self, name: str, wording: str) -> Refusal | None:
        """Return a refusal unless the model twice names this tool for a request in this wording."""
        rng = generator(self._wanted.seed, "round trip", name, wording)
        tools = list(self._env.world.tools.values())
        rng.shuffle(tools)
        request = self._trial.sample(name, wording, rng)
        for listed in (tools, tools[::-1]):
            asked = naming(request, listed)
            reply = await self._asked(asked, _TOKENS_OF_A_NAME, name, wording, listed[0].name)
            answer = named(reply, self._env.world.tools)
            if answer != name:
                return Refusal(reason=Reason.ROUND_TRIP, why=f"it is taken to ask for {answer or 'no tool'}")
        return None

    async def _asked(self, request: str, max_tokens: int, *names: object) -> str:
        """Return the model's answer to a question in a new conversation.

        Raises:
            RolloutError: there is no answer.
        """
        async with self._free:
            if self._stopped is not None:
                raise RolloutError("it gave no answer before")
            return await self._model.answer(request, max_tokens, "words", *names)
