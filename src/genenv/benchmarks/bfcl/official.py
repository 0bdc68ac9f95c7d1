# pyright: standard
"""Runs the official code of bfcl-eval, unchanged, in a process that `worker.py` starts and calls.

A request is a line of JSON, `[function, arguments]`; its reply is another line. Each request has limits of
processor time and memory. Exceeding them ends the process, which the caller notices.

The official decoder and executor call `eval` on a model's text, and limits are no sandbox. So both get a
replacement of `eval`: `constant`, which evaluates arithmetic on constants, and `_called`, which calls a
method of the conversation's APIs with literal arguments. All other code is official, including its quirks.

`bfcl_eval.constants.model_config` imports the client of every provider, and `bfcl_eval.utils` creates folders
and needs more packages. So modules are loaded as copies with stand-ins for these two. No other module of
genenv is imported, so that the process stays small and starts fast. The memory categories' modules, which
import numpy, are loaded with the first request for them.
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
    """Raised for a value that the official decoder would evaluate as Python code; it is not evaluated."""

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
    """Return the value of arithmetic on constants, such as `2 * 3600` or `[0] * 3`.

    Raises:
        NeedsEvaluation: the expression has names, calls or string formatting, or constants other than
            numbers, texts and lists of them.
    """
    try:
        return _constant(_parsed(text))
    except _NotConstant:
        raise NeedsEvaluation(text) from None


class _NotConstant(Exception):
    """Raised if an expression is not constant."""


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
    """Return a call's function, its positional arguments and its named arguments.

    Raises:
        NameError: an argument is a name.
        ValueError: the text is not a call, or an argument is not a literal.
        SyntaxError: the text is not an expression.
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
"""Forms of an answer. The checker treats them as two models: names with dots, or with underscores."""
_EVALUATION = "bfcl_eval.eval_checker.multi_turn_eval"
_APIS = f"{_EVALUATION}.func_source_code"
_MEMORY: Mapping[str, tuple[str, ...]] = {
    "MemoryAPI_kv": ("core_memory", "archival_memory"),
    "MemoryAPI_rec_sum": ("memory",),
}
"""The attributes of each memory API that are its complete state, as in the official snapshots."""


# The official modules.


@cache
def decoding() -> ModuleType:
    """Load the module that decodes calls from text."""
    retries = ("retry", "retry_if_exception_message", "retry_if_exception_type", "wait_random_exponential")
    others = {"bfcl_eval.utils": _module(), "tenacity": _module(**dict.fromkeys(retries))}
    return _copied("bfcl_eval.model_handler.utils", others, constant)


@cache
def answer_checker() -> ModuleType:
    """Load the module that grades the last message for memory questions."""
    return _copied("bfcl_eval.eval_checker.agentic_eval.agentic_checker", {})


@cache
def memory_apis() -> Mapping[str, type[Any]]:
    """Load the memory APIs; requests and replies carry their snapshots instead of files.

    Raises:
        ImportError: a required package is missing.
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
    """Load the module that compares calls with possible answers."""
    models = {form: SimpleNamespace(underscore_to_dot=form == NATIVE) for form in (TEXT, NATIVE)}
    others = {"bfcl_eval.constants.model_config": _module(MODEL_CONFIG_MAPPING=models)}
    return _copied("bfcl_eval.eval_checker.ast_eval.ast_checker", others)


@cache
def executor() -> ModuleType:
    """Load the module that executes calls on the simulated APIs; their instances are its globals."""
    return _copied(f"{_EVALUATION}.multi_turn_utils", {}, _called)


@cache
def conversation_checker() -> ModuleType:
    """Load the module that compares states and results with those of the right calls."""
    return _copied(f"{_EVALUATION}.multi_turn_checker", {f"{_EVALUATION}.multi_turn_utils": executor()})


def _copied(
    name: str, others: Mapping[str, ModuleType], evaluate: Callable[[str], Any] | None = None
) -> ModuleType:
    """Load a copy of a module, with replacements for some of its imports and optionally for `eval`."""
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
    """Replace modules for imports inside the `with` block."""
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
    """Return the official system prompt with these functions.

    Args:
        functions: the functions as shown to the model.
        prompt_format: an official prompt format; empty: the default.
    """
    official = decoding()
    return official.formulate_system_prompt(prompt_format or official.DEFAULT_SYSTEM_PROMPT_FORMAT, functions)


def decoded(text: str, language: str, prompt_format: str = "") -> Any:  # noqa: ANN401
    """Return the calls of a text reply, mostly `[{name: {parameter: value}}, ...]`; decoder errors propagate.

    Args:
        text: the reply.
        language: the language of the calls.
        prompt_format: the official prompt format, which determines the format of calls; empty: the default.
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
        functions: the functions that may be called.
        possible: the possible answers.
        language: the language of calls in text.
        category: the item's category.
        compared: whether to compare the calls with the possible answers.
        prompt_format: the official prompt format; empty: the default.

    Returns:
        `called`: whether there are calls; `valid` and `why`: whether they are right, and why not; `unread`:
        why likely calls could not be parsed.
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
    """Return whether calls have the right structure: the official `is_function_calling_format_output`."""
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
    """Return the calls of a reply as executable text, such as `["cd(folder='docs')"]`; may be empty."""
    try:
        return decoding().default_decode_execute_prompting(text)
    except Exception:  # noqa: BLE001 - as officially
        return []


