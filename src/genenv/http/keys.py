"""API keys of servers: where clients and servers find one, and how it is sent."""

from __future__ import annotations

import base64
import ipaddress
import os
import secrets
import string
from collections.abc import Mapping

from genenv.errors import UsageError

_ALLOWED = frozenset(string.ascii_letters + string.digits + string.punctuation)
_BYTES = 32
"""Of randomness in a key that is made here."""


def is_loopback(host: str) -> bool:
    """Whether an address or a name can only be reached from this machine."""
    name = host.strip("[]").lower().rstrip(".")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


def key_in(variable: str) -> str | None:
    """The key that an environment variable holds; None where it is unset or empty.

    Args:
        variable: its name, such as `policy.vllm.key_variable` says it.

    Raises:
        UsageError: what it holds cannot be sent in a header.
    """
    key = os.environ.get(variable, "").strip()
    if not key:
        return None
    if not _ALLOWED.issuperset(key):
        raise UsageError(
            f"the environment variable {variable} holds no key: a key has ASCII letters, digits and "
            "punctuation alone, without spaces"
        )
    return key


def new_key(prefix: str = "") -> str:
    """A fresh random key."""
    return prefix + secrets.token_urlsafe(_BYTES)


def key_headers(variable: str) -> Mapping[str, str]:
    """The headers with which a client sends the key in an environment variable; none where it is unset.

    `USER:PASSWORD` is sent as such, for servers behind a proxy that asks for it.

    Raises:
        UsageError: what it holds cannot be sent in a header.
    """
    key = key_in(variable)
    if key is None:
        return {}
    if ":" in key:
        return {"Authorization": f"Basic {base64.b64encode(key.encode()).decode()}"}
    return {"Authorization": f"Bearer {key}"}
