"""Parts are found by name: the core trains alone, and a stranger's package adds parts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from genenv.errors import EnvironmentCodeError
from genenv.plugins import load, own_part, parts
from test_layers import CORE, HEAVY, LAYERS
from trained import trained_run

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "genenv"

RUN = """
    import sys
    from pathlib import Path
    from genenv.config.run import parse_config
    from genenv.progress import Silent
    from genenv.training.opening import start

    settings = {
        "run": {"name": "alone", "rounds": 1, "eval_tasks": 4},
        "environment": {"name": sys.argv[2]},
        "policy": {"backend": "scripted"},
        "simulator": {"contexts": 2, "variations": 2},
        "curriculum": {"base_share": 0.5},
    }
    start(parse_config(settings), Path(sys.argv[1]), Silent())
    print(*sorted({name.split(".")[0] for name in sys.modules}))
"""
"""Train one round on scripted policies; print what was imported."""


def trained(out: Path, environment: str, path: Path, *more: Path) -> set[str]:
    """Run `RUN` with the packages of some folders; returns the top-level modules that it loaded."""
    found = os.pathsep.join(map(str, (path, *more)))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(RUN), str(out), environment],
        env={**os.environ, "PYTHONPATH": found},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (out / "metrics.jsonl").is_file()
    return set(done.stdout.split())


@pytest.mark.long
def test_the_core_trains_where_no_other_package_of_genenv_is_there(tmp_path: Path) -> None:
    core = tmp_path / "src" / "genenv"
    core.mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for part in ("__init__", *CORE):
        if (SRC / f"{part}.py").is_file():
            shutil.copy(SRC / f"{part}.py", core)
        else:
            left_out = shutil.ignore_patterns(
                "__pycache__", *(["local", "tinker", "vllm"] * (part == "backends"))
            )
            shutil.copytree(SRC / part, core / part, ignore=left_out)
    assert not HEAVY & trained(tmp_path / "run", "programs", core.parent)


STRANGER = {
    "pyproject.toml": """
        [build-system]
        requires = []
        build-backend = "backend"
        backend-path = ["."]
    """,
    "backend.py": '''
        """The smallest build backend: a wheel of one module and its entry points."""

        import zipfile
        from pathlib import Path

        ENTRY_POINTS = """[genenv.environments]
        parity = parity_world:Parity
        household = parity_world:Parity
        [genenv.commands]
        parity-says = parity_world:say
        [genenv.exporters]
        weights = parity_world:Weights
        """


        def build_wheel(folder, config_settings=None, metadata_directory=None):
            name, info = "parity_world-1.0-py3-none-any.whl", "parity_world-1.0.dist-info"
            with zipfile.ZipFile(Path(folder) / name, "w") as wheel:
                wheel.write("parity_world.py")
                about = ["Metadata-Version: 2.1", "Name: parity-world", "Version: 1.0"]
                wheel.writestr(f"{info}/METADATA", chr(10).join(about))
                about = ["Wheel-Version: 1.0", "Root-Is-Purelib: true", "Tag: py3-none-any"]
                wheel.writestr(f"{info}/WHEEL", chr(10).join(about))
                wheel.writestr(f"{info}/entry_points.txt", ENTRY_POINTS)
                wheel.writestr(f"{info}/RECORD", "")
            return name
    ''',
    "parity_world.py": '''
        """A stranger's package: one environment, one command and one exporter of genenv."""

        import json
        from typing import ClassVar

        from pydantic import BaseModel, Field

        from genenv.exporting.exporters import Way, Written
        from genenv.environments.common import QuestionEnvironment, held_out_tasks
        from genenv.settings import NoSettings
        from genenv.types import Message, Rejection, Seed, Task, Verdict


        class Number(BaseModel):
            n: int = Field(ge=0, le=99)


        class Parity(QuestionEnvironment):
            name: ClassVar[str] = "parity"
            spec = Number
            config = NoSettings

            def __init__(self, settings):
                self.settings = settings

            def seeds(self):
                skills = ("parity",)
                specs = {f"s{n}": {"n": n} for n in range(40)}
                return [Seed(id=s, environment="parity", spec=specs[s], skills=skills) for s in specs]

            def held_out(self):
                return held_out_tasks(self, [(f"h{n}", Number(n=n)) for n in range(50, 60)])

            def spec_schema(self, seed):
                return Number.model_json_schema()

            def simulator_messages(self, seed, profile, target):
                return (Message(role="user", content=f"Vary {seed.spec['n']}. Target {target}."),)

            def variation(self, seed, rng):
                return {"n": rng.randrange(100)}

            def build(self, spec, *, task_id, lineage, rng):
                answer = "odd" if spec.n % 2 else "even"
                return Task(
                    id=task_id,
                    environment="parity",
                    skills=("parity",),
                    messages=(Message(role="user", content=f"Is {spec.n} odd or even?"),),
                    spec=spec.model_dump(),
                    payload={"answer": answer},
                    oracle=(answer,),
                    lineage=lineage,
                )

            def audit(self, task, rng):
                return None

            def check(self, task, replies):
                right = bool(replies) and replies[0].strip() == task.payload["answer"]
                return Verdict(reward=float(right), success=right, explanation="graded")

            def random_replies(self, task, rng):
                return ("I do not know",)

            def steps(self, task):
                return 1

            def surface(self, task):
                return str(task.spec["n"])


        class Weights:
            """The merged weights by name, each with how many numbers it has."""

            port = 9999
            loads_here = False

            def write(self, export, folder):
                nearness = export.agent.merge("float32", export.tasks)
                sizes = {name: one.numel() for name, one in export.agent.causal.state_dict().items()}
                (folder / "sizes.json").write_text(json.dumps(sizes))
                return Written(what="sizes of weights", base=export.agent.base, nearness=nearness)

            def servers(self, served):
                return [Way("nobody", [f"cat {served.folder}/sizes.json"])]


        def say() -> None:
            """Say what a stranger's command says."""
            print("odd or even")
    ''',
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed a stranger's package from its sources."""
    folder = tmp_path_factory.mktemp("stranger")
    for name, text in STRANGER.items():
        (folder / name).write_text(textwrap.dedent(text), encoding="utf-8")
    target = folder / "site"
    words = ["-m", "pip", "install", "-q", "--no-index", "--no-build-isolation", "--target", target, folder]
    done = subprocess.run(
        [sys.executable, *words, "--target", str(target), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.long
def test_a_package_that_pip_installs_adds_an_environment_and_a_command(site: Path, tmp_path: Path) -> None:
    trained(tmp_path / "run", "parity", ROOT / "src", site)
    done = subprocess.run(
        [sys.executable, "-m", "genenv", "parity-says"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(site)])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "odd or even\n"


@pytest.mark.long
def test_a_package_that_pip_installs_adds_a_form_of_exported_agents(
    site: Path, tiny: Any, toy: Any, tmp_path: Path
) -> None:
    run = trained_run(tmp_path / "run", tiny.folder(), toy)
    words = ["export-agent", str(run), "--format", "weights", "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-m", "genenv", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(site)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"cat {tmp_path}/out/sizes.json" in done.stdout
    assert json.loads((tmp_path / "out/sizes.json").read_text(encoding="utf-8"))
    readme = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    assert "sizes of weights" in readme
    assert "http://localhost:9999/v1" in readme


@pytest.mark.long
def test_no_other_package_takes_a_name_of_genenvs_own(site: Path) -> None:
    code = "from genenv.plugins import parts; print(parts('environments')['household'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(site)])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("genenv.")


@pytest.mark.long
def test_the_file_of_another_project_above_an_installation_hides_no_part(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "somebody-elses"\n', encoding="utf-8")
    shutil.copytree(SRC, tmp_path / "vendor" / "genenv", ignore=shutil.ignore_patterns("__pycache__"))
    info = tmp_path / "vendor" / "genenv-0.dist-info"  # as `pip install --target vendor` leaves it
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: genenv\nVersion: 0\n", encoding="utf-8")
    points = "[genenv.backends]\nscripted = genenv.backends.scripted:open_scripted\n"
    (info / "entry_points.txt").write_text(points, encoding="utf-8")
    code = "from genenv.plugins import parts; print(parts('backends')['scripted'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "vendor")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "genenv.backends.scripted:open_scripted\n"


@pytest.mark.parametrize(
    "group", ["environments", "environment_kinds", "backends", "benchmarks", "commands", "exporters"]
)
def test_every_part_that_comes_with_genenv_is_where_it_is_said_to_be(group: str) -> None:
    for where in parts(group).values():  # type: ignore[arg-type]
        if where.startswith("genenv.backends.local"):
            continue  # loads torch, and other tests open it
        assert callable(load(where)), where


def test_the_core_is_a_beginning_of_the_layers() -> None:
    assert LAYERS[: len(CORE)] == CORE


GUIDE = """
class Guide:
    __slots__ = ("config",)

    def __init__(self, config):
        self.config = config["start"]

    def choose(self, n):
        return {}[n]

    @staticmethod
    def observe(n):
        return n + self_is_not_here
"""


def test_a_method_of_a_class_of_ones_own_that_fails_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "guide.py"
    file.write_text(GUIDE, encoding="utf-8")
    found: Any = own_part("a.setting", f"{file}:Guide", takes=("config",), methods=("choose", "observe"))
    where = rf"a\.setting is '{file}:Guide', which raised KeyError: "
    with pytest.raises(EnvironmentCodeError, match=where + r"'start' \(guide\.py, line 6\)"):
        found({})
    guide = found({"start": 1})
    assert (guide.config, type(guide).__name__) == (1, "Guide")
    with pytest.raises(EnvironmentCodeError, match=where + r"3 \(guide\.py, line 9\)"):
        guide.choose(3)
