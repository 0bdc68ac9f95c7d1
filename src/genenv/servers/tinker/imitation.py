"""Imitations of other Tinker servers for tests of clients: named deviations from the protocol.

The service calls them before it handles a request, on training data, and on responses.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from genenv.algorithms.losses import WIRE_LOSSES
from genenv.backends.served import Example, ForwardResult, Loss, PromptRequest, PromptResult
from genenv.errors import UsageError, unknown_name

IMITATIONS: Mapping[str, str] = {
    "mean-cross-entropy": "cross_entropy is divided by the sum of a sequence's weights",
    "mean-losses": "so are all losses, by the length where there are no weights, and a step by how many "
    "sequences it has, as in SkyRL 0.4.0",
    "bound-samplers": "a checkpoint is sampled with only while the adapter that it was saved from is loaded, "
    "as in SkyRL 0.4.0",
    "no-live-load": "load_state is refused once a client has stepped",
    "short-logprobs": "compute_logprobs leaves the first token's place out: one value less than tokens",
    "bare-weights-info": "of a checkpoint it is not said which layers are adapted, as in SkyRL 0.4.0",
    "noisy-sampler": "log-probabilities of what is sampled are off by about 0.15 nats, as in bfloat16",
    "seedless": "seeds of sampling are not honoured",
    "nan": "the loss and log-probabilities of forward_backward are NaN",
    "html": "every fourth request is answered 502, with a page of HTML",
    "429": "every fourth request is answered 429",
    "half-json": "every fourth answer in JSON breaks off in the middle",
    "lacks-loss:NAME": "the loss NAME is not there; repeatable",
    "slow:SECONDS": "each piece of work takes so much longer",
    "forgets:N": 'after N requests to models, 400 "Model not loaded"; N is 20 where it is left out',
}
"""The known deviations: name to description."""

_NOW_AND_THEN = 4
_NOISE_NATS = 0.15
_FORGETS_AFTER = 20


class ServerImitation:
    """The deviations that a server imitates; without names it behaves as the official service."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        """Parse the names of deviations, such as `slow:0.5`.

        Raises:
            UsageError: there is no deviation of that name.
        """
        self._flags: set[str] = set()
        self._lacks: set[str] = set()
        self.slow_s = 0.0
        """Seconds added to each piece of work."""
        self._forgets_after: float = float("inf")
        self._requests, self._cut, self._of_models = (itertools.count(1) for _ in range(3))
        self._noise = np.random.default_rng(0)
        for name in names:
            self._add(name)

    def _add(self, name: str) -> None:
        kind, colon, value = name.partition(":")
        if not colon and name in IMITATIONS:
            self._flags.add(name)
        elif kind == "lacks-loss" and value in WIRE_LOSSES:
            self._lacks.add(value)
        elif kind == "slow" and _is_number(value):
            self.slow_s = float(value)
        elif kind == "forgets" and (value.isdecimal() or not colon):
            self._forgets_after = int(value) if value else _FORGETS_AFTER
        else:
            raise unknown_name("quirk", name, IMITATIONS)

    def replaced_response(self, path: str) -> tuple[int, str, str] | None:
        """Return status, media type and body of a response in place of the regular one, or None."""
        number = next(self._requests)
        if number % _NOW_AND_THEN == 0 and path != "/api/v1/healthz":
            if "html" in self._flags:
                return 502, "text/html", "<html>502 Bad Gateway</html>"
            if "429" in self._flags:
                return 429, "application/json", '{"detail": "slow down"}'
        return None

    def response_text(self, body: str) -> str:
        """Return the text of a JSON response, cut in half on every fourth call under `half-json`."""
        if "half-json" in self._flags and next(self._cut) % _NOW_AND_THEN == 0:
            return body[: len(body) // 2]
        return body

    def count_model_request(self) -> None:
        """Count a request to a model.

        Raises:
            UsageError: the count has passed the limit of `forgets:N`.
        """
        if next(self._of_models) > self._forgets_after:
            raise UsageError("Model not loaded")

    def training_data(self, examples: Sequence[Example], loss: Loss) -> Sequence[Example]:
        """Return the training data for the loss, with weights or advantages averaged under `mean-losses`.

        Raises:
            UsageError: the loss is one that this server lacks.
        """
        if loss.name in self._lacks:
            raise UsageError(f"the loss {loss.name} is not supported")
        if "mean-losses" in self._flags or (
            "mean-cross-entropy" in self._flags and loss.name == "cross_entropy"
        ):
            return [_averaged(one, loss) for one in examples]
        return examples

    def gradient_divisor(self, sequences: int) -> int:
        """Return the divisor of a gradient summed over `sequences` sequences."""
        return max(1, sequences) if "mean-losses" in self._flags else 1

    def train_result(self, scored: ForwardResult) -> ForwardResult:
        """Return the result of a training pass as it is sent to the client, with NaNs under `nan`."""
        if "nan" not in self._flags:
            return scored
        return ForwardResult(
            loss=float("nan"), logprobs=[x * np.float32("nan") for x in scored.logprobs], losses=scored.losses
        )

    def check_load(self, steps: int) -> None:
        """Check whether a client that has taken `steps` optimizer steps may load weights.

        Raises:
            UsageError: the client has stepped, and `no-live-load` forbids it.
        """
        if steps and "no-live-load" in self._flags:
            raise UsageError("weights can be loaded into a fresh client alone")

    def tells_shape(self) -> bool:
        """Return whether `weights_info` reports which layers of a checkpoint have adapters."""
        return "bare-weights-info" not in self._flags

    def check_sampler(self, *, loaded: bool) -> None:
        """Check whether a client may sample with a checkpoint.

        `loaded`: whether the adapter that wrote the checkpoint is still loaded.

        Raises:
            UsageError: it is not loaded, and `bound-samplers` requires it.
        """
        if not loaded and "bound-samplers" in self._flags:
            raise UsageError("Model not loaded")

    def sample_request(self, asked: PromptRequest) -> PromptRequest:
        """Return the sampling request to run, without its seed under `seedless`."""
        return replace(asked, seed=None) if "seedless" in self._flags else asked

    def sample_result(self, answered: PromptResult) -> PromptResult:
        """Return the sampling result to send, altered under `noisy-sampler` and `short-logprobs`."""
        if "noisy-sampler" in self._flags:
            noisy = [replace(one, logprobs=_noisy(one.logprobs, self._noise)) for one in answered.sequences]
            answered = replace(answered, sequences=noisy)
        if "short-logprobs" in self._flags and answered.prompt_logprobs is not None:
            answered = replace(answered, prompt_logprobs=answered.prompt_logprobs[1:])
        return answered


def _noisy(logprobs: Sequence[float], noise: np.random.Generator) -> tuple[float, ...]:
    added = noise.normal(0.0, _NOISE_NATS, len(logprobs)).astype(np.float32)
    return tuple((np.array(logprobs, np.float32) + added).tolist())


def _averaged(example: Example, loss: Loss) -> Example:
    """Divide a sequence's weights or advantages by the sum of its weights, or else by its length."""
    weights = example.inputs.get("weights")
    total = example.targets.shape[0] if weights is None else float(weights.sum())
    name = "weights" if loss.name == "cross_entropy" else "advantages"
    if not total or name not in example.inputs:
        return example
    return replace(example, inputs={**example.inputs, name: example.inputs[name] / np.float32(total)})


def _is_number(value: str) -> bool:
    try:
        return 0 <= float(value) < float("inf")
    except ValueError:
        return False
