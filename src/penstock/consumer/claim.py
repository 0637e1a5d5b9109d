"""A claim: one assignment of one partition to this process.

1. A claim is *open*, then *closing* (its records are neither taken in nor started), then *closed*.
   It never opens again: when the partition returns, that is another claim.
2. What is settled is settled in its tracker. A closed claim never commits, so what is settled in it
   after its end has no effect.
3. With a source that settles each record by itself, a claim remembers which settled records it has
   told, and makes no maps.
4. Attempts are counted per delivery index, and only for messages that failed: a message that
   succeeds at once costs nothing here.
5. Where state is stored with the position, the state says how far the position may go, and there is
   no map: events beyond the position run again.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from heapq import merge
from typing import TYPE_CHECKING, Any, Protocol

from .._core.source import Position, Settled
from . import offset_map
from .tracker import Tracker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .._core.order.lanes import Lanes
    from .._core.source import SourceRecord, TopicPartition
    from .results import Result


class Desk(Protocol):
    """Where a message is settled from outside its handler."""

    def settle(self, message: Any, result: Result) -> bool:
        """Settle a message whose handler answered `Manual`; return whether that has an effect."""
        ...

    def in_progress(self, message: Any) -> None:
        """Begin the handler's timeout, and the source's, again."""


class StateOfClaim(Protocol):
    """What is stored together with the position of a claim."""

    def bound(self, offset: int) -> int:
        """The last position up to `offset` that can be stored."""
        ...

    def owes(self, offset: int) -> bool:
        """Whether something waits to be stored with this position."""
        ...


@dataclass(frozen=True, slots=True)
class Attempts:
    """The failed tries of one message. Times are the clock's monotonic seconds."""

    failed: int = 0
    """All failed tries."""
    counted: int = 0
    """Those that use up the policy's attempts."""
    first_at: float = 0.0
    outage_since: float | None = None
    """The first of the uninterrupted uncounted failures."""
    outages: float = 0.0
    """Seconds of uninterrupted uncounted failures that are over."""
    error: BaseException | None = None
    """The error of the last try."""
    batch_limit: int = 0
    """The most messages of the next batch with this one, after a batch of more failed; 0: any."""

    def and_one(self, now: float, error: BaseException, *, counts: bool) -> Attempts:
        """These and one more, which failed with `error` now."""
        since = self.outage_since
        over = now - since if counts and since is not None else 0.0
        return replace(
            self,
            failed=self.failed + 1,
            counted=self.counted + counts,
            first_at=self.first_at if self.failed else now,
            outage_since=None if counts else now if since is None else since,
            outages=self.outages + over,
            error=error,
        )


NEVER_FAILED = Attempts()


