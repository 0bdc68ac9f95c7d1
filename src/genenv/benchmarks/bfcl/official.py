# pyright: standard
"""Runs the official code of bfcl-eval, unchanged, in a process that `worker.py` starts and calls.

A request is a line of JSON, `[function, arguments]`, and so is its reply. Each has limits of processor time
and memory; exceeding them ends the process, which the caller notices.

The official decoder and executor call `eval` on a model's text. Limits are no sandbox, so both get another
function of that name: `constant`, which evaluates arithmetic on constants, and one that calls a method of the
conversation's own APIs with literal arguments. The rest is theirs, quirks included.

`bfcl_eval.constants.model_config` imports the client of every provider, and `bfcl_eval.utils` makes folders
and needs more packages: modules are loaded as copies, with stand-ins for those. Nothing else of genenv is
imported: the process stays small and starts fast. The memory categories' modules, which import numpy, are
loaded with the first request for them.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import inspect
import json
import operator
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

_MAX_SHOWN = 60
_OPERATIONS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor,
    ast.MatMult: operator.matmul,
}


class NeedsEvaluation(Exception):
    """A value that the official decoder evaluates as Python code, and this one does not."""

    def __init__(self, text: str) -> None:
        """Build the message.

        Args:
            text: the expression.
        """
        super().__init__(f"{text[:_MAX_SHOWN]} would have to be evaluated, which is not done")
        parts = list(ast.walk(_parsed(text)))
        bound = {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
        bound |= {part.arg for part in parts if isinstance(part, ast.arg)}
        self.likely_read = not any(
            isinstance(part, ast.Name) and part.id not in bound and not hasattr(builtins, part.id)
            for part in parts
        )
        """Whether evaluation would most likely succeed: the expression has no unknown names."""


def constant(text: str) -> Any:  # noqa: ANN401
    """The value of arithmetic on constants, such as `2 * 3600` or `[0] * 3`.

    Raises:
        NeedsEvaluation: there are names or calls in it, a formatted string, or other than numbers, texts and
            lists of them.
    """
    try:
        return _constant(_parsed(text))
    except _NotConstant:
        raise NeedsEvaluation(text) from None


class _NotConstant(Exception):
    """An expression that is not constant."""


def _constant(node: ast.expr) -> Any:  # noqa: ANN401
    match node:
        case ast.Constant():
            return node.value
        case ast.List():
            return [_constant(element) for element in node.elts]
        case ast.Tuple():
            return tuple(_constant(element) for element in node.elts)
        case ast.UnaryOp():
            return _OPERATIONS[type(node.op)](_constant(node.operand))
        case ast.BinOp():
            left, right = _constant(node.left), _constant(node.right)
            if isinstance(node.op, ast.Mod) and isinstance(left, (str, bytes)):
                raise _NotConstant  # formats a string
            return _OPERATIONS[type(node.op)](left, right)
        case _:
            raise _NotConstant


def _parsed(text: str) -> ast.expr:
    return ast.parse(text.strip(), "<string>", mode="eval").body


def call_with_literals(text: str) -> tuple[ast.expr, list[Any], dict[str, Any]]:
    """A call's function, and its arguments by position and by name.

    Raises:
        NameError: an argument is a name.
        ValueError: it is no call, or one with other arguments than literals.
        SyntaxError: it is no expression.
    """
    node = _parsed(text)
    if not isinstance(node, ast.Call):
        raise ValueError("it is not a call")
    words = {word.arg: _literal(word.value) for word in node.keywords if word.arg is not None}
    if len(words) != len(node.keywords):
        raise ValueError("arguments have to have different names")
    return node.func, [_literal(argument) for argument in node.args], words


def _literal(node: ast.expr) -> Any:  # noqa: ANN401
    if isinstance(node, ast.Name):
        raise NameError(f"name {node.id!r} is not defined")
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError("arguments have to be literals") from None


TEXT, NATIVE = "text", "calls"
"""Forms of an answer. For the checker they are two models: names with dots, or with underscores instead."""
_EVALUATION = "bfcl_eval.eval_checker.multi_turn_eval"
_APIS = f"{_EVALUATION}.func_source_code"
_MEMORY: Mapping[str, tuple[str, ...]] = {
    "MemoryAPI_kv": ("core_memory", "archival_memory"),
    "MemoryAPI_rec_sum": ("memory",),
}
"""Memory APIs, and the attributes that are their whole state, as in their own snapshots."""


# The official modules.


@cache
def decoding() -> ModuleType:
    """The module that decodes calls from text."""
    retries = ("retry", "retry_if_exception_message", "retry_if_exception_type", "wait_random_exponential")
    others = {"bfcl_eval.utils": _module(), "tenacity": _module(**dict.fromkeys(retries))}
    return _copied("bfcl_eval.model_handler.utils", others, constant)


@cache
def answer_checker() -> ModuleType:
    """The module that grades the last message for memory questions."""
    return _copied("bfcl_eval.eval_checker.agentic_eval.agentic_checker", {})


@cache
def memory_apis() -> Mapping[str, type[Any]]:
    """The memory APIs; their snapshots are passed in requests and replies instead of files.

    Raises:
        ImportError: a package is missing.
    """
    unused = dict.fromkeys(
        ("get_directory_structure_by_id", "is_first_memory_prereq_entry", "is_memory_prereq")
    )
    others = {"bfcl_eval.utils": _module(**unused), "overrides": _module(final=_as_it_is)}
    with instead(others):
        base = importlib.import_module(f"{_APIS}.memory_api_metaclass").MemoryAPI
        found = {
            name: getattr(importlib.import_module(executor().CLASS_FILE_PATH_MAPPING[name]), name)
            for name in _MEMORY
        }
    base._prepare_snapshot = _given_snapshot
    return found


def _as_it_is(function: Any) -> Any:  # noqa: ANN401
    return function


def _given_snapshot(_: Any, config: Mapping[str, Any]) -> Any:  # noqa: ANN401
    return config["snapshot"]


@cache
def checker() -> ModuleType:
    """The module that compares calls with possible answers."""
    models = {form: SimpleNamespace(underscore_to_dot=form == NATIVE) for form in (TEXT, NATIVE)}
    others = {"bfcl_eval.constants.model_config": _module(MODEL_CONFIG_MAPPING=models)}
    return _copied("bfcl_eval.eval_checker.ast_eval.ast_checker", others)


@cache
def executor() -> ModuleType:
    """The module that executes calls on the simulated APIs; their instances are its globals."""
    return _copied(f"{_EVALUATION}.multi_turn_utils", {}, _called)


@cache
def conversation_checker() -> ModuleType:
    """The module that compares states and results with those of the right calls."""
    return _copied(f"{_EVALUATION}.multi_turn_checker", {f"{_EVALUATION}.multi_turn_utils": executor()})


def _copied(
    name: str, others: Mapping[str, ModuleType], evaluate: Callable[[str], Any] | None = None
) -> ModuleType:
    """Load a copy of a module, with replacements for some of its imports and perhaps for `eval`."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ImportError(f"the package has no module {name}")
    module = importlib.util.module_from_spec(spec)
    with instead(others):
        spec.loader.exec_module(module)
    if evaluate is not None:
        vars(module)["eval"] = evaluate
    return module


