"""P-T11: the treatment of a key's later rows, across chunks, with any sink. White box: chunks
without Spark, besides writes.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("pyspark")
import pyarrow as pa
from tests.properties import examples
from tests.spark.sql import query

from sluicegate import (
    Batch,
    Capabilities,
    ConfigError,
    DeadLetter,
    PermanentError,
    Retry,
    WriteResult,
    stack,
)
from sluicegate._core.order.left_out import stopped_behind
from sluicegate.files import FileSink
from sluicegate.postgres import PostgresSink
from sluicegate.spark import DeadLettersError, write_dataframe
from sluicegate.spark.task.chunks import cut
from sluicegate.spark.task.key_failure import KeyFailurePolicy
from sluicegate.spark.task.task import write_chunk

if TYPE_CHECKING:
    from pathlib import Path


class Shelf:
    """Stores all rows but the bad ones."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.writes = 0

    async def write(self, batch: Batch[Any]) -> WriteResult:
        self.writes += 1
        errors: dict[int, BaseException] = {
            i: PermanentError("bad") for i, row in enumerate(batch) if row["bad"]
        }
        errors |= self.stopped(batch, errors)
        self.rows += [row for i, row in enumerate(batch) if i not in errors]
        return WriteResult.failed(batch, errors)

    def stopped(
        self, batch: Batch[Any], errors: dict[int, BaseException]
    ) -> dict[int, BaseException]:
        return {}


class SafeShelf(Shelf):
    """Leaves out rows behind a bad one itself."""

    capabilities = Capabilities(key_prefix_safe=True)

    def stopped(
        self, batch: Batch[Any], errors: dict[int, BaseException]
    ) -> dict[int, BaseException]:
        return {**stopped_behind(batch.keys, errors)}


def written(
    sink: Any, rows: list[tuple[int, bool]], policy: Any, chunk_rows: int
) -> tuple[list[tuple[int, str]], int, dict[str, int]]:
    """The dead rows by number with their errors, the number of rows left out, and the outcomes of
    the others; rows come grouped by key.
    """
    table = pa.record_batch(
        {"n": range(len(rows)), "k": [key for key, _ in rows], "bad": [bad for _, bad in rows]}
    )

    async def run() -> Any:
        order = KeyFailurePolicy(policy, ("k",))
        chunks = cut([table] if rows else [], max_rows=chunk_rows, max_bytes=1 << 20, key=("k",))
        ended = [
            await write_chunk(sink, chunk, name="u", patience=1.0, order=order) for chunk in chunks
        ]
        outcomes: dict[str, int] = {}
        for each in ended:
            for outcome, count in each.outcomes.items():
                outcomes[outcome.value] = outcomes.get(outcome.value, 0) + count
        dead = [(row["n"], type(error).__name__) for each in ended for row, error in each.dead]
        return dead, sum(each.stopped for each in ended), outcomes

    return asyncio.run(run())  # type: ignore[no-any-return]


keyed_rows = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 5).map(lambda n: n == 0)), max_size=30
).map(lambda rows: sorted(rows, key=lambda row: row[0]))
ACROSS_CHUNKS = [(0, False), (0, True), (0, False), (0, False), (0, False), (1, False)]
"""A key that is stopped in one chunk and goes on in the next ones."""


@examples(50, long=150)
@example(rows=ACROSS_CHUNKS, chunk_rows=2, safe=False, dead_letters=False, policy="stop")
@example(rows=ACROSS_CHUNKS, chunk_rows=1, safe=True, dead_letters=True, policy="park")
@given(
    rows=keyed_rows,
    chunk_rows=st.integers(1, 12),
    safe=st.booleans(),
    dead_letters=st.booleans(),
    policy=st.sampled_from(["park", "stop"]),
)
def test_of_each_key_a_prefix_is_written_and_nothing_is_forgotten(
    rows: list[tuple[int, bool]], chunk_rows: int, safe: bool, dead_letters: bool, policy: str
) -> None:
    """P-T11: in order, across chunk boundaries, with and without a dead-letter sink in the
    stack.
    """
    shelf, letters = SafeShelf() if safe else Shelf(), list[tuple[int, str]]()

    def keep(batch: Batch[Any]) -> None:
        letters.extend((record.item["n"], record.error_type) for record in batch)

    sink = stack(shelf, Retry(), *([DeadLetter(keep)] if dead_letters else []))
    dead, stopped, outcomes = written(sink, rows, policy, chunk_rows)
    first: dict[int, int] = {}
    for n, (key, bad) in enumerate(rows):
        if bad:
            first.setdefault(key, n)
    stored = [n for n, (key, _) in enumerate(rows) if n < first.get(key, len(rows))]
    behind = [n for n, (key, _) in enumerate(rows) if n > first.get(key, len(rows))]
    assert sorted(row["n"] for row in shelf.rows) == stored
    assert stopped == len(behind)
    name = "ParkedBehind" if policy == "park" else "KeyStopped"
    refused, held = (
        [(n, "PermanentError") for n in sorted(first.values())],
        [(n, name) for n in behind],
    )
    if dead_letters:
        kept = refused + held if policy == "park" else refused
        assert sorted(letters) == sorted(kept)
        for key in range(4):  # in order, the refused one first
            ours = [n for n, _ in letters if rows[n][0] == key]
            assert ours == sorted(ours)
        assert dead == ([] if policy == "park" else held)
    else:
        assert sorted(dead) == sorted(refused + held)
    assert outcomes.get("delivered", 0) == len(stored)
    assert outcomes.get("dead_lettered", 0) == len(letters)


