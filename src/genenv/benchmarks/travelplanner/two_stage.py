"""TravelPlanner's two-stage mode: an agent searches with tools, and a planner reads what it wrote down.

The loop and its limits are those of the authors' ReAct agent (`agents/tool_agents.py` of
OSU-NLP-Group/TravelPlanner). A step is a thought, an action and an observation, the first line of a reply
each. The agent ends without a plan after 30 steps, when the same action comes a third time in a row, when an
action of a kind is wrong for a fourth time with none right in between, or when its window is full. `Planner`
ends it with a plan: the same model is given the notebook, as in sole planning. Different here: the window is
the model's own, instead of a limit in GPT-3.5's tokens, and what is no action is answered in other words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from genenv.benchmarks.travelplanner.tools import SEARCHES, Refused, Searches
from genenv.chat.assistant import Talk
from genenv.errors import ContextOverflow
from genenv.types import Json

MAX_STEPS: Final = 30
_STEP_TOKENS = 256
_RETRIES = 3
_SAME = 3
_ACTION = re.compile(r"^(\w+)\[(.+)\]$")
_INVALID = "invalid"
_MASKED = "(Left out for want of room: what was found should be in the notebook.)"
_NO_ACTION = "There was no action: write one call on one line."
_VALID = (
    "That is no valid action. Valid are FlightSearch[Departure City, Destination City, Date], "
    "GoogleDistanceMatrix[Origin, Destination, Mode], AccommodationSearch[City], RestaurantSearch[City], "
    "AttractionSearch[City], CitySearch[State], NotebookWrite[Short Description] and Planner[Query]."
)
_INSTRUCTION = (
    "Collect the information that a travel plan for the query at the end needs: transportation, restaurants, "
    "attractions and accommodations. Take turns of 'Thought', 'Action' and 'Observation'. A thought reasons "
    "about what is known; an action is one of these calls and nothing else, on one line:\n"
    "FlightSearch[Departure City, Destination City, Date]: flights on a day, written YYYY-MM-DD.\n"
    "GoogleDistanceMatrix[Origin, Destination, Mode]: distance, time and cost between two cities; the mode "
    "is self-driving or taxi.\n"
    "AccommodationSearch[City], RestaurantSearch[City], AttractionSearch[City]: what there is in a city.\n"
    "CitySearch[State]: the cities of a state.\n"
    "NotebookWrite[Short Description]: writes what the last search found into the notebook, under a label. "
    "Do so after every search: the planner sees the notebook only.\n"
    "Planner[Query]: makes the plan out of the notebook and the query, and ends your work. Collect all that "
    "it needs first.\n\n"
    "Query: "
)
"""The task in our words, up to the query and what has been done so far."""


def instruction(query: str, done: str) -> str:
    """The prompt of a step in our words."""
    return f"{_INSTRUCTION}{query}{done}"


@dataclass(kw_only=True)
class Agent:
    """One attempt."""

    query: str
    searches: Searches
    prompt: Callable[[str, str], str]
    """Query and what has been done so far -> the prompt of the next line."""
    planning: Callable[[str, str], str]
    """The notebook and the query -> the prompt of the planner."""
    done: str = ""
    """Thoughts, actions and observations so far."""
    notebook: list[Json] = field(default_factory=list[Json])
    actions: list[str] = field(default_factory=list[str])
    _data: str | None = None
    """What the last search found."""
    _wrong: Counter[str] = field(default_factory=Counter[str])

    async def run(self, talk: Talk) -> Json:
        """Search, write down, plan.

        Returns:
            `reply`, the planner's, empty without one; `ended`, why; `steps`; `actions`.

        Raises:
            ContextOverflow: not even the first thought fits into the window.
        """
        reply, ended = "", f"no plan within {MAX_STEPS} steps"
        try:
            for number in range(1, MAX_STEPS + 1):
                argument, stopped = await self._step(number, talk)
                if argument is not None:
                    planned = await self._ask(talk, self.planning(str(self.notebook), argument), None)
                    reply, ended = planned, "planned"
                if argument is not None or stopped:
                    ended = stopped or ended
                    break
        except ContextOverflow:
            if not self.actions:
                raise
            ended = "the window is full"
        return {
            "reply": reply,
            "ended": ended,
            "steps": len(self.actions),
            "actions": list[Json](self.actions),
        }

    async def _ask(self, talk: Talk, content: str, max_tokens: int | None) -> str:
        return (await talk([{"role": "user", "content": content}], max_tokens=max_tokens)).text

    async def _line(self, talk: Talk) -> str:
        text = (await self._ask(talk, self.prompt(self.query, self.done), _STEP_TOKENS)).strip()
        return text.splitlines()[0].strip() if text else ""

    async def _step(self, number: int, talk: Talk) -> tuple[str | None, str]:
        """One step: what the planner is asked, if it is, and why the agent stops, if it does."""
        self.done += f"\nThought {number}:"
        self.done += f" {await self._line(talk)}"
        self.done += f"\nAction {number}:"
        action = await self._line(talk)
        self.done += f" {action}"
        self.actions.append(action)
        if self.actions[-_SAME:] == [action] * _SAME:
            return None, f"the same action {_SAME} times in a row"
        self.done += f"\nObservation {number}: "
        if not action:
            self.done += _NO_ACTION
            return None, ""
        called = _ACTION.match(action)
        name, argument = called.groups() if called else ("", "")
        if name == "Planner":
            return argument, ""
        if self._wrong[_limited(name)] >= _RETRIES:
            return (
                None,
                f"{name if _limited(name) != _INVALID else 'an invalid action'}: {_RETRIES} wrong before",
            )
        observed = self._observed(name, argument)  # which may shorten what has been done so far
        self.done += observed
        return None, ""

    def _observed(self, name: str, argument: str) -> str:
        """The answer to an action; what is right forgives all that was wrong before."""
        if name == "NotebookWrite":
            self._mask()
            self.notebook.append(
                {"index": len(self.notebook), "Short Description": argument, "Content": self._data}
            )
            answer = (
                f"The information has been recorded in Notebook, and its index is {len(self.notebook) - 1}."
            )
        elif name in SEARCHES:
            try:
                answer = self.searches.answer(name, argument)
            except Refused as refused:
                self._wrong[name] += 1
                return str(refused)
            self._mask()
            if name != "CitySearch":
                self._data = answer
        else:
            self._wrong[_INVALID] += 1
            return _VALID
        self._wrong.clear()
        return answer.strip()

    def _mask(self) -> None:
        """Takes what the last search found out of the prompt: it should be in the notebook."""
        if self._data:
            self.done = self.done.replace(self._data.strip(), _MASKED)


def _limited(name: str) -> str:
    """Whose wrong actions stop an action; those of `AccommodationSearch` never do, as at the authors'."""
    return name if name in (*SEARCHES, "NotebookWrite") and name != "AccommodationSearch" else _INVALID
