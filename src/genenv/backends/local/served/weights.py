# pyright: standard
"""The weights of one served adapter: PEFT's in the layers, and where it is asked for one of the output layer.

    scores = h W^T + s (h A^T) B^T        W: the frozen output layer; A, B: its adapter; s = alpha / rank

Shapes: M = tokens scored, W = width, V = vocabulary, r = rank.
"""

from __future__ import annotations

import math
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from genenv.backends.local.model import LocalModel
from genenv.backends.local.policy_weights import PlayerWeights, check_adapter, in_pieces
from genenv.backends.local.token_logprobs import Scores
from genenv.backends.served import LORA_ALPHA, AdapterShape
from genenv.errors import DataError

FILE = "unembed.safetensors"
_NAMES = ("unembed.lora_A.weight", "unembed.lora_B.weight")


class ServedWeights(PlayerWeights):
    """One adapter."""

    def __init__(self, model: LocalModel, adapter: str, shape: AdapterShape, seed: int) -> None:
        """An adapter that is attached to a model, and a fresh one of its output layer.

        Args:
            model: what it is attached to.
            adapter: its name there.
            shape: says whether the output layer has one.
            seed: of its first weights.
        """
        super().__init__(model, adapter)
        self.unembed: tuple[nn.Parameter, nn.Parameter] | None = None
        """A [r, W] and B [V, r]."""
        self._scale = LORA_ALPHA / shape.rank
        if shape.unembed:
            vocabulary, width = model.output.weight.shape
            down = torch.empty(shape.rank, width)
            bound = 1 / math.sqrt(width)  # as PEFT begins
            down.uniform_(-bound, bound, generator=torch.Generator().manual_seed(seed))
            up = torch.zeros(vocabulary, shape.rank)
            self.unembed = (nn.Parameter(down.to(model.device)), nn.Parameter(up.to(model.device)))

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Names and values of what learns, in a fixed order."""
        return super().parameters() + list(zip(_NAMES, self.unembed or (), strict=False))

    def scores(self, hidden_MW: Tensor) -> Tensor:
        """[M, V] scores of all tokens."""
        if self.unembed is None:
            return self.model.scores(hidden_MW)
        down_rW, up_Vr = self.unembed
        plain = self.model.linear_scores(hidden_MW)
        low_Mr = (hidden_MW.float() @ down_rW.T) * self._scale
        return self.model.shaping(torch.addmm(plain.float(), low_Mr, up_Vr.T))

    def token_scores(
        self,
        hidden_MW: Tensor,
        tokens_M: Tensor,
        *,
        temperature: float = 1.0,
        allowed: Tensor | None = None,
        entropy: bool = False,
    ) -> Scores:
        """As `PlayerWeights`; with an adapter of the output layer, log-probabilities at temperature 1."""
        if self.unembed is None:
            options = {"temperature": temperature, "allowed": allowed, "entropy": entropy}
            return super().token_scores(hidden_MW, tokens_M, **options)

        def piece(hidden: Tensor, tokens: Tensor) -> Tensor:
            return self.scores(hidden).log_softmax(-1).gather(1, tokens[:, None])[:, 0]

        return Scores(in_pieces(piece, hidden_MW, tokens_M), None, None)

    def save(self, folder: Path) -> None:
        """Write the adapter, in the form of PEFT, and beside it that of the output layer."""
        super().save(folder)
        if self.unembed is not None:
            state = {name: value.detach() for name, value in zip(_NAMES, self.unembed, strict=True)}
            safetensors.torch.save_file(state, folder / FILE)

    def load(self, folder: Path, *, reference: bool = True) -> None:
        """Restore what `save` wrote; see `PlayerWeights.load`.

        Raises:
            DataError: the folder is damaged, or of another model or shape.
        """
        state = {} if self.unembed is None else self._read(folder / FILE)
        super().load(folder, reference=reference)
        with torch.no_grad():
            for name, parameter in zip(_NAMES, self.unembed or (), strict=False):
                parameter.copy_(state[name])

    def _read(self, file: Path) -> dict[str, Tensor]:
        try:
            state = safetensors.torch.load_file(file)
        except (OSError, safetensors.SafetensorError) as error:
            raise DataError(f"the weights in {file} cannot be read: {error}") from error
        check_adapter(state, dict(zip(_NAMES, self.unembed or (), strict=True)), file)
        return state
