"""A claim: one assignment of one partition to this process.

1. A claim is *open*, then *closing* (its records are neither admitted nor started), then *closed*.
   It never reopens: if the partition returns, it gets a new claim.
2. Messages are settled in the claim's tracker. A closed claim never commits, so settling a message
   after the end of its claim has no effect.
3. With a source that settles records individually, a claim tracks which settled records were
   reported, and makes no maps.
4. Attempts are counted per delivery index, and only for messages that have failed: a message that
   succeeds immediately costs nothing here.
5. If state is stored with the position, the state limits the position, and there is no map: events
   beyond the position run again.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from heapq import merge
from typing import TYPE_CHECKING, Any, Protocol

from ..._core.source import Position, Settled
from . import offset_map
from .tracker import Tracker

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from ..._core.order.lanes import Lanes
    from ..._core.source import SourceRecord, TopicPartition
    from ..handling.results import Result
    from .offset_map import ReadsMap


class Owner(Protocol):
    """Interface for settling messages from outside their handlers."""

    def settle(self, message: Any, result: Result) -> bool:
        """Settle a message whose handler returned `Manual`; return whether the call has an
        effect.
        """
        ...

    def in_progress(self, message: Any) -> None:
        """Restart the timeout of the handler, and that of the source."""


class StateOfClaim(Protocol):
    """State stored together with the position of a claim."""

    def bound(self, offset: int) -> int:
        """Return the last position up to `offset` that can be stored."""
        ...

    def owes(self, offset: int) -> bool:
        """Return whether state waits to be stored with this position."""
        ...


@dataclass(frozen=True, slots=True)
class Attempts:
    """Failed attempts of one message. Times are the clock's monotonic seconds."""

    failed: int = 0
    """Number of all failed attempts."""
    counted: int = 0
    """Number of failed attempts that count against the policy's limit."""
    first_at: float = 0.0
    outage_since: float | None = None
    """Time of the first of the uninterrupted uncounted failures."""
    outages: float = 0.0
    """Total duration of earlier series of uncounted failures, in seconds."""
    error: BaseException | None = None
    """The error of the last attempt."""
    batch_limit: int = 0
    """Maximum size of the next batch with this message, after a larger batch failed; 0: no
    limit.
    """

    def and_one(self, now: float, error: BaseException, *, counts: bool) -> Attempts:
        """Return these attempts plus one that failed with `error` now."""
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
    """The progress of one assignment: its settled records, including those settled before it."""

    __slots__ = (
        "_state",
        "attempts",
        "cancelled",
        "committed",
        "is_closed",
        "is_closing",
        "is_cut",
        "is_paused",
        "lanes",
        "number",
        "owner",
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
        owner: Owner,
        *,
        tells_each: bool = False,
        foreign_map: ReadsMap | None = None,
    ) -> None:
        self.partition = partition
        self.number = number
        """Increases across all claims of the process."""
        self.start = start
        self.lanes = lanes
        """The lanes of the claim's scope; other claims may share them."""
        self.owner = owner
        self.tracker = Tracker(start.offset, tells_each=tells_each)
        self.attempts: dict[int, Attempts] = {}
        self.cancelled: Collection[int] = ()
        """Offsets of messages that the source has cancelled."""
        self.committed = start
        self.is_cut = False
        """Whether the last map was too large and was cut."""
        self.is_closed = self.is_closing = self.is_paused = False
        self.redelivered = 0
        self.replay = self._replay(start, foreign_map)
        self._state: StateOfClaim | None = None

    def _replay(self, start: Position, foreign_map: ReadsMap | None) -> Replayed:
        try:
            return Replayed(offset_map.decode(start.offset, start.metadata, foreign_map))
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
        """Return whether a commit of this position would store something new."""
        state = self._state
        return position != self.committed or (state is not None and state.owes(position.offset))

    def cancel(self, offsets: Collection[int]) -> None:
        """Note messages that the source has cancelled."""
        self.cancelled = {*self.cancelled, *offsets}

    def pause(self, *, paused: bool) -> None:
        """Stop or continue fetching from this claim."""
        self.is_paused = paused

    def close(self) -> None:
        """Stop admitting records; running messages may still be settled and committed."""
        self.is_closing = True

    def end(self) -> None:
        """End the claim: from now on none of its positions is committed."""
        self.is_closing = self.is_closed = True

    def count_failures(self, tries: int, now: float) -> None:
        """Count failed attempts of the next record that were made in earlier claims."""
        self.attempts[self.tracker.next_index] = Attempts(tries, tries, now)

    def limit_batch(self, index: int, most: int) -> None:
        """Limit the size of the next batches with this message."""
        tries = self.attempts.get(index, NEVER_FAILED)
        self.attempts[index] = replace(tries, batch_limit=most)

    def settle(self, index: int) -> bool:
        """Settle a message; return whether the call has an effect."""
        if self.is_closed:
            return False
        if self.attempts:
            self.attempts.pop(index, None)
        return self.tracker.done(index)

    def settle_unhandled(self, index: int) -> bool:
        """Settle a message that was not handled; return whether the call has an effect."""
        if not self.is_closed:
            self.tracker.give_up(index)
        return self.settle(index)

    def take_settled(self) -> Settled:
        """Return the records settled since the last call."""
        offsets, given_up = self.tracker.take_settled()
        return Settled(offsets, given_up)

    @property
    def has_news(self) -> bool:
        """Whether a settled record has not been reported to the source."""
        return self.tracker.has_untold if self.tracker.tells_each else self.has_moved

    def pass_settled(self, offset: int, least: int) -> int:
        """Return the end of the span at `offset` that was settled before, if it is long enough to
        skip.
        """
        return self.replay.pass_span(offset, least)

    def advance(self, offset: int) -> None:
        """Record that every offset before this one was delivered, has no record, or was passed
        over.
        """
        self.replay.count_passed(offset)
        self.tracker.advance(offset)

    @property
    def has_moved(self) -> bool:
        """Whether the position, apart from its map, has not been stored yet."""
        return self.tracker.seen_position() != self.committed.offset

    def snapshot(self) -> Position:
        """Return the current position and map."""
        if self.tracker.tells_each:
            return Position(self.tracker.seen_position())
        if self._state is not None:
            return Position(self._state.bound(self.tracker.position()))
        position = self.tracker.position()
        if 1 not in self.tracker.bits and self.replay.end <= position:  # nothing is settled beyond
            self.is_cut = False
            return Position(position)
        return self._position(position, self.tracker.done_ranges())

    def snapshot_through(self, index: int, count: int) -> Position:
        """Return the position and map as if every message up to this one were settled.

        Raises `ValueError` unless exactly `count` messages up to there are unsettled.
        """
        tracker = self.tracker
        if (left := tracker.unfinished_through(index)) != count:
            raise ValueError(f"{self!r}: {left} messages are left up to {index}, not {count}")
        return self._position(tracker.position_through(index), tracker.done_ranges(index))

    def _position(self, position: int, ranges: Iterator[tuple[int, int]]) -> Position:
        done = self.replay.with_passed(position, ranges)
        rest = self.replay.beyond(self.tracker.next_offset)
        encoded = offset_map.encode(position, offset_map.join(done, rest))
        self.is_cut = encoded.cut
        return Position(position, encoded.text)

    def mark_stored(self, position: Position) -> None:
        """Record the position that the source has stored."""
        self.committed = position

    def new_of(self, records: Sequence[SourceRecord]) -> Sequence[SourceRecord]:
        """Return the records that were not delivered before; a source may deliver some again."""
        known = self.tracker.next_offset
        if not records or records[0].offset >= known:
            return records
        fresh = [record for record in records if record.offset >= known]
        self.redelivered += len(records) - len(fresh)
        return fresh

    def unsettled(
        self, records: Sequence[SourceRecord], sizes: Sequence[int], indices: Sequence[int]
    ) -> tuple[list[SourceRecord], list[int], list[int]]:
        """Return the records that no earlier claim has settled; settle the others immediately."""
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
    """Records settled in earlier claims according to the stored map, and the counts of their
    replay.
    """

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
        """The offset after the last settled record; no record is skipped from there on."""
        self.skipped = 0
        """Settled records that were delivered again."""
        self.passed = 0
        """Offsets of settled spans that were passed over without a delivery."""
        self.replayed = 0
        """Records before `end` that run again."""

    def skips(self, offset: int) -> bool:
        """Return whether the record at this offset was settled. Offsets must not decrease."""
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
        """Yield the settled ranges from `offset` on."""
        if offset < self.end:
            for start, end in self._ranges:
                if end > offset:
                    yield max(start, offset), end

    def pass_span(self, offset: int, least: int) -> int:
        """Return the end of the settled span at `offset`, and record it as passed over, if at least
        `least` offsets of it are left; otherwise return `offset`.
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
        """Count the spans passed over before this offset."""
        while self._counted < len(self._passed) and self._passed[self._counted][1] <= offset:
            start, end = self._passed[self._counted]
            self.passed += end - start
            self._counted += 1

    def with_passed(
        self, position: int, done: Iterator[tuple[int, int]]
    ) -> Iterable[tuple[int, int]]:
        """Return the settled ranges merged with the spans beyond `position` that were
        passed over.
        """
        if not self._passed:
            return done
        return merge(
            done, [(max(start, position), end) for start, end in self._passed if end > position]
        )
