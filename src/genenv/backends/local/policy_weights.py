# pyright: standard
"""The weights of one policy in a model: trained parameters, reference of the KL terms, saving and loading.

Both policies and both references share one base. The agent is the base with the `agent` adapter, the
simulator the base with the `simulator` adapter. A policy's reference is the base without adapter, or a frozen
adapter that `anchor` makes. With full tuning each policy has a separate model.

Shapes: M = tokens scored, V = vocabulary.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from genenv.backends.local import loading
from genenv.backends.local.adapters import ADAPTER, adapter_state, check_adapter, put_adapter, save_adapter
from genenv.backends.local.attention import Layout
from genenv.backends.local.cuda.learning import compiled_scores
from genenv.backends.local.model import LocalModel
from genenv.backends.local.next_token import is_forbidden
from genenv.backends.local.optimizer import readable
from genenv.backends.local.packing import Bundle, Packed, TokenTree
from genenv.backends.local.sharding import put_state, whole_state, whole_tensors
from genenv.backends.local.token_logprobs import Scores, entropy_of, frozen_scores, in_pieces, kl_between
from genenv.backends.served import LORA_ALPHA, AdapterShape
from genenv.errors import UsageError

REFERENCE = "reference"
"""Folder in a policy's checkpoint with the reference of its KL term."""
_WRITTEN = "written"
"""Name of the adapter slot into which older versions of either policy are loaded for scoring."""
_UNEMBED = "unembed.safetensors"
_UNEMBED_NAMES = ("unembed.lora_A.weight", "unembed.lora_B.weight")


