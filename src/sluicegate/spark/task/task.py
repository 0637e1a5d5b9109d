"""The write of one partition: its rows, chunk by chunk, through an open sink. Independent of Spark.

1. The main thread reads: it pulls record batches, which blocks, and cuts them into chunks. The
   worker's loop writes at most `window` chunks concurrently. Reading stops while the window is
   full.
2. A chunk that continues the key of the previous one waits until that one has ended; other chunks
   do not wait.
3. Each chunk is a batch with its own delivery, whose host counts outcomes. A write must end before
   Spark abandons the task: after `patience` seconds of backoff, items have one last attempt.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..._core.arrow import ArrowBatch
from ..._core.batch import Lineage, Reason
from ..._core.clock import LOOP_CLOCK, Signal, wait_until
from ..._core.delivery.delivery import Delivery
from ..._core.delivery.host import PassesReports, Reports
from ..._core.delivery.pacing import Pacing
from ..._core.outcome import Outcome
from ..content import mark_chunks
from ..report import UnitReport
from .chunks import cut
from .key_failure import KeyFailurePolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    import pyarrow as pa

    from ..._core.clock import Clock
    from ..._core.errors import ErrorClass
    from ..._core.sink import Sink
    from .chunks import Chunk
    from .key_failure import OnKeyFailure
    from .worker import Worker

CHUNK_ROWS = 50_000
CHUNK_BYTES = 8 << 20
WINDOW = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """Settings for cutting a task's rows into chunks, and for writing the chunks."""

    chunk_rows: int
    chunk_bytes: int
    window: int
    key: tuple[str, ...] = ()
    is_collated: bool = False
    """Whether Spark may treat two different values of the key as equal."""
    on_key_failure: OnKeyFailure = "skip"
    patience: float = 300.0
    """Seconds from the first wait of a chunk until its last attempt."""

    def chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Chunk]:
        """Cut the rows into chunks."""
        return cut(
            batches,
            max_rows=self.chunk_rows,
            max_bytes=self.chunk_bytes,
            key=self.key,
            serial=self.is_collated,
        )


class ChunkHost(PassesReports[Reports]):
    """The host of one chunk's delivery: counts outcomes and retries, and limits backoffs.

    Other reports about the destination go nowhere: the task fails with the error itself. There are
    no slots: the task limits its chunks.
    """

    def __init__(self, patience: float) -> None:
        super().__init__(None)
        self.outcomes: Counter[Outcome] = Counter()
        self.retries = 0
        self.deadline: float | None = None
        self.stopping = False
        self.waits_for_repair = False
        self._until: float | None = None
        self._is_used_up = False
        self._patience = patience

    @property
    def clock(self) -> Clock:
        """The clock of the loop."""
        return LOOP_CLOCK

    def book_outcome(
        self, indices: Sequence[int], outcome: Outcome, details: Mapping[int, object] | None
    ) -> None:
        """Count the outcomes."""
        self.outcomes[outcome] += len(indices)

    async def pause(self, until: float, *signals: Signal, through_stop: bool) -> None:
        """Wait, but not beyond the patience, except for a pace that the destination requested."""
        if through_stop:
            await wait_until(LOOP_CLOCK, until, *signals)
            return
        now = LOOP_CLOCK.now()
        if self._until is None:
            self._until = now + self._patience
        await wait_until(LOOP_CLOCK, min(until, self._until), *signals)
        self.stopping, self._is_used_up = (
            self._is_used_up,
            LOOP_CLOCK.now() >= self._until,
        )  # one more attempt first

    def retrying(self, kind: ErrorClass, items: int, delay: float) -> None:
        """Count the retry, also one without a pause."""
        self.retries += 1


@dataclass(slots=True)
class ChunkResult:
    """The result of one chunk's write."""

    rows: int
    outcomes: Counter[Outcome]
    retries: int
    dead: list[tuple[dict[str, Any], BaseException]]
    stopped: int = 0
    """Number of rows skipped after a failed row of their key, parked or returned."""


