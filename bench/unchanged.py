"""Did a restructuring change what is computed? Eight small runs of two source trees, compared bit for bit.

    python bench/unchanged.py --tree ../old --out /tmp/old     # a worktree of the commit before
    python bench/unchanged.py --out /tmp/new --against /tmp/old     # this checkout, then compared
    python bench/unchanged.py --out /tmp/new --only household-tiny --set simulator.kl_cap=10

Each environment is played for two rounds on scripted players, and on a tiny float32 model by `genenv train`:
both warm-ups, known solutions imitated and replayed, both KL terms, several steps of both updates, held-out
tasks. The model is made once, as `tiny-model` beside the output folder, and must be the same for both trees.

A run is read into columns: its store, its metrics, its checkpoints; `digests.json` has their SHA-256. All
that the older has must be equal; what only the newer one has (a column, a file) is named. Prints a table;
exit status 1 when anything differs, or when a run learned nothing: equal runs would prove nothing then.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from columns import LEFT_OUT, differences, read, read_metrics, read_store, sha256
from trees import HERE, environment

ENVIRONMENTS = {
    "tool_calling": ('reward = "soft", descriptions = false, max_turns = 4', "full"),
    "household": ('reward = "progress", max_turns = 11', "full"),
    "multihop_qa": ('mode = "passages", reward = "soft", distractors = 0', "full"),
    "travel": ('form = "day", longest = 3, reference_tokens = 250, reward = "soft"', "lora"),
}
"""Their settings, and what of the tiny model learns."""
SETTINGS = """
run = {{ rounds = 2, seed = 7, eval_every = 1, eval_tasks = 8, keep_checkpoints = 3 }}
environment = {{ name = "{env}", {own} }}
curriculum = {{ band_filter = false, base_share = 0.6 }}
[simulator]
contexts = 4
variations = 2
max_new_tokens = {spec_tokens}
temperature = 0.7
lr = 2e-3
epochs = 2
batch = 4
kl_coefficient = 0.05
kl_cap = 0.02
warmup = {{ steps = 32, batch = 8, lr = 5e-3, lr_decay = 0.5 }}
[agent]
rollouts = 3
max_new_tokens = {reply_tokens}
temperature = 0.5
lr = 5e-4
lr_schedule = "linear"
guidance = "all"
replayed = 4
kl_coefficient = 0.01
skip_zero_advantage = false
epochs = 2
updates_per_epoch = 2
warmup = {{ steps = 64, batch = 6, lr = 4e-3, lr_decay = 0.5, kept_moments = "both", check_every = 32 }}
[policy]
device = "cpu"
dtype = "float32"
threads = 1
compiled = false
packed_weights = false
"""
MODEL = 'context_tokens = 4096\ntokens_per_microbatch = 2048\nmodel = "{model}"\ntuning = "{tuning}"\n'
RUNS = [f"{env}-{players}" for env in ENVIRONMENTS for players in ("scripted", "tiny")]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="a new folder for the runs, or finished ones")
    parser.add_argument("--tree", type=Path, default=HERE, help="whose `src` is played")
    parser.add_argument("--against", type=Path, help="finished runs of the older tree, to compare --out with")
    parser.add_argument("--only", action="append", choices=RUNS, help="this run alone; may be repeated")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="handed to every `genenv train`",
    )
    parser.add_argument("--child", choices=("model", "scripted"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    out: Path = options.out.resolve()
    options.runs = options.only or RUNS
    if options.child == "model":
        make_model(out)
    elif options.child == "scripted":
        play_scripted(out, options.overrides)
    else:
        if not (out / "digests.json").exists():
            play(options.tree.resolve(), out, options)
        return compare(options.against, out, options.runs) if options.against else 0
    return 0


def play(tree: Path, out: Path, options: argparse.Namespace) -> None:
    """Play runs with the code of a tree, and write their digests."""
    python = environment(tree) | {"OMP_NUM_THREADS": "1"}
    model = out.parent / "tiny-model"
    if not model.exists() and any(run.endswith("-tiny") for run in options.runs):
        child(python, __file__, "--child", "model", "--out", model)
    out.mkdir(parents=True)
    idle: list[str] = []
    for run in options.runs:
        begin = time.monotonic()
        play_one(tree, run, out, model, options.overrides)
        done = covered(out / run)
        idle += [run] * (not all(done.values()))
        print(json.dumps({"run": run, **done, "seconds": round(time.monotonic() - begin, 1)}), flush=True)
    digests = {
        run: {
            name: sha256(repr(column)) for part in read(out / run).values() for name, column in part.items()
        }
        for run in options.runs
    }
    (out / "digests.json").write_text(json.dumps(digests, indent=1), encoding="utf-8")
    print(json.dumps({"tree": str(tree), "sha256": sha256(json.dumps(digests, sort_keys=True))}))
    if idle:
        sys.exit(f"these learned nothing: {', '.join(idle)}")


def play_one(tree: Path, run: str, out: Path, model: Path, overrides: Sequence[str]) -> None:
    """One `genenv train` with the code of a tree."""
    python = environment(tree) | {"OMP_NUM_THREADS": "1"}
    env, players = run.split("-")
    own, tuning = ENVIRONMENTS[env]
    tiny = players == "tiny"
    spec_tokens, reply_tokens = (400, 64) if tiny else (4000, 4000)
    text = SETTINGS.format(env=env, own=own, spec_tokens=spec_tokens, reply_tokens=reply_tokens)
    config = out / f"{run}.toml"
    config.write_text(text + MODEL.format(model=model, tuning=tuning) * tiny, encoding="utf-8")
    started = ("-m", "genenv", "train", config) if tiny else (__file__, "--child", "scripted")
    child(python, *started, "--out", out / run, *given(overrides))


def given(overrides: Sequence[str]) -> list[str]:
    """Settings as words of `genenv train`."""
    return [word for override in overrides for word in ("--set", override)]


def child(python: Mapping[str, str], *words: object) -> None:
    """Run Python in an environment, to its end."""
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, env=python, capture_output=True, text=True)  # noqa: S603 - ourselves
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr[-3000:]}")


def covered(run: Path) -> dict[str, int]:
    """What a run did in its two rounds, nothing of which may be 0."""
    tiny, columns = run.name.endswith("-tiny"), read_metrics(run)
    names = ["tasks/new", "simulator/selected", *(["agent/steps", "simulator/steps"] if tiny else [])]
    done = {name: int(sum(filter(None, columns.get(name, ())))) for name in names}
    rewarded = sum(reward > 0 for reward in read_store(run)["traces.reward"])
    return done if tiny and not rewarded else done | {"rewarded attempts": rewarded}


def make_model(folder: Path) -> None:
    """A llama of two layers with random weights, and a tokenizer made of what the four environments say."""
    import tokenizers
    import torch
    import transformers

    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    begin, end = "<|im_start|>", "<|im_end|>"
    trained: dict[str, Any] = {"vocab_size": 1500, "special_tokens": [begin, end], "show_progress": False}
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(initial_alphabet=alphabet, **trained)
    inner.train_from_iterator(said_in_environments(), trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=end, pad_token=end, extra_special_tokens=[begin]
    )
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    torch.manual_seed(1)
    shape: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    shape |= {"head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
    shape |= {"max_position_embeddings": 4096, "vocab_size": len(tokenizer), "initializer_range": 0.05}
    ids: dict[str, Any] = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": None, "pad_token_id": None}
    config = transformers.LlamaConfig(**shape, **ids)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def said_in_environments() -> Iterator[str]:
    from genenv.environments import load_environment

    for name in ENVIRONMENTS:
        env = load_environment(name)
        rng = random.Random(0)
        for seed in env.seeds()[::4]:
            yield json.dumps(env.variation(seed, rng), ensure_ascii=False, separators=(",", ":"))
        for task in env.held_out()[::4]:
            yield from (*(message.content for message in task.messages), *task.oracle)


class Script:
    """What scripted players say. The agent knows all solutions, and plays them ever more often."""

    def __init__(self, env: Any, alpha: float) -> None:  # noqa: ANN401 - of the tree that is played
        from genenv.types import Profile

        self.env, self.updates, self.tasks = env, 0, dict[str, Any]()
        self.build, env.build = env.build, self.remembering
        for task in env.held_out():
            self.tasks[said(task.messages)] = task
        asked = ((said(env.simulator_messages(seed, Profile(), alpha)), seed) for seed in env.seeds())
        self.seeds = {example(prompt): seed for prompt, seed in asked}

    def remembering(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as the environment's
        """The environment's `build`; the agent knows the solution from then on."""
        built = self.build(*arguments, **options)
        if hasattr(built, "oracle"):
            self.tasks[said(built.messages)] = built
        return built

    def learn(self, updates: int) -> None:
        """The agent was updated so many times."""
        self.updates = updates

    def solve(self, prompt: str, rng: random.Random) -> str:
        """The agent's next reply: the known one, or that of a random attempt."""
        question, *turns = prompt.split("[assistant] ")
        task, right = self.tasks[question], rng.random() < 0.6 + 0.1 * self.updates
        replies = (*(task.oracle if right else self.env.random_replies(task, rng)), "")
        return replies[min(len(turns), len(replies)) - 1]

    def write(self, prompt: str, rng: random.Random) -> str:
        """A spec of the environment's own; one in ten breaks off."""
        written = json.dumps(self.env.variation(self.seeds[example(prompt)], rng))
        return written[:20] if rng.random() < 0.1 else written


