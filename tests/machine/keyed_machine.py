"""The machine with keys, tenants and adaptive control. White box: the gatherers of the batcher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from tests.machine.keyed_model import KeyedDestination, KeyedModel, KeyedWatch, Line
from tests.machine.keyed_setting import KeyedSetting, Letters, keyed_settings
from tests.machine.machine import BatcherMachine, measure
from tests.machine.setting import rests

from sluicegate import Capabilities, Receipt, stack
from sluicegate.batcher.gathering.keyed import KeyedGatherer
from sluicegate.batcher.gathering.tenants import TenantGatherer
from sluicegate.errors import KeyFailedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate.batcher.report import Stats


class KeyedMachine(BatcherMachine):
    """The same rules, and the release of stopped keys."""

    @initialize(setting=keyed_settings())
    def open(self, setting: KeyedSetting) -> None:
        self.start(setting)

    def start(self, setting: KeyedSetting) -> None:
        """Open a batcher."""
        self.keyed = setting
        self.letters = Letters(setting.buries or 0.0)
        destination = KeyedDestination(
            default=setting.default,
            workers=setting.workers,
            max_items=setting.max_items,
            total_order=False,
        )
        destination.capabilities = Capabilities(key_prefix_safe=setting.prefix_safe)
        self.lines = destination.model = KeyedModel(
            setting.limits(), measure, setting=setting, destination=destination
        )
        sink = stack(destination, *setting.layers(self.letters))
        self.begin(
            setting, destination, self.lines, sink, KeyedWatch(self.lines), **setting.options()
        )

    # -- producers ---------------------------------------------------------------------------------

    async def put(self, items: tuple[int, ...], timeout: float | None) -> None:
        """If keys may fail, add with receipts: only these report items that were never sent."""
        if self.keyed.policy != "fail":
            await super().put(items, timeout)
            return
        receipts = tuple(Receipt() for _ in items)
        try:
            await self.batcher._intake.add(items, receipts, timeout)
        except KeyFailedError:
            if not self.lines.lines(items) & self.lines.stopped:
                self.lines.broken.append(
                    f"stopped: {items} were refused, and no key of theirs has failed"
                )
            raise
        self.lines.receipts.update(zip(items, receipts, strict=True))

    @property
    def may_try(self) -> bool:
        return bool(self.keyed.policy != "fail")

    # -- keys that were stopped --------------------------------------------------------------------

    @precondition(lambda self: self.lines.stopped)
    @rule(data=st.data(), rest=rests)
    def let_go(self, data: st.DataObject, rest: int | None) -> None:
        line = data.draw(st.sampled_from(sorted(self.lines.stopped, key=repr)))
        self.step(lambda: self._let_go(line), rest)

    def _let_go(self, line: Line) -> None:
        if self.batcher.stats().state != "open" or line not in self.lines.stopped:
            return
        held = self.lines.queued_of(line)
        self.lines.stopped.discard(line)
        tenant, key = line
        whose = {"tenant": tenant} if self.keyed.has_tenants else {}
        count = (self.batcher.unpark if self.keyed.policy == "park" else self.batcher.resume)(
            key, **whose
        )
        if count != len(held):
            self.lines.broken.append(f"stopped: {count} were let go, and {held} were held")

    # -- the laws ----------------------------------------------------------------------------------

    def check_order(self) -> None:
        """Check the order whenever a batch is taken."""

    def is_worker_free(self, stats: Stats) -> bool:
        return stats.in_flight_batches < stats.workers

    def check_idle_worker(self, stats: Stats) -> None:
        self.lines.check_idle(stats)

    def check_open_batch(self, stats: Stats) -> None:
        assert stats.workers <= self.setting.workers
        assert stats.max_items <= self.setting.max_items
        assert self.keyed.has_tenants or stats.open_items < stats.max_items, (
            f"a full batch is open: {stats}"
        )

    def end(self) -> None:
        super().end()
        report = self.batcher.report
        assert report is not None
        self.lines.check_ends(self.ends(report), self.last_resort.taken)
        self.lines.check_applied()
        for line in self.lines.lines(self.letters.items):
            buried = [item for item in self.letters.items if self.keyed.line(item) == line]
            accepted = sorted(buried, key=self.lines.place.__getitem__)
            assert not self.keyed.has_keys or buried == accepted, (
                f"order: {buried} were buried in this order"
            )
        assert self.letters.spilled == self.lines.spilled & set(self.letters.items)
        self._check_left()

    def _check_left(self) -> None:
        dispatcher = self.batcher._dispatcher
        gatherer: Any = dispatcher.gathering.gatherer
        each = [gatherer]
        if isinstance(gatherer, TenantGatherer):
            each = [queue.gatherer for queue in gatherer.queues()]
            idle = [
                queue.tenant
                for queue in gatherer.queues()
                if not queue.held_keys or queue.ledger.inside or queue.ledger.granted
            ]
            assert not idle, f"left: tenants {idle}"
        for part in each:
            if isinstance(part, KeyedGatherer):
                held = {
                    key
                    for key, lane in part._lanes.lanes()
                    if lane.held and not lane.going and not lane.length
                }
                assert part.active == held, f"left: keys {part.active - held}"
        assert dispatcher.slots.used == 0, f"left: {dispatcher.slots.used} slots"
        assert (dispatcher.ledger.waiting, dispatcher.ledger.granted) == (0, 0), (
            f"left: room {dispatcher.ledger.waiting} {dispatcher.ledger.granted}"
        )
        assert dispatcher.ledger.bytes == 0 or self.keyed.last_resort != "none", (
            f"left: {dispatcher.ledger.bytes} bytes"
        )


def narrowed(**fixed: Any) -> type[KeyedMachine]:
    """The machine with some fixed settings."""

    @initialize(setting=keyed_settings(**fixed))
    def narrow(self: KeyedMachine, setting: KeyedSetting) -> None:
        self.start(setting)

    opened: Callable[..., None] = narrow
    return type("KeyedMachine", (KeyedMachine,), {"open": opened})