# -- on a real Spark -------------------------------------------------------------------------------


@pytest.fixture
def sink(embedded_postgres: Any) -> PostgresSink:
    dsn = embedded_postgres.dsn
    query(
        dsn,
        "DROP TABLE IF EXISTS moves; CREATE TABLE moves (k bigint, n bigint CHECK (n <> "
        "500), nr serial)",
    )
    return PostgresSink(dsn, table="moves", columns=("k", "n"))


def moves(spark: Any) -> Any:
    """1,000 rows of 10 keys; row 51 of key 0 is bad."""
    return spark.range(0, 1000, numPartitions=2).selectExpr("id % 10 AS k", "id AS n")


def test_stop_the_key_and_no_other(spark: Any, sink: PostgresSink, embedded_postgres: Any) -> None:
    """P-T11, P-T12: in chunks smaller than a key; the first error is named, and the rows behind it
    are counted separately.
    """
    options: dict[str, Any] = {
        "key": "k",
        "order_by": "n",
        "buckets": 2,
        "chunk_rows": 30,
        "on_key_failure": "stop",
    }
    report = write_dataframe(moves(spark), stack(sink, Retry()), dead_letters="return", **options)
    assert (report.rows, report.delivered, report.failed, report.stopped) == (1000, 950, 50, 49)
    by_number = {dead.row["n"]: dead for dead in report.dead_rows}
    assert sorted(by_number) == list(range(500, 1000, 10))
    assert by_number[500].error_type == "PermanentError"
    assert {dead.error_type for number, dead in by_number.items() if number > 500} == {"KeyStopped"}
    assert "an earlier item of its key failed: PermanentError: " in by_number[990].message
    assert 'violates check constraint "moves_n_check"' in by_number[990].message
    found = query(embedded_postgres.dsn, "SELECT n FROM moves WHERE k = 0 ORDER BY nr")
    assert found == [(n,) for n in range(0, 500, 10)]
    with pytest.raises(DeadLettersError, match="50 of 1000 rows failed for good"):
        write_dataframe(moves(spark), sink, **options)


def test_park_the_key_in_order(spark: Any, sink: PostgresSink, tmp_path: Path) -> None:
    """P-T11: the rows behind can be written again in order once the bad row is repaired."""
    letters = FileSink(
        tmp_path / "letters.jsonl",
        encode=lambda record: json.dumps([record.item["n"], record.error_type]),
    )
    report = write_dataframe(
        moves(spark).filter("k = 0"),
        stack(sink, DeadLetter(letters)),
        key="k",
        order_by="n",
        buckets=1,
        chunk_rows=30,
        on_key_failure="park",
    )
    assert (report.rows, report.delivered, report.dead_letters, report.failed, report.stopped) == (
        100,
        50,
        50,
        0,
        49,
    )
    found = [json.loads(line) for line in (tmp_path / "letters.jsonl").read_text().splitlines()]
    assert found == [[500, "PermanentError"], *([n, "ParkedBehind"] for n in range(510, 1000, 10))]


def test_a_bucket_keeps_what_was_in_order(
    spark: Any, sink: PostgresSink, embedded_postgres: Any
) -> None:
    """P-T11 inside a transaction."""
    options: dict[str, Any] = {
        "key": "k",
        "order_by": "n",
        "buckets": 2,
        "chunk_rows": 30,
        "delivery": "bucket",
        "app_id": "moves",
    }
    report = write_dataframe(
        moves(spark), sink, version=1, dead_letters="return", on_key_failure="stop", **options
    )
    assert (report.delivered, report.failed, report.stopped) == (950, 50, 49)
    assert query(
        embedded_postgres.dsn, "SELECT count(*), max(n) FILTER (WHERE k = 0) FROM moves"
    ) == [(950, 490)]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"on_key_failure": "stop"}, "on_key_failure='stop': has no meaning without key"),
        ({"on_key_failure": "wait", "key": "k"}, "on_key_failure='wait': must be one of"),
    ],
)
def test_mistakes_are_told(
    spark: Any, sink: PostgresSink, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        write_dataframe(moves(spark), sink, **options)


def test_parked_rows_need_a_single_store(spark: Any, sink: PostgresSink, tmp_path: Path) -> None:
    stores = [FileSink(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    bad, later = (
        DeadLetter(stores[0], take=("permanent",)),
        DeadLetter(stores[1], take=("given_up",)),
    )
    with pytest.raises(ConfigError, match=r"on_key_failure='park': needs a single DeadLetter"):
        write_dataframe(
            moves(spark), stack(sink, bad, later), key="k", order_by="n", on_key_failure="park"
        )