class Task:
    """The write of one partition."""

    def __init__(
        self, worker: Worker, sink: Sink[Any], cuts: Cuts, *, unit: str, partition: int
    ) -> None:
        self._worker = worker
        self._sink = sink
        self._cuts = cuts
        self._unit = unit
        self._partition = partition
        self._free = threading.Semaphore(cuts.window)
        self._writing: set[asyncio.Task[Any]] = set()
        self._order = KeyFailurePolicy(cuts.on_key_failure, cuts.key)

    def run(
        self,
        batches: Iterable[pa.RecordBatch],
        on_dead: Callable[[dict[str, Any], BaseException], None],
    ) -> UnitReport:
        """Write every row; blocks until all writes have ended.

        `on_dead` is called with each row that failed for good, and may raise.
        """
        began, began_at = self._worker.loop.time(), LOOP_CLOCK.wall_time()
        counts: Counter[str] = Counter()
        flying: list[Future[ChunkResult]] = []
        before: Future[ChunkResult] | None = None
        cuts = self._cuts
        try:
            for chunk in mark_chunks(cuts.chunks(batches)):
                if chunk.continues and before is not None:
                    before.result()
                self._free.acquire()
                before = self._worker.start(self._write(chunk))
                before.add_done_callback(lambda _: self._free.release())
                flying.append(before)
                while flying and flying[0].done():
                    add_up(counts, flying.pop(0).result(), on_dead)
            for future in flying:
                add_up(counts, future.result(), on_dead)
        except BaseException:
            self._worker.start(self._cut_all()).result()
            raise
        return UnitReport(
            partition=self._partition,
            seconds=self._worker.loop.time() - began,
            began_at=began_at,
            skipped=False,
            **counts,
        )

    async def _cut_all(self) -> None:
        """Cancel all writes of a failed task, so that none overlaps with the next attempt."""
        writing = [*self._writing]
        for write in writing:
            write.cancel()
        await asyncio.gather(*writing, return_exceptions=True)

    async def _write(self, chunk: Chunk) -> ChunkResult:
        write = asyncio.current_task()
        assert write is not None
        self._writing.add(write)
        write.add_done_callback(self._writing.discard)
        return await write_chunk(
            self._sink, chunk, name=self._unit, patience=self._cuts.patience, order=self._order
        )


async def write_chunk(
    sink: Sink[Any], chunk: Chunk, *, name: str, patience: float, order: KeyFailurePolicy
) -> ChunkResult:
    """Write one chunk of the unit `name`; suspends until its write has ended.

    Raises `CancelledError` only.
    """
    host = ChunkHost(patience)
    rows = chunk.rows.num_rows
    lineage = Lineage(id=f"{name}-{chunk.number}{chunk.mark}", reason=Reason.SIZE, name=name)
    batch = ArrowBatch(
        chunk.rows,
        lineage=lineage,
        delivery=Delivery(rows, books=host, pacing=Pacing(None, backoffs=host)),
        keys=order.keys(chunk.rows),
    )
    errors, stopped = await order.send(sink, batch, chunk)
    return ChunkResult(
        rows,
        host.outcomes,
        host.retries,
        [(batch.shown(index), errors[index]) for index in sorted(errors)],
        stopped,
    )


def add_up(
    counts: Counter[str],
    written: ChunkResult,
    on_dead: Callable[[dict[str, Any], BaseException], None],
) -> None:
    """Add a chunk's result to the counts of its unit."""
    counts["rows"] += written.rows
    counts["chunks"] += 1
    counts["retries"] += written.retries
    counts["stopped"] += written.stopped
    for outcome, number in written.outcomes.items():
        counts["delivered" if outcome is Outcome.SPOOLED else outcome.value] += number
    counts["failed"] += len(written.dead)
    for row, error in written.dead:
        on_dead(row, error)
