"""Policies that are trained here and sampled from servers, for tests: how they are opened and asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from genenv.algorithms.settings import OptimizerConfig
from genenv.backends.base import Opened, Role, open_backend
from genenv.backends.settings import PolicyConfig, VllmConfig
from genenv.sampling import SampleRequest
from genenv.types import Message

HERE: dict[str, Any] = {
    "dtype": "float32",
    "device": "cpu",
    "threads": 1,
    "packed_weights": False,
    "compiled": False,
}
ROLES = [Role(name=name, optimizer=OptimizerConfig(), reference=True) for name in ("agent", "simulator")]


def opened(*addresses: str, **settings: Any) -> Opened:
    """Both policies, on servers at these addresses."""
    servers = VllmConfig(addresses=addresses, **{"timeout_s": 60.0, **settings})
    config = PolicyConfig(backend="vllm", model="tiny", vllm=servers, **HERE)
    return open_backend(config, ROLES, cast(Any, None), seed=1)


def played(found: Opened, made: Callable[[], Awaitable[Any]]) -> Any:
    """What a coroutine returns; the connections are closed after it."""

    async def closing() -> Any:
        try:
            return await made()
        finally:
            assert found.close is not None
            await found.close()

    return asyncio.run(closing())


def request(sampler: Any, stream: int = 0, **asked: Any) -> SampleRequest:
    """A request of ten tokens."""
    prompt = sampler.render([Message(role="user", content="hello")], first=True)
    return SampleRequest(prompt_ids=prompt, max_tokens=asked.pop("max_tokens", 10), stream=stream, **asked)


def lines_of(run: Path) -> list[dict[str, float]]:
    """The metrics of a run."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
