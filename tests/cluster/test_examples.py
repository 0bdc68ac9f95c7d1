"""The files for Kubernetes and SLURM, neither of which is here: they say what genenv takes, and are whole."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from genenv.cli.app import load_command

FOLDER = Path(__file__).parents[2] / "docs" / "cluster"
MANIFEST, SCRIPT = FOLDER / "kuberay.yaml", FOLDER / "slurm.sh"


def manifest() -> Any:
    return yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))


def test_there_is_room_in_the_manifest_for_what_it_launches() -> None:
    spec = manifest()["spec"]
    asked = dict(re.findall(r"--([a-z-]+) (\d+)", spec["entrypoint"]))
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert group["replicas"] == int(asked["servers"]) + 1
    (container,) = group["template"]["spec"]["containers"]
    found = container["resources"]["requests"]
    for part in ("server", "trainer"):
        gpus, cpus = (
            asked[f"{kind}-per-server" if part == "server" else f"trainer-{kind}"]
            for kind in ("gpus", "cpus")
        )
        assert int(gpus) <= int(found["nvidia.com/gpu"])
        assert int(cpus) <= int(found["cpu"])


def test_the_script_is_one_for_bash() -> None:
    subprocess.run(["bash", "-n", SCRIPT], check=True)  # noqa: S607 - wherever bash is


@pytest.mark.parametrize("file", [MANIFEST, SCRIPT], ids=lambda file: file.name)
def test_what_is_launched_has_the_options_of_the_command(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    launched = text[text.rindex("genenv launch") :].split("backoffLimit")[0]
    known = {option for one in load_command("launch").params for option in one.opts}
    said = set(re.findall(r"(?<![\w-])--[a-z-]+", launched))
    assert said <= known
    assert {"--ray", "--out", "--servers", "--gpus-per-server", "--trainer-gpus"} <= said
