# pyright: standard
"""Exported tasks in TRL: the `environment_factory`, reward functions and dataset for `GRPOTrainer`.

TRL offers every public method of an environment as a tool. If tasks offer tools, the methods are these, with
their own schemas. If rollouts are conversations in text, the tool is `act`, which sends the next reply. If a
task is one reply, it needs no tool, and the completion is graded. A mixture may have tasks of all three
kinds: TRL then offers all tools in each, and those that a task lacks answer that it lacks them.

A tool does not know which calls were made in the same turn, so it answers as if all calls so far were one
turn. The verdict grades the completion turn by turn, as in genenv. Where calls act on a server, of OpenEnv or
verifiers, each is sent once, as a turn of its own, and the verdict is that on this session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from genenv.errors import GenenvError, UsageError
from genenv.interop.exported import Exported, Session, reply_text, task_of
from genenv.types import JsonObject, Task

if TYPE_CHECKING:
    from datasets import Dataset

_KEPT = ("reset", "get_reward")
_CHATML = ("<|im_start|>", "<|im_end|>")
_WITH_TOOLS = "qwen3_instruct_2507.jinja"
"""A chat template of TRL that offers tools, for models with ChatML tokens."""
Completion = Sequence[Mapping[str, Any]]
"""The messages after a prompt."""
OVER = "The task has ended."
_NOT_SHOWN = "Done."
"""The result of a tool call in tasks of one reply, which show no results."""
_ACT = "act"
ACT: JsonObject = {
    "type": "function",
    "function": {
        "name": _ACT,
        "description": "Say the next reply of the task, and hear what comes of it.",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string", "description": "The whole reply."}},
            "required": ["text"],
        },
    },
}


class _Tool(dict[str, Any]):
    """A tool's JSON schema, which TRL's chat template reads, and the function that runs a call."""

    def __init__(self, schema: JsonObject, call: Callable[[str, JsonObject], str]) -> None:
        super().__init__(schema)
        self.__name__ = str(cast(JsonObject, schema["function"])["name"])
        self._call = call

    def __call__(self, /, **arguments: Any) -> str:  # noqa: ANN401 - whatever a model writes
        return self._call(self.__name__, arguments)


class Environment:
    """Runs rollouts for TRL, one at a time. `environment_class` returns a subclass with the tools."""

    _exported: Exported
    _tools: Sequence[JsonObject]

    def __init__(self) -> None:
        self._task: Task | None = None
        self._session: Session | None = None
        self._calls: list[JsonObject] = []
        self._error: GenenvError | None = None
        self._has_ended = False
        """Whether the last reply was sent."""
        for schema in self._tools:
            tool = _Tool(schema, self._called)
            self.__dict__[tool.__name__] = tool

    def reset(self, task: str, **row: object) -> None:
        """Start a rollout of the task of a row."""
        del row
        self._task, self._calls, self._error, self._session = task_of(task), [], None, None
        self._has_ended = False
        if self._exported.is_text_game(self._task) or self._exported.is_remote(self._task):
            self._session = self._exported.session(self._task)

    def _called(self, name: str, arguments: JsonObject) -> str:
        call: JsonObject = {"function": {"name": name, "arguments": arguments}}
        if self._session is not None:
            try:
                return self._sent(self._session, name, call)
            except GenenvError as error:
                self._error = error  # TRL takes it for the result of the tool
                raise
        if self._task is None:
            return OVER
        self._calls.append(call)
        answer = self._exported.session(self._task).send("", self._calls)
        return str(answer[-1]["content"]) if answer else _NOT_SHOWN

    def _sent(self, session: Session, name: str, call: JsonObject) -> str:
        """Send a call to a session, of `act` its text, and return the answer."""
        if session.done:
            return OVER
        if name not in (known := _names(session.tools) or [_ACT]):
            return f"This task has no tool {name!r}, only {', '.join(map(repr, known))}."
        if session.tools:
            answer = session.send("", [call])
        else:
            given = cast(JsonObject, cast(JsonObject, call["function"])["arguments"])
            answer = session.send(str(given.get("text", "")))
        return "\n".join(str(one["content"]) for one in answer) or OVER

    def _graded(self, completion: Completion) -> float:
        """Return the reward of the conversation so far, or of the completion's replies turn by turn.

        Raises:
            GenenvError: a tool has raised it.
        """
        if self._task is None:
            return 0.0
        if self._error is not None:
            raise self._error
        session = self._session
        if session is not None:
            last = completion[-1] if completion else {}
            ends = last.get("role") == "assistant" and not last.get("tool_calls")
            if ends and session.tools and not (session.done or self._has_ended):
                session.send(str(last.get("content") or ""))
                self._has_ended = True
            return session.verdict().reward
        return self._exported.graded(self._task, _replies(completion)).reward


def _names(tools: Sequence[JsonObject]) -> list[str]:
    return [str(cast(JsonObject, tool["function"])["name"]) for tool in tools]


def _replies(completion: Completion) -> list[str]:
    """Return the agent's replies, each with its text and calls, without thoughts."""
    return [
        reply_text(str(one.get("content") or ""), one.get("tool_calls") or ())
        for one in completion
        if one.get("role") == "assistant"
    ]


