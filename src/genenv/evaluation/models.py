# pyright: standard
"""Resolves `--policy` (a local model, a policy of a run, or an endpoint) to a chat assistant."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from genenv.backends.settings import BEHIND_ENDPOINT, EndpointConfig, PolicyConfig, SamplingConfig
from genenv.chat.assistant import Assistant
from genenv.environments import load_environment
from genenv.errors import UsageError
from genenv.runs.checkpoint import COMMITTED
from genenv.runs.folder import RunFolder, named_run
from genenv.types import AGENT, JsonObject

ENDPOINT = "openai:"
_PART, _PARTS = 1 << 16, 64
"""Bytes that are read of a file at a time, and at how many places; files of up to 4 MiB are read whole."""
_OF_RUN = re.compile(r"(?P<of>.+?)(?::(?P<policy>[a-z][a-z0-9-]*))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPolicy:
    """An agent or the simulator of a run, as named by `runs/demo@12:agent`."""

    run: Path
    round: int | None
    """The round of the checkpoint; None: the last round with a checkpoint."""
    policy: str
    """`simulator`, or the name of an agent; `agent` also stands for the only one."""


def assistant(
    name: str,
    policy: PolicyConfig,
    endpoint: EndpointConfig,
    sampling: SamplingConfig,
    beside: Assistant | None = None,
) -> Assistant:
    """Load the assistant that a name refers to.

    Args:
        name: `openai:BASE_URL#MODEL`; a run, `runs/demo`, `runs/demo@12` or `runs/demo@12:agent`; else a
            model's short name, folder or hub name.
        policy: how to load local models. Model and adapter settings come from the run; so do `dtype`, the
            chat template's arguments and the thinking limit, unless they are set here.
        endpoint: how to call endpoints.
        sampling: how to sample replies.
        beside: another assistant of the same command; the cost of both has one limit.

    Raises:
        UsageError: the model cannot be loaded; the message says why.
        DataError: a checkpoint is damaged.
    """
    check_name(name)
    if name.startswith(ENDPOINT):
        return _endpoint(name.removeprefix(ENDPOINT), endpoint, sampling, beside)
    named = named_policy(name)
    return _base(name, policy, sampling) if named is None else _of_run(named, policy, sampling)


def named_policy(name: str) -> NamedPolicy | None:
    """Parse a name into run, round and policy; None for a model or an endpoint.

    Raises:
        UsageError: the name has a round, but names no run.
    """
    of_run = None if name.startswith(ENDPOINT) else _OF_RUN.fullmatch(name)
    if of_run is None:
        return None
    run, number = named_run(of_run["of"])
    if (run / "config.toml").is_file():
        return NamedPolicy(run=run, round=number, policy=of_run["policy"] or "agent")
    if number is not None:
        from genenv.backends.local import hub

        close = hub.nearest(str(run))
        hint = "" if close is None else f"; did you mean {close!r}?"
        raise UsageError(f"{run} holds no run; name the folder of a run, such as runs/demo@12:agent{hint}")
    return None


def check_weights(run: Path, policy: PolicyConfig) -> None:
    """Check that the weights of a run's language models are in its folder.

    Raises:
        UsageError: the weights are on a server, or the run has none.
    """
    if policy.backend == BEHIND_ENDPOINT:
        raise UsageError(
            f"this agent of {run} is a model behind an endpoint: name it as openai:{policy.model}"
        )
    if policy.backend == "tinker":
        raise UsageError(
            f"the weights of {run} are on its Tinker server; each tinker.json in {run / 'checkpoints'} names "
            "their path there, which `tinker checkpoint download` takes"
        )
    if policy.backend == "ppo":
        raise UsageError(f"the agent of {run} is a policy network (policy.backend), not a language model")
    if not policy.learns_here:
        raise UsageError(f"policy.backend of {run} is {policy.backend!r}: no weights are in that folder")


def check_name(name: str) -> None:
    """Check that a name is known, before anything is loaded.

    Raises:
        UsageError: the name is unknown; the message suggests the closest model or run.
    """
    if name.startswith(ENDPOINT) or named_policy(name):
        return
    from genenv.backends.local import hub

    hub.check(name)


def _endpoint(
    address: str, endpoint: EndpointConfig, sampling: SamplingConfig, beside: Assistant | None
) -> Assistant:
    try:
        from genenv.clients.endpoint import EndpointAssistant
    except ImportError as error:
        raise UsageError("endpoints need the openai client: pip install 'genenv[api]'") from error
    other = beside if isinstance(beside, EndpointAssistant) else None
    return EndpointAssistant(address, endpoint, sampling, other)


def _base(name: str, policy: PolicyConfig, sampling: SamplingConfig) -> Assistant:
    from genenv.backends.local import loading

    weights: JsonObject = {"model": name, "files": _digest(Path(loading.resolve(name)))}
    return _whole(name, policy, sampling, name=name, weights=weights)


def _whole(
    source: str, policy: PolicyConfig, sampling: SamplingConfig, *, name: str, weights: JsonObject
) -> Assistant:
    """Load a model without an adapter."""
    from genenv.backends.local.model import LocalModel
    from genenv.backends.local.policy_weights import PolicyWeights
    from genenv.backends.local.sampler import LocalAssistant, LocalSampler

    model = LocalModel(source, policy)
    model.fuse()
    sampler = LocalSampler(PolicyWeights(model, None, learns=False))
    return LocalAssistant(sampler, sampling, name=name, weights=weights)


def _of_run(named: NamedPolicy, policy: PolicyConfig, sampling: SamplingConfig) -> Assistant:
    from genenv.backends.local.model import LocalModel
    from genenv.backends.local.policy_weights import PolicyWeights
    from genenv.backends.local.sampler import LocalAssistant, LocalSampler

    run, folder = named.run, RunFolder.open(named.run)
    config = folder.settings()
    simulates = named.policy == "simulator"
    which = named.policy if simulates else config.agent_named(named.policy)
    trained = config.policy if simulates else config.policy_of(which)
    controls = trained.backend == "ppo" and not simulates
    if not controls:
        check_weights(run, trained)
    checkpoint, number = folder.checkpoint(named.round)
    base = (trained.simulator_model or trained.model) if simulates else trained.model
    kept = {"lora_rank", "lora_alpha", "lora_targets", "quantize"}
    kept |= {"chat_template_kwargs", "max_thinking_tokens"} - policy.model_fields_set  # as in training
    settings = policy.model_copy(
        update={key: getattr(trained, key) for key in kept} | _dtype(policy, trained)
    )
    name = f"{run.as_posix()}@{number}:{which}"
    weights: JsonObject = {
        **{"model": base, "run": run.as_posix(), "round": number, "player": which},
        "files": _digest(checkpoint),
    }
    if controls:
        from genenv.backends.local.ppo import ActionAssistant

        env = load_environment(config.environment.name, config.environment.settings)
        weights = {key: value for key, value in weights.items() if key != "model"}
        return ActionAssistant(trained, env, checkpoint / which, sampling, name=name, weights=weights)
    if trained.tuning == "full":
        whole = str(checkpoint / which)
        return _whole(whole, settings, sampling, name=name, weights={**weights, "tuning": "full"})
    model = LocalModel(base, settings)
    adapter = "simulator" if simulates else AGENT
    model.add_adapter(adapter, seed=0)
    own = PolicyWeights(model, adapter)
    own.load(checkpoint / which)
    return LocalAssistant(LocalSampler(own), sampling, name=name, weights=weights)


def _dtype(policy: PolicyConfig, trained: PolicyConfig) -> dict[str, str]:
    """Return the `dtype` that the run's own evaluations used, unless the user sets another."""
    own = "float32" if trained.tuning == "full" and trained.dtype == "auto" else trained.dtype
    return {} if "dtype" in policy.model_fields_set else {"dtype": own}


def _digest(folder: Path) -> str:
    """Return a fingerprint of the weights in a folder: names and sizes of files, and what is in them.

    Of large files only parts are read.

    Empty if there is no such folder, as for a hub name.
    """
    weights = (path for path in folder.rglob("*") if path.is_file() and path.name != COMMITTED)
    files = sorted(weights) if folder.is_dir() else []
    found = hashlib.sha256()
    for path in files:
        found.update(f"{path.relative_to(folder).as_posix()} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            for start in range(0, size := path.stat().st_size, max(_PART, size // _PARTS)):
                file.seek(start)
                found.update(file.read(_PART))
    return found.hexdigest()[:16] if files else ""
