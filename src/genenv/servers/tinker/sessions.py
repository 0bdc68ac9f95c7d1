"""The state of a Tinker server: sessions, their adapters and samplers, and results until fetched."""

from __future__ import annotations

import asyncio
import itertools
import math
import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from genenv.backends.served import AdapterShape
from genenv.errors import UsageError
from genenv.servers.tinker.bodies import SaveBody
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
from genenv.servers.worker import Worker

if TYPE_CHECKING:
    from genenv.backends.local.served.learner import Learner
    from genenv.backends.local.served.models import ServedBase


Work = Callable[[], Reply]

_GAP_S = 330.0
"""Seconds after which requests behind a missing one fail; clients retry sending for five minutes."""
_MOST_EARLY = 8192
"""The most refused requests of a model to remember, so that later requests do not wait for them."""


class RequestOrder:
    """Orders the requests to one model: each waits until all smaller sequence numbers are queued."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._next = worker, 1
        self._early: dict[int, tuple[Work, asyncio.Future[Reply]]] = {}

    def put(self, number: int | None, work: Work, done: asyncio.Future[Reply]) -> None:
        """Queue a request in order of its sequence number; a request without a number is queued at once."""
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
        """Skip a refused request, so that later requests do not wait for it."""
        if number is None or number < self._next or number in self._early:
            return
        if len(self._early) < _MOST_EARLY:
            loop = asyncio.get_running_loop()
            self.put(number, lambda: FailedReply(error="refused"), loop.create_future())

    def _give_up(self, missing: int) -> None:
        """Fail all requests that wait for the missing one."""
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
"""Seconds for which a fetched result is kept, in case it was lost on its way to the client."""
_MOST_WAITING, _MOST_WAITING_BYTES = 8192, 2**30
"""The most requests without a result, and the most bytes of their bodies or of large results together."""
_MOST_KEPT, _MOST_KEPT_BYTES = 65_536, 2**30
"""The most requests and results together, and the most bytes of results; beyond it the oldest fetched ones
are deleted."""


@dataclass(slots=True)
class _Entry:
    session: str
    done: asyncio.Future[Reply]
    opened: float = field(default_factory=time.monotonic)
    fetched: float | None = None
    size_bytes: int = 0
    """The size of the result; 0 until there is one."""


class Futures:
    """The requests under way and their results, by request id. For use from one event loop."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._waiting = self._waiting_bytes = self._kept_bytes = 0

    def known(self, request: str) -> bool:
        """Return whether a request is known: clients resend a request whose acknowledgement was lost."""
        return request in self._entries

    def open(self, request: str, session: str, size_bytes: int = 0) -> asyncio.Future[Reply]:
        """Register a request and return the future of its result.

        Args:
            request: the id of the request.
            session: the id of the session that sent it; "" for none.
            size_bytes: the size of its body if that is kept until the request is processed, or of its
                result if that may be far larger than its body.

        Raises:
            TooMuch: too many requests or bytes wait, or too many results or bytes were not fetched.
        """
        large = self._waiting > 0 and self._waiting_bytes + size_bytes > _MOST_WAITING_BYTES
        if self._waiting >= _MOST_WAITING or large:
            raise TooMuch(
                f"{self._waiting} requests wait to be worked; fetch their answers before you send more"
            )
        if len(self._entries) >= _MOST_KEPT or self._kept_bytes > _MOST_KEPT_BYTES:
            self._make_room()
        entry = _Entry(session, asyncio.get_running_loop().create_future())
        self._entries[request] = entry
        self._waiting += 1
        self._waiting_bytes += size_bytes

        def settled(done: asyncio.Future[Reply]) -> None:
            self._waiting -= 1
            self._waiting_bytes -= size_bytes
            if self._entries.get(request) is entry and not done.cancelled():
                entry.size_bytes = done.result().size_bytes
                self._kept_bytes += entry.size_bytes

        entry.done.add_done_callback(settled)
        return entry.done

    async def fetch(self, request: str, patience_s: float) -> Reply | None:
        """Return the result of a request, or None if it is not ready after `patience_s` seconds.

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
        """Delete results fetched long ago, and old unfetched results that belong to no session."""
        old = time.monotonic() - _KEPT_S
        self._keep(
            lambda entry: (
                not entry.done.done()
                or (entry.fetched or (math.inf if entry.session else entry.opened)) > old
            )
        )

    def _make_room(self) -> None:
        """Delete the older half of the fetched results, and more while the others have too many bytes.

        Raises:
            TooMuch: no result was fetched, or those that were not have too many bytes.
        """
        fetched = [request for request, entry in self._entries.items() if entry.fetched is not None]
        for place, request in enumerate(fetched):
            if place > len(fetched) // 2 and self._kept_bytes <= _MOST_KEPT_BYTES:
                break
            self._kept_bytes -= self._entries.pop(request).size_bytes
        if not fetched or self._kept_bytes > _MOST_KEPT_BYTES:
            raise TooMuch(
                f"{len(self._entries)} answers of {self._kept_bytes / 2**20:.0f} MiB were not fetched; fetch "
                "them before you send more"
            )

    def end(self, session: str) -> None:
        """Delete the requests and results of a session."""
        self._keep(lambda entry: entry.session != session)

    def _keep(self, wanted: Callable[[_Entry], bool]) -> None:
        self._entries = {request: entry for request, entry in self._entries.items() if wanted(entry)}
        self._kept_bytes = sum(entry.size_bytes for entry in self._entries.values())


PASSING = 16
"""The most unnamed samplers kept per model; older ones are deleted."""

_MOST_SESSIONS, _MOST_MODELS, _MOST_SAMPLERS = 4096, 256, 16_384


@dataclass(slots=True, kw_only=True)
class Session:
    """A client's session, which lives as long as requests or heartbeats arrive."""

    id: str
    seen: float = field(default_factory=time.monotonic)
    models: list[str] = field(default_factory=list[str])
    samplers: list[str] = field(default_factory=list[str])


