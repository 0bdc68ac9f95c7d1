"""How fast compiled code is on this processor, beside the same in torch: `python bench/kernels.py`.

Sizes are SmolLM2-135M's: 64 rows, 512 tokens. One thread; the process's own time, the least of several times.
Prints a JSON line for each function. One that is slower than torch by a lot is not compiled as it should be.

    python bench/kernels.py --library OTHER.so    # the same for another compiled file
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from genenv.backends.local.cpu.build import find
from genenv.backends.local.cpu.kernels import Kernels, LowRank, Tasks

HEADS, KEY_HEADS, SIZE, WIDTH, INNER, VOCABULARY = 9, 3, 64, 576, 1536, 49152
PROMPTS, LENGTH, OWN, ROWS = 6, 314, 162, 64
_Case = tuple[str, float, Callable[[], object], Callable[[], object]]
"""A function, its floating-point operations in millions, compiled, and in torch."""


def cases(kernels: Kernels, draw: Callable[..., Tensor]) -> Iterator[_Case]:
    """What is measured."""
    keys, values = draw(PROMPTS, KEY_HEADS, LENGTH, SIZE), draw(PROMPTS, KEY_HEADS, LENGTH, SIZE)
    tokens, seen = PROMPTS * OWN, LENGTH - OWN
    queries = draw(tokens, HEADS, SIZE)
    places_3B = torch.tensor([[b * OWN for b in range(PROMPTS)], [OWN] * PROMPTS, [seen] * PROMPTS])
    mask = torch.ones(OWN, LENGTH, dtype=torch.bool).tril(seen)
    q_BHSD = queries.reshape(PROMPTS, OWN, HEADS, SIZE).transpose(1, 2)
    attend = nn.functional.scaled_dot_product_attention
    millions = tokens * (LENGTH - OWN / 2) * HEADS * SIZE * 4 / 1e6
    yield (
        "prefill",
        millions,
        lambda: kernels.prefill(queries, (keys, values), places_3B, tokens, SIZE**-0.5),
        lambda: attend(q_BHSD, keys, values, attn_mask=mask, enable_gqa=True),
    )
    new = draw(ROWS, HEADS, SIZE), draw(ROWS, KEY_HEADS, SIZE), draw(ROWS, KEY_HEADS, SIZE)
    own = draw(ROWS, KEY_HEADS, 32, SIZE), draw(ROWS, KEY_HEADS, 32, SIZE)
    lengths = torch.full((PROMPTS,), LENGTH), torch.full((ROWS,), 16)
    tasks = Tasks([row * PROMPTS // ROWS for row in range(ROWS)])
    each = tuple(part[torch.arange(ROWS) * PROMPTS // ROWS] for part in (keys, values))
    yield (
        "decode",
        ROWS * (LENGTH + 17) * HEADS * SIZE * 4 / 1e6,
        lambda: kernels.decode(*new, (keys, values), own, lengths, tasks, SIZE**-0.5),
        lambda: attend(new[0][:, :, None], each[0], each[1], enable_gqa=True),
    )
    x, y = draw(ROWS, WIDTH), draw(ROWS, WIDTH)
    down, up = draw(16, WIDTH), draw(WIDTH, 16)
    adapter = LowRank([down], [up], [1.0], [0])
    yield (
        "low_rank",
        ROWS * WIDTH * 16 * 4 / 1e6,
        lambda: kernels.add_low_rank(y, x, adapter),
        lambda: y.addmm_(x @ down.T, up.T),
    )
    joint, weight, wide = draw(512, 2 * INNER), draw(WIDTH), draw(512, WIDTH)
    gate, raised = joint.chunk(2, -1)
    yield "swiglu", 0, lambda: kernels.swiglu(joint), lambda: nn.functional.silu(gate) * raised
    yield (
        "norm",
        0,
        lambda: kernels.norm(wide, weight, 1e-5),
        lambda: nn.functional.rms_norm(wide, (WIDTH,), weight, 1e-5),
    )
    scores = draw(ROWS, VOCABULARY)
    yield "chunk_sums", 0, lambda: kernels.chunk_sums(scores, 512), lambda: scores.logsumexp(-1)


def least_ms(work: Callable[[], object], repeats: int) -> float:
    """The least of several times, of this process alone."""
    found: list[float] = []
    for _ in range(repeats + 1):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return 1e3 * min(found[1:])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", type=Path, help="a compiled file; genenv's own if none is named")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    kernels = Kernels(options.library) if options.library else find()
    if isinstance(kernels, str):
        raise SystemExit(f"there is no compiled code here: {kernels}")
    random, dtype = torch.Generator().manual_seed(0), getattr(torch, options.dtype)
    with torch.no_grad():
        for name, millions, compiled, plain in cases(
            kernels, lambda *shape: torch.randn(shape, generator=random).to(dtype)
        ):
            ours, theirs = least_ms(compiled, options.repeats), least_ms(plain, options.repeats)
            found = {"bench": "kernels", "function": name, "dtype": options.dtype}
            speed = {"gflops": round(millions / ours, 1)} if millions else {}
            print(json.dumps({**found, "ours_ms": round(ours, 3), "torch_ms": round(theirs, 3), **speed}))


if __name__ == "__main__":
    main()
