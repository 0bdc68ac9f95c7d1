# pyright: standard
"""The servers that sample: each request goes to one of them, and to another where that one is lost.

A server is asked by its own protocol for tokens, token ids in, token ids and log-probabilities out
(`/inference/v1/generate`), and told of adapters by `/v1/load_lora_adapter`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import weakref
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from genenv.backends.settings import VllmConfig
from genenv.backends.vllm.addresses import read_addresses
from genenv.backends.vllm.asking import LOST, NO_ADDRESS, Answer, Connections
from genenv.backends.vllm.server import Server
from genenv.errors import GenenvError, RolloutError, UsageError, first_line
from genenv.servers.keys import key_headers

log = logging.getLogger(__name__)

_SPREAD = 8
"""Requests of one prompt go to one server, which reads it once, unless that has so many more to do."""
_MEETING_S = 30.0
_LOOKS_S = 5.0
"""So often one who waits for a free server looks again, as one that was lost may be back."""
_KNOCKS_S = 1.0
"""So often, and for so long, those that rest are asked whether they are back, while nobody else answers."""
_READS_S = 1.0
"""The folder of addresses is read at most so often."""
_MOST_SAID = 300


class Refused(RolloutError):
    """A server does not want a request, and no other would."""


class Fleet:
    """All servers of a run."""

    def __init__(self, config: VllmConfig) -> None:
        """Know where they are.

        Raises:
            UsageError: there is none.
        """
        if not config.addresses and config.addresses_folder is None:
            raise UsageError(
                "policy.vllm.addresses names no server; start one with `genenv serve`, or vLLM's own, and "
                'set it to ["http://HOST:PORT"]'
            )
        self.config = config
        self._headers = key_headers(config.key_variable)
        self.servers = [Server(address.rstrip("/")) for address in config.addresses]
        self._read_at, self._knocked_at = -_READS_S, -_KNOCKS_S
        self.wanted: dict[str, Path] = {}
        """Adapters that all of them should have, and the folders these are in."""
        self.chooses = True
        """Whether servers hold a reply to one of some, which is found out when they are opened."""
        self.asked_again = 0
        """Requests that were lost and asked again elsewhere."""
        self._by_loop = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Connections]()
        self._waiting: deque[asyncio.Future[None]] = deque()
        """Requests for which no server is free."""

    async def meet(self) -> Mapping[str, Any]:
        """Ask each who it is. One that does not answer may come later, as long as another one does.

        Where servers come and go by a folder of addresses, the first may be long in coming.

        Returns:
            By address what it says of its models.

        Raises:
            UsageError: none answers, or one is no such server.
        """
        until = time.monotonic() + self.config.timeout_s
        while True:
            self._look()
            try:
                return await self._met()
            except _Nobody as error:
                if self.config.addresses_folder is None or time.monotonic() > until:
                    raise UsageError(str(error)) from error
            await asyncio.sleep(_READS_S)

    async def _met(self) -> Mapping[str, Any]:
        """Those that answer now, and what they say.

        Raises:
            UsageError: one is no such server.
        """
        found: dict[str, Any] = {}
        missing: list[_Nobody] = []
        for server in tuple(self.servers):
            try:
                answer = await self._connections().get(server.address, "/v1/models", timeout_s=_MEETING_S)
                self._check_key(server, answer)
                cards = answer.json()["data"] if answer.status == 200 else None
            except NO_ADDRESS as error:
                raise UsageError(f"{server.address} is no address: {_why(error)}") from error
            except LOST as error:
                self._note_lost(server, error)
                missing.append(
                    _Nobody(
                        f"no vLLM server answers at {server.address}: {_why(error)}; start one (`genenv "
                        "serve`), or set policy.vllm.addresses"
                    )
                )
                continue
            except (ValueError, KeyError, TypeError) as error:
                raise UsageError(
                    f"what answers at {server.address} is no vLLM server: {_why(error)}"
                ) from error
            if not cards:
                raise UsageError(
                    f"what answers at {server.address} is no vLLM server, or serves nothing: /v1/models says "
                    f"status {answer.status}, {_said(answer)}"
                )
            found[server.address] = cards
        if found:
            return found
        if missing:
            raise missing[0]
        raise _Nobody(
            f"{self.config.addresses_folder} (policy.vllm.addresses_folder) holds no address of a server; "
            "each server writes its own there, in a file that ends in .address"
        )

    async def show(self, name: str, folder: Path, *, instead_of: str | None) -> None:
        """Have all servers load an adapter; one that is lost is told when it is asked next.

        Args:
            name: under which it is asked for.
            folder: where it is, as the servers see it.
            instead_of: one that nobody asks for any more.

        Raises:
            UsageError: a server cannot load adapters.
        """
        self.wanted[name] = folder
        if instead_of is not None:
            self.wanted.pop(instead_of, None)
        self._look()
        for server in tuple(self.servers):
            if server.rests_until > time.monotonic():
                continue
            try:
                await self._load(server, name)
                if instead_of in server.adapters:
                    del server.adapters[instead_of]
                    await self._post(server, "/v1/unload_lora_adapter", {"lora_name": instead_of})
            except (*LOST, _Broken) as error:
                self._note_lost(server, error)

    async def generate(
        self, name: str, ids: Sequence[int], parameters: Mapping[str, Any], *, tries: int | None = None
    ) -> Mapping[str, Any]:
        """One completion.

        Args:
            name: the adapter's.
            ids: the prompt.
            parameters: of the sampling, by vLLM's names.
            tries: how often it is asked in all; left out, `policy.vllm.tries` times.

        Returns:
            The first choice of the answer.

        Raises:
            Refused: the request itself is wrong.
            RolloutError: it was lost each time.
            GenenvError: no server answers any more.
        """
        body = {"model": name, "token_ids": list(ids), "sampling_params": dict(parameters)}
        problem: Exception | None = None
        most = self.config.tries if tries is None else tries
        for attempt in range(most):
            self.asked_again += attempt > 0
            server = await self._chosen(ids)
            server.busy += 1
            try:
                await self._load(server, name)
                answer = await self._post(server, "/inference/v1/generate", body)
                choice = _choice(server, answer)
                server.found()
                return choice
            except _Forgot as error:  # it was started anew: told of the adapter, it goes on
                problem = error
                server.adapters.clear()
            except (*LOST, _Broken) as error:
                problem = error
                self._note_lost(server, error)
            finally:
                server.busy -= 1
                self._let_on()
        raise RolloutError(f"a request was lost {most} times, the last time: {_why(problem)}")

    async def _chosen(self, ids: Sequence[int]) -> Server:
        """A server that answers, the same for the same prompt as long as it has not much more to do."""
        until = time.monotonic() + self.config.timeout_s
        while True:
            now = time.monotonic()
            if not self.servers or any(server.rests_until > now for server in self.servers):
                self._look()
            answering = [server for server in self.servers if server.rests_until <= now]
            there = [server for server in answering if server.busy < self.config.at_once]
            if answering and not there:
                await self._turn()
                until = time.monotonic() + self.config.timeout_s
                continue
            if there:
                least = min(server.busy for server in there)
                at = zlib.crc32(repr(tuple(ids)).encode()) % len(self.servers)
                usual = self.servers[at]
                if usual in there and usual.busy < least + _SPREAD:
                    return usual
                return min(there, key=lambda server: server.busy)
            if now > until:
                shown = ", ".join(server.address for server in self.servers) or self.config.addresses_folder
                raise GenenvError(
                    f"none of {shown} has answered for {self.config.timeout_s:g} s (policy.vllm.timeout_s); "
                    "committed rounds are kept, continue with --resume when one does"
                )
            await self._knock()
            await asyncio.sleep(0.2)

    async def _knock(self) -> None:
        """Find out whether one that rests is back, where no other answers: no request loses a try by it."""
        if time.monotonic() < self._knocked_at + _KNOCKS_S:
            return
        self._knocked_at = time.monotonic()

        async def knock(server: Server) -> None:
            with contextlib.suppress(*LOST):
                answer = await self._connections().get(server.address, "/v1/models", timeout_s=_KNOCKS_S)
                if answer.status == 200:
                    server.found()

        await asyncio.gather(*map(knock, self.servers))

    async def _turn(self) -> None:
        """Wait until a server may be free, or has been lost; those who came first are first."""
        free: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(free)
        try:
            await asyncio.wait_for(free, _LOOKS_S)
        except TimeoutError:
            return
        except asyncio.CancelledError:
            if free.done() and not free.cancelled():  # the turn is somebody else's
                self._let_on()
            raise

    def _let_on(self) -> None:
        """Let the next one of those who wait look again."""
        while self._waiting:
            free = self._waiting.popleft()
            if not free.done():
                free.set_result(None)
                return

    async def _load(self, server: Server, name: str) -> None:
        """Have a server load an adapter that it was not told of."""
        folder = self.wanted.get(name)
        if folder is None or name in server.adapters:
            return
        answer = await self._post(
            server, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)}
        )
        if answer.status == 200 or "already been loaded" in answer.text:
            server.adapters[name] = folder
            return
        if answer.status >= 500:
            raise _Broken(f"it cannot load an adapter: {_said(answer)}")
        if answer.status in (404, 405) and "Loading lora" not in answer.text:
            raise UsageError(
                f"{server.address} loads no adapters while it runs: start it with --enable-lora and "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, as `genenv serve` does"
            )
        raise UsageError(f"{server.address} cannot load {folder}: {_said(answer)}")

    async def _post(self, server: Server, path: str, body: Mapping[str, Any]) -> Answer:
        """What a server answers; one that has moved is not waited for, as it may never answer.

        Raises:
            _Broken: it is named no more.
            UsageError: it does not take the key.
        """
        asked = self._connections().post(server.address, path, body, timeout_s=self.config.timeout_s)
        if self.config.addresses_folder is None:
            return self._check_key(server, await asked)
        waiting = asyncio.ensure_future(asked)
        try:
            while not (await asyncio.wait({waiting}, timeout=_LOOKS_S))[0]:
                self._look()
                if not server.named:
                    raise _Broken("it has moved, or is no more")
            return self._check_key(server, waiting.result())
        finally:
            waiting.cancel()

    def _check_key(self, server: Server, answer: Answer) -> Answer:
        """An answer, unless it is that the key is missing or wrong.

        Raises:
            UsageError: it is.
        """
        if answer.status == 401:
            raise UsageError(
                f"{server.address} does not take the API key: put the key that it was started with into the "
                f"environment variable {self.config.key_variable} (policy.vllm.key_variable)"
            )
        return answer

    def _look(self) -> None:
        """Read the folder of addresses: servers that are new there come in, those that have left it go."""
        if self.config.addresses_folder is None or time.monotonic() < self._read_at + _READS_S:
            return
        self._read_at = time.monotonic()
        found = read_addresses(Path(self.config.addresses_folder))
        if not found:  # all of them are about to come, or the disk is away
            return
        named = dict.fromkeys((*(one.rstrip("/") for one in self.config.addresses), *found))
        known = {server.address: server for server in self.servers}
        for address in known.keys() - named.keys():
            known[address].named = False
        self.servers = [known.get(address) or Server(address) for address in named]

    async def close(self) -> None:
        """End the connections of the loop that runs."""
        found = self._by_loop.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.close()

    def _connections(self) -> Connections:
        """Those of the loop that runs."""
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            self._by_loop[loop] = Connections(self._headers)
        return self._by_loop[loop]

    def _note_lost(self, server: Server, error: Exception) -> None:
        log.warning("%s does not answer (%s): its requests go elsewhere", server.address, _why(error))
        server.lost()


class _Nobody(Exception):
    """No server answers yet."""


class _Broken(Exception):
    """An answer that is none; the server may have ended in the middle."""


class _Forgot(Exception):
    """A server does not know an adapter that it was told of."""


def _choice(server: Server, answer: Answer) -> Mapping[str, Any]:
    if answer.status in (400, 422):
        raise Refused(f"{server.address} refuses the request: {_said(answer)}")
    if answer.status == 403:
        raise UsageError(
            f"{server.address} takes no token ids ({_said(answer)}): start it with --enable-scale-out, as "
            "`genenv serve --vllm` does"
        )
    if answer.status == 404:
        raise _Forgot(f"it does not know the adapter: {_said(answer)}")
    if answer.status != 200:
        raise _Broken(f"status {answer.status}: {_said(answer)}")
    try:
        (choice,) = answer.json()["choices"]
    except (ValueError, KeyError, TypeError) as error:
        raise _Broken("its answer is no completion") from error
    return choice


def _said(answer: Answer) -> str:
    try:
        body = answer.json()
        text = body["error"]["message"] if "error" in body else body.get("detail", body)
    except (ValueError, KeyError, TypeError, AttributeError):
        text = answer.text
    return " ".join(str(text).split())[:_MOST_SAID]


def _why(error: BaseException | None) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return "nothing" if error is None else (first_line(error) or type(error).__name__)
