"""The worlds in which tasks are written, attempted and checked.

A domain of this package is one line here; one of your own is named by where it is, `package.module:Class`.
"""

from __future__ import annotations

import importlib
from typing import cast

from pydantic import BaseModel

from genenv.domains.base import Domain
from genenv.errors import UsageError, unknown_name

_DOMAINS = {
    "household": "genenv.domains.household.domain:Household",
    "multihop_qa": "genenv.domains.multihop_qa.domain:MultihopQA",
    "tool_calling": "genenv.domains.tool_calling.domain:ToolCalling",
    "travel": "genenv.domains.travel.domain:Travel",
}

_PARTS = {*Domain.__annotations__, *(name for name in vars(Domain) if not name.startswith("_"))}
"""What a domain's class must have."""


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
        name: one of `domain_names()`, or `package.module:Class`.
        settings: the domain's own settings; left out, their defaults.

    Raises:
        UsageError: no such domain, or something that it needs is not installed.
    """
    return cast(Domain, _domain_class(name)(settings or domain_config(name)()))


def _domain_class(name: str) -> type:
    where = name if ":" in name else _DOMAINS.get(name)
    if where is None:
        raise unknown_name("domain", name, _DOMAINS)
    module, _, attribute = where.partition(":")
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if name in _DOMAINS or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise UsageError(
            f"domain {name!r}: there is no module {error.name!r}; is it on PYTHONPATH?"
        ) from error
    except (TypeError, ValueError) as error:  # a relative or an empty name
        raise UsageError(f"domain {name!r} is not of the form package.module:Class") from error
    found = getattr(loaded, attribute, None)
    if not isinstance(found, type):
        raise UsageError(f"domain {name!r}: module {module!r} has no class {attribute!r}")
    if missing := sorted(part for part in _PARTS if not hasattr(found, part)):
        raise UsageError(
            f"domain {name!r} lacks {', '.join(missing)}; genenv.domains.base says what a domain is"
        )
    return found
