"""Transactions that settle the records of a source in the destination's own database.

1. A source of leases has no position to store: the last statement of a transaction settles its
   records under their lease. If the lease has ended, nothing of the transaction is applied.
2. After a failure that may have been applied, the source is asked which records are settled, before
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
    """The positions of leases, as a transactional flow moves them."""

    def __init__(self, source: SettlesInTransaction) -> None:
        self._source = source
        self._doubted: dict[SourceClaim, HeldPosition] = {}
        """Those that were in doubt, until their claims end: a later try that fails, too, must not
        write again what the doubted one has committed.
        """

    @asynccontextmanager
    async def moving(self, claim: SourceClaim) -> AsyncIterator[HeldPosition]:
        """The position of a claim, of which one transaction is under way at a time.

        Raises `PositionLost` for a claim that has ended, and `UnavailableError` where the source
        cannot be asked.
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
        """The unit of a transaction that settles the records before this position."""
        move = self._source.move_to(claim, position)
        return PositionUnit(self._source.group, claim.partition, position, move)
