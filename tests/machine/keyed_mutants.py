"""Planted bugs in the code for keys, tenants and adaptive control, each with the law that must
detect it and the settings.

White box: the bugs are planted in private code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.machine.destination import Act

from sluicegate import Batcher
from sluicegate._core.order.lanes import Lane, Lanes
from sluicegate.batcher import Adaptive
from sluicegate.batcher.books import Bookkeeper
from sluicegate.batcher.dispatch import Dispatcher
from sluicegate.batcher.flight import FifoSlots, Flight
from sluicegate.batcher.gathering.eras import Eras
from sluicegate.batcher.gathering.holds import KeyHolds, Parking
from sluicegate.batcher.gathering.keyed import KeyedGatherer
from sluicegate.batcher.gathering.plain import PlainGatherer
from sluicegate.batcher.gathering.tenant_queue import TenantQueue
from sluicegate.batcher.gathering.tenants import TenantGatherer
from sluicegate.batcher.gathering.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


@dataclass(frozen=True, slots=True)
class Planted:
    """A bug, and how it is detected."""

    plant: Callable[[pytest.MonkeyPatch], None]
    law: str
    """The beginning of the complaint; a pattern."""
    where: dict[str, Any]
    """The fixed settings."""


ALL: dict[str, Planted] = {}
TWO_KEYS = ((0, 0), (0, 0), (0, 1))
TWO_TENANTS = ((0, 0), (1, 1), (0, 0), (1, 1))
THROTTLES = Act("fail", seconds=0.3, error="throttled")
REFUSES = Act("partial", error="permanent", which=frozenset({0}))


def mutant(law: str, **where: Any) -> Callable[[Callable[[pytest.MonkeyPatch], None]], None]:
    """Plants itself with `monkeypatch`; its docstring describes the fault."""

    def register(plant: Callable[[pytest.MonkeyPatch], None]) -> None:
        ALL[plant.__name__] = Planted(plant, law, where)

    return register


# -- keys ------------------------------------------------------------------------------------------


@mutant("exclusive", kind="keys", stack="retry")
def a_key_is_free_at_its_first_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed write releases its batch's keys although it is retried."""
    real = Flight.heard

    def heard(self: Flight[Any], errors: Any) -> None:
        real(self, errors)
        host: Any = self._host
        host.window.close()
        host.gathering.gatherer.done(self.sealed, range(len(self.batch)))

    monkeypatch.setattr(Flight, "heard", heard)


@mutant("exclusive", kind="keys", stack="retry")
def a_key_is_free_while_it_backs_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys of a batch are released once any of them waits."""

    def backs_off(self: Dispatcher[Any], flight: Any) -> None:
        self.window.close()
        self.gathering.gatherer.done(flight.sealed, range(len(flight.batch)))

    monkeypatch.setattr(Dispatcher, "backs_off", backs_off)


@mutant(
    "exclusive",
    kind="keys",
    policy="skip",
    stack="bare",
    pattern=TWO_KEYS,
    patience=80,
    default=Act(seconds=8.0, deaf=True),
)
def a_key_is_free_once_its_write_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is released although its write continues."""
    real = Dispatcher.book_outcome

    def book_outcome(
        self: Dispatcher[Any], flight: Any, indices: Any, outcome: Any, details: Any
    ) -> None:
        real(self, flight, indices, outcome, details)
        if flight.cut_cause is not None:
            self.window.close()
            self.gathering.gatherer.done(flight.sealed, indices)

    monkeypatch.setattr(Dispatcher, "book_outcome", book_outcome)


@mutant("order", kind="keys", overflow="block")
def a_lane_is_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Last in, first out."""

    def wait(self: Lanes[Any], entry: Any) -> None:
        lane = self._lanes.setdefault(entry.lane_key, Lane(None))
        entry.behind, lane.first = lane.first, entry
        lane.last = lane.last or entry
        lane.length += 1
        self.waiting += 1
        if self._arrivals is not None:
            self._arrivals[entry] = None

    monkeypatch.setattr(Lanes, "wait", wait)


@mutant("order|idle: a flush", kind="keys", policy="skip", prefix_safe=True, adaptive=None)
def what_is_put_back_goes_to_the_end_of_its_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Returned items are put behind later ones."""

    def put_back(self: Lanes[Any], key: Any, entries: Any) -> None:
        for entry in entries:
            self.wait(entry)

    monkeypatch.setattr(Lanes, "put_back", put_back)


