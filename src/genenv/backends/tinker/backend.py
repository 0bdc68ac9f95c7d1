# pyright: standard
"""Opens both policies on a Tinker server: one adapter each, after a probe of how the server behaves."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from genenv.backends.base import Opened, Role
from genenv.backends.local import loading
from genenv.backends.settings import ALL_LAYERS, PolicyConfig
from genenv.backends.tinker.policy import Base, TinkerSampler, TinkerTrainer
from genenv.backends.tinker.probe import Facts, probe
from genenv.backends.tinker.service import Service, reason
from genenv.chat.format import ChatFormat
from genenv.environments.base import Environment
from genenv.errors import GenenvError, UsageError
from genenv.seeding import stream
from genenv.threads import run_coroutine
from genenv.types import Message

log = logging.getLogger(__name__)

_OPENING_S = 1800.0
"""Timeout for probing the server and creating adapters; the server may have to load a large base first."""


def open_tinker(config: PolicyConfig, roles: Sequence[Role], env: Environment, seed: int) -> Opened:
    """Open both policies on the Tinker server that the settings name.

    Raises:
        UsageError: the settings need a feature that Tinker servers lack, the server cannot be reached, or it
            fails a check that training depends on.
    """
    _check(config, roles)
    service = Service.connect(config.tinker)
    try:
        opened = run_coroutine(lambda: _open(service, config, roles, seed), _OPENING_S)
    except GenenvError as error:
        raise UsageError(str(error)) from error
    except TimeoutError as error:
        raise UsageError(
            f"the Tinker server at {service.address} makes no adapter: {reason(error)}"
        ) from error
    return opened


async def _open(service: Service, config: PolicyConfig, roles: Sequence[Role], seed: int) -> Opened:
    known = await service.within(service.client.get_server_capabilities_async(), "say what it can do")
    lengths = {
        model.model_name: model.max_context_length for model in known.supported_models if model.model_name
    }
    formats: dict[str, ChatFormat] = {}
    samplers: dict[str, TinkerSampler] = {}
    trainers: dict[str, TinkerTrainer] = {}
    facts: dict[str, Facts] = {}
    for role in roles:
        named = config.simulator_model if role.name == "simulator" else role.model
        source = named or config.model
        model = _served(service, config, source, list(lengths))
        if model not in formats:
            place = loading.resolve(source)
            tokenizer = loading.load_tokenizer(place)
            formats[model] = ChatFormat(tokenizer, config.chat_template_kwargs, loading.stop_ids(place))
        chat = formats[model]
        if model not in facts:
            prompt = chat.render(
                [Message(role="user", content="Count from one to ten in words.")], first=True
            )
            facts[model] = await probe(
                service, model, rank=config.lora_rank, prompt=prompt, stop_ids=sorted(chat.stop_ids)
            )
            _tell(service, model, facts[model])
        own = Base(
            model=model,
            rank=config.lora_rank,
            seed=stream(seed, "adapter", role.name) % 2**31,
            sums=facts[model].sums,
            gap=facts[model].gap,
            live_load=facts[model].live_load,
        )
        client = await service.adapter(model, own.rank, seed=own.seed)
        context = min(config.context_tokens, lengths[model] or config.context_tokens)
        base = service.client.create_sampling_client_async(base_model=model)
        samplers[role.name] = TinkerSampler(
            service,
            await service.within(base, f"sample with {model}"),
            chat,
            context_tokens=context,
            max_thinking_tokens=config.max_thinking_tokens,
        )
        trainers[role.name] = TinkerTrainer(service, client, samplers[role.name], own, role)
    return Opened(
        samplers=samplers,
        trainers=trainers,
        settled=config,
        parallel_updates=True,
        # If a client cannot load a saved state, a new client replaces it. The weights that the old client
        # published may then vanish while they are sampled from.
        async_rollouts=all(one.live_load for one in facts.values()),
        close=service.close,
        found={"server": service.address, "models": {model: one.said() for model, one in facts.items()}},
    )


def _served(service: Service, config: PolicyConfig, source: str, offered: Sequence[str]) -> str:
    """Return the server's name for a model.

    Raises:
        UsageError: the server does not offer the model.
    """
    wanted = config.tinker.model if config.tinker.model and source == config.model else source
    if wanted in offered:
        return wanted
    shown = ", ".join(sorted(offered)[:8]) + (" and more" if len(offered) > 8 else "")
    raise UsageError(
        f"the Tinker server at {service.address} has no model {wanted!r}, but {shown or 'none at all'}; set "
        "policy.tinker.model to the one that policy.model is the tokenizer of"
    )


def _tell(service: Service, model: str, facts: Facts) -> None:
    """Refuse a server that a run cannot train on; log its other deviations."""
    facts.check()
    if not facts.ends:
        raise UsageError(
            f"the Tinker server at {service.address} leaves out the token that ends a reply of {model}: "
            "nobody could learn to end one"
        )
    if not facts.sums.weighs:
        log.info("the server's cross_entropy scales weights away: imitation goes by importance_sampling")
    if not facts.seeds:
        log.warning(
            "the Tinker server draws other tokens for the same seed: this run cannot be repeated exactly"
        )


def _check(config: PolicyConfig, roles: Sequence[Role]) -> None:
    """Refuse settings that no Tinker server supports.

    Raises:
        UsageError: a setting is not supported.
    """
    if config.tuning != "lora":
        raise UsageError('a Tinker server trains adapters: set policy.tuning to "lora"')
    if config.quantize != "none":
        raise UsageError('a Tinker server holds the base as it does: set policy.quantize to "none"')
    if config.lora_targets not in ALL_LAYERS:
        raise UsageError('a Tinker server adapts all linear layers: set policy.lora_targets to "auto"')
    for role in roles:
        if getattr(getattr(role.optimizer, "warmup", None), "kept_moments", "none") == "second":
            raise UsageError(
                "a Tinker server keeps all moments of its optimizer or none: set "
                f'{role.name}.warmup.kept_moments to "none" or "both"'
            )
