"""Writes what a CUDA machine without a network needs to test and time genenv: `make bundle-gpu`.

The folder holds the source, wheels of the packages that such a machine lacks (Python 3.12 on Linux, x86-64),
a tokenizer, and `run.sh`, which runs the tests and benchmarks there.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Collection, Iterable, Sequence
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
SOURCE = (
    "src",
    "bench",
    "tests",
    "tools",
    "configs",
    "Makefile",
    "constraints.txt",
    "pyproject.toml",
    "README.md",
)
LIMIT_MIB = 60
PROVIDED = frozenset(
    """
    accelerate aiohappyeyeballs aiohttp aiosignal annotated-doc anyio attrs certifi charset-normalizer click
    contourpy cycler execnet filelock fonttools frozenlist fsspec h11 hf-xet httpcore httpx huggingface-hub
    hypothesis idna iniconfig jinja2 kiwisolver markdown-it-py markupsafe matplotlib mdurl mpmath multidict
    networkx numpy packaging pandas peft pillow pluggy propcache protobuf psutil pyarrow pygments pyparsing
    pytest-xdist python-dateutil pyyaml regex requests rich safetensors scipy sentencepiece setuptools
    shellingham six sortedcontainers sympy tokenizers torch tqdm transformers triton typer urllib3 xxhash yarl
    """.split()  # noqa: SIM905 - a literal would take a line a name
)
"""What an image for CUDA with torch and transformers has, of all that genenv and its peers need. Without
pytest and typing-extensions: those of such images may be too old."""
PEERS = ("accelerate", "datasets", "trl")
"""What the benchmarks compare with."""
TESTS = ("hypothesis", "pytest", "pytest-xdist")
ALONE = ("alfworld",)
"""Carried without what they ask for: of these only tables are read (`configs/demo.toml`)."""
PYTHON = {
    "extra": "",
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": "3.12.3",
    "python_version": "3.12",
    "sys_platform": "linux",
}
"""The interpreter of that machine, as markers of requirements name it."""
MANYLINUX = ("2_35", "2_34", "2_31", "2_28", "2_27", "2_24", "2_17", "2014", "1")


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the folder anew."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "bundle-gpu")
    parser.add_argument("--without-source", action="store_true", help="for a machine that has the repository")
    options = parser.parse_args(arguments)
    out: Path = options.out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    if not options.without_source:
        copy_source(out)
        (out / "run.sh").write_text('exec bash "$(dirname "$0")/bench/gpu.sh" "$@"\n', encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wheels = [*missing([*project["dependencies"], *PEERS, *TESTS], PROVIDED, requirements_of), *ALONE]
    download(wheels, out / "wheels")
    write_tokenizer(out / "tokenizer")
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 2**20
    if size > LIMIT_MIB:
        sys.exit(f"{out} takes {size:.0f} MiB, more than {LIMIT_MIB}")
    sys.stdout.write(f"{out}: {size:.1f} MiB, with {len(wheels)} wheels; on the GPU's machine: bash run.sh\n")


def missing(
    roots: Iterable[str], provided: Collection[str], requires: Callable[[str], Iterable[str]]
) -> list[str]:
    """The packages that must be carried along: all that the roots need, except what is there already.

    Args:
        roots: requirements, as in pyproject.toml.
        provided: names of packages that are there, with all that they need.
        requires: the requirements of a package, by its name.

    Returns:
        Names in alphabetical order.
    """
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        if name in provided or name in found:
            continue
        if requirement.marker is None or requirement.marker.evaluate(PYTHON):
            found.add(name)
            waiting += requires(name)
    return sorted(found)


def requirements_of(name: str) -> list[str]:
    """What the package that is installed here says it needs."""
    return distribution(name).requires or []


def copy_source(out: Path) -> None:
    """Copy the files that git tracks, as they are in the working tree."""
    words = ["git", "ls-files", "-z", "--", *SOURCE]
    listed = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S603
    for name in filter(None, listed.stdout.split("\0")):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, out / name)


def download(names: Iterable[str], folder: Path) -> None:
    """Fetch the wheels of packages for that machine, in the versions that are installed here."""
    words = [sys.executable, "-m", "pip", "-q", "download", "--no-deps", "--only-binary=:all:"]
    words += ["--python-version", PYTHON["python_version"], "--implementation", "cp", "--dest", str(folder)]
    words += [f"--platform=manylinux{'_' * ('_' in tag)}{tag}_x86_64" for tag in MANYLINUX]
    words += [f"{name}=={distribution(name).version}" for name in names]
    subprocess.run(words, check=True)  # noqa: S603


def write_tokenizer(folder: Path) -> None:
    """Write the files of the embedded model's tokenizer."""
    from genenv.backends.local import loading
    from genenv.backends.settings import EMBEDDED

    loading.load_tokenizer(loading.resolve(EMBEDDED)).save_pretrained(folder)


if __name__ == "__main__":
    main()
