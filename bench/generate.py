"""How fast tokens are sampled: genenv against transformers' `generate` and, where there is one, vLLM.

    python bench/generate.py --prompts 64 --length 96 --new 64
    python bench/generate.py --prompts 8 --length 512 --group 8 --new 64
    python bench/generate.py --vllm .venv-vllm/bin/python
    python bench/generate.py --busy 1
    python bench/generate.py --static

Every completion has exactly `--new` tokens, drawn at temperature 1 from the whole vocabulary. With `--group`
each prompt is answered several times. The contenders have a process each and take turns; medians are printed
as one JSON line.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from turns import (
    Contender,
    alternate,
    beside,
    machine,
    our_sampler,
    parser_of,
    say,
    serve,
    settle,
    share_of,
    sides_of,
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, list(SIDES))
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--length", type=int, default=96, help="tokens of a prompt")
    parser.add_argument("--group", type=int, default=1, help="completions of each prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens of a completion")
    parser.add_argument("--busy", type=int, default=0, help="other processes that have work all the time")
    parser.add_argument("--static", action="store_true", help="also `generate` with a static, compiled cache")
    parser.add_argument("--vllm", default="", help="an interpreter that has vLLM")
    options = parser.parse_args(arguments)
    if options.side:
        SIDES[options.side](options)
        return
    settle(options)
    with beside(options.busy):
        contenders = run(options)
    ours, *peers = contenders
    tokens = options.prompts * options.group * options.new
    say(
        bench="generate",
        **{
            key: getattr(options, key)
            for key in ("prompts", "length", "group", "new", "dtype", "repeats", "busy")
        },
        **{f"{side.name}_s": side.seconds for side in contenders},
        **{f"{side.name}_tokens_per_s": tokens / side.seconds for side in contenders},
        **{f"{side.name}_peak_gib": side.peak_gib for side in contenders},
        **{f"{side.name}_gpu_gib": side.gpu_gib for side in contenders},
        **{f"times_{side.name}": side.seconds / ours.seconds for side in peers},
        **ours.about,
        share_of_peak=ours.share_of_peak,
        **machine(),
    )
    for side in contenders:
        side.end()


def run(options: argparse.Namespace) -> list[Contender]:
    """All turns."""
    programs = {"ours": sys.executable, "transformers": sys.executable}
    if options.static:
        programs["static"] = sys.executable
    if options.vllm:
        programs["vllm"] = options.vllm
    folder = Path(tempfile.mkdtemp(prefix="genenv-bench-"))
    keys = ("model", "prompts", "length", "group", "new", "dtype")
    contenders = sides_of(__file__, options, keys, programs, folder)
    alternate(contenders, options.repeats)
    return contenders


def prompts_of(options: argparse.Namespace, vocabulary: int) -> list[list[int]]:
    """Random tokens: speed does not depend on what they say."""
    rng = random.Random(0)
    return [[rng.randrange(100, vocabulary) for _ in range(options.length)] for _ in range(options.prompts)]


def ours(options: argparse.Namespace) -> None:
    import torch

    from genenv.sampling import SampleRequest

    sampler = our_sampler(
        options.model,
        dtype=options.dtype,
        context_tokens=options.length + options.new,
        max_batch_rows=options.prompts * options.group,
    )
    sampler.model.chat.stop_ids = frozenset()  # no completion ends early
    streams = iter(range(2**62))
    prompts = prompts_of(options, sampler.model.vocabulary)

    def work() -> Mapping[str, Any]:
        requests = [
            SampleRequest(prompt_ids=tuple(prompt), max_tokens=options.new, stream=next(streams))
            for prompt in prompts
            for _ in range(options.group)
        ]
        return {"tokens": sum(len(done.token_ids) for done in sampler.sample_all(requests))}

    share, peak = share_of(work, options.dtype)
    serve(work, {"threads": torch.get_num_threads(), **share}, peak)


def peer_transformers(options: argparse.Namespace, **cache: str) -> None:
    import torch
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        options.model, dtype=getattr(torch, options.dtype)
    )
    model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    prompts = prompts_of(options, model.config.vocab_size)
    ids = torch.tensor([prompt for prompt in prompts for _ in range(options.group)], device=model.device)
    generate = functools.partial(
        model.generate,
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_new_tokens=options.new,
        max_new_tokens=options.new,
        pad_token_id=0,
        **cache,
    )
    serve(lambda: {"tokens": (generate().shape[1] - options.length) * len(ids)})


def peer_static(options: argparse.Namespace) -> None:
    """The same with a static cache, for which transformers compiles the model where there is a GPU."""
    peer_transformers(options, cache_implementation="static")


def peer_vllm(options: argparse.Namespace) -> None:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB; left alone, it asks for half of the machine
    import vllm  # pyright: ignore[reportMissingImports] - it has an environment of its own

    engine = vllm.LLM(
        model=options.model,
        dtype=options.dtype,
        max_model_len=options.length + options.new,
        max_num_seqs=options.prompts * options.group,
        enable_prefix_caching=True,
    )
    vocabulary = json.loads(Path(options.model, "config.json").read_text(encoding="utf-8"))["vocab_size"]
    prompts = [{"prompt_token_ids": prompt} for prompt in prompts_of(options, vocabulary)]
    sampling = vllm.SamplingParams(
        n=options.group, temperature=1.0, max_tokens=options.new, ignore_eos=True, detokenize=False
    )

    def work() -> Mapping[str, Any]:
        outputs = engine.generate(prompts, sampling, use_tqdm=False)
        engine.reset_prefix_cache()  # the next turn must not find this one's prompts
        return {"tokens": sum(len(one.token_ids) for output in outputs for one in output.outputs)}

    serve(work)


SIDES: dict[str, Callable[[argparse.Namespace], None]] = {
    "ours": ours,
    "transformers": peer_transformers,
    "static": peer_static,
    "vllm": peer_vllm,
}

if __name__ == "__main__":
    main()
