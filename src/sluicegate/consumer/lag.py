"""The lag of a consumer behind its source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._core.source import CountsLag
from .standing import oldest_of

if TYPE_CHECKING:
    from .._core.source import TopicPartition
    from .claim import Claim
    from .parts import Parts
    from .standing import Standing


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a partition's position."""

    messages: int
    """Records from the position on, including settled ones beyond it. Most sources count offsets:
    the end of the partition minus the position, including records removed by compaction or a
    transaction. `PostgresStreamSource` counts readable messages.
    """
    seconds: float | None
    """Age of the oldest unfinished record by its timestamp, in wall time; 0 without a lag; `None`
    if that record has not been delivered yet or has no timestamp. `PostgresStreamSource` reports it
    before the delivery too, by the server's clock.
    """


async def lags_of(parts: Parts) -> dict[TopicPartition, Lag]:
    """Return the lag of each claim that is open both before and after the query of the source."""
    asked = [claim for claim in parts.claims if not claim.is_closing]
    source = parts.source
    if isinstance(source, CountsLag):
        unread = await source.lag({claim: claim.tracker.seen_position() for claim in asked})
        return {
            claim.partition: Lag(*unread[claim])
            for claim in asked
            if not claim.is_closed and claim in unread
        }
    ends = await source.ends(asked)
    claims = [claim for claim in asked if not claim.is_closed and claim in ends]
    oldest = oldest_of(parts, claims)
    wall = parts.commons.clock.wall_time()
    return {claim.partition: _lag(claim, ends[claim], oldest.get(claim), wall) for claim in claims}


def _lag(claim: Claim, end: int, oldest: Standing | None, wall: float) -> Lag:
    messages = max(0, end - claim.tracker.seen_position())
    if messages == 0:
        return Lag(0, 0.0)
    stamp = 0 if oldest is None else oldest.message.timestamp
    return Lag(messages, max(0.0, wall - stamp / 1000) if stamp > 0 else None)
