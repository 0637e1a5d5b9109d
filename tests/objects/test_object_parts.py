"""Writes of several objects: each is encoded at its turn and settled once it is stored.

White box: the encoder is watched, to see what is encoded when.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.http.http_help import Server, hang, reply, serving
from tests.objects.object_help import items_in
from tests.objects.test_object_refusals import CONFIG

from sluicegate import RefusedError, RowBatch, TransientError, UnavailableError, send
from sluicegate.errors import TimedOutError
from sluicegate.objects import ObjectSink, ParquetSink
from sluicegate.objects.sink import Reach
from sluicegate.objects.tables import ParquetEncoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.http.http_help import Reply, Request
    from tests.objects.object_help import Bucket

    from sluicegate.batcher import LoopClock

ITEMS = [{"part": n % 5, "n": n} for n in range(10)]


class Slow:
    """Confirms objects at once, except those of some parts, which it never confirms."""

    def __init__(self, hangs: Sequence[int]) -> None:
        self.server = Server()
        self.server.default = self._step
        self._hangs = tuple(f"part={part}/" for part in hangs)
        self.waits = asyncio.Event()

    async def _step(self, request: Request) -> Reply:
        if any(part in request.path for part in self._hangs):
            self.waits.set()
            return await hang()(request)
        return await reply(200, b"", etag='"tag"')(request)


def options(url: str) -> dict[str, Any]:
    config = {"endpoint": url, **CONFIG}
    return {"config": config, "partition_by": ["part"], "close_timeout": 0.01}


async def cut(write: asyncio.Task[Any]) -> None:
    write.cancel()
    await asyncio.wait([write])
    assert write.cancelled()


async def test_what_is_stored_is_delivered_although_the_write_is_cut(
    real_clock: LoopClock,
) -> None:
    """A retry sends only the others, so a batch with many partitions makes progress."""
    slow = Slow([3])
    async with (
        serving(slow.server),
        ObjectSink("s3://bucket", concurrency=1, **options(slow.server.url)) as sink,
    ):
        batch = RowBatch(ITEMS)
        write = asyncio.ensure_future(send(sink, batch))
        await slow.waits.wait()
        await cut(write)
        assert [ITEMS[index]["part"] for index in batch.unsettled()] == [3, 4, 3, 4]


async def test_a_store_that_stops_responding_ends_a_write_of_many_objects(
    real_clock: LoopClock,
) -> None:
    """Otherwise the write would take the timeout for each of its objects, and only then be an
    outage. Items that were not sent use up no attempt.
    """
    slow = Slow(range(1000))
    items = [{"part": n} for n in range(1000)]
    async with (
        serving(slow.server),
        ObjectSink("s3://b", concurrency=2, timeout=1.0, **options(slow.server.url)) as sink,
    ):
        errors = await send(sink, RowBatch(items))
    kinds = Counter(type(error) for error in errors.values())
    assert kinds == {TimedOutError: 2, UnavailableError: 998}
    assert len(slow.server.requests) == 2


async def test_an_object_that_always_takes_too_long_holds_back_no_other(
    real_clock: LoopClock,
) -> None:
    """It ends the first write, and comes last in the next one."""
    slow = Slow([0])
    async with (
        serving(slow.server),
        ObjectSink("s3://b", concurrency=1, timeout=0.6, **options(slow.server.url)) as sink,
    ):
        batch = RowBatch(ITEMS)
        for _ in range(2):
            await send(sink, batch)
        assert [ITEMS[index]["part"] for index in batch.unsettled()] == [0, 0]


def test_uploads_that_fail_beside_confirmed_ones_end_no_write() -> None:
    reach = Reach("s3://b")
    first, other = reach.begin(), reach.begin()
    reach.confirm()
    reach.fail(first, TimedOutError("late"))
    reach.fail(reach.begin(), RefusedError("this one"))
    reach.fail(reach.begin(), TransientError("this one"))
    assert reach.begin() == 1
    reach.fail(reach.begin(), UnavailableError("away"))
    for _ in range(2):
        with pytest.raises(UnavailableError, match="not sent") as caught:
            reach.begin()
        reach.fail(other, caught.value)
        assert len(caught.traceback) == 2


async def test_only_the_files_that_are_being_stored_are_in_memory(
    real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    encode = ParquetEncoder.file

    def file(encoder: ParquetEncoder, table: Any) -> memoryview:
        made.append(table.num_rows)
        return encode(encoder, table)

    slow = Slow(range(1, 5))
    schema = {"n": "int64"}
    async with serving(slow.server):
        settings = options(slow.server.url)
        sink = ParquetSink("s3://bucket", schema=schema, concurrency=2, **settings)
        monkeypatch.setattr(ParquetEncoder, "file", file)
        async with sink:
            write = asyncio.ensure_future(send(sink, RowBatch(ITEMS)))
            await slow.waits.wait()
            await cut(write)
    assert made
    assert len(made) <= 3, "one is stored, and two are being stored"


async def test_a_write_again_replaces_the_objects_of_the_first(
    real_clock: LoopClock, bucket: Bucket
) -> None:
    """The names are the same, whether a batch is one object or several, and whichever objects
    remain.
    """
    lineage = RowBatch(ITEMS).lineage
    for by in (None, ["part"]):
        sink = ObjectSink(bucket.url, config=bucket.config, partition_by=by)
        async with sink:
            for _ in range(2):
                assert await send(sink, RowBatch(ITEMS, lineage=lineage)) == {}
            batch = RowBatch(ITEMS, lineage=lineage)
            if by is not None:
                assert await send(sink, batch.pick([1, 6])) == {}
    found = sorted(items_in(bucket.objects()), key=lambda item: item["n"])
    assert found == [item for item in ITEMS for _ in range(2)]
    assert len(bucket.objects()) == 1 + 5
