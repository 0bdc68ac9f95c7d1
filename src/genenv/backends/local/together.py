# pyright: standard
"""Both players where several processes train: that of rank 0 opens them, and its followers open the same."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import cast

from genenv.backends.base import Opened, Role
from genenv.backends.local.backend import open_local
from genenv.backends.local.messages import Call, Opening
from genenv.backends.local.processes import LED, connected
from genenv.backends.local.trainer import LocalTrainer
from genenv.backends.settings import PolicyConfig
from genenv.environments.base import Environment
from genenv.errors import GenenvError


def open_together(config: PolicyConfig, roles: Sequence[Role], env: Environment, seed: int) -> Opened:
    """As `open_local`, with all processes that torchrun has started: those of the followers open the same."""
    processes = connected()
    processes.tell(Opening(config, tuple(roles), seed))
    return open_local(config, roles, env, seed, processes)


def follow() -> None:
    """Do to the weights what the process of rank 0 does to them, until it needs no others."""
    processes = connected()
    players: dict[str, LocalTrainer] = {}
    with asyncio.Runner() as runner:
        while (told := processes.heard()) is not None:
            with contextlib.suppress(GenenvError):  # which rank 0 meets too, and says
                if isinstance(told, Opening):
                    env = cast(Environment, None)
                    opened = open_local(told.config, told.roles, env, told.seed, processes)
                    players = {name: cast(LocalTrainer, own) for name, own in opened.trainers.items()}
                elif isinstance(told, Call) and told.method in LED:
                    does = getattr(players[told.player], told.method)
                    runner.run(does(*told.arguments, **told.options))


def dismiss() -> None:
    """The process of rank 0 needs the others no longer, whatever has happened to it."""
    connected().tell(None)
