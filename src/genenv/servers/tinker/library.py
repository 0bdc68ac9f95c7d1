"""What there is to look up: checkpoints, training runs, sessions."""

from __future__ import annotations

from dataclasses import replace

from genenv.backends.settings import BUILT_IN
from genenv.servers.tinker.checkpoints import About, Place, Run, later
from genenv.servers.tinker.refusals import NotHere
from genenv.servers.tinker.service import Service
from genenv.types import Json, JsonObject


class Library:
    """Looks things up in a service, and tidies its checkpoints."""

    def __init__(self, service: Service) -> None:
        self._service, self._shelf = service, service.shelf

    def weights_info(self, path: str) -> JsonObject:
        """What adapter a checkpoint is.

        Raises:
            NotHere: there is no such checkpoint.
        """
        _, about = self._shelf.find(path)
        told: JsonObject = {
            "base_model": self._called(about.base_model),
            "is_lora": True,
            "lora_rank": about.rank,
        }
        if self._service.quirks.shape_is_told():
            told |= {
                "train_unembed": about.train_unembed,
                "train_mlp": about.train_mlp,
                "train_attn": about.train_attn,
            }
        return told

    def runs(self, offset: int, limit: int) -> JsonObject:
        """Training runs, the newest first."""
        found = self._shelf.runs()
        part: list[Json] = [self._run(run) for run in found[offset : offset + limit]]
        return {"training_runs": part, "cursor": _cursor(offset, limit, len(found))}

    def run(self, name: str) -> JsonObject:
        """One training run.

        Raises:
            NotHere: there is none of that name.
        """
        return self._run(self._known(name))

    def checkpoints(self, name: str) -> JsonObject:
        """The checkpoints of a training run.

        Raises:
            NotHere: there is none of that name.
        """
        found = self._shelf.of_run(self._known(name).id)
        part: list[Json] = [self._checkpoint(*one) for one in found]
        return {"checkpoints": part}

    def all_checkpoints(self, offset: int, limit: int) -> JsonObject:
        """The checkpoints of all training runs."""
        found = [one for run in self._shelf.runs() for one in self._shelf.of_run(run.id)]
        part: list[Json] = [self._checkpoint(*one) for one in found[offset : offset + limit]]
        return {"checkpoints": part, "cursor": _cursor(offset, limit, len(found))}

    def delete(self, run: str, checkpoint: str) -> None:
        """Delete a checkpoint.

        Raises:
            NotHere: there is no such checkpoint.
        """
        place, _ = self._find(run, checkpoint)
        self._shelf.remove(place)
        self._service.forget(self._shelf.folder(place))

    def publish(self, run: str, checkpoint: str, *, public: bool) -> None:
        """Note whether a checkpoint may be seen by others; here all may be.

        Raises:
            NotHere: there is no such checkpoint.
        """
        place, about = self._find(run, checkpoint)
        self._shelf.change(place, replace(about, public=public))

    def keep_for(self, run: str, checkpoint: str, seconds: int | None) -> None:
        """Say how long a checkpoint stays; None: for good.

        Raises:
            NotHere: there is no such checkpoint.
        """
        place, about = self._find(run, checkpoint)
        self._shelf.change(place, replace(about, expires_at=later(seconds)))

    def sessions(self, offset: int, limit: int) -> JsonObject:
        """Sessions that are alive."""
        return {"sessions": [*self._service.clients.sessions][offset : offset + limit]}

    def session(self, name: str) -> JsonObject:
        """What a session has.

        Raises:
            NotHere: it is not alive.
        """
        found = self._service.clients.sessions.get(name)
        if found is None:
            raise NotHere(f"there is no session {name}")
        return {"training_run_ids": [*found.models], "sampler_ids": [*found.samplers]}

    def sampler(self, name: str) -> JsonObject:
        """What is sampled with.

        Raises:
            NotHere: there is no such sampler.
        """
        found = self._service.clients.sampler(name)
        called = self._service.name  # by which clients look for a tokenizer
        if called in BUILT_IN:
            called = self._service.base.tokenizer_place
        said: dict[str, Json] = {"sampler_id": name, "base_model": called}
        return said if found.path is None else {**said, "model_path": found.path}

    def _known(self, name: str) -> Run:
        for run in self._shelf.runs():
            if run.id == name:
                return run
        raise NotHere(f"there is no training run {name}")

    def _find(self, run: str, checkpoint: str) -> tuple[Place, About]:
        """A checkpoint by its id, `weights/NAME`; a name alone is one of `weights`."""
        kind, slash, name = checkpoint.rpartition("/")
        return self._shelf.find(f"tinker://{run}/{kind if slash else 'weights'}/{name}")

    def _called(self, base_model: str) -> str:
        return self._service.name if base_model == self._service.source else base_model

    def _run(self, run: Run) -> JsonObject:
        found = self._shelf.of_run(run.id)
        model = self._service.clients.models.get(run.id)
        last = {kind: next((one for one in found if one[0].kind == kind), None) for kind in _TYPES}
        metadata: dict[str, Json] = dict(run.user_metadata)
        return {
            "training_run_id": run.id,
            "base_model": self._called(run.base_model),
            "model_owner": "local",
            "is_lora": True,
            "lora_rank": run.rank,
            "corrupted": False,
            "last_request_time": run.time if model is None else model.last,
            "last_checkpoint": None if (one := last["weights"]) is None else self._checkpoint(*one),
            "last_sampler_checkpoint": (
                None if (one := last["sampler_weights"]) is None else self._checkpoint(*one)
            ),
            "user_metadata": metadata,
        }

    def _checkpoint(self, place: Place, about: About) -> JsonObject:
        return {
            "checkpoint_id": f"{place.kind}/{place.name}",
            "checkpoint_type": _TYPES[place.kind],
            "time": about.time,
            "tinker_path": place.path,
            "size_bytes": self._shelf.size_bytes(place),
            "public": about.public,
            "expires_at": about.expires_at,
        }


_TYPES = {"weights": "training", "sampler_weights": "sampler"}


def _cursor(offset: int, limit: int, total: int) -> JsonObject:
    return {"offset": offset, "limit": limit, "total_count": total}
