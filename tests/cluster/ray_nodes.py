"""Nodes of a Ray cluster on this machine, for tests: run by a Python that has Ray, told by its input.

    python ray_nodes.py CPUS[:GPUS] [CPUS[:GPUS] ...]

GPUs are those that Ray is told of; there need be none. The first node is the head. The first line of output
says where it is. Each line `kill PID` ends the node on which that process is, as a machine that is lost, and
is answered; the end of the input ends all of them.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

_MEMORY = 100 * 2**20


def main(has: list[tuple[int, int]]) -> None:
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray's name; 15 beside other work takes minutes
    cluster_utils: Any = import_module("ray.cluster_utils")
    head = {"num_cpus": has[0][0], "num_gpus": has[0][1], "object_store_memory": _MEMORY}
    head["include_dashboard"] = False
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    nodes = {}
    for cpus, gpus in has[1:]:
        node = cluster.add_node(num_cpus=cpus, num_gpus=gpus, object_store_memory=_MEMORY)
        nodes[node.all_processes["raylet"][0].process.pid] = node
    say({"address": cluster.address})
    for line in sys.stdin:
        raylet = raylet_of(int(line.split()[1]))
        cluster.remove_node(nodes.pop(raylet), allow_graceful=False)
        say({"killed": raylet})
    cluster.shutdown()


def raylet_of(process: int) -> int:
    """The process of Ray that a node has one of, by what it left in the environment of those it started."""
    variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    return int(next(one for one in variables if one.startswith(b"RAY_RAYLET_PID=")).partition(b"=")[2])


def say(what: Any) -> None:
    sys.stdout.write(f"@{json.dumps(what)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main([(int(cpus), int(gpus or 0)) for cpus, _, gpus in (one.partition(":") for one in sys.argv[1:])])
