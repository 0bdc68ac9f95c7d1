# pyright: standard
"""One base model whose adapters come from folders: others train them, and write each version into one."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path

from genenv.backends.local import hardware
from genenv.backends.local.model import LocalModel
from genenv.backends.local.policy_weights import PlayerWeights
from genenv.backends.local.sampler import LocalSampler
from genenv.backends.settings import PolicyConfig
from genenv.errors import DataError, UsageError
from genenv.sampling import Completion, SampleRequest

_NONE = "base"
"""An adapter that changes nothing."""
_MOST = 256
"""Adapters at a time."""
_RANKS = range(1, 1025)


class LoadedBase:
    """A base model, and adapters of it by name."""

    def __init__(self, source: str, config: PolicyConfig) -> None:
        """Load a model.

        Raises:
            UsageError: it cannot be loaded or used here.
        """
        self.model = LocalModel(source, config)
        self.model.add_adapter(_NONE, seed=0, lora=config.model_copy(update={"lora_rank": 1}))
        self._players: dict[str, PlayerWeights] = {}
        self._numbers = itertools.count()

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of what was loaded."""
        return tuple(self._players)

    @property
    def context_tokens(self) -> int:
        """The longest sequence."""
        return self.model.context_tokens

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return self.model.vocabulary

    @property
    def end_id(self) -> int:
        """The token that ends a reply."""
        return self.model.chat.end_id

    def load(self, name: str, folder: Path) -> None:
        """Load an adapter in PEFT's format; one of that name is replaced, unless the new one is refused.

        Raises:
            UsageError: there is none, it does not fit the base, or there are too many.
        """
        if name not in self._players and len(self._players) >= _MOST:
            raise UsageError(f"there are {_MOST} adapters, as many as there may be; unload some")
        settings = _settings(folder)
        self._check_targets(str(settings["lora_targets"]))
        inner = f"loaded{next(self._numbers)}"  # the model's own name: those of clients may be anything
        self.model.add_adapter(inner, seed=0, lora=self.model.config.model_copy(update=settings))
        player = PlayerWeights(self.model, inner)
        try:
            player.load(folder, reference=False)
        except DataError as error:
            self._drop(inner)
            raise UsageError(str(error)) from error
        self.unload(name)
        self._players[name] = player

    def unload(self, name: str) -> bool:
        """Let go of an adapter; whether there was one."""
        player = self._players.pop(name, None)
        if player is None:
            return False
        self._drop(str(player.adapter))
        return True

    def _drop(self, inner: str) -> None:
        self.model.drop_adapter(inner, instead=_NONE)
        hardware.release_memory(self.model.device)

    def _check_targets(self, targets: str) -> None:
        """Refuse an adapter of embeddings or output layer, before the model is changed.

        Raises:
            UsageError: it is one.
        """
        ends = (self.model.causal.get_input_embeddings(), self.model.causal.get_output_embeddings())
        names = [path for path, module in self.model.causal.named_modules() if module in ends]
        wanted = [target.strip() for target in targets.split(",")]
        if any(path == one or path.endswith(f".{one}") for path in names for one in wanted):
            raise UsageError(
                f"an adapter of {targets} has embeddings or the output layer, which stay as they are"
            )

    def sample(self, name: str, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Answer requests with an adapter, as one batch.

        Raises:
            UsageError: it is not there.
        """
        if name not in self._players:
            raise UsageError(f"there is no adapter {name!r}")
        return LocalSampler(self._players[name]).sample_all(requests)


def _settings(folder: Path) -> dict[str, object]:
    """What an adapter's own file says of it, as settings.

    Raises:
        UsageError: it says nothing, or is no LoRA.
    """
    file = folder / "adapter_config.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        targets = found["target_modules"]
        stacked = found.get("target_parameters") or []
        named = targets if isinstance(targets, str) else ",".join(sorted(map(str, [*targets, *stacked])))
        rank, alpha = int(found["r"]), float(found["lora_alpha"])
        if rank not in _RANKS or not math.isfinite(alpha):
            raise ValueError(f"rank {rank} and lora_alpha {alpha}")
        return {"lora_rank": rank, "lora_alpha": alpha, "lora_targets": named}
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise UsageError(f"{file} is no file of a LoRA adapter: {type(error).__name__}: {error}") from error
