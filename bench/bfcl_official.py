"""The official code of bfcl-eval, for `parity_bfcl.py`: imported with stand-ins for what is not needed here.

No client of a provider is ever called: the official handler of OpenAI-compatible models is given its replies
by a script.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from genenv.evaluation.bfcl.official import NATIVE, TEXT
from genenv.evaluation.bfcl.official_results import NAMES


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
        long_context=_module("eval_checker.multi_turn_eval.func_source_code.long_context"),
        posting_api=_module("eval_checker.multi_turn_eval.func_source_code.posting_api"),
    )


def _module(name: str) -> Any:  # noqa: ANN401
    return importlib.import_module(f"bfcl_eval.{name}")


def _stand_in(name: str, **members: Any) -> None:  # noqa: ANN401
    module = ModuleType(name)
    vars(module).update(members)
    sys.modules.setdefault(name, module)


def wrong_officially(folder: Path) -> dict[str, set[str]]:
    """What `bfcl evaluate --partial-eval` finds wrong in a folder of results: items by category.

    Every file is evaluated by the official `evaluate_task`, with the handler that its model's name has in
    bfcl-eval's list.
    """
    runner = _module("eval_checker.eval_runner")
    plain = _module("model_handler.api_inference.openai_response").OpenAIResponsesHandler
    wrong: dict[str, set[str]] = {}
    for path in sorted(folder.glob("result/*/*/BFCL_v4_*_result.json")):
        model = path.parts[-3]
        handler = plain(model.removesuffix("-FC"), 0.0, model, model.endswith("-FC"))
        category = OFFICIAL.utils.extract_test_category(path)
        results = OFFICIAL.utils.load_file(path, sort_by_id=True)
        as_in_a_new_process()
        runner.evaluate_task(
            *(category, folder / "result", folder / "score", results, model, handler, {}), allow_missing=True
        )
        score = folder / "score" / model / path.parts[-2] / f"BFCL_v4_{category}_score.json"
        lines = [json.loads(line) for line in score.read_text("utf-8").splitlines()]
        wrong.setdefault(category, set()).update(str(line["id"]) for line in lines[1:])
    return wrong


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