@mutant("a flush says|idle: a flush", kind="keys", prefix_safe=False, overflow="block")
def a_fence_leaves_out_the_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The era ends for the open batch only, so a flush returns too early."""
    monkeypatch.setattr(Eras, "end", lambda self, era, reason, waiting: None)


@mutant(
    "parked",
    kind="keys",
    policy="park",
    stack="bare",
    pattern=TWO_KEYS,
    patience=80,
    buries=0.0,
    default=REFUSES,
)
def a_parked_key_has_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane never spills."""
    monkeypatch.setattr(Parking, "look_at", lambda self, key, lane: None)


@mutant(
    "parked",
    kind="keys",
    policy="park",
    stack="bare",
    pattern=TWO_KEYS,
    patience=80,
    buries=0.0,
    default=REFUSES,
)
def a_parked_key_spills_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items that arrive during a spill or afterwards are not checked."""
    real = Parking.next
    spilled: set[Any] = set()

    def next_(self: Parking, lanes: Any) -> Any:
        found = real(self, lanes)
        if found is None or (id(self), found[0]) in spilled:
            return None
        spilled.add((id(self), found[0]))
        return found

    monkeypatch.setattr(Parking, "next", next_)


@mutant(
    "parked",
    kind="both",
    policy="park",
    stack="bare",
    pattern=TWO_TENANTS,
    patience=80,
    buries=0.0,
    default=REFUSES,
)
def tenants_share_what_spills(monkeypatch: pytest.MonkeyPatch) -> None:
    """Overfull lanes are listed for all tenants together, and the first tenant that checks removes
    them all.
    """
    shared: dict[int, Parking] = {}
    real = Batcher._new_dispatcher

    def new_dispatcher(self: Batcher[Any]) -> Any:
        shared.clear()
        return real(self)

    monkeypatch.setattr(Batcher, "_new_dispatcher", new_dispatcher)
    monkeypatch.setattr(
        "sluicegate.batcher.gathering.make.Parking",
        lambda policy, most: shared.setdefault(most, Parking(policy, most)),
    )


@mutant("stopped", kind="keys", policy="pause")
def a_key_goes_on_behind_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later items of the key are sent whatever the policy."""
    monkeypatch.setattr(Bookkeeper, "stopping", lambda self, flight, indices, outcome: ())


@mutant(
    "stopped",
    kind="keys",
    policy="fail",
    stack="bare",
    pattern=TWO_KEYS,
    patience=80,
    default=REFUSES,
)
def what_is_inside_of_a_failed_key_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The items stay as if the key were paused."""
    monkeypatch.setattr(Parking, "fails", property(lambda self: False))


@mutant(
    "stopped",
    kind="keys",
    policy="pause",
    stack="bare",
    pattern=TWO_KEYS,
    patience=80,
    default=REFUSES,
)
def a_key_that_is_let_go_leaves_its_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is reported as released but stays held."""
    monkeypatch.setattr(KeyHolds, "let_go", lambda self, key, now: 0)


@mutant(
    "order",
    kind="keys",
    policy="skip",
    stack="retry",
    default=Act("partial", which=frozenset({0})),
    pattern=((0, 0),),
    spare=12,
)
def what_is_handed_back_stops_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later items of its key are sent although it is unsent."""
    monkeypatch.setattr(KeyHolds, "stop", lambda self, batch, indices: None)


# -- tenants ---------------------------------------------------------------------------------------


@mutant("mixed", kind="tenants", cap_items=None, cap_bytes=None)
def tenants_share_an_open_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """An open batch accepts items of all tenants."""
    real = TenantGatherer.queue

    def queue(self: TenantGatherer[Any], key: Any) -> Any:
        opened = (one for one in self.queues() if one.gatherer.snapshot().open_items)
        return next(opened, None) or real(self, key)

    monkeypatch.setattr(TenantGatherer, "queue", queue)


@mutant("order|a batch out of order", kind="tenants", workers=1)
def closed_batches_go_last_in_first_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest sealed batch of a tenant is taken first."""
    real = PlainGatherer.take

    def take(self: PlainGatherer[Any], now: float) -> Any:
        self._queue.batches.rotate(1)
        return real(self, now)

    monkeypatch.setattr(PlainGatherer, "take", take)


