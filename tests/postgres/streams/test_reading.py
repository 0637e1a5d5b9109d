"""Readers of a log: a stream by version, other selections by position up to the horizon.

White box: the type of a stored message is private.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from sluicegate import ConfigError, RefusedError
from sluicegate.postgres import NewMessage, StreamLog, StreamReader, SyncStreamReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Iterable

    from tests.postgres.streams.log_help import Log

    from sluicegate.postgres.streams.message import StoredMessage


async def numbers(messages: AsyncIterable[StoredMessage]) -> list[int]:
    return [message.data["n"] async for message in messages]


def numbers_of(messages: Iterable[StoredMessage]) -> list[int]:
    return [message.data["n"] for message in messages]


async def filled(log: Log, con: Any) -> list[int]:
    """Append 1 to 9 to three streams in turn; return their positions."""
    streams = ("order-1", "order-2", "user-1")
    return [
        position
        for number in range(1, 10)
        for position in await log.append(con, streams[(number - 1) % 3], number)
    ]


async def test_a_stored_message_is_what_was_appended(log: Log, real_clock: object) -> None:
    async with log.connected() as con:
        new = NewMessage("OrderPlaced", {"n": 1, "é": [None, 1.5]}, metadata={"trace": "t"})
        (appended,) = await StreamLog(log.schema).append(con, "order-1", new)
        (read,) = [each async for each in StreamReader(con, schema=log.schema).read("order-1")]
    assert (read.stream, read.type, read.version) == ("order-1", "OrderPlaced", 0)
    assert (read.data, read.metadata) == ({"n": 1, "é": [None, 1.5]}, {"trace": "t"})
    assert (read.position, read.id, read.at) == (appended.position, appended.id, appended.at)


async def test_a_stream_is_read_by_version_in_both_directions(log: Log, real_clock: object) -> None:
    """S20: pages of two messages."""
    async with log.connected() as con:
        await log.append(con, "a-1", *range(7))
        await log.append(con, "a-2", 99)
        reader = StreamReader(con, schema=log.schema, page=2)
        assert await numbers(reader.read("a-1")) == [0, 1, 2, 3, 4, 5, 6]
        assert await numbers(reader.read("a-1", start=3)) == [3, 4, 5, 6]
        assert await numbers(reader.read("a-1", start=3, limit=3)) == [3, 4, 5]
        assert await numbers(reader.read("a-1", limit=0)) == []
        assert await numbers(reader.read("missing")) == []


async def test_inside_a_transaction_a_stream_has_what_was_appended_there(
    log: Log, real_clock: object
) -> None:
    async with log.connected() as con, con.transaction():
        await log.append(con, "a", 1, 2)
        reader = StreamReader(con, schema=log.schema)
        assert await numbers(reader.read("a")) == [1, 2]
        assert await numbers(reader.scan()) == [], "behind its own mark"


async def test_a_scan_has_the_selected_streams_by_position(log: Log, real_clock: object) -> None:
    """S20, S18: a category, names, wildcards, everything."""
    async with log.connected() as con:
        positions = await filled(log, con)
        reader = StreamReader(con, schema=log.schema, page=2)
        assert await numbers(reader.scan()) == [*range(1, 10)]
        assert await numbers(reader.scan(category="order")) == [1, 2, 4, 5, 7, 8]
        assert await numbers(reader.scan(streams="user-1")) == [3, 6, 9]
        assert await numbers(reader.scan(streams=["user-*", "order-2"])) == [2, 3, 5, 6, 8, 9]
        assert await numbers(reader.scan(streams="*-1")) == [1, 3, 4, 6, 7, 9]
        assert await numbers(reader.scan(streams="order_1")) == [], "no wildcard of SQL's"
        assert await numbers(reader.scan(start=positions[6])) == [7, 8, 9]


async def test_a_scan_ends_before_a_message_that_an_open_transaction_may_precede(
    log: Log, real_clock: object
) -> None:
    """P3: the next scan, from the position behind the last one, has both in order."""
    async with log.connected() as con, log.connected() as other:
        await log.append(con, "a-1", 1)
        open_one = other.transaction()
        await open_one.start()
        await log.append(other, "b-1", 2)
        await log.append(con, "a-1", 3)
        reader = StreamReader(con, schema=log.schema)
        (first,) = [each async for each in reader.scan()]
        assert first.data == {"n": 1}
        assert await numbers(reader.read("a-1")) == [1, 3], "a stream alone is complete"
        await open_one.commit()
        assert await numbers(reader.scan(start=first.position + 1)) == [2, 3]


async def test_a_scan_from_a_time_has_the_messages_at_it_and_later(
    log: Log, real_clock: object
) -> None:
    """S-T5: for every time in the log, with ties, and with times out of position order."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    seconds = [0, 1, 1, 5, 3, 1, 7]
    async with log.connected() as con:
        for number, second in enumerate(seconds):
            await con.execute(
                f"INSERT INTO {log.sql}.message (stream, version, type, data, at) "
                "VALUES ('a', $1, 't', jsonb_build_object('n', $1::bigint), $2)",
                number,
                begin + timedelta(seconds=second),
            )
        reader = StreamReader(con, schema=log.schema, page=2)
        for second in range(-1, 9):
            expected = [n for n, at in enumerate(seconds) if at >= second]
            start = begin + timedelta(seconds=second)
            assert await numbers(reader.scan(start=start)) == expected