@contextmanager
def instead(others: Mapping[str, ModuleType]) -> Any:  # noqa: ANN401
    """Replace modules for imports inside this block."""
    before = {name: sys.modules.get(name) for name in others}
    sys.modules.update(others)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def _module(**members: Any) -> ModuleType:  # noqa: ANN401
    module = ModuleType("stand_in")
    vars(module).update(members)
    return module


def _called(text: str) -> Any:  # noqa: ANN401
    """Call a public method of one of the executor's instances with literal arguments."""
    function, positional, words = call_with_literals(text)
    match function:
        case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner.endswith("_instance"):
            method = getattr(vars(executor()).get(owner), name, None)
            if inspect.ismethod(method) and not name.startswith("_"):
                return method(*positional, **words)
    names = [node.id for node in ast.walk(function) if isinstance(node, ast.Name)]
    raise NameError(f"name {names[0]!r} is not defined" if names else "it names no function")


# Functions that requests can name.


def system_prompt(functions: list[Any], prompt_format: str) -> str:
    """The official system prompt with these functions.

    Args:
        functions: as a model is shown them.
        prompt_format: one of the official configurations; empty: the default.
    """
    official = decoding()
    return official.formulate_system_prompt(prompt_format or official.DEFAULT_SYSTEM_PROMPT_FORMAT, functions)


