"""How fast the agent learns from a batch: genenv against the loss and backward pass of TRL's `GRPOTrainer`.

    python bench/update.py --groups 8 --rollouts 8 --prompt 230 --completion 64

Both start from the same LoRA adapter and see the same tokens, advantages, old log-probabilities and KL
coefficient. A turn is what a trainer does between sampling and its next step: log-probabilities of the
reference, loss, gradients, clipping, one step of AdamW (at a learning rate of 0, so that turns are alike).
TRL takes as many sequences at a time as `--peer-batch` says. Prints medians, and how far losses and gradient
norms are apart, as one JSON line; in bfloat16 also how far each side is from float32, which genenv calculates
once from the same batch.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turns import (
    alternate,
    learning_parser_of,
    machine,
    our_sampler,
    our_update,
    say,
    serve,
    settle,
    share_of,
    sides_of,
)

if TYPE_CHECKING:
    from genenv.backends.local.sampler import LocalSampler
    from genenv.types import Group

CLIP = 0.2


def main(arguments: Sequence[str] | None = None) -> None:
    parser = learning_parser_of(__doc__, list(SIDES))
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--rollouts", type=int, default=8, help="attempts in a group")
    parser.add_argument("--prompt", type=int, default=230, help="tokens")
    parser.add_argument("--completion", type=int, default=64, help="tokens")
    parser.add_argument("--kl", type=float, default=0.04, help="the KL coefficient")
    options = parser.parse_args(arguments)
    if options.side:
        SIDES[options.side](options)
        return
    settle(options)
    options.folder = Path(tempfile.mkdtemp(prefix="genenv-bench-"))
    keys = ("groups", "rollouts", "prompt", "completion", "kl", "dtype", "microbatch", "peer_batch")
    # ours writes the batch and the adapter that TRL reads
    told = ("model", "folder", *keys)
    programs: dict[str, str] = dict.fromkeys(("ours", "trl"), sys.executable)
    sides = sides_of(__file__, options, told, programs, options.folder)
    ours, *peers = sides
    alternate(sides, options.repeats)
    exact = (
        []
        if options.dtype == "float32"
        else sides_of(__file__, options, told, {"exact": sys.executable}, options.folder)
    )
    off = {
        f"{side.name}_{key}_off": apart(side.answers[-1][key], right[key])
        for right in [one.turn() for one in exact]
        for key in ("loss", "grad_norm")
        for side in sides
    }
    say(
        bench="update",
        **{key: getattr(options, key) for key in (*keys, "repeats")},
        **{f"{side.name}_s": side.seconds for side in sides},
        times=peers[0].seconds / ours.seconds if peers else None,
        **{f"{side.name}_peak_gib": side.peak_gib for side in sides},
        **{f"{side.name}_gpu_gib": side.gpu_gib for side in sides},
        ours_loss=ours.answers[-1]["loss"],
        **{
            f"{key}_apart": apart(peer.answers[-1][key], ours.answers[-1][key])
            for peer in peers
            for key in ("loss", "grad_norm")
        },
        **off,
        **ours.about,
        share_of_peak=ours.share_of_peak,
        **machine(),
    )
    for side in (*sides, *exact):
        side.end()


def apart(value: float, other: float) -> str:
    """Relative to the other."""
    return f"{abs(value - other) / abs(other or 1.0):.1e}"


def sampler_of(options: argparse.Namespace, dtype: str) -> LocalSampler:
    return our_sampler(
        options.model,
        dtype=dtype,
        context_tokens=options.prompt + options.completion,
        tokens_per_microbatch=options.microbatch,
    )


def our_work(
    options: argparse.Namespace, sampler: LocalSampler, batch: Mapping[str, Any]
) -> Callable[[], Mapping[str, Any]]:
    """Our update from a batch."""
    from genenv.agent.policy import AgentConfig

    settings = AgentConfig(
        kl_coefficient=options.kl, clip_low=CLIP, clip_high=CLIP, temperature=1.0, skip_zero_advantage=False
    )
    update, groups = our_update(sampler, settings, rate=0.0), groups_of(batch)

    def work() -> Mapping[str, Any]:
        metrics = update(groups)
        return {"loss": metrics["agent/loss"], "grad_norm": metrics["agent/grad_norm"]}

    return work


def ours(options: argparse.Namespace) -> None:
    import torch

    from genenv.backends.local.packing import Bundle, Packed

    sampler = sampler_of(options, options.dtype)
    model = sampler.model
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # away from the reference, so that the KL term has something to say
        for _, parameter in sampler.weights.parameters():
            parameter += 0.002 * torch.randn(parameter.shape, generator=generator).to(parameter)
    sampler.weights.save(options.folder / "adapter")
    batch = a_batch(options, model.vocabulary)
    bundles = [Bundle(prompt_ids=p, completions=c) for p, c in zip(*batch.values(), strict=True)]
    with torch.no_grad(), sampler.weights.active():
        own = [sampler.weights.logprobs(Packed([bundle], model.device)) for bundle in bundles]
        now = torch.cat(own).cpu()
    old = (now + 0.3 * torch.randn(now.shape, generator=generator)).view(
        options.groups, options.rollouts, options.completion
    )
    batch |= {"old": old.tolist()}
    (options.folder / "batch.json").write_text(json.dumps(batch), encoding="utf-8")
    work = our_work(options, sampler, batch)
    share, peak = share_of(work, options.dtype)
    serve(work, {"threads": torch.get_num_threads(), **share}, peak)


def exact(options: argparse.Namespace) -> None:
    """What the others' rounding is measured by: the same update in float32."""
    sampler = sampler_of(options, "float32")
    sampler.weights.load(options.folder / "adapter")
    batch = json.loads((options.folder / "batch.json").read_text(encoding="utf-8"))
    serve(our_work(options, sampler, batch))


