# pyright: standard
"""A player as it answers on servers: every completion names the version of the weights that wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genenv.backends.base import Completion, SampleRequest
from genenv.backends.chat.choices import forced_places, structural_tag
from genenv.backends.chat.format import ChatFormat
from genenv.backends.chat.sampler import ChatSampler
from genenv.backends.settings import COLDEST
from genenv.backends.vllm.fleet import Fleet
from genenv.errors import GenenvError, RolloutError, UsageError
from genenv.runs.progress import advance
from genenv.types import Message


class VllmSampler(ChatSampler):
    """Samples with the version that was published last."""

    def __init__(
        self, fleet: Fleet, chat: ChatFormat, *, context_tokens: int, max_thinking_tokens: int | None
    ) -> None:
        super().__init__(chat, context_tokens=context_tokens, max_thinking_tokens=max_thinking_tokens)
        self.fleet = fleet
        self.adapter, self.version = "", 0
        """What servers call the weights, and their version."""

    async def _sample(self, request: SampleRequest) -> Completion:
        """One completion.

        Raises:
            RolloutError: the request was lost too often.
            UsageError: the reply has to be one of some, and the servers mix such requests up.
            GenenvError: no server answers, or one answers without token ids.
        """
        if request.choices and not self.fleet.chooses:
            raise UsageError(
                "these servers take one list of replies for another (xgrammar 0.2.8 keeps the first one's "
                "tokens): set the domain so that the agent replies freely, or take servers of `genenv serve`"
            )
        version = self.version
        choice = await self.fleet.generate(self.adapter, request.prompt_ids, self._parameters(request))
        try:
            ids = tuple(map(int, choice["token_ids"]))
            logprobs = tuple(float(one["logprob"]) for one in choice["logprobs"]["content"])
        except (KeyError, TypeError, ValueError) as error:
            raise GenenvError(
                "a server answers without token ids or log-probabilities: it is no vLLM of 0.32 or newer"
            ) from error
        if len(ids) != len(logprobs):
            raise GenenvError(f"a server answers {len(ids)} tokens with {len(logprobs)} log-probabilities")
        advance(tokens=len(ids))
        return Completion(
            token_ids=ids,
            logprobs=logprobs,
            text=self.chat.decode(ids),
            finished=ids[-1:] == (self.chat.end_id,),
            forced=forced_places(ids, request.choices),
            version=version,
        )

    async def holds_choices(self) -> bool:
        """Whether servers hold a reply to one of some, one list after the other."""
        prompt = self.render([Message(role="user", content="Say a word.")], first=True)
        for texts in (("yes", "no"), ("red", "blue"), ("up", "down")):
            choices = tuple(self.encode_reply(text) for text in texts)
            request = SampleRequest(prompt_ids=prompt, max_tokens=max(map(len, choices)), choices=choices)
            try:
                parameters = self._parameters(request)
                done = await self.fleet.generate(self.adapter, prompt, parameters, tries=1)
            except RolloutError:
                return False
            if tuple(done["token_ids"]) not in choices:
                return False
        return True

    def _parameters(self, request: SampleRequest) -> Mapping[str, Any]:
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