def decoded(text: str, language: str, prompt_format: str = "") -> Any:  # noqa: ANN401
    """The calls of a reply in text; mostly `[{name: {parameter: value}}, ...]`. Raises what it raises.

    Args:
        text: the reply.
        language: of the calls.
        prompt_format: configuration of the prompt, which determines the format of calls; empty: the default.
    """
    tagged = False
    if prompt_format:
        language, tagged, *_ = decoding().parse_prompt_variation_params(prompt_format)
    return decoding().default_decode_ast_prompting(text, decoding().ReturnFormat(language), tagged)


def grade_calls(  # noqa: PLR0913 - the fields of a request
    answer: Mapping[str, Any],
    functions: list[Any],
    possible: list[Any],
    language: str,
    category: str,
    compared: bool,
    prompt_format: str = "",
) -> dict[str, Any]:
    """Parse the calls of an answer and grade them.

    Source: `_evaluate_single_ast_entry` and `_evaluate_single_relevance_entry` of `eval_runner.py`.

    Args:
        answer: `{"text": ...}`, or `{"calls": [{name: arguments}, ...]}`.
        functions: those that may be called.
        possible: the possible answers.
        language: of the calls in text.
        category: the item's.
        compared: whether the calls are compared with the possible answers.
        prompt_format: the configuration of the prompt; empty: the default.

    Returns:
        `called`: whether there are any; `valid` and `why`: whether they are right, and why not; `unread`: why
        possible calls were not parsed.
    """
    form = TEXT if TEXT in answer else NATIVE
    nothing = {"called": False, "valid": False, "unread": ""}
    try:
        calls = decoded(answer[TEXT], language, prompt_format) if form == TEXT else answer[NATIVE]
    except NeedsEvaluation as error:
        why = f"No calls can be read in the reply: {error}."
        return {**nothing, "called": error.likely_read, "unread": str(error), "why": why}
    except Exception as error:  # noqa: BLE001 - as officially
        return {**nothing, "why": f"No calls can be read in the reply ({_named(error)})."}
    formed = _is_well_formed(calls)
    if not compared or not formed:
        why = "The reply is not a list of calls, each with its arguments by name."
        return {**nothing, "called": formed and bool(calls), "why": why}
    try:
        kind = checker().Language(language)
        result = checker().ast_checker(functions, calls, possible, kind, category, form)
    except Exception as error:  # noqa: BLE001 - it raises on calls that it was not written for
        return {**nothing, "why": f"The official checker cannot compare these calls ({_named(error)})."}
    found = "; ".join(map(_finding, result["error"])) or str(result.get("error_type", ""))
    return {**nothing, "called": bool(calls), "valid": result["valid"], "why": found}


def _is_well_formed(calls: Any) -> bool:  # noqa: ANN401
    """The official `is_function_calling_format_output`."""
    return type(calls) is list and all(
        type(call) is dict and len(call) == 1 and type(next(iter(call.values()))) is dict for call in calls
    )


def _finding(error: Any) -> str:  # noqa: ANN401
    if not isinstance(error, dict):
        return str(error)
    return "; ".join(f"{where}: {' '.join(map(str, said['sub_error']))}" for where, said in error.items())


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def commands(text: str) -> list[str]:
    """The calls of a reply as executable text: `["cd(folder='docs')"]`; perhaps none."""
    try:
        return decoding().default_decode_execute_prompting(text)
    except Exception:  # noqa: BLE001 - as officially
        return []


