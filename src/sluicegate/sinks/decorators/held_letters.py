"""The dead letters of a transaction: held until the commit, then written.

One commit cannot cover both destinations, so the gap is recorded: the ledger stores the number of
held letters with the commit and is updated when they are written. If the process ends in between,
the number stays there, and the next attempt of the unit reports it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..._core.batch import RowBatch
from ..._core.logs import for_log
from ..._core.outcome import Outcome
from ..._core.send import send

if TYPE_CHECKING:
    from ..._core.batch import Batch
    from ..._core.sink import Sink
    from ..._core.transaction import Transaction

logger = logging.getLogger("sluicegate.dead_letter")

_BURIED = (
    "%d items of batch %s were written to the dead letters after the commit; the first because "
    "of %s"
)
_REFUSED = (
    "%d items of batch %s failed permanently, and the dead-letter sink did not accept them after "
    "the commit (%s, after %s)"
)
_LEFT = "%d dead letters of %s were not written, although it has committed"
_NOT_TOLD = "the %d dead letters of %s are written, but its ledger could not be updated: %s"


@dataclass(frozen=True, slots=True)
class _Group:
    """The records of one write."""

    records: Batch[Any]
    lineage: str
    reason: BaseException


class HeldLetters:
    """Records held for the commit of one transaction."""

    def __init__(self, within: Transaction[Any]) -> None:
        self._within = within
        self._groups: list[_Group] = []

    def hold(self, items: Batch[Any], records: list[Any], reason: BaseException) -> None:
        """Hold a record for each of `items`, which count as dead letters from now on. The records
        have the same write key in every attempt.
        """
        lineage = replace(items.lineage, id=f"{items.write_key}/dead-letter")
        self._groups.append(_Group(RowBatch(records, lineage=lineage), items.id, reason))
        self._within.hold_letters(len(records))
        items.settle(range(len(items)), Outcome.DEAD_LETTERED)

    async def bury(self, target: Sink[Any]) -> None:
        """Write the letters after the commit and update its ledger. Failures are logged; only
        cancellation is raised.
        """
        held = sum(len(group.records) for group in self._groups)
        if not held:
            return
        written = 0
        try:
            for group in self._groups:
                written += await self._bury(target, group)
        finally:
            if written < held:
                logger.error(_LEFT, held - written, self._name)
        try:
            if written:
                await self._within.wrote_letters(written)
        except Exception as error:
            logger.error(_NOT_TOLD, written, self._name, for_log(error))  # noqa: TRY400  # a traceback would show values
            logger.debug("the whole error", exc_info=error)

    @staticmethod
    async def _bury(target: Sink[Any], group: _Group) -> int:
        errors = await send(target, group.records)
        if errors:
            logger.error(
                _REFUSED,
                len(errors),
                group.lineage,
                for_log(next(iter(errors.values()))),
                for_log(group.reason),
            )
        written = len(group.records) - len(errors)
        if written:
            logger.warning(_BURIED, written, group.lineage, for_log(group.reason))
        return written

    @property
    def _name(self) -> str:
        unit = self._within.unit
        return "a transaction" if unit is None else f"unit {unit.name}"
