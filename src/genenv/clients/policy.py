"""A model behind an endpoint as a frozen agent of a run: `agents.NAME.address`.

Its replies come as text. So that trajectories look like those of other policies, they are recorded in the
tokens of another policy of the run, with log-probabilities of 0: nothing is trained on them.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from genenv.agent.policy import NamedAgentConfig
from genenv.backends.base import Opened, in_turn
from genenv.backends.scripted import ScriptedTrainer
from genenv.backends.settings import EndpointConfig, SamplingConfig
from genenv.chat.assistant import ChatMessage
from genenv.chat.tool_calls import as_text, message_of
from genenv.clients.endpoint import EndpointAssistant
from genenv.errors import ContextOverflow, GenenvError, RolloutError, UsageError
from genenv.sampling import Completion, Sampler, SampleRequest, sampling_params
from genenv.types import JsonObject, Message

_CONTEXT_TOKENS = 10_000_000
"""More than any model's context window: the server says when a conversation does not fit into its own."""


class EndpointSampler:
    """A sampler whose replies come from an endpoint.

    Args:
        name: of the agent.
        assistant: the model behind the endpoint.
        tokens: a policy whose tokenizer and chat template record the conversations.
    """

    context_tokens = _CONTEXT_TOKENS
    end_of_thought: tuple[int, ...] = ()

    def __init__(self, name: str, assistant: EndpointAssistant, tokens: Sampler) -> None:
        self.assistant, self._name, self._tokens = assistant, name, tokens
        self._slots = asyncio.Semaphore(assistant.endpoint.concurrency)
        self._answered, self._problems = 0, list[RolloutError]()

    def render(
        self,
        messages: Sequence[Message],
        *,
        first: bool,
        tools: Sequence[JsonObject] = (),
        after: str = "",
    ) -> tuple[int, ...]:
        """Return the messages in the tokens of the other policy; tools are not recorded.

        Raises:
            UsageError: there are tools, and the server takes none.
        """
        if tools and not self.assistant.native_tools:
            raise UsageError(
                f"these tasks offer tools in the model's own form, and {self.assistant.model}, the model of "
                f"agents.{self._name}, takes none; choose an environment.style that describes tools in the "
                "prompt"
            )
        return self._tokens.render(messages, first=first)

    def encode_reply(self, text: str, tools: Sequence[JsonObject] = ()) -> tuple[int, ...]:
        """Return a reply in the tokens of the other policy."""
        return self._tokens.encode_reply(text)

    def left_out(
        self, roles: Sequence[str], prompt: Sequence[int], reply: Sequence[int]
    ) -> tuple[int, int, int]:
        """Return zeros: thoughts are not recorded."""
        return 0, 0, 0

    async def sample(self, request: SampleRequest) -> Completion:
        """Return the model's reply to the messages of the request's conversation.

        Raises:
            ContextOverflow: the conversation does not fit into the model's context window.
            RolloutError: the endpoint gave no answer.
            UsageError: the reply must be one of a list.
        """
        if request.choices or request.conversation is None:
            raise UsageError(
                f"these tasks restrict replies to a list, but those of {self.assistant.model}, the model of "
                f"agents.{self._name}, cannot be restricted; choose an environment that does not ask for it"
            )
        talk = request.conversation
        said = _sent(talk.messages, calls=bool(talk.tools))
        body = self.assistant.body(said, talk.tools, request.stream % 2**31)
        body |= sampling_params(request)
        async with self._slots:
            try:
                reply = await self.assistant.ask(body, request.max_tokens)
            except ContextOverflow:
                self._answered += 1
                raise
            except RolloutError as problem:
                self._problems.append(problem)
                raise
        self._answered += 1
        text = as_text(reply.text, reply.calls)
        ids = self.encode_reply(text)
        return Completion(
            token_ids=ids if reply.finished else ids[:-1],
            logprobs=(0.0,) * (len(ids) - (not reply.finished)),
            text=text,
            finished=reply.finished,
        )

    def end_round(self) -> None:
        """Do nothing: the server has the caches."""

    async def check(self) -> None:
        """Stop a run whose endpoint does not answer, at most a round after it stopped.

        Raises:
            GenenvError: none of the requests since the last call was answered.
        """
        answered, problems = self._answered, self._problems
        self._answered, self._problems = 0, []
        if problems and not answered:
            raise GenenvError(
                f"{self.assistant.address.shown} answered none of {len(problems)} requests for "
                f"agents.{self._name}: {problems[0]}; committed rounds are kept, continue with --resume when "
                "it answers"
            )


def _sent(messages: Sequence[Message], *, calls: bool) -> list[ChatMessage]:
    """Return messages in the API's form: calls in replies as calls, tool results with the ids of calls.

    Args:
        messages: of a conversation.
        calls: whether tools are offered to the API; else replies are text, whatever calls they hold.
    """
    found, waiting = list[ChatMessage](), list[str]()
    for message in messages:
        one: ChatMessage = {"role": message.role, "content": message.content}
        if message.role == "assistant" and calls:
            one = message_of(message.content)
            waiting = [str(call["id"]) for call in one.get("tool_calls", ())]
        elif message.role == "tool" and waiting:
            one["tool_call_id"] = waiting.pop(0)
        found.append(one)
    return found


class FrozenTrainer(ScriptedTrainer):
    """The trainer of a model behind an endpoint: without weights; its checkpoint names the model.

    Args:
        assistant: the model.
    """

    def __init__(self, assistant: EndpointAssistant) -> None:
        super().__init__()
        self._described = assistant.describe()

    async def save(self, folder: Path) -> None:
        """Write the model's name and address to `endpoint.json`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "endpoint.json").write_text(json.dumps(self._described), encoding="utf-8")

    async def load(self, folder: Path) -> None:
        """Do nothing: there are no weights to restore."""


def meet(agents: Mapping[str, NamedAgentConfig]) -> dict[str, EndpointAssistant]:
    """Connect to the endpoints of agents, by name.

    Raises:
        UsageError: a server cannot be reached or refuses, or a key is missing; names the agent.
    """
    found: dict[str, EndpointAssistant] = {}
    for name, agent in agents.items():
        sampling = SamplingConfig(temperature=agent.temperature, max_new_tokens=agent.max_new_tokens)
        key = agent.endpoint.key_variable
        if key != EndpointConfig().key_variable and not os.environ.get(key):
            raise UsageError(
                f"agents.{name}.endpoint.key_variable names the environment variable {key}, which is not set"
            )
        try:
            found[name] = EndpointAssistant(agent.address or "", agent.endpoint, sampling)
        except UsageError as error:
            raise UsageError(f"agents.{name}: {error}") from error
    return found


def with_endpoints(opened: Opened, assistants: Mapping[str, EndpointAssistant]) -> Opened:
    """Return what a backend opened, with agents behind endpoints beside its policies.

    Args:
        opened: the other policies of the run; the first one records the conversations.
        assistants: the endpoints, by name of the agent.
    """
    tokens = next(iter(opened.samplers.values()))
    samplers = {name: EndpointSampler(name, one, tokens) for name, one in assistants.items()}
    trainers = {name: FrozenTrainer(one) for name, one in assistants.items()}
    found = {f"agents.{name}": one.describe() for name, one in assistants.items()}
    return replace(
        opened,
        samplers={**opened.samplers, **samplers},
        trainers={**opened.trainers, **trainers},
        found={**opened.found, **found},
        check=in_turn([opened.check, *(one.check for one in samplers.values())]),
        close=in_turn([opened.close, *(one.close for one in assistants.values())]),
    )
