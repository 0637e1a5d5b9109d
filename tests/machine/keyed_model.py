"""The laws for keys and tenants. Each complaint begins with the name of its law, so that planted
bugs can be distinguished.

White box: the inside of the batcher.

- `exclusive`: a key (without keys and with one worker: a tenant) is in one flight at a time.
- `order`: items of a key are settled in the order of their acceptance, and so are first sends,
  drops, dead letters and returns.
- `stopped`: behind a permanently failed item, its key follows its policy.
- `parked`: a parked key holds no more than its limit.
- `mixed`: a batch belongs to one tenant.
- `cap`: a tenant has no more inside than its limit.
- `starved`: a tenant that can send is passed over for at most one turn of each other tenant.
- `idle`: no item that can be sent waits while a worker is free.
- `vain`: nothing is dropped for an item that is not accepted.
- `left`: nothing remains of keys and tenants that are gone.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.machine.destination import Destination, Write
from tests.machine.model import Model, Watch

from sluicegate import Capabilities, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.machine.keyed_setting import KeyedSetting
    from tests.machine.model import Producer

    from sluicegate import Batch
    from sluicegate.batcher.report import Stats

Line = tuple[int | None, int | None]


class KeyedDestination(Destination):
    """Checks that no line is in two writes; it can be safe for prefixes as a whole."""

    model: KeyedModel
    capabilities: Capabilities

    def check(self, write: Write) -> None:
        super().check(write)
        lines = self.model.lines(write.items)
        for other in self.writes:
            if (
                other is not write
                and other.told == "running"
                and lines & self.model.lines(other.items)
            ):
                self.model.broken.append(
                    f"exclusive: {write.items} are written beside {other.items}"
                )

    def reached(self, batch: Batch[int], indices: Sequence[int]) -> Sequence[int]:
        """If it is safe for prefixes, items behind another one are not reached."""
        setting = self.model.setting
        if not setting.prefix_safe:
            return indices
        reached: list[int] = []
        failed: set[Line | None] = set()
        for index, item in enumerate(batch):
            line = setting.line(item)
            if index in indices and line not in failed:
                reached.append(index)
            else:
                failed.add(line)
        return reached


class KeyedWatch(Watch):
    """Records the events of keys and tenants."""

    def __init__(self, model: KeyedModel) -> None:
        super().__init__(model)
        self._keyed = model

    def on_sealed(self, batch: Batch[Any]) -> None:
        self._keyed.in_a_call = True
        self._keyed.launched(batch)
        self._keyed.check_law()
        self._keyed.in_a_call = False

    def on_outcome(self, batch: Batch[Any], outcome: Outcome, indices: Sequence[int]) -> None:
        super().on_outcome(batch, outcome, indices)
        self._keyed.settled([batch[index] for index in indices], outcome)

    def on_flushed(
        self, batch: Batch[Any], seconds: float, errors: Mapping[int, BaseException]
    ) -> None:
        self._keyed.landed(batch)

    def on_dropped(self, name: str, items: Sequence[Any], reason: str) -> None:
        model = self._keyed
        older = [item for item in items if item in model.place]
        for item in older:
            left = [
                other
                for other in model.queued()
                if other not in older and model.queue_of(other) == model.queue_of(item)
            ]
            if left and model.place[left[0]] < model.place[item]:
                model.broken.append(f"order: dropped {item}, and not {left[0]}, which is older")
        if model.evicted and not older:
            model.broken.append(f"vain: dropped {items} all the same, so {model.evicted} in vain")
        model.evicted = older
        for item in items:
            model.end(item, Outcome.DROPPED)
        model.check_law()


@dataclass(eq=False, kw_only=True)
class KeyedModel(Model):
    """A line is a unit of ordering: a key, a tenant's key, or a tenant."""

    setting: KeyedSetting
    destination: Destination
    in_a_call: bool = False
    """Whether the batcher is inside a step: it reports items dropped in the step last."""
    flights: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """Batches whose write has not ended."""
    came_at: dict[int, float] = field(default_factory=dict[int, float])
    last: dict[Line, int] = field(default_factory=dict[Line, int])
    """The place of the last settled item, by line."""
    sent: set[int] = field(default_factory=set[int])
    sent_last: dict[Line, int] = field(default_factory=dict[Line, int])
    stopped: set[Line] = field(default_factory=set["Line"])
    """Lines with a permanently failed item that have not been released since."""
    spilled: set[int] = field(default_factory=set[int])
    passed: dict[int, dict[int, int]] = field(default_factory=dict[int, dict[int, int]])
    """The amount that each other tenant has sent since this one was able to send."""

    # -- the present state -------------------------------------------------------------------------

    def lines(self, items: Sequence[int]) -> set[Line]:
        """The lines of some items."""
        return {line for item in items if (line := self.setting.line(item)) is not None}

    def queue_of(self, item: int) -> Line | None:
        """The queue in which an item waits."""
        return self.setting.line(item) or (self.setting.tenant(item), None)

    def aside(self) -> set[int]:
        """The items that a shutdown keeps for its last resort."""
        return {leftover.item for leftover in self.batcher._dispatcher.books.held or ()}

    def queued(self) -> list[int]:
        aside = self.aside()
        return [item for item in super().queued() if item not in aside]

    def queued_of(self, line: Line) -> list[int]:
        """The items of one line that no worker has taken."""
        return [item for item in self.queued() if self.setting.line(item) == line]

    def flying(self, line: Line) -> bool:
        """Whether a flight contains an item of this line, whatever its outcome."""
        return any(line in self.lines(items) for items in self.flights.values())

    def _is_free(self, line: Line) -> bool:
        """Whether the next item of a line can certainly be sent: none is in flight, or those in
        flight were settled before their flight backed off.
        """
        resting = {
            flight.batch.id: flight.backing_off
            and flight.cut_cause is None
            and self.setting.has_keys
            for flight in self.batcher._dispatcher.flights
        }
        for name, items in self.flights.items():
            own = [item for item in items if self.setting.line(item) == line]
            if own and not (resting.get(name) and all(item in self.outcomes for item in own)):
                return False
        return True

    def runnable(self) -> list[int]:
        """The items that a worker could send, oldest first."""
        found: list[int] = []
        seen: set[Line] = set()
        back = [
            *self.aside(),
            *(item for item, outcome in self.outcomes.items() if outcome is Outcome.UNSENT),
        ]
        held = self.stopped | (self.lines(back) if self.setting.has_keys else set())
        for item in sorted(self.queued(), key=self.place.__getitem__):
            line = self.setting.line(item)
            if line is not None:
                if line in held or not self._is_free(line):
                    continue
                if line in seen and self.setting.has_keys and not self.setting.prefix_safe:
                    continue
                seen.add(line)
            found.append(item)
        return found

    # -- events ------------------------------------------------------------------------------------

    def accept(self, items: Sequence[int]) -> None:
        super().accept(items)
        self.came_at.update(dict.fromkeys(items, self.batcher._dispatcher.clock.now()))

    def launched(self, batch: Batch[Any]) -> None:
        """A worker took a batch."""
        setting, items = self.setting, tuple(batch)
        if setting.has_tenants and {setting.tenant(item) for item in items} != {batch.tenant}:
            self.broken.append(f"mixed: {items} in a batch of tenant {batch.tenant}")
        if setting.has_keys and list(batch.keys or ()) != [setting.key(item) for item in items]:
            self.broken.append(f"mixed: {batch.keys} are not the keys of {items}")
        aside = self.aside()
        busy = [
            item
            for other in self.flights.values()
            for item in other
            if item not in self.outcomes and item not in aside
        ]
        for line in self.lines(items):
            own = [item for item in items if setting.line(item) == line]
            if any(setting.line(item) == line for item in busy):
                self.broken.append(
                    f"exclusive: {own} go, and others of their line are on their way: {busy}"
                )
            spills = line in self.stopped and setting.policy == "park"
            if len(own) > 1 and setting.has_keys and not setting.prefix_safe and not spills:
                self.broken.append(
                    f"exclusive: {own} go together to a destination that is not safe for prefixes"
                )
            if line in self.stopped and not spills:
                self.broken.append(f"stopped: {own} go behind one that failed")
            if spills:
                self.spilled.update(own)
            self._check_first_sent(line, own)
        self.flights[batch.id] = items
        self.taken.update(items)
        if setting.has_tenants:
            self._check_turns(
                setting.tenant(items[0]),
                sum(map(self.measure, items)) if setting.sized else len(items),
            )

    def _check_first_sent(self, line: Line, own: Sequence[int]) -> None:
        places = [self.place.get(item, len(self.accepted)) for item in own]
        new = [at for item, at in zip(own, places, strict=True) if item not in self.sent]
        if places != sorted(places) or (new and new[0] < self.sent_last.get(line, -1)):
            self.broken.append(f"order: {own} go after place {self.sent_last.get(line)}")
        self.sent_last[line] = max([self.sent_last.get(line, -1), *new])
        self.sent.update(own)

    def _check_turns(self, tenant: int, amount: int) -> None:
        """Check that a tenant that can send is passed over for at most one turn of each other
        tenant.
        """
        house: Any = self.batcher._dispatcher.gathering.gatherer
        serial = self.setting.workers == 1 and not self.setting.has_keys
        ready = {
            share.tenant
            for share in house.queues()
            if share.gatherer.is_ready and not (serial and share.flying)
        }
        self.passed = {other: self.passed.get(other, {}) for other in ready if other != tenant}
        most = 5 if self.setting.sized else self.setting.max_items
        for other, passed in self.passed.items():
            passed[tenant] = passed.get(tenant, 0) + amount
            if passed[tenant] > 3 * most * self.setting.weight(tenant) + 2 * most:
                self.broken.append(
                    f"starved: tenant {tenant} has sent {passed[tenant]} while tenant {other} "
                    "waited"
                )

    def settled(self, items: Sequence[int], outcome: Outcome) -> None:
        """Items of a batch ended together with this outcome."""
        if not self.setting.has_keys or outcome in {Outcome.UNSENT, Outcome.UNKNOWN}:
            return
        failed = outcome in {Outcome.DEAD_LETTERED, Outcome.REJECTED}
        for item in sorted(items, key=self.place.__getitem__):
            line = self.setting.line(item)
            assert line is not None
            if self.place[item] < self.last.get(line, -1):
                self.broken.append(f"order: item {item} is settled after one that got in later")
            self.last[line] = self.place[item]
            if failed and self.setting.policy != "skip" and item not in self.spilled:
                self.stopped.add(line)
            elif not failed and line in self.stopped:
                self.broken.append(
                    f"stopped: item {item} ended {outcome.value} behind one that failed"
                )

    def landed(self, batch: Batch[Any]) -> None:
        """A write ended. Items without an outcome wait again."""
        items = self.flights.pop(batch.id)
        self.taken.difference_update(item for item in items if item not in self.outcomes)

    def note_rejected(self) -> None:
        """Record items that fail behind their key outside a flight: only their receipts
        report it.
        """
        for item, receipt in self.receipts.items():
            if item not in self.outcomes and receipt.outcome is Outcome.REJECTED:
                if item in self.taken or self.setting.line(item) not in self.stopped:
                    self.broken.append(
                        f"stopped: item {item} was rejected, and its key had not failed"
                    )
                self.end(item, Outcome.REJECTED)

    # -- the laws ----------------------------------------------------------------------------------

    def check_law(self) -> None:
        super().check_law()
        if self.setting.policy == "fail":
            self.note_rejected()
        if self.setting.has_caps and not self.in_a_call:
            self._check_caps()

    def _check_caps(self) -> None:
        inside: dict[int, int] = defaultdict(int)
        size: dict[int, int] = defaultdict(int)
        for item in self.counted():
            inside[self.setting.tenant(item)] += 1
            size[self.setting.tenant(item)] += self.measure(item)
        for most, counts, of in (
            (self.setting.cap_items, inside, "items"),
            (self.setting.cap_bytes, size, "bytes"),
        ):
            for tenant, count in counts.items():
                if most is not None and count > most:
                    self.broken.append(
                        f"cap: tenant {tenant} has {count} {of} inside, and may have {most}"
                    )

    def counted(self) -> set[int]:
        """The items that count for the limits: those inside, and all of each batch in flight, but
        not those that a shutdown keeps for its last resort.
        """
        return {
            *self.inside(),
            *(item for items in self.flights.values() for item in items),
        } - self.aside()

    def check_queue(self) -> None:
        if not self.setting.has_caps:
            super().check_queue()
            return
        waiting = self.waiting()
        if waiting and self._would_fit(waiting[0], waiting[1:]):
            self.broken.append(
                f"idle: {waiting[0].items} wait, and there is room: {self.inside()} inside"
            )

    def _would_fit(self, head: Producer, others: Sequence[Producer]) -> bool:
        """Whether the first waiter fits, even if all other waiters had been granted a part of their
        request, or were before it.

        A waiter for a part of the ledger may reach the whole of it later than some that came later.
        """
        setting, counted = self.setting, self.counted()
        granted = [item for other in others if len(other.items) > 1 for item in other.items]
        for tenant in {setting.tenant(item) for item in head.items}:
            there = [
                item for item in (*counted, *granted, *head.items) if setting.tenant(item) == tenant
            ]
            if setting.cap_items is not None and len(there) > setting.cap_items:
                return False
            if setting.cap_bytes is not None and sum(map(self.measure, there)) > setting.cap_bytes:
                return False
        return all(self._fits_ledger(other.items) for other in (head, *others))

    def _fits_ledger(self, items: Sequence[int]) -> bool:
        inside = [*self.inside(), *items]
        most = self.limits.max_pending_bytes
        return len(inside) <= self.limits.ledger_items and (
            most is None or sum(map(self.measure, inside)) <= most
        )

    def check_idle(self, stats: Stats) -> None:
        """With a free worker, each sendable item waits only for the end of its batch's time."""
        if self.batcher._dispatcher.lifecycle.gave_up:
            return  # the remaining items end without a call
        runnable = self.runnable()
        by_tenant: dict[int | None, list[int]] = defaultdict(list)
        for item in runnable:
            by_tenant[self.setting.tenant(item) if self.setting.has_tenants else None].append(item)
        for items in by_tenant.values():
            assert len(items) < stats.max_items, f"idle: {items} would fill a batch: {stats}"
        now = self.batcher._dispatcher.clock.now()
        for item in runnable:
            age = now - self.came_at[item]
            assert age < self.setting.max_delay, f"idle: item {item} is due: {stats}"
            assert not any(item in fence for fence in self.fences), (
                f"idle: a flush waits for item {item}: {stats}"
            )
        assert not (runnable and self.batcher._dispatcher.ledger.waiting), (
            f"idle: a producer waits, and {runnable} linger: {stats}"
        )
        assert not (runnable and stats.state == "closing"), (
            f"idle: {runnable} linger in a shutdown: {stats}"
        )
        for producer in self.waiting():
            tenants = {self.setting.tenant(item) for item in producer.items}
            lone = (
                len(tenants) == 1
                and self.setting.has_caps
                and not any(tenants & self._tenants(items) for items in self.flights.values())
            )
            assert not (lone and by_tenant.get(next(iter(tenants)))), (
                f"idle: {producer.items} wait for their tenant, whose {by_tenant} linger"
            )
        self._check_stopped(stats)

    def _tenants(self, items: Sequence[int]) -> set[int]:
        return {self.setting.tenant(item) for item in items}

    def _check_stopped(self, stats: Stats) -> None:
        for line in self.stopped if stats.state == "open" else ():
            if self.flying(line):
                continue
            held = self.queued_of(line)
            assert self.setting.policy != "park" or len(held) <= self.setting.most_parked, (
                f"parked: {held} are held: {stats}"
            )
            assert self.setting.policy != "fail" or not held, (
                f"stopped: {held} are inside behind one that failed: {stats}"
            )
        for fence in self.fences if stats.state == "open" else ():
            left = [item for item in fence if item not in self.outcomes]
            moves = [
                item
                for item in left
                if item in self.taken or self.setting.line(item) not in self.stopped
            ]
            assert moves, f"idle: a flush waits for nothing but what is held: {left}"

    def check_ends(self, ends: Mapping[int, Outcome], taken_in: Sequence[int]) -> None:
        """Once an item of a key is returned, so are all later ones that were not dropped."""
        if not self.setting.has_keys:
            return
        back: set[Line] = set()
        for item in self.accepted:
            line = self.setting.line(item)
            assert line is not None
            if ends[item] is Outcome.UNSENT or item in taken_in:
                back.add(line)
            else:
                ended_otherwise = line in back and ends[item] is not Outcome.DROPPED
                assert not ended_otherwise, (
                    f"order: item {item} ended {ends[item].value} behind one that was handed back"
                )

    def check_applied(self) -> None:
        """Check that items applied without doubt were applied in order."""
        first = list(dict.fromkeys(self.destination.applied))
        for line in self.lines(first):
            if line[1] is None:
                # a tenant's batches are in order, but items within a batch may be later than others
                continue
            sure = [
                item
                for item in first
                if self.setting.line(item) == line and not self.destination.may_differ(item)
            ]
            assert sure == sorted(sure, key=self.place.__getitem__), (
                f"order: {sure} were applied in this order"
            )
