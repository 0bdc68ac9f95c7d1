# pyright: standard
"""A run on an existing Ray cluster: Ray places servers and trainer, and restarts those that are lost."""

from __future__ import annotations

import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from genenv.backends.settings import PolicyConfig
from genenv.cluster.hosts import News, Plan, ServerHost, ServerState, TrainerHost, counted, prepare, sees
from genenv.errors import GenenvError, UsageError, first_line
from genenv.http.guard import key_in, new_key

Say = Callable[[str], None]

_KNOCK_S, _PROBE_S = 5.0, 40.0
_LOADING_S = 1800.0
"""Maximum seconds for servers to load their models."""
_SILENT_S, _LOST_S = 15.0, 900.0
"""A trainer that does not answer is reported after `_SILENT_S` seconds and given up after `_LOST_S`."""
_ANEW = {"max_restarts": -1, "max_task_retries": -1, "max_concurrency": 3}
"""Options of actors: Ray restarts a lost actor without limit, and sends open calls to the new one."""
_PROBE = "import sys, ray; ray.init(sys.argv[1], logging_level='ERROR', log_to_driver=False); ray.nodes()"


def connect(address: str) -> Any:  # noqa: ANN401 - Ray is no part of genenv's own environment
    """Connect to a cluster and return the module `ray`.

    Raises:
        UsageError: Ray is not installed, or the address does not answer within a minute.
    """
    if find_spec("ray") is None:
        raise UsageError(
            "this command needs ray: pip install 'genenv[ray]', or the same of your clone, on every node"
        )
    _knock(address)
    words = [sys.executable, "-c", _PROBE, address]  # a subprocess, because Ray may exit if it cannot connect
    try:
        probe = subprocess.run(words, capture_output=True, text=True, timeout=_PROBE_S, check=False)  # noqa: S603
        why = _last_line(probe.stderr) if probe.returncode else None
    except subprocess.TimeoutExpired:
        why = f"no answer within {_PROBE_S:g} s"
    if why is not None:
        raise UsageError(f"no Ray cluster answers at {address}: {why}; {_WHERE}")
    ray: Any = import_module("ray")
    ray.init(address, logging_level="ERROR", log_to_driver=False)
    return ray


_WHERE = (
    "start one (`ray start --head`), and name what it says by --ray, such as HOST:6379 or ray://HOST:10001"
)


def _knock(address: str) -> None:
    """Check that a process listens at the address, which is much faster than Ray's own connection attempt.

    Raises:
        UsageError: nothing listens there.
    """
    host, colon, port = address.rpartition("//")[2].rpartition(":")
    if not colon:
        return  # `auto`, or a name that only Ray knows
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise UsageError(f"no Ray cluster answers at {address}: {first_line(error)}; {_WHERE}") from error


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it ended without a word"


def play(
    address: str, plan: Plan, settings: str | None, variables: Mapping[str, str], say: Say, *, wait_s: float
) -> int:
    """Execute a run on a cluster to its end.

    Args:
        address: the address of the cluster.
        plan: the run and its parts.
        settings: the content of CONFIG as TOML.
        variables: environment variables of the trainer.
        say: receives the trainer's output and events of the parts.
        wait_s: maximum seconds to wait for free resources.

    Returns:
        The trainer's exit status.

    Raises:
        GenenvError: the run cannot start or cannot continue; the sentence gives the reason.
    """
    ray = connect(address)
    launch = RayLaunch(ray, plan, say)
    try:
        launch.place(wait_s)
        policy = launch.check_folder(settings)
        variable = policy.vllm.key_variable
        key = key_in(variable) or new_key()
        launch.start_servers(policy, key)
        return launch.train({**variables, variable: key})
    except ray.exceptions.RayError as error:
        raise GenenvError(f"Ray cannot go on with the run: {_last_line(str(error))}") from error
    finally:
        launch.stop()


class RayServer(ServerHost):
    """A server as a Ray actor; its node determines its address."""

    def __init__(self, name: str, plan: Plan, policy: PolicyConfig, key: str) -> None:
        host = import_module("ray").util.get_node_ip_address()
        super().__init__(name, plan.serving(policy), plan, host, key=key)


