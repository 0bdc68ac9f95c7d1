"""Who is served: sessions, the adapters that they train, and what they sample with."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from genenv.backends.served import AdapterShape
from genenv.errors import UsageError
from genenv.servers.tinker.checkpoints import now
from genenv.servers.tinker.refusals import NotHere, TooMuch
from genenv.servers.tinker.worker import Line

if TYPE_CHECKING:
    from genenv.backends.local.served.learner import Learner

PASSING = 16
"""So many samplers without a name are kept of a model: the newest."""

_MOST_SESSIONS, _MOST_MODELS, _MOST_SAMPLERS = 4096, 256, 16_384


@dataclass(slots=True, kw_only=True)
class Session:
    """A client, as long as its heart beats."""

    id: str
    seen: float = field(default_factory=time.monotonic)
    models: list[str] = field(default_factory=list[str])
    samplers: list[str] = field(default_factory=list[str])


@dataclass(slots=True, kw_only=True)
class Model:
    """An adapter that a session trains."""

    id: str
    session: str
    shape: AdapterShape
    user_metadata: Mapping[str, str]
    line: Line
    learner: Learner | None = None
    """None until it is made."""
    steps: int = 0
    """Of this client."""
    before: int = 0
    """Steps behind the checkpoint that it was loaded from."""
    sequences: int = 0
    """Learned from since the last step."""
    last: str = field(default_factory=now)
    """When it was last asked for something."""
    passing: deque[str] = field(default_factory=deque[str])
    """Its samplers without a name, the oldest first."""

    def ready(self) -> Learner:
        """What learns.

        Raises:
            UsageError: it could not be made, or is unloaded.
        """
        if self.learner is None:
            raise UsageError(f"the model {self.id} is not loaded")
        return self.learner


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """What a client samples with."""

    id: str
    session: str
    shape: AdapterShape
    folder: Path | None = None
    """Of the adapter; None for the bare base."""
    path: str | None = None
    """The checkpoint's, where it has a name."""


class Clients:
    """All of them. Methods that look something up raise `NotHere`."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.models: dict[str, Model] = {}
        self.samplers: dict[str, Sampler] = {}

    def session(self, name: str) -> Session:
        """A session that is alive, and is so from now on."""
        session = self.sessions.get(name)
        if session is None:
            raise NotHere(
                f"there is no session {name}: nothing was heard of it for too long, or the server has been "
                "started anew; make a new ServiceClient"
            )
        session.seen = time.monotonic()
        return session

    def model(self, name: str) -> Model:
        """An adapter that is trained."""
        model = self.models.get(name)
        if model is None:
            raise NotHere(
                f"there is no model {name}: it was unloaded, its session has ended, or the server has been "
                "started anew; load a checkpoint of it into a new client"
            )
        self.session(model.session)
        model.last = now()
        return model

    def sampler(self, name: str) -> Sampler:
        """What is sampled with."""
        sampler = self.samplers.get(name)
        if sampler is None:
            raise NotHere(
                f"there is no sampler {name}: its session has ended, the server has been started anew, or "
                f"its model has {PASSING} newer ones; make another sampling client"
            )
        self.session(sampler.session)
        return sampler

    def add_session(self, session: Session) -> None:
        """A new client; where there are too many, one that has nothing is let go of.

        Raises:
            TooMuch: all of them have something.
        """
        if len(self.sessions) >= _MOST_SESSIONS:
            idle = [one for one in self.sessions.values() if not (one.models or one.samplers)]
            if not idle:
                raise TooMuch(f"there are {_MOST_SESSIONS} sessions, as many as there may be; end others")
            del self.sessions[min(idle, key=lambda one: one.seen).id]
        self.sessions[session.id] = session

    def add_model(self, model: Model) -> None:
        """A new adapter. Raises `TooMuch` where there are too many."""
        if len(self.models) >= _MOST_MODELS:
            raise TooMuch(f"there are {_MOST_MODELS} models, as many as there may be; unload others")
        self.models[model.id] = model
        self.sessions[model.session].models.append(model.id)

    def add_sampler(self, sampler: Sampler) -> None:
        """A new sampler; one that is asked for again stays as it is.

        Raises:
            UsageError: another one has its number.
            TooMuch: there are too many.
        """
        session = self.session(sampler.session)
        known = self.samplers.get(sampler.id)
        if known is not None:
            if known != sampler:
                raise UsageError(f"there is another sampler {sampler.id}; count samplers on")
            return
        if len(self.samplers) >= _MOST_SAMPLERS:
            raise TooMuch(f"there are {_MOST_SAMPLERS} samplers, as many as there may be; end other sessions")
        self.samplers[sampler.id] = sampler
        session.samplers.append(sampler.id)

    def silent(self, seconds: float) -> list[Session]:
        """Sessions of which nothing was heard for so long."""
        since = time.monotonic() - seconds
        return [session for session in self.sessions.values() if session.seen < since]
