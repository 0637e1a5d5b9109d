"""The settled records of one claim (one assignment of one partition), and its position. Pure.

1. A record has an *index*: its place in the order of delivery. Indices have no holes, even if the
   offsets have some (compaction, transaction markers, filtered records).
2. `bits[index - base]` is 1 once the record is settled: one byte for each record from the first
   unfinished one on, none for those before it. Admission and settling are O(1) per record and
   allocate no object.
3. Offsets are stored as runs of consecutive offsets. A run costs 16 bytes, and only a hole starts a
   new one.
4. The position is the offset of the first unfinished record or, without one, the offset after the
   last delivered record. It never moves back, and never passes an unfinished record.
5. For a source that settles records individually, `take_settled` returns the records settled since
   the last call, and only this call releases memory. The byte of a reported record is 2.
6. A record is settled once. Its byte is gone when `base` has passed it, and a negative subscript
   would settle another record. `done` guards against both. Code with its own guard against a second
   settle may write `bits` directly after checking `index >= base`, in 35 ns instead of 80.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


_UNTOLD = re.compile(b"\x01+")
_TOLD = b"\x02"


class Tracker:
    """The settled records of a claim, by delivery index, and the position to commit.

    `start` is the first offset that may be delivered, usually the committed one. With `tells_each`,
    only `take_settled` releases memory, and `position` is not used.

    A commit needs no version. `settled` only grows, so a committer that stores `settled` and
    `position()` of its last commit has nothing to encode or send while both are unchanged.
    """

    __slots__ = (
        "_firsts",
        "_given_up",
        "_starts",
        "base",
        "bits",
        "next_index",
        "next_offset",
        "tells_each",
    )

    def __init__(self, start: int, *, tells_each: bool = False) -> None:
        self.tells_each = tells_each
        self.bits = bytearray()
        """0 for each unfinished record from index `base` on; 1 or 2 for each settled one."""
        self.base = 0
        """Index of the first byte of `bits`; all records before it are settled."""
        self.next_index = 0
        """Index of the next record to be delivered."""
        self.next_offset = start
        """Lowest offset that the next record may have."""
        self._starts = array("q")  # first index of each run of consecutive offsets
        self._firsts = array("q")  # first offset of each run
        self._given_up: set[int] = set()

    def __repr__(self) -> str:
        return f"<Tracker base={self.base} span={self.span} next_offset={self.next_offset}>"

    def admit(
        self,
        first: int,
        last: int,
        count: int,
        offsets: Callable[[], Iterable[int]] | None = None,
    ) -> int:
        """Add `count` delivered records, from offset `first` to offset `last`, and return the index
        of the first one. The others follow it.

        `offsets` returns the offset of each record, and is called only if there are holes between
        `first` and `last`. Raises `ValueError`, and changes nothing, if offsets do not increase
        strictly, if `first` is below `next_offset`, or if there are not exactly `count` offsets
        from `first` to `last`.
        """
        if count < 1 or first < self.next_offset or last - first + 1 < count:
            message = f"{count} records from {first} to {last}, behind {self.next_offset}"
            raise ValueError(message)
        index = self.next_index
        if last - first + 1 == count:
            starts, firsts = [index], [first]
        else:
            starts, firsts = _runs(index, first, last, count, offsets)
        if self._starts and first - self._firsts[-1] == index - self._starts[-1]:
            del starts[0], firsts[0]
        self._starts.extend(starts)
        self._firsts.extend(firsts)
        self.bits += bytes(count)
        self.next_index = index + count
        self.next_offset = last + 1
        return index

    def advance(self, offset: int) -> None:
        """Move `next_offset` to `offset` if it is lower. According to the source, every offset
        before it was delivered or is a hole. Lets the position pass trailing holes.
        """
        self.next_offset = max(self.next_offset, offset)

    def done(self, index: int) -> bool:
        """Settle a record. Returns whether it was unfinished; otherwise nothing changes. Raises
        `IndexError` for an index that was never delivered.
        """
        at = index - self.base
        if at >= 0 and not (bits := self.bits)[at]:
            bits[at] = 1
            return True
        return False

    def are_unfinished(self, indices: list[int]) -> bool:
        """Whether none of these records is settled. Raises `IndexError` like `is_done`."""
        bits, base = self.bits, self.base
        if is_run(indices):
            start, end = indices[0] - base, indices[-1] - base
            return start >= 0 and not bits[end] and bits.count(0, start, end) == end - start
        return min(indices) >= base and not any(bits[index - base] for index in indices)

    def done_all(self, indices: list[int]) -> None:
        """Settle records that are unfinished."""
        bits, base = self.bits, self.base
        if is_run(indices):
            bits[indices[0] - base : indices[-1] - base + 1] = b"\x01" * len(indices)
            return
        for index in indices:
            bits[index - base] = 1

    def is_done(self, index: int) -> bool:
        """Whether a record is settled. Raises `IndexError` for one that was never delivered."""
        return index < self.base or self.bits[index - self.base] != 0

    def offset_of(self, index: int) -> int:
        """Return the offset of a record. Raises `IndexError` below `base`, and for a record never
        delivered.
        """
        if not self.base <= index < self.next_index:
            message = (
                f"index={index}: only those from {self.base} to {self.next_index - 1} are held"
            )
            raise IndexError(message)
        run = bisect_right(self._starts, index) - 1
        return self._firsts[run] + index - self._starts[run]

    def position(self) -> int:
        """Return the offset to commit: that of the first unfinished record, or else `next_offset`.
        Releases the memory of the settled records before it.
        """
        head = self.bits.find(0)
        if head < 0:
            head = len(self.bits)
        if head:
            self._release(head)
        return self.offset_of(self.base) if self.bits else self.next_offset

    @property
    def has_untold(self) -> bool:
        """Whether a settled record has not been returned by `take_settled`."""
        return 1 in self.bits

    def give_up(self, index: int) -> None:
        """With `tells_each`, record that a record is about to be settled without being handled; no
        effect if it is settled.
        """
        if self.tells_each and not self.is_done(index):
            self._given_up.add(self.offset_of(index))

    def take_settled(self) -> tuple[list[int], frozenset[int]]:
        """Return the offsets of the records settled since the last call, ascending, and those among
        them that were settled without being handled. Only with `tells_each`.
        """
        bits, base = self.bits, self.base
        spans = [found.span() for found in _UNTOLD.finditer(bits)]
        offsets: list[int] = []
        for begin, end in spans:
            bits[begin:end] = _TOLD * (end - begin)
            at = begin
            while at < end:
                offset, behind = self._run_from(base + at)
                count = min(end - at, behind - base - at)
                offsets.extend(range(offset, offset + count))
                at += count
        self.position()
        given_up = frozenset(self._given_up)
        self._given_up.clear()
        return offsets, given_up

    def _run_from(self, index: int) -> tuple[int, int]:
        """Return the offset of a record, and the index after the end of its run of consecutive
        offsets.
        """
        run = bisect_right(self._starts, index) - 1
        behind = self._starts[run + 1] if run + 1 < len(self._starts) else self.next_index
        return self._firsts[run] + index - self._starts[run], behind

    def position_through(self, index: int) -> int:
        """Return the position as if every record up to `index` were settled. Changes nothing."""
        at = self.bits.find(0, max(0, index + 1 - self.base))
        return self.next_offset if at < 0 else self.offset_of(self.base + at)

    def unfinished_through(self, index: int) -> int:
        """Return the number of unsettled records delivered up to this one."""
        return self.bits.count(0, 0, max(0, index + 1 - self.base))

    def head(self) -> int | None:
        """Return the index of the first unfinished record; `None` if there is none."""
        at = self.bits.find(0)
        return None if at < 0 else self.base + at

    def seen_position(self) -> int:
        """Return the position. Thread-safe: it may be slightly outdated, but is never too high.

        Releases nothing, unlike `position`.
        """
        while True:
            behind, base = self.next_offset, self.base  # before `bits`, which grows
            at = self.bits.find(0)
            try:
                offset = behind if at < 0 else self.offset_of(base + at)
            except IndexError:  # released, or not added completely
                continue
            if base == self.base:
                return offset

    def done_ranges(self, through: int = -1) -> Iterator[tuple[int, int]]:
        """Yield the ranges of settled offsets beyond the position, ascending, each from its first
        offset to one past its last. A range may span holes, and an unfinished record lies between
        two ranges. With `through`, as if every record up to this index were settled.

        Lazy: exhaust it before other records are admitted or settled. Then it and `position()`
        describe the same instant.
        """
        bits, base, starts, firsts = self.bits, self.base, self._starts, self._firsts
        run = 0
        after = bits.find(0, max(0, through + 1 - base))
        while after >= 0:
            at = bits.find(1, after)
            if at < 0:
                return
            after = bits.find(0, at)
            index = base + at
            run = bisect_right(starts, index, run) - 1
            first = firsts[run] + index - starts[run]
            index = base + (len(bits) if after < 0 else after) - 1
            run = bisect_right(starts, index, run) - 1
            yield first, firsts[run] + index - starts[run] + 1

    @property
    def unfinished(self) -> int:
        """Number of unsettled delivered records. Counts `bits`: 0.3 ms for a million records."""
        return self.bits.count(0)

    @property
    def settled(self) -> int:
        """Number of settled records since the start; never decreases. Costs as much as
        `unfinished`.
        """
        return self.next_index - self.unfinished

    @property
    def span(self) -> int:
        """Size of `bits` in bytes: one for each record from index `base` on."""
        return len(self.bits)

    def _release(self, head: int) -> None:
        """Drop the first `head` records, and the runs that end with them."""
        del self.bits[:head]
        self.base += head
        kept = bisect_right(self._starts, self.base) - 1
        del self._starts[:kept], self._firsts[:kept]


def is_run(indices: list[int]) -> bool:
    """Whether indices are consecutive and ascend: those of a span of records."""
    first = indices[0]
    return indices[-1] - first == len(indices) - 1 and indices == [*range(first, indices[-1] + 1)]


def _runs(
    index: int,
    first: int,
    last: int,
    count: int,
    offsets: Callable[[], Iterable[int]] | None,
) -> tuple[list[int], list[int]]:
    """Return the first index and the first offset of each run of consecutive offsets."""
    starts: list[int] = []
    firsts: list[int] = []
    expected = first
    at = index
    for offset in () if offsets is None else offsets():
        if offset < expected or (at == index and offset > first):
            message = f"offset {offset} where at least {expected} was due"
            raise ValueError(message)
        if offset > expected or at == index:
            starts.append(at)
            firsts.append(offset)
        expected = offset + 1
        at += 1
    if at - index != count or expected != last + 1:
        message = f"{at - index} offsets up to {expected - 1}, not {count} up to {last}"
        raise ValueError(message)
    return starts, firsts
