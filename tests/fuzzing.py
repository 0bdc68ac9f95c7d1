"""Fuzzing: text that others write is read, or refused with one of genenv's own sentences, within limits.

`make test` tries a few examples, the same every time. Where GENENV_FUZZ_S is set, all fuzz tests of a session
share that many seconds, on fresh examples, or on those that the number GENENV_FUZZ_SEED gives. A test asks
for the fixture `fuzz`, and gives it a strategy and the reader:

    def test_a_document_is_read_or_refused(fuzz: Fuzz) -> None:
        fuzz(documents(), lambda text: Document(text, "api.yaml"))
"""

from __future__ import annotations

import itertools
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from hypothesis import given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning

from genenv.errors import GenenvError

LIMIT_S = 2.0
"""Of the process's own time, for one example."""
MOST_BYTES = 500 << 20
"""Of memory that one example may add."""
FEW = 15
"""Examples where no time is given."""
T = TypeVar("T")


class TooSlow(BaseException):
    """An example took too long. No reader catches it."""


class Fuzz:
    """Tries one reader on many values.

    Args:
        seconds: how long; None: `FEW` examples, the same every time.
        first_seed: of the examples that are drawn while there is time; None: other ones each time.
    """

    def __init__(self, seconds: float | None, first_seed: int | None = None) -> None:
        self._seconds = seconds
        self._seeds = itertools.count(
            random.SystemRandom().getrandbits(64) if first_seed is None else first_seed
        )

    def __call__(
        self, values: st.SearchStrategy[T], read: Callable[[T], object], *, examples: int = FEW
    ) -> None:
        """Read drawn values; each ends in a result or a `GenenvError`, within the limits of time and memory.

        Args:
            values: what is drawn.
            read: the reader under test. What else it raises is a failure; it may assert.
            examples: how many are tried where no time is given.
        """

        def check(value: T) -> None:
            with limits():
                try:
                    read(value)
                except GenenvError as error:
                    said = str(error)
                    assert said.strip(), "an error has to say what is wrong"
                    assert len(said) < 4000, "one sentence is enough"
                    said.encode("utf-8")

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HypothesisWarning)  # it warns of long examples, and documents are
            if self._seconds is None:
                settings(max_examples=examples, derandomize=True, database=None)(given(values)(check))()
                return
            if os.environ.get("GENENV_FUZZ_COVERAGE"):
                _by_coverage(given(values)(check).hypothesis.fuzz_one_input, self._seconds)
                return
            ends = time.monotonic() + self._seconds
            fresh = settings(max_examples=100, derandomize=False, database=None, print_blob=True)
            while time.monotonic() < ends:
                seed(next(self._seeds))(fresh(given(values)(check)))()


def _by_coverage(try_bytes: Callable[[bytes], object], seconds: float) -> None:
    """Have libFuzzer choose the bytes that examples are drawn from, in a process that it ends."""
    import atheris  # pyright: ignore[reportMissingImports] - not everywhere

    kept = tempfile.mkdtemp()
    child = os.fork()
    if not child:
        words = [f"-max_total_time={max(1, round(seconds))}", f"-artifact_prefix={kept}/", "-rss_limit_mb=0"]
        try:
            atheris.Setup(["fuzz", *words, "-max_len=8192", "-len_control=0"], try_bytes)
            atheris.Fuzz()
        finally:  # nothing of this process but its status is wanted
            os._exit(1)
    _, status = os.waitpid(child, 0)
    found = [path.read_bytes() for path in Path(kept).iterdir()]
    shutil.rmtree(kept)
    assert status == 0, f"what failed stands above; it is drawn from the bytes {found!r}"


@contextmanager
def limits(limit_s: float = LIMIT_S, most_bytes: int = MOST_BYTES) -> Iterator[None]:
    """Let what is inside take so much of the process's time, and so much more memory than there is in use."""

    def ended(*_: object) -> None:
        raise TooSlow(f"one example takes over {limit_s:g} s")

    before = signal.signal(signal.SIGVTALRM, ended)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if sys.platform == "linux":
        in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (in_use + most_bytes, hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
    start = time.process_time()
    try:
        yield
        assert time.process_time() - start < limit_s, "an example took too long in one step"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def json_values(*, texts: st.SearchStrategy[str] | None = None, most: int = 12) -> st.SearchStrategy[object]:
    """JSON, with numbers and texts of the kinds that break readers."""
    strange = st.sampled_from(
        ["", "\x00", "\ud800", "a" * 600, "\u202e", "1e999", "NaN", "__proto__", "é", "$ref", "#", "'", '"']
    )
    numbers = st.sampled_from([0, -1, 1, 10**400, -(10**19), 0.5, 1e308, 2**63])
    scalars = st.one_of(
        st.none(),
        st.booleans(),
        numbers,
        st.integers(),
        st.floats(),
        strange,
        st.text(max_size=12) if texts is None else texts,
    )
    keys = st.one_of(strange, st.text(max_size=6) if texts is None else texts)
    return st.recursive(
        scalars,
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)),
        max_leaves=most,
    )
