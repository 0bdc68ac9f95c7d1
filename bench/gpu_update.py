"""How long a GRPO update takes on this machine's GPU, and where the time goes.

    python bench/gpu_update.py --model FOLDER --work 8x8x512+512 --work 2x1x4096+4096
    python bench/gpu_update.py --model FOLDER --work 8x8x512+512 --profile

A piece of work is GROUPSxROLLOUTSxPROMPT+COMPLETION, in tokens. The model may have random weights: speed does
not depend on what they say. Prints one JSON line for each: the first update, which compiles, then the median
of some more, and the largest memory. `--plain` leaves compiled layers out. `--profile` adds the kernels that
take most of the GPU's time, and the functions that take most of the program's. `--sweep` tells what attention
takes with other tiles.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import io
import pstats
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from turns import machine, our_sampler, say
from update import a_batch

OLD = -12.0
"""Log-probability of all tokens when they were sampled, nats: about that of random weights."""

SWEPT: list[dict[str, Any]] = [
    {},
    {"PRESCALE_QK": True},
    {"fwd_BLOCK_M": 128, "fwd_BLOCK_N": 64, "fwd_num_warps": 4, "fwd_num_stages": 3},
    {"fwd_BLOCK_M": 128, "fwd_BLOCK_N": 128, "fwd_num_warps": 8, "fwd_num_stages": 2},
    {"fwd_BLOCK_M": 64, "fwd_BLOCK_N": 64, "fwd_num_warps": 4, "fwd_num_stages": 3},
    {"fwd_USE_TMA": True},
    *(
        {
            **dict(zip(("bwd_BLOCK_M1", "bwd_BLOCK_N1", "bwd_BLOCK_M2", "bwd_BLOCK_N2"), tiles, strict=True)),
            "bwd_num_warps": warps,
            "bwd_num_stages": stages,
        }
        for tiles, warps, stages in [
            ((64, 128, 128, 64), 8, 2),
            ((64, 128, 128, 64), 8, 3),
            ((64, 128, 128, 64), 4, 2),
            ((64, 64, 64, 64), 4, 3),
            ((32, 128, 128, 32), 4, 3),
            ((32, 128, 128, 32), 8, 2),
        ]
    ),
]
"""Options of flex attention's kernels that `--sweep` tries, the defaults first."""


def main(arguments: Sequence[str] | None = None) -> None:
    import torch

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", required=True, help="folder")
    parser.add_argument("--work", action="append", help="GROUPSxROLLOUTSxPROMPT+COMPLETION")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--kl", type=float, default=0.0, help="the KL coefficient")
    parser.add_argument("--microbatch", type=int, default=0, help="tokens at a time; 0: what genenv chooses")
    parser.add_argument("--activations", type=float, default=0.0, help="GiB; 0: what genenv chooses")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="without compiled layers")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--sweep", action="store_true")
    options = parser.parse_args(arguments)
    sampler: Any = our_sampler(
        options.model,
        dtype=options.dtype,
        context_tokens=1_000_000,
        tokens_per_microbatch=options.microbatch,
        activation_gib=options.activations,  # type: ignore[arg-type]
        compiled=False if options.plain else "auto",  # type: ignore[arg-type]
    )
    device = sampler.model.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    for text in options.work or ["8x8x512+512", "2x1x4096+4096"]:
        update = update_of(sampler, text, options.kl)
        first, _ = timed(update, device)
        times, peaks = zip(*(timed(update, device) for _ in range(options.repeats)), strict=True)
        groups, rollouts, prompt, completion = shape_of(text)
        seconds = statistics.median(times)
        say(
            bench="gpu_update",
            work=text,
            dtype=options.dtype,
            kl=options.kl,
            plain=options.plain,
            compiled=sampler.weights.runs_compiled,
            microbatch=sampler.model.tokens_per_microbatch,
            first_s=first,
            seconds=seconds,
            fastest_s=min(times),
            sequence_tokens_per_s=groups * rollouts * (prompt + completion) / seconds,
            model_tokens_per_s=groups * (prompt + rollouts * completion) / seconds,
            peak_gib=max(peaks),
            device=name,
            torch=torch.__version__,
            **machine(),
        )
        if options.profile:
            profile(update, device)
        if options.sweep:
            sweep(update, sampler.model)


def shape_of(text: str) -> tuple[int, int, int, int]:
    """Groups, rollouts, tokens of a prompt and of a completion."""
    groups, rollouts, tokens = text.split("x")
    prompt, completion = tokens.split("+")
    return int(groups), int(rollouts), int(prompt), int(completion)


