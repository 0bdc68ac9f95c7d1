"""Did a restructuring change what is computed? Eight small runs of two source trees, compared bit for bit.

    python bench/unchanged.py --tree ../old --out /tmp/old     # a worktree of the commit before
    python bench/unchanged.py --out /tmp/new --against /tmp/old     # this checkout, then compared

Each domain is played for two rounds on scripted players, and on a tiny float32 model by `genenv train`: both
warm-ups, known solutions imitated and replayed, both KL terms, several steps of both updates, held-out tasks.
The model is made once, as `tiny-model` beside the output folder, and must be the same for both trees.

A run is read into columns: every column of every table of its store, every metric but `time/*`, every tensor
and JSON value of its checkpoints; `digests.json` has their SHA-256. All that the older has must be equal;
what only the newer one has (a column, a file) is named. Prints a table; exit status 1 when anything
differs, or when a run learned nothing: equal runs would prove nothing then.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import random
import runpy
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

Columns = dict[str, list[Any]]
"""What is compared: the values of each column, in the order of its rows."""

DOMAINS = {
    "tool_calling": ('reward = "soft", descriptions = false, max_turns = 4', "full"),
    "household": ('reward = "progress", max_turns = 11', "full"),
    "multihop_qa": ('mode = "passages", reward = "soft", distractors = 0', "full"),
    "travel": ('form = "day", longest = 3, reference_tokens = 250, reward = "soft"', "lora"),
}
"""Their settings, and what of the tiny model learns."""
SETTINGS = """
run = {{ rounds = 2, seed = 7, eval_every = 1, eval_tasks = 8, keep_checkpoints = 3 }}
domain = {{ name = "{domain}", {own} }}
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
RUNS = [(f"{domain}-{players}", domain, players) for domain in DOMAINS for players in ("scripted", "tiny")]
LEFT_OUT = {
    "run": "the run's id is random",
    "checksums": "sums over what is compared here, and over manifests that name the run",
    "rounds.timings": "seconds",
    "rounds.committed_at": "the wall clock",
    "rounds.metrics": "the same as metrics.jsonl, which is compared metric by metric",
    "MANIFEST.json:run": "random",
    "MANIFEST.json:files": "sums over files, which are compared themselves",
    "COMMITTED": "says the same in every run",
}
"""What is not compared, and why."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="a new folder for the runs, or finished ones")
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1], help="whose `src` is played")
    parser.add_argument("--against", type=Path, help="finished runs of the older tree, to compare --out with")
    parser.add_argument("--child", choices=("model", "scripted"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    out: Path = options.out.resolve()
    if options.child == "model":
        make_model(out)
    elif options.child == "scripted":
        play_scripted(out)
    else:
        if not (out / "digests.json").exists():
            play(options.tree.resolve(), out)
        return compare(options.against, out) if options.against else 0
    return 0


def play(tree: Path, out: Path) -> None:
    """Play all runs with the code of a tree, and write their digests."""
    where = child(tree, "-c", "import genenv; print(genenv.__file__)").strip()
    if not Path(where).is_relative_to(tree):
        sys.exit(f"{tree} is not what is imported, but {where}")
    model = out.parent / "tiny-model"
    if not model.exists():
        child(tree, __file__, "--child", "model", "--out", model)
    out.mkdir(parents=True)
    idle: list[str] = []
    for run, domain, players in RUNS:
        own, tuning = DOMAINS[domain]
        tiny, begin = players == "tiny", time.monotonic()
        text = SETTINGS.format(
            domain=domain, own=own, spec_tokens=400 if tiny else 4000, reply_tokens=64 if tiny else 4000
        )
        config = out / f"{run}.toml"
        config.write_text(text + MODEL.format(model=model, tuning=tuning) * tiny, encoding="utf-8")
        started = ("-m", "genenv", "train", config) if tiny else (__file__, "--child", "scripted")
        child(tree, *started, "--out", out / run)
        done = covered(out / run, tiny=tiny)
        idle += [run] * (not all(done.values()))
        print(json.dumps({"run": run, **done, "seconds": round(time.monotonic() - begin, 1)}), flush=True)
    digests = {
        run: {
            name: sha256(repr(column)) for part in read(out / run).values() for name, column in part.items()
        }
        for run, _, _ in RUNS
    }
    (out / "digests.json").write_text(json.dumps(digests, indent=1), encoding="utf-8")
    print(json.dumps({"tree": str(tree), "sha256": sha256(json.dumps(digests, sort_keys=True))}))
    if idle:
        sys.exit(f"these learned nothing: {', '.join(idle)}")


def child(tree: Path, *words: object) -> str:
    """Run Python on the code of a tree, on one thread; returns what it printed."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)  # noqa: S603 - ourselves
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def covered(run: Path, *, tiny: bool) -> dict[str, int]:
    """What a run did in its two rounds, nothing of which may be 0."""
    names = ["tasks/new", "simulator/selected", *(["agent/steps", "simulator/steps"] if tiny else [])]
    columns = read_metrics(run)
    rewarded = sum(reward > 0 for reward in read_store(run)["traces.reward"])
    return {name: int(sum(filter(None, columns.get(name, ())))) for name in names} | (
        {"rewarded attempts": rewarded} if rewarded or not tiny else {}
    )


