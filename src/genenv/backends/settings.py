"""Settings of the policies: which weights, which part of them learns, and on what hardware."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from genenv.errors import unknown_name
from genenv.plugins import parts
from genenv.sampling import SamplingFields
from genenv.settings import PLACE, Address, Settings, may_change

EMBEDDED = "smollm2-135m"
"""The model that comes as a package."""

TINY = "tiny"
"""A model with random weights and characters as tokens, made on the spot: for the environment `programs`."""

BUILT_IN = (EMBEDDED, TINY)
"""Models that are neither a folder nor a name on a hub."""

ADAPTERS_PREFIX = "genenv-adapters-"
"""How the name of a temporary folder begins in which a run writes adapters for its servers."""

AUTO_TARGETS = "auto"
ALL_LAYERS = (AUTO_TARGETS, "all-linear")
"""`policy.lora_targets` that name no layer: all that can have adapters get them."""


def _known_backend(name: str) -> str:
    """Refuse a backend that no installed package registers.

    Raises:
        ValueError: lists those that there are.
    """
    known = parts("backends")
    if name not in known:
        raise ValueError(str(unknown_name("backend", name, known)))
    return name


TemplateVariable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
"""Name of a variable of a chat template."""


class SamplingConfig(SamplingFields, Settings, frozen=True):  # pyright: ignore[reportGeneralTypeIssues] - of fields that others may change
    """How an evaluated model answers."""

    temperature: float = Field(default=0.0, ge=0, le=10)
    """0 is greedy, and so is a local model below 0.001."""
    top_p: float = Field(default=1.0, ge=0.001, le=1)
    """Draw among the most probable tokens alone that together have at least this probability."""
    max_new_tokens: int = Field(default=0, ge=0, le=1_000_000)
    """A reply has at most so many tokens; 0: as the benchmark says."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of what is drawn."""

    def reply_limit(self, asked: int | None) -> int:
        """How many tokens a reply may have: as set here, or as the benchmark asks, or 512."""
        return self.max_new_tokens or asked or 512


class EndpointConfig(Settings, frozen=True):
    """An OpenAI-compatible server."""

    concurrency: int = Field(default=16, ge=1, le=10_000)
    """Requests under way at the same time."""
    requests_per_minute: float = Field(default=0.0, ge=0, le=1_000_000)
    """At most so many requests are begun in a minute; 0: no limit."""
    retries: int = Field(default=5, ge=0, le=100)
    """How often a request that failed is repeated, after waits that grow."""
    timeout_s: float = Field(default=300.0, ge=0.01, le=86_400)
    """How long a reply may take, seconds."""
    tools: Literal["auto", "native", "text"] = "auto"
    """Whether tools are offered through the API or described in the prompt; auto asks the server once."""
    key_variable: str = Field(default="OPENAI_API_KEY", min_length=1)
    """Environment variable that holds the key; servers of your own need none."""
    price_in: float = Field(default=0.0, ge=0, le=1_000_000)
    """Price of a million prompt tokens, in any currency."""
    price_out: float = Field(default=0.0, ge=0, le=1_000_000)
    """Price of a million sampled tokens."""
    max_cost: float = Field(default=0.0, ge=0, le=1_000_000_000)
    """Stop asking when one run of the command has spent so much, in that currency; 0: no limit."""


class TinkerConfig(Settings, frozen=True):
    """A server that speaks the Tinker protocol."""

    address: Address | None = Field(
        default=None, min_length=1, json_schema_extra=may_change("a server may move, with its states")
    )
    """Its base URL; left out, what TINKER_BASE_URL says, else that of the official service."""
    model: str | None = Field(default=None, min_length=1)
    """What the server calls the base model; left out, as `policy.model`, which names the tokenizer here."""
    key_variable: str = Field(
        default="TINKER_API_KEY", min_length=1, json_schema_extra=may_change("where the key is")
    )
    """Environment variable that holds the key; a server on this machine needs none."""
    timeout_s: float = Field(default=600.0, ge=0.01, le=86_400, json_schema_extra=may_change("patience"))
    """How long an answer may take, seconds."""


class VllmConfig(Settings, frozen=True):
    """Servers of vLLM that sample, while this machine learns."""

    addresses: tuple[Address, ...] = Field(
        default=(), strict=False, json_schema_extra=may_change("servers may come and go")
    )
    """Base URLs, such as `["http://127.0.0.1:8000"]`."""
    addresses_folder: str | None = Field(
        default=None, min_length=1, json_schema_extra={**PLACE, **may_change("servers may come and go")}
    )
    """A folder where servers that come and go keep their base URLs, each in a file that ends in `.address`.
    It is read again while one does not answer."""
    folder: str | None = Field(
        default=None, min_length=1, json_schema_extra=may_change("where adapters lie for them")
    )
    """Where adapters are written for the servers to load, on a disk that all see; else a temporary one."""
    kept: int = Field(default=2, ge=1, le=1000)
    """So many versions of a player's weights are kept on the servers, the present one among them."""
    at_once: int = Field(
        default=64, ge=1, le=100_000, json_schema_extra=may_change("where a request waits changes no answer")
    )
    """Requests that a server has at a time; others wait here for whichever is free first."""
    tries: int = Field(default=4, ge=1, le=100, json_schema_extra=may_change("patience"))
    """How often a request is asked in all, where servers are lost or too slow."""
    timeout_s: float = Field(default=300.0, ge=0.01, le=86_400, json_schema_extra=may_change("patience"))
    """How long an answer may take, seconds; and how long is waited for any server that answers."""
    key_variable: str = Field(
        default="VLLM_API_KEY", min_length=1, json_schema_extra=may_change("where the key is")
    )
    """Environment variable that holds the servers' API key, or `USER:PASSWORD`; servers on this machine need
    none."""


