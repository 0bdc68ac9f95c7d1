# pyright: standard
"""A player as it answers on servers: every completion names the version of the weights that wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from genenv.backends.sampled import TOKENS
from genenv.backends.settings import COLDEST
from genenv.backends.vllm.fleet import Broken, Busy, Fleet
from genenv.backends.vllm.server import Server
from genenv.chat.choices import forced_places, structural_tag
from genenv.chat.format import ChatFormat
from genenv.chat.sampler import ChatSampler
from genenv.errors import RolloutError, UsageError
from genenv.progress import advance
from genenv.sampling import Completion, SampleRequest
from genenv.types import Message


class Reply(NamedTuple):
    """One reply as a server gave it."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]  # [T]
    logprobs: tuple[float, ...]  # [T] nats, at the temperature of the sampling
    temperature: float


class VllmSampler(ChatSampler):
    """Samples with the version that was published last."""

    def __init__(
        self, fleet: Fleet, chat: ChatFormat, *, context_tokens: int, max_thinking_tokens: int | None
    ) -> None:
        super().__init__(chat, context_tokens=context_tokens, max_thinking_tokens=max_thinking_tokens)
        self.fleet = fleet
        self.adapter, self.version = "", 0
        """What servers call the weights, and their version."""
        self._newest: dict[tuple[str, str], list[Reply]] = {}
        """By server and adapter: the newest replies that were held to nothing, not checked yet."""

    async def _sample(self, request: SampleRequest) -> Completion:
        """One completion.

        Raises:
            RolloutError: the request was lost too often.
            UsageError: the reply has to be one of some, and the servers mix such requests up.
            GenenvError: no server answers, or none as it should.
        """
        if request.choices and not self.fleet.chooses:
            raise UsageError(
                "these servers take one list of replies for another (xgrammar 0.2.8 keeps the first one's "
                "tokens): set the environment so that the agent replies freely, or take servers of "
                "`genenv serve`"
            )
        version, adapter = self.version, self.adapter
        done = await self.fleet.generate(
            adapter, request.prompt_ids, self.parameters(request), among=request.choices
        )
        ids = done.token_ids
        self._keep(done.address, adapter, request, Reply(request.prompt_ids, ids, done.logprobs, 1.0))
        advance(tokens=len(ids))
        return Completion(
            token_ids=ids,
            logprobs=done.logprobs,
            text=self.chat.decode(ids),
            finished=ids[-1:] == (self.chat.end_id,),
            forced=forced_places(ids, request.choices),
            version=version,
        )

    def _keep(self, address: str, adapter: str, request: SampleRequest, reply: Reply) -> None:
        """Keep the newest replies of a server for `taken`, as few as have enough tokens.

        Those that were held to something are not kept: servers differ in whose log-probabilities they give
        there. That there were some is.
        """
        kept = self._newest.setdefault((address, adapter), [])
        if request.schema is not None or request.choices or request.top_p < 1:
            return
        warm = request.temperature if request.temperature >= COLDEST else 1.0
        kept.append(reply._replace(temperature=warm))
        while sum(len(one.token_ids) for one in kept[1:]) >= TOKENS:
            del kept[0]

    def taken(self) -> Mapping[tuple[str, str], list[Reply]]:
        """By server and adapter: the newest replies since this was called last."""
        found, self._newest = self._newest, {}
        return found

    async def holds_choices(self, server: Server) -> bool:
        """Whether a server holds a reply to one of some, one list after the other.

        Raises:
            Busy: it is full.
        """
        prompt = self.render([Message(role="user", content="Say a word.")], first=True)
        for texts in (("yes", "no"), ("red", "blue"), ("up", "down")):
            choices = tuple(self.encode_reply(text) for text in texts)
            request = SampleRequest(prompt_ids=prompt, max_tokens=max(map(len, choices)), choices=choices)
            try:
                done = await self.fleet.ask(server, self.adapter, prompt, self.parameters(request))
            except Busy:
                raise
            except (RolloutError, Broken):
                return False
            if done.token_ids not in choices:
                return False
        return True

    def parameters(self, request: SampleRequest) -> Mapping[str, Any]:
        """The request by vLLM's names."""
        parameters: dict[str, Any] = {
            "max_tokens": request.max_tokens,
            "temperature": 0.0 if request.temperature < COLDEST else request.temperature,
            "top_p": request.top_p,
            "seed": request.stream % 2**63,
            "logprobs": 0,
            "stop_token_ids": [self.chat.end_id],
            "skip_special_tokens": False,
            "detokenize": False,
        }
        if request.schema is not None:
            parameters["structured_outputs"] = {"json": request.schema, "disable_any_whitespace": True}
        elif request.choices:
            parameters["structured_outputs"] = {"structural_tag": structural_tag(request.choices)}
        return parameters

    def end_round(self) -> None:
        """Nothing is kept here."""
