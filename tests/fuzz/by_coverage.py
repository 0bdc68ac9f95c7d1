"""The fuzz tests guided by coverage (`make fuzz-coverage`): atheris changes what hypothesis draws from.

Modules of genenv are instrumented as they are imported. libFuzzer ends the process that it runs in, so each
test has one of its own (`Fuzz`).
"""

from __future__ import annotations

import os
import sys

import pytest


def main() -> int:
    try:
        import atheris
    except ImportError:
        sys.stderr.write("atheris is not installed here (pip install atheris): nothing was fuzzed\n")
        return 1
    os.environ["GENENV_FUZZ_COVERAGE"] = "1"
    with atheris.instrument_imports(include=["genenv"]):
        return pytest.main(["-n", "0", "-m", "", "-q", *(sys.argv[1:] or ["tests/fuzz"])])


if __name__ == "__main__":
    sys.exit(main())
