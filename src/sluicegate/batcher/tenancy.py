"""The shares and caps of a batcher's tenants."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from .._core import checks
from .._core.keywords import known_arguments
from .._core.text import repr_of

LEAST_WEIGHT = 0.01


@known_arguments()
@dataclass(frozen=True, slots=True, kw_only=True)
class Tenants:
    """Weights and caps of a batcher's tenants; `Limits` apply to every batch and to all tenants
    together.

    `None` means no cap per tenant. Raises `ConfigError` for a value out of range.
    """

    weights: Mapping[Any, float] | Callable[[Any], float] = field(
        default_factory=dict[object, float]
    )
    """Each tenant's share of the flush slots: a mapping, or a function from a tenant. At least
    0.01; 1 for a tenant that is not in the mapping.

    It is looked up at each item of a tenant without items inside. Shares are of bytes if items are
    measured, otherwise of items. They only have an effect while several tenants have items to send.
    """
    max_pending_items: int | None = None
    """Maximum number of items of one tenant inside: queued, held, in flight and backing off. Items
    in flight count until their write has ended.
    """
    max_pending_bytes: int | None = None
    """Maximum bytes of one tenant inside, as measured by `size_of`."""

    def __post_init__(self) -> None:
        checks.optional_count("max_pending_items", self.max_pending_items)
        checks.optional_count("max_pending_bytes", self.max_pending_bytes)
        given: object = self.weights
        if isinstance(given, Mapping):
            for tenant, weight in cast("Mapping[object, object]", given).items():
                _checked({tenant: weight}, weight)
        elif not callable(given):
            function = "a function that returns a tenant's number"
            rule = f"must be a mapping from tenants to numbers, or {function}"
            raise checks.bad("weights", given, rule)

    @property
    def has_caps(self) -> bool:
        """Whether tenants have their own caps."""
        return self.max_pending_items is not None or self.max_pending_bytes is not None

    def weight(self, tenant: object) -> float:
        """Return a tenant's current share. Raises `ConfigError` unless it is a number of at least
        0.01.
        """
        weights: object = self.weights
        if callable(weights):
            found: object = weights(tenant)
        else:
            found = cast("Mapping[object, object]", weights).get(tenant, 1.0)
        return _checked(f"{repr_of(found)} for tenant {repr_of(tenant)}", found)


def _checked(shown: object, weight: object) -> float:
    if (
        isinstance(weight, bool)
        or not isinstance(weight, (int, float))
        or not LEAST_WEIGHT <= weight <= sys.float_info.max
    ):
        raise checks.bad("weights", shown, f"must be a finite number, {LEAST_WEIGHT} or more")
    return float(weight)
