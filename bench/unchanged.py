"""Did a restructuring change what is computed? Eight small runs of two source trees, compared bit for bit.

    python bench/unchanged.py --tree ../old --out /tmp/old     # a worktree of the commit before
    python bench/unchanged.py --out /tmp/new                   # this checkout
    python bench/unchanged.py --out /tmp/new --against /tmp/old

Each domain is played for two rounds on scripted players, and on a tiny float32 model by `genenv train`: both
warm-ups, known solutions imitated and replayed, both KL terms, several steps of both updates, held-out tasks.
The model is made once, beside the output folder of the tree that comes first, and must be the same for both.

A run is read into columns: every column of every table of its store, every metric but `time/*`, every tensor
and JSON file of its checkpoints. `digests.json` has a SHA-256 of each. What only the newer side has (a new
column, metric or file) is reported; whatever the older side has must be equal. Prints a table; exit status 1
when anything differs, and when a run learned nothing, as equal runs would then prove nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PARTS = ("store", "metrics", "checkpoints")
Columns = dict[str, list[Any]]
"""What is compared: the values of each column, in the order of its rows."""

DOMAINS = {
    "tool_calling": 'reward = "soft"\ndescriptions = false\nmax_turns = 4',
    "household": 'reward = "progress"\nmax_turns = 11',
    "multihop_qa": 'mode = "search"\nreward = "soft"\nmax_turns = 5',
    "travel": 'form = "day"\nlongest = 3\nreference_tokens = 250\nreward = "soft"',
}
BACKENDS = ("scripted", "tiny")
SETTINGS = """
[run]
rounds = 2
seed = 7
eval_every = 1
eval_tasks = 8
keep_checkpoints = 3

[domain]
name = "{domain}"
{own}

[curriculum]
band_filter = false
base_share = 0.4

[simulator]
contexts = 4
variations = 2
max_new_tokens = {spec_tokens}
lr = 2e-3
epochs = 2
batch = 4
kl_coefficient = 0.05
kl_cap = 0.2

[simulator.warmup]
steps = 20
batch = 8
lr = 1e-2
lr_decay = 0.5

[agent]
rollouts = 3
max_new_tokens = {reply_tokens}
lr = 2e-3
lr_schedule = "linear"
guidance = "all"
replayed = 4
kl_coefficient = 0.01
skip_zero_advantage = false
epochs = 2
updates_per_epoch = 2

[agent.warmup]
steps = 24
batch = 4
lr = 1e-2
kept_moments = "both"
check_every = 8
check_tasks = 4

[policy]
device = "cpu"
dtype = "float32"
threads = 1
compiled = false
packed_weights = false
"""
MODEL = 'model = "{model}"\nlora_rank = 8\ncontext_tokens = 4096\ntokens_per_microbatch = 2048\n'

UNCOMPARED = {
    "run": "the run's id is random",
    "checksums": "sums over what is compared here, and over manifests that name the run",
    "rounds.timings": "seconds",
    "rounds.committed_at": "the wall clock",
}
"""Tables and columns of a store that are left out, and why."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    out: Path = options.out
    if options.play == "model":
        make_model(out)
    elif options.play:
        play_scripted(Path(options.play), out)
    elif options.against is not None:
        return compare(options.against, out)
    else:
        return play(
            options.tree.resolve(), out.resolve(), (options.model or out.parent / "tiny-model").resolve()
        )
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="a folder for the runs, or the newer of two")
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1], help="whose `src` is played")
    parser.add_argument("--model", type=Path, help="the tiny model, made when missing; OUT/../tiny-model")
    parser.add_argument("--against", type=Path, help="play nothing: compare --out with these older runs")
    parser.add_argument("--play", help=argparse.SUPPRESS)
    return parser


def play(tree: Path, out: Path, model: Path) -> int:
    """Play all runs with the code of a tree; 1 when one of them learned nothing."""
    where = child(tree, "-c", "import genenv; print(genenv.__file__)").strip()
    if not Path(where).is_relative_to(tree):
        sys.exit(f"{tree} is not what is imported, but {where}")
    if not model.exists():
        child(tree, __file__, "--play", "model", "--out", model)
    digests: dict[str, dict[str, dict[str, str]]] = {}
    idle: list[str] = []
    for domain in DOMAINS:
        for backend in BACKENDS:
            run, begin = out / f"{domain}-{backend}", time.monotonic()
            config = write_config(run.with_suffix(".toml"), domain, backend, model)
            words = ("-m", "genenv", "train", config) if backend == "tiny" else (__file__, "--play", config)
            child(tree, *words, "--out", run)
            digests[run.name] = digests_of(run)
            done = covered(run)
            idle += [run.name] if not all(done.values()) else []
            print(
                json.dumps({"run": run.name, **done, "seconds": round(time.monotonic() - begin, 1)}),
                flush=True,
            )
    text = json.dumps(digests, indent=1, sort_keys=True)
    (out / "digests.json").write_text(text, encoding="utf-8")
    print(json.dumps({"tree": str(tree), "sha256": sha256(text), "learned_nothing": idle}))
    return 1 if idle else 0