@mutant("cap", kind="tenants", cap_items=3, overflow="block")
def a_cap_counts_what_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items in flight or in backoff do not count."""
    real = TenantGatherer.take

    def take(self: TenantGatherer[Any], now: float) -> Any:
        batch: Any = real(self, now)
        if batch is not None:
            batch.owner.ledger.landed(len(batch.items), 0)
        return batch

    real_done = TenantGatherer.done

    def done(self: TenantGatherer[Any], batch: Any, ended: Any = None, back: Any = ()) -> Any:
        if ended is None:
            batch.owner.ledger.landed(-len(batch.items), 0)
        return real_done(self, batch, ended, back)

    monkeypatch.setattr(TenantGatherer, "take", take)
    monkeypatch.setattr(TenantGatherer, "done", done)


@mutant("idle|left: tenants", kind="tenants", cap_items=3, overflow="drop_oldest")
def a_cap_is_not_given_back_by_what_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a tenant's part shrinks permanently."""
    real = TenantGatherer.evict_from

    def evict_from(self: TenantGatherer[Any], queue: Any) -> Any:
        evicted = real(self, queue)
        if evicted is not None:
            queue.ledger.in_flight += 1
        return evicted

    monkeypatch.setattr(TenantGatherer, "evict_from", evict_from)


@mutant("idle|the shutdown waits", kind="tenants", cap_items=3, overflow="block")
def room_of_a_tenant_comes_free_and_nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its waiters wait forever."""

    monkeypatch.setattr(TenantQueue, "grant", lambda self, now: None)


@mutant(
    "starved",
    kind="tenants",
    workers=2,
    max_items=1,
    spare=12,
    sized=False,
    adaptive=None,
    stack="bare",
    weights=(1.0, 1.0, 1.0),
    patience=80,
)
def a_turn_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credit is renewed before it is used up: a tenant keeps its turn while it has something to
    send.
    """
    real = Turns.first

    def first(self: Turns[Any], quantum: float) -> Any:
        if self._ring:
            self._credit[next(iter(self._ring))] = quantum + 1
        return real(self, quantum)

    monkeypatch.setattr(Turns, "first", first)


@mutant("exclusive", kind="tenants", workers=1)
def a_tenant_has_two_batches_in_flight_with_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is sent while the first backs off."""
    monkeypatch.setattr(TenantGatherer, "_is_busy", lambda self, queue: False)


@mutant("left: tenants", kind="tenants")
def an_idle_tenant_keeps_its_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of all past tenants remain."""
    monkeypatch.setattr(TenantGatherer, "forget", lambda self, queue: None)


# -- adaptive control ------------------------------------------------------------------------------


@mutant(
    "idle|left: -?[0-9]+ slots",
    kind="keys",
    workers=4,
    stack="bare",
    overflow="block",
    patience=80,
    default=THROTTLES,
    adaptive=Adaptive(min_items=1, start_workers=4),
)
def a_slot_leaks_when_the_limit_has_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flight that ends above the new limit releases nothing."""

    def give(self: FifoSlots) -> None:
        if self.used <= self.limit:
            self.used -= 1

    monkeypatch.setattr(FifoSlots, "give", give)


@mutant(
    "exclusive|order",
    kind="keys",
    prefix_safe=True,
    adaptive=Adaptive(min_items=1, start_workers=2),
    workers=2,
    max_items=4,
    spare=12,
    stack="bare",
    overflow="block",
    crash=False,
    patience=80,
    policy="skip",
    pattern=TWO_KEYS,
    default=THROTTLES,
)
def a_batch_is_cut_through_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the size has shrunk, the parts of a larger sealed batch share a key."""

    def cut(self: KeyedGatherer[Any], batch: Any, at: int) -> Any:
        self._queue.batches.appendleft(batch.pick(range(at, len(batch.items))))
        return batch.pick(range(at))

    monkeypatch.setattr(KeyedGatherer, "_cut", cut)
