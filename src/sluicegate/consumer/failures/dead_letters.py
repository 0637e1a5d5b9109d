"""The dead letters of a consumer: their content, how they are written, and their limit.

1. A letter's item is the record with its coordinates, exactly as the source delivered it, so that
   it can be handled again (`sluicegate dlq replay --handler`).
2. All letters of one record and consumer have the same key. A store therefore skips a letter that
   is written twice: by an attempt whose response was lost, or after a redelivery.
3. When `bury` returns, the letter is written; after a failure it raises, and the caller retries.
4. Letters that wait during a write share the next one. If a shared write fails although the
   destination is available, each of its letters is written alone from then on, so that a refused
   letter does not delay others.

The circuit stops a consumer that would move a whole partition to the dead letters.

5. For each claim, messages that failed for good are compared with handled messages, in the order in
   which they ended. A message that blocks its key is not counted, since it moves nowhere.
6. Handled messages are not counted one by one: their number is the number of records settled by the
   tracker since the last failure, minus those settled in other ways.
7. The decision is made before the dead letter is written.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import repeat
from typing import TYPE_CHECKING, Any

from ..._core.batch import Lineage, RowBatch
from ..._core.classify import cause_name, caused, classified, code_of
from ..._core.errors import (
    DeadLetterLimit,
    ErrorClass,
    ParkedBehind,
    ThrottledError,
    UnavailableError,
    UnverifiableError,
)
from ..._core.letter_limit import LetterLimit
from ..._core.logs import for_log, log_safely, storable
from ..._core.opening import opened
from ..._core.order.keys import key_text
from ..._core.send import send
from ..._core.sink import classifier_of
from ..._core.text import text_of
from ...letters.items import item_of_record
from ...letters.letter import DeadLetterRecord
from ..lanes.keys import SingleRecord

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from typing import Self

    from ..._core.clock import Clock
    from ..._core.sink import Sink
    from ..._core.source import TopicPartition
    from ..lanes.message import Message
    from ..progress.claim import Claim


logger = logging.getLogger("sluicegate.consumer")

MOST = 500
"""Maximum number of letters of one write."""
WRITE_WITHIN = 30.0
"""Seconds for one write: the default of a batcher's `flush_timeout`."""
_DOWN = frozenset({ErrorClass.UNAVAILABLE, ErrorClass.REFUSED, ErrorClass.THROTTLE})
_BURIED = "%s: %d dead letters are written, the first for %s (%s)"

WINDOW = 1000
"""Number of messages that `max_dead_letter_ratio` refers to."""
ARGUMENTS = ("max_dead_letter_ratio", "max_consecutive_dead_letters")


class QueuedLetter:
    """A letter waiting to be written, and the result."""

    __slots__ = ("error", "is_open", "record")

    def __init__(self, record: DeadLetterRecord[Any]) -> None:
        self.record = record
        self.is_open = True
        self.error: BaseException | None = None

    def end(self, error: BaseException | None = None) -> None:
        """Set the result of its write; `None` if it was written or is no longer needed."""
        self.error = error
        self.is_open = False