async def test_following_goes_on_with_messages_as_they_are_appended(
    log: Log, real_clock: object
) -> None:
    """S20, S-T5: never earlier messages, always those after the start."""
    async with log.connected() as con, log.connected() as other:
        await log.append(other, "a-1", 1)
        reader = StreamReader(con, schema=log.schema, page=2)
        live = reader.follow(category="a", poll=0.01)
        first = asyncio.ensure_future(anext(live))
        whole = reader_of(log, con)
        while not first.done():  # until its start has been read, appended messages are earlier
            await log.append(other, "a-1", 2)
            await log.append(other, "b-1", 3)
            await asyncio.wait([first], timeout=0.01)
        assert (await first).data == {"n": 2}
        await live.aclose()
        assert len(await numbers(whole.scan(category="a"))) > 1


def reader_of(log: Log, con: Any) -> StreamReader:
    return StreamReader(con, schema=log.schema)


async def test_following_from_next_leaves_out_what_was_visible_behind_the_horizon(
    log: Log, real_clock: object
) -> None:
    """S-T5: a message of a transaction that was open at the start is delivered."""
    async with log.connected() as con, log.connected() as other:
        open_one = other.transaction()
        await open_one.start()
        await log.append(other, "open", 1)
        await log.append(con, "there", 2)
        reader = StreamReader(con, schema=log.schema)
        live = reader.follow(poll=0.01, timeout=0.05)
        assert await numbers(live) == []
        begun = asyncio.Event()
        con.add_query_logger(lambda record: begun.set() if "m.position >" in record.query else None)
        waiting = asyncio.ensure_future(numbers(reader.follow(poll=0.01, limit=2)))
        await begun.wait()
        async with log.connected() as third:
            await log.append(third, "later", 3)
        await open_one.commit()
        assert await waiting == [1, 3]


async def test_following_from_a_time_has_everything_appended_later_whatever_the_clock_says(
    log: Log, real_clock: object
) -> None:
    """S-T5: a clock that jumps back hides nothing."""
    async with log.connected() as con, log.connected() as other:
        await log.append(con, "a", 1)
        start = datetime.now(UTC) + timedelta(hours=1)
        live = StreamReader(con, schema=log.schema).follow(start=start, poll=0.01, limit=1)
        waiting = asyncio.ensure_future(numbers(live))
        while not waiting.done():
            await log.append(other, "a", 2)
            await asyncio.wait([waiting], timeout=0.01)
        assert await waiting == [2]


async def test_following_ends_after_the_timeout_and_waits_again_after_a_message(
    log: Log, real_clock: object
) -> None:
    """S20."""
    async with log.connected() as con:
        await log.append(con, "a", 1, 2)
        live = StreamReader(con, schema=log.schema).follow(start="beginning", timeout=0.03)
        assert await numbers(live) == [1, 2]


async def test_a_reader_holds_one_page(log: Log, real_clock: object) -> None:
    """A consumer that stops early has read no more than that, and its connection is free."""
    async with log.connected() as con:
        await log.append(con, "a", *range(100))
        seen: list[str] = []
        con.add_query_logger(lambda record: seen.append(record.query))
        reader = StreamReader(con, schema=log.schema, page=10)
        messages = reader.read("a")
        assert [(await anext(messages)).data["n"] for _ in range(10)] == [*range(10)]
        assert await con.fetchval("SELECT 1") == 1
        await asyncio.sleep(0)  # the driver reports a query in a callback
        assert len([query for query in seen if "LIMIT" in query]) == 1
        assert len(await numbers(messages)) == 90


def test_a_reader_that_blocks_reads_the_same(log: Log) -> None:
    """S20: with psycopg, including live reading."""

    async def fill() -> list[int]:
        async with log.connected() as con:
            return await filled(log, con)

    positions = asyncio.run(fill())
    with psycopg.connect(log.dsn, autocommit=True) as con:
        reader = SyncStreamReader(con, schema=log.schema, page=2)
        assert numbers_of(reader.read("order-1")) == [1, 4, 7]
        assert numbers_of(reader.scan(category="order", limit=4)) == [1, 2, 4, 5]
        assert numbers_of(reader.scan(streams=["user-*", "order-2"])) == [2, 3, 5, 6, 8, 9]
        live = reader.follow(start=positions[7], timeout=0.02, poll=0.01)
        assert numbers_of(live) == [8, 9]
        assert numbers_of(reader.follow(start="next", timeout=0.02, poll=0.01)) == []
        assert numbers_of(reader.scan(start=datetime.now(UTC) + timedelta(hours=1))) == []


@pytest.mark.parametrize(
    ("bad", "rule"),
    [
        ({"start": datetime(2026, 1, 1)}, "start=.*aware"),
        ({"start": "soon"}, "start='soon'.*beginning"),
        ({"start": -1}, "start=-1"),
        ({"limit": -1}, "limit=-1"),
        ({"category": "a-b"}, "category='a-b'.*before the first"),
        ({"category": "a", "streams": "b"}, "streams='b'.*beside category="),
        ({"streams": []}, r"streams=\[\]"),
        ({"streams": [1]}, r"streams=\[1\]"),
    ],
    ids=str,
)
def test_bad_arguments_are_named_at_once(bad: dict[str, Any], rule: str) -> None:
    reader: Any = StreamReader(None, page=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=rule):
        reader.scan(**bad)
    with pytest.raises(ConfigError, match="poll=0"):
        reader.follow(poll=0)
    with pytest.raises(ConfigError, match="page=0"):
        StreamReader(None, page=0)  # type: ignore[arg-type]


async def test_errors_name_the_repair(log: Log, real_clock: object) -> None:
    async with log.connected() as con:
        with pytest.raises(RefusedError, match="no log to read"):
            await numbers(StreamReader(con, schema="elsewhere").read("a"))
        async with con.transaction(isolation="repeatable_read"):
            with pytest.raises(ConfigError, match="READ COMMITTED"):
                await numbers(StreamReader(con, schema=log.schema).scan())
    wrong: Any = object()
    with pytest.raises(ConfigError, match="connection="):
        await numbers(StreamReader(wrong, schema=log.schema).scan())