def a_batch(options: argparse.Namespace, vocabulary: int) -> dict[str, Any]:
    """Random tokens: speed does not depend on what they say."""
    rng = random.Random(0)

    def tokens(n: int) -> list[int]:
        return [rng.randrange(100, vocabulary) for _ in range(n)]

    return {
        "prompts": [tokens(options.prompt) for _ in range(options.groups)],
        "completions": [
            [tokens(options.completion) for _ in range(options.rollouts)] for _ in range(options.groups)
        ],
    }


def reward(tokens: Sequence[int]) -> float:
    """Of no meaning, but hardly ever the same for a whole group."""
    return float(sum(tokens) % 2)


def groups_of(batch: Mapping[str, Any]) -> list[Group]:
    """A group for each prompt; attempts alone at theirs are one group: they would teach nothing."""
    from genenv.types import Group, Lineage, Origin, StopReason, Task, Trace

    groups = []
    for g, (prompt, completions, old) in enumerate(zip(*batch.values(), strict=True)):
        task = Task(
            id=f"task-{g}",
            environment="bench",
            skills=(),
            messages=(),
            spec={},
            payload={},
            oracle=(),
            lineage=Lineage(origin=Origin.SEED),
        )
        traces = tuple(
            Trace(
                id=f"task-{g}-{i}",
                task_id=task.id,
                token_ids=(*prompt, *ids),
                sampled=(False,) * len(prompt) + (True,) * len(ids),
                logprobs=(0.0,) * len(prompt) + tuple(values),
                prompt_tokens=len(prompt),
                messages=(),
                reward=reward(ids),
                success=reward(ids) == 1.0,
                explanation="",
                stop_reason=StopReason.DONE,
            )
            for i, (ids, values) in enumerate(zip(completions, old, strict=True))
        )
        groups.append(Group(task=task, traces=traces))
    if all(len(group.traces) == 1 for group in groups):
        traces = tuple(replace(group.traces[0], task_id=groups[0].task.id) for group in groups)
        return [Group(task=groups[0].task, traces=traces)]
    return groups


def trl(options: argparse.Namespace) -> None:
    import datasets
    import peft
    import torch
    import transformers
    import trl

    from genenv.algorithms.advantages import group_advantages
    from genenv.backends.local.hardware import choose_threads

    torch.set_num_threads(choose_threads())
    batch = json.loads((options.folder / "batch.json").read_text(encoding="utf-8"))
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        options.model, dtype=getattr(torch, options.dtype)
    )
    model = peft.PeftModel.from_pretrained(model, options.folder / "adapter", is_trainable=True)
    on_cpu = not torch.cuda.is_available()
    config = trl.GRPOConfig(  # pyright: ignore[reportPrivateImportUsage] - trl loads it when asked
        output_dir=str(options.folder / "trl"),
        loss_type="dapo",
        beta=options.kl,
        epsilon=CLIP,
        epsilon_high=CLIP,
        num_generations=options.rollouts,
        per_device_train_batch_size=options.peer_batch,
        use_bias_correction_kl=False,
        bf16=options.dtype == "bfloat16",
        use_cpu=on_cpu,
        report_to=[],
    )
    trainer: Any = trl.GRPOTrainer(  # pyright: ignore[reportPrivateImportUsage]
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=datasets.Dataset.from_list([{"prompt": "x"}] * options.peer_batch),
        processing_class=transformers.AutoTokenizer.from_pretrained(options.model),
    )
    trainer.current_gradient_accumulation_steps = 1
    device = trainer.accelerator.device
    model = trainer.model.train()
    prompts = torch.tensor(batch["prompts"], device=device).repeat_interleave(options.rollouts, 0)
    completions = torch.tensor(batch["completions"], device=device).flatten(0, 1)
    advantages = [
        value
        for group in batch["completions"]
        for value in group_advantages([reward(ids) for ids in group], "normalised")
    ]
    inputs = {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": completions,
        "completion_mask": torch.ones_like(completions),
        "advantages": torch.tensor(advantages, device=device),
        "old_per_token_logps": torch.tensor(batch["old"], device=device).flatten(0, 1),
    }
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=0.0, weight_decay=0.0)

    def work() -> Mapping[str, Any]:
        ids = torch.cat([prompts, completions], 1)
        with torch.no_grad(), trainer.accelerator.unwrap_model(model).disable_adapter():
            reference = trainer._get_per_token_logps_and_entropies(
                model, ids, torch.ones_like(ids), options.completion, batch_size=options.peer_batch
            )[0]
        loss = 0.0
        for start in range(0, len(ids), options.peer_batch):
            rows = slice(start, start + options.peer_batch)
            part = {name: tensor[rows] for name, tensor in inputs.items()}
            part |= {
                "ref_per_token_logps": reference[rows],
                "num_items_in_batch": torch.tensor(completions.numel()),
            }
            piece = trainer._compute_loss(model, part)
            piece.backward()
            loss += float(piece.detach())
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss, "grad_norm": float(norm)}

    serve(work)


SIDES: dict[str, Callable[[argparse.Namespace], None]] = {"ours": ours, "trl": trl, "exact": exact}

if __name__ == "__main__":
    main()