class LetterWriter:
    """Writer of a consumer's dead letters to a sink, which `open` opens."""

    def __init__(self, target: Sink[Any], name: str, clock: Clock) -> None:
        self._target = target
        self._name = name
        self._clock = clock
        self._writing = asyncio.Lock()
        self._queue: list[QueuedLetter] = []
        self._alone: set[str] = set()
        """Keys of letters whose shared write failed."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        """Keep the sink open inside the context."""
        async with opened(self._target):
            yield self

    async def bury(self, message: Message, error: BaseException) -> None:
        """Write the letter of a message that failed with `error`.

        Suspends until the sink has confirmed it. Otherwise raises the sink's error. After an error
        or a cancellation, the letter may nevertheless have been written.
        """
        letter = QueuedLetter(self._record(message, error))
        key = letter.record.key
        is_alone = key in self._alone
        if not is_alone:
            self._queue.append(letter)
        try:
            async with self._writing:
                while letter.is_open:
                    await self._write([letter] if is_alone else self._queue[:MOST])
        except asyncio.CancelledError:
            letter.end()
            self._forget_ended()
            self._alone.discard(key)
            raise
        if letter.error is not None:
            raise letter.error

    async def _write(self, letters: Sequence[QueuedLetter]) -> None:
        records = [letter.record for letter in letters]
        batch = RowBatch(records, lineage=Lineage(id=_id(records), name=self._name))
        errors = await self._sent(batch)
        written: list[DeadLetterRecord[Any]] = []
        for index, letter in enumerate(letters):
            error = errors.get(index)
            if error is None:
                self._alone.discard(letter.record.key)
                written.append(letter.record)
                letter.end()
            elif letter.is_open:
                letter.end(self._failed(letter, error, is_shared=len(letters) > 1))
        self._forget_ended()
        if written:
            first = written[0]
            told_of = (len(written), first.batch_id, first.error_type)
            log_safely(logger, logging.WARNING, _BURIED, self._name, *told_of)

    async def _sent(self, batch: RowBatch[Any]) -> Mapping[int, BaseException]:
        """Write the letters; without a response within `WRITE_WITHIN`, each has an error."""
        limit = self._clock.timeout_at(self._clock.now() + WRITE_WITHIN)
        try:
            async with limit:
                return await send(self._target, batch)
        except TimeoutError:
            if not limit.expired():
                raise
            text = f"the dead letters were not accepted within {WRITE_WITHIN:g} s"
            return {index: UnavailableError(text) for index in range(len(batch))}

    def _forget_ended(self) -> None:
        self._queue = [letter for letter in self._queue if letter.is_open]

    def _failed(
        self, letter: QueuedLetter, error: BaseException, *, is_shared: bool
    ) -> BaseException:
        """Return the error for the letter's caller; after a shared write, each caller gets its own
        error.
        """
        if classified(error, classifier_of(self._target)) not in _DOWN:
            self._alone.add(letter.record.key)
        if not is_shared:
            return error
        made = UnavailableError(f"the dead letters were not written: {text_of(error)}")
        wait = error.retry_after if isinstance(error, (ThrottledError, UnavailableError)) else None
        return caused(made, error, summary=for_log(error), retry_after=wait)

    def _record(self, message: Message, error: BaseException) -> DeadLetterRecord[Any]:
        tries = message.attempts
        now, wall = self._clock.now(), self._clock.wall_time()
        first_at = tries.first_at if tries.failed else now
        lane = message.lane_key
        return DeadLetterRecord(
            item=item_of_record(message.record),
            error_type=type(error).__name__,
            error_class=classified(error).value,
            message=storable(text_of(error)),
            attempts=tries.failed + (tries.error is not error),
            first_at=datetime.fromtimestamp(wall - (now - first_at), UTC),
            last_at=datetime.fromtimestamp(wall, UTC),
            batcher=self._name,
            batch_id=message.coordinates,
            key=letter_key(self._name, message.coordinates, message.timestamp),
            maybe_delivered=isinstance(error, UnverifiableError),
            item_key=None if isinstance(lane, SingleRecord) else key_text(message.order_key),
            parked_behind=isinstance(error, ParkedBehind),
            cause_type=cause_name(error),
            code=code_of(error),
        )


def letter_key(name: str, coordinates: str, timestamp: int) -> str:
    """Return the key of a record's letter, such as `billing/orders/3@1044#1700000000000`.

    The record's time is part of the key, since offsets restart in a recreated topic.
    """
    own = name.replace("%", "%25").replace("/", "%2F")  # names and topics may contain a slash
    return f"{own}/{coordinates}#{timestamp}"


def _id(records: Sequence[DeadLetterRecord[Any]]) -> str:
    """Return a batch id that depends only on the letters."""
    keys = "\0".join(record.key for record in records)
    return f"letters-{hashlib.blake2b(keys.encode(), digest_size=16).hexdigest()}"


class LetterCircuit:
    """The limits of all partitions; with `None` for both there is no circuit."""

    def __init__(self, max_ratio: float | None, max_consecutive: int | None) -> None:
        self._limits = max_ratio, max_consecutive
        self._is_on = self._limits != (None, None)
        self._runs: dict[TopicPartition, PartitionRun] = {}

    def count_failure(self, claim: Claim, error: BaseException) -> DeadLetterLimit | None:
        """Count a message that failed for good; return the error that stops the consumer,
        if any.
        """
        if not self._is_on:
            return None
        return self._run(claim).after(error)

    def leave_out(self, claim: Claim) -> None:
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
