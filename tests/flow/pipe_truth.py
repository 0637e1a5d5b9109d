"""The effects of pipes on a destination, and the laws that they must obey.

A `Truth` records each write, each applied row and each stored position. It compares them with the
records of the log and notes each broken law:

1. **began after the end**: once a member knows that a claim is revoked or lost, none of its rows
   begins to be written.
2. **overtook**: per key of a partition, no row is written before the earlier ones are safe, or ahead
   of it in the same write; none is applied after a later one was acknowledged; no key is in two
   writes of a member at once.
3. **committed past**: each stored record has all its rows applied, or in dead letters, or was
   given up.
4. **went back**: what was stored as settled stays so.
5. **twice**: a row is not written again once its write has succeeded in the same claim, nor when
   its record was settled before the claim began.
6. **forgotten**: a revoke within its deadline stores every record whose rows are acknowledged.
7. **unmarked**: a row that comes again after an unknown outcome is marked `maybe_applied`.
8. **given up**: no record is given up that was never refused.
9. **late**: a revoke ends by its deadline.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from pipe_rows import Call, Row, WatchedClaim, id_of, row_of, settled_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

    from pipe_rows import RowId, Told

    from sluicegate import Batch
    from sluicegate.consumer import Position, Record, SourceClaim, TopicPartition

BROKEN_LAW = "a law is broken:"
"""Marks the event in the history."""


class Truth:
    """The records of the log, and the state of their rows."""

    def __init__(
        self, now: Callable[[], float], *, is_keyed: bool, prefix_safe: bool, grace: float
    ) -> None:
        self._now = now
        self._grace = grace
        """Seconds within which a cut write may still succeed."""
        self._is_keyed = is_keyed
        self._prefix_safe = prefix_safe
        self.broken: list[str] = []
        """The broken laws, in order."""
        self.history: list[tuple[object, ...]] = []
        """The events with their times."""
        self.records: dict[tuple[int, int], Told] = {}
        self.chains: dict[tuple[int, Hashable], list[RowId]] = defaultdict(list)
        """The rows of each key of a partition, in order."""
        self._places: dict[RowId, int] = {}
        self.applied: list[tuple[float, str, RowId]] = []
        self._ever_applied: set[RowId] = set()
        self.refused: set[tuple[int, int]] = set()
        """The records that may be given up: those with a permanently refused row."""
        self.given_up: set[tuple[int, int]] = set()
        self.parked: set[tuple[int, int]] = set()
        """The records that were ever in the park store."""
        self._ever_acked: set[RowId] = set()
        self.letters: set[RowId] = set()
        """The rows in dead letters."""
        self._open: dict[tuple[str, int], WatchedClaim] = {}
        self._going: dict[tuple[str, Hashable], Call] = {}
        self._stored: dict[int, frozenset[int]] = {}
        self._seen_settled: set[tuple[int, int]] = set()
        self._last_acked: dict[tuple[int, Hashable], RowId] = {}
        self.seen: Counter[str] = Counter()
        """The number of occurrences of each situation."""
        self.acks: dict[str, int] = defaultdict(int)
        """Acknowledged rows of each member."""
        self.cut_acks: dict[str, int] = defaultdict(int)
        """Rows of cut writes that nevertheless succeeded."""

    def complain(self, law: str, text: str) -> None:
        """Note a broken law."""
        self.broken.append(f"{law}: {text}, at {self._now():.3f} s")
        self._note(BROKEN_LAW, law, text)

    def _note(self, *what: object) -> None:
        self.history.append((round(self._now(), 3), *what))

    # -- records -----------------------------------------------------------------------------------

    def produced(self, record: Record, told: Told) -> None:
        """A record was appended to the log."""
        self.records[record.partition, record.offset] = told
        for row in told.rows:
            chain = self.chains[row.partition, row.key]
            self._places[id_of(row)] = len(chain)
            chain.append(id_of(row))

    def is_done(self, place: tuple[int, int]) -> bool:
        """Whether the position may pass a record."""
        told = self.records[place]
        return (
            place in self.given_up
            or place in self.parked
            or (told.is_whole and all(self._is_row_done(id_of(row)) for row in told.rows))
        )

    def _is_row_done(self, row: RowId) -> bool:
        return row in self._ever_applied or row in self.letters

    def gave_up(self, place: tuple[int, int]) -> None:
        """A member or an operator gave up a record."""
        if place not in self.refused and self.records[place].is_whole:
            self.complain("given up", f"{place} was never refused")
        self._note("given up", place)
        self.seen["given up"] += 1
        self.given_up.add(place)

    def parks(self, place: tuple[int, int]) -> None:
        """A record entered the park store."""
        self._note("parked", place)
        self.seen["parked"] += 1
        self.parked.add(place)

    # -- claims ------------------------------------------------------------------------------------

    def assigned(
        self, member: str, claims: Sequence[SourceClaim], starts: Mapping[TopicPartition, Position]
    ) -> None:
        """A member was assigned new claims."""
        self._note(member, "is assigned", [str(claim) for claim in claims])
        for claim in claims:
            number = claim.partition.partition
            self._open[member, number] = WatchedClaim(
                claim, starts[claim.partition], self._end_of(number)
            )

    def claim_of(self, member: str, claim: SourceClaim) -> WatchedClaim | None:
        """The observed claim, until its end."""
        found = self._open.get((member, claim.partition.partition))
        return found if found is not None and found.claim is claim else None

    def closing(self, member: str, claims: Collection[SourceClaim]) -> None:
        """A member was informed that these claims are revoked."""
        for claim in claims:
            if (found := self.claim_of(member, claim)) is not None:
                self._note(member, "gives up", str(claim))
                found.has_ended = True

    def ended(self, member: str, claims: Collection[SourceClaim]) -> None:
        """A member was informed that these claims have ended."""
        self.closing(member, claims)
        for claim in claims:
            if self.claim_of(member, claim) is not None:
                del self._open[member, claim.partition.partition]

    def returned(self, member: str, positions: Mapping[SourceClaim, Position]) -> None:
        """A revoke returned these positions."""
        for claim, position in positions.items():
            found = self.claim_of(member, claim)
            if found is not None and not found.was_returned:
                found.was_returned = True  # another revoke of the claim finds the rest
                number = claim.partition.partition
                settled = settled_of(position, self._end_of(number))
                for (_, offset), told in self._records_of(number):
                    if offset not in settled and self._is_acked(found, told):
                        self.complain("forgotten", f"{number}@{offset} of {member}")

    def _is_acked(self, claim: WatchedClaim, told: Told) -> bool:
        """Whether all rows of a record were acknowledged before this time."""
        before = [claim.acked.get(id_of(row), self._now()) < self._now() for row in told.rows]
        return told.is_whole and bool(before) and all(before)

    def _records_of(self, partition: int) -> list[tuple[tuple[int, int], Told]]:
        return [item for item in self.records.items() if item[0][0] == partition]

    def _end_of(self, partition: int) -> int:
        return 1 + max([o for p, o in self.records if p == partition], default=-1)

    # -- writes ------------------------------------------------------------------------------------

    def begins(self, member: str, batch: Batch[Row | Record]) -> Call:
        """A write of a member began."""
        rows = [row if isinstance(row, Row) else row_of(row) for row in batch]
        claims = [self._claim_of_row(member, row) for row in rows]
        call = Call(member, rows, claims)
        self._note(member, "begins", [tuple(row) for row in rows], "marked", [*batch.maybe_applied])
        for row, claim in zip(rows, claims, strict=True):
            if claim is None or claim.has_ended:
                self.complain("began after the end", f"{row} of {member}")
        self._check_marks(call, batch.maybe_applied)
        self._check_repetition(call)
        if self._is_keyed:
            self._check_order(call)
            for row in rows:
                self._going[member, row.key] = call
        return call

    def _claim_of_row(self, member: str, row: Row) -> WatchedClaim | None:
        claim = self._open.get((member, row.partition))
        if claim is None or row.claim in {0, claim.number}:
            return claim
        return None

    def _check_marks(self, call: Call, marked: Collection[int]) -> None:
        for index, (row, claim) in enumerate(zip(call.rows, call.claims, strict=True)):
            if row[:2] in self.parked:
                continue  # a parked record returns as a new one
            if claim is not None and id_of(row) in claim.doubtful and index not in marked:
                self.complain("unmarked", f"{row} of {call.member}")

    def _check_repetition(self, call: Call) -> None:
        for row, claim in zip(call.rows, call.claims, strict=True):
            if claim is not None and id_of(row) in claim.acked:
                self.complain("twice", f"{row} of {call.member} in one claim")
            if claim is not None and row.offset in claim.start and row[:2] not in self.parked:
                self.complain("twice", f"{row} of {call.member} was settled before its claim")

    def _check_order(self, call: Call) -> None:
        keys = [row.key for row in call.rows]
        if not self._prefix_safe and len(set(keys)) < len(keys):
            self.complain("overtook", f"a key is twice in a write, {call.rows}")
        ahead: set[RowId] = set()
        for row, claim in zip(call.rows, call.claims, strict=True):
            other = self._going.get((call.member, row.key))
            if other is not None:
                self.complain("overtook", f"{row} of {call.member} during a write of its key")
            if claim is not None:
                self._check_chain(call.member, row, claim, ahead)
            ahead.add(id_of(row))

    def _check_chain(self, member: str, row: Row, claim: WatchedClaim, ahead: set[RowId]) -> None:
        """Check that all earlier rows of the key are safe, or precede the row in the same write."""
        chain = self.chains[row.partition, row.key]
        at = claim.next_of[row.key]
        while at < len(chain) and self._is_safe(claim, chain[at]):
            at += 1
        claim.next_of[row.key] = at
        for earlier in chain[at : self._places[id_of(row)]]:
            if earlier not in ahead and not self._is_safe(claim, earlier):
                self.complain("overtook", f"{row} of {member} passes {earlier}")

    def _is_safe(self, claim: WatchedClaim, row: RowId) -> bool:
        if row[:2] in self.parked:
            return row in self._ever_acked or row[:2] in self.given_up
        return (
            row in claim.acked
            or row in claim.passed
            or row[1] in claim.start
            or row in self.letters
            or row[:2] in self.given_up
        )

    def applies(self, call: Call, index: int) -> None:
        """A row took effect."""
        row, claim = call.rows[index], call.claims[index]
        this = id_of(row)
        self.seen["applied again"] += this in self._ever_applied
        self.seen["applied after the end of its claim"] += claim is not None and claim.has_ended
        call.applied.add(index)
        self.applied.append((self._now(), call.member, this))
        self._ever_applied.add(this)
        if claim is None:
            return
        claim.doubtful.add(this)
        last = claim.last_acked.get(row.key)
        if self._is_keyed and last is not None and last >= this:
            self.complain("overtook", f"{row} of {call.member} is applied after {last}")
        if self._is_keyed and not claim.has_ended:
            self._check_stale(call, row, claim)

    def _check_stale(self, call: Call, row: Row, claim: WatchedClaim) -> None:
        """Check that no later row of the key was settled permanently before; a record with several
        rows is repeated as a whole.
        """
        last = self._last_acked.get((row.partition, row.key))
        if last is None or last <= id_of(row) or last[1] not in claim.start:
            return
        if len(self.records[row.partition, row.offset].rows) == 1:
            self.complain("overtook", f"{row} of {call.member} comes after {last} for good")
        self.seen["a record of several rows comes again"] += 1

    def ends(self, call: Call, errors: Collection[int] | None, *, in_doubt: bool = False) -> None:
        """A write ended: with these failed rows, or all of them (`None`)."""
        rows, places = [id_of(row) for row in call.rows], sorted(call.applied)
        failed = "all" if errors is None else [*errors]
        cut = "" if call.cut_at is None else "cut"
        self._note(call.member, "ends", rows, "applied", places, "failed", failed, in_doubt, cut)
        now = self._now()
        in_time = call.cut_at is None or now <= call.cut_at + self._grace
        in_doubt = in_doubt and not (errors is not None and in_time)
        self.seen["unknown"] += in_doubt
        self.seen["cut"] += call.cut_at is not None
        self.seen["refused rows"] += len(errors or ())
        for index, (row, claim) in enumerate(zip(call.rows, call.claims, strict=True)):
            if self._going.get((call.member, row.key)) is call:
                del self._going[call.member, row.key]
            is_good = errors is not None and index not in errors
            if is_good and call.cut_at is not None:
                self.cut_acks[call.member] += 1
                if claim is not None and in_time:
                    claim.passed.add(id_of(row))
            elif is_good:
                self.acks[call.member] += 1
                self._ever_acked.add(id_of(row))
                if claim is not None:
                    claim.acked[id_of(row)] = now
                    claim.last_acked[row.key] = id_of(row)
                    self._last_acked[row.partition, row.key] = id_of(row)
            elif claim is not None and in_doubt:
                claim.doubtful.add(id_of(row))

    # -- positions ---------------------------------------------------------------------------------

    def stored(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Positions were stored."""
        for partition, position in positions.items():
            number = partition.partition
            settled = settled_of(position, self._end_of(number))
            self._note("stored", number, position)
            if lost := self._stored.get(number, frozenset()) - settled:
                self.complain("went back", f"{sorted(lost)} of partition {number}")
            self._stored[number] = settled
            for offset in settled:
                place = (number, offset)
                if place in self.records and place not in self._seen_settled:
                    if not self.is_done(place):
                        self.complain("committed past", f"{place} is not settled")
                    self._seen_settled.add(place)

    # -- the end -----------------------------------------------------------------------------------

    def check_end(self) -> None:
        """Check that every record is settled, and that the last effects per key are in offset
        order.
        """
        for place in self.records:
            if place[1] not in self._stored.get(place[0], ()):
                self.complain("committed past", f"{place} is not stored")
        for place in self.parked:
            rows = [] if place in self.given_up else self.records[place].rows
            if any(id_of(row) not in self._ever_acked for row in rows):
                self.complain("forgotten", f"{place} was parked")
        if not self._is_keyed:
            return
        firsts: dict[RowId, int] = {}
        for at, (_, _, row) in enumerate(self.applied):
            firsts.setdefault(row, at)
        for chain in self.chains.values():
            known = [row for row in chain if row in firsts and not self._is_lost(row)]
            for one, other in pairwise(known):
                if firsts[one] > firsts[other]:
                    self.complain("overtook", f"{other} was applied before {one}")

    def _is_lost(self, row: RowId) -> bool:
        return row[:2] in self.refused or row in self.letters
