"""The transaction of one unit: its rows, chunk by chunk.

1. The main thread reads, as in `task`; a coroutine on the worker's loop holds the transaction and
   writes. One chunk is written while the next is read. Apart from the buffer (3), no other rows are
   in memory.
2. If the unit is already committed, its rows are read and counted, and nothing is written. If the
   number of rows or the sum of their hashes differs from the ledger, `NonDeterministicReplay` is
   raised.
3. If a connection is lost, all writes of its transaction are lost. So a unit is retried from its
   first chunk, inside the task, as long as all its rows read so far fit into the buffer. Otherwise
   the task fails, and Spark runs it again.
4. A commit whose response was lost is retried in the same way: the ledger shows whether it was
   applied.
5. Only rows refused for good, and rows skipped after them, are dead letters here. Any other error
   ends the transaction, since the next one may succeed.
6. The policy of `transaction_retries` applies to a transaction and to other work that fails as a
   whole. An unknown outcome is retried. A refusal is not: no later attempt succeeds before an
   operator has repaired the destination, and a job that fails immediately shows the error.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..._core.classify import classified
from ..._core.clock import LOOP_CLOCK
from ..._core.errors import ErrorClass, KeyStopped, RefusedError, TransactionLost
from ..._core.retry_policy import Backoff, RetryPolicy, RetryState
from ..._core.sink import classifier_of
from ..._core.transaction import Counts, transaction_of
from ..content import CONTENT, SummedBatches
from ..report import UnitReport
from .chunks import Remembered
from .key_failure import KeyFailurePolicy
from .task import add_up, write_chunk

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from ..._core.classify import Classifier
    from ..._core.sink import Sink
    from ..._core.transaction import Committed, Unit
    from .chunks import Chunk
    from .results import DeadRowBuffer
    from .task import Cuts
    from .worker import Worker

ATTEMPTS = 5
"""Maximum number of attempts; those that find the destination unavailable are not counted."""
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0
"""Seconds."""


class UnitTask:
    """The write of one unit."""

    def __init__(
        self,
        worker: Worker,
        sink: Sink[Any],
        cuts: Cuts,
        unit: Unit,
        *,
        buffer_bytes: int,
        dead_rows: DeadRowBuffer,
        content_of: str = "",
    ) -> None:
        self._worker = worker
        self._sink = sink
        self._cuts = cuts
        self._unit = unit
        self._buffer_bytes = buffer_bytes
        self._dead_rows = dead_rows
        self._content_of = content_of
        self._writing: asyncio.Task[Any] | None = None
        self.history = ""
        """After `run`: the destination's history in the transaction that committed the unit, or
        found it committed.
        """

    def run(self, batches: Iterable[pa.RecordBatch]) -> UnitReport:
        """Write every row and commit, or find the unit committed; blocks.

        Raises the error of the last attempt, and `DeadLettersError` for too many dead rows.
        """
        now = self._worker.loop.time
        began, began_at = now(), LOOP_CLOCK.wall_time()
        cuts = self._cuts
        rows = SummedBatches(batches, CONTENT)
        chunks = Remembered(cuts.chunks(rows), self._buffer_bytes)
        retries = transaction_retries(classifier_of(self._sink), cuts.patience)
        while True:
            try:
                ended = self._try(chunks, rows)
            except Exception as error:
                wait = retries.wait_after(error)
                if wait is None or not chunks.fits:
                    raise
            else:
                self.history = ended.history
                report = self._report(ended, began_at=began_at, retries=retries.failed)
                return replace(report, seconds=now() - began)
            self._worker.start(LOOP_CLOCK.sleep(wait)).result()

    def _try(self, chunks: Remembered, rows: SummedBatches) -> Ended:
        feed = _Feed(self._worker.loop)
        writing = self._worker.start(self._transaction(feed, rows))
        writing.add_done_callback(feed.close)
        try:
            for chunk in chunks:
                if not feed.put(chunk):
                    break
            else:
                feed.put(None)
            return writing.result()
        except BaseException:
            self._worker.start(self._roll_back()).result()
            raise

    async def _roll_back(self) -> None:
        """End the failed attempt completely before the next begins."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    async def _transaction(self, feed: _Feed, rows: SummedBatches) -> Ended:
        self._writing = asyncio.current_task()
        counts: Counter[str] = Counter()
        order = KeyFailurePolicy(self._cuts.on_key_failure, self._cuts.key)
        self._dead_rows.clear()
        async with transaction_of(self._sink, self._unit) as tx:  # counted as if committed
            before = tx.committed
            while (chunk := await feed.take()) is not None:
                if before is None:
                    written = await write_chunk(
                        tx, chunk, name=self._unit.name, patience=self._cuts.patience, order=order
                    )
                    check_refused(self._sink, (error for _, error in written.dead))
                    add_up(counts, written, self._dead_rows.add)
                else:
                    counts["rows"] += chunk.rows.num_rows
                feed.done()
            tx.record(_for_ledger(counts, rows.total, self._content_of))
        return Ended(counts, before, tx.history)

    def _report(self, ended: Ended, *, began_at: float, retries: int) -> UnitReport:
        part, counts = self._unit.part, ended.counts
        if ended.before is not None:
            skipped = report_skipped(part, ended.before, rows=counts["rows"])
            return replace(skipped, retries=retries)
        counts["retries"] += retries
        return UnitReport(partition=part, began_at=began_at, skipped=False, **counts)


