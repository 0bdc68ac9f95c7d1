"""What clients can ask for: adapters that learn, samplers, sessions. Runs in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from genenv.backends.served import AdamParams, AdapterShape, PromptRequest
from genenv.errors import UsageError, unknown_name
from genenv.servers.tinker import bodies
from genenv.servers.tinker.adapters import Adapters
from genenv.servers.tinker.checkpoints import Place, Shelf, checked_name
from genenv.servers.tinker.clients import Clients, Model, Sampler, Session
from genenv.servers.tinker.data import Learn
from genenv.servers.tinker.futures import Futures
from genenv.servers.tinker.quirks import Quirks
from genenv.servers.tinker.replies import Learned, Plain, Reply
from genenv.servers.tinker.worker import Line, Work, Worker
from genenv.types import JsonObject

if TYPE_CHECKING:
    from genenv.backends.local.served.models import ServedBase

log = logging.getLogger(__name__)

_SWEEP_S = 5.0
_CLOSING_S = 5.0
_MOST_METADATA = 65_536


class Service:
    """One base, and everybody who trains and samples adapters on it."""

    def __init__(
        self, base: ServedBase, shelf: Shelf, names: tuple[str, str], quirks: Quirks, forget_after_s: float
    ) -> None:
        """A service.

        Args:
            base: what is served.
            shelf: its checkpoints.
            names: what the base is called by clients, and what it is.
            quirks: manners of other servers.
            forget_after_s: a session of which nothing is heard for so long ends.
        """
        self.base, self.shelf, self.quirks = base, shelf, quirks
        self.name, self.source = names
        self._forget_after_s = forget_after_s
        self.clients, self.futures = Clients(), Futures()
        self.adapters = Adapters(base, shelf, self.clients, self.source)
        self.worker = Worker(quirks.slow_s)

    async def run(self) -> None:
        """Work, and let go of who is gone, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.worker.run())
            while True:
                await asyncio.sleep(min(_SWEEP_S, self._forget_after_s / 2))
                self.futures.sweep()
                for session in self.clients.silent(self._forget_after_s):
                    self._end(session)

    async def close(self) -> None:
        """Let go of all adapters, once the thread has done what it is at; that is given a few seconds."""

        def drop() -> None:
            for model in list(self.clients.models.values()):
                self.adapters.drop(model)

        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.worker.aside(drop), _CLOSING_S)
        self.worker.close()

    def capabilities(self) -> JsonObject:
        """get_server_capabilities."""
        return {
            "supported_models": [{"model_name": self.name, "max_context_length": self.base.context_tokens}]
        }

    def create_session(self, body: bodies.SessionBody) -> JsonObject:
        """A new client."""
        del body
        session = Session(id=str(uuid.uuid4()))
        self.clients.add_session(session)
        return {"type": "create_session", "session_id": session.id}

    def heartbeat(self, body: bodies.BeatBody) -> JsonObject:
        """A sign of life."""
        self.clients.session(body.session_id)
        return {"type": "session_heartbeat"}

    def create_model(self, body: bodies.ModelBody) -> JsonObject:
        """A fresh adapter for a session."""
        session = self.clients.session(body.session_id)
        self.check_name(body.base_model)
        asked = body.lora_config
        if asked is None:
            raise UsageError("create_model has no lora_config; this server trains adapters (LoRA) alone")
        if not (asked.train_mlp or asked.train_attn):
            raise UsageError("this server trains no output layer alone: set train_mlp or train_attn, too")
        shape = AdapterShape(
            rank=asked.rank, mlp=asked.train_mlp, attention=asked.train_attn, unembed=asked.train_unembed
        )
        model = self._new_model(session, body.model_seq_id, shape, body.user_metadata)

        def work() -> Reply:
            self.adapters.make(model, asked.seed)
            return Plain(json={"type": "create_model", "model_id": model.id})

        return self._first(model, work)

    def get_info(self, body: bodies.OfModelBody) -> JsonObject:
        """What a model is."""
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
        """Let go of a model."""
        model = self.clients.model(body.model_id)
        del self.clients.models[model.id]

        request = f"{model.id}:unload"
        self.worker.put(lambda: self.adapters.drop(model), self.futures.open(request, model.session))
        return {"request_id": request, "model_id": model.id}

    def learn(self, body: Learn) -> JsonObject:
        """Forward and forward_backward."""
        model = self.clients.model(body.model_id)

        def work() -> Reply:
            learner = model.ready()
            examples = self.quirks.learned(body.examples, body.loss)
            scored = self.quirks.scored(learner.forward(examples, body.loss, backward=not body.forward_only))
            model.sequences += 0 if body.forward_only else len(examples)
            return Learned(scored=scored, metrics={"loss:sum": scored.loss})

        return self._next(model, body.seq_id, work, body.size_bytes)

    def step(self, body: bodies.StepBody) -> JsonObject:
        """optim_step."""
        model = self.clients.model(body.model_id)
        adam = AdamParams(**body.adam_params.model_dump())

        def work() -> Reply:
            learner = model.ready()
            learner.divide(self.quirks.shared_by(model.sequences))
            model.sequences = 0
            norm = learner.step(adam)
            model.steps += 1
            return Plain(json={"metrics": {"grad_norm": norm}})

        return self._next(model, body.seq_id, work)

    def save(self, body: bodies.SaveBody) -> JsonObject:
        """save_weights: adapter and optimizer, to go on from."""
        model = self.clients.model(body.model_id)
        name = checked_name(body.path) if body.path else f"step-{uuid.uuid4().hex[:8]}"

        def work() -> Reply:
            place = self.adapters.write(model, "weights", name, body)
            return Plain(json={"type": "save_weights", "path": place.path})

        return self._next(model, body.seq_id, work)

    def save_for_sampler(self, body: bodies.SaveBody) -> JsonObject:
        """save_weights_for_sampler: with a name a checkpoint, without one a sampler that will pass."""
        model = self.clients.model(body.model_id)
        number = body.sampling_session_seq_id
        name = None if body.path is None else checked_name(body.path)

        def named(name: str) -> Reply:
            place = self.adapters.write(model, "sampler_weights", name, body)
            return Plain(json={"type": "save_weights_for_sampler", "path": place.path})

        def passing() -> Reply:
            own = f"{model.session}:sample:{uuid.uuid4().hex if number is None else number}"
            self.adapters.pass_on(model, own)
            return Plain(json={"type": "save_weights_for_sampler", "sampling_session_id": own})

        return self._next(model, body.seq_id, passing if name is None else lambda: named(name))

    def load(self, body: bodies.LoadBody) -> JsonObject:
        """load_weights: into a model that is there, or into one that is made for them."""
        if body.model_id is None:
            return self._load_anew(body)
        model = self.clients.model(body.model_id)

        def work() -> Reply:
            self.quirks.check_load(model.steps)
            self.adapters.load(model, body.path, optimizer=body.optimizer)
            return Plain(json={"type": "load_weights", "path": body.path, "model_id": model.id})

        return self._next(model, body.seq_id, work)

    def refused(self, to: bodies.Addressed) -> None:
        """A request was refused: those after it do not wait for it."""
        model = self.clients.models.get(to.model_id)
        if model is not None:
            model.line.skip(to.seq_id)

    def create_sampler(self, body: bodies.SamplerBody) -> JsonObject:
        """create_sampling_session."""
        session = self.clients.session(body.session_id)
        name = f"{session.id}:sample:{body.sampling_session_seq_id}"
        self.clients.add_sampler(self._sampler_of(name, session.id, body.model_path, body.base_model))
        return {"type": "create_sampling_session", "sampling_session_id": name}

    def sample(self, body: bodies.SampleBody) -> JsonObject:
        """Asample."""
        self.quirks.asked_of_a_model()
        if body.sampling_session_id is not None:
            sampler = self.clients.sampler(body.sampling_session_id)
        else:
            sampler = self._sampler_of("", "", body.model_path, body.base_model)
        if sampler.path is not None:
            self.quirks.check_sampler(loaded=Place.of(sampler.path).run in self.clients.models)
        asked = self.quirks.asked(_asked(body))
        self.base.check(asked)
        number = uuid.uuid4().hex if body.seq_id is None or not sampler.id else body.seq_id
        request = f"{sampler.id or 'alone'}:{number}"
        if not self.futures.known(request):
            self.worker.sample(
                str(sampler.folder),
                lambda all_asked: [
                    self.quirks.answered(one)
                    for one in self.base.answer(sampler.folder, sampler.shape, all_asked)
                ],
                asked,
                self.futures.open(request, sampler.session),
            )
        return {"request_id": request}

    def forget(self, folder: Path) -> None:
        """A checkpoint is gone: nothing of it stays in memory."""

        def work() -> Reply:
            self.base.forget(folder)
            return Plain(json={})

        self.worker.put(work, _nobody())

    def check_name(self, name: str) -> None:
        """Whether the base is called so.

        Raises:
            UsageError: it is not.
        """
        if name not in (self.name, self.source, self.base.tokenizer_place):
            raise unknown_name("base model", name, {self.name})

    def _sampler_of(self, name: str, session: str, path: str | None, base: str | None) -> Sampler:
        if path is None:
            if base is None:
                raise UsageError("name a model_path or a base_model to sample from")
            self.check_name(base)
            return Sampler(id=name, session=session, shape=AdapterShape(rank=1))
        place, about = self.shelf.find(path)
        self.adapters.check_base(path, about)
        return Sampler(
            id=name, session=session, shape=about.shape, folder=self.shelf.folder(place), path=path
        )

    def _new_model(
        self, session: Session, number: int, shape: AdapterShape, metadata: Mapping[str, object] | None
    ) -> Model:
        known = {name: str(value) for name, value in (metadata or {}).items()}
        if sum(map(len, known.values())) > _MOST_METADATA:
            raise UsageError(f"user_metadata has more than {_MOST_METADATA} characters")
        name = f"{session.id}:train:{number}"
        if name in self.clients.models:
            known_model = self.clients.models[name]  # asked for again: the acknowledgement was lost
            if known_model.shape != shape:
                raise UsageError(f"there is another model {name}; count models on")
            return known_model
        model = Model(id=name, session=session.id, shape=shape, user_metadata=known, line=Line(self.worker))
        self.clients.add_model(model)
        return model

    def _load_anew(self, body: bodies.LoadBody) -> JsonObject:
        if body.session_id is None or body.model_seq_id is None:
            raise UsageError("load_weights needs a model_id, or a session_id with a model_seq_id")
        session = self.clients.session(body.session_id)
        if body.base_model is not None:
            self.check_name(body.base_model)
        _, about = self.shelf.find(body.path)
        model = self._new_model(session, body.model_seq_id, about.shape, body.user_metadata)

        def work() -> Reply:
            self.adapters.make(model, None)
            self.adapters.load(model, body.path, optimizer=body.optimizer)
            return Plain(json={"type": "load_weights", "path": body.path, "model_id": model.id})

        return self._first(model, work)

    def _first(self, model: Model, work: Work) -> JsonObject:
        request = f"{model.id}:0"
        if not self.futures.known(request):
            self.worker.put(work, self.futures.open(request, model.session))
        return {"request_id": request, "model_id": model.id}

    def _next(self, model: Model, number: int | None, work: Work, size_bytes: int = 0) -> JsonObject:
        """Have a request to a model worked in its turn; one that is known is not worked again."""
        self.quirks.asked_of_a_model()
        request = f"{model.id}:{uuid.uuid4().hex if number is None else number}"
        if not self.futures.known(request):
            model.line.put(number, work, self.futures.open(request, model.session, size_bytes))
        return {"request_id": request, "model_id": model.id}

    def _end(self, session: Session) -> None:
        """A session is over: let go of all that it had."""
        log.warning("nothing was heard of session %s for too long; its adapters are let go", session.id)
        del self.clients.sessions[session.id]
        self.futures.end(session.id)
        for name in session.models:
            model = self.clients.models.pop(name, None)
            if model is not None:
                self.worker.put(lambda model=model: self.adapters.drop(model), _nobody())
        for name in session.samplers:
            self.clients.samplers.pop(name, None)


def _nobody() -> asyncio.Future[Reply]:
    return asyncio.get_running_loop().create_future()


def _asked(body: bodies.SampleBody) -> PromptRequest:
    draw = body.sampling_params
    stops: list[str | int] = [draw.stop] if isinstance(draw.stop, str) else [*(draw.stop or ())]
    return PromptRequest(
        prompt_ids=body.prompt.ids(),
        samples=body.num_samples,
        max_tokens=draw.max_tokens,
        temperature=draw.temperature,
        top_k=draw.top_k or -1,
        top_p=draw.top_p,
        stop_ids=tuple(stop for stop in stops if isinstance(stop, int)),
        stop_texts=tuple(stop for stop in stops if isinstance(stop, str) and stop),
        seed=draw.seed,
        prompt_logprobs=bool(body.prompt_logprobs),
        top_prompt_logprobs=body.topk_prompt_logprobs,
    )
