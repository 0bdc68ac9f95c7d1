"""Settings of the policies: which weights, which part of them learns, and on what hardware."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from genenv.errors import UsageError, unknown_name
from genenv.plugins import parts
from genenv.sampling import SamplingFields
from genenv.settings import PLACE, Address, Settings, may_change

EMBEDDED = "smollm2-135m"
"""The model that is installed as a package."""

TINY = "tiny"
"""A model with random weights and character tokens, created on the spot for the environment `programs`."""

BUILT_IN = (EMBEDDED, TINY)
"""Models that are neither a folder nor a name on a hub."""

ADAPTERS_PREFIX = "genenv-adapters-"
"""Prefix of the temporary folder in which a run writes adapters for its servers."""

BEHIND_ENDPOINT = "endpoint"
"""Stands for the backend of an agent whose model is behind an endpoint (`agents.NAME.address`)."""

AUTO_TARGETS = "auto"
ALL_LINEAR = "all-linear"
ALL_LAYERS = (AUTO_TARGETS, ALL_LINEAR)
"""Values of `policy.lora_targets` that name no layers: every layer that can have an adapter gets one."""


def _known_backend(name: str) -> str:
    """Refuse a backend that no installed package registers.

    Raises:
        ValueError: the backend is unknown; the message lists the known ones.
    """
    known = parts("backends")
    if name not in known:
        raise ValueError(str(unknown_name("backend", name, known)))
    return name


BackendName = Annotated[str, AfterValidator(_known_backend)]
"""The name of a backend, of genenv or of another installed package."""

TemplateVariable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
"""Name of a variable of a chat template."""


class SamplingConfig(SamplingFields, Settings, frozen=True):  # pyright: ignore[reportGeneralTypeIssues] - of fields that others may change
    """How an evaluated model answers."""

    temperature: float = Field(default=0.0, ge=0, le=10)
    """0 is greedy, and so is a local model below 0.001."""
    top_p: float = Field(default=1.0, ge=0.001, le=1)
    """Draw only among the most probable tokens that together have at least this probability."""
    max_new_tokens: int = Field(default=0, ge=0, le=1_000_000)
    """The maximum number of tokens of a reply; 0: as the benchmark says."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the sampling."""

    def reply_limit(self, asked: int | None) -> int:
        """Return the maximum tokens of a reply: this setting, else the benchmark's limit, else 512."""
        return self.max_new_tokens or asked or 512


_SENDING = may_change("how requests are sent")


class EndpointConfig(Settings, frozen=True):
    """An OpenAI-compatible server."""

    concurrency: int = Field(default=16, ge=1, le=10_000, json_schema_extra=_SENDING)
    """Maximum number of requests in flight."""
    requests_per_minute: float = Field(default=0.0, ge=0, le=1_000_000, json_schema_extra=_SENDING)
    """Maximum number of requests started per minute; 0: no limit."""
    retries: int = Field(default=5, ge=0, le=100, json_schema_extra=_SENDING)
    """How often a failed request is repeated, after increasing waits."""
    timeout_s: float = Field(default=300.0, ge=0.01, le=86_400, json_schema_extra=_SENDING)
    """Timeout of a reply, seconds."""
    tools: Literal["auto", "native", "text"] = "auto"
    """Whether tools are offered through the API or described in the prompt; auto tests the server once."""
    key_variable: str = Field(default="OPENAI_API_KEY", min_length=1, json_schema_extra=_SENDING)
    """Environment variable that holds the key; self-hosted servers need none."""
    price_in: float = Field(default=0.0, ge=0, le=1_000_000, json_schema_extra=_SENDING)
    """Price of a million prompt tokens, in any currency."""
    price_out: float = Field(default=0.0, ge=0, le=1_000_000, json_schema_extra=_SENDING)
    """Price of a million sampled tokens."""
    max_cost: float = Field(default=0.0, ge=0, le=1_000_000_000, json_schema_extra=_SENDING)
    """Stop sending requests when one run of the command has spent this much, in that currency; 0: no
    limit."""


class TinkerConfig(Settings, frozen=True):
    """A server that speaks the Tinker protocol."""

    address: Address | None = Field(
        default=None, min_length=1, json_schema_extra=may_change("a server may move, with its states")
    )
    """Base URL of the server; default: the variable TINKER_BASE_URL, else the official service."""
    model: str | None = Field(default=None, min_length=1)
    """The server's name for the base model; default: `policy.model`, which always names the tokenizer."""
    key_variable: str = Field(
        default="TINKER_API_KEY", min_length=1, json_schema_extra=may_change("where the key is")
    )
    """Environment variable that holds the key; a server on this machine needs none."""
    timeout_s: float = Field(default=600.0, ge=0.01, le=86_400, json_schema_extra=may_change("patience"))
    """Timeout of an answer, seconds."""