def name_arguments(call: str, classes: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """A right call's name, and all its arguments by name, positional ones too."""
    function, positional, words = call_with_literals(call)
    name = function.id if isinstance(function, ast.Name) else ""
    apis = [getattr(importlib.import_module(executor().CLASS_FILE_PATH_MAPPING[api]), api) for api in classes]
    method = next(getattr(api, name) for api in apis if hasattr(api, name))
    bound = inspect.signature(method).bind(None, *positional, **words)
    return name, {key: value for key, value in bound.arguments.items() if key != "self"}


def execute(
    entry_id: str, config: dict[str, Any], classes: list[str], long_context: bool, steps: list[list[str]]
) -> list[str]:
    """Execute the calls of all steps in order; returns the results of the last step as text."""
    results: list[str] = []
    for calls in steps:
        results, _ = executor().execute_multi_turn_func_call(
            calls, config, classes, "model", entry_id, long_context=long_context
        )
    return results


def grade_turns(
    turns: list[list[list[str]]], truth: list[list[str]], entry: dict[str, Any], category: str
) -> dict[str, Any]:
    """Grade a conversation: the state after each turn, and the results, must be as after the right calls."""
    try:
        result = conversation_checker().multi_turn_checker(turns, truth, entry, category, "model")
    except Exception as error:  # noqa: BLE001 - folders within themselves cannot be compared, among others
        return {"valid": False, "why": f"The official checker cannot compare these calls ({_named(error)})"}
    if result["valid"]:
        return {"valid": True, "why": ""}
    details = result["details"]
    found = [*details.get("differences", ()), *details.get("missing_items", ())[:1]]
    where = f" for turn {len(result['execution_result']) - 1}" if "execution_result" in result else ""
    return {"valid": False, "why": result["error_message"].rstrip(".") + where + ": ".join(["", *found[:1]])}


def memory_problem() -> str:
    """Why the memory categories cannot run; empty: they can."""
    try:
        memory_apis()
    except ImportError as error:
        return str(error) or "ImportError"
    return ""


def with_memory(
    api: str, memory: dict[str, Any] | None, messages: list[Any], scenario: str, category: str
) -> list[dict[str, Any]]:
    """The first messages of a conversation, with the official instructions and the memory's contents.

    Args:
        api: the memory's class.
        memory: its contents; None: empty.
        messages: as in the data.
        scenario: the person in the conversation.
        category: determines the kind of memory.
    """
    instance = memory_apis()[api]()
    instance._load_scenario({"snapshot": memory})
    (opened,) = decoding().add_memory_instruction_system_prompt([messages], category, scenario, instance)
    return opened


def remember(api: str, memory: dict[str, Any] | None, calls: list[str], entry_id: str) -> dict[str, Any]:
    """Execute calls on a memory.

    Args:
        api: its class.
        memory: its contents; None: empty.
        calls: as text.
        entry_id: of the conversation.

    Returns:
        `results`: of each call, as text; `memory`: its contents afterwards.
    """
    memory_apis()
    config = {api: {"snapshot": memory}}
    results, instances = executor().execute_multi_turn_func_call(calls, config, [api], "model", entry_id)
    return {"results": results, "memory": {name: vars(instances[api])[name] for name in _MEMORY[api]}}


def grade_answer(said: str, possible: list[str]) -> bool:
    """Whether a message contains one of the possible answers."""
    return bool(answer_checker().agentic_checker(said, possible)["valid"])


# The process.

_ASKED: Mapping[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        *(system_prompt, grade_calls, commands, name_arguments, execute, grade_turns),
        *(memory_problem, with_memory, remember, grade_answer),
    )
}
_CHANGE_THE_PROCESS = {"execute", "grade_turns", "remember"}
"""Functions that leave state behind (instances, default lists): executed in a fork of the process."""


def main(cpu_s: float, memory_bytes: int) -> None:
    """Answer requests until there are no more.

    Args:
        cpu_s: seconds of processor time that each may take.
        memory_bytes: address space that the process may have; it has 30 MB without work.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a converter prints
    warnings.simplefilter("ignore")  # of escapes that Python may come to refuse
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    problem = _import_problem()
    print(json.dumps(problem), file=replies, flush=True)
    for line in sys.stdin if not problem else ():
        what, arguments = json.loads(line)
        if what == remember.__name__:
            memory_problem()  # imports once rather than in each copy
        copied = os.fork() if what in _CHANGE_THE_PROCESS else None
        if copied:
            if os.waitpid(copied, 0)[1]:
                raise SystemExit(1)
            continue
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # whose signal ends the process
        print(json.dumps(_ASKED[what](**arguments)), file=replies, flush=True)
        if copied is not None:
            os._exit(0)


def _import_problem() -> str:
    """Import the official modules before any fork; returns the problem, or an empty string."""
    try:
        _ = decoding(), checker(), conversation_checker(), answer_checker()
        for name, module in executor().CLASS_FILE_PATH_MAPPING.items():
            if not name.startswith(("Memory", "WebSearch")):
                importlib.import_module(module)
    except ImportError as error:
        return str(error) or "ImportError"
    return ""


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
