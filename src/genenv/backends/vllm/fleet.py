# pyright: standard
"""The vLLM servers of a run: distributes requests, and sends a lost request to another server.

The servers' `/inference/v1/generate` takes token ids, and returns token ids and log-probabilities. They load
adapters by `/v1/load_lora_adapter`.

Each server is checked before its first request (`admit`), and again after it was lost. A server whose answers
violate the protocol is excluded: its requests go to the others, and the run stops if there is no other. A
server that does not answer is tried again later. A server at its capacity (status 429 or 503) is tried again
after a moment, unless another server has room.

Servers may come and go: each then writes its address to a file in a folder that all machines can read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import weakref
import zlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genenv.backends.settings import VllmConfig
from genenv.backends.vllm.client import (
    LOST,
    MOST_BYTES,
    NO_ADDRESS,
    Answer,
    Broken,
    Busy,
    Card,
    Connections,
    Forgot,
    Sampled,
    TooLarge,
    Unfit,
    check_choices,
    check_room,
    check_status,
    most_bytes,
    parse_cards,
    parse_completion,
    read_addresses,
    refusal_text,
    why,
)
from genenv.backends.vllm.launcher import LaunchedServer
from genenv.errors import GenenvError, RolloutError, UsageError
from genenv.http.guard import key_headers

log = logging.getLogger(__name__)

_SPREAD = 8
"""Requests of one prompt go to the same server, which prefills it once, unless that server has this many more
requests in flight than the least busy one."""
_MEET_TIMEOUT_S = 30.0
_RECHECK_S = 5.0
"""Seconds after which a waiting request checks again for a free server, as a lost one may be back."""
_PING_S = 1.0
"""Interval and timeout, seconds, of the pings that find out whether a lost server is back while no other
answers."""
_REFRESH_S = 1.0
"""Minimum interval between two reads of the address folder, seconds."""
_KEPT = "committed rounds are kept, continue with --resume"
_USUAL_TOKENS = 16
"""Maximum tokens of a completion if the request does not state it; vLLM's default."""


_REST_S = 5.0
"""Seconds without requests after a server was lost; the time doubles at each further loss."""
_LONGEST_REST_S = 60.0
_FULL_S = 0.5
"""Seconds without requests after a server was full; the time doubles while it stays full."""
_LONGEST_FULL_S = 8.0


@dataclass(slots=True)
class Server:
    """One vLLM server of a `Fleet`, with its last known state."""

    address: str
    busy: int = 0
    """Number of requests in flight."""
    rests_until: float = 0.0
    rest_s: float = _REST_S
    full_until: float = 0.0
    full_s: float = _FULL_S
    full_since: float | None = None
    """Time since which the server has been full; None if it accepted the last request."""
    adapters: dict[str, Path] = field(default_factory=dict[str, Path])
    """The adapters that the server has loaded, with their folders."""
    named: bool = True
    """Whether settings or the address folder still name the server; if not, requests go elsewhere."""
    checked: bool = False
    """Whether the server passed the check of its weights since its last known start."""
    excluded: str = ""
    """Why the server gets no more requests; empty if it is in use."""

    def lost(self) -> None:
        """Note that the server did not answer: it rests, and may have restarted and lost its adapters."""
        now = time.monotonic()
        if now >= self.rests_until:  # many requests may have been lost at once
            self.rests_until, self.rest_s = now + self.rest_s, min(2 * self.rest_s, _LONGEST_REST_S)
        self.forgot()

    def full(self, most_s: float) -> bool:
        """Note that the server is full: it rests for a moment, and keeps its adapters.

        Args:
            most_s: how long the server may stay full, seconds.

        Returns:
            Whether the server has been full for no longer than `most_s`.
        """
        now = time.monotonic()
        if (
            self.full_since is None or now > self.full_until + _LONGEST_FULL_S
        ):  # it got no requests for a while
            self.full_since, self.full_s = now, _FULL_S
        if now >= self.full_until:
            self.full_until, self.full_s = now + self.full_s, min(2 * self.full_s, _LONGEST_FULL_S)
        return now - self.full_since <= most_s

    def forgot(self) -> None:
        """Note that the server restarted: it has no adapters, and must be checked again."""
        self.adapters.clear()
        self.checked = False

    def found(self) -> None:
        """Note that the server answers again."""
        self.rests_until, self.rest_s = 0.0, _REST_S

    def served(self) -> None:
        """Note that the server answered a request, so it is neither lost nor full."""
        self.found()
        self.full_until, self.full_s, self.full_since = 0.0, _FULL_S, None