class Claim:
    """The progress of one assignment: which records are settled, and which were before it."""

    __slots__ = (
        "_state",
        "attempts",
        "committed",
        "desk",
        "is_closed",
        "is_closing",
        "is_cut",
        "is_paused",
        "lanes",
        "number",
        "partition",
        "redelivered",
        "replay",
        "start",
        "tracker",
    )

    def __init__(
        self,
        partition: TopicPartition,
        number: int,
        start: Position,
        lanes: Lanes[Any],
        desk: Desk,
        *,
        tells_each: bool = False,
    ) -> None:
        self.partition = partition
        self.number = number
        """Increases over all claims of the process."""
        self.start = start
        self.lanes = lanes
        """The lanes of the claim's scope, which other claims may share."""
        self.desk = desk
        self.tracker = Tracker(start.offset, tells_each=tells_each)
        self.attempts: dict[int, Attempts] = {}
        self.committed = start
        self.is_cut = False
        """Whether the last map did not fit, and was cut."""
        self.is_closed = self.is_closing = self.is_paused = False
        self.redelivered = 0
        self.replay = self._replay(start)
        self._state: StateOfClaim | None = None

    def _replay(self, start: Position) -> Replayed:
        try:
            return Replayed(offset_map.decode(start.offset, start.metadata))
        except offset_map.ForeignMap as error:
            return Replayed([], foreign=error)

    @property
    def foreign(self) -> Exception | None:
        """Why the stored map could not be read; its records run again."""
        return self.replay.foreign

    def keep_with(self, state: StateOfClaim) -> None:
        """Store this state together with the position."""
        self._state = state

    def owes(self, position: Position) -> bool:
        """Whether a commit of this position stores something new."""
        state = self._state
        return position != self.committed or (state is not None and state.owes(position.offset))

    def pause(self, *, paused: bool) -> None:
        """Stop or continue fetching from it."""
        self.is_paused = paused

    def close(self) -> None:
        """Stop taking records in; what is running may still be settled and committed."""
        self.is_closing = True

    def end(self) -> None:
        """End the claim: nothing of it is committed any more."""
        self.is_closing = self.is_closed = True

    def has_failed(self, tries: int, now: float) -> None:
        """Count these failed tries of the next record, made in earlier claims."""
        self.attempts[self.tracker.next_index] = Attempts(tries, tries, now)

    def limit_batch(self, index: int, most: int) -> None:
        """Try a message in a batch of at most this many messages from now on."""
        tries = self.attempts.get(index, NEVER_FAILED)
        self.attempts[index] = replace(tries, batch_limit=most)

    def settled(self, index: int) -> bool:
        """Settle a message; return whether that has an effect."""
        if self.is_closed:
            return False
        if self.attempts:
            self.attempts.pop(index, None)
        return self.tracker.done(index)

    def settled_unhandled(self, index: int) -> bool:
        """Settle a message that was not handled; return whether that has an effect."""
        if not self.is_closed:
            self.tracker.give_up(index)
        return self.settled(index)

    def take_settled(self) -> Settled:
        """The records that were settled since the last call."""
        offsets, given_up = self.tracker.take_settled()
        return Settled(offsets, given_up)

    @property
    def has_news(self) -> bool:
        """Whether something is settled that the source has not been told."""
        return self.tracker.has_untold if self.tracker.tells_each else self.has_moved

    def pass_settled(self, offset: int, least: int) -> int:
        """The end of the span at `offset` that was settled before, if it is long enough to skip."""
        return self.replay.pass_span(offset, least)

    def advance(self, offset: int) -> None:
        """Everything before this offset has been delivered, has no record, or was passed."""
        self.replay.count_passed(offset)
        self.tracker.advance(offset)

    @property
    def has_moved(self) -> bool:
        """Whether the position, without its map, is not stored yet."""
        return self.tracker.seen_position() != self.committed.offset

    def snapshot(self) -> Position:
        """Position and map of this instant."""
        if self.tracker.tells_each:
            return Position(self.tracker.seen_position())
        if self._state is not None:
            return Position(self._state.bound(self.tracker.position()))
        return self._position(self.tracker.position(), self.tracker.done_ranges())

    def snapshot_through(self, index: int, count: int) -> Position:
        """Position and map as they are once every message up to this one is settled.

        Raises `ValueError` unless `count` messages are left up to there.
        """
        tracker = self.tracker
        if (left := tracker.unfinished_through(index)) != count:
            raise ValueError(f"{self!r}: {left} messages are left up to {index}, not {count}")
        return self._position(tracker.position_through(index), tracker.done_ranges(index))

    def _position(self, position: int, ranges: Iterator[tuple[int, int]]) -> Position:
        done = self.replay.with_passed(position, ranges)
        rest = self.replay.beyond(self.tracker.next_offset)
        encoded = offset_map.encode(position, offset_map.joined(done, rest))
        self.is_cut = encoded.cut
        return Position(position, encoded.text)

    def stored(self, position: Position) -> None:
        """Note a position that the source has stored."""
        self.committed = position

    def new_of(self, records: Sequence[SourceRecord]) -> Sequence[SourceRecord]:
        """Those that were not delivered before; a source may deliver some again."""
        known = self.tracker.next_offset
        if not records or records[0].offset >= known:
            return records
        fresh = [record for record in records if record.offset >= known]
        self.redelivered += len(records) - len(fresh)
        return fresh

    def unsettled(
        self, records: Sequence[SourceRecord], sizes: Sequence[int], indices: Sequence[int]
    ) -> tuple[list[SourceRecord], list[int], list[int]]:
        """What an earlier claim has not settled; the rest is settled at once."""
        left: list[tuple[SourceRecord, int, int]] = []
        for record, size, index in zip(records, sizes, indices, strict=True):
            if self.replay.skips(record.offset):
                self.tracker.done(index)
            else:
                left.append((record, size, index))
        return [each[0] for each in left], [each[1] for each in left], [each[2] for each in left]

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "closing" if self.is_closing else "open"
        return f"Claim({self.partition}, number={self.number}, {state})"


class Replayed:
    """The records that were settled in an earlier claim, by its map, and what was replayed."""

    __slots__ = (
        "_at",
        "_counted",
        "_passed",
        "_ranges",
        "end",
        "foreign",
        "passed",
        "replayed",
        "skipped",
    )

    def __init__(self, ranges: list[tuple[int, int]], *, foreign: Exception | None = None) -> None:
        self._ranges = ranges
        self.foreign = foreign
        """Why the map could not be read."""
        self._at = 0
        self._passed: list[tuple[int, int]] = []
        self._counted = 0
        self.end = ranges[-1][1] if ranges else 0
        """The offset after the last settled record; nothing is skipped from there on."""
        self.skipped = 0
        """The settled records that were delivered again."""
        self.passed = 0
        """The offsets of settled spans that were passed without a delivery."""
        self.replayed = 0
        """The records before `end` that run again."""

    def skips(self, offset: int) -> bool:
        """Whether the record of this offset was settled. Offsets must not decrease."""
        ranges, at = self._ranges, self._at
        while at < len(ranges) and ranges[at][1] <= offset:
            at += 1
        self._at = at
        is_settled = at < len(ranges) and ranges[at][0] <= offset
        if is_settled:
            self.skipped += 1
        elif offset < self.end:
            self.replayed += 1
        return is_settled

    def beyond(self, offset: int) -> Iterator[tuple[int, int]]:
        """The settled ranges from `offset` on."""
        if offset < self.end:
            for start, end in self._ranges:
                if end > offset:
                    yield max(start, offset), end

    def pass_span(self, offset: int, least: int) -> int:
        """The end of the settled span at `offset`, noted as passed, if `least` are left of it;
        otherwise `offset`.
        """
        if offset >= self.end:
            return offset
        at = bisect_right(self._ranges, (offset, self.end)) - 1
        end = self._ranges[at][1] if at >= 0 else offset
        if end - offset < least:
            return offset
        self._passed.append((offset, end))
        return end

    def count_passed(self, offset: int) -> None:
        """Count the passed spans before this offset, which have been taken in."""
        while self._counted < len(self._passed) and self._passed[self._counted][1] <= offset:
            start, end = self._passed[self._counted]
            self.passed += end - start
            self._counted += 1

    def with_passed(
        self, position: int, done: Iterator[tuple[int, int]]
    ) -> Iterable[tuple[int, int]]:
        """Settled ranges together with the spans behind `position` that were passed."""
        if not self._passed:
            return done
        return merge(
            done, [(max(start, position), end) for start, end in self._passed if end > position]
        )
