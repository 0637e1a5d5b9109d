"""Gatherers alone, each on its own ledger, for tests of their decisions.

White box: gathering without a batcher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from sluicegate.batcher import Clock, Reason
from sluicegate.batcher.gathering.gatherer import Gathering, Shape
from sluicegate.batcher.gathering.holds import Parking
from sluicegate.batcher.gathering.keyed import KeyedGatherer
from sluicegate.batcher.gathering.make import gathering_for
from sluicegate.batcher.gathering.pack import AddGroup, Numbers, Pack
from sluicegate.batcher.gathering.plain import PlainGatherer
from sluicegate.batcher.gathering.tenants import TenantGatherer, TenantRules
from sluicegate.batcher.gathering.window import AddWindow
from sluicegate.batcher.ledger import Ledger
from sluicegate.batcher.setup import checked_setup
from sluicegate.sinks import MemorySink
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from sluicegate.batcher.gathering.pack import Leftover
    from sluicegate.batcher.receipt import Resolvable

T = TypeVar("T")

ROOMY = 1 << 40


class OneByOne:
    """The methods of a gatherer that tests call."""

    offer: Any
    seal: Any
    shape: Shape
    ledger: Ledger
    numbers: Numbers

    def offer_one(
        self,
        item: Any,
        size: int,
        receipt: Resolvable | None,
        now: float,
        key: Hashable = None,
    ) -> Sequence[Leftover[Any]]:
        """Offer one item, as the slow path does."""
        self.ledger.close_window(0)
        failed: Sequence[Leftover[Any]] = self.offer(
            AddGroup((item,), (size,), (receipt,), (key,)), now
        )
        return failed

    def resize(self, max_items: int, now: float) -> None:
        """Resize, as adaptive control does."""
        self.shape.resize(max_items)
        self.seal(Reason.SIZE, now)

    @property
    def queued(self) -> int:
        return self.ledger.queued

    @property
    def queued_bytes(self) -> int:
        return self.ledger.queued_bytes

    @property
    def last_number(self) -> int:
        return self.numbers.last


class Plain(OneByOne, PlainGatherer[T]):
    """Arrival order."""

    def __init__(
        self, *, max_items: int, max_bytes: int | None, max_delay: float, sized: bool
    ) -> None:
        self.shape = Shape(max_items, max_bytes, max_delay, sized)
        self.ledger = Ledger(ROOMY, None)
        self.numbers = Numbers()
        self.pack: Pack[T] = Pack(sized=sized)
        super().__init__(self.shape, self.pack, self.ledger, self.numbers)

    @property
    def items(self) -> list[T]:
        return self.pack.items

    @property
    def receipts(self) -> dict[int, Any]:
        return self.pack.receipts


class Keyed(OneByOne, KeyedGatherer[T]):
    """Order per key. `woken` collects the calls of `wake`."""

    def __init__(
        self,
        *,
        key: Callable[[T], object],
        max_items: int,
        max_bytes: int | None = None,
        max_delay: float = 1.0,
        sized: bool = False,
        repeats: bool = False,
        evicts: bool = True,
        parking: Parking | None = None,
    ) -> None:
        self.shape = Shape(max_items, max_bytes, max_delay, sized)
        self.ledger = Ledger(ROOMY, None)
        self.numbers = Numbers()
        self.window = AddWindow(self.ledger)
        self.woken: list[bool] = []
        super().__init__(
            self.shape,
            self.ledger,
            self.numbers,
            self.window,
            key=key,
            repeats=repeats,
            evicts=evicts,
            parking=parking or Parking("skip", 1000),
            wake=self.woke,
            breaks=lambda *_: None,
        )

    def woke(self, at_once: bool) -> float:
        self.woken.append(at_once)
        return self._now

    @property
    def items(self) -> Any:
        return self.pack.items

    @property
    def lanes(self) -> Any:
        return self._lanes


class OfTenants(OneByOne, TenantGatherer[T]):
    """Tenants, each with a plain gatherer."""

    def __init__(
        self,
        shape: Shape,
        *,
        tenant: Callable[[T], object],
        weight: Callable[[Any], float],
        serial: bool = False,
        evicts: bool = False,
        cap_items: int | None = None,
    ) -> None:
        self.shape = shape
        self.ledger = Ledger(ROOMY, None)
        self.numbers = Numbers()
        rules: TenantRules[T] = TenantRules(
            self._one,
            tenant=tenant,
            key=lambda _: None,
            weight=weight,
            serial=serial,
            evicts=evicts,
            cap_items=cap_items,
        )
        super().__init__(
            rules,
            shape,
            self.ledger,
            self.numbers,
            window=AddWindow(self.ledger),
            now=lambda: self._now,
        )

    def _one(self, ledger: Ledger, _window: AddWindow) -> Gathering[T]:
        pack: Pack[T] = Pack(sized=self.shape.sized)
        return Gathering(PlainGatherer(self.shape, pack, ledger, self.numbers), self.shape, pack)


class Moment:
    """A clock that does not advance."""

    clock: Clock = FakeClock()


def gathering(**options: Any) -> tuple[Gathering[Any], Ledger]:
    """The gatherer of a batcher with these arguments, and its ledger."""
    setup = checked_setup(MemorySink[Any](), **options)
    ledger = Ledger(ROOMY, None)
    made = gathering_for(
        setup,
        ledger,
        Numbers(),
        AddWindow(ledger),
        wake=lambda _: 0.0,
        time=Moment(),
        breaks=lambda *_: None,
    )
    return made, ledger