@dataclass(slots=True, kw_only=True)
class Model:
    """A LoRA adapter that a session trains."""

    id: str
    session: str
    shape: AdapterShape
    user_metadata: Mapping[str, str]
    line: RequestOrder
    learner: Learner | None = None
    """The adapter and its optimizer; None until they are created and after they are unloaded."""
    steps: int = 0
    """Optimizer steps taken since the model was created or last loaded a checkpoint."""
    before: int = 0
    """Optimizer steps of the checkpoint that was loaded."""
    sequences: int = 0
    """Training sequences processed since the last optimizer step."""
    last: str = field(default_factory=now)
    """The time of the last request, ISO 8601."""
    passing: deque[str] = field(default_factory=deque[str])
    """The ids of the model's unnamed samplers, oldest first."""

    def ready(self) -> Learner:
        """Return the learner that trains the adapter.

        Raises:
            UsageError: the adapter could not be created, or is unloaded.
        """
        if self.learner is None:
            raise UsageError(f"the model {self.id} is not loaded")
        return self.learner


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """The weights that a client samples with: the base, optionally with an adapter."""

    id: str
    session: str
    shape: AdapterShape
    folder: Path | None = None
    """The adapter's folder; None for the base without an adapter."""
    path: str | None = None
    """The `tinker://` path of the checkpoint; None for an unnamed sampler or the base."""


class Clients:
    """All sessions, models and samplers of a server. Lookups raise `NotHere`."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.models: dict[str, Model] = {}
        self.samplers: dict[str, Sampler] = {}

    def session(self, name: str) -> Session:
        """Return a live session and record that it was used."""
        session = self.sessions.get(name)
        if session is None:
            raise NotHere(
                f"there is no session {name}: nothing was heard of it for too long, or the server has been "
                "started anew; make a new ServiceClient"
            )
        session.seen = time.monotonic()
        return session

    def model(self, name: str) -> Model:
        """Return a model and record that it and its session were used."""
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
        """Return a sampler and record that its session was used."""
        sampler = self.samplers.get(name)
        if sampler is None:
            raise NotHere(
                f"there is no sampler {name}: its session has ended, the server has been started anew, or "
                f"its model has {PASSING} newer ones; make another sampling client"
            )
        self.session(sampler.session)
        return sampler

    def add_session(self, session: Session) -> None:
        """Register a session; at the limit, first delete the oldest session without models and samplers.

        Raises:
            TooMuch: every session has a model or sampler.
        """
        if len(self.sessions) >= _MOST_SESSIONS:
            idle = [one for one in self.sessions.values() if not (one.models or one.samplers)]
            if not idle:
                raise TooMuch(f"there are {_MOST_SESSIONS} sessions, as many as there may be; end others")
            del self.sessions[min(idle, key=lambda one: one.seen).id]
        self.sessions[session.id] = session

    def add_model(self, model: Model) -> None:
        """Register a model. Raises `TooMuch` if there are too many."""
        if len(self.models) >= _MOST_MODELS:
            raise TooMuch(f"there are {_MOST_MODELS} models, as many as there may be; unload others")
        self.models[model.id] = model
        self.sessions[model.session].models.append(model.id)

    def remove_model(self, model: Model) -> None:
        """Remove a model that could not be created."""
        self.models.pop(model.id, None)
        session = self.sessions.get(model.session)
        if session is not None and model.id in session.models:
            session.models.remove(model.id)

    def add_sampler(self, sampler: Sampler) -> None:
        """Register a sampler; registering an equal sampler again has no effect.

        Raises:
            UsageError: a different sampler has its number.
            TooMuch: there are too many samplers.
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
        """Return the sessions that sent nothing for `seconds` seconds."""
        since = time.monotonic() - seconds
        return [session for session in self.sessions.values() if session.seen < since]