def make_model(folder: Path) -> None:
    """A llama of two layers with random weights, and a tokenizer made of what the four domains say."""
    import tokenizers
    import torch
    import transformers

    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    begin, end = "<|im_start|>", "<|im_end|>"
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    options: dict[str, Any] = {
        "special_tokens": [begin, end],
        "initial_alphabet": alphabet,
        "show_progress": False,
    }
    inner.train_from_iterator(said_in_domains(), tokenizers.trainers.BpeTrainer(vocab_size=1500, **options))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=end, pad_token=end, extra_special_tokens=[begin]
    )
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    torch.manual_seed(1)
    shape: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "head_dim": 16,
    }
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096}
    ids: dict[str, Any] = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": None, "pad_token_id": None}
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), initializer_range=0.05, **shape, **ids)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def said_in_domains() -> Iterator[str]:
    from genenv.domains import load_domain

    for name in DOMAINS:
        domain = load_domain(name)
        rng = random.Random(0)
        for seed in domain.seeds()[::4]:
            yield json.dumps(domain.variation(seed, rng), ensure_ascii=False, separators=(",", ":"))
        for task in domain.held_out()[::4]:
            yield from (*(message.content for message in task.messages), *task.oracle)


class Script:
    """What scripted players say. The agent knows all solutions, and plays them ever more often."""

    def __init__(self, domain: Any, alpha: float) -> None:  # noqa: ANN401 - of the tree that is played
        from genenv.types import Profile

        self.domain, self.updates, self.tasks = domain, 0, dict[str, Any]()
        self.build, domain.build = domain.build, self.remembering
        for task in domain.held_out():
            self.tasks[said(task.messages)] = task
        asked = ((said(domain.simulator_messages(seed, Profile(), alpha)), seed) for seed in domain.seeds())
        self.seeds = {example(prompt): seed for prompt, seed in asked}

    def remembering(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as the domain's
        """The domain's `build`; the agent knows the solution from then on."""
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
        replies = (*(task.oracle if right else self.domain.random_replies(task, rng)), "")
        return replies[min(len(turns), len(replies)) - 1]

    def write(self, prompt: str, rng: random.Random) -> str:
        """A spec of the domain's own; one in ten breaks off."""
        written = json.dumps(self.domain.variation(self.seeds[example(prompt)], rng))
        return written[:20] if rng.random() < 0.1 else written


def said(messages: Sequence[Any]) -> str:
    """Messages as scripted policies render them."""
    return "".join(f"[{message.role}] {message.content}\n" for message in messages)


def example(prompt: str) -> str:
    """What tells the seeds apart in a simulator's prompt: all but how well the agent does."""
    return prompt.split("[user] ")[0] + prompt.split("Example: ")[1].split("\n")[0]


def play_scripted(run: Path) -> None:
    """`genenv train` with scripted players, where its settings lie beside the run's folder."""
    sys.argv = ["genenv", "train", f"{run}.toml", "--out", str(run)]
    try:
        scripted_backend()
    except ImportError:
        patched_commands()
    runpy.run_module("genenv", run_name="__main__")


def scripted_backend() -> None:
    """The scripted backend, given what a `Script` says."""
    base: Any = importlib.import_module("genenv.backends.base")
    scripted: Any = importlib.import_module("genenv.backends.scripted")

    def scripts(config: Any, roles: Any, domain: Any, seed: int) -> Any:  # noqa: ANN401
        script = Script(domain, 0.5)
        samplers = {
            "agent": scripted.ScriptedSampler(script.solve),
            "simulator": scripted.ScriptedSampler(script.write),
        }
        trainers = {
            "agent": scripted.ScriptedTrainer(script.learn),
            "simulator": scripted.ScriptedTrainer(),
        }
        return base.Opened(samplers=samplers, trainers=trainers, settled=config, warms_up=False)

    scripted.open_scripted = scripts
    sys.argv += ["--set", "policy.backend=scripted"]


def patched_commands() -> None:
    """Commit 565fb63, which had no seam for it: scripted players in the place of local ones."""
    commands: Any = importlib.import_module("genenv.commands")
    agents: Any = importlib.import_module("genenv.agent.player")
    simulators: Any = importlib.import_module("genenv.simulator.player")
    scripted: Any = importlib.import_module("genenv.policies.scripted")
    loop: Any = importlib.import_module("genenv.coevolve")

    def players(config: Any, domain: Any) -> Any:  # noqa: ANN401
        script, seed = Script(domain, config.curriculum.alpha), config.run.seed
        agent, simulator = scripted.ScriptedPolicy(script.solve), scripted.ScriptedPolicy(script.write)
        learner, other = scripted.ScriptedLearner(script.learn), scripted.ScriptedLearner()
        return loop.Players(
            agent=agents.Agent(agent, learner, config.agent, seed=seed),
            simulator=simulators.Simulator(simulator, other, config.simulator, seed=seed),
        )

    commands._players = players


def read(run: Path) -> dict[str, Columns]:
    """A run in canonical form."""
    return {"store": read_store(run), "metrics": read_metrics(run), "checkpoints": read_checkpoints(run)}


def read_store(run: Path) -> Columns:
    """Every column of every table, its rows in the order of the primary key."""
    found: Columns = {}
    with closing(sqlite3.connect(f"{(run / 'pool.db').absolute().as_uri()}?mode=ro", uri=True)) as store:
        for (table,) in store.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
            columns = store.execute(f"PRAGMA table_info({table})").fetchall()
            keys = [name for _, name, *_, place in sorted(columns, key=lambda column: column[5]) if place]
            order = ", ".join(keys) or "rowid"
            for _, name, *_ in columns:
                if not LEFT_OUT.keys() & {table, f"{table}.{name}"}:
                    rows = store.execute(f"SELECT {name} FROM {table} ORDER BY {order}")  # noqa: S608
                    found[f"{table}.{name}"] = [value for (value,) in rows]
    if "traces.messages" in found:  # the older side has the replies alone
        found["traces.replies"] = [replies_in(messages) for messages in found["traces.messages"]]
    return found


def replies_in(messages: str) -> str:
    """What the agent said in a conversation, as stores kept it that kept nothing else of it."""
    replies = [one["content"] for one in json.loads(messages) if one["role"] == "assistant"]
    return json.dumps(replies, ensure_ascii=False, separators=(",", ":"))


def read_metrics(run: Path) -> Columns:
    """Every metric but times; `None` in rounds that lack it."""
    lines = list(map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()))
    names = sorted({name for line in lines for name in line if not name.startswith("time/")})
    return {name: [line.get(name) for line in lines] for name in names}


