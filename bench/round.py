"""A whole step of the agent, sampled, scored and learned from: genenv against TRL's `GRPOTrainer.train`.

    python bench/round.py --prompts 8 --group 8 --length 230 --new 64

The same prompts, numbers of completions and tokens, LoRA rank, KL coefficient and one update a step. Every
completion has exactly `--new` tokens. TRL learns from `--peer-batch` sequences at a time. Prints medians and
peak memories as one JSON line.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from turns import (
    alternate,
    learning_parser_of,
    machine,
    our_sampler,
    our_update,
    say,
    serve,
    settle,
    sides_of,
)
from update import groups_of, reward

KL = 0.001


def main(arguments: Sequence[str] | None = None) -> None:
    parser = learning_parser_of(__doc__, list(SIDES))
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group", type=int, default=8, help="completions of each prompt")
    parser.add_argument("--length", type=int, default=230, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens of a completion")
    options = parser.parse_args(arguments)
    if options.side:
        SIDES[options.side](options)
        return
    settle(options)
    options.folder = Path(tempfile.mkdtemp(prefix="genenv-bench-"))
    keys = ("prompts", "group", "length", "new", "dtype", "microbatch", "peer_batch")
    programs = dict.fromkeys(SIDES, sys.executable)
    sides = sides_of(__file__, options, ("model", "folder", *keys), programs, options.folder)
    ours, *peers = sides
    alternate(sides, options.repeats)
    peak, *peaks = [side.peak_gib for side in sides]
    say(
        bench="round",
        **{key: getattr(options, key) for key in (*keys, "repeats")},
        ours_s=ours.seconds,
        ours_sampling_s=ours.answers[-1]["sampling_s"],
        **{f"{side.name}_s": side.seconds for side in peers},
        times=peers[0].seconds / ours.seconds if peers else None,
        **{f"{side.name}_peak_gib": side.peak_gib for side in sides},
        **{f"{side.name}_gpu_gib": side.gpu_gib for side in sides},
        share_of_memory=peak / peaks[0] if peak and peaks and peaks[0] else None,
        **ours.about,
        **machine(),
    )
    for side in sides:
        side.end()


def texts(options: argparse.Namespace, tokenizer: Any) -> list[str]:  # noqa: ANN401
    """Prompts of exactly `--length` tokens: words of one token each."""
    words = [
        word
        for index in range(1000, 20000)
        if (word := tokenizer.decode([index])).startswith(" ")
        and word[1:].isalpha()
        and word.isascii()
        and tokenizer.encode(word, add_special_tokens=False) == [index]
    ]
    rng = random.Random(0)
    return ["".join(rng.choices(words, k=options.length)) for _ in range(options.prompts)]


def ours(options: argparse.Namespace) -> None:
    from genenv.agent.policy import AgentConfig
    from genenv.sampling import SampleRequest

    sampler = our_sampler(
        options.model,
        dtype=options.dtype,
        context_tokens=options.length + options.new,
        tokens_per_microbatch=options.microbatch,
        max_batch_rows=options.prompts * options.group,
    )
    tokenizer = sampler.model.tokenizer
    sampler.model.chat.stop_ids = frozenset()  # no completion ends early
    # rewards are drawn: groups that happen to be alike cost as much as others, here as in TRL
    config = AgentConfig(kl_coefficient=KL, skip_zero_advantage=False)
    update = our_update(sampler, config, rate=1e-6)
    prompts = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in texts(options, tokenizer)]
    streams = iter(range(2**62))

    def work() -> Mapping[str, Any]:
        begin = time.perf_counter()
        requests = [
            SampleRequest(prompt_ids=prompt, max_tokens=options.new, stream=next(streams))
            for prompt in prompts
            for _ in range(options.group)
        ]
        completions = sampler.sample_all(requests)
        sampling_s = time.perf_counter() - begin
        by_prompt = [completions[i : i + options.group] for i in range(0, len(completions), options.group)]
        batch = {
            "prompts": prompts,
            "completions": [[one.token_ids for one in group] for group in by_prompt],
            "old": [[one.logprobs for one in group] for group in by_prompt],
        }
        metrics = update(groups_of(batch))
        return {"sampling_s": sampling_s, "tokens": metrics["tokens/trained"]}

    serve(work, {"threads": sampler.model.config.threads})


def trl(options: argparse.Namespace) -> None:
    import datasets
    import peft
    import torch
    import transformers
    import trl

    from genenv.backends.local.hardware import choose_threads

    torch.set_num_threads(choose_threads())
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        options.model, dtype=getattr(torch, options.dtype)
    )
    rows = options.prompts * options.group
    seconds: list[float] = []

    class Clock(transformers.TrainerCallback):
        """Times the step alone, without what `train` sets up."""

        def on_step_begin(self, *_: object, **__: object) -> None:
            self.begin = time.perf_counter()

        def on_step_end(self, *_: object, **__: object) -> None:
            seconds.append(time.perf_counter() - self.begin)

    config = trl.GRPOConfig(  # pyright: ignore[reportPrivateImportUsage] - trl loads it when asked
        output_dir=str(options.folder / "trl"),
        beta=KL,
        learning_rate=1e-6,
        num_generations=options.group,
        max_completion_length=options.new,
        generation_kwargs={"min_new_tokens": options.new},
        temperature=1.0,
        per_device_train_batch_size=options.peer_batch,
        gradient_accumulation_steps=rows // options.peer_batch,
        max_steps=1,
        bf16=options.dtype == "bfloat16",
        use_cpu=not torch.cuda.is_available(),
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = trl.GRPOTrainer(  # pyright: ignore[reportPrivateImportUsage]
        model=model,
        reward_funcs=lambda completion_ids, **_: [reward(ids) for ids in completion_ids],
        args=config,
        train_dataset=datasets.Dataset.from_list([{"prompt": text} for text in texts(options, tokenizer)]),
        processing_class=tokenizer,
        peft_config=peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=[Clock()],
    )

    def work() -> Mapping[str, Any]:
        seconds.clear()
        trainer.train()
        return {"seconds": sum(seconds)}

    serve(work)


SIDES: dict[str, Callable[[argparse.Namespace], None]] = {"ours": ours, "trl": trl}

if __name__ == "__main__":
    main()
