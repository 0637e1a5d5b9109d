"""Reads an open source without a consumer, and checks every fetch against the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ...._core.source import Fetched, Position, Source, SourceClaim, SourceRecord
    from .host import HeldClaim, RecordingHost


class ClaimReader:
    """The delivered records of each claim, and the offset that they reach."""

    def __init__(self, source: Source, host: RecordingHost) -> None:
        self.source = source
        self.host = host
        self._delivered: dict[SourceClaim, list[SourceRecord]] = {}
        self._reached: dict[SourceClaim, int] = {}

    def records(self, claim: SourceClaim) -> list[SourceRecord]:
        """Return the delivered records of a claim, in order."""
        return self._delivered.get(claim, [])

    def offsets(self, claim: SourceClaim) -> list[int]:
        """Return the offsets of the delivered records of a claim."""
        return [record.offset for record in self.records(claim)]

    def reached(self, claim: HeldClaim) -> int:
        """Return the offset before which, by the source's answers, everything has been delivered."""
        return self._reached.get(claim, claim.start.offset)

    async def read(self, claims: Sequence[HeldClaim], count: int, most: int = 100) -> None:
        """Fetch from these claims until `count` of their records have been delivered in total."""
        while sum(len(self.records(claim)) for claim in claims) < count:
            await self.fetch(claims, most)

    async def read_up_to(self, claim: HeldClaim, offset: int) -> None:
        """Fetch until everything before this offset has been delivered, or reported as a hole."""
        while self.reached(claim) < offset:
            await self.fetch([claim], 100)

    async def settle(self, positions: Mapping[HeldClaim, Position]) -> None:
        """Prepare a commit of these positions: if the source settles each record, read and settle
        the records before them.
        """
        if not self.source.traits.settles_each:
            return
        for claim, position in positions.items():
            if not claim.is_closed:
                await self.read_up_to(claim, position.offset)
            claim.settle(offset for offset in self.offsets(claim) if offset < position.offset)

    async def commit(self, positions: Mapping[HeldClaim, Position]) -> Collection[SourceClaim]:
        """Settle the records before these positions, and commit the positions."""
        await self.settle(positions)
        committed: dict[SourceClaim, Position] = dict(positions.items())
        return await self.source.commit(committed)

    async def fetch(self, claims: Sequence[HeldClaim], most: int) -> None:
        """Fetch once."""
        fetched = await self.source.fetch(claims, most)
        assert fetched is not None, "the source ended while records were expected"
        self.check(fetched, claims, most)

    def check(self, fetched: Sequence[Fetched], claims: Sequence[HeldClaim], most: int) -> None:
        """Check one answer, and add it to the delivered records."""
        count = sum(len(each.records) for each in fetched)
        assert count <= most, f"{count} records were delivered, but at most {most} were requested"
        for claim, records, next_offset, _ in fetched:
            held = next((each for each in claims if each is claim), None)
            assert held is not None, f"records of {claim!r}, which was not requested"
            assert not held.is_closed, f"records of {claim!r}, which has ended"
            self._take(held, records, next_offset)

    def _take(self, claim: HeldClaim, records: Sequence[SourceRecord], next_offset: int) -> None:
        reached = self.reached(claim)
        for record in records:
            assert (record.topic, record.partition) == claim.partition
            assert record.offset >= reached, (
                f"{claim.partition}: offset {record.offset} was delivered after everything before "
                f"{reached}: out of order, repeated, or reported as a hole before"
            )
            reached = record.offset + 1
        self._delivered.setdefault(claim, []).extend(records)
        self._reached[claim] = max(reached, next_offset)
