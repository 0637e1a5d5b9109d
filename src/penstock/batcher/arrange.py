"""Which accumulator a batcher's arguments ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from .accumulator import PlainAccumulator
from .keyed import KeyedAccumulator
from .tenants import TenantAccumulator, Tenanted

if TYPE_CHECKING:
    from collections.abc import Callable

    from .accumulator import Accumulator
    from .limits import Limits
    from .parking import Parking
    from .tenancy import Tenants

T = TypeVar("T")


def arranged(
    limits: Limits,
    *,
    sized: bool,
    key: Callable[[T], object] | None,
    tenant: Callable[[T], object] | None,
    tenants: Tenants,
    repeats: bool,
    evicts: bool,
    parking: Parking,
) -> Accumulator[T]:
    """A plain one, a keyed one, or one of either per tenant.

    `repeats` lets a batch have several items of one key; `evicts` says whether the oldest items may have to make room.
    """
    of_all: KeyedAccumulator[T] | None = None
    if key is not None:
        of_all = _keyed(key, limits, limits.max_items, sized=sized, repeats=repeats, evicts=evicts, parking=parking)
    if tenant is None:
        plain = PlainAccumulator[T](max_items=limits.max_items, max_bytes=limits.max_bytes, max_delay=limits.delay, sized=sized)
        return plain if of_all is None else of_all

    def of_one(house: TenantAccumulator[T]) -> Accumulator[T]:
        if key is None:
            return Tenanted(house, max_bytes=limits.max_bytes, max_delay=limits.delay, sized=sized)
        made = _keyed(key, limits, house.max_items, sized=sized, repeats=repeats, evicts=evicts, parking=parking)
        made.last_number = house.last_number
        made.odd_keys = True  # for all that it knows: `of_all` has looked at them
        return made

    return TenantAccumulator(
        of_one,
        tenant=tenant,
        key=(lambda _: None) if of_all is None else of_all.identity,
        weight=tenants.weight,
        max_items=limits.max_items,
        max_bytes=limits.max_bytes,
        sized=sized,
        serial=limits.workers == 1 and key is None,
        cap_items=tenants.max_pending_items,
        cap_bytes=tenants.max_pending_bytes,
    )


def _keyed(
    key: Callable[[T], object], limits: Limits, max_items: int, *, sized: bool, repeats: bool, evicts: bool, parking: Parking
) -> KeyedAccumulator[T]:
    return KeyedAccumulator(
        key=key,
        max_items=max_items,
        max_bytes=limits.max_bytes,
        max_delay=limits.delay,
        sized=sized,
        repeats=repeats,
        evicts=evicts,
        parking=parking,
    )