class VllmConfig(Settings, frozen=True):
    """vLLM servers that sample while this machine trains."""

    addresses: tuple[Address, ...] = Field(
        default=(), strict=False, json_schema_extra=may_change("servers may come and go")
    )
    """Base URLs, such as `["http://127.0.0.1:8000"]`. Without addresses and a folder of addresses the run
    starts vLLM itself, on the trainer's device, and ends it."""
    addresses_folder: str | None = Field(
        default=None, min_length=1, json_schema_extra={**PLACE, **may_change("servers may come and go")}
    )
    """A folder to which servers write their base URLs, each in a file whose name ends in `.address`. The
    folder is read again while a server does not answer."""
    folder: str | None = Field(
        default=None, min_length=1, json_schema_extra={**PLACE, **may_change("where adapters lie for them")}
    )
    """Folder to which adapters are written for the servers to load, on a disk that all can read; default: a
    temporary folder."""
    command: str | None = Field(
        default=None, min_length=1, json_schema_extra={**PLACE, **may_change("where the program is")}
    )
    """The program `vllm` that a run starts, such as `.venv-vllm/bin/vllm`: vLLM pins its own torch, so it may
    be in another environment. Default: the one on PATH, else in this Python's environment."""
    options: tuple[str, ...] = Field(default=(), strict=False)
    """Further options of the vLLM that a run starts, such as `["--max-num-seqs", "64"]`. Settings are written
    into files, so a key is not among them: see `key_variable`."""
    memory_share: float = Field(
        default=0.0, ge=0, le=0.95, json_schema_extra=may_change("memory at a time changes no answer")
    )
    """Share of the device's memory for the vLLM that a run starts. 0: what the trainer leaves free, less 15%
    of the device; without sleep half of what is free, on a CPU no more than the model and 2 GiB of KV cache
    need."""
    sleep: bool = Field(default=True, json_schema_extra=may_change("memory at a time changes no answer"))
    """Whether the vLLM that a run starts frees its memory while the policies train (sleep mode), if its
    platform can and `run.staleness` is 0."""
    start_timeout_s: float = Field(
        default=600.0, ge=0.01, le=86_400, json_schema_extra=may_change("patience")
    )
    """Timeout of the start of the vLLM that a run starts, seconds."""
    kept: int = Field(default=2, ge=1, le=1000)
    """How many versions of a policy's weights the servers keep, including the present version."""
    at_once: int = Field(
        default=64, ge=1, le=100_000, json_schema_extra=may_change("where a request waits changes no answer")
    )
    """Maximum number of requests in flight per server; further requests wait for the next free server."""
    tries: int = Field(default=4, ge=1, le=100, json_schema_extra=may_change("patience"))
    """Maximum number of tries per request when servers are lost or too slow."""
    timeout_s: float = Field(default=300.0, ge=0.01, le=86_400, json_schema_extra=may_change("patience"))
    """Timeout of an answer, seconds; also how long to wait until any server answers."""
    key_variable: str = Field(
        default="VLLM_API_KEY", min_length=1, json_schema_extra=may_change("where the key is")
    )
    """Environment variable that holds the servers' API key, or `USER:PASSWORD`; servers on this machine need
    none."""

    def check_options(self) -> None:
        """Refuse a key among the options, before a run starts. Settings of runs that have one are still read.

        Raises:
            UsageError: there is one. The message does not repeat it.
        """
        names = [option.partition("=")[0].replace("_", "-") for option in self.options]
        if any(name.endswith(("-key", "-token")) for name in names):
            raise UsageError(
                "policy.vllm.options: a key in it would be written into files; put it into the environment "
                "variable that policy.vllm.key_variable names"
            )