class PolicyWeights:
    """The weights of one policy: an adapter on a shared model, or a whole model."""

    def __init__(
        self, model: LocalModel, adapter: str | None, *, keep_reference: bool = True, learns: bool = True
    ) -> None:
        """Create the weights of a policy on a model.

        Args:
            model: the base, or the whole model.
            adapter: name of the policy's adapter; None if the policy is the whole model.
            keep_reference: full tuning only: keep a copy of the initial weights for the KL terms.
            learns: full tuning only: False if the model is only sampled.
        """
        self.model, self.adapter = model, adapter
        self.version = 0
        """How often these weights were published."""
        self._initial: nn.Module | None = None
        self._older: nn.Module | None = None
        """Full tuning: the model into which `read_written` loads."""
        self._anchored = False
        self._parameters: list[tuple[str, nn.Parameter]] | None = None
        """The adapter's parameters, cached because a search through all modules takes longer than a token."""
        if adapter is None and learns:
            if keep_reference:
                self._initial = model.frozen_copy()
            model.causal.requires_grad_(requires_grad=True)
            for name in model.other_inputs:
                model.causal.get_submodule(name).requires_grad_(requires_grad=False)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Context manager: run the model with this policy's weights."""
        self.model.use(self.adapter)
        with self.model.whole_ends():
            yield

    @property
    def has_reference(self) -> bool:
        """Whether there are reference weights for a KL term."""
        return self.adapter is not None or self._initial is not None

    @contextlib.contextmanager
    def reference(self) -> Iterator[None]:
        """Context manager: run the model with the reference, from the last `anchor` or the bare base."""
        if self.adapter is None:
            if self._initial is None:
                raise UsageError("this policy keeps no reference: set the KL coefficient to 0")
            with self._instead(self._initial):
                yield
        elif self._anchored:
            with self._instead(self._anchor_name):
                yield
        else:
            # The fused decoder reads `model.adapter`; PEFT would go through all modules.
            own = self.model.fused is not None
            with contextlib.nullcontext() if own else self.model.peft.disable_adapter():
                self.model.adapter = None
                try:
                    yield
                finally:
                    self.model.adapter = self.adapter

    def read_written(self, folder: Path) -> None:
        """Load the weights in a folder of `save` or `write_adapter` for `written`, beside the present ones.

        With full tuning this keeps one more copy of the model, otherwise one more adapter.

        Raises:
            DataError: the folder is missing or damaged.
        """
        with readable(folder):
            state = self._whole(folder) if self.adapter is None else self._read_adapter(folder)
        if self.adapter is None:
            older = self.model.frozen_copy() if self._older is None else self._older
            self._put(older, state)
            self._older = older.requires_grad_(requires_grad=False)
            return
        if _WRITTEN not in self.model.peft.peft_config:
            with torch.random.fork_rng(devices=[]):
                self.model.add_adapter_like(_WRITTEN, self.adapter)
        put_adapter(self.model.peft, _WRITTEN, state)

    def written(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager: run the model with the weights of the last `read_written`."""
        return self._instead(_WRITTEN if self._older is None else self._older)

    @contextlib.contextmanager
    def _instead(self, other: str | nn.Module) -> Iterator[None]:
        """Run the model with another adapter, or with another whole model."""
        own = self.model.causal
        if isinstance(other, str):
            self.model.use(other)
        else:
            self.model.causal = other
        try:
            with self.model.whole_ends():
                yield
        finally:
            self.model.causal = own
            self.model.use(self.adapter)

    def anchor(self) -> None:
        """Make the present weights the reference; called when co-evolution starts."""
        if self.adapter is None:
            if self._initial is not None:
                self._initial.load_state_dict(self.model.causal.state_dict())
            return
        self._set_anchor(adapter_state(self.model.peft, self.adapter))

    def _set_anchor(self, state: dict[str, Tensor]) -> None:
        if not self._anchored:
            self.model.add_adapter_like(self._anchor_name, self.adapter)
            self._anchored = True
        put_adapter(self.model.peft, self._anchor_name, state)
        self.model.use(self.adapter)

    @property
    def _anchor_name(self) -> str:
        return f"{self.adapter}_initial"

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Return the names and values of the trained parameters, in a fixed order."""
        if self._parameters is None or self.adapter is None:
            self.model.use(self.adapter)
            named = self.model.causal.named_parameters()
            self._parameters = [(name, p) for name, p in named if self._owns(name)]
        return self._parameters

    def _owns(self, name: str) -> bool:
        if self.adapter is None:
            return not name.startswith(tuple(f"{other}." for other in self.model.other_inputs))
        return f".{self.adapter}." in name

    def frozen_head(self) -> Callable[[Tensor], Tensor]:
        """Return the present output layer as a function that later steps do not change.

        With adapters the output layer never changes; with full tuning it is copied.
        """
        if self.adapter is not None:
            return self.model.head
        head = copy.deepcopy(self.model.causal.get_output_embeddings())
        return lambda hidden: self.model.shaping(head(hidden)).float()

    @property
    def head_is_frozen(self) -> bool:
        """Whether logits come from a linear output layer that is never trained, as with adapters."""
        return self.adapter is not None and self.model.shaping.is_nothing

    def packed(self, bundles: Sequence[Bundle]) -> Packed | TokenTree:
        """Lay out bundles for `completion_hidden`, as a tree if that is faster on this device."""
        return (TokenTree if self.runs_as_tree else Packed)(bundles, self.model.device)

    @property
    def runs_as_tree(self) -> bool:
        """Whether training runs over a tree of tokens; checked once."""
        return self.model.tree is not None and self.model.tree.works(self.adapter)

    def completion_hidden(self, packed: Packed | TokenTree) -> tuple[Tensor, Tensor]:
        """Return [M, width] the states that predict the completions' tokens, and [M] those tokens."""
        if isinstance(packed, TokenTree):
            if self.model.tree is None:
                raise TypeError("this model does not run over a tree of tokens")
            return self.model.tree.hidden(packed, self.model.adapter), packed.tokens_M
        # In torch's attention with and without gradients: equal weights get equal log-probabilities.
        hidden_NW = self.model.hidden(packed.ids_1N, packed.positions_1N, Layout(packed=packed))
        at_M, tokens_M = packed.targets()
        return hidden_NW.index_select(0, at_M), tokens_M

    def logprobs(self, packed: Packed | TokenTree, *, temperature: float = 1.0) -> Tensor:
        """Return [M] log-probabilities of the completions' tokens, row after row. Nats."""
        return self.token_scores(*self.completion_hidden(packed), temperature=temperature).logprobs_M

    def token_scores(
        self,
        hidden_MW: Tensor,
        tokens_M: Tensor,
        reference: tuple[Callable[[Tensor], Tensor], Tensor] | None = None,
        *,
        temperature: float = 1.0,
        allowed: Tensor | None = None,
        entropy: bool = False,
    ) -> Scores:
        """Return log-probabilities of tokens; KL and entropy over what could be sampled, where requested.

        Args:
            hidden_MW: the states that `completion_hidden` gave for the tokens.
            tokens_M: the tokens.
            reference: output layer of the reference, and its states for the tokens; None: no KL.
            temperature: divides the scores.
            allowed: [M, ceil(V / 32)] bit masks of the tokens that could be sampled; None when all could.
            entropy: whether it is worked out.
        """
        options = {"temperature": temperature, "allowed": allowed}
        if self.head_is_frozen:
            scores = compiled_scores if self.runs_compiled else frozen_scores
            other_MW = None if reference is None else reference[1]
            return scores(self.model.output, hidden_MW, tokens_M, other_MW, entropy=entropy, **options)

        def piece(hidden: Tensor, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
            scores = self.model.head(hidden)
            scores = scores / temperature if temperature not in (0.0, 1.0) else scores
            if mask is not None:
                scores = scores.masked_fill(is_forbidden(mask, scores.shape[1]), float("-inf"))
            total = scores.logsumexp(-1)
            logprobs = scores.gather(1, tokens[:, None])[:, 0] - total
            return torch.stack([logprobs, entropy_of(scores - total[:, None])], -1) if entropy else logprobs

        found = in_pieces(piece, hidden_MW, tokens_M, *(() if allowed is None else (allowed,)))
        kl_M = None if reference is None else kl_between((self.model.head, hidden_MW), reference, **options)
        return Scores(found[:, 0], kl_M, found[:, 1]) if entropy else Scores(found, kl_M, None)

    @property
    def runs_compiled(self) -> bool:
        """Whether layers are compiled for training."""
        return self.runs_as_tree and self.model.tree is not None and self.model.tree.compile

    @property
    def tokens_per_microbatch(self) -> int:
        """Maximum tokens of one forward and backward pass in training."""
        return self.model.tokens_per_tree if self.runs_as_tree else self.model.tokens_per_microbatch

    def save(self, folder: Path) -> None:
        """Write the policy's weights and reference to a folder: PEFT adapters, or whole models."""
        self._save(folder, self.adapter, self.model.causal)
        if self._anchored or self._initial is not None:
            self._save(folder / REFERENCE, self._anchor_name, self._initial)

    def write_adapter(self, folder: Path) -> None:
        """Write only the policy's adapter, in PEFT's format, for servers to sample with."""
        self._save(folder, self.adapter, self.model.causal)

    def _save(self, folder: Path, adapter: str | None, causal: Any) -> None:  # noqa: ANN401
        whole: dict[str, Any] = {}
        if self.model.sharded:
            state = whole_state(causal.state_dict(keep_vars=True))
            if state is None:  # rank 0 writes
                return
            whole = {"state_dict": state}
        folder.mkdir(parents=True, exist_ok=True)
        if self.adapter is None:
            causal.save_pretrained(folder, **whole)
            self.model.tokenizer.save_pretrained(folder)
            return
        save_adapter(self.model.peft, str(adapter), folder, self.model.other_inputs)

    def load(self, folder: Path, *, reference: bool = True) -> None:
        """Restore the state that `save` wrote.

        Args:
            folder: the folder of `save`.
            reference: False to skip the reference of an adapter that is only sampled.

        Raises:
            DataError: the folder is missing or damaged.
        """
        with readable(folder):
            if self.adapter is None:
                self._put(self.model.causal, self._whole(folder))
                # an agent's first weights may be of a run without a reference; they become it themselves
                if self._initial is not None and (folder / REFERENCE).is_dir():
                    self._put(self._initial, self._whole(folder / REFERENCE))
                return
            state = self._read_adapter(folder)
            has_reference = reference and (folder / REFERENCE).is_dir()
            anchor = self._read_adapter(folder / REFERENCE) if has_reference else None
        put_adapter(self.model.peft, self.adapter, state)
        if anchor is not None:
            self._set_anchor(anchor)

    def _read_adapter(self, folder: Path) -> dict[str, Tensor]:
        state = safetensors.torch.load_file(folder / ADAPTER, device=str(self.model.device))
        check_adapter(state, adapter_state(self.model.peft, self.adapter), folder)
        return state

    def _whole(self, folder: Path) -> dict[str, Tensor]:
        return loading.read_causal_lm(
            str(folder), type(self.model.causal), dtype=self.model.kept_dtype
        ).state_dict()

    def _put(self, causal: Any, state: dict[str, Tensor]) -> None:  # noqa: ANN401
        if self.model.sharded:
            put_state(causal.state_dict(), state)
        else:
            causal.load_state_dict(state)

    def fill(self, other: LocalModel | None) -> None:
        """Copy sharded weights into a whole model of rank 0; the other processes take part with None."""
        into = {} if other is None else other.causal.state_dict()
        for name, tensor in whole_tensors(self.model.causal.state_dict()):
            if name in into:
                into[name].copy_(tensor)


class ServedWeights(PolicyWeights):
    """The weights of one served adapter: PEFT's in the layers, and optionally one on the output layer.

    scores = h W^T + s (h A^T) B^T        W: the frozen output layer; A, B: its adapter; s = alpha / rank
    """

    def __init__(self, model: LocalModel, adapter: str, shape: AdapterShape, seed: int) -> None:
        """Create the weights of an attached adapter, and a fresh adapter of the output layer if requested.

        Args:
            model: the model that it is attached to.
            adapter: name of the adapter in the model.
            shape: states the rank, and whether the output layer is adapted.
            seed: of the initial weights.
        """
        super().__init__(model, adapter)
        self.shape = shape
        self.unembed: tuple[nn.Parameter, nn.Parameter] | None = None
        """A [r, W] and B [V, r]."""
        self._scale = LORA_ALPHA / shape.rank
        if shape.train_unembed:
            vocabulary, width = model.output.weight.shape
            down = torch.empty(shape.rank, width)
            bound = 1 / math.sqrt(width)  # as PEFT begins
            down.uniform_(-bound, bound, generator=torch.Generator().manual_seed(seed))
            up = torch.zeros(vocabulary, shape.rank)
            self.unembed = (nn.Parameter(down.to(model.device)), nn.Parameter(up.to(model.device)))

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Return the names and values of the trained parameters, in a fixed order."""
        return super().parameters() + list(zip(_UNEMBED_NAMES, self.unembed or (), strict=False))

    def scores(self, hidden_MW: Tensor) -> Tensor:
        """Return [M, V] logits."""
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
        reference: tuple[Callable[[Tensor], Tensor], Tensor] | None = None,
        *,
        temperature: float = 1.0,
        allowed: Tensor | None = None,
        entropy: bool = False,
    ) -> Scores:
        """See `PolicyWeights`; if the output layer is adapted, the other arguments are ignored."""
        if self.unembed is None:
            options = {"temperature": temperature, "allowed": allowed, "entropy": entropy}
            return super().token_scores(hidden_MW, tokens_M, reference, **options)

        def piece(hidden: Tensor, tokens: Tensor) -> Tensor:
            return self.scores(hidden).log_softmax(-1).gather(1, tokens[:, None])[:, 0]

        return Scores(in_pieces(piece, hidden_MW, tokens_M), None, None)

    def save(self, folder: Path) -> None:
        """Write the adapter in PEFT's format, and next to it the output layer's adapter."""
        super().save(folder)
        if self.unembed is not None:
            state = {name: value.detach() for name, value in zip(_UNEMBED_NAMES, self.unembed, strict=True)}
            safetensors.torch.save_file(state, folder / _UNEMBED)

    def load(self, folder: Path, *, reference: bool = True) -> None:
        """Restore the state that `save` wrote; see `PolicyWeights.load`.

        Raises:
            DataError: the folder is damaged, or of another model or shape.
        """
        state, file = dict[str, Tensor](), folder / _UNEMBED
        if self.unembed is not None:
            with readable(file):
                state = safetensors.torch.load_file(file)
            check_adapter(state, dict(zip(_UNEMBED_NAMES, self.unembed, strict=True)), file)
        super().load(folder, reference=reference)
        with torch.no_grad():
            for name, parameter in zip(_UNEMBED_NAMES, self.unembed or (), strict=False):
                parameter.copy_(state[name])
