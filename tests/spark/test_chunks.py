"""Cutting a partition into chunks. White box: the cuts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
from tests.properties import examples  # noqa: E402

from sluicegate.spark.task.chunks import Chunk, cut  # noqa: E402


def batches(keys: list[Any], sizes: list[int]) -> list[Any]:
    """The keys with a running number, in record batches of these sizes."""
    rows = pa.record_batch(
        {"key": pa.array(keys, pa.int64()), "number": pa.array(range(len(keys)), pa.int64())}
    )
    made: list[Any] = []
    start = 0
    for size in itertools.cycle(sizes):
        if start >= len(keys):
            return made
        made.append(rows.slice(start, size))
        start += size
    return made


def numbers(chunks: list[Chunk]) -> list[list[int]]:
    return [chunk.rows.column("number").to_pylist() for chunk in chunks]


@given(
    keys=st.lists(
        st.tuples(st.one_of(st.none(), st.integers(0, 9)), st.integers(1, 9)), max_size=12
    ),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    max_rows=st.integers(1, 12),
)
@examples(60, long=300)
def test_every_row_once_in_order_and_no_key_in_two_chunks_at_a_time(
    keys: list[tuple[Any, int]], sizes: list[int], max_rows: int
) -> None:
    """P-T20: a chunk that continues a key says so, and only if the key is larger than a chunk."""
    distinct = list(dict(keys).items())
    flat = [key for key, count in distinct for _ in range(count)]
    chunks = list(cut(batches(flat, sizes), max_rows=max_rows, max_bytes=1 << 30, key=["key"]))
    assert [n for part in numbers(chunks) for n in part] == list(range(len(flat)))
    assert all(0 < chunk.rows.num_rows <= max_rows for chunk in chunks)
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    for before, after in itertools.pairwise(chunks):
        last, first = before.rows.column("key")[-1].as_py(), after.rows.column("key")[0].as_py()
        assert after.continues == (last == first)
        if after.continues:
            assert set(before.rows.column("key").to_pylist()) == {first}, (
                "a key was cut although a boundary was there"
            )


def test_cuts_do_not_depend_on_how_the_rows_arrive() -> None:
    """The basis of P-T4: recomputed rows are cut in the same places."""
    keys = [i // 7 for i in range(1000)]
    one = numbers(list(cut(batches(keys, [1000]), max_rows=64, max_bytes=1 << 30, key=["key"])))
    assert one == numbers(
        list(cut(batches(keys, [10, 3, 50]), max_rows=64, max_bytes=1 << 30, key=["key"]))
    )


def test_bytes_are_a_bound_too() -> None:
    rows = pa.record_batch({"text": ["x" * 1000] * 100})
    chunks = list(cut([rows] * 3, max_rows=10_000, max_bytes=10_000))
    assert sum(chunk.rows.num_rows for chunk in chunks) == 300
    assert max(chunk.rows.num_rows for chunk in chunks) <= 10


def test_empty_batches_make_no_chunk() -> None:
    assert (
        list(cut([pa.record_batch({"a": pa.array([], pa.int64())})], max_rows=1, max_bytes=1)) == []
    )
