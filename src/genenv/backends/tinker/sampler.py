# pyright: standard
"""A player on a Tinker server, as it answers: token ids there, token ids and log-probabilities back."""

from __future__ import annotations

import tinker

from genenv.backends.sampled import wrong_in
from genenv.backends.settings import COLDEST
from genenv.backends.tinker.service import ServerError, Service
from genenv.chat.format import ChatFormat
from genenv.chat.sampler import ChatSampler
from genenv.errors import UsageError
from genenv.progress import advance
from genenv.sampling import Completion, SampleRequest

SEEDS = 2**31 - 1
"""Seeds of requests are below it: servers take 32 bits with a sign."""


class TinkerSampler(ChatSampler):
    """Samples with the weights that its trainer published last.

    Nothing holds a completion to a schema there: a simulator that was warmed up writes freely, and the gate
    refuses. Log-probabilities are those at temperature 1, whatever the sampling's.
    """

    def __init__(
        self,
        service: Service,
        client: tinker.SamplingClient,
        chat: ChatFormat,
        *,
        context_tokens: int,
        max_thinking_tokens: int | None = None,
    ) -> None:
        """A sampler.

        Args:
            service: the server.
            client: the weights there.
            chat: the model's chat format.
            context_tokens: the longest sequence.
            max_thinking_tokens: closes thoughts after so many tokens; None: never.
        """
        super().__init__(chat, context_tokens=context_tokens, max_thinking_tokens=max_thinking_tokens)
        self.service = service
        self.client, self.version = client, 0

    async def _sample(self, request: SampleRequest) -> Completion:
        """One completion.

        Raises:
            UsageError: the reply has to be one of some, which a server cannot be asked for.
            ServerError: the server does not answer.
        """
        if request.choices:
            raise UsageError(
                "a Tinker server cannot be held to a list of replies: set the environment so that the agent "
                'replies freely, or policy.backend to "local"'
            )
        version = self.version
        greedy = request.temperature < COLDEST
        answer = self.client.sample_async(
            prompt=tinker.ModelInput.from_ints(list(request.prompt_ids)),
            num_samples=1,
            sampling_params=tinker.SamplingParams(
                max_tokens=request.max_tokens,
                temperature=0.0 if greedy else request.temperature,
                top_p=request.top_p,
                seed=request.stream % SEEDS,
                stop=[self.chat.end_id],
            ),
        )
        found = await self.service.within(answer, "sample")
        (sequence,) = found.sequences
        ids = tuple(map(int, sequence.tokens))
        logprobs = tuple(map(float, sequence.logprobs or ()))
        limits = {"max_tokens": request.max_tokens, "vocabulary": len(self.chat.tokenizer)}
        if (wrong := wrong_in(ids, logprobs, **limits)) is not None:
            raise ServerError(
                f"the Tinker server at {self.service.address} answers {wrong}; committed rounds are kept, "
                "continue with --resume"
            )
        advance(tokens=len(ids))
        return Completion(
            token_ids=ids,
            logprobs=logprobs,
            text=self.chat.decode(ids),
            finished=ids[-1:] == (self.chat.end_id,),
            version=version,
        )

    def end_round(self) -> None:
        """Nothing is kept here."""
