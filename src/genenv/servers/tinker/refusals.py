"""What a request asks for is not there, or is nothing that this server does."""

from __future__ import annotations

from genenv.errors import UsageError


class NotHere(UsageError):
    """What a request names is not there: status 404."""


class TooMuch(UsageError):
    """The server has as much of something as it may have: status 429."""


class NotServed(UsageError):
    """The protocol has it, this server has not: status 501."""
