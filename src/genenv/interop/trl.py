# pyright: standard
"""Tasks in TRL: what `GRPOTrainer` takes as `environment_factory`, its rewards, and its dataset.

TRL offers every public method of an environment as a tool. Where an environment's tasks offer tools, those
are they, with their own schemas; where a rollout is a conversation in text, one tool, `act`, says the next
reply; where a task is one reply, there is no tool, and the completion itself is graded.

A tool does not know which calls came in one turn, so it answers as if all so far had; the verdict is of the
completion, turn by turn, as genenv grades it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from genenv.errors import UsageError
from genenv.interop.exported import Exported, Session, reply_text, task_of
from genenv.types import JsonObject, Task

if TYPE_CHECKING:
    from datasets import Dataset

_KEPT = ("reset", "get_reward")
_CHATML = ("<|im_start|>", "<|im_end|>")
_WITH_TOOLS = "qwen3_instruct_2507.jinja"
"""A template of TRL's that offers tools to models that know ChatML."""
Completion = Sequence[Mapping[str, Any]]
"""What was said after a prompt, as messages."""
OVER = "The task has ended."
_NOT_SHOWN = "Done."
"""Where a task is one reply, the results of its calls are not shown."""
ACT: JsonObject = {
    "type": "function",
    "function": {
        "name": "act",
        "description": "Say the next reply of the task, and hear what comes of it.",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string", "description": "The whole reply."}},
            "required": ["text"],
        },
    },
}


class _Tool(dict[str, Any]):
    """A tool's schema, which TRL's chat template takes as it is, and what it does when it is called."""

    def __init__(self, schema: JsonObject, call: Callable[[str, JsonObject], str]) -> None:
        super().__init__(schema)
        self.__name__ = str(cast(JsonObject, schema["function"])["name"])
        self._call = call

    def __call__(self, /, **arguments: Any) -> str:  # noqa: ANN401 - whatever a model writes
        return self._call(self.__name__, arguments)


class Environment:
    """One rollout after the other. `environment_class` makes a class of it that has the tools."""

    _exported: Exported
    _tools: Sequence[JsonObject]

    def __init__(self) -> None:
        self._task: Task | None = None
        self._session: Session | None = None
        self._calls: list[JsonObject] = []
        for schema in self._tools:
            tool = _Tool(schema, self._called)
            self.__dict__[tool.__name__] = tool

    def reset(self, task: str, **row: object) -> None:
        """Begin a rollout of the task of a row."""
        del row
        self._task, self._calls = task_of(task), []
        self._session = self._exported.session(self._task) if self._tools == [ACT] else None

    def _called(self, name: str, arguments: JsonObject) -> str:
        if self._session is not None:
            if self._session.done:
                return OVER
            answer = self._session.send(str(arguments.get("text", "")))
            return "\n".join(str(one["content"]) for one in answer) or OVER
        if self._task is None:
            return OVER
        self._calls.append({"function": {"name": name, "arguments": arguments}})
        answer = self._exported.session(self._task).send("", self._calls)
        return str(answer[-1]["content"]) if answer else _NOT_SHOWN

    def _graded(self, completion: Completion) -> float:
        """The reward: of a conversation as far as it went, else of the replies, turn by turn."""
        if self._task is None:
            return 0.0
        if self._session is not None:
            return self._session.verdict().reward
        return self._exported.grade(self._task, _replies(completion)).reward


def _replies(completion: Completion) -> list[str]:
    """The agent's replies, words and calls of a turn together."""
    return [
        reply_text(str(one.get("content") or ""), one.get("tool_calls") or ())
        for one in completion
        if one.get("role") == "assistant"
    ]


def environment_class(folder: str | Path) -> type[Environment]:
    """The class that `GRPOTrainer` takes as `environment_factory`.

    Args:
        folder: of an environment that `genenv export-env` wrote.

    Raises:
        UsageError: a tool has a name that cannot be a tool's there.
    """
    exported = Exported(Path(folder))
    tools = exported.tools or ([ACT] if exported.max_turns > 1 else [])

    def placeholder(self: Environment, **arguments: object) -> str:
        """TRL looks for functions of the class; the tool itself is the instance's."""
        raise NotImplementedError

    names = [str(cast(JsonObject, tool["function"])["name"]) for tool in tools]
    if taken := sorted(name for name in names if name in _KEPT or name.startswith("_")):
        raise UsageError(f"its tool {taken[0]!r} has a name that TRL keeps for itself; rename the tool")
    body: dict[str, object] = {"_exported": exported, "_tools": tools, "__doc__": Environment.__doc__}
    return type("Environment", (Environment,), body | dict.fromkeys(names, placeholder))


def reward_function(folder: str | Path) -> Callable[..., list[float]]:
    """The reward that `GRPOTrainer` takes in `reward_funcs`: the environment's verdict, in [0, 1].

    Args:
        folder: of the environment.
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
        return [
            exported.grade(task_of(text), _replies(said)).reward
            for text, said in zip(task or (), completions, strict=True)
        ]

    return verdict


def with_tools(model: str) -> tuple[str, Any]:
    """A model for `GRPOTrainer`, and its `processing_class`: a tokenizer whose chat template offers tools.

    Where the model's own template offers none, as that of SmolLM2, the tokens of ChatML are enough to use the
    one that TRL has for Qwen3: tools are described in the system's message, calls are `<tool_call>` blocks.

    Args:
        model: `smollm2-135m`, a folder, or a name on the Hugging Face hub.

    Raises:
        UsageError: it cannot be loaded, or its template has no tools and its tokens are not those of ChatML.
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
    """The rows of a split as `train_dataset`: `id`, `prompt`, `task`.

    Args:
        folder: of the environment.
        split: `train` or `held_out`.
    """
    from datasets import Dataset

    return Dataset.from_list([dict(row) for row in Exported(Path(folder)).rows(split)])
