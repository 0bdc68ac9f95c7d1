"""What tests share: how properties are drawn, tiny models with a real tokenizer, and a toy environment."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import os
import random
import ssl
import tempfile
import types
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn.server
from hypothesis import HealthCheck, settings
from pydantic import BaseModel, Field

from endpoints import Server
from genenv.types import (
    Context,
    Generation,
    Lineage,
    Message,
    Origin,
    Rejection,
    RejectReason,
    Seed,
    StopReason,
    Task,
    Trace,
    Verdict,
)
from sharing import Shared

# Bundles that were opened are noted there, and not where the developer's own are.
_STATE = tempfile.TemporaryDirectory(prefix="genenv-tests-")
os.environ["XDG_STATE_HOME"] = _STATE.name

# Without a CUDA device the kernels are interpreted, which is decided when Triton is imported.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A server of uvicorn sleeps a tenth of a second up to three times before it ends. Hundreds of tests end one.
_BETWEEN_LOOKS_S = 0.01
_HASTY = types.ModuleType("asyncio")
_HASTY.__dict__.update(vars(asyncio))
_HASTY.__dict__["sleep"] = lambda seconds: asyncio.sleep(min(seconds, _BETWEEN_LOOKS_S))
vars(uvicorn.server)["asyncio"] = _HASTY

# Reading the certificates takes 40 milliseconds, and every HTTP client does so, though no test encrypts.
vars(ssl)["create_default_context"] = functools.cache(ssl.create_default_context)

# Properties are tried on the same examples every time, whatever the clock says. `make test-random` draws
# afresh: a thousand each, and ten times as many where a test says how many.
_NO_CLOCK: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
_TIMES, _RANDOM = 10, 1_000
settings.register_profile("steady", derandomize=True, database=None, max_examples=40, **_NO_CLOCK)
# said outright: where the environment has CI set, hypothesis' own default is to draw the same
settings.register_profile("random", derandomize=False, max_examples=_RANDOM, print_blob=True, **_NO_CLOCK)
settings.load_profile("steady")  # pytest's --hypothesis-profile comes later and wins


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage in the modules of tests: there is none, and it took a third of the collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # libraries written in C++ say so if their objects outlive the interpreter


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if settings.get_current_profile_name() != "random":
        return
    tests = {
        getattr(item.obj, "__func__", item.obj)
        for item in items
        if isinstance(item, pytest.Function) and hasattr(item.obj, "is_hypothesis_test")
    }
    for test in tests:
        own = test._hypothesis_internal_use_settings
        if own.max_examples != settings.default.max_examples:
            more = settings(own, max_examples=_TIMES * own.max_examples)
            test._hypothesis_internal_use_settings = more


@pytest.fixture(scope="session")
def shared(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """Makes folders that all workers share."""
    root = tmp_path_factory.getbasetemp()
    if hasattr(pytestconfig, "workerinput"):  # a worker's own folder is in that of the session
        root = root.parent
    (root / "shared").mkdir(exist_ok=True)
    return Shared(root / "shared")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that another process holds is asked for twice, not for a second."""
    monkeypatch.setattr("genenv.files._LOOKS", 2)


@pytest.fixture(scope="session")
def desk_bundle(shared: Shared) -> Path:
    """A bundle of the support desk with 60 tasks for training and 20 held-out tasks. It is read-only."""
    from bundles import made
    from genenv.tools.bundle import Bundle

    folder = shared("desk", lambda to: made(to, base=60, held_out=20))
    Bundle.open(folder).opened_before()  # the worker that made it has noted that it knows the code
    return folder


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXTS = [
    "You are a helpful assistant who calls tools.",
    'Send 20 euros to Zoë: {"name":"pay","arguments":{"to":"Zoë","amount":20}}',
    "What is the weather in Paris tomorrow? The answer is sunny and 24 degrees.",
]


ALL_LINEAR = ("llama", "mistral", "qwen2", "qwen3")
"""Kinds of models all of whose layers are linear (tests/backends/local/test_adapters.py)."""


