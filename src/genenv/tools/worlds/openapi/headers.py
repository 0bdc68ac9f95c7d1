"""Headers that go along with every request: as they are typed, and with the secrets that they name.

`Authorization: Bearer $TOKEN` is what a bundle keeps. What the variable holds is sent, and nothing else is
done with it: where a service repeats it, it is masked before anything is kept.
"""

from __future__ import annotations

import base64
import binascii
import re
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence

from genenv.errors import UsageError
from genenv.texts import SHORTEST_SECRET, clean, masked, without
from genenv.tools.discover.state_values import words_of
from genenv.types import Json

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_VALUE = re.compile(r"[\x20-\x7e]+")
_OWN = frozenset(
    {"host", "connection", "content-length", "content-type", "transfer-encoding", "accept-encoding", "te"}
)
"""Those that a request has anyway."""
_SECRET = frozenset(
    {"authorization", "auth", "cookie", "key", "apikey", "token", "secret", "password", "credential", "jwt"}
)
"""Words of names of headers that hold a secret."""


class Headers:
    """Headers, and what must not be shown of them.

    Args:
        typed: `NAME: VALUE` each, where `$VARIABLE` stands for what an environment variable holds.
        environment: the variables.

    Raises:
        UsageError: one cannot be read, holds a secret in writing, or names a variable that is not set.
    """

    def __init__(self, typed: Sequence[str], environment: Mapping[str, str]) -> None:
        self._values: dict[str, str] = {}
        self._secrets: set[str] = set()
        for one in typed:
            name, value = _parts(one)
            self._values[name] = _VARIABLE.sub(
                lambda found, name=name: self._held(name, found[1] or found[2], environment), value
            )
            if _VARIABLE.search(value):
                self._secrets |= {form for form in _forms(self._values[name]) if len(form) >= SHORTEST_SECRET}

    def _held(self, header: str, variable: str, environment: Mapping[str, str]) -> str:
        value = environment.get(variable, "").strip()
        if not value:
            raise UsageError(f"--header {header} names the environment variable {variable}, which is not set")
        if not _VALUE.fullmatch(value):
            raise UsageError(f"what {variable} holds cannot be in a header: it is more than plain characters")
        if len(value) < SHORTEST_SECRET:
            raise UsageError(
                f"what {variable} holds is too short to be kept out of what is recorded; if it is no secret, "
                f"write it into --header {header}"
            )
        self._secrets |= {value, urllib.parse.quote(value, safe="")}
        return value

    @property
    def names(self) -> frozenset[str]:
        """In small letters."""
        return frozenset(name.lower() for name in self._values)

    @property
    def sent(self) -> Mapping[str, str]:
        """With their values."""
        return dict(self._values)

    def safe(self, text: str) -> str:
        """Text of the service's without secrets."""
        return without(text, self._secrets)

    def without(self, value: Json) -> Json:
        """An answer without secrets."""
        if isinstance(value, str):
            return self.safe(clean(value))
        if isinstance(value, Mapping):
            return {str(self.without(name)): self.without(one) for name, one in value.items()}
        return [self.without(one) for one in value] if isinstance(value, list) else value


def _parts(typed: str) -> tuple[str, str]:
    """The name and the value.

    Raises:
        UsageError: it is no header, or one that cannot be given.
    """
    name, colon, value = (part.strip() for part in typed.partition(":"))
    if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
        raise UsageError(
            f"--header {masked(name)[:40]!r} is not NAME: VALUE, such as 'Authorization: Bearer $TOKEN'"
        )
    if name.lower() in _OWN:
        raise UsageError(f"--header {name} cannot be given: genenv sets it itself")
    if set(words_of(name)) & _SECRET and not _VARIABLE.search(value):
        raise UsageError(
            f"--header {name} holds a secret in writing, which the bundle would keep; name an environment "
            f"variable instead, in single quotes: '{name}: $VARIABLE'"
        )
    return name, value


def _forms(value: str) -> Iterator[str]:
    """What a service may repeat of a header that holds a secret: all of it, and what `Basic` packs."""
    yield value
    kind, _, packed = value.partition(" ")
    if kind.lower() != "basic":
        return
    try:
        plain = base64.b64decode(packed, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return
    yield plain
    yield plain.partition(":")[2]
