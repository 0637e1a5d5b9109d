"""Buckets, units and their transactions, without Spark. White box: a unit's task on its worker."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
from sluicegate import Batch, PermanentError, UnknownOutcomeError, WriteResult  # noqa: E402
from sluicegate.errors import NonDeterministicReplay, TransactionLost, UnitRefused  # noqa: E402
from sluicegate.sinks import MemorySink  # noqa: E402
from sluicegate.spark.content import CONTENT  # noqa: E402
from sluicegate.spark.keys import BUCKET, by_bucket  # noqa: E402
from sluicegate.spark.levels import Units  # noqa: E402
from sluicegate.spark.report import DeadLettersError  # noqa: E402
from sluicegate.spark.task.results import DeadRowBuffer  # noqa: E402
from sluicegate.spark.task.task import Cuts, Task  # noqa: E402
from sluicegate.spark.task.transaction import UnitTask  # noqa: E402
from sluicegate.spark.task.worker import Worker  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from sluicegate import Sink
    from sluicegate.sinks import Transaction, Unit
    from sluicegate.spark.report import UnitReport

CUTS = Cuts(chunk_rows=10, chunk_bytes=1 << 20, window=4, key=("key",))
UNITS = Units(application="job", version=7, buckets=4, key=("key",), in_transactions=True)


def rows(count: int, *, start: int = 0, at_once: int = 7) -> list[Any]:
    """Rows, five per key, in record batches of `at_once`."""
    numbers = range(start, start + count)
    made = pa.record_batch(
        {"key": pa.array([number // 5 for number in numbers]), "number": pa.array(numbers)}
    )
    return [made.slice(place, at_once) for place in range(0, count, at_once)]


@pytest.fixture
def here() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.close()


class Broken(MemorySink[Any]):
    """Its transactions fail at a write or at their commit, this many times."""

    def __init__(
        self,
        *,
        at_chunk: int | None = None,
        at_commit: int = 0,
        times: int = 1,
        is_applied: bool = False,
    ) -> None:
        super().__init__()
        self.at_chunk = at_chunk
        self.at_commit = at_commit
        self.times = times
        self.is_applied = is_applied
        self.sent: list[list[str]] = []

    @asynccontextmanager
    async def transaction(self, unit: Unit | None) -> AsyncIterator[Transaction[Any]]:
        self.sent.append([])
        async with super().transaction(unit) as tx:
            tx.write = self._breaking(tx.write)  # type: ignore[method-assign]
            yield tx
            if self.at_commit and not self.is_applied:
                self.at_commit -= 1
                raise UnknownOutcomeError("no answer to COMMIT")
        if self.at_commit:
            self.at_commit -= 1
            raise UnknownOutcomeError("no answer to COMMIT")

    def _breaking(self, write: Any) -> Any:
        async def broken(batch: Batch[Any]) -> WriteResult | None:
            self.sent[-1].append(batch.write_key)
            if len(self.sent[-1]) - 1 == self.at_chunk and self.times:
                self.times -= 1
                raise TransactionLost("the connection broke")
            result: WriteResult | None = await write(batch)
            return result

        return broken


def run(
    here: Worker,
    sink: Sink[Any],
    given_rows: Iterable[Any],
    *,
    buffer: int = 1 << 20,
    most: float = 0,
    bucket: int = 2,
) -> UnitReport:
    letters = DeadRowBuffer(bucket, 20, most)
    return UnitTask(
        here, sink, CUTS, UNITS.unit(bucket), buffer_bytes=buffer, dead_rows=letters
    ).run(given_rows)


def numbers(sink: MemorySink[Any]) -> list[int]:
    return [row["number"] for row in sink.items]


@given(
    sizes=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=8),
    at_once=st.integers(1, 9),
)
def test_buckets_come_one_after_the_other_with_all_their_rows(
    sizes: list[tuple[int, int]], at_once: int
) -> None:
    buckets = [
        10 * place + bucket for place, (bucket, count) in enumerate(sizes) for _ in range(count)
    ]
    whole = pa.record_batch(
        {"number": pa.array(range(len(buckets)), pa.int64()), BUCKET: pa.array(buckets, pa.int32())}
    )
    batches = [whole.slice(start, at_once) for start in range(0, len(buckets), at_once)]
    found = [
        (bucket, number)
        for bucket, part in by_bucket(batches)
        for batch in part
        for number in batch.column(0).to_pylist()
    ]
    assert found == list(zip(buckets, range(len(buckets)), strict=True))
    assert len([bucket for bucket, part in by_bucket(batches) if [*part]]) == len(set(buckets))


def test_a_unit_is_committed_once_and_a_replay_is_counted_from_the_ledger(here: Worker) -> None:
    """P-T5, P-T12: the second attempt writes nothing, and reports the counts of the first."""
    sink = MemorySink[Any]()
    first = run(here, sink, rows(33))
    assert (first.rows, first.delivered, first.chunks, first.skipped) == (33, 33, 4, False)
    again = run(here, sink, rows(33, at_once=4))
    assert (again.rows, again.delivered, again.duplicate, again.skipped) == (33, 0, 33, True)
    assert numbers(sink) == [*range(33)]


def hashed(hashes: list[int]) -> list[Any]:
    """Rows of one key, with these hashes."""
    return [
        pa.record_batch(
            {"key": pa.array([1]), "number": pa.array([place]), CONTENT: pa.array([each])}
        )
        for place, each in enumerate(hashes)
    ]


@pytest.mark.parametrize("broken", [{}, {"at_chunk": 1}, {"at_commit": 1, "is_applied": True}])
def test_hashes_are_summed_once_and_never_written(here: Worker, broken: dict[str, Any]) -> None:
    """However often the unit is repeated within its task; the sum wraps around, and does not depend
    on the order.
    """
    sink, hashes = Broken(**broken), [2**63 - 1, -5, 2**63 - 1, *range(20)]
    run(here, sink, hashed(hashes))
    assert {tuple(row) for row in sink.items} == {("key", "number")}
    assert [committed.counts.content for committed in sink.ledger.values()] == [-7 + sum(range(20))]
    assert run(here, sink, hashed(hashes[::-1])).skipped
    with pytest.raises(NonDeterministicReplay, match="another content"):
        run(here, sink, hashed([*hashes[1:], 0]))


def test_other_rows_under_the_same_name_are_refused(here: Worker) -> None:
    """P-T6: a different count, and another number of buckets."""
    sink = MemorySink[Any]()
    run(here, sink, rows(33))
    with pytest.raises(NonDeterministicReplay, match="33 rows, and now has 34"):
        run(here, sink, rows(34))
    changed = Units(application="job", version=7, buckets=5, key=("key",), in_transactions=True)
    with pytest.raises(UnitRefused):
        UnitTask(
            here, sink, CUTS, changed.unit(2), buffer_bytes=0, dead_rows=DeadRowBuffer(2, 20, 0)
        ).run(rows(33))


def test_two_attempts_at_the_same_time_have_one_effect(here: Worker) -> None:
    """P-T7: the second waits for the first, and then skips."""
    sink = MemorySink[Any]()
    inside, others_turn = threading.Event(), threading.Event()

    def slow() -> Iterator[Any]:
        yield from rows(35)
        inside.set()  # its third chunk was accepted, so the first was written
        others_turn.wait(10)
        yield from rows(5, start=35)

    def late() -> Iterator[Any]:
        yield from rows(20)
        others_turn.set()  # its first chunk waits before the transaction
        yield from rows(20, start=20)

    with ThreadPoolExecutor(1) as other:
        first = other.submit(run, here, sink, slow())
        assert inside.wait(10)
        second = run(here, sink, late())
    assert (first.result().delivered, first.result().skipped) == (40, False)
    assert (second.duplicate, second.skipped) == (40, True)
    assert numbers(sink) == [*range(40)]


@pytest.mark.parametrize("at_chunk", [0, 2, 3])
def test_a_lost_transaction_is_written_again_from_the_buffer(here: Worker, at_chunk: int) -> None:
    """P-T16: within the task, from the first chunk on, with the same write keys."""
    sink = Broken(at_chunk=at_chunk)
    report = run(here, sink, rows(40))
    assert (report.delivered, report.retries, report.skipped) == (40, 1, False)
    assert numbers(sink) == [*range(40)]
    broken, whole = sink.sent
    assert broken == whole[: at_chunk + 1]
    assert whole[0].startswith("job:7:2-0")
    assert len(set(whole)) == 4


def test_a_unit_that_does_not_fit_is_left_to_spark(here: Worker) -> None:
    """P-T16: its input cannot be read again; no row is kept."""
    sink = Broken(at_chunk=2)
    with pytest.raises(TransactionLost):
        run(here, sink, rows(40), buffer=200)
    assert sink.items == []
    assert len(sink.sent) == 1


def test_tries_come_to_an_end(here: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicegate.spark.task.transaction.FIRST_WAIT", 0.001)
    sink = Broken(at_chunk=0, times=100)
    with pytest.raises(TransactionLost):
        run(here, sink, rows(5))
    assert len(sink.sent) == 5


@pytest.mark.parametrize("is_applied", [False, True])
def test_a_commit_without_an_answer_is_settled_by_the_ledger(
    here: Worker, is_applied: bool
) -> None:
    """P-T16: applied or not, each row is present once."""
    sink = Broken(at_commit=1, is_applied=is_applied)
    report = run(here, sink, rows(40))
    assert report.delivered + report.duplicate == 40
    assert report.skipped == is_applied
    assert numbers(sink) == [*range(40)]


def test_reading_that_fails_leaves_nothing(here: Worker) -> None:
    """P-T8: the transaction is rolled back before the error propagates."""
    sink = MemorySink[Any]()

    def breaking() -> Iterator[Any]:
        yield from rows(33)
        raise OSError("the shuffle is gone")

    with pytest.raises(OSError, match="shuffle"):
        UnitTask(
            here, sink, CUTS, UNITS.unit(2), buffer_bytes=1 << 20, dead_rows=DeadRowBuffer(2, 20, 0)
        ).run(breaking())
    assert sink.items == []
    assert run(here, sink, rows(33)).delivered == 33


class Picky(MemorySink[Any]):
    """Refuses some numbers permanently."""

    @asynccontextmanager
    async def transaction(self, unit: Unit | None) -> AsyncIterator[Transaction[Any]]:
        async with super().transaction(unit) as tx:
            write = tx.write

            async def refusing(batch: Batch[Any]) -> WriteResult | None:
                bad = {
                    i: PermanentError("13")
                    for i, row in enumerate(batch)
                    if row["number"] % 20 == 13
                }
                await write(batch.pick([i for i in range(len(batch)) if i not in bad]))
                return WriteResult.failed(batch, bad) if bad else None

            tx.write = refusing  # type: ignore[method-assign]
            yield tx


def test_dead_rows_are_counted_or_roll_the_unit_back(here: Worker) -> None:
    """P-T10: over the limit nothing remains; within it the ledger counts them."""
    sink = Picky()
    with pytest.raises(DeadLettersError):
        run(here, sink, rows(40), most=1)
    assert sink.items == []
    report = run(here, sink, rows(40), most=2)
    assert (report.rows, report.delivered, report.failed) == (40, 38, 2)
    again = run(here, sink, rows(40), most=0)
    assert (again.rows, again.duplicate, again.failed, again.skipped) == (40, 38, 2, True)


def test_units_without_transactions_send_the_same_write_keys(here: Worker) -> None:
    """The interface for destinations that recognize idempotency keys, and for transactional ids of
    Kafka.
    """
    keys: list[set[str]] = []
    for at_once in (7, 3):
        sent: set[str] = set()

        class Keys:
            async def write(self, batch: Batch[Any], sent: set[str] = sent) -> None:
                sent.add(batch.write_key)

        Task(here, Keys(), CUTS, unit=UNITS.unit(3).name, partition=3).run(
            rows(40, at_once=at_once), DeadRowBuffer(3, 20, 0).add
        )
        keys.append(sent)
    assert keys[0] == keys[1]
    assert len(keys[0]) == 4
    assert all(key.startswith("job:7:3-") for key in keys[0])


def test_other_rows_under_an_old_name_have_another_write_key(here: Worker) -> None:
    """A destination that recognizes idempotency keys would mistake them for stored rows; no other
    check compares rows there.
    """
    keys: list[str] = []
    taken: list[dict[str, Any]] = []

    class Keys:
        async def write(self, batch: Batch[Any]) -> None:
            keys.append(batch.write_key.rpartition("-")[0])
            taken.extend(batch)

    for hashes in ([7, -7, 3], [3, 7, -7], [7, -7, 4], [5, -5, 4]):
        Task(here, Keys(), CUTS, unit=UNITS.unit(3).name, partition=3).run(
            hashed(hashes), DeadRowBuffer(3, 20, 0).add
        )
    assert keys == ["job:7:3-0-0000000000000003"] * 2 + ["job:7:3-0-0000000000000004"] * 2
    assert taken[:3] == [{"key": 1, "number": place} for place in range(3)]