@dataclass(frozen=True, slots=True)
class Ended:
    """A committed unit."""

    counts: Counter[str]
    before: Committed | None
    """The commit of an earlier attempt, if there was one; nothing was written then."""
    history: str
    """The destination's history in that transaction."""


class _Feed:
    """Hands chunks from the reading thread to the writing coroutine, one at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: asyncio.Queue[Chunk | None] = asyncio.Queue()
        self._free = threading.Semaphore()
        self._over = False

    def put(self, chunk: Chunk | None) -> bool:
        """Hand over a chunk, or the end (`None`); return False once closed.

        Blocks while the previous chunk is being written.
        """
        self._free.acquire()
        if not self._over:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, chunk)
        return not self._over

    async def take(self) -> Chunk | None:
        """Wait for the next chunk."""
        return await self._queue.get()

    def done(self) -> None:
        """Report that the taken chunk is written."""
        self._free.release()

    def close(self, _: object) -> None:
        """Accept no more chunks: the coroutine has ended."""
        self._over = True
        self._free.release()


def _for_ledger(counts: Counter[str], content: int | None, content_of: str) -> Counts:
    return Counts(
        rows=counts["rows"],
        delivered=counts["delivered"],
        duplicate=counts["duplicate"],
        dead_lettered=counts["dead_lettered"],
        failed=counts["failed"],
        content=content,
        content_of=content_of,
    )


def check_refused(sink: object, errors: Iterable[BaseException]) -> None:
    """Raise the first error that is not a permanent refusal of a row."""
    for error in errors:
        if (
            not isinstance(error, KeyStopped)
            and classified(error, classifier_of(sink)) is not ErrorClass.PERMANENT
        ):
            raise error


def report_skipped(part: int, committed: Committed, *, rows: int) -> UnitReport:
    """Build the report of a unit that an earlier attempt committed."""
    stored = committed.counts
    return UnitReport(
        partition=part,
        rows=rows,
        duplicate=stored.delivered + stored.duplicate,
        dead_lettered=stored.dead_lettered,
        failed=stored.failed,
        skipped=True,
    )


def transaction_retries(classify: Classifier | None, patience: float) -> RetryState:
    """Return the retries of one transaction, with at most `patience` seconds of waits in total."""
    policy = RetryPolicy(
        attempts=ATTEMPTS,
        unlisted_attempts=1,
        give_up_after=patience,
        backoff=Backoff(base=FIRST_WAIT, longest=LONGEST_WAIT, jitter="none"),
        final=frozenset({ErrorClass.PERMANENT, ErrorClass.STOPPED, ErrorClass.REFUSED}),
        uncounted=frozenset({ErrorClass.UNAVAILABLE}),
    )
    return RetryState(policy, partial(_class_of, classify))


def _class_of(classify: Classifier | None, error: BaseException) -> ErrorClass:
    is_lost = isinstance(error, TransactionLost) and not isinstance(error.__cause__, RefusedError)
    return ErrorClass.TRANSIENT if is_lost else classified(error, classify)
