"""Planted bugs in what keys, tenants and adaptive control need, each with the law that has to
speak, and where to look for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.machine.destination import Act

from penstock import Adaptive, Batcher, Reason
from penstock._core.order.lanes import Lane, Lanes
from penstock._core.order.parking import Parking
from penstock.batcher.dispatch import Engine
from penstock.batcher.flight import Flight
from penstock.batcher.gathering.keyed import KeyedAccumulator
from penstock.batcher.gathering.plain import PlainAccumulator
from penstock.batcher.gathering.tenants import TenantAccumulator
from penstock.batcher.slots import FifoSlots

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


@dataclass(frozen=True, slots=True)
class Planted:
    """A bug, and how it is found."""

    plant: Callable[[pytest.MonkeyPatch], None]
    law: str
    """What the complaint begins with; a pattern."""
    where: dict[str, Any]
    """What is fixed in the settings."""


ALL: dict[str, Planted] = {}
TWO_KEYS = ((0, 0), (0, 0), (0, 1))
TWO_TENANTS = ((0, 0), (1, 1), (0, 0), (1, 1))
THROTTLES = Act("fail", seconds=0.3, error="throttled")
REFUSES = Act("partial", error="permanent", which=frozenset({0}))


def mutant(law: str, **where: Any) -> Callable[[Callable[[pytest.MonkeyPatch], None]], None]:
    """Plants itself with `monkeypatch`; its docstring says what goes wrong."""

    def register(plant: Callable[[pytest.MonkeyPatch], None]) -> None:
        ALL[plant.__name__] = Planted(plant, law, where)

    return register


# -- keys ------------------------------------------------------------------------------------------


@mutant("exclusive", kind="keys", stack="retry")
def a_key_is_free_at_its_first_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails clears its batch's keys, though it is tried again."""
    real = Flight.heard

    def heard(self: Flight[Any], errors: Any) -> None:
        real(self, errors)
        engine: Any = self._engine
        engine.accumulator.settled(self.sealed, range(len(self.batch)))

    monkeypatch.setattr(Flight, "heard", heard)


@mutant("exclusive", kind="keys", stack="retry")
def a_key_is_free_while_it_backs_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys of a batch are let go as soon as any of them waits."""

    def backs_off(self: Engine[Any], flight: Any) -> None:
        self.accumulator.settled(flight.sealed, range(len(flight.batch)))

    monkeypatch.setattr(Engine, "backs_off", backs_off)


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
    """Though the write goes on."""
    real = Engine.item_settled

    def item_settled(
        self: Engine[Any], flight: Any, indices: Any, outcome: Any, details: Any
    ) -> None:
        real(self, flight, indices, outcome, details)
        if flight.cut_cause is not None:
            self.accumulator.settled(flight.sealed, indices)

    monkeypatch.setattr(Engine, "item_settled", item_settled)


@mutant("order", kind="keys")
def a_lane_is_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes last goes first."""

    def wait(self: Lanes[Any], entry: Any) -> None:
        lane = self._lanes.setdefault(entry.key, Lane(going=True))
        entry.behind, lane.first = lane.first, entry
        lane.last = lane.last or entry
        lane.length += 1
        self.waiting += 1
        self.waiting_size += entry.size

    monkeypatch.setattr(Lanes, "wait", wait)


@mutant("order", kind="keys", policy="skip", prefix_safe=True, adaptive=None)
def what_is_put_back_goes_to_the_end_of_its_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind what came later."""

    def put_back(self: Lanes[Any], key: Any, entries: Any) -> None:
        for entry in entries:
            self.wait(entry)

    monkeypatch.setattr(Lanes, "put_back", put_back)


@mutant("a flush says|idle: a flush", kind="keys", prefix_safe=False, overflow="block")
def a_fence_leaves_out_the_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The era ends for the open batch only, so a flush returns too early."""
    real = KeyedAccumulator.seal

    def seal(self: KeyedAccumulator[Any], reason: Reason, now: float) -> None:
        if reason is not Reason.MANUAL:
            real(self, reason, now)
            return
        real(self, Reason.PRESSURE, now)
        self.last_number += 1

    monkeypatch.setattr(KeyedAccumulator, "seal", seal)


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
    """What comes while it spills, or after, is not looked at."""
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
    """The lanes that hold too much are listed for all tenants together, and whoever looks first
    strikes them off.
    """
    shared: dict[int, Parking] = {}
    real = Batcher._new_engine

    def new_engine(self: Batcher[Any]) -> Any:
        shared.clear()
        return real(self)

    monkeypatch.setattr(Batcher, "_new_engine", new_engine)
    monkeypatch.setattr(
        "penstock.batcher.gathering.arrange.Parking",
        lambda policy, most: shared.setdefault(most, Parking(policy, most)),
    )