def child(tree: Path, *words: object) -> str:
    """Run Python on the code of a tree, on one thread."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)  # noqa: S603 - our own
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def write_config(path: Path, domain: str, backend: str, model: Path) -> Path:
    tiny = backend == "tiny"
    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = {"spec_tokens": 400, "reply_tokens": 48} if tiny else {"spec_tokens": 4000, "reply_tokens": 4000}
    text = SETTINGS.format(domain=domain, own=DOMAINS[domain], **sizes)
    path.write_text(text + (MODEL.format(model=model) if tiny else ""), encoding="utf-8")
    return path


def covered(run: Path) -> dict[str, int]:
    """What a run did in its two rounds; nothing of it may be 0."""
    rows = list(map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()))[1:]
    names = ["tasks/new", "simulator/selected"]
    names += ["agent/steps", "simulator/steps"] if run.name.endswith("-tiny") else []
    found = {name: int(sum(row.get(name, 0) for row in rows)) for name in names}
    with reading(run) as store:
        succeeded = store.execute("SELECT count(*) FROM traces WHERE reward > 0").fetchone()[0]
    return found | {"rewarded attempts": succeeded}


# the players


def make_model(folder: Path) -> None:
    """A llama of two layers with random weights, and a tokenizer made of what the four domains say."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet, special = pre_tokenizers.ByteLevel.alphabet(), ["<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(said_in_domains(), trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=special[1], pad_token=special[1], extra_special_tokens=special[:1]
    )
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    torch.manual_seed(1)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 4096}
    ids = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": None, "pad_token_id": None}
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), initializer_range=0.2, **shape, **ids)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def said_in_domains() -> Iterator[str]:
    from genenv.config import resolve
    from genenv.domains import load_domain

    for name in DOMAINS:
        domain = load_domain(name, resolve({"domain": {"name": name}}).domain.settings)
        rng = random.Random(0)
        for seed in domain.seeds()[::4]:
            yield json.dumps(domain.variation(seed, rng), ensure_ascii=False, separators=(",", ":"))
        for task in domain.held_out()[::4]:
            yield from (*(message.content for message in task.messages), *task.oracle)


class Script:
    """What scripted players say. The agent knows all solutions, and plays them ever more often."""

    def __init__(self, domain: Any, alpha: float) -> None:  # noqa: ANN401 - of another tree's types
        from genenv.types import Profile

        self.domain, self.updates = domain, 0
        self.build, domain.build = domain.build, self.remembering
        self.tasks: dict[str, Any] = {}
        for task in domain.held_out():
            self.remember(task)
        self.seeds = {
            json.dumps(s.spec, ensure_ascii=False, separators=(",", ":")): s for s in domain.seeds()
        }

    def remembering(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - the domain's own `build`
        built = self.build(*arguments, **options)
        if hasattr(built, "oracle"):
            self.remember(built)
        return built

    def remember(self, task: Any) -> None:  # noqa: ANN401
        self.tasks[said(task.messages)] = task

    def asked(self, prompt: str) -> str:
        """What tells the seeds apart in a prompt: all but how the agent does."""
        return prompt.split("[user] ")[0] + prompt.split("Example: ")[1].split("\n")[0]

    def learn(self, updates: int) -> None:
        self.updates = updates

    def solve(self, prompt: str, rng: random.Random) -> str:
        asked, *turns = prompt.split("[assistant] ")
        task = self.tasks[asked]
        right = rng.random() < 0.6 + 0.1 * self.updates
        replies = task.oracle if right else self.domain.random_replies(task, rng)
        return replies[min(len(turns), len(replies)) - 1] if replies else ""

    def write(self, prompt: str, rng: random.Random) -> str:
        if rng.random() < 0.1:
            return '{"broken off":'
        return json.dumps(self.domain.variation(self.seeds[self.asked(prompt)], rng))


def said(messages: Sequence[Any]) -> str:
    """Messages as scripted policies render them."""
    return "".join(f"[{message.role}] {message.content}\n" for message in messages)


def play_scripted(config: Path, out: Path) -> None:
    """`genenv train` with scripted players."""
    try:
        scripted_backend()
    except ImportError:
        patched_commands()
    from genenv.cli import main as genenv

    sys.argv = ["genenv", "train", str(config), "--out", str(out)]
    genenv()


def scripted_backend() -> None:
    """TODO: the new seam, such as `genenv.backends.scripted`, given a `Script`'s solve, write and learn."""
    raise ImportError


def patched_commands() -> None:
    """The code before there was a seam for it: players are put in the place of local models."""
    import genenv.commands
    from genenv.agent.player import Agent
    from genenv.coevolve import Players
    from genenv.policies.scripted import ScriptedLearner, ScriptedPolicy
    from genenv.simulator.player import Simulator

    def players(config: Any, domain: Any) -> Players:  # noqa: ANN401
        script, seed = Script(domain, config.curriculum.alpha), config.run.seed
        learner = ScriptedLearner(script.learn)
        return Players(
            agent=Agent(ScriptedPolicy(script.solve), learner, config.agent, seed=seed),
            simulator=Simulator(ScriptedPolicy(script.write), ScriptedLearner(), config.simulator, seed=seed),
        )

    genenv.commands._players = players


# what is compared


@contextlib.contextmanager
def reading(run: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(
        sqlite3.connect(f"{(run / 'pool.db').absolute().as_uri()}?mode=ro", uri=True)
    ) as store:
        yield store


def read(run: Path) -> dict[str, Columns]:
    """A run in canonical form, by part."""
    return dict(zip(PARTS, (read_store(run), read_metrics(run), read_checkpoints(run)), strict=True))


def read_store(run: Path) -> Columns:
    """Every column of every table, rows in the order of the primary key."""
    found: Columns = {}
    with reading(run) as store:
        tables = store.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        )
        for (table,) in tables.fetchall():
            columns = store.execute(f"PRAGMA table_info({table})").fetchall()
            key = ", ".join(c[1] for c in sorted(columns, key=lambda c: c[5]) if c[5]) or "rowid"
            for name in (c[1] for c in columns if not UNCOMPARED.keys() & {table, f"{table}.{c[1]}"}):
                values = store.execute(f"SELECT {name} FROM {table} ORDER BY {key}").fetchall()  # noqa: S608
                found[f"{table}.{name}"] = [value for (value,) in values]
    return found


def read_metrics(run: Path) -> Columns:
    """Every metric, `None` in rounds that lack it."""
    lines = list(map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()))
    names = sorted({name for line in lines for name in line if not name.startswith("time/")})
    return {name: [line.get(name) for line in lines] for name in names}