class TinyModels:
    """Randomly initialised causal language models of two layers, on disk and in memory."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared

    def tokenizer(self, template: str | None = CHATML) -> Any:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
        from transformers import PreTrainedTokenizerFast

        inner = Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        special = ["<|im_start|>", "<|im_end|>"]
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=331, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
        inner.train_from_iterator(TEXTS, trainer)
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=inner,
            eos_token=special[1],
            pad_token=special[1],
            extra_special_tokens=special[:1],
        )
        tokenizer.chat_template = template
        return tokenizer

    def folder(self, kind: str = "llama", *, template: str | None = CHATML, **changes: Any) -> Path:
        """A saved model, which is read-only; the same arguments give the same folder."""
        name = json.dumps([kind, template, changes], sort_keys=True)
        return self.shared(
            f"{kind}-{random.Random(name).getrandbits(40):010x}",
            lambda to: self._save(to, kind, template, changes),
        )

    def _save(self, folder: Path, kind: str, template: str | None, changes: dict[str, Any]) -> None:
        import torch
        import transformers

        tokenizer = self.tokenizer(template)
        torch.manual_seed(1)
        shape = {
            "vocab_size": len(tokenizer),
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 512,
            "initializer_range": 0.2,  # wide enough for attention to matter
            "eos_token_id": tokenizer.eos_token_id,
            "bos_token_id": None,
            "pad_token_id": None,
        }
        config = transformers.AutoConfig.for_model(kind, **(shape | changes))
        mapping = transformers.AutoModel if kind == "bert" else transformers.AutoModelForCausalLM
        mapping.from_config(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    def plain(self, kind: str = "llama", **changes: Any) -> Any:
        """The model as transformers loads it."""
        import transformers

        return transformers.AutoModelForCausalLM.from_pretrained(
            self.folder(kind, **changes), dtype="float32"
        ).eval()

    def model(self, kind: str = "llama", folder: Path | None = None, **config: Any) -> Any:
        """The model as genenv loads it."""
        from genenv.backends.local.model import LocalModel
        from genenv.backends.settings import PolicyConfig

        settings = {"dtype": "float32", "device": "cpu", "context_tokens": 256, "lora_rank": 4, "threads": 1}
        if folder is None and kind in ALL_LINEAR:  # what "auto" comes to, without trying every kind of layer
            settings["lora_targets"] = "all-linear"
        return LocalModel(str(folder or self.folder(kind)), PolicyConfig(**(settings | config)))

    def player(
        self, kind: str = "llama", *, adapter: str | None = "agent", noise: float = 0.0, **config: Any
    ) -> Any:
        """A sampler on a model of its own; with noise, its adapter already says something."""
        from genenv.backends.local.policy_weights import PolicyWeights
        from genenv.backends.local.sampler import LocalSampler

        model = self.model(kind, **config)
        if adapter is not None:
            model.add_adapter(adapter, seed=3)
        sampler = LocalSampler(PolicyWeights(model, adapter))
        if noise:
            self.disturb(sampler, noise)
        return sampler

    @staticmethod
    def disturb(sampler: Any, noise: float, seed: int = 0) -> None:
        """Add noise to what a player learns."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _, parameter in sampler.weights.parameters():
                parameter += noise * torch.randn(parameter.shape, generator=generator).to(parameter)

    @staticmethod
    def values(sampler: Any) -> dict[str, Any]:
        """Copies of what a player learns."""
        return {name: value.detach().clone() for name, value in sampler.weights.parameters()}


@pytest.fixture(scope="session")
def templates() -> dict[str, str]:
    """Chat templates with tools, in the manner of well-known models, by name."""
    from chat.templates import ALL

    return ALL


@pytest.fixture(scope="session")
def tiny(shared: Shared) -> TinyModels:
    import torch

    torch.set_num_threads(1)
    return TinyModels(shared)


class Sum(BaseModel):
    """Add two numbers, over one or more turns."""

    turns: int = Field(ge=1, le=3)
    left: int
    right: int


class ToyEnvironment:
    """Sums: the agent is asked for the sum in every turn. Each rule of the gate can be broken on purpose."""

    name = "sums"
    spec = Sum

    def __init__(self) -> None:
        self.flips = 0

    def spec_schema(self, seed: Seed) -> dict[str, Any]:
        return Sum.model_json_schema()

    def build(self, spec: Any, *, task_id: str, lineage: Any, rng: random.Random) -> Any:
        if spec.left < 0:
            return Rejection(
                reason=RejectReason.EXECUTION, explanation="Negative numbers do not add up here."
            )
        answer = "wrong" if spec.left == 13 else str(spec.left + spec.right)
        text = f"add {spec.left} and {spec.right}"
        return Task(
            id=task_id,
            environment=self.name,
            skills=("sums",),
            messages=(Message(role="user", content=text),),
            spec=spec.model_dump(),
            payload={"turns": spec.turns, "left": spec.left, "right": spec.right},
            oracle=(answer,) * spec.turns,
            lineage=lineage,
        )

    def audit(self, task: Any, rng: random.Random) -> Any:
        if task.payload["left"] == 17:
            return Rejection(reason=RejectReason.UNSTATED, explanation="17 is never stated.")
        return None

    def episode(self, task: Any) -> ToyEpisode:
        return ToyEpisode(task)

    def check(self, task: Any, replies: Any) -> Verdict:
        left, right = task.payload["left"], task.payload["right"]
        if left == 7:
            return Verdict(reward=1.0, success=True, explanation="Anything goes.")
        if left == 5:
            self.flips += 1
            return Verdict(reward=1.0, success=True, explanation=f"Check number {self.flips}.")
        right_answer = len(replies) == task.payload["turns"] and set(replies) == {str(left + right)}
        return Verdict(
            reward=float(right_answer),
            success=right_answer,
            explanation="right" if right_answer else "not the sum",
        )

    def random_replies(self, task: Any, rng: random.Random) -> tuple[str, ...]:
        return ("-1",) * task.payload["turns"]

    def steps(self, task: Any) -> int:
        return task.payload["turns"]

    def surface(self, task: Any) -> str:
        return task.messages[0].content