class Adapters:
    """Creates, loads, saves and frees the adapters of all clients. Methods run in the worker thread."""

    def __init__(self, base: ServedBase, store: CheckpointStore, clients: Clients, source: str) -> None:
        """Connect the adapters' base, checkpoints and clients.

        Args:
            base: the model that the adapters modify.
            store: the checkpoints of the adapters.
            clients: the sessions and models that own the adapters.
            source: the base's name in checkpoints.
        """
        self._base, self._store, self._clients, self._source = base, store, clients, source
        self._numbers = itertools.count()

    def make(self, model: Model, seed: int | None, load: Callable[[], None] = lambda: None) -> None:
        """Create the adapter of a model, `load` weights, and note its run; remove the model if that fails."""
        try:
            model.learner = self._base.learner(model.shape, seed)
            load()
            run = Run(
                id=model.id,
                base_model=self._source,
                rank=model.shape.rank,
                time=now(),
                user_metadata=model.user_metadata,
            )
            self._store.note_run(run)
        except BaseException:
            self._clients.remove_model(model)
            self.drop(model)
            raise

    def find(self, path: str, *, optimizer: bool) -> tuple[CheckpointPath, CheckpointInfo]:
        """Return the address and metadata of a checkpoint that is to be loaded.

        Raises:
            UsageError: there is none, it has another base, or lacks an optimizer that is requested.
            DataError: the checkpoint is damaged.
        """
        place, about = self._store.find(path)
        self.check_base(path, about)
        if optimizer and place.kind != "weights":
            raise UsageError(f"{path} holds no optimizer: it was saved for samplers; load it without")
        return place, about

    def load(self, model: Model, path: str, *, optimizer: bool) -> None:
        """Load a checkpoint into a model.

        Raises:
            UsageError: the checkpoint has another base or shape, or lacks an optimizer that is requested.
            DataError: the checkpoint is damaged.
        """
        place, about = self.find(path, optimizer=optimizer)
        if about.shape != model.shape:
            raise UsageError(
                f"{path} is an adapter of {_shown(about.shape)}, and the client's is of {_shown(model.shape)}"
            )
        model.ready().load(self._store.folder(place), optimizer=optimizer)
        model.before, model.steps, model.sequences = about.steps, 0, 0

    def write(self, model: Model, kind: Kind, name: str, asked: SaveBody) -> CheckpointPath:
        """Write a checkpoint of a model and return its address.

        Raises:
            UsageError: a checkpoint of that name exists.
            DataError: the disk is full.
        """
        learner = model.ready()
        place = CheckpointPath(run=model.id, kind=kind, name=name)
        about = CheckpointInfo(
            **asdict(model.shape),
            base_model=self._source,
            time=now(),
            steps=model.before + model.steps,
            expires_at=later(asked.ttl_seconds),
        )
        save = learner.save if kind == "weights" else learner.save_adapter
        self._store.write(place, about, save, overwrite=asked.overwrite)
        self._base.forget(self._store.folder(place))
        return place

    def pass_on(self, model: Model, sampler: str) -> None:
        """Create an unnamed sampler with a model's current weights; delete its oldest unnamed samplers."""
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
        """Free a model's adapter and its unnamed samplers."""
        if model.learner is not None:
            self._base.drop(model.learner)
            model.learner = None
        while model.passing:
            self._drop_sampler(model.passing.popleft())
        return JsonReply(json={"type": "unload_model", "model_id": model.id})

    def check_base(self, path: str, about: CheckpointInfo) -> None:
        """Check that a checkpoint belongs to this base.

        Raises:
            UsageError: the checkpoint belongs to another base.
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
    parts = {"MLP": shape.train_mlp, "attention": shape.train_attn, "output layer": shape.train_unembed}
    return f"rank {shape.rank} ({', '.join(name for name, has in parts.items() if has)})"