class RayLaunch:
    """The parts of a run on a cluster; `train` executes the run to its end."""

    def __init__(self, ray: Any, plan: Plan, say: Say) -> None:  # noqa: ANN401
        """Prepare a launch.

        Args:
            ray: the module, connected to a cluster.
            plan: the run and its parts.
            say: receives the trainer's output and events of the parts.
        """
        self._ray, self._plan, self._say = ray, plan, say
        self._group: Any = None
        self._servers: dict[str, Any] = {}
        self._asked: dict[str, Any] = {}
        """Pending requests for the states of servers."""
        self._known: dict[str, ServerState] = {}
        self._trainer: Any = None
        self._life, self._after = "", 0

    def place(self, wait_s: float) -> None:
        """Reserve resources for all parts.

        Raises:
            UsageError: they are not available within the time limit.
        """
        bundles = [part.bundle() for part in self._plan.parts()]
        self._group = self._ray.util.placement_group(bundles, strategy="SPREAD")
        if self._group.wait(wait_s):
            return
        alive = sum(1 for node in self._ray.nodes() if node["Alive"])
        nodes = "its node has" if alive == 1 else f"its {alive} nodes have"
        raise UsageError(
            f"the cluster has no room for the run within {wait_s:g} s (--wait): it asks for {self._plan}; "
            f"{nodes} {_shown(self._ray.cluster_resources())} in all, of which "
            f"{_shown(self._ray.available_resources())} are free; ask for less, or wait for what runs there"
        )

    def check_folder(self, settings: str | None) -> PolicyConfig:
        """Prepare the run's folder on the trainer's node, and check that all other nodes see it.

        Args:
            settings: the content of CONFIG as TOML.

        Returns:
            The settings of the policy to serve.

        Raises:
            UsageError: the folder holds another run, cannot be written, or is not on a shared disk.
        """
        token, ray = secrets.token_hex(8), self._ray
        policy = ray.get(self._on(0, prepare).remote(self._plan, settings, token))
        if isinstance(policy, str):
            raise UsageError(policy)
        seen = ray.get(
            [self._on(at, sees).remote(self._plan, token) for at in range(1, self._plan.servers + 1)]
        )
        if not all(seen):
            raise UsageError(
                f"{self._plan.run} is not on a disk that all nodes see and may write: what the trainer's "
                f"node wrote there is not read, or no file can be written, on the nodes of "
                f"{seen.count(False)} of {len(seen)} servers; name a shared folder by --out"
            )
        return policy

    def start_servers(self, policy: PolicyConfig, key: str) -> None:
        """Start all servers, and wait until each answers.

        Args:
            policy: the settings of the policy to serve.
            key: the API key that the servers require.

        Raises:
            UsageError: a server ends before it answers, or takes too long.
        """
        for at in range(self._plan.servers):
            name = f"server-{at}"
            actor = self._on(at + 1, RayServer, needs=self._plan.server, **_ANEW)
            self._servers[name] = actor.remote(name, self._plan, policy, key)
        until = time.monotonic() + _LOADING_S
        while True:
            self._look_at_servers()
            for name, state in self._known.items():
                if state.complaint is not None:
                    log = self._plan.folder / f"{name}.log"
                    raise UsageError(f"{name} does not start: {state.complaint}; see {log}")
            if len([one for one in self._known.values() if one.address]) == len(self._servers):
                return
            if time.monotonic() > until:
                raise UsageError(f"not all servers answer after {_LOADING_S:g} s; see {self._plan.folder}")
            time.sleep(0.5)

    def train(self, variables: Mapping[str, str]) -> int:
        """Start the trainer and pass on its output until it ends.

        Args:
            variables: environment variables of the trainer.

        Returns:
            The trainer's exit status.

        Raises:
            GenenvError: the trainer was lost and could not be restarted.
        """
        actor = self._on(0, TrainerHost, needs=self._plan.trainer, **_ANEW)
        self._trainer = actor.remote(self._plan, secrets.token_hex(4), dict(variables))
        while True:
            news = self._news()
            self._hear(news)
            if news.status is not None:
                return news.status
            self._look_at_servers()

    def stop(self) -> None:
        """Interrupt a running trainer, end all parts and release their resources."""
        ray = self._ray
        if self._trainer is not None:
            try:
                ray.get(self._trainer.interrupt.remote(), timeout=30.0)
                self._hear(ray.get(self._trainer.news.remote(self._life, self._after), timeout=5.0))
            except ray.exceptions.RayError:  # lost with its node; committed rounds are kept
                self._say("the trainer's node does not answer; Ray ends what is left there")
        for actor in (self._trainer, *self._servers.values()):
            if actor is not None:
                ray.kill(actor, no_restart=True)
        if self._group is not None:
            ray.util.remove_placement_group(self._group)
        ray.shutdown()

    def _on(self, at: int, what: Any, *, needs: Any = None, **options: Any) -> Any:  # noqa: ANN401
        """Return a remote function or actor in the bundle of a part; functions use no reserved resources."""
        strategy = import_module("ray.util.scheduling_strategies").PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=at
        )
        return self._ray.remote(what).options(
            num_cpus=0 if needs is None else needs.cpus,
            num_gpus=0 if needs is None else needs.gpus,
            scheduling_strategy=strategy,
            **options,
        )

    def _news(self) -> News:
        """Return the trainer's next output; wait while Ray restarts the trainer.

        Raises:
            GenenvError: the restart takes too long.
        """
        asked = self._trainer.news.remote(self._life, self._after)
        since, told = time.monotonic(), False
        while True:
            try:
                return self._ray.get(asked, timeout=5.0)
            except self._ray.exceptions.GetTimeoutError as error:
                silent_s = time.monotonic() - since
                if silent_s > _LOST_S:
                    raise GenenvError(
                        f"the trainer has not answered for {_LOST_S:g} s, and Ray has no room to start it "
                        "anew; committed rounds are kept, continue with --resume"
                    ) from error
                if silent_s > _SILENT_S and not told:
                    self._say("the trainer does not answer; Ray starts it anew where its node is lost")
                    told = True
                self._look_at_servers()

    def _hear(self, news: News) -> None:
        if self._life and news.life != self._life:
            self._say("the trainer was started anew, and goes on with the run")
        self._life, self._after = news.life, news.next
        for line in news.lines:
            self._say(line)

    def _look_at_servers(self) -> None:
        """Report changes of the servers' states without waiting."""
        for name, actor in self._servers.items():
            if name not in self._asked:
                self._asked[name] = actor.state.remote()
            if not self._ray.wait([self._asked[name]], timeout=0)[0]:
                continue
            state: ServerState = self._ray.get(self._asked.pop(name))
            if state == self._known.get(name):
                continue
            if state.address is not None:
                self._say(f"{name} answers at {state.address}")
            elif state.complaint is not None and name in self._known:
                self._say(f"{name} does not start, and is tried again: {state.complaint}")
            self._known[name] = state


def _shown(resources: Mapping[str, float]) -> str:
    return counted(resources.get("CPU", 0.0), resources.get("GPU", 0.0))