class PpoConfig(Settings, frozen=True):
    """The policy and value network of the backend `ppo`. The update is set in `[agent]`."""

    hidden: int = Field(default=48, ge=1, le=4096)
    """Width of the two hidden layers of each network."""
    initial_std: float = Field(default=0.6, ge=0.001, le=10)
    """Standard deviation of the actions before the first update; largest action 1."""
    gamma: float = Field(default=0.98, ge=0, le=1)
    """Discount of rewards per time step, under `agent.algorithm = "ppo"`."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """Lambda of generalized advantage estimation: 0 trusts the value network, 1 the rewards."""
    value_coefficient: float = Field(default=0.5, ge=0, le=1000)
    """Weight of the squared error of the value network in the loss."""


class PolicyConfig(Settings, frozen=True):
    """The models behind both policies."""

    backend: BackendName = "local"
    """What samples and trains: models on this machine; Python functions, to try an environment without a
    model; a Tinker server; or this machine trains and vLLM servers sample. `ppo`: the agent is a policy
    network for the environment `control`, and `model` is that of the simulator."""
    model: str = Field(default=EMBEDDED, min_length=1, json_schema_extra=PLACE)
    """Base model: a known short name, a folder, or a name on the Hugging Face hub."""
    simulator_model: str | None = Field(default=None, min_length=1, json_schema_extra=PLACE)
    """Base model of the simulator; default: both policies share one base, with an adapter each."""
    tuning: Literal["lora", "full"] = "lora"
    """What is trained: low-rank adapters on a frozen base, or all weights. Both can be shared by several
    processes (torchrun)."""
    lora_rank: int = Field(default=16, ge=1, le=1024)
    """Rank of the adapters."""
    lora_alpha: float = Field(default=32.0, ge=1e-6, le=1_000_000)
    """Scale of the adapters: their output is multiplied by lora_alpha / lora_rank."""
    lora_targets: str = Field(default=AUTO_TARGETS, min_length=1)
    """Layers with adapters: `auto`, all linear layers and experts that PEFT supports; `all-linear`, as in
    PEFT; or names separated by commas, such as `q_proj,v_proj`."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the base weights; auto: bfloat16 if the hardware computes fast in it, else float32.
    With full tuning auto is float32, and bfloat16 needs several processes, which keep float32 weights."""
    quantize: Literal["none", "nf4"] = "none"
    """nf4: the linear layers of the frozen base are held in 4 bits, NormalFloat4 with double quantization as
    in QLoRA (arXiv:2305.14314), 4.13 bits per weight. Embeddings, output layer and products stay in
    `policy.dtype`, adapters in float32. Needs `pip install 'genenv[qlora]'`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the models; auto: a CUDA GPU if there is one, else the CPU. Apple GPUs (MPS) are not used."""
    attention: Literal["auto", "packed", "own"] = "auto"
    """Whether attention is packed, so that a prompt is prefilled once for all its completions, or the model's
    original code, which is slower (own). auto: packed if the model's attention is of the usual kind."""
    decoder: Literal["auto", "fused", "transformers"] = "auto"
    """The code that runs the layers. auto: genenv's fused code for frozen models of a known architecture,
    else transformers."""
    compiled: Literal["auto"] | bool = "auto"
    """Whether to compile code: on a CPU the small operations in C++; on a GPU the layers, with sampling steps
    captured as CUDA graphs. auto: if that works."""
    packed_weights: Literal["auto"] | bool = "auto"
    """Whether frozen weights get a second copy in a layout that suits the processor; auto measures whether
    that is faster."""
    threads: int = Field(default=0, ge=0, le=1024)
    """CPU threads; 0: measure and choose."""
    tokens_per_microbatch: int = Field(
        default=0,
        ge=0,
        le=100_000_000,
        json_schema_extra=may_change("memory at a time; sums in another order differ in their last digits"),
    )
    """Tokens of one forward and backward pass; lower it when memory runs out. 0: 4,096; on a GPU 16,384,
    or with compiled layers as many as fit into half of its memory."""
    activation_gib: float = Field(
        default=0.0,
        ge=0,
        le=100_000,
        json_schema_extra=may_change("memory at a time; what is computed twice is the same"),
    )
    """Memory for the activations of a backward pass; beyond it, layers are recomputed (gradient
    checkpointing). 0: a quarter of the memory; with compiled layers three quarters of what is free."""
    max_batch_rows: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        json_schema_extra=may_change("memory at a time; sums in another order differ in their last digits"),
    )
    """Maximum number of sequences sampled at once; 0: 64, on a GPU 256."""
    cache_gib: float = Field(
        default=1.0,
        ge=0,
        le=100_000,
        json_schema_extra=may_change("memory at a time; what is read again differs in its last digits"),
    )
    """KV cache kept between turns, GiB; evicted conversations are prefilled again."""
    context_tokens: int = Field(default=2048, ge=16, le=100_000_000)
    """Longest episode, tokens; never more than the model allows."""
    chat_template_kwargs: dict[TemplateVariable, bool | int | float | str] = Field(default_factory=dict)
    """Variables of the models' chat templates, such as `{enable_thinking = false}` for Qwen3."""
    tinker: TinkerConfig = Field(default_factory=TinkerConfig)
    """The server of the backend `tinker`."""
    vllm: VllmConfig = Field(default_factory=VllmConfig)
    """The servers of the backend `vllm`."""
    ppo: PpoConfig = Field(default_factory=PpoConfig)
    """The networks of the backend `ppo`."""
    max_thinking_tokens: int | None = Field(default=None, ge=0, le=1_000_000)
    """Maximum tokens of a thought between `<think>` and `</think>`; the sampler then closes it. 0: at
    once."""

    @property
    def learns_here(self) -> bool:
        """Return whether language models learn on this machine, so that a run's folder has their weights."""
        return self.backend in ("local", "vllm")


AUTOMATIC: Mapping[str, str | int] = {
    "device": "auto",
    "dtype": "auto",
    "threads": 0,
    "compiled": "auto",
    "packed_weights": "auto",
    "attention": "auto",
    "decoder": "auto",
}
"""Settings of `PolicyConfig` that can be chosen automatically, each with the value that requests this. All of
them change the last digits of results, so a run records the choices."""

OF_THE_MACHINE = ("device", "dtype", "threads", "compiled")
"""Settings in `AUTOMATIC` that are chosen before a model is loaded."""

WEIGHTS = frozenset(
    f"policy.{name}"
    for name in ("model", "simulator_model", "tuning", "lora_rank", "lora_alpha", "lora_targets", "quantize")
)
"""Settings of a run, by dotted key, that decide which model the weights in a checkpoint belong to."""