def said(messages: Sequence[Any]) -> str:
    """Messages as scripted policies render them."""
    return "".join(f"[{message.role}] {message.content}\n" for message in messages)


def example(prompt: str) -> str:
    """What tells the seeds apart in a simulator's prompt: all but how well the agent does."""
    return prompt.split("[user] ")[0] + prompt.split("Example: ")[1].split("\n")[0]


def play_scripted(run: Path, overrides: Sequence[str]) -> None:
    """`genenv train` with scripted players, where its settings lie beside the run's folder."""
    sys.argv = ["genenv", "train", f"{run}.toml", "--out", str(run), *given(overrides)]
    scripted_backend()
    runpy.run_module("genenv", run_name="__main__")


def scripted_backend() -> None:
    """The scripted backend, given what a `Script` says."""
    base: Any = importlib.import_module("genenv.backends.base")
    scripted: Any = importlib.import_module("genenv.backends.scripted")

    def opened(config: Any, roles: Any, env: Any, seed: int) -> Any:  # noqa: ANN401
        script = Script(env, 0.5)
        scripts = {"agent": script.solve, "simulator": script.write}
        samplers = {role: scripted.ScriptedSampler(said) for role, said in scripts.items()}
        trainers = {role: scripted.ScriptedTrainer() for role in scripts}
        trainers["agent"].on_update = script.learn
        return base.Opened(samplers=samplers, trainers=trainers, settled=config, warms_up=False)

    scripted.open_scripted = opened
    sys.argv += ["--set", "policy.backend=scripted"]


def compare(old: Path, new: Path, runs: Sequence[str]) -> int:
    """Print what is equal; 1 when anything that the older side has differs."""
    added, equal = set[str](), True
    print("| run | store | metrics | checkpoints | the first that differs |\n| --- | --- | --- | --- | --- |")
    for run in runs:
        before, after = read(old / run), read(new / run)
        found = {part: list(differences(columns, after[part])) for part, columns in before.items()}
        cells = [
            f"{len(found[part])} of {len(before[part])} differ" if found[part] else "equal" for part in found
        ]
        first = next((some[0] for some in found.values() if some), "")
        print(f"| {' | '.join([run, *cells, first])} |")
        equal &= not first
        added |= {f"{part}: {name}" for part in before for name in after[part].keys() - before[part].keys()}
    print(json.dumps({"equal": equal, "only_in_newer": sorted(added), "left_out": LEFT_OUT}))
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
