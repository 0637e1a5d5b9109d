"""Programs of random calls on a batcher that measures its items.

White box: the clock is read where a gatherer reuses its last time.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from tenant_programs import LookupFailed, Program, Thing, Writes

from sluicegate import Batcher, Limits
from sluicegate.batcher.gathering.keyed import KeyedGatherer

if TYPE_CHECKING:
    from sluicegate import Batch


class SizedWrites(Writes):
    """Logs bytes, too."""

    async def write(self, batch: Batch[Thing]) -> None:
        assert batch.size_bytes == sum(map(size_in, batch))
        self._log.append(("bytes", batch.size_bytes, batch.keys and tuple(batch.keys)))
        await super().write(batch)


def size_in(item: Thing) -> int:
    """The size of an item: sometimes 0, sometimes larger than a batch may be."""
    return (0, 1, 2, 3, 7, 40)[item.number * 7 % 6]


class SizedProgram(Program):
    """Like `Program`, with limits on bytes, and with or without keys."""

    measured = 0
    """Calls of `size_of`."""

    def _made(self) -> Batcher[Thing]:
        rng = self.rng
        size, workers = rng.choice((2, 3, 5, 20)), rng.choice((1, 1, 2, 4))
        given: dict[str, Any] = {}
        if rng.random() < 0.6:
            given["key"] = self._key
            policy = given["on_key_failure"] = rng.choice(("skip", "skip", "pause", "fail"))
            self._names = ["a", 1] if policy == "fail" else self._names
        most = rng.choice((None, 10, 41, 200))
        pending = rng.choice((41, 80, 400)) if most is None or rng.random() < 0.5 else None
        if most is not None and pending is not None:
            pending = max(most, pending)
        batcher = Batcher(
            SizedWrites(self.log, random.Random(2), self.clock, safe=rng.random() < 0.5),
            limits=Limits(
                max_items=size,
                max_bytes=most,
                max_delay=rng.choice((0.5, 2.0)),
                workers=workers,
                max_pending_items=(workers + 1) * size + rng.choice((0, 5, 60)),
                max_pending_bytes=pending,
            ),
            size_of=self._size,
            oversize=rng.choice(("alone", "reject")),
            overflow=rng.choice(("block", "block", "reject", "drop_newest", "drop_oldest")),
            shutdown_deadline=rng.choice((1.0, 60.0)),
            clock=self.clock,
            **given,
        )
        gatherer = batcher._dispatcher.gathering.gatherer
        if isinstance(gatherer, KeyedGatherer):
            self._on_time(gatherer)
        return batcher

    def _on_time(self, gatherer: KeyedGatherer[Thing]) -> None:
        """Read the clock where the gatherer reuses the time of its last call on the slow path."""
        pass_by, done = gatherer.pass_by, gatherer.done

        def timely(call: Any) -> Any:
            def called(*given: Any) -> Any:
                gatherer._now = self.clock.now()
                return call(*given)

            return called

        for name, call in (("pass_by", pass_by), ("done", done)):
            setattr(gatherer, name, timely(call))

    def _size(self, item: Thing) -> Any:
        self.measured += 1
        self._meddle(item)
        if item.fault == "tenant":
            raise LookupFailed(item.number)
        return 2.5 if item.fault == "type" else size_in(item)

    def _meddle(self, item: Thing) -> None:
        """Let the function read and use its own batcher."""
        super()._meddle(item)
        if item.number % 11 == 0 and item.fault != "inner":
            self.batcher.try_add(item._replace(number=-item.number, fault="inner"))

    def _key(self, item: Thing) -> Any:
        return super()._key(item) if item.number % 3 else (1, item.key)

    def look(self, what: str) -> None:
        """Log all counts, and the bytes inside."""
        super().look(what)
        ledger = self.batcher._dispatcher.ledger
        assert ledger.bytes >= ledger.queued_bytes >= 0
        assert bool(ledger.inside) or not ledger.bytes
        self.log.append((ledger.bytes, ledger.queued_bytes, ledger.left_bytes))