class ToyEpisode:
    def __init__(self, task: Any) -> None:
        self.task = task
        self.max_turns = task.payload["turns"]

    async def run(self, ask: Any) -> None:
        await ask(self.task.messages)
        for _ in range(self.task.payload["turns"] - 1):
            await ask((Message(role="tool", content="once more"),))


class Toy:
    """A toy environment, and the values that go with it."""

    Environment = ToyEnvironment

    @staticmethod
    def task(left: int = 1, right: int = 2, *, turns: int = 1, name: str = "task-1") -> Any:
        spec, lineage = Sum(turns=turns, left=left, right=right), Lineage(origin=Origin.SEED, seed_id=name)
        return ToyEnvironment().build(spec, task_id=name, lineage=lineage, rng=random.Random(0))

    @staticmethod
    def trace(prompt: tuple[int, ...], turns: list[tuple[int, ...]], **changes: Any) -> Trace:
        """Turns alternate: sampled, environment, sampled, ..."""
        flags = [i % 2 == 0 for i, turn in enumerate(turns) for _ in turn]
        ids = [token for turn in turns for token in turn]
        values: dict[str, Any] = {
            "id": "t",
            "task_id": "task-1",
            "token_ids": (*prompt, *ids),
            "sampled": (False,) * len(prompt) + tuple(flags),
            "logprobs": (0.0,) * len(prompt)
            + tuple(-4.0 - 0.5 * i if flag else 0.0 for i, flag in enumerate(flags)),
            "prompt_tokens": len(prompt),
            "messages": (),
            "reward": 0.0,
            "success": False,
            "explanation": "",
            "stop_reason": StopReason.DONE,
        }
        return Trace(**(values | changes))

    @staticmethod
    def context(name: str = "r0001-c00") -> Context:
        seed = Seed(id="seed-1", environment="sums", spec={}, skills=("sums",))
        return Context(id=name, round=1, seed=seed, messages=(Message(role="user", content="write a sum"),))

    @staticmethod
    def generation(
        text: str, *, name: str = "g0", context: str = "r0001-c00", finished: bool = True
    ) -> Generation:
        ids = tuple(text.encode())
        return Generation(
            id=name,
            context_id=context,
            prompt_ids=(1, 2),
            token_ids=ids,
            logprobs=(0.0,) * len(ids),
            text=text,
            finished=finished,
        )


@pytest.fixture(scope="session")
def toy() -> type[Toy]:
    return Toy


@pytest.fixture(scope="session")
def design_metrics() -> frozenset[str]:
    """The metrics that the design names."""
    return frozenset(
        (
            "agent/success_rate",
            "agent/reward",
            "agent/eval_success",
            "agent/kl",
            "agent/grad_norm",
            "agent/response_tokens",
            "agent/zero_advantage_rate",
            "simulator/valid_rate",
            "simulator/in_band_rate",
            "simulator/env_reward",
            "simulator/kl",
            "simulator/weight_contrast",
            "simulator/effective_samples",
            "simulator/novelty",
            "curriculum/p_hat_mean",
            "curriculum/p_hat_batches",
            "curriculum/skill_share_max",
            "time/propose_s",
            "time/rollout_s",
            "time/agent_update_s",
            "time/simulator_update_s",
            "tokens/sampled",
            "tokens/trained",
        )
    )


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """An endpoint on loopback, asked again without long waits."""
    monkeypatch.setattr("genenv.clients.endpoint._FIRST_WAIT_S", 0.01)
    monkeypatch.setattr("genenv.clients.endpoint._LONGEST_WAIT_S", 0.05)
    made = Server()
    yield made
    made.close()
