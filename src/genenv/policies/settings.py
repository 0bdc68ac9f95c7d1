"""Settings of the policies: which weights, which part of them learns, and on what hardware."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from genenv.settings import Settings

TemplateVariable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
"""Name of a variable of a chat template."""


class SamplingConfig(Settings, frozen=True):
    """How an evaluated model answers."""

    temperature: float = Field(default=0.0, ge=0)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Draw among the most probable tokens alone that together have at least this probability."""
    max_new_tokens: int = Field(default=0, ge=0)
    """A reply has at most so many tokens; 0: as the benchmark says."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of what is drawn."""


class EndpointConfig(Settings, frozen=True):
    """An OpenAI-compatible server."""

    concurrency: int = Field(default=16, ge=1, le=10_000)
    """Requests under way at the same time."""
    requests_per_minute: float = Field(default=0.0, ge=0)
    """At most so many requests are begun in a minute; 0: no limit."""
    retries: int = Field(default=5, ge=0, le=100)
    """How often a request that failed is repeated, after waits that grow."""
    timeout_s: float = Field(default=300.0, gt=0)
    """How long a reply may take, seconds."""
    tools: Literal["auto", "native", "text"] = "auto"
    """Whether tools are offered through the API or described in the prompt; auto asks the server once."""
    key_variable: str = Field(default="OPENAI_API_KEY", min_length=1)
    """Environment variable that holds the key; servers of your own need none."""
    price_in: float = Field(default=0.0, ge=0)
    """Price of a million prompt tokens, in any currency."""
    price_out: float = Field(default=0.0, ge=0)
    """Price of a million sampled tokens."""
    max_cost: float = Field(default=0.0, ge=0)
    """Stop asking when one run of the command has spent so much, in that currency; 0: no limit."""


class PolicyConfig(Settings, frozen=True):
    """The models behind both players."""

    model: str = Field(default="smollm2-135m", min_length=1)
    """Base model: a known short name, a folder, or a name on the Hugging Face hub."""
    simulator_model: str | None = Field(default=None, min_length=1)
    """Base model of the simulator; left out, both players share one base with an adapter each."""
    tuning: Literal["lora", "full"] = "lora"
    """What learns: low-rank adapters on a frozen base, or all weights."""
    lora_rank: int = Field(default=16, ge=1, le=1024)
    """Rank of the adapters."""
    lora_alpha: float = Field(default=32.0, gt=0)
    """Scale of the adapters; their output is multiplied by lora_alpha / lora_rank."""
    lora_targets: str = Field(default="all-linear", min_length=1)
    """Layers with adapters: `all-linear`, or names separated by commas such as `q_proj,v_proj`."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the base weights; auto takes bfloat16 where the hardware is fast with it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the models run; auto takes a GPU when there is one."""
    decoder: Literal["auto", "transformers"] = "auto"
    """Who runs the layers: auto is genenv's own code for frozen models that it knows, else transformers."""
    compiled: bool = True
    """Whether a C++ compiler, where there is one, makes the small operations on a CPU faster."""
    threads: int = Field(default=0, ge=0, le=1024)
    """CPU threads; 0 measures and chooses."""
    tokens_per_microbatch: int = Field(default=4096, ge=1)
    """Tokens of one forward and backward pass: lower it when memory runs out."""
    activation_gib: float = Field(default=0.0, ge=0)
    """What a backward pass may keep in memory before layers are computed twice; 0 is a quarter of it."""
    max_batch_rows: int = Field(default=64, ge=1)
    """Sequences sampled at once."""
    cache_gib: float = Field(default=1.0, ge=0)
    """What may be remembered of conversations between their turns; what does not fit is read again."""
    context_tokens: int = Field(default=2048, ge=16)
    """Longest episode; never more than the model allows."""
    chat_template_kwargs: dict[TemplateVariable, bool | int | float | str] = Field(default_factory=dict)
    """Variables of the models' chat templates, such as `{enable_thinking = false}` for Qwen3."""
    max_thinking_tokens: int | None = Field(default=None, ge=0, le=1_000_000)
    """A thought, between `<think>` and `</think>`, is closed after so many tokens of a reply; 0: at once."""