def name_arguments(call: str, classes: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return a right call's name, and all its arguments by name, including positional ones."""
    function, positional, words = call_with_literals(call)
    name = function.id if isinstance(function, ast.Name) else ""
    apis = [getattr(importlib.import_module(executor().CLASS_FILE_PATH_MAPPING[api]), api) for api in classes]
    method = next(getattr(api, name) for api in apis if hasattr(api, name))
    bound = inspect.signature(method).bind(None, *positional, **words)
    return name, {key: value for key, value in bound.arguments.items() if key != "self"}


def execute(
    entry_id: str, config: dict[str, Any], classes: list[str], long_context: bool, steps: list[list[str]]
) -> list[str]:
    """Execute the calls of all steps in order, and return the results of the last step as text."""
    results: list[str] = []
    for calls in steps:
        results, _ = executor().execute_multi_turn_func_call(
            calls, config, classes, "model", entry_id, long_context=long_context
        )
    return results


def grade_turns(
    turns: list[list[list[str]]], truth: list[list[str]], entry: dict[str, Any], category: str
) -> dict[str, Any]:
    """Grade a conversation: states after each turn, and results, must match those of the right calls."""
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
    """Return why the memory categories cannot run; "" if they can."""
    try:
        memory_apis()
    except ImportError as error:
        return str(error) or "ImportError"
    return ""


def with_memory(
    api: str, memory: dict[str, Any] | None, messages: list[Any], scenario: str, category: str
) -> list[dict[str, Any]]:
    """Return a conversation's first messages with the official instructions and the memory's contents added.

    Args:
        api: the name of the memory's class.
        memory: the memory's contents; None: empty.
        messages: the first messages in the data.
        scenario: the person in the conversation.
        category: the category, which determines the kind of memory.
    """
    instance = memory_apis()[api]()
    instance._load_scenario({"snapshot": memory})
    (opened,) = decoding().add_memory_instruction_system_prompt([messages], category, scenario, instance)
    return opened


def remember(api: str, memory: dict[str, Any] | None, calls: list[str], entry_id: str) -> dict[str, Any]:
    """Execute calls on a memory.

    Args:
        api: the name of the memory's class.
        memory: the memory's contents; None: empty.
        calls: the calls as text.
        entry_id: the id of the conversation.

    Returns:
        `results`: the result of each call as text; `memory`: the contents afterwards.
    """
    memory_apis()
    config = {api: {"snapshot": memory}}
    results, instances = executor().execute_multi_turn_func_call(calls, config, [api], "model", entry_id)
    return {"results": results, "memory": {name: vars(instances[api])[name] for name in _MEMORY[api]}}


def grade_answer(said: str, possible: list[str]) -> bool:
    """Return whether a message contains one of the possible answers."""
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
"""Functions that leave state behind (instances, default lists), so each call runs in a fork."""


def main(cpu_s: float, memory_bytes: int) -> None:
    """Answer requests until the input ends.

    Args:
        cpu_s: the limit of processor time per request, in seconds.
        memory_bytes: the limit of the process's address space; an idle process uses 30 MB.
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
        signal.setitimer(signal.ITIMER_PROF, 0)  # so that reading the next requests does not count
        if copied is not None:
            os._exit(0)


def _import_problem() -> str:
    """Import the official modules before any fork; return the error, or ""."""
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
