"""The operations of the Tinker protocol: sessions, adapters that train, samplers, checkpoints."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genenv.backends.served import AdapterShape, PromptRequest
from genenv.backends.settings import BUILT_IN
from genenv.errors import UsageError, unknown_name
from genenv.sampling import sampling_params
from genenv.servers.tinker import bodies
from genenv.servers.tinker.bodies import TrainRequest
from genenv.servers.tinker.checkpoints import (
    CheckpointInfo,
    CheckpointPath,
    CheckpointStore,
    Run,
    checked_name,
    later,
)
from genenv.servers.tinker.imitation import ServerImitation
from genenv.servers.tinker.replies import FailedReply, JsonReply, NotHere, Reply, SampledReply, TrainReply
from genenv.servers.tinker.sessions import (
    Adapters,
    Clients,
    Futures,
    Model,
    RequestOrder,
    Sampler,
    Session,
    Work,
)
from genenv.servers.worker import Worker
from genenv.types import Json, JsonObject

if TYPE_CHECKING:
    from genenv.backends.local.served.models import ServedBase


log = logging.getLogger(__name__)

_SWEEP_S = 5.0
_EXPIRY_S = 60.0
"""Seconds between two searches for expired checkpoints."""
_CLOSING_S = 5.0
_MOST_METADATA = 65_536


class Service:
    """The operations of the Tinker protocol on one base model, for all clients; `Routes` calls them."""

    def __init__(
        self,
        base: ServedBase,
        store: CheckpointStore,
        names: tuple[str, str],
        quirks: ServerImitation,
        forget_after_s: float,
    ) -> None:
        """Create a service without clients.

        Args:
            base: the model to serve.
            store: the checkpoints.
            names: the base's name for clients, and its source (a hub name or folder).
            quirks: deviations of other servers to imitate.
            forget_after_s: seconds without a request after which a session ends.
        """
        self.base, self.store, self.quirks = base, store, quirks
        self.name, self.source = names
        self._forget_after_s = forget_after_s
        self.clients, self.futures = Clients(), Futures()
        self.adapters = Adapters(base, store, self.clients, self.source)
        self.worker = Worker("tinker-server", FailedReply.of, quirks.slow_s)

    async def run(self) -> None:
        """Process requests and end silent sessions, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.worker.run())
            tasks.create_task(self._expire())
            while True:
                await asyncio.sleep(min(_SWEEP_S, self._forget_after_s / 2))
                self.futures.sweep()
                for session in self.clients.silent(self._forget_after_s):
                    self._end(session)

    async def _expire(self) -> None:
        """Delete expired checkpoints, until cancelled."""

        def work() -> Reply:
            for folder in self.store.expire():
                self.base.forget(folder)
            return JsonReply(json={})

        while True:
            await self.worker.do(work)
            await asyncio.sleep(_EXPIRY_S)

    async def close(self) -> None:
        """Free all adapters after the current work, waiting for at most a few seconds, and end the thread."""

        def drop() -> None:
            for model in list(self.clients.models.values()):
                self.adapters.drop(model)

        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.worker.aside(drop), _CLOSING_S)
        self.worker.close()

    def capabilities(self) -> JsonObject:
        """Answer get_server_capabilities: the models that are served, with their context lengths."""
        return {
            "supported_models": [{"model_name": self.name, "max_context_length": self.base.context_tokens}]
        }

    def create_session(self, _: bodies.Body) -> JsonObject:
        """Answer create_session: register a new client."""
        session = Session(id=str(uuid.uuid4()))
        self.clients.add_session(session)
        return {"type": "create_session", "session_id": session.id}

    def heartbeat(self, body: bodies.HeartbeatBody) -> JsonObject:
        """Answer session_heartbeat: keep the session alive."""
        self.clients.session(body.session_id)
        return {"type": "session_heartbeat"}

    def create_model(self, body: bodies.ModelBody) -> JsonObject:
        """Answer create_model: create a fresh adapter for a session."""
        session = self.clients.session(body.session_id)
        self.check_name(body.base_model)
        asked = body.lora_config
        if asked is None:
            raise UsageError("create_model has no lora_config; this server trains adapters (LoRA) alone")
        if not (asked.train_mlp or asked.train_attn):
            raise UsageError("this server trains no output layer alone: set train_mlp or train_attn, too")
        shape = AdapterShape(**asked.model_dump(exclude={"seed"}))
        model = self._new_model(session, body.model_seq_id, shape, body.user_metadata)

        def work() -> Reply:
            self.adapters.make(model, asked.seed)
            return JsonReply(json={"type": "create_model", "model_id": model.id})

        return self._first(model, work)

    def get_info(self, body: bodies.OfModelBody) -> JsonObject:
        """Answer get_info: describe the base and adapter of a model."""
        model = self.clients.model(body.model_id)
        data: JsonObject = {
            "arch": type(self.base.model.causal).__name__,
            "model_name": self.name,
            "tokenizer_id": self.base.tokenizer_place,
        }
        return {
            "type": "get_info",
            "model_data": data,
            "model_id": model.id,
            "is_lora": True,
            "lora_rank": model.shape.rank,
            "model_name": self.name,
        }

    def unload_model(self, body: bodies.OfModelBody) -> JsonObject:
        """Answer unload_model: free an adapter."""
        model = self.clients.model(body.model_id)
        del self.clients.models[model.id]

        request = f"{model.id}:unload"
        self.worker.put(lambda: self.adapters.drop(model), self.futures.open(request, model.session))
        return {"request_id": request, "model_id": model.id}

    def learn(self, body: TrainRequest) -> JsonObject:
        """Answer forward_backward: compute a loss, and add to the gradient unless it is `forward_only`."""
        model = self.clients.model(body.model_id)

        def work() -> Reply:
            learner = model.ready()
            examples = self.quirks.training_data(body.examples, body.loss)
            scored = self.quirks.train_result(
                learner.forward(examples, body.loss, backward=not body.forward_only)
            )
            model.sequences += 0 if body.forward_only else len(examples)
            return TrainReply(scored=scored, metrics={"loss:sum": scored.loss})

        return self._next(model, body.seq_id, work, body.size_bytes)

    def step(self, body: bodies.StepBody) -> JsonObject:
        """Answer optim_step: take one AdamW step with the accumulated gradient."""
        model = self.clients.model(body.model_id)

        def work() -> Reply:
            learner = model.ready()
            learner.divide(self.quirks.gradient_divisor(model.sequences))
            model.sequences = 0
            norm = learner.step(body.adam_params)
            model.steps += 1
            return JsonReply(json={"metrics": {"grad_norm": norm}})

        return self._next(model, body.seq_id, work)

    def save(self, body: bodies.SaveBody) -> JsonObject:
        """Answer save_weights: write adapter and optimizer, from which training can resume."""
        model = self.clients.model(body.model_id)
        name = checked_name(body.path) if body.path else f"step-{uuid.uuid4().hex[:8]}"

        def work() -> Reply:
            place = self.adapters.write(model, "weights", name, body)
            return JsonReply(json={"type": "save_weights", "path": place.path})

        return self._next(model, body.seq_id, work)

    def save_for_sampler(self, body: bodies.SaveBody) -> JsonObject:
        """Answer save_weights_for_sampler: write a named checkpoint, or create an unnamed sampler."""
        model = self.clients.model(body.model_id)
        number = body.sampling_session_seq_id
        name = None if body.path is None else checked_name(body.path)

        def named(name: str) -> Reply:
            place = self.adapters.write(model, "sampler_weights", name, body)
            return JsonReply(json={"type": "save_weights_for_sampler", "path": place.path})

        def passing() -> Reply:
            own = f"{model.session}:sample:{uuid.uuid4().hex if number is None else number}"
            self.adapters.pass_on(model, own)
            return JsonReply(json={"type": "save_weights_for_sampler", "sampling_session_id": own})

        return self._next(model, body.seq_id, passing if name is None else lambda: named(name))

    def load(self, body: bodies.LoadBody) -> JsonObject:
        """Answer load_weights: load a checkpoint into an existing model or into a new one."""
        if body.model_id is None:
            return self._load_anew(body)
        model = self.clients.model(body.model_id)

        def work() -> Reply:
            self.quirks.check_load(model.steps)
            self.adapters.load(model, body.path, optimizer=body.optimizer)
            return JsonReply(json={"type": "load_weights", "path": body.path, "model_id": model.id})

        return self._next(model, body.seq_id, work)

    def refused(self, to: bodies.Addressed) -> None:
        """Skip a refused request, so that later requests to its model do not wait for it."""
        model = self.clients.models.get(to.model_id)
        if model is not None:
            model.line.skip(to.seq_id)

    def create_sampler(self, body: bodies.SamplerBody) -> JsonObject:
        """Answer create_sampling_session: create a sampler of a checkpoint or of the base."""
        session = self.clients.session(body.session_id)
        name = f"{session.id}:sample:{body.sampling_session_seq_id}"
        self.clients.add_sampler(self._sampler_of(name, session.id, body.model_path, body.base_model))
        return {"type": "create_sampling_session", "sampling_session_id": name}

    def sample(self, body: bodies.SampleBody) -> JsonObject:
        """Answer asample: queue a sampling request."""
        self.quirks.count_model_request()
        if body.sampling_session_id is not None:
            sampler = self.clients.sampler(body.sampling_session_id)
        else:
            sampler = self._sampler_of("", "", body.model_path, body.base_model)
        if sampler.path is not None:
            self.quirks.check_sampler(loaded=CheckpointPath.of(sampler.path).run in self.clients.models)
        asked = self.quirks.sample_request(_asked(body))
        self.base.check(asked)
        number = uuid.uuid4().hex if body.seq_id is None or not sampler.id else body.seq_id
        request = f"{sampler.id or 'alone'}:{number}"
        if not self.futures.known(request):
            self.worker.sample(
                str(sampler.folder),
                lambda all_asked: [
                    SampledReply(answered=self.quirks.sample_result(one))
                    for one in self.base.answer(sampler.folder, sampler.shape, all_asked)
                ],
                asked,
                self.futures.open(request, sampler.session, _top_bytes(asked)),
            )
        return {"request_id": request}

    def forget(self, folder: Path) -> None:
        """Free the cached adapter of a deleted checkpoint."""
        self.worker.put(lambda: self.base.forget(folder), _nobody())

    def check_name(self, name: str) -> None:
        """Check that `name` names the base.

        Raises:
            UsageError: the base has another name.
        """
        if name not in (self.name, self.source, self.base.tokenizer_place):
            raise unknown_name("base model", name, {self.name})

    def _sampler_of(self, name: str, session: str, path: str | None, base: str | None) -> Sampler:
        if path is None:
            if base is None:
                raise UsageError("name a model_path or a base_model to sample from")
            self.check_name(base)
            return Sampler(id=name, session=session, shape=AdapterShape(rank=1))
        place, about = self.store.find(path)
        self.adapters.check_base(path, about)
        return Sampler(
            id=name, session=session, shape=about.shape, folder=self.store.folder(place), path=path
        )

    def _new_model(
        self, session: Session, number: int, shape: AdapterShape, metadata: Mapping[str, object] | None
    ) -> Model:
        known = {name: str(value) for name, value in (metadata or {}).items()}
        if sum(map(len, known.values())) > _MOST_METADATA:
            raise UsageError(f"user_metadata has more than {_MOST_METADATA} characters")
        name = f"{session.id}:train:{number}"
        if name in self.clients.models:
            known_model = self.clients.models[name]  # a resent request: the acknowledgement was lost
            if known_model.shape != shape:
                raise UsageError(f"there is another model {name}; count models on")
            return known_model
        model = Model(
            id=name, session=session.id, shape=shape, user_metadata=known, line=RequestOrder(self.worker)
        )
        if not self.futures.known(_creation(model)):  # else it failed or was unloaded, and its answer is kept
            self.clients.add_model(model)
        return model

    def _load_anew(self, body: bodies.LoadBody) -> JsonObject:
        if body.session_id is None or body.model_seq_id is None:
            raise UsageError("load_weights needs a model_id, or a session_id with a model_seq_id")
        session = self.clients.session(body.session_id)
        if body.base_model is not None:
            self.check_name(body.base_model)
        _, about = self.adapters.find(body.path, optimizer=body.optimizer)
        model = self._new_model(session, body.model_seq_id, about.shape, body.user_metadata)

        def work() -> Reply:
            self.adapters.make(
                model, None, lambda: self.adapters.load(model, body.path, optimizer=body.optimizer)
            )
            return JsonReply(json={"type": "load_weights", "path": body.path, "model_id": model.id})

        return self._first(model, work)

    def _first(self, model: Model, work: Work) -> JsonObject:
        request = _creation(model)
        if not self.futures.known(request):
            self.worker.put(work, self.futures.open(request, model.session))
        return {"request_id": request, "model_id": model.id}

    def _next(self, model: Model, number: int | None, work: Work, size_bytes: int = 0) -> JsonObject:
        """Queue a request to a model by its sequence number; a request that is known is not run again."""
        self.quirks.count_model_request()
        request = f"{model.id}:{uuid.uuid4().hex if number is None else number}"
        if not self.futures.known(request):
            model.line.put(number, work, self.futures.open(request, model.session, size_bytes))
        return {"request_id": request, "model_id": model.id}

    def _end(self, session: Session) -> None:
        """End a session and free its requests, models and samplers."""
        log.warning("nothing was heard of session %s for too long; its adapters are let go", session.id)
        del self.clients.sessions[session.id]
        self.futures.end(session.id)
        for name in session.models:
            model = self.clients.models.pop(name, None)
            if model is not None:
                self.worker.put(lambda model=model: self.adapters.drop(model), _nobody())

        def forget_samplers() -> None:
            """Run after the models are dropped, which finds the folders of their samplers by name."""
            for name in session.samplers:
                self.clients.samplers.pop(name, None)

        self.worker.put(forget_samplers, _nobody())


