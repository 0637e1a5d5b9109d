"""Memory of large records: a fetch is limited in bytes, and a record of any size is delivered.

White box: a smaller page.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from sluicegate import Consumer
from sluicegate.consumer import InFlight
from sluicegate.postgres import PostgresQueueSource, PostgresStreamSource, QueueAdmin, StreamReader
from sluicegate.postgres.streams import reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.postgres.streams.log_help import Log

    from sluicegate import Message

pytestmark = pytest.mark.usefixtures("real_clock")

MIB = 1 << 20
WINDOW, RECORD, RECORDS = 4 * MIB, MIB // 2, 36
VALUES = {
    "compressed": f"to_jsonb(repeat(md5(i::text), {RECORD // 32}))",
    "plain": f"(SELECT to_jsonb(string_agg(md5(i || ' ' || n), '')) FROM generate_series(1, {RECORD // 32}) n)",
}
PLACES = {
    "keys": ("job (queue, key, payload)", "'jobs', 'key ' || i"),
    "one key": ("job (queue, key, payload)", "'jobs', 'key'"),
    "no keys": ("job (queue, key, payload)", "'jobs', NULL"),
    "streams": ("message (stream, version, type, data)", "'s-' || i, 0, 't'"),
    "one stream": ("message (stream, version, type, data)", "'s-1', i - 1, 't'"),
}


async def warm(log: Log, place: str) -> None:
    """Handle nothing, so that no module is loaded later."""
    async with QueueAdmin(log.dsn, schema=log.schema) as admin:
        await admin.create("jobs")
    assert await handled(log, place) == []


async def fill(log: Log, place: str, value: str, records: int = RECORDS) -> None:
    table, first = PLACES[place]
    async with log.connected() as con:
        await con.execute(
            f"INSERT INTO {log.sql}.{table} "
            f"SELECT {first}, {value} FROM generate_series(1, {records}) i"
        )


def source(log: Log, place: str) -> PostgresQueueSource | PostgresStreamSource:
    if "stream" in place:
        return PostgresStreamSource(log.dsn, subscription="s", schema=log.schema, ends=True)
    return PostgresQueueSource(log.dsn, queue="jobs", schema=log.schema, ends=True)


@contextmanager
def peak_below(most: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        yield
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peak < most, f"{peak / MIB:.1f} of {most / MIB:.1f} MiB"


async def handled(log: Log, place: str, **options: Any) -> list[tuple[str, int]]:
    """Handle everything, and let the window fill meanwhile; return keys and offsets, in order."""
    found: list[tuple[str, int]] = []

    async def handle(message: Message) -> None:
        assert len(message.value) == RECORD + 2
        found.append((str(message.key), message.offset))
        for _ in range(50):
            await asyncio.sleep(0)

    made: dict[str, Any] = {"in_flight": InFlight(bytes=WINDOW), "concurrency": 2, **options}
    report = await Consumer(source(log, place), name="test", **made).run(handle)
    assert report.complete
    return found


each_value = pytest.mark.parametrize(
    "value", ["compressed", pytest.param("plain", marks=pytest.mark.long)]
)


each_place = pytest.mark.parametrize(
    "place",
    [pytest.param(each, marks=pytest.mark.long) if each == "one key" else each for each in PLACES],
)


@each_value
@each_place
async def test_memory_is_twice_the_window_and_a_record(log: Log, place: str, value: str) -> None:
    await warm(log, place)
    await fill(log, place, VALUES[value])
    with peak_below(2 * (WINDOW + RECORD)):
        found = await handled(log, place)
    assert len(set(found)) == len(found) == RECORDS
    if place.startswith("one"):
        assert found == sorted(found)


@each_place
async def test_a_record_larger_than_the_window_is_delivered(log: Log, place: str) -> None:
    await warm(log, place)
    await fill(log, place, VALUES["compressed"], 12)
    with peak_below(8 * RECORD):  # handled, fetched, and in the driver
        assert len(await handled(log, place, in_flight=InFlight(bytes=1000))) == 12


async def test_keyless_jobs_are_claimed_beside_large_ones_of_keys(log: Log) -> None:
    """A limit that jobs of keys use up leaves at least one job without a key to each claim."""
    await warm(log, "keys")
    await fill(log, "keys", VALUES["compressed"], 12)
    async with log.connected() as con:
        await con.execute(
            f"INSERT INTO {log.sql}.job (queue, payload) "
            f"SELECT 'jobs', {VALUES['compressed']} FROM generate_series(1, 6) i"
        )
    found = await handled(log, "keys", in_flight=InFlight(bytes=1000), concurrency=1)
    assert len(found) == 18
    assert "None" not in [key for key, _ in found[12:]]


@each_value
async def test_a_reader_holds_pages_that_are_limited_in_bytes(
    log: Log, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PAGE_BYTES", WINDOW)
    await fill(log, "one stream", VALUES[value])
    async with log.connected() as con:
        reader = StreamReader(con, schema=log.schema)
        with peak_below(3 * (WINDOW + RECORD)):  # as text, as JSON, and in the driver
            for limit in (None, 7):
                versions = range(RECORDS)[:limit]
                assert [m.version async for m in reader.read("s-1", limit=limit)] == [*versions]
                assert [m.version async for m in reader.scan(limit=limit)] == [*versions]