class Fleet:
    """All vLLM servers of a run; samplers and trainers send their requests through it."""

    def __init__(self, config: VllmConfig, launched: LaunchedServer | None = None) -> None:
        """Create the list of servers; no request is sent.

        Args:
            config: names the servers.
            launched: a server that the run has started for itself, which `config` names too.
        """
        self.config, self._launched = config, launched
        own = {} if launched is None else {"Authorization": f"Bearer {launched.key}"}
        self._headers = own or key_headers(config.key_variable)
        self.servers = [Server(address.rstrip("/")) for address in config.addresses]
        self._refreshed_at, self._pinged_at = -_REFRESH_S, -_PING_S
        self.wanted: dict[str, Path] = {}
        """The adapters that all servers should have loaded, with their folders."""
        self.holds_choices = True
        """Whether servers hold replies to lists of choices; tested when the run is opened."""
        self.vocabulary = 2**31
        """Size of the model's vocabulary."""
        self.context_tokens = 0
        """The longest sequence that a server must accept, in tokens."""
        self.admit: Callable[[Server], Awaitable[None]] | None = None
        """Checks that a server samples from the trainers' weights; raises `Unfit`. None: no check yet."""
        self.opening = True
        """Whether the run is being opened; an unfit server then ends it instead of being excluded."""
        self._by_loop = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Connections]()
        self._admitting: dict[tuple[int, str], asyncio.Lock] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        """Requests that wait for a free server."""

    async def meet(self) -> Mapping[str, Sequence[Card]]:
        """Ask every server for its models; at least one must answer, the others may follow later.

        With a folder of addresses, wait up to `timeout_s` for the first server.

        Returns:
            The models of each server, by address.

        Raises:
            UsageError: no server answers, or an address is not of a vLLM server.
        """
        until = time.monotonic() + self.config.timeout_s
        while True:
            self._refresh_addresses()
            found: dict[str, Sequence[Card]] = {}
            missing: list[str] = []
            for server in tuple(self.servers):
                try:
                    found[server.address] = await self.cards(server)
                except Unfit as error:
                    raise UsageError(f"{server.address} {error}") from error
                except NO_ADDRESS as error:
                    raise UsageError(f"{server.address} is no address: {why(error)}") from error
                except (*LOST, Broken) as error:
                    self.mark_lost(server, error)
                    missing.append(
                        f"no vLLM server answers at {server.address}: {why(error)}; start one (`genenv "
                        "serve`), or set policy.vllm.addresses"
                    )
            if found:
                return found
            if self.config.addresses_folder is None or time.monotonic() > until:
                missing.append(
                    f"{self.config.addresses_folder} (policy.vllm.addresses_folder) holds no address of a "
                    "server; each server writes its own there, in a file that ends in .address, without user "
                    "and password"
                )
                raise UsageError(missing[0])
            await asyncio.sleep(_REFRESH_S)

    async def cards(self, server: Server) -> Sequence[Card]:
        """Return the models that a server lists.

        Raises:
            UsageError: the list is empty.
            NO_ADDRESS, LOST, Broken: the server does not answer, or is full.
        """
        asked = self._connections().get(server.address, "/v1/models", timeout_s=_MEET_TIMEOUT_S)
        try:
            answer = await self._response_unless_moved(server, asked)
        except TooLarge as error:
            raise UsageError(f"what answers at {server.address} is no vLLM server: {error}") from error
        check_room(answer)
        return parse_cards(server.address, answer)

    async def load_adapter(self, name: str, folder: Path, *, instead_of: str | None) -> None:
        """Have all servers load an adapter; a lost server loads it before its next request.

        Args:
            name: of the adapter in requests.
            folder: its path, as the servers see it.
            instead_of: an adapter to unload; None: none.

        Raises:
            UsageError: a server cannot load adapters, while the run is being opened.
            GenenvError: no usable server is left.
        """
        self.wanted[name] = folder
        if instead_of is not None:
            self.wanted.pop(instead_of, None)
        self._refresh_addresses()
        for server in tuple(self.servers):
            if server.excluded or server.rests_until > time.monotonic():
                continue
            try:
                await self._load(server, name)
                for old in server.adapters.keys() - self.wanted.keys():
                    server.adapters.pop(old, None)  # a lost server has none
                    await self._post(server, "/v1/unload_lora_adapter", {"lora_name": old})
            except Busy as error:
                log.info("%s is full, and loads %s before its next request: %s", server.address, name, error)
            except (*LOST, Broken) as error:
                self.mark_lost(server, error)
            except (Unfit, TooLarge) as error:
                self.exclude(server, error)

    def available(self) -> list[Server]:
        """Return the servers that are not excluded and not known to be lost."""
        return [s for s in self.servers if not s.excluded and s.rests_until <= time.monotonic()]

    async def answering(self) -> AsyncIterator[Server]:
        """Yield all available servers; if each of them fails, wait and repeat until one answers.

        Raises:
            GenenvError: no server answers within `timeout_s`.
        """
        until, some = time.monotonic() + self.config.timeout_s, False
        while not some:
            for server in self.available():
                yield server
                some |= server.rests_until <= time.monotonic()
            if not some:
                await self._ping_or_give_up(until)

    async def ask(
        self, server: Server, name: str, ids: Sequence[int], parameters: Mapping[str, Any]
    ) -> Sampled:
        """Request one completion from one server, without retries; see `generate` for the arguments.

        Raises:
            Unfit: its answer is not a completion.
            Refused: the request itself is invalid.
            Busy: it is full.
            Broken: it failed, or gave up on the completion.
            LOST: no answer came.
        """
        await self._load(server, name)
        body = {"model": name, "token_ids": list(ids), "sampling_params": dict(parameters)}
        most = int(parameters.get("max_tokens", _USUAL_TOKENS))
        try:
            answer = await self._post(server, "/inference/v1/generate", body, most=most_bytes(most))
        except TooLarge as error:
            raise Unfit(f"answers with what is no completion: {error}") from error
        check_status(server.address, answer)
        found, logprobs = parse_completion(answer, max_tokens=most, vocabulary=self.vocabulary)
        return Sampled(address=server.address, token_ids=found, logprobs=logprobs)

    async def generate(
        self,
        name: str,
        ids: Sequence[int],
        parameters: Mapping[str, Any],
        *,
        choices: Sequence[tuple[int, ...]] = (),
    ) -> Sampled:
        """Request one completion from any server, with retries.

        Args:
            name: of the adapter.
            ids: token ids of the prompt.
            parameters: of the sampling, by vLLM's names.
            choices: replies of which the completion must be one; empty: any reply.

        Raises:
            Refused: the request itself is invalid.
            RolloutError: every try was lost, or the servers stayed full for longer than `timeout_s`.
            GenenvError: no server answers any more, or all are excluded.
        """
        problem: Exception | None = None
        most = self.config.tries
        forgotten: set[str] = set()
        attempt, who = 0, ""
        while attempt < most:
            server = await self._choose_server(ids)
            server.busy += 1
            attempt, who = attempt + 1, server.address
            try:
                await self._ensure_admitted(server)
                found = await self.ask(server, name, ids, parameters)
                check_choices(found.token_ids, choices, int(parameters.get("max_tokens", 0)))
                server.served()
                return found
            except Unfit as error:  # costs no try: each server is excluded only once
                problem, attempt = error, attempt - 1
                self.exclude(server, error)
            except Forgot as error:  # the server restarted: the next try loads the adapter again
                problem = error
                server.forgot()
                if name in self.wanted and server.address in forgotten:
                    self.exclude(server, Unfit(f"does not know an adapter that it has just loaded: {error}"))
                forgotten.add(server.address)
            except Busy as error:  # costs no try unless it stays full for too long
                problem = error
                if server.full(self.config.timeout_s):
                    attempt -= 1
                else:
                    self.mark_lost(server, error)
            except (*LOST, Broken) as error:
                problem = error
                self.mark_lost(server, error)
            finally:
                server.busy -= 1
                self._wake_next()
        raise RolloutError(f"a request was lost {most} times, the last time by {who}: {why(problem)}")

    def exclude(self, server: Server, error: Exception) -> None:
        """Send no more requests to a server.

        Raises:
            UsageError: the run is being opened.
            GenenvError: no other server is left.
        """
        if self.opening:
            raise UsageError(f"{server.address} {error}") from error
        if not server.excluded:
            server.excluded = str(error)
            log.warning("%s %s: nothing more is asked of it", server.address, error)
        if all(one.excluded for one in self.servers):
            raise GenenvError(
                f"{server.address} {error}, and no other server is left; start it anew or set "
                f"policy.vllm.addresses; {_KEPT}"
            ) from error

    async def _ensure_admitted(self, server: Server) -> None:
        """Check a server before its first request; other requests for it wait for the check.

        Raises:
            Unfit: the check failed.
        """
        if server.checked or self.admit is None:
            return
        key = id(asyncio.get_running_loop()), server.address
        async with self._admitting.setdefault(key, asyncio.Lock()):
            if not server.checked and not server.excluded:
                await self.admit(server)
                server.checked = True
        if server.excluded:
            raise Unfit(server.excluded)

    async def _choose_server(self, ids: Sequence[int]) -> Server:
        """Return a free server, after a wait if needed; equal prompts get the same unless it is busier."""
        until = time.monotonic() + self.config.timeout_s
        while True:
            now = time.monotonic()
            if not self.servers or any(server.rests_until > now for server in self.servers):
                self._refresh_addresses()
            answering = [s for s in self.servers if s.rests_until <= now and not s.excluded]
            with_room = [server for server in answering if server.full_until <= now]
            there = [server for server in with_room if server.busy < self.config.at_once]
            if answering and not there:
                await self._wait_for_slot(
                    min(s.full_until - now for s in answering) if not with_room else _RECHECK_S
                )
                until = time.monotonic() + self.config.timeout_s
                continue
            if there:
                least = min(server.busy for server in there)
                usual = self.servers[zlib.crc32(repr(tuple(ids)).encode()) % len(self.servers)]
                if usual in there and usual.busy < least + _SPREAD:
                    return usual
                return min(there, key=lambda server: server.busy)
            await self._ping_or_give_up(until)

    async def _ping_or_give_up(self, until: float) -> None:
        """Wait a moment for a server, as none answers.

        Raises:
            GenenvError: the time is over, or the server that the run started has ended for good.
        """
        if time.monotonic() > (until if self._launched is None else self._launched.waits_until(until)):
            raise self._no_server_error()
        await self._ping_resting()
        await asyncio.sleep(0.2)

    def _no_server_error(self) -> GenenvError:
        shown = ", ".join(server.address for server in self.servers) or self.config.addresses_folder
        return GenenvError(
            f"none of {shown} has answered for {self.config.timeout_s:g} s (policy.vllm.timeout_s); "
            f"{_KEPT} when one does"
        )

    async def _ping_resting(self) -> None:
        """Ping resting servers, when no other answers, so that requests do not use up their tries."""
        if time.monotonic() < self._pinged_at + _PING_S:
            return
        self._pinged_at = time.monotonic()

        async def knock(server: Server) -> None:
            with contextlib.suppress(*LOST, TooLarge):
                answer = await self._connections().get(server.address, "/v1/models", timeout_s=_PING_S)
                if answer.status == 200:
                    server.found()

        await asyncio.gather(*map(knock, self.servers))

    async def _wait_for_slot(self, seconds: float) -> None:
        """Wait until a server may be free or lost; requests are woken in the order of their arrival.

        Args:
            seconds: maximum time to wait.
        """
        free: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(free)
        try:
            await asyncio.wait_for(free, min(seconds, _RECHECK_S))
        except TimeoutError:
            return
        except asyncio.CancelledError:
            if free.done() and not free.cancelled():  # passes the wake-up on
                self._wake_next()
            raise

    def _wake_next(self) -> None:
        """Wake the longest waiting request, so that it looks for a server again."""
        while self._waiting:
            free = self._waiting.popleft()
            if not free.done():
                free.set_result(None)
                return

    async def _load(self, server: Server, name: str) -> None:
        """Have a server load an adapter, if it is wanted and not loaded yet.

        Raises:
            Unfit: the server cannot load it.
        """
        folder = self.wanted.get(name)
        if folder is None or name in server.adapters:
            return
        answer = await self._post(
            server, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)}
        )
        if answer.status == 200 or "already been loaded" in answer.text:
            server.adapters[name] = folder
            return
        check_room(answer)
        if answer.status >= 500:
            raise Broken(f"it cannot load an adapter: {refusal_text(answer)}")
        if answer.status in (404, 405) and "Loading lora" not in answer.text:
            raise Unfit(
                "loads no adapters while it runs: start it with --enable-lora and "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, as `genenv serve` does"
            )
        raise Unfit(f"cannot load {folder}: {refusal_text(answer)} (status {answer.status})")

    async def _post(
        self, server: Server, path: str, body: Mapping[str, Any], *, most: int = MOST_BYTES
    ) -> Answer:
        """Send a POST request to a server; return its answer.

        Raises:
            Broken: the server has moved.
            TooLarge: the answer has more than `most` bytes.
        """
        if self._launched is not None:
            await self._launched.wake(self._connections())
        asked = self._connections().post(
            server.address, path, body, timeout_s=self.config.timeout_s, most=most
        )
        return await self._response_unless_moved(server, asked)

    async def _response_unless_moved(self, server: Server, asked: Coroutine[Any, Any, Answer]) -> Answer:
        """Await an answer of a server, but give up if the server has moved, as it may never answer.

        Raises:
            Broken: the settings or the folder no longer name this address.
            Unfit: the API key is wrong.
        """
        if self.config.addresses_folder is None:
            return self._with_valid_key(await asked)
        waiting = asyncio.ensure_future(asked)
        try:
            while not (await asyncio.wait({waiting}, timeout=_RECHECK_S))[0]:
                self._refresh_addresses()
                if not server.named:
                    raise Broken("it has moved, or is no more")
            return self._with_valid_key(waiting.result())
        finally:
            waiting.cancel()

    def _with_valid_key(self, answer: Answer) -> Answer:
        """Return an answer, unless it says that the API key is missing or wrong.

        Raises:
            Unfit: the key is missing or wrong.
        """
        if answer.status == 401:
            raise Unfit(
                "does not take the API key: put the key that it was started with into the environment "
                f"variable {self.config.key_variable} (policy.vllm.key_variable)"
            )
        return answer

    def _refresh_addresses(self) -> None:
        """Read the address folder: add new servers, and drop those whose file has gone."""
        if self.config.addresses_folder is None or time.monotonic() < self._refreshed_at + _REFRESH_S:
            return
        self._refreshed_at = time.monotonic()
        found = read_addresses(Path(self.config.addresses_folder))
        if not found:  # no server has started yet, or the disk is unavailable
            return
        named = dict.fromkeys((*(one.rstrip("/") for one in self.config.addresses), *found))
        known = {server.address: server for server in self.servers}
        for address in known.keys() - named.keys():
            known[address].named = False
        self.servers = [known.get(address) or Server(address) for address in named]

    async def sleep(self) -> None:
        """Have a server that the run started free its memory until the next request, if none is in flight."""
        if self._launched is not None and not any(server.busy for server in self.servers):
            await self._launched.sleep(self._connections())

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        found = self._by_loop.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.close()

    def _connections(self) -> Connections:
        """Return the connections of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            self._by_loop[loop] = Connections(self._headers)
        return self._by_loop[loop]

    def mark_lost(self, server: Server, error: Exception) -> None:
        """Send no requests to a server for a while."""
        log.warning("%s does not answer (%s): its requests go elsewhere", server.address, why(error))
        server.lost()
