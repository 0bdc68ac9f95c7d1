"""`python -m genenv.backends.local.launch_ranks COUNT WORD...`: run genenv in COUNT processes on this node.

It uses torchrun's launcher, without its report about failed processes: genenv's own error message suffices.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from genenv.threads import cores

_LOOKS_S = 0.5


def main(count: int, words: Sequence[str]) -> int:
    """Run the processes until all have ended; if one fails, the others are ended.

    Args:
        count: number of processes.
        words: command-line arguments of `genenv`.

    Returns:
        0, or the exit status of the first process that failed, in the shell's convention for signals.
    """
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    threads = int(os.environ.get("OMP_NUM_THREADS") or cores())
    os.environ["OMP_NUM_THREADS"] = str(max(1, threads // count))
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # `processes` opens its own
    try:
        with tempfile.TemporaryDirectory(prefix="genenv-torchrun-") as folder:
            config = LaunchConfig(
                min_nodes=1,
                max_nodes=1,
                nproc_per_node=count,
                run_id="genenv",
                rdzv_backend="c10d",
                rdzv_endpoint=str(Path(folder, "rendezvous")),  # a file of this user instead of a port
                rdzv_configs={"store_type": "file"},
                local_addr="127.0.0.1",
                max_restarts=0,
                monitor_interval=_LOOKS_S,
            )
            elastic_launch(config, sys.executable)("-u", "-m", "genenv", *words)
    except ChildFailedError as error:
        status = error.get_first_failure()[1].exitcode
        return status if status >= 0 else 128 - status
    except SignalException as error:
        return 128 + signal.Signals(error.sigval).value
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
