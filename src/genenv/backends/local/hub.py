"""Check quickly whether a model name exists on this disk or on the hub, and suggest the name that was meant.

Left to itself, loading a name that is not there asks the hub for a minute, again and again.
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
"""How long the hub may take to answer; name servers that say nothing are not waited for any longer."""
_LIKE = 0.6
_HTTP_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]
"""The base of all errors of the HTTP library that the hub's client uses."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the hub says of a name: `here`, `nowhere`, `gated`, `no model`, or why it cannot be asked."""

    says: str
    why: str = ""


def check(name: str) -> str:
    """Hold a name to what there is: on this disk, or on the hub.

    Args:
        name: a built-in model, a folder, or a name on the hub.

    Returns:
        Where transformers is to read it: the name, or, where the hub cannot be asked, the folder of what was
        fetched earlier.

    Raises:
        UsageError: it cannot be had; says why, and names what is spelt most alike.
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
    """The model or run on this disk that is spelt most alike; None where nothing is."""
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
    """Ask the hub for a model's `config.json`, once in a process, without repeating what fails."""
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
    """The folder of a model that was fetched earlier."""
    found = huggingface_hub.try_to_load_from_cache(name, "config.json")
    return str(Path(found).parent) if isinstance(found, str) else None


def _cached() -> Iterator[str]:
    """Names of the models that were fetched earlier."""
    folder = Path(constants.HF_HUB_CACHE)
    for path in sorted(folder.glob("models--*")) if folder.is_dir() else ():
        yield path.name.removeprefix("models--").replace("--", "/", 1)


def _folders(name: str) -> Iterator[str]:
    """Models and runs that lie beside what was named, or where runs usually are."""
    beside = Path(name.partition("@")[0]).expanduser().parent
    for folder in dict.fromkeys((beside, Path("runs"))):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if (path / "config.json").is_file() or (path / "config.toml").is_file():
                yield path.as_posix()
