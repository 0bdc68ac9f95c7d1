"""What the worker's thread does with adapters beside their learning: make, read, write, let go."""

from __future__ import annotations

import itertools
import shutil
from typing import TYPE_CHECKING

from genenv.backends.served import AdapterShape
from genenv.errors import UsageError
from genenv.servers.tinker.bodies import SaveBody
from genenv.servers.tinker.checkpoints import About, Kind, Place, Run, Shelf, later, now
from genenv.servers.tinker.clients import PASSING, Clients, Model, Sampler
from genenv.servers.tinker.replies import Plain, Reply

if TYPE_CHECKING:
    from genenv.backends.local.served.models import ServedBase


class Adapters:
    """The adapters of all clients. Its methods run in the thread."""

    def __init__(self, base: ServedBase, shelf: Shelf, clients: Clients, source: str) -> None:
        """Where they are.

        Args:
            base: what they are adapters of.
            shelf: their checkpoints.
            clients: whose they are.
            source: what the base is, for checkpoints.
        """
        self._base, self._shelf, self._clients, self._source = base, shelf, clients, source
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
            self._shelf.note_run(run)
        except BaseException:
            self._clients.models.pop(model.id, None)
            raise

    def load(self, model: Model, path: str, *, optimizer: bool) -> None:
        """Read a checkpoint into a model.

        Raises:
            UsageError: it is of another base or shape, or lacks what is asked for.
            DataError: it is damaged.
        """
        place, about = self._shelf.find(path)
        self.check_base(path, about)
        if about.shape != model.shape:
            raise UsageError(
                f"{path} is an adapter of {_shown(about.shape)}, and the client's is of {_shown(model.shape)}"
            )
        if optimizer and place.kind != "weights":
            raise UsageError(f"{path} holds no optimizer: it was saved for samplers; load it without")
        model.ready().load(self._shelf.folder(place), optimizer=optimizer)
        model.before = about.steps

    def write(self, model: Model, kind: Kind, name: str, asked: SaveBody) -> Place:
        """Write a checkpoint.

        Raises:
            UsageError: there is one of that name.
            DataError: the disk is full.
        """
        learner = model.ready()
        place = Place(run=model.id, kind=kind, name=name)
        about = About(
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
        self._shelf.write(place, about, save, overwrite=asked.overwrite)
        self._base.forget(self._shelf.folder(place))
        return place

    def pass_on(self, model: Model, sampler: str) -> None:
        """Make a sampler, without a checkpoint, of a model as it is; the oldest ones go."""
        folder = self._shelf.passing(next(self._numbers))
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
        return Plain(json={"type": "unload_model", "model_id": model.id})

    def check_base(self, path: str, about: About) -> None:
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
