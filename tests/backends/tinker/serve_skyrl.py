"""SkyRL's Tinker server on its JAX backend, run by a Python that has it: `serve_skyrl.py MODEL FOLDER PORT`.

It serves the folder of a model under the name `tiny`. Its own command starts the engine by `uv run`, and
wants to be started so itself; here the engine is started by the same Python.
"""

from __future__ import annotations

import sys
from pathlib import Path

import uvicorn
from skyrl.tinker import api
from skyrl.tinker.config import EngineConfig, config_to_argv

ENGINE = {
    "max_lora_adapters": 8,  # the base, two players, their references, one that is made before another goes
    "max_lora_rank": 8,
    "train_micro_batch_size": 1,  # shapes are compiled one by one: few of them
    "sample_max_num_sequences": 8,
}


def main(model: str, folder: Path, port: int) -> None:
    api._build_uv_run_cmd_engine = lambda _, config: [
        *(sys.executable, "-m", "skyrl.tinker.engine"),
        *config_to_argv(config),
    ]
    api.app.state.engine_config = EngineConfig(
        base_model="tiny",
        base_model_checkpoint_path=model,
        backend="jax",
        backend_config=ENGINE,
        checkpoints_base=folder / "checkpoints",
        database_url=f"sqlite:///{folder / 'tinker.db'}",
        session_timeout_sec=120,
        session_cleanup_interval_sec=5,
    )
    uvicorn.run(api.app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
