"""The way of records through a part, as boxes of a picture. Pure.

A box is busy if it holds something, and in trouble if nothing moves: blocked, backing off,
unavailable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..batcher.report import Stats
from ..consumer.operating.stats import ConsumerStats
from ..flow.pipe import PipeStats

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Box(NamedTuple):
    """A station, and its numbers."""

    title: str
    lines: tuple[str, ...]
    state: str = "idle"
    """`idle`, `busy` or `trouble`."""

    @property
    def text(self) -> str:
        """The box in words."""
        return f"{self.title}: {', '.join(self.lines)}"


def picture_of(stats: object) -> list[Box]:
    """Return the boxes of a part, in the order of the flow."""
    if isinstance(stats, PipeStats):
        *consumer, _ = _consumer(stats.source)  # the batcher takes the place of the handlers
        _, *batcher = _batcher(stats.batcher)
        return [*consumer, *batcher]
    if isinstance(stats, ConsumerStats):
        return [*_consumer(stats)]
    return [*_batcher(stats)] if isinstance(stats, Stats) else []


def _consumer(stats: ConsumerStats) -> Iterator[Box]:
    inside, done = stats.in_flight, stats.counts
    waiting = inside.ready + inside.waiting
    source = {
        "partition{s}": len(stats.partitions),
        "paused": sum(each.is_paused for each in stats.partitions.values()),
        "commit{s}": stats.commits,
        "failed commit{s}": stats.commit_failures,
    }
    yield _box("Source", source, trouble=stats.is_stalled)
    lanes = {
        "queued": waiting,
        "backing off": inside.backing_off,
        "blocked": inside.blocked,
        "parked key{s}": stats.parked_keys,
    }
    yield _box("Lanes", lanes, busy=waiting, trouble=inside.blocked + inside.backing_off)
    handlers = {
        "running": inside.running,
        "acknowledged": done.acked,
        "failed attempt{s}": done.naks,
        "dead letter{s}": done.dead_lettered,
    }
    yield _box("Handlers", handlers, busy=inside.running)


def _batcher(stats: Stats) -> Iterator[Box]:
    tally, waiting = stats.tally, stats.waiting_producers
    producers = {"accepted": tally.accepted, "refused": tally.refused, "waiting": waiting}
    yield _box("Producers", producers, busy=waiting)
    batcher = {
        "in the open batch": stats.open_items,
        "sealed batch{es}": stats.sealed_batches,
        "item{s} queued": tally.queued,
        "held key{s}": stats.held_keys,
    }
    yield _box("Batcher", batcher, busy=tally.queued, trouble=stats.held_keys)
    sink = {
        "batch{es} in flight": stats.in_flight_batches,
        "backing off": stats.backing_off_batches,
        "item{s} safe": tally.flushed_ok,
        "failed": tally.flushed_fail + tally.unsent + tally.dropped,
    }
    trouble = stats.backing_off_batches + (stats.destination.state != "available")
    yield _box("Sink", sink, busy=stats.in_flight_batches, trouble=trouble)


def _box(title: str, numbers: Mapping[str, int], *, busy: int = 0, trouble: int = 0) -> Box:
    state = "trouble" if trouble else "busy" if busy else "idle"
    lines = [
        f"{number:,} {what.format(s='s' * (number != 1), es='es' * (number != 1))}"
        for what, number in numbers.items()
    ]
    return Box(title, tuple(lines), state)


def state_of(stats: object) -> str:
    """Return a word for the state of a part; `stats` is `None` if it is not open."""
    if isinstance(stats, PipeStats):
        stats = stats.source
    if isinstance(stats, ConsumerStats):
        if stats.is_stalled:
            return "stalled"
        if stats.partitions and all(each.is_paused for each in stats.partitions.values()):
            return "paused"
        return stats.state if stats.is_ready or stats.state != "running" else "not ready"
    if isinstance(stats, Stats):
        is_open = stats.state == "open" and stats.destination.state != "available"
        return stats.destination.state if is_open else stats.state
    return "not open"