@mutant("stopped", kind="keys", policy="pause")
def a_key_goes_on_behind_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the policy."""
    monkeypatch.setattr(Engine, "_stops_keys", lambda self, flight, outcome: False)


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
    """As if it were paused."""
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
    """It says so, and holds it still."""
    monkeypatch.setattr(KeyedAccumulator, "let_go", lambda self, key, now: 0)


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
    """What comes after it is sent, while it is unsent."""
    monkeypatch.setattr(KeyedAccumulator, "stop", lambda self, batch, indices: None)


# -- tenants ---------------------------------------------------------------------------------------


@mutant("mixed", kind="tenants", cap_items=None, cap_bytes=None)
def tenants_share_an_open_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has one open takes all that comes."""
    real = TenantAccumulator.share

    def share(self: TenantAccumulator[Any], belonging: Any) -> Any:
        opened = (share for share in self._shares.values() if share.accumulator.open_items)
        return next(opened, None) or real(self, belonging)

    monkeypatch.setattr(TenantAccumulator, "share", share)


@mutant("order|a batch out of order", kind="tenants", workers=1)
def closed_batches_go_last_in_first_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest sealed batch of a tenant is taken first."""
    real = PlainAccumulator.take

    def take(self: PlainAccumulator[Any], now: float) -> Any:
        self._sealed.rotate(1)
        return real(self, now)

    monkeypatch.setattr(PlainAccumulator, "take", take)


@mutant("cap", kind="tenants", cap_items=3, overflow="block")
def a_cap_counts_what_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in flight or backs off does not count."""
    real = TenantAccumulator.take

    def take(self: TenantAccumulator[Any], now: float) -> Any:
        batch: Any = real(self, now)
        if batch is not None:
            batch.share.inside -= len(batch.items)
        return batch

    real_done = TenantAccumulator.done

    def done(self: TenantAccumulator[Any], batch: Any, failed: Any) -> None:
        batch.share.inside += len(batch.items)
        real_done(self, batch, failed)

    monkeypatch.setattr(TenantAccumulator, "take", take)
    monkeypatch.setattr(TenantAccumulator, "done", done)


@mutant("idle|left: tenants", kind="tenants", cap_items=3, overflow="drop_oldest")
def a_cap_is_not_given_back_by_what_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a tenant's part shrinks for good."""
    real = TenantAccumulator.evict_from

    def evict_from(self: TenantAccumulator[Any], share: Any) -> Any:
        evicted = real(self, share)
        if evicted is not None:
            share.inside += 1
        return evicted

    monkeypatch.setattr(TenantAccumulator, "evict_from", evict_from)


@mutant("idle|the shutdown waits", kind="tenants", cap_items=3, overflow="block")
def room_of_a_tenant_comes_free_and_nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for it waits for ever."""

    def left(self: TenantAccumulator[Any], share: Any, items: int, size: int) -> None:
        share.inside -= items
        share.room.bytes_inside -= size

    monkeypatch.setattr(TenantAccumulator, "_left", left)


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
    """Credit is given anew before it is used up: whoever has the turn keeps it while it has
    something to send.
    """
    real = TenantAccumulator.take

    def take(self: TenantAccumulator[Any], now: float) -> Any:
        if self._ring:
            next(iter(self._ring)).credit = self.max_items + 1
        return real(self, now)

    monkeypatch.setattr(TenantAccumulator, "take", take)


@mutant("exclusive", kind="tenants", workers=1)
def a_tenant_has_two_batches_in_flight_with_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second goes while the first backs off."""
    real = TenantAccumulator.take

    def take(self: TenantAccumulator[Any], now: float) -> Any:
        self._serial = False
        return real(self, now)

    monkeypatch.setattr(TenantAccumulator, "take", take)


@mutant("left: tenants", kind="tenants")
def an_idle_tenant_keeps_its_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for everybody who ever came."""
    monkeypatch.setattr(TenantAccumulator, "forget", lambda self, share: None)


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
    """What ends above the new limit gives nothing back."""

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
    """When the size has shrunk, the parts of what was sealed larger have a key in common."""

    def cut(self: KeyedAccumulator[Any], batch: Any, at: int) -> Any:
        return self._pick(batch, range(at)), self._pick(batch, range(at, len(batch.items)))

    monkeypatch.setattr(KeyedAccumulator, "_cut", cut)
