"""Check quickly whether a model name exists on disk or on the hub, and suggest similar names.

Without this check, loading a missing model keeps retrying the hub for about a minute.
"""

from __future__ import annotations

import difflib
import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

from genenv.backends.settings import BUILT_IN, EMBEDDED
from genenv.errors import UsageError, first_line

EMBEDDED_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""The embedded model's name on the hub."""
PATIENCE_S = 2.0
"""Timeout of the hub's answer, seconds. The check gives up after twice this time, even if name resolution
hangs."""
_LIKE = 0.6
_HTTP_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]
"""The base of all errors of the HTTP library that the hub's client uses."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The hub's answer: `here`, `nowhere`, `gated`, `no model`, or "" with the error in `why`."""

    says: str
    why: str = ""


def check(name: str) -> str:
    """Check that a model exists on this disk or on the hub.

    Args:
        name: a built-in model, a folder, or a name on the hub.

    Returns:
        The source for transformers: the name, or the folder of an earlier download if the hub cannot be
            reached.

    Raises:
        UsageError: the model is not available; the message says why, and suggests a similar name.
    """
    path = Path(name).expanduser()
    if name in BUILT_IN or path.is_dir():
        return name
    if path.exists() or name.startswith((".", "/", "~")) or not _is_hub_name(name):
        raise UsageError(
            f"there is no model folder {name}: give a folder, a hub name, or {EMBEDDED!r}{_hint(name)}"
        )
    reply = ask(name)
    if reply.says == "here":
        return name
    where = constants.ENDPOINT.partition("://")[2]
    if reply.says == "nowhere":
        raise UsageError(
            f"there is no model {name!r}: neither a folder here nor a public one on {where}{_hint(name)}"
        )
    if reply.says == "gated":
        raise UsageError(
            f"{name} is only for whom its authors let in: ask on {where}, then run: hf auth login"
        )
    if reply.says == "no model":
        raise UsageError(f"{name} on {where} holds no config.json: transformers cannot read it{_hint(name)}")
    if (fetched := _fetched(name)) is not None:
        return fetched
    raise UsageError(
        f"there is no model {name!r} on this disk, and {where} cannot be asked ({reply.why}){_hint(name)}"
    )


def nearest(name: str) -> str | None:
    """Return the model or run on this disk with the most similar name; None if there is none."""
    known = list(dict.fromkeys([*BUILT_IN, EMBEDDED_HUB, *_cached(), *_folders(name)]))
    spelt: dict[str, str] = {}
    for one in known:
        for alias in (one, one.rpartition("/")[2]):
            spelt.setdefault(alias.lower(), one)
    asked = name.lower().rstrip("/")
    close = difflib.get_close_matches(asked, spelt, n=1, cutoff=_LIKE)
    return spelt[close[0]] if close else None


def _hint(name: str) -> str:
    close = nearest(name)
    return "" if close is None else f"; did you mean {close!r}?"


def _is_hub_name(name: str) -> bool:
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


@functools.cache
def ask(name: str) -> Reply:
    """Ask the hub for a model's `config.json`, once per process and without retries."""
    found: list[Reply] = []
    thread = threading.Thread(target=lambda: found.append(_asked(name)), daemon=True)
    thread.start()
    thread.join(2 * PATIENCE_S)
    return found[0] if found else Reply("", "it does not answer")


def _asked(name: str) -> Reply:
    url = huggingface_hub.hf_hub_url(name, "config.json", endpoint=constants.ENDPOINT)
    try:
        huggingface_hub.get_hf_file_metadata(url, timeout=PATIENCE_S)  # pyright: ignore[reportUnknownMemberType]
    except GatedRepoError:
        return Reply("gated")
    except RepositoryNotFoundError:
        return Reply("nowhere")
    except EntryNotFoundError:
        return Reply("no model")
    except (OSError, _HTTP_ERROR) as error:
        return Reply("", first_line(error) if str(error) else "it does not answer")
    return Reply("here")


def _fetched(name: str) -> str | None:
    """Return the folder of a model that was downloaded earlier; None if there is none."""
    found = huggingface_hub.try_to_load_from_cache(name, "config.json")
    return str(Path(found).parent) if isinstance(found, str) else None


def _cached() -> Iterator[str]:
    """Yield the names of all models that were downloaded earlier."""
    folder = Path(constants.HF_HUB_CACHE)
    for path in sorted(folder.glob("models--*")) if folder.is_dir() else ():
        yield path.name.removeprefix("models--").replace("--", "/", 1)


def _folders(name: str) -> Iterator[str]:
    """Yield the models and runs in the folder of the given name, and in `runs`."""
    beside = Path(name.partition("@")[0]).expanduser().parent
    for folder in dict.fromkeys((beside, Path("runs"))):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if (path / "config.json").is_file() or (path / "config.toml").is_file():
                yield path.as_posix()
