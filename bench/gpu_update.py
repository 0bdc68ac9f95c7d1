"""How long a GRPO update takes on this machine's GPU, and where the time goes.

    python bench/gpu_update.py --model FOLDER --work 8x8x512+512 --work 2x1x4096+4096
    python bench/gpu_update.py --model FOLDER --work 8x8x512+512 --profile

A piece of work is GROUPSxROLLOUTSxPROMPT+COMPLETION, in tokens. The model may have random weights: speed does
not depend on what they say. Prints one JSON line for each: the first update, which compiles, then the median
of some more, and the largest memory. `--plain` leaves compiled layers out. `--profile` adds the kernels that
take most of the GPU's time, and the functions that take most of the program's.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import pstats
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from turns import machine, our_sampler, our_update, say
from update import a_batch, groups_of

OLD = -12.0
"""Log-probability of all tokens when they were sampled, nats: about that of random weights."""


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


def shape_of(text: str) -> tuple[int, int, int, int]:
    """Groups, rollouts, tokens of a prompt and of a completion."""
    groups, rollouts, tokens = text.split("x")
    prompt, completion = tokens.split("+")
    return int(groups), int(rollouts), int(prompt), int(completion)


def update_of(sampler: Any, text: str, kl: float) -> Callable[[], object]:  # noqa: ANN401
    """An update of a sampler's weights from made-up groups, at a learning rate of 0."""
    from genenv.agent.settings import AgentConfig

    groups, rollouts, prompt, completion = shape_of(text)
    work = argparse.Namespace(groups=groups, rollouts=rollouts, prompt=prompt, completion=completion)
    batch = a_batch(work, sampler.model.vocabulary)
    batch |= {"old": [[[OLD] * completion] * rollouts] * groups}
    settings = AgentConfig(kl_coefficient=kl, temperature=1.0, skip_zero_advantage=False)
    update, made_up = our_update(sampler, settings, rate=0.0), groups_of(batch)
    return lambda: update(made_up)


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