def read_checkpoints(run: Path) -> Columns:
    """Every tensor, and every value of the JSON files."""
    found: Columns = {}
    for path in sorted(path for path in (run / "checkpoints").rglob("*") if path.is_file()):
        values: dict[str, Any] = {"all": sha256(path.read_bytes())}
        if path.suffix == ".safetensors":
            values = dict(tensors(path.read_bytes()))
        elif path.suffix == ".json":
            content = json.loads(path.read_bytes())
            values = {name: json.dumps(value, sort_keys=True) for name, value in content.items()}
        where = path.relative_to(run / "checkpoints")
        for name, value in values.items():
            if not LEFT_OUT.keys() & {path.name, f"{path.name}:{name}"}:
                found[f"{where}:{name}"] = [value]
    return found


def tensors(data: bytes) -> Iterator[tuple[str, str]]:
    """Of each tensor of a file in safetensors' format: name; type, shape and a sum of its bytes."""
    (length,) = struct.unpack("<Q", data[:8])
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            start, end = (8 + length + offset for offset in entry["data_offsets"])
            yield name, f"{entry['dtype']} {entry['shape']} {sha256(data[start:end])}"


def sha256(data: str | bytes) -> str:
    return hashlib.sha256(data if isinstance(data, bytes) else data.encode()).hexdigest()


def compare(old: Path, new: Path) -> int:
    """Print what is equal; 1 when anything that the older side has differs."""
    added, equal = set[str](), True
    print("| run | store | metrics | checkpoints | the first that differs |\n| --- | --- | --- | --- | --- |")
    for run, _, _ in RUNS:
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


def differences(old: Columns, new: Columns) -> Iterator[str]:
    """Of each column of the older side that is not the same in the newer: its name, and where first."""
    for name, values in old.items():
        others = new.get(name)
        if others is None:
            yield f"{name} is missing"
        elif len(values) != len(others):
            yield f"{name} has {len(others)} rows, not {len(values)}"
        elif repr(values) != repr(others):  # as 1 == 1.0
            shown = enumerate(zip(map(repr, values), map(repr, others), strict=True))
            row, value, other = next((n, *pair) for n, pair in shown if pair[0] != pair[1])
            yield f"{name}, row {row}: {value[:60]}, now {other[:60]}"


if __name__ == "__main__":
    sys.exit(main())
