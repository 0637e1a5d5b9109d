"""The dead-letter circuit: stops a consumer that would move a whole partition to the dead letters.
Pure.

1. For each claim, messages that failed for good are compared with handled messages, in the order in
   which they ended. A message that blocks its key is not counted, since it moves nowhere.
2. Handled messages are not counted one by one: their number is the number of records settled by the
   tracker since the last failure, minus those settled in other ways.
3. The decision is made before the dead letter is written.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from .._core.classify import caused
from .._core.errors import DeadLetterLimit
from .._core.letter_limit import LetterLimit
from .._core.logs import for_log

if TYPE_CHECKING:
    from .._core.source import TopicPartition
    from .claim import Claim

WINDOW = 1000
"""Number of messages that `max_dead_letter_ratio` refers to."""
ARGUMENTS = ("max_dead_letter_ratio", "max_consecutive_dead_letters")


class LetterCircuit:
    """The limits of all partitions; with `None` for both there is no circuit."""

    def __init__(self, max_ratio: float | None, max_consecutive: int | None) -> None:
        self._limits = max_ratio, max_consecutive
        self._is_on = self._limits != (None, None)
        self._runs: dict[TopicPartition, PartitionRun] = {}

    def judge(self, claim: Claim, error: BaseException) -> DeadLetterLimit | None:
        """Count a message that failed for good; return the error that stops the consumer,
        if any.
        """
        if not self._is_on:
            return None
        return self._run(claim).after(error)

    def settled(self, claim: Claim) -> None:
        """Count a settled message that was not handled, but failed or was parked."""
        if self._is_on:
            self._run(claim).leave_out()

    def _run(self, claim: Claim) -> PartitionRun:
        run = self._runs.get(claim.partition)
        if run is None or run.claim is not claim:
            limit = LetterLimit(*self._limits, WINDOW, arguments=ARGUMENTS, what="messages")
            run = self._runs[claim.partition] = PartitionRun(claim, limit)
        return run


class PartitionRun:
    """Failures of one claim."""

    def __init__(self, claim: Claim, limit: LetterLimit) -> None:
        self.claim = claim
        self._limit = limit
        self._left_out = 0
        self._handled = 0
        self._first: BaseException | None = None
        """The first error since a message was handled."""

    def leave_out(self) -> None:
        """Count a settled message that was not handled."""
        self._left_out += 1

    def after(self, error: BaseException) -> DeadLetterLimit | None:
        """Count a failure; return the error that stops the consumer, if any."""
        claim = self.claim
        handled = claim.tracker.settled - claim.replay.skipped - self._left_out
        new, self._handled = handled - self._handled, handled
        if new or self._first is None:
            self._first = error
        self._limit.after(repeat(False, min(new, WINDOW)))
        why = self._limit.after([True])
        if why is None:
            return None
        message = (
            f"{claim.partition}: {why}; the consumer stops instead of moving the partition to the "
            f"dead letters. The first error: {for_log(self._first)}"
        )
        return caused(DeadLetterLimit(message), self._first)
