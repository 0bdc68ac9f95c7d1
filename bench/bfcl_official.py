"""The official code of bfcl-eval, for `parity_bfcl.py`: imported with stand-ins for what is not needed here.

No client of a provider is ever called: the official handler of OpenAI-compatible models is given its replies
by a script.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from genenv.benchmarks.bfcl.official import NATIVE, TEXT, instead
from genenv.benchmarks.bfcl.scoring import NAMES


def official() -> SimpleNamespace:
    """The official functions and modules."""
    os.environ["BFCL_PROJECT_ROOT"] = tempfile.mkdtemp()  # it makes folders on import
    models = {
        "text": SimpleNamespace(underscore_to_dot=False),
        "native": SimpleNamespace(underscore_to_dot=True),
        NAMES[TEXT]: SimpleNamespace(underscore_to_dot=False),
        NAMES[NATIVE]: SimpleNamespace(underscore_to_dot=True),
    }
    _stand_in("bfcl_eval.constants.model_config", MODEL_CONFIG_MAPPING=models)
    retries = ("retry", "retry_if_exception_message", "retry_if_exception_type", "wait_random_exponential")
    _stand_in("tenacity", **{name: lambda *_, **__: lambda function: function for name in retries})
    _stand_in("overrides", final=lambda function: function)
    _stand_in("openai", OpenAI=object, RateLimitError=OSError)
    _stand_in("openai.types")
    _stand_in("openai.types.responses", Response=object)
    _stand_in("dotenv", load_dotenv=None)
    enums = _module("constants.enums")
    handlers = _module("model_handler.api_inference.openai_completion")
    return SimpleNamespace(
        utils=_module("utils"),
        handler=_module("model_handler.utils"),
        Handler=handlers.OpenAICompletionsHandler,
        Language=enums.Language,
        ModelStyle=enums.ModelStyle,
        ReturnFormat=enums.ReturnFormat,
        GORILLA_TO_OPENAPI=_module("constants.type_mappings").GORILLA_TO_OPENAPI,
        ast_checker=_module("eval_checker.ast_eval.ast_checker").ast_checker,
        multi_turn_checker=_module("eval_checker.multi_turn_eval.multi_turn_checker"),
        multi_turn_utils=_module("eval_checker.multi_turn_eval.multi_turn_utils"),
        runner=_module("eval_checker.eval_runner"),
        agentic_checker=_module("eval_checker.agentic_eval.agentic_checker").agentic_checker,
        long_context=_module("eval_checker.multi_turn_eval.func_source_code.long_context"),
        posting_api=_module("eval_checker.multi_turn_eval.func_source_code.posting_api"),
    )


def _module(name: str) -> Any:  # noqa: ANN401
    return importlib.import_module(f"bfcl_eval.{name}")


def _stand_in(name: str, **members: Any) -> None:  # noqa: ANN401
    module = ModuleType(name)
    vars(module).update(members)
    sys.modules.setdefault(name, module)


def wrong_officially(folder: Path, table: dict[str, Any] | None = None) -> dict[str, set[str]]:
    """What `bfcl evaluate --partial-eval` finds wrong in a folder of results: items by category.

    Every file is evaluated by the official `evaluate_task`, with the handler that its model's name has in
    bfcl-eval's list. The table gets what the official leaderboard is made of.
    """
    plain = _module("model_handler.api_inference.openai_response").OpenAIResponsesHandler
    table = {} if table is None else table
    wrong: dict[str, set[str]] = {}
    for path in sorted(folder.glob("result/**/BFCL_v4_*_result.json")):
        group = path.relative_to(folder / "result").parts[1:-1]
        model = path.relative_to(folder / "result").parts[0]
        handler = plain(model.removesuffix("-FC"), 0.0, model, model.endswith("-FC"))
        category = OFFICIAL.utils.extract_test_category(path)
        results = OFFICIAL.utils.load_file(path, sort_by_id=True)
        as_in_a_new_process()
        OFFICIAL.runner.evaluate_task(
            *(category, folder / "result", folder / "score", results, model, handler, table),
            allow_missing=True,
        )
        score = Path(folder, "score", model, *group, f"BFCL_v4_{category}_score.json")
        lines = [json.loads(line) for line in score.read_text("utf-8").splitlines()]
        wrong.setdefault(category, set()).update(str(line["id"]) for line in lines[1:])
    return wrong


def official_row(folder: Path, prices: tuple[float, float], v3: Path | None) -> dict[str, str]:
    """The row of `data_overall.csv` that the official leaderboard has for an export of one model.

    Args:
        folder: of the export.
        prices: dollars for a million tokens of the prompt, and sampled.
        v3: the folder `bfcl_eval` of a package of version 3, whose own overall is added; None: without.
    """
    table: dict[str, Any] = {}
    wrong_officially(folder, table)
    (model,) = table
    helper, out = _module("eval_checker.eval_runner_helper"), folder / "score"
    helper.MODEL_CONFIG_MAPPING[model] = _priced(prices)
    helper.update_leaderboard_table_with_local_score_file(table, out)
    helper.generate_leaderboard_csv(table, out)
    row = _row(out / "data_overall.csv")
    if v3 is not None:
        row["v3"] = _overall_of_v3(v3, model, table[model], out)
    return row


def _priced(prices: tuple[float, float]) -> SimpleNamespace:
    about = dict.fromkeys(("display_name", "url", "org", "license"), "scripted")
    return SimpleNamespace(**about, input_price=prices[0], output_price=prices[1], underscore_to_dot=True)


def _row(path: Path) -> dict[str, str]:
    head, row = (line.split(",") for line in path.read_text("utf-8").splitlines())
    return dict(zip(head, row, strict=True))


def _overall_of_v3(package: Path, model: str, accuracies: dict[str, Any], out: Path) -> str:
    """What `generate_leaderboard_csv` of version 3 makes of the same accuracies, under the names of then."""
    constants = {
        f"bfcl_eval.constants.{name}": _from_file(package / "constants" / f"{name}.py")
        for name in ("category_mapping", "column_headers")
    }
    with instead(constants):
        helper = _from_file(package / "eval_checker" / "eval_runner_helper.py")
    helper.MODEL_CONFIG_MAPPING = {model: _priced((0.0, 0.0))}
    names = {"simple_python": "simple", "simple_java": "java", "simple_javascript": "javascript"}
    renamed = {names.get(name, name): dict(value) for name, value in accuracies.items()}
    helper.generate_leaderboard_csv({model: renamed}, out)
    return _row(out / "data_overall.csv")["Overall Acc"]


def _from_file(path: Path) -> Any:  # noqa: ANN401
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no file of Python")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


OFFICIAL = official()
_EXTENSIONS = {
    name: copy.deepcopy(value)
    for name, value in vars(OFFICIAL.long_context).items()
    if name.endswith("EXTENSION")
}


def as_in_a_new_process() -> None:
    """Forget the instances of other answers, and what they left in default lists and module constants."""
    module = vars(OFFICIAL.multi_turn_utils)
    for name in [name for name in module if name.endswith("_instance")]:
        del module[name]
    OFFICIAL.posting_api.TwitterAPI.post_tweet.__defaults__ = ([], [])
    for name, value in _EXTENSIONS.items():
        now = getattr(OFFICIAL.long_context, name)
        if isinstance(now, dict):
            now.clear()
            now.update(copy.deepcopy(value))


class Message(dict[str, Any]):
    """A reply as the client of an endpoint returns it, and as a message."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return self.get(name)