def read_checkpoints(run: Path) -> Columns:
    """Every tensor and JSON file; of a manifest neither the run's id nor the files, which are compared."""
    found: Columns = {}
    root = run / "checkpoints"
    for path in sorted(p for p in root.rglob("*") if p.is_file() and p.name != "COMMITTED"):
        name, data = str(path.relative_to(root)), path.read_bytes()
        if path.suffix == ".safetensors":
            found |= {f"{name}:{tensor}": [value] for tensor, value in tensors(data)}
        elif path.suffix == ".json":
            content = json.loads(data)
            left_out = {"run", "files"} if path.name == "MANIFEST.json" else set[str]()
            found |= {f"{name}:{key}": [value] for key, value in content.items() if key not in left_out}
        else:
            found[name] = [sha256(data)]
    return found


def tensors(data: bytes) -> Iterator[tuple[str, str]]:
    """Name and content of each tensor of a file of safetensors: number format, shape, and the sum of its bytes."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    for name, entry in header.items():
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        yield name, f"{entry['dtype']} {entry['shape']} {sha256(data[start:end])}"


def digests_of(run: Path) -> dict[str, dict[str, str]]:
    return {
        part: {name: sha256(repr(values)) for name, values in columns.items()}
        for part, columns in read(run).items()
    }


def sha256(data: str | bytes) -> str:
    return hashlib.sha256(
        data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    ).hexdigest()


# the comparison


def compare(old: Path, new: Path) -> int:
    """Print what is equal; 1 when anything of the older side differs."""
    runs = [f"{domain}-{backend}" for domain in DOMAINS for backend in BACKENDS]
    added: dict[str, None] = {}
    equal = True
    rows = [["run", *PARTS, "the first that differs"], ["---"] * 5]
    for run in runs:
        before, after = read(old / run), read(new / run)
        found = {part: list(differences(before[part], after[part])) for part in PARTS}
        equal &= not any(found.values())
        said = [
            f"{len(d)} of {len(before[p])} DIFFER" if d else f"{len(before[p])} equal"
            for p, d in found.items()
        ]
        rows.append([run, *said, next((d[0] for d in found.values() if d), "")])
        added |= dict.fromkeys(f"{p}: {n}" for p in PARTS for n in after[p].keys() - before[p].keys())
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))
    print(json.dumps({"equal": equal, "only_in_newer": sorted(added), "not_compared": UNCOMPARED}))
    return 0 if equal else 1


def differences(old: Mapping[str, list[Any]], new: Mapping[str, list[Any]]) -> Iterator[str]:
    """What of the older side is not the same in the newer: column, row, and the values there."""
    for name, values in old.items():
        others = new.get(name)
        if others is None:
            yield f"{name} is missing"
        elif len(values) != len(others):
            yield f"{name}: {len(values)} rows, now {len(others)}"
        elif repr(values) != repr(others):
            row = next(
                n for n, pair in enumerate(zip(values, others, strict=True)) if repr(pair[0]) != repr(pair[1])
            )
            yield f"{name}, row {row}: {repr(values[row])[:60]}, now {repr(others[row])[:60]}"


if __name__ == "__main__":
    sys.exit(main())