def update_of(sampler: Any, text: str, kl: float) -> Callable[[], object]:  # noqa: ANN401
    """An update of a sampler's weights from made-up attempts, at a learning rate of 0.

    Advantages are made up too, so that a prompt with one attempt has something to teach.
    """
    from genenv.agent.policy import AgentConfig
    from genenv.algorithms.datum import Datum, Objective, UpdateBatch
    from genenv.algorithms.update import learn
    from genenv.backends.local.trainer import LocalTrainer

    groups, rollouts, prompt, completion = shape_of(text)
    work = argparse.Namespace(groups=groups, rollouts=rollouts, prompt=prompt, completion=completion)
    batch = a_batch(work, sampler.model.vocabulary)
    units = [
        [
            Datum(
                prompt_ids=tuple(prompt_ids),
                completion_ids=tuple(ids),
                weights=(1.0,) * completion,
                loss="ppo",
                advantages=(1.0 if (group + place) % 2 else -1.0,) * completion,
                old_logprobs=(OLD,) * completion,
            )
            for place, ids in enumerate(own)
        ]
        for group, (prompt_ids, own) in enumerate(zip(batch["prompts"], batch["completions"], strict=True))
    ]
    objective = Objective(kl_coefficient=kl, kl="k3")
    lesson = UpdateBatch(units=units, objective=objective, coefficients={"ppo": 1.0, "nll": 1.0})
    trainer = LocalTrainer(sampler.weights, AgentConfig(kl_coefficient=kl))

    def update() -> object:
        done = asyncio.run(learn(trainer, lesson, player="agent", learning_rate=0.0, seed=0))
        if done.skipped:
            sys.exit("the update was skipped: there is no time to tell")
        return done

    return update


def timed(update: Callable[[], object], device: Any) -> tuple[float, float]:  # noqa: ANN401
    """Seconds of one update, and the GPU's largest memory in it, GiB."""
    import torch

    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
        torch.cuda.synchronize(device)
    begin = time.perf_counter()
    update()
    if on_gpu:
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - begin
    return seconds, torch.cuda.max_memory_allocated(device) / 2**30 if on_gpu else 0.0


def sweep(update: Callable[[], object], model: Any) -> None:  # noqa: ANN401
    """Print what attention's kernels take of the GPU in an update, with each of `SWEPT`."""
    import torch
    from torch.profiler import ProfilerActivity

    from genenv.backends.local.cuda import tree_layers

    torch._dynamo.config.recompile_limit = 8 + 4 * len(SWEPT)
    device, before = model.device, dict(tree_layers.KERNEL_OPTIONS)
    for options in SWEPT:
        tree_layers.KERNEL_OPTIONS.clear()
        tree_layers.KERNEL_OPTIONS.update(options)
        if model.tree is not None:
            model.tree.forget_all()  # what is compiled anew is for any length, too
        try:
            timed(update, device)
            with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as found:
                timed(update, device)
        except Exception as error:  # noqa: BLE001 - torch raises many: tiles too large, options unknown
            say(sweep=options, failed=str(error).strip().splitlines()[-1][:200])
            continue
        both = {"forward_ms": 0.0, "backward_ms": 0.0, "others_ms": 0.0}
        for event in found.key_averages():
            which = "others_ms"
            if "flex_attention" in event.key:
                which = "backward_ms" if "backward" in event.key else "forward_ms"
            both[which] += event.self_device_time_total / 1e3
        say(sweep=options, **both, seconds=min(timed(update, device)[0] for _ in range(3)))
    tree_layers.KERNEL_OPTIONS.clear()
    tree_layers.KERNEL_OPTIONS.update(before)


def profile(update: Callable[[], object], device: Any) -> None:  # noqa: ANN401
    """Print the kernels that take most of the GPU's time in an update, and the functions of the program's."""
    import torch
    from torch.profiler import ProfilerActivity

    on_gpu = device.type == "cuda"
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with torch.profiler.profile(activities=kinds) as found:
        seconds, _ = timed(update, device)
    events = found.key_averages()
    by_time = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    ranked = sorted(events, key=lambda event: getattr(event, by_time), reverse=True)
    kernels = [event for event in ranked if str(event.device_type).endswith("CUDA")] if on_gpu else ranked
    on_device = sum(getattr(event, by_time) for event in kernels) / 1e6
    on_cpu = sum(event.self_cpu_time_total for event in events) / 1e6
    print(f"update {seconds:.3f} s under the profiler; GPU busy {on_device:.3f} s; CPU {on_cpu:.3f} s")
    for event in kernels[:15]:
        share = getattr(event, by_time) / 1e6
        print(
            f"{share * 1e3:9.2f} ms {share / max(on_device, 1e-9):6.1%} {event.count:6d} x {event.key[:100]}"
        )
    watched = cProfile.Profile()
    watched.enable()
    update()
    watched.disable()
    text = io.StringIO()
    pstats.Stats(watched, stream=text).sort_stats("tottime").print_stats(15)
    print(text.getvalue())
    sys.stdout.flush()


if __name__ == "__main__":
    main()
