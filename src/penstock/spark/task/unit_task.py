"""One unit inside a task: its rows, chunk by chunk, in one transaction.

1. The main thread reads, as in `task`; a coroutine on the worker's loop holds the transaction and
   writes. One chunk is written while the next is being read, and nothing else is held, but for the
   buffer (3).
2. Where the unit was committed before, its rows are read and counted, and nothing is written.
   Another number of rows than the ledger has, or another sum of their hashes, is
   `NonDeterministicReplay`.
3. With its connection, everything that the transaction wrote is gone. So a unit is tried again from
   its first chunk, inside the task, as long as all that was read of it fits into the buffer.
   Otherwise the task fails, and Spark runs it again.
4. A commit whose answer was lost is tried again in the same way: the ledger knows whether it was
   applied.
5. Only rows that are refused for good, and those left out behind them, are dead letters here. Any
   other error ends the transaction: what it was may work in the next.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from ..._core.classify import classified
from ..._core.clock import LOOP_CLOCK
from ..._core.errors import ErrorClass, KeyStopped
from ..._core.transaction import Counts, transaction
from ..levels.units import Remembered, Summed
from ..progress.course import Course
from ..report import UnitReport
from .key_failure import KeyOrder
from .retries import transaction_retries
from .task import add_up, write_chunk

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from ..._core.sink import Sink
    from ..._core.transaction import Committed, Unit
    from ..values.chunks import Chunk
    from .task import Cuts
    from .worker import Worker


class Letters(Protocol):
    """Where the dead rows go."""

    def clear(self) -> None:
        """Another attempt begins."""
        ...

    def add(self, row: dict[str, Any], error: BaseException) -> None:
        """Take one; raise to roll back."""
        ...


@dataclass(frozen=True, slots=True)
class Ended:
    """A unit that is committed."""

    counts: Counter[str]
    before: Committed | None
    """What an earlier attempt had committed; then nothing was written."""
    history: str
    """The destination's, in that transaction."""


class _Feed:
    """Chunks on their way from the thread that reads to the coroutine that writes, one at a
    time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: asyncio.Queue[Chunk | None] = asyncio.Queue()
        self._free = threading.Semaphore()
        self._over = False

    def put(self, chunk: Chunk | None) -> bool:
        """Hand over a chunk, or the end. Blocks while the one before is being written; says whether
        anybody still takes them.
        """
        self._free.acquire()
        if not self._over:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, chunk)
        return not self._over

    async def take(self) -> Chunk | None:
        """The next chunk."""
        return await self._queue.get()

    def done(self) -> None:
        """The chunk that was taken is written."""
        self._free.release()

    def close(self, _: object) -> None:
        """Nobody takes any more."""
        self._over = True
        self._free.release()


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
        letters: Letters,
        content_of: str = "",
    ) -> None:
        self._worker = worker
        self._sink = sink
        self._cuts = cuts
        self._unit = unit
        self._buffer_bytes = buffer_bytes
        self._letters = letters
        self._content_of = content_of
        self._writing: asyncio.Task[Any] | None = None
        self._course = Course()
        self.history = ""
        """After `run`: the destination's, in the transaction that committed the unit or found it
        committed.
        """

    def run(self, batches: Iterable[pa.RecordBatch]) -> UnitReport:
        """Write every row and commit, or find that it is committed; blocks. Raises what ended the
        last try, and what `Letters` raise.
        """
        now = self._worker.loop.time
        began = now()
        cuts = self._cuts
        rows = Summed(batches)
        chunks = Remembered(cuts.chunks(rows), self._buffer_bytes)
        retries = transaction_retries(getattr(self._sink, "classify", None), cuts.patience)
        while True:
            try:
                ended = self._try(chunks, rows)
            except Exception as error:
                wait = retries.wait_after(error)
                if wait is None or not chunks.fits:
                    raise
            else:
                self.history = ended.history
                return self._report(ended, seconds=now() - began, retries=retries.failed)
            self._worker.start(LOOP_CLOCK.sleep(wait)).result()

    def _try(self, chunks: Remembered, rows: Summed) -> Ended:
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
        """Nothing of an attempt that has failed may go on beside the next."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    async def _transaction(self, feed: _Feed, rows: Summed) -> Ended:
        self._writing = asyncio.current_task()
        counts: Counter[str] = Counter()
        self._course.begin_again()
        order = KeyOrder(self._cuts.on_key_failure, self._cuts.key)
        self._letters.clear()
        async with transaction(self._sink, self._unit) as tx:
            before = tx.committed
            while (chunk := await feed.take()) is not None:
                if before is None:
                    written = await write_chunk(
                        tx, chunk, name=self._unit.name, patience=self._cuts.patience, order=order
                    )
                    check_refused(self._sink, (error for _, error in written.dead))
                    add_up(counts, written, self._letters.add)
                    self._course.mark(counts["rows"])
                else:
                    counts["rows"] += chunk.rows.num_rows
                feed.done()
            tx.record(_for_ledger(counts, rows.total, self._content_of))
        return Ended(counts, before, tx.history)

    def _report(self, ended: Ended, *, seconds: float, retries: int) -> UnitReport:
        if ended.before is not None:
            return replace(
                report_skipped(self._unit.part, ended.before, rows=ended.counts["rows"]),
                seconds=seconds,
                retries=retries,
            )
        ended.counts["retries"] += retries
        course = self._course
        report = UnitReport(partition=self._unit.part, seconds=seconds, began_at=course.began_at)
        return replace(
            report, skipped=False, marks=course.marks(ended.counts["rows"]), **ended.counts
        )


def check_refused(sink: object, errors: Iterable[BaseException]) -> None:
    """Raise the first error that is no refusal of a row for good: it may not come again."""
    for error in errors:
        if (
            not isinstance(error, KeyStopped)
            and classified(error, getattr(sink, "classify", None)) is not ErrorClass.PERMANENT
        ):
            raise error


def report_skipped(part: int, committed: Committed, *, rows: int) -> UnitReport:
    """What is told of a unit that an earlier attempt had committed."""
    stored = committed.counts
    return UnitReport(
        partition=part,
        rows=rows,
        duplicate=stored.delivered + stored.duplicate,
        dead_lettered=stored.dead_lettered,
        failed=stored.failed,
        skipped=True,
    )


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
