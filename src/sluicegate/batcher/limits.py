"""All limits of a batcher, with their defaults; the shares and caps of its tenants."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from .._core import checks
from .._core.checks import in_seconds
from .._core.keywords import known_arguments
from .._core.text import repr_of

if TYPE_CHECKING:
    from datetime import timedelta


LEAST_LEDGER = 10_000

LEAST_WEIGHT = 0.01
"""The lowest weight of a tenant: one turn in a hundred of those of weight 1."""


@known_arguments()
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on batches, on the pending items, on concurrency, and on the duration of a write.

    `None` means the default. Durations are seconds or `timedelta`. Raises `ConfigError` for a value
    out of range.

    Examples:
        >>> import asyncio
        >>> from sluicegate import Batcher, Limits
        >>> async def write(batch):
        ...     print("wrote", *batch)
        >>> async def main():
        ...     async with Batcher(write, limits=Limits(max_items=3, max_delay=0.1)) as batcher:
        ...         await batcher.add_many(["a", "b", "c", "d"])
        ...     print(batcher.tally())
        >>> asyncio.run(main())
        wrote a b c
        wrote d
        4 accepted: 4 delivered
    """

    max_items: int = 500
    """Maximum number of items in a batch."""
    max_bytes: int | None = None
    """Maximum bytes in a batch, as measured by `size_of`; no limit by default. An estimate for
    packing, not a ceiling for a request body.
    """
    max_delay: float | timedelta = 0.2
    """Seconds from a batch's first item until it is due. With 0 it is due at the next step of the
    loop: items are written as soon as a worker is free, and gather into larger batches until then.
    """
    max_pending_items: int | None = None
    """Maximum number of pending items: open, sealed, in flight and backing off. Default: the larger
    of 10,000 and 2 x (workers + 1) x max_items.
    """
    max_pending_bytes: int | None = None
    """Maximum number of pending bytes, as measured by `size_of`; no limit by default."""
    workers: int = 1
    """Maximum number of batches in flight. One worker keeps total order; with more, batches may end
    out of order.
    """
    flush_timeout: float | timedelta = 30.0
    """Maximum seconds for each stretch of a write between backoffs. It is a backstop, so it must be
    longer than any `Timeout` in the stack.
    """

    def __post_init__(self) -> None:
        checks.count("max_items", self.max_items)
        checks.count("workers", self.workers)
        checks.optional_count("max_bytes", self.max_bytes)
        checks.optional_count("max_pending_bytes", self.max_pending_bytes)
        checks.optional_count("max_pending_items", self.max_pending_items)
        delay = checks.seconds("max_delay", self.max_delay, zero=True, usual=checks.LONG_DELAY)
        object.__setattr__(self, "max_delay", delay)
        stretch = checks.seconds("flush_timeout", self.flush_timeout, usual=checks.LONG_TIMEOUT)
        object.__setattr__(self, "flush_timeout", stretch)
        self._check_ledger()

    def _check_ledger(self) -> None:
        least = (self.workers + 1) * self.max_items
        if self.max_pending_items is not None and self.max_pending_items < least:
            rule = (
                f"must be at least (workers + 1) x max_items = {least}, so that every "
                "worker and the open batch can be full"
            )
            raise checks.bad("max_pending_items", self.max_pending_items, rule)
        if self.max_bytes and self.max_pending_bytes and self.max_pending_bytes < self.max_bytes:
            rule = f"must be at least max_bytes = {self.max_bytes}"
            raise checks.bad("max_pending_bytes", self.max_pending_bytes, rule)

    @property
    def ledger_items(self) -> int:
        """The maximum number of pending items: `max_pending_items` or its default."""
        if self.max_pending_items is not None:
            return self.max_pending_items
        return max(LEAST_LEDGER, 2 * (self.workers + 1) * self.max_items)

    @property
    def delay(self) -> float:
        """`max_delay` as float seconds."""
        return in_seconds(self.max_delay)

    @property
    def stretch(self) -> float:
        """`flush_timeout` as float seconds."""
        return in_seconds(self.flush_timeout)


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

    It is looked up at each item of a tenant without pending items. Shares are of bytes if items are
    measured, otherwise of items. They only have an effect while several tenants have items to send.
    """
    max_pending_items: int | None = None
    """Maximum number of one tenant's pending items: queued, held, in flight and backing off. Items
    in flight count until their write has ended.
    """
    max_pending_bytes: int | None = None
    """Maximum number of one tenant's pending bytes, as measured by `size_of`."""

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
