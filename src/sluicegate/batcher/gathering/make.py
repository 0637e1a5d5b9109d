"""Builds the gatherer for a batcher's arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ..._core.order.keys import identity
from .gatherer import Gathering, Shape
from .holds import Parking
from .keyed import KeyedGatherer
from .pack import Pack
from .plain import PlainGatherer
from .tenant_queue import TenantKeyedGatherer
from .tenants import TenantGatherer, TenantHolds, TenantRules
from .window import Scale, SizedPack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..ledger import Ledger
    from ..setup import Setup
    from .gatherer import HasClock, Wake
    from .pack import Numbers
    from .window import AddWindow

T = TypeVar("T")


def gathering_for(
    setup: Setup[T],
    ledger: Ledger,
    numbers: Numbers,
    window: AddWindow,
    *,
    wake: Wake,
    time: HasClock,
    breaks: Callable[[BaseException, Sequence[T]], object],
) -> Gathering[T]:
    """Build a plain gatherer, a keyed one, or one of these per tenant.

    `breaks` receives the errors of a failed step, with the item that was not accepted.
    """
    limits, key, tenant, tenants = setup.limits, setup.key, setup.tenant, setup.tenants
    shape = Shape(limits.max_items, limits.max_bytes, limits.delay, setup.sized)
    evicts = setup.overflow == "drop_oldest"

    def now(_at_once: bool = False) -> float:
        return time.clock.now()

    def scale_of(ledger: Ledger, window: AddWindow) -> Scale[T] | None:
        if setup.measure is None or tenant is not None:  # tenants' sizes are booked twice
            return None
        return Scale(setup.measure, shape.max_bytes, ledger, window, breaks=breaks)

    def one(ledger: Ledger, window: AddWindow) -> Gathering[T]:
        if key is None:
            scale = scale_of(ledger, window)
            pack: Pack[T] = Pack(sized=shape.sized) if scale is None else SizedPack(scale)
            return Gathering(PlainGatherer(shape, pack, ledger, numbers), shape, pack)
        kind: Callable[..., KeyedGatherer[T]] = KeyedGatherer
        if tenant is not None:
            kind = TenantKeyedGatherer
        keyed = kind(
            shape,
            ledger,
            numbers,
            window,
            key=key,
            repeats=setup.key_prefix_safe,
            evicts=evicts,
            parking=Parking(setup.on_key_failure, setup.max_parked_items),
            wake=wake if tenant is None else now,
            breaks=breaks,
            scale=scale_of(ledger, window),
            odd_keys=tenant is not None,  # a tenant's first key is looked up earlier
        )
        return Gathering(keyed, shape, keyed.pack, keyed.identity, keyed.identities, keyed.holds)

    if tenant is None:
        return one(ledger, window)
    rules: TenantRules[T] = TenantRules(
        one,
        tenant=tenant,
        key=(lambda _: None) if key is None else (lambda item: identity(key(item))),
        weight=tenants.weight,
        serial=limits.workers == 1 and key is None,
        evicts=evicts,
        cap_items=tenants.max_pending_items,
        cap_bytes=tenants.max_pending_bytes,
    )
    gatherer = TenantGatherer(rules, shape, ledger, numbers, window=window, now=now)
    holds = None if key is None else TenantHolds(gatherer)
    one_by_one, together = gatherer.identity, gatherer.identities
    return Gathering(gatherer, shape, gatherer.pack, one_by_one, together, holds)
