# pyright: standard
"""One base model whose adapters come from folders: others train them, and write each version into one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from genenv.backends.base import Completion, SampleRequest
from genenv.backends.local import hardware
from genenv.backends.local.model import LocalModel
from genenv.backends.local.player_weights import PlayerWeights
from genenv.backends.local.sampler import LocalSampler
from genenv.backends.settings import PolicyConfig
from genenv.errors import DataError, UsageError

_NONE = "base"
"""An adapter that changes nothing."""


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

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of what was loaded."""
        return tuple(self._players)

    @property
    def context_tokens(self) -> int:
        """The longest sequence."""
        return self.model.context_tokens

    @property
    def end_id(self) -> int:
        """The token that ends a reply."""
        return self.model.chat.end_id

    def load(self, name: str, folder: Path) -> None:
        """Load an adapter in PEFT's format; one of that name is replaced.

        Raises:
            UsageError: there is none, or it does not fit the base.
        """
        self.unload(name)
        self.model.add_adapter(name, seed=0, lora=self.model.config.model_copy(update=_settings(folder)))
        player = PlayerWeights(self.model, name)
        try:
            player.load(folder)
        except DataError as error:
            self.model.drop_adapter(name, instead=_NONE)
            raise UsageError(str(error)) from error
        self._players[name] = player

    def unload(self, name: str) -> bool:
        """Let go of an adapter; whether there was one."""
        if self._players.pop(name, None) is None:
            return False
        self.model.drop_adapter(name, instead=_NONE)
        hardware.release_memory(self.model.device)
        return True

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
        named = targets if isinstance(targets, str) else ",".join(sorted(map(str, targets)))
        return {
            "lora_rank": int(found["r"]),
            "lora_alpha": float(found["lora_alpha"]),
            "lora_targets": named,
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{file} is no file of a LoRA adapter: {type(error).__name__}: {error}") from error
