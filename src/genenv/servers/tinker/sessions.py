"""Who is served: sessions, their adapters and samplers, and answers until they are fetched."""

from __future__ import annotations

import asyncio
import itertools
import math
import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from genenv.backends.served import AdapterShape
from genenv.errors import UsageError
from genenv.servers.tinker.checkpoints import (
    CheckpointInfo,
    CheckpointPath,
    CheckpointStore,
    Kind,
    Run,
    later,
    now,
)
from genenv.servers.tinker.replies import FailedReply, JsonReply, NotHere, Reply, TooMuch
from genenv.servers.tinker.requests import SaveBody
from genenv.servers.worker import Worker

if TYPE_CHECKING:
    from genenv.backends.local.served.base import ServedBase
    from genenv.backends.local.served.learner import Learner


Work = Callable[[], Reply]

_GAP_S = 330.0
"""A request whose predecessor has not come by then fails: clients try for five minutes to send one."""
_MOST_EARLY = 8192
"""So many refused requests to a model are remembered, so that others do not wait for them."""


class RequestOrder:
    """Requests to one model: each waits until those with smaller numbers are on their way."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._next = worker, 1
        self._early: dict[int, tuple[Work, asyncio.Future[Reply]]] = {}

    def put(self, number: int | None, work: Work, done: asyncio.Future[Reply]) -> None:
        """Have a request worked in its turn; one without a number, at once."""
        if number is None or number < self._next:
            self._worker.put(work, done)
            return
        self._early[number] = work, done
        while self._next in self._early:
            self._worker.put(*self._early.pop(self._next))
            self._next += 1
        if self._early:
            asyncio.get_running_loop().call_later(_GAP_S, self._give_up, self._next)

    def skip(self, number: int | None) -> None:
        """A request was refused: those after it do not wait for it."""
        if number is not None and number >= self._next and len(self._early) < _MOST_EARLY:
            loop = asyncio.get_running_loop()
            self.put(number, lambda: FailedReply(error="refused"), loop.create_future())

    def _give_up(self, missing: int) -> None:
        """Fail what waits for a request that has not come."""
        if missing != self._next or not self._early:
            return
        for number in sorted(self._early):
            _, done = self._early.pop(number)
            if not done.done():
                done.set_result(
                    FailedReply(error=f"request {missing} never came, which request {number} waited for")
                )
            self._next = number + 1


_KEPT_S = 600.0
"""An answer stays for so long after it was fetched: it may have been lost on its way."""
_MOST_WAITING, _MOST_WAITING_BYTES = 8192, 2**30
"""Requests whose answers are not there yet, and what their bodies have together."""
_MOST_KEPT = 65_536
"""Requests and answers in all; of those that were fetched the oldest go first."""


@dataclass(slots=True)
class _Entry:
    session: str
    done: asyncio.Future[Reply]
    opened: float = field(default_factory=time.monotonic)
    fetched: float | None = None


class Futures:
    """Requests under way and their answers. For one event loop."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._waiting = self._waiting_bytes = 0

    def known(self, request: str) -> bool:
        """Whether there is such a request: a client sends one again whose acknowledgement was lost."""
        return request in self._entries

    def open(self, request: str, session: str, size_bytes: int = 0) -> asyncio.Future[Reply]:
        """Remember a request; what it returns is to get the answer.

        Args:
            request: its id.
            session: whose it is; "" for nobody's.
            size_bytes: of its body, where that is kept until it is worked.

        Raises:
            TooMuch: there are too many.
        """
        if self._waiting >= _MOST_WAITING or self._waiting_bytes + size_bytes > _MOST_WAITING_BYTES:
            raise TooMuch(
                f"{self._waiting} requests wait to be worked; fetch their answers before you send more"
            )
        if len(self._entries) >= _MOST_KEPT:
            self._make_room()
        entry = _Entry(session, asyncio.get_running_loop().create_future())
        self._entries[request] = entry
        self._waiting += 1
        self._waiting_bytes += size_bytes

        def settled(_: object) -> None:
            self._waiting -= 1
            self._waiting_bytes -= size_bytes

        entry.done.add_done_callback(settled)
        return entry.done

    async def fetch(self, request: str, patience_s: float) -> Reply | None:
        """The answer; None where it is not there after so long.

        Raises:
            NotHere: there is no such request.
        """
        entry = self._entries.get(request)
        if entry is None:
            raise NotHere(
                f"there is no request {request}: its session has ended, or the server has been started anew"
            )
        done, _ = await asyncio.wait([entry.done], timeout=patience_s)
        if not done:
            return None
        entry.fetched = time.monotonic()
        return entry.done.result()

    def sweep(self) -> None:
        """Let go of what was fetched long ago, and of answers without a session that nobody fetched."""
        old = time.monotonic() - _KEPT_S
        self._entries = {
            request: entry
            for request, entry in self._entries.items()
            if not entry.done.done() or (entry.fetched or (math.inf if entry.session else entry.opened)) > old
        }

    def _make_room(self) -> None:
        """Let go of what was fetched, the older half first.

        Raises:
            TooMuch: nothing was.
        """
        fetched = [request for request, entry in self._entries.items() if entry.fetched is not None]
        if not fetched:
            raise TooMuch(f"{len(self._entries)} answers were not fetched; fetch them before you send more")
        for request in fetched[: len(fetched) // 2 + 1]:
            del self._entries[request]

    def end(self, session: str) -> None:
        """Let go of what belongs to a session."""
        self._entries = {
            request: entry for request, entry in self._entries.items() if entry.session != session
        }


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
    line: RequestOrder
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


class Adapters:
    """The adapters of all clients. Its methods run in the thread."""

    def __init__(self, base: ServedBase, store: CheckpointStore, clients: Clients, source: str) -> None:
        """Where they are.

        Args:
            base: what they are adapters of.
            store: their checkpoints.
            clients: whose they are.
            source: what the base is, for checkpoints.
        """
        self._base, self._store, self._clients, self._source = base, store, clients, source
        self._numbers = itertools.count()

    def make(self, model: Model, seed: int | None) -> None:
        """An adapter for a model; one that cannot be made leaves no model."""
        try:
            model.learner = self._base.learner(model.shape, seed)
            run = Run(
                id=model.id,
                base_model=self._source,
                rank=model.shape.rank,
                time=now(),
                user_metadata=model.user_metadata,
            )
            self._store.note_run(run)
        except BaseException:
            self._clients.models.pop(model.id, None)
            raise

    def load(self, model: Model, path: str, *, optimizer: bool) -> None:
        """Read a checkpoint into a model.

        Raises:
            UsageError: it is of another base or shape, or lacks what is asked for.
            DataError: it is damaged.
        """
        place, about = self._store.find(path)
        self.check_base(path, about)
        if about.shape != model.shape:
            raise UsageError(
                f"{path} is an adapter of {_shown(about.shape)}, and the client's is of {_shown(model.shape)}"
            )
        if optimizer and place.kind != "weights":
            raise UsageError(f"{path} holds no optimizer: it was saved for samplers; load it without")
        model.ready().load(self._store.folder(place), optimizer=optimizer)
        model.before = about.steps

    def write(self, model: Model, kind: Kind, name: str, asked: SaveBody) -> CheckpointPath:
        """Write a checkpoint.

        Raises:
            UsageError: there is one of that name.
            DataError: the disk is full.
        """
        learner = model.ready()
        place = CheckpointPath(run=model.id, kind=kind, name=name)
        about = CheckpointInfo(
            base_model=self._source,
            rank=model.shape.rank,
            train_mlp=model.shape.mlp,
            train_attn=model.shape.attention,
            train_unembed=model.shape.unembed,
            time=now(),
            steps=model.before + model.steps,
            expires_at=later(asked.ttl_seconds),
        )
        save = learner.save if kind == "weights" else learner.save_adapter
        self._store.write(place, about, save, overwrite=asked.overwrite)
        self._base.forget(self._store.folder(place))
        return place

    def pass_on(self, model: Model, sampler: str) -> None:
        """Make a sampler, without a checkpoint, of a model as it is; the oldest ones go."""
        folder = self._store.passing(next(self._numbers))
        model.ready().save_adapter(folder)
        try:
            self._clients.add_sampler(
                Sampler(id=sampler, session=model.session, shape=model.shape, folder=folder)
            )
        except UsageError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        model.passing.append(sampler)
        while len(model.passing) > PASSING:
            self._drop_sampler(model.passing.popleft())

    def drop(self, model: Model) -> Reply:
        """Let go of a model, and of its samplers without a checkpoint."""
        if model.learner is not None:
            self._base.drop(model.learner)
            model.learner = None
        while model.passing:
            self._drop_sampler(model.passing.popleft())
        return JsonReply(json={"type": "unload_model", "model_id": model.id})

    def check_base(self, path: str, about: CheckpointInfo) -> None:
        """Whether a checkpoint is of this base.

        Raises:
            UsageError: it is not.
        """
        if about.base_model != self._source:
            raise UsageError(
                f"{path} is an adapter of {about.base_model}, and this server serves {self._source}"
            )

    def _drop_sampler(self, name: str) -> None:
        sampler = self._clients.samplers.pop(name, None)
        if sampler is not None and sampler.folder is not None:
            self._base.forget(sampler.folder)
            shutil.rmtree(sampler.folder, ignore_errors=True)


def _shown(shape: AdapterShape) -> str:
    parts = {"MLP": shape.mlp, "attention": shape.attention, "output layer": shape.unembed}
    return f"rank {shape.rank} ({', '.join(name for name, has in parts.items() if has)})"
