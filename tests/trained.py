"""Small runs that have trained an agent, without the time that training takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from genenv.backends.local.model import LocalModel
from genenv.backends.local.packing import Bundle, Packed
from genenv.backends.local.policy_weights import PolicyWeights
from genenv.backends.local.sampler import LocalSampler
from genenv.config.run import dump_toml, load_config
from genenv.runs.folder import RunFolder
from genenv.runs.store.records import RoundRecord
from genenv.runs.store.store import PoolStore
from genenv.types import Seed
from saving import commit


def trained_run(
    path: Path, model: Path | str, toy: Any, *, tuning: str = "lora", more: Sequence[str] = ()
) -> Path:
    """A run of two committed rounds, in each of which the agent is far from the base."""
    settings = [f'policy.model="{model}"', "policy.lora_rank=2", f'policy.tuning="{tuning}"']
    machine = ['policy.device="cpu"', 'policy.dtype="float32"', "policy.threads=1", "run.rounds=1"]
    config = load_config(None, [*settings, *machine, *more])
    folder = RunFolder.create(path, dump_toml(config))
    with PoolStore.open(folder.pool, create=False) as store:
        tasks = [toy.task(name=f"held-out-{n}", left=n) for n in (1, 2)]
        store.put_base([Seed(id=t.id, environment="sums", spec={}, skills=("sums",)) for t in tasks], tasks)
        for number in (0, 1):
            metrics = {"agent/eval_success": 0.25 + number / 2}
            record = RoundRecord(number=number, metrics=metrics, state={})
            base = LocalModel(str(model), config.policy)
            commit(folder, store, record, lambda to, base=base, n=number: _save(base, to, n, tuning))
    return path


def _save(base: LocalModel, to: Path, seed: int, tuning: str) -> None:
    for player in ("agent", "simulator"):
        if tuning == "lora":
            base.add_adapter(player, seed=1)
        weights = PolicyWeights(base, player if tuning == "lora" else None, keep_reference=False)
        generator = torch.Generator().manual_seed(10 * seed + len(player))
        with torch.no_grad():
            for _, parameter in LocalSampler(weights).weights.parameters():
                parameter += torch.randn(parameter.shape, generator=generator) * 0.2
        weights.save(to / player)


def agents_logprobs(run: Path, number: int, ids: Sequence[int]) -> Any:
    """[T - 1] log-probabilities of a text's tokens, by the run's agent as genenv itself has it."""
    config = load_config(run / "config.toml").policy
    folder = RunFolder.open(run).checkpoint_path(number) / "agent"
    whole = config.tuning == "full"
    model = LocalModel(str(folder) if whole else config.model, config)
    if not whole:
        model.add_adapter("agent", seed=0)
    weights = PolicyWeights(model, None if whole else "agent", learns=False)
    if not whole:
        weights.load(folder)
    with torch.no_grad(), weights.active():
        return weights.logprobs(Packed([Bundle(prompt_ids=ids[:1], completions=[ids[1:]])], model.device))


def logprobs(model: Any, ids: Sequence[int]) -> Any:
    """The same by a model of transformers."""
    with torch.no_grad():
        scores = model(input_ids=torch.tensor([ids])).logits[0, :-1].float().log_softmax(-1)
    return scores.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