def environment_class(folder: str | Path) -> type[Environment]:
    """Return the class that `GRPOTrainer` takes as `environment_factory`.

    Args:
        folder: the folder of an exported environment.

    Raises:
        UsageError: a tool's name is reserved in TRL.
    """
    exported = Exported(Path(folder))
    tools = [*exported.tools, *([ACT] if exported.has_text_games else [])]

    def placeholder(self: Environment, **arguments: object) -> str:
        """Show TRL that the class has this tool; instances override it."""
        raise NotImplementedError

    names = _names(tools)
    if exported.has_text_games and names.count(_ACT) > 1:
        raise UsageError(f"one of its tools is called {_ACT!r}, as is that of text games; rename it")
    if taken := sorted(name for name in names if name in _KEPT or name.startswith("_")):
        raise UsageError(f"its tool {taken[0]!r} has a name that TRL keeps for itself; rename the tool")
    body: dict[str, object] = {"_exported": exported, "_tools": tools, "__doc__": Environment.__doc__}
    return type("Environment", (Environment,), body | dict.fromkeys(names, placeholder))


def reward_function(folder: str | Path) -> Callable[..., list[float]]:
    """Return a function for `GRPOTrainer`'s `reward_funcs`: the verdict's reward, in [0, 1].

    Args:
        folder: the folder of the exported environment.
    """
    exported = Exported(Path(folder))

    def verdict(
        completions: Sequence[Completion],
        environments: Sequence[Environment] | None = None,
        task: Sequence[str] | None = None,
        **others: object,
    ) -> list[float]:
        del others
        if environments is not None:
            return [one._graded(said) for one, said in zip(environments, completions, strict=True)]
        if task is None:
            raise UsageError(
                "the reward function gets no column 'task': train on the rows of the exported environment "
                "(trl_env.dataset), or give it the environments (environment_factory)"
            )
        return [
            exported.graded(task_of(text), _replies(said)).reward
            for text, said in zip(task, completions, strict=True)
        ]

    return verdict


def with_tools(model: str) -> tuple[str, Any]:
    """Return a model folder for `GRPOTrainer` and a tokenizer whose chat template offers tools.

    If the model's own template offers no tools, as SmolLM2's, TRL's template for Qwen3 is used, which needs
    only the tokens of ChatML. It describes tools in the system message, and calls are `<tool_call>` blocks.

    Args:
        model: `smollm2-135m`, a folder, or a name on the Hugging Face hub.

    Raises:
        UsageError: the model cannot be loaded, or its template offers no tools and it lacks ChatML's tokens.
    """
    from genenv.backends.local.loading import load_tokenizer, resolve

    theirs = import_module("trl.chat_template_utils")
    folder = resolve(model)
    tokenizer = load_tokenizer(folder)
    if not theirs.supports_tool_calling(tokenizer):
        if not set(_CHATML) <= tokenizer.get_vocab().keys():
            raise UsageError(
                f"the chat template of {model} offers no tools, and its tokens are not those of ChatML; take "
                "a model whose template does, or export with environment.style=python and "
                "environment.mode=single"
            )
        templates = Path(str(theirs.__file__)).parent / "chat_templates"
        tokenizer.chat_template = (templates / _WITH_TOOLS).read_text(encoding="utf-8")
    return folder, tokenizer


def dataset(folder: str | Path, split: str = "train") -> Dataset:
    """Return the rows of a split as `train_dataset`: `id`, `prompt`, `task`.

    Args:
        folder: the folder of the exported environment.
        split: `train` or `held_out`.
    """
    from datasets import Dataset

    return Dataset.from_list([dict(row) for row in Exported(Path(folder)).rows(split)])