class PolicyConfig(Settings, frozen=True):
    """The models behind both players."""

    backend: Annotated[str, AfterValidator(_known_backend)] = "local"
    """What samples and trains: models on this machine, scripts that try an environment out without a model, a
    server that speaks the Tinker protocol; or this machine trains and servers of vLLM sample."""
    model: str = Field(default=EMBEDDED, min_length=1, json_schema_extra=PLACE)
    """Base model: a known short name, a folder, or a name on the Hugging Face hub."""
    simulator_model: str | None = Field(default=None, min_length=1, json_schema_extra=PLACE)
    """Base model of the simulator; left out, both players share one base with an adapter each."""
    tuning: Literal["lora", "full"] = "lora"
    """What learns: low-rank adapters on a frozen base, or all weights."""
    lora_rank: int = Field(default=16, ge=1, le=1024)
    """Rank of the adapters."""
    lora_alpha: float = Field(default=32.0, ge=1e-6, le=1_000_000)
    """Scale of the adapters; their output is multiplied by lora_alpha / lora_rank."""
    lora_targets: str = Field(default=AUTO_TARGETS, min_length=1)
    """Layers with adapters: `auto`, all linear layers and experts that PEFT takes; `all-linear`, as in PEFT;
    or names separated by commas such as `q_proj,v_proj`."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the base weights; auto takes bfloat16 where the hardware is fast with it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the models run; auto takes a GPU when there is one."""
    attention: Literal["auto", "packed", "own"] = "auto"
    """Whether a prompt is read once for all its completions (packed), or attention is the model's own, which
    is slower; auto packs where the model's is the usual one."""
    decoder: Literal["auto", "fused", "transformers"] = "auto"
    """Who runs the layers; auto is genenv's fused code for frozen models that it knows, else transformers."""
    compiled: Literal["auto"] | bool = "auto"
    """Whether a C++ compiler makes the small operations on a CPU faster, and, on a GPU, whether layers are
    compiled and steps of sampling captured as CUDA graphs; auto: where that works."""
    packed_weights: Literal["auto"] | bool = "auto"
    """Whether frozen weights get a second copy, laid out for the processor; auto measures if it pays."""
    threads: int = Field(default=0, ge=0, le=1024)
    """CPU threads; 0 measures and chooses."""
    tokens_per_microbatch: int = Field(
        default=0,
        ge=0,
        le=100_000_000,
        json_schema_extra=may_change("memory at a time; sums in another order differ in their last digits"),
    )
    """Tokens of one forward and backward pass: lower it when memory runs out; 0: 4,096, on a GPU what half of
    its memory holds."""
    activation_gib: float = Field(
        default=0.0,
        ge=0,
        le=100_000,
        json_schema_extra=may_change("memory at a time; what is computed twice is the same"),
    )
    """What a backward pass may keep in memory before layers are computed twice; 0 is a quarter of it."""
    max_batch_rows: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        json_schema_extra=may_change("memory at a time; sums in another order differ in their last digits"),
    )
    """Sequences sampled at once; 0: 64, on a GPU 256."""
    cache_gib: float = Field(
        default=1.0,
        ge=0,
        le=100_000,
        json_schema_extra=may_change("memory at a time; what is read again differs in its last digits"),
    )
    """What may be remembered of conversations between their turns; what does not fit is read again."""
    context_tokens: int = Field(default=2048, ge=16, le=100_000_000)
    """Longest episode; never more than the model allows."""
    chat_template_kwargs: dict[TemplateVariable, bool | int | float | str] = Field(default_factory=dict)
    """Variables of the models' chat templates, such as `{enable_thinking = false}` for Qwen3."""
    tinker: TinkerConfig = Field(default_factory=TinkerConfig)
    """The server of the backend `tinker`."""
    vllm: VllmConfig = Field(default_factory=VllmConfig)
    """The servers of the backend `vllm`."""
    max_thinking_tokens: int | None = Field(default=None, ge=0, le=1_000_000)
    """A thought, between `<think>` and `</think>`, is closed after so many tokens of a reply; 0: at once."""


AUTOMATIC: Mapping[str, str | int] = {
    "device": "auto",
    "dtype": "auto",
    "threads": 0,
    "compiled": "auto",
    "packed_weights": "auto",
    "attention": "auto",
    "decoder": "auto",
}
"""Settings of `PolicyConfig` that a machine or a model decides where they have this value. All of them change
the last digits of what is computed, so a run keeps what was decided."""

OF_THE_MACHINE = ("device", "dtype", "threads", "compiled")
"""Those of them that are decided before a model is loaded."""

WEIGHTS = frozenset(
    f"policy.{name}"
    for name in ("model", "simulator_model", "tuning", "lora_rank", "lora_alpha", "lora_targets")
)
"""Settings of a run, by dotted key, that decide which model the weights in a checkpoint belong to."""
