"""The worlds in which tasks are written, attempted and checked. A new domain is one line here."""

from __future__ import annotations

import importlib
from typing import cast

from pydantic import BaseModel

from genenv.domains.base import Domain
from genenv.errors import unknown_name

_DOMAINS = {"tool_calling": "genenv.domains.tool_calling.domain:ToolCalling"}


def domain_names() -> tuple[str, ...]:
    """Every domain, in alphabetical order."""
    return tuple(sorted(_DOMAINS))


def domain_config(name: str) -> type[BaseModel]:
    """The settings of a domain: the attribute `config` of its class.

    Raises:
        UsageError: no such domain.
    """
    return cast(type[BaseModel], getattr(_domain_class(name), "config"))  # noqa: B009


def load_domain(name: str, settings: BaseModel | None = None) -> Domain:
    """A domain, ready for use.

    Args:
        name: one of `domain_names()`.
        settings: the domain's own settings; left out, their defaults.

    Raises:
        UsageError: no such domain, or something that it needs is not installed.
    """
    return cast(Domain, _domain_class(name)(settings or domain_config(name)()))


def _domain_class(name: str) -> type:
    if name not in _DOMAINS:
        raise unknown_name("domain", name, _DOMAINS)
    module, _, attribute = _DOMAINS[name].partition(":")
    return cast(type, getattr(importlib.import_module(module), attribute))
