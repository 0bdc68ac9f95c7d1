"""Tools that do what tools should not."""

import os
import sys
import time

log = []


def fine(word: str) -> str:
    """Repeats a word."""
    log.append(word)
    return word


def hangs(seconds: float) -> None:
    """Sleeps."""
    time.sleep(seconds)


def spins() -> None:
    """Counts."""
    while True:
        pass


def dies() -> None:
    """Ends the process."""
    os._exit(3)


def exits() -> None:
    """Raises SystemExit."""
    sys.exit("bye")


def prints() -> int:
    """Prints."""
    print("\n{}\n" * 1000)
    os.write(1, b"noise\n")
    return 1


def forks() -> int:
    """Leaves a process behind."""
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    return 1


def returns_bytes() -> bytes:
    """Returns bytes."""
    return b"\x00"


def returns_megabytes() -> str:
    """Returns much."""
    return "x" * 5_000_000


def returns_nan() -> float:
    """Returns no number."""
    return float("nan")


def returns_a_cycle() -> list:
    """Returns what holds itself."""
    inner: list = []
    inner.append(inner)
    return inner


def returns_an_object() -> object:
    """Returns an object."""
    return object()


def eats_memory() -> int:
    """Takes more memory than there is."""
    return len(bytearray(1 << 40))


def reads_the_input() -> str:
    """Asks at the terminal."""
    return input()


def surrogates() -> str:
    """Returns half a character."""
    return "\ud800"