def _creation(model: Model) -> str:
    """Return the id of the request that creates a model."""
    return f"{model.id}:0"


def _nobody() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


def _top_bytes(asked: PromptRequest) -> int:
    """Return the size of the most probable tokens of a prompt with their log-probabilities."""
    return 8 * len(asked.prompt_ids) * asked.top_prompt_logprobs


def _asked(body: bodies.SampleBody) -> PromptRequest:
    draw = body.sampling_params
    stops: list[str | int] = [draw.stop] if isinstance(draw.stop, str) else [*(draw.stop or ())]
    return PromptRequest(
        prompt_ids=body.prompt.ids(),
        samples=body.num_samples,
        max_tokens=draw.max_tokens,
        top_k=draw.top_k or -1,
        stop_ids=tuple(stop for stop in stops if isinstance(stop, int)),
        stop_texts=tuple(stop for stop in stops if isinstance(stop, str) and stop),
        seed=draw.seed,
        prompt_logprobs=bool(body.prompt_logprobs),
        top_prompt_logprobs=body.topk_prompt_logprobs,
        **sampling_params(draw),
    )


class Library:
    """Queries about runs, checkpoints, sessions and samplers, and changes to checkpoints; see `Service`."""

    def __init__(self, service: Service) -> None:
        self._service, self._store = service, service.store

    def weights_info(self, path: str) -> JsonObject:
        """Answer weights_info: return the base, rank and layers of a checkpoint's adapter.

        Raises:
            NotHere: there is no such checkpoint.
        """
        _, about = self._store.find(path)
        told: JsonObject = {
            "base_model": self._called(about.base_model),
            "is_lora": True,
            "lora_rank": about.rank,
        }
        if self._service.quirks.tells_shape():
            told |= {
                "train_unembed": about.train_unembed,
                "train_mlp": about.train_mlp,
                "train_attn": about.train_attn,
            }
        return told

    def runs(self, offset: int, limit: int) -> JsonObject:
        """Return a page of training runs, newest first."""
        found = self._store.runs()
        part: list[Json] = [self._run(run) for run in found[offset : offset + limit]]
        return {"training_runs": part, "cursor": _cursor(offset, limit, len(found))}

    def run(self, name: str) -> JsonObject:
        """Return one training run.

        Raises:
            NotHere: there is no run of that name.
        """
        return self._run(self._known(name))

    def checkpoints(self, name: str) -> JsonObject:
        """Return the checkpoints of a training run, newest first.

        Raises:
            NotHere: there is no run of that name.
        """
        found = self._store.of_run(self._known(name).id)
        part: list[Json] = [self._checkpoint(*one) for one in found]
        return {"checkpoints": part}

    def all_checkpoints(self, offset: int, limit: int) -> JsonObject:
        """Return a page of the checkpoints of all training runs."""
        found = [one for run in self._store.runs() for one in self._store.of_run(run.id)]
        part: list[Json] = [self._checkpoint(*one) for one in found[offset : offset + limit]]
        return {"checkpoints": part, "cursor": _cursor(offset, limit, len(found))}

    def delete(self, run: str, checkpoint: str) -> None:
        """Delete a checkpoint.

        Raises:
            NotHere: there is no such checkpoint.
        """
        place, _ = self._find(run, checkpoint)
        self._store.remove(place)
        self._service.forget(self._store.folder(place))

    def publish(self, run: str, checkpoint: str, *, public: bool) -> None:
        """Record whether a checkpoint is public; on this server every client sees all checkpoints anyway.

        Raises:
            NotHere: there is no such checkpoint.
        """
        place, about = self._find(run, checkpoint)
        self._store.change(place, replace(about, public=public))

    def keep_for(self, run: str, checkpoint: str, seconds: int | None) -> None:
        """Set how many seconds a checkpoint is kept; None keeps it forever.

        Raises:
            NotHere: there is no such checkpoint.
        """
        place, about = self._find(run, checkpoint)
        self._store.change(place, replace(about, expires_at=later(seconds)))

    def sessions(self, offset: int, limit: int) -> JsonObject:
        """Return a page of the ids of live sessions."""
        return {"sessions": [*self._service.clients.sessions][offset : offset + limit]}

    def session(self, name: str) -> JsonObject:
        """Return the ids of a session's models and samplers.

        Raises:
            NotHere: there is no live session of that name.
        """
        found = self._service.clients.sessions.get(name)
        if found is None:
            raise NotHere(f"there is no session {name}")
        return {"training_run_ids": [*found.models], "sampler_ids": [*found.samplers]}

    def sampler(self, name: str) -> JsonObject:
        """Return the base model of a sampler, and its checkpoint path if it has one.

        Raises:
            NotHere: there is no such sampler.
        """
        found = self._service.clients.sampler(name)
        called = self._service.name  # clients look up a tokenizer by this name
        if called in BUILT_IN:
            called = self._service.base.tokenizer_place
        said: dict[str, Json] = {"sampler_id": name, "base_model": called}
        return said if found.path is None else {**said, "model_path": found.path}

    def _known(self, name: str) -> Run:
        for run in self._store.runs():
            if run.id == name:
                return run
        raise NotHere(f"there is no training run {name}")

    def _find(self, run: str, checkpoint: str) -> tuple[CheckpointPath, CheckpointInfo]:
        """Find a checkpoint by its id `weights/NAME` or `sampler_weights/NAME`; `NAME` means `weights`."""
        kind, slash, name = checkpoint.rpartition("/")
        return self._store.find(f"tinker://{run}/{kind if slash else 'weights'}/{name}")

    def _called(self, base_model: str) -> str:
        return self._service.name if base_model == self._service.source else base_model

    def _run(self, run: Run) -> JsonObject:
        found = self._store.of_run(run.id)
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

    def _checkpoint(self, place: CheckpointPath, about: CheckpointInfo) -> JsonObject:
        return {
            "checkpoint_id": f"{place.kind}/{place.name}",
            "checkpoint_type": _TYPES[place.kind],
            "time": about.time,
            "tinker_path": place.path,
            "size_bytes": self._store.size_bytes(place),
            "public": about.public,
            "expires_at": about.expires_at,
        }


_TYPES = {"weights": "training", "sampler_weights": "sampler"}


def _cursor(offset: int, limit: int, total: int) -> JsonObject:
    return {"offset": offset, "limit": limit, "total_count": total}
