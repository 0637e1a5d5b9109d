"""Fetches of one open source: reads pages of the log, and delivers their messages to claims.

1. A cancelled fetch has delivered nothing: cursors move in one stretch after the last query, and a
   claim that has ended in the meantime delivers nothing.
2. Offsets between messages have no record. They are reported to the consumer with the next record
   of the slot, and without one only after `TELL_AFTER` positions, because each report is a position
   to store. A skipped message is reported at once, so that it is not taken for unread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...._core.source import Fetched
from .pages import pages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...._core.source import Record
    from .log_reader import LogReader, PageRows
    from .pages import Page
    from .slots import HeldSlot, SlotBook

TELL_AFTER = 10_000
"""Number of positions without a record after which a slot's position moves nevertheless."""


class StreamDelivery:
    """Reads the log for the held slots."""

    def __init__(self, log: LogReader, book: SlotBook) -> None:
        self._log = log
        self._book = book
        self._horizon = 0
        self._visible = 0
        """The last message that was seen, in any slot."""
        self._turn = 0

    @property
    def horizon(self) -> int:
        """The horizon that was read last."""
        return self._horizon

    def rewind(self) -> None:
        """Forget the state of a server that was lost: a restored one may be older."""
        self._horizon = self._visible = 0
        self._book.rewind()

    async def fetch(self, wanted: Sequence[HeldSlot], most: int, most_bytes: int) -> list[Fetched]:
        """Return the next messages of these slots, up to `most`; an empty list if there are none.

        They have at most `most_bytes` bytes, unless the first of a page is larger.

        Raises errors of the client.
        """
        is_fresh = False
        while True:
            plan = pages(wanted, self._horizon, most, self._turn)
            if not plan and is_fresh:
                return await self._told(wanted)
            if not plan:
                self._horizon = max(self._horizon, (await self._log.horizon()).position)
                is_fresh = True
                continue
            self._turn += 1
            share = max(1, most_bytes // len(plan))
            read = [(page, await self._log.records(page, share)) for page in plan]
            if found := self._delivered(read):
                return found

    def _delivered(self, read: Sequence[tuple[Page, PageRows]]) -> list[Fetched]:
        records: dict[int, list[Record]] = {}
        left_out: set[int] = set()
        for page, (rows, is_cut) in read:
            positions = [row.offset for row in rows]
            self._visible = max([self._visible, *positions[-1:]])
            reach = page.reach(positions, is_cut=is_cut)
            for held in page.slots:
                held.read_to(reach)
            earlier = {held.slot: held.earlier for held in page.slots}
            for row in rows:
                if row.offset in earlier[row.partition]:
                    left_out.add(row.partition)
                else:
                    records.setdefault(row.partition, []).append(row)
        slots = [held for page, _ in read for held in page.slots]
        return [
            Fetched(held.claim, records.get(held.slot, ()), held.tell(self._visible + 1))
            for held in slots
            if (held.slot in records or held.slot in left_out) and self._book.holds(held)
        ]

    async def _told(self, wanted: Sequence[HeldSlot]) -> list[Fetched]:
        far = [held for held in wanted if held.cursor - held.told >= TELL_AFTER]
        if far:
            self._visible = max(self._visible, await self._log.last_visible())
        return [
            Fetched(held.claim, (), held.tell(self._visible + 1))
            for held in far
            if self._book.holds(held) and self._visible + 1 > held.told
        ]
