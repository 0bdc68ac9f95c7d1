"""What a client does with the real SDK, in a process of its own: line after line of JSON, a case each.

It reads `{"case": ..., "arguments": {...}}` and writes `{"result": ...}` or `{"error": [...]}`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

os.environ.setdefault("TINKER_TELEMETRY", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TINKER_API_KEY", "tml-test")

import tinker
from tinker import types

PROMPT = list(b"The weather today")
FINE, COLD = list(b" is fine"), list(b"zqxkvjwy")
ADAM = types.AdamParams(learning_rate=1e-2)


def service(url: str) -> Any:
    # A new session each time: the system may give a later server the port of an ended one.
    return tinker.ServiceClient(base_url=url)


def trainer(url: str, **asked: Any) -> Any:
    return service(url).create_lora_training_client(base_model="tiny", **({"rank": 4, "seed": 1} | asked))


def datum(said: list[int], **inputs: Any) -> Any:
    whole, before = PROMPT + said, len(PROMPT) - 1

    def spread(value: Any) -> Any:
        own = [float(value)] * len(said) if isinstance(value, int | float) else [float(v) for v in value]
        return types.TensorData(data=[0.0] * before + own, dtype="float32", shape=[before + len(own)])

    return types.Datum(
        model_input=types.ModelInput.from_ints(whole[:-1]),
        loss_fn_inputs={
            "target_tokens": types.TensorData(data=whole[1:], dtype="int64", shape=[len(whole) - 1]),
            **{name: spread(value) for name, value in inputs.items()},
        },
    )


def logprobs(client: Any, said: list[int]) -> list[float]:
    found = client.forward([datum(said, weights=1.0)], "cross_entropy").result()
    return found.loss_fn_outputs[0]["logprobs"].data[len(PROMPT) - 1 :]


def step(client: Any, data: list[Any], adam: Any = ADAM) -> Any:
    learned = client.forward_backward(data, "cross_entropy")
    client.optim_step(adam).result()
    return learned.result()


def draw(sampler: Any, samples: int = 1, **said: Any) -> Any:
    params = types.SamplingParams(**({"max_tokens": 16, "seed": 7} | said))
    return sampler.sample(types.ModelInput.from_ints(PROMPT), samples, params).result()


def tokens(answer: Any) -> list[list[int]]:
    return [list(one.tokens) for one in answer.sequences]


def capabilities(url: str) -> Any:
    found = service(url).get_server_capabilities().supported_models
    return [[one.model_name, one.max_context_length] for one in found]


def signs(url: str) -> Any:
    mine, other = trainer(url), trainer(url, rank=2)
    before = [sum(logprobs(mine, FINE)), sum(logprobs(mine, COLD))]
    untouched = logprobs(other, FINE)
    for _ in range(3):
        found = step(mine, [datum(FINE, weights=1.0), datum(COLD, weights=-1.0)])
    after = [sum(logprobs(mine, FINE)), sum(logprobs(mine, COLD))]
    return {
        "before": before,
        "after": after,
        "same": untouched == logprobs(other, FINE),
        "metrics": found.metrics,
        "fields": sorted(found.loss_fn_outputs[0]),
    }


def sums(url: str) -> Any:
    client = trainer(url, seed=3)
    data = [datum(FINE, weights=[0.5, -2, 0, 1, 1, 1, 1, 1]), datum(COLD, weights=1.0)]
    found = client.forward(data, "cross_entropy").result()
    expected = -sum(
        weight * logprob
        for one, own in zip(data, found.loss_fn_outputs, strict=True)
        for weight, logprob in zip(one.loss_fn_inputs["weights"].data, own["logprobs"].data, strict=True)
    )
    parts = [sum(own["elementwise_loss"].data) for own in found.loss_fn_outputs]
    return {"loss": found.metrics["loss:sum"], "expected": expected, "parts": sum(parts)}


def sampling(url: str) -> Any:
    client = trainer(url)
    step(client, [datum(FINE, weights=1.0)])
    sampler = client.save_weights_and_get_sampling_client()
    first, again = draw(sampler, 4), draw(sampler, 4)
    other, warm = draw(sampler, 4, seed=8), draw(sampler, 1, temperature=0.5, top_k=8)
    apart = [
        max(abs(a - b) for a, b in zip(logprobs(client, list(one.tokens)), one.logprobs, strict=True))
        for one in [*first.sequences, *warm.sequences]
    ]
    whole = PROMPT + list(first.sequences[0].tokens)
    own = sampler.compute_logprobs(types.ModelInput.from_ints(whole)).result()
    before = draw(sampler, 1, temperature=0.0)
    step(client, [datum(COLD, weights=1.0)])
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda seed: tokens(draw(sampler, 2, seed=seed)), range(100, 108)))
    return {
        "first": tokens(first),
        "again": tokens(again),
        "other": tokens(other),
        "apart": max(apart),
        "compute_logprobs": [len(whole), len(own), own[0], own[len(PROMPT) :]],
        "logprobs": list(first.sequences[0].logprobs),
        "stays": tokens(before) == tokens(draw(sampler, 1, temperature=0.0)),
        "alone": tokens(draw(sampler, 2, seed=103)) == together[3],
        "name": sampler.get_base_model(),
    }


def stops(url: str) -> Any:
    sampler = service(url).create_sampling_client(base_model="tiny")
    free = tokens(draw(sampler, 1, max_tokens=40))[0]
    text = bytes(t for t in free if t < 128).decode("latin1")
    by_id = draw(sampler, 1, max_tokens=40, stop=[free[6]]).sequences[0]
    top = sampler.sample(
        types.ModelInput.from_ints(PROMPT),
        1,
        types.SamplingParams(max_tokens=1),
        include_prompt_logprobs=True,
        topk_prompt_logprobs=2,
    ).result()
    return {
        "free": free,
        "text": text,
        "by_id": [list(by_id.tokens), by_id.stop_reason],
        "top": [top.topk_prompt_logprobs[0], len(top.topk_prompt_logprobs), len(top.topk_prompt_logprobs[1])],
        "prompt": top.prompt_logprobs[:2],
    }


def train_and_save(url: str, name: str) -> Any:
    client = trainer(url)
    data = [datum(FINE, weights=1.0), datum(COLD, weights=0.3)]
    for _ in range(2):
        step(client, data)
    path = client.save_state(name).result().path
    step(client, data)
    return {"path": path, "next": logprobs(client, FINE)}


def go_on(url: str, path: str, optimizer: bool = True) -> Any:
    data = [datum(FINE, weights=1.0), datum(COLD, weights=0.3)]
    made = service(url)
    load = (
        made.create_training_client_from_state_with_optimizer
        if optimizer
        else made.create_training_client_from_state
    )
    client = load(path)
    step(client, data)
    return {"next": logprobs(client, FINE)}


def library(url: str) -> Any:
    client = trainer(url, user_metadata={"of": "a test"})
    step(client, [datum(FINE, weights=1.0)])
    path = client.save_state("one").result().path
    sampled = client.save_weights_for_sampler("two").result().path
    named = tokens(draw(service(url).create_sampling_client(model_path=sampled)))
    passing = tokens(draw(client.save_weights_and_get_sampling_client()))
    rest = service(url).create_rest_client()
    run = rest.get_training_run(client.model_id).result()
    before = [one.checkpoint_id for one in rest.list_checkpoints(client.model_id).result().checkpoints]
    info = rest.get_weights_info_by_tinker_path(path).result()
    rest.delete_checkpoint_from_tinker_path(path).result()
    after = [one.tinker_path for one in rest.list_checkpoints(client.model_id).result().checkpoints]
    runs = [one.training_run_id for one in rest.list_training_runs().result().training_runs]
    return {
        "path": path,
        "sampled": sampled,
        "equal": named == passing,
        "run": [run.base_model, run.lora_rank, run.user_metadata, run.last_checkpoint.tinker_path],
        "before": before,
        "after": after,
        "listed": client.model_id in runs,
        "info": info.model_dump(),
        "model": [client.get_info().model_data.model_name, client.get_info().lora_rank],
    }


def losses(url: str) -> Any:
    client = trainer(url)
    sampler = client.save_weights_and_get_sampling_client()
    one = draw(sampler).sequences[0]
    said, old = list(one.tokens), list(one.logprobs)
    found = {}
    for name, config in (
        ("importance_sampling", None),
        ("ppo", {"clip_low_threshold": 0.9}),
        ("cispo", None),
    ):
        data = [datum(said, logprobs=old, advantages=1.0, mask=1.0)]
        found[name] = client.forward_backward(data, name, config).result().metrics["loss:sum"]
    before = sum(logprobs(client, said))
    client.optim_step(ADAM).result()
    return {"found": found, "tokens": len(said), "moved": sum(logprobs(client, said)) - before}


def custom(url: str) -> Any:
    import torch

    client = trainer(url)
    before = [sum(logprobs(client, FINE)), sum(logprobs(client, COLD))]

    def loss(data: Any, found: Any) -> Any:
        apart = found[0].sum() - found[1].sum()
        return -torch.nn.functional.logsigmoid(0.1 * apart), {"apart": float(apart)}

    data = [datum(FINE, weights=1.0), datum(COLD, weights=1.0)]
    for _ in range(3):
        metrics = client.forward_backward_custom(data, loss).result().metrics
        client.optim_step(ADAM).result()
    after = [sum(logprobs(client, FINE)), sum(logprobs(client, COLD))]
    return {"before": before, "after": after, "metrics": metrics}


def pipelined(url: str) -> Any:
    """Many steps under way at the same time, and one after the other."""
    data = [[datum(FINE, weights=1.0)], [datum(COLD, weights=0.5)]]
    ends = []
    for waiting in (True, False):
        client, futures = trainer(url), []
        for number in range(6):
            made = [client.forward_backward(data[number % 2], "cross_entropy"), client.optim_step(ADAM)]
            futures += [one.result() for one in made] if waiting else made
        if not waiting:
            futures = [one.result() for one in futures]
        ends.append(logprobs(client, FINE))
    return {"waited": ends[0], "pipelined": ends[1]}


def attempt(url: str, what: str) -> Any:
    """Something that is refused."""
    client = trainer(url)
    weighted = [datum(FINE, weights=1.0)]
    did = {
        "base": lambda: service(url).create_lora_training_client(base_model="none", rank=4),
        "rank": lambda: trainer(url, rank=5000),
        "unembed": lambda: trainer(url, train_mlp=False, train_attn=False),
        "token": lambda: client.forward_backward([datum([9999], weights=1.0)], "cross_entropy").result(),
        "input": lambda: client.forward_backward([datum(FINE, advantages=1.0)], "ppo").result(),
        "path": lambda: client.load_state("tinker://x/weights/y").result(),
        "name": lambda: client.save_state("../x").result(),
        "sampler": lambda: service(url).create_sampling_client(model_path="tinker://x/weights/y"),
        "long": lambda: (
            draw(service(url).create_sampling_client(base_model="tiny"), max_tokens=4).sequences
            and service(url)
            .create_sampling_client(base_model="tiny")
            .sample(types.ModelInput.from_ints([65] * 300), 1, types.SamplingParams(max_tokens=4))
            .result()
        ),
        "loss": lambda: client.forward_backward(weighted, "cross_entropy").result(),
        "live": lambda: (
            step(client, weighted),
            client.load_state(client.save_state("live").result().path).result(),
        ),
        "step": lambda: [step(client, weighted) for _ in range(30)],
    }[what]
    try:
        did()
    except Exception as error:  # noqa: BLE001 - that is the answer
        refused = f"{type(error).__name__}: {error}"
    else:
        refused = ""
    return {"refused": refused, "goes_on": what in ("live", "step", "loss") or bool(logprobs(client, FINE))}


def nan_loss(url: str) -> Any:
    return trainer(url).forward_backward([datum(FINE, weights=1.0)], "cross_entropy").result().metrics


def gradient_norm(url: str, weights: list[float]) -> Any:
    client = trainer(url, seed=5)
    step(client, [datum(COLD, weights=1.0)])
    client.forward_backward([datum(FINE, weights=weights)], "cross_entropy").result()
    return client.optim_step(types.AdamParams(learning_rate=0.0)).result().metrics["grad_norm"]


def example(url: str, code: str) -> Any:
    """A page's example: what it prints."""
    said: list[Any] = []
    os.environ["TINKER_BASE_URL"] = url
    exec(code, {"print": said.append})  # noqa: S102 - our own page
    return [one["loss:sum"] for one in said[:3]], said[3], said[4]


def timed(url: str) -> Any:
    start = time.monotonic()
    step(trainer(url), [datum(FINE, weights=1.0)])
    return time.monotonic() - start


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            said = {"result": globals()[asked["case"]](**asked["arguments"])}
        except Exception as error:  # noqa: BLE001 - told to the test
            said = {"error": [type(error).__name__, str(error)]}
        print("\n@" + json.dumps(said), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
