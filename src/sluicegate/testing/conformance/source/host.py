"""A scripted host in place of a consumer; it records the calls of a source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...._core.source import Settled
from .news import News

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from ...._core.source import Position, SourceClaim, TopicPartition


class HeldClaim:
    """A claim of a recording host."""

    def __init__(self, partition: TopicPartition, start: Position) -> None:
        self.partition = partition
        self.start = start
        """The stored position that the source reported."""
        self.is_closed = False
        self._settled: set[int] = set()
        self._untold: list[int] = []

    def settle(self, offsets: Iterable[int]) -> None:
        """Settle the records at these offsets, for a source that settles each record separately."""
        new = {*offsets} - self._settled
        self._settled |= new
        self._untold += new

    def take_settled(self) -> Settled:
        """Return the offsets that were settled since the last call."""
        told, self._untold = Settled(sorted(self._untold)), []
        return told

    def end(self) -> None:
        """End the claim."""
        self.is_closed = True

    def pass_settled(self, offset: int, least: int) -> int:
        """Return the position unchanged: nothing is settled beyond it."""
        del least
        return offset

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "open"
        return f"HeldClaim({self.partition}, from {self.start.offset}, {state})"


class RecordingHost:
    """A host that records the calls of one source."""

    def __init__(self, news: News | None = None) -> None:
        self.room_bytes = 1 << 62
        """The room that it tells."""
        self.claims: list[HeldClaim] = []
        """Every claim that began, in order."""
        self.asked: list[SourceClaim] = []
        """The claims of all revokes."""
        self._answers: Mapping[TopicPartition, Position] = {}
        self._draining: Callable[[], Awaitable[object]] | None = None
        self.within: list[float] = []
        """The seconds that each revoke allowed."""
        self.troubles: list[str | None] = []
        self.news = news or News()

    @property
    def open(self) -> list[HeldClaim]:
        """The claims that have not ended."""
        return [claim for claim in self.claims if not claim.is_closed]

    def claim_of(self, partition: TopicPartition) -> HeldClaim:
        """Return the open claim of a partition."""
        return next(claim for claim in self.open if claim.partition == partition)

    async def wait_for_claims(self, count: int) -> list[HeldClaim]:
        """Suspend until this number of claims is open."""
        await self.news.wait_for(lambda: len(self.open) == count)
        return self.open

    def will_answer(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Script the positions that revokes return."""
        self._answers = positions

    def will_drain(self, draining: Callable[[], Awaitable[object]]) -> None:
        """Script a function that each revoke runs."""
        self._draining = draining

    # -- the source's side -------------------------------------------------------------------------

    def assigned(self, starts: Mapping[TopicPartition, Position]) -> Sequence[SourceClaim]:
        """Begin claims. Fails for a partition that already has one."""
        held = {claim.partition for claim in self.open}
        assert not held & starts.keys(), f"assigned twice: {held & starts.keys()}"
        begun = [HeldClaim(partition, start) for partition, start in starts.items()]
        self.claims += begun
        self.news.fire()
        return begun

    async def revoked(
        self, claims: Collection[SourceClaim], within: float
    ) -> Mapping[SourceClaim, Position]:
        """Return the scripted positions."""
        self.within.append(within)
        self.asked += claims
        self.news.fire()
        if self._draining is not None:
            await self._draining()
        return {
            claim: self._answers[claim.partition]
            for claim in claims
            if claim.partition in self._answers and not claim.is_closed
        }

    def ended(self, claims: Collection[SourceClaim]) -> None:
        """End claims."""
        for claim in self.open:
            if any(claim is each for each in claims):
                claim.end()
        self.news.fire()

    def reported(self, trouble: str | None) -> None:
        """Note the report."""
        self.troubles.append(trouble)
        self.news.fire()