class ScriptedHandler(OFFICIAL.Handler):
    """The official handler of OpenAI-compatible models; replies: text, or lists of (name, JSON arguments)."""

    def __init__(self, replies: Sequence[Any], *, native: bool) -> None:
        OFFICIAL.Handler.__bases__[0].__init__(self, "compared", 0.0, "compared", is_fc_model=native)
        self.model_style = OFFICIAL.ModelStyle.OPENAI_COMPLETIONS
        self.replies = list(replies)
        self.heard: list[Any] = []
        self.offered: list[Any] = []

    def _query_prompting(self, inference_data: dict[str, Any]) -> tuple[Any, float]:
        self.heard.append(copy.deepcopy(inference_data["message"]))
        self.offered.append(copy.deepcopy(inference_data.get("tools", [])))
        return _response(self.replies.pop(0)), 0.0

    _query_FC = _query_prompting

    def hold(self, entry: dict[str, Any]) -> list[Any]:
        """A conversation about an entry: the replies of each turn, by step."""
        entry = copy.deepcopy(entry)
        replies, _ = self.inference(entry, include_input_log=False, exclude_state_log=True)
        return replies


def _response(said: Any) -> Any:  # noqa: ANN401
    message = Message(role="assistant", content=said if isinstance(said, str) else "")
    if not isinstance(said, str):
        message["tool_calls"] = [
            SimpleNamespace(id=f"call_{index}", function=SimpleNamespace(name=name, arguments=arguments))
            for index, (name, arguments) in enumerate(said)
        ]
    usage = SimpleNamespace(prompt_tokens=0, completion_tokens=0)
    return SimpleNamespace(choices=[SimpleNamespace(message=message)], usage=usage)
