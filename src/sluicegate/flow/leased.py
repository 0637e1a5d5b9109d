"""Transactions that settle the records of a source in the database of the destination.

1. A source with leases has no position to store: the last statement of a transaction settles its
   records under their lease. If the lease has ended, the transaction is not applied.
2. After a failure with an unknown outcome, the source is asked which records are settled before
   anything else is written.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from .._core.positions import PositionUnit
from .._core.source import Position
from .positions import HeldPosition, as_outage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from .._core.positions import SettlesInTransaction
    from .._core.source import SourceClaim


class LeasedPositions:
    """The positions of leases, as moved by a transactional flow."""

    def __init__(self, source: SettlesInTransaction) -> None:
        self._source = source
        self._doubted: dict[SourceClaim, HeldPosition] = {}
        """Positions in doubt, until their claims end: if a later attempt fails as well, it must not
        repeat the writes of the one in doubt.
        """

    @asynccontextmanager
    async def moving(self, claim: SourceClaim) -> AsyncIterator[HeldPosition]:
        """Yield the position of a claim, which has one transaction in progress at a time.

        Raises `PositionLost` for a claim that has ended, and `UnavailableError` if the source
        cannot be reached.
        """
        held = self._doubted.get(claim) or HeldPosition(None)
        if held.is_in_doubt:
            with as_outage(claim.partition):
                held.read(Position(await self._source.settled(claim)))
        try:
            yield held
        finally:
            if held.is_in_doubt:
                self._doubted[claim] = held
            for each in [each for each in self._doubted if each.is_closed]:
                del self._doubted[each]

    def unit(self, claim: SourceClaim, position: Position) -> PositionUnit:
        """Build the unit of a transaction that settles the records before this position."""
        move = self._source.move_to(claim, position)
        return PositionUnit(self._source.group, claim.partition, position, move)
