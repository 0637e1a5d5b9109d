"""Which accumulator a batcher's arguments ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ..._core.order.keys import identity
from ..._core.order.parking import Parking
from .keyed import KeyedAccumulator
from .plain import PlainAccumulator
from .tenants import TenantAccumulator, Tenanted

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..._core.order.parking import OnKeyFailure
    from ..limits import Limits
    from ..tenancy import Tenants
    from .plain import Accumulator

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
    on_key_failure: OnKeyFailure,
    max_parked_items: int,
) -> Accumulator[T]:
    """A plain one, a keyed one, or one of either per tenant.

    `repeats` lets a batch have several items of one key; `evicts` says whether the oldest items may
    have to make room.
    """

    def keyed(key: Callable[[T], object], max_items: int) -> KeyedAccumulator[T]:
        return KeyedAccumulator(
            key=key,
            max_items=max_items,
            max_bytes=limits.max_bytes,
            max_delay=limits.delay,
            sized=sized,
            repeats=repeats,
            evicts=evicts,
            parking=Parking(on_key_failure, max_parked_items),
        )

    if tenant is None:
        if key is not None:
            return keyed(key, limits.max_items)
        return PlainAccumulator(
            max_items=limits.max_items,
            max_bytes=limits.max_bytes,
            max_delay=limits.delay,
            sized=sized,
        )

    def of_one(house: TenantAccumulator[T]) -> Accumulator[T]:
        if key is None:
            return Tenanted(house, max_bytes=limits.max_bytes, max_delay=limits.delay, sized=sized)
        made = keyed(key, house.max_items)
        made.last_number = house.last_number
        made.odd_keys = (
            True  # for all that it knows: its first key was looked at before it was made
        )
        return made

    return TenantAccumulator(
        of_one,
        tenant=tenant,
        key=(lambda _: None) if key is None else (lambda item: identity(key(item))),
        weight=tenants.weight,
        max_items=limits.max_items,
        max_bytes=limits.max_bytes,
        sized=sized,
        serial=limits.workers == 1 and key is None,
        holds_keys=on_key_failure != "skip",
        evicts=evicts,
        cap_items=tenants.max_pending_items,
        cap_bytes=tenants.max_pending_bytes,
    )
