"""`ClickHouseSink` with servers that are killed, stopped or full, and with missing permissions.

White box: errors are judged by the class that a retry would see.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.clickhouse.clickhouse_help import Words, told, written

from sluicegate import (
    Backoff,
    Batcher,
    ConfigError,
    ErrorClass,
    Limits,
    Outcome,
    RefusedError,
    Retry,
    RowBatch,
    ThrottledError,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
    send,
    stack,
)
from sluicegate._core.classify import classified
from sluicegate.batcher import LoopClock

if TYPE_CHECKING:
    from tests.clickhouse.servers import EngineServer

pytestmark = pytest.mark.usefixtures("real_clock")
COUNT = 2000
ENDLESS = "SELECT count() FROM system.numbers"


async def _through_deaths(words: Words) -> tuple[list[Outcome], list[tuple[str, ...]]]:
    """Write rows while the server is killed twice; return the outcomes and the table."""
    await asyncio.to_thread(words.make)
    program = words.server.program
    retry = Retry(attempts=20, give_up_after=60.0, backoff=Backoff(base=0.05, jitter="none"))
    receipts: list[Any] = []
    async with Batcher(
        stack(words.sink(), retry), limits=Limits(max_items=50, max_delay=0.01, workers=4)
    ) as batcher:

        async def produce() -> None:
            for number in range(COUNT):
                receipts.append(await batcher.submit((number, "w")))
                if number % 20 == 0:
                    await LoopClock().sleep(0.001)

        producing = asyncio.create_task(produce())
        for least in (COUNT // 4, COUNT // 2):
            while sum(receipt.done for receipt in receipts[:least]) < least:
                await LoopClock().sleep(0.01)
            await asyncio.to_thread(program.kill)
            await asyncio.to_thread(program.start)
        await producing
        outcomes = [await receipt.settled() for receipt in receipts]
    return list(outcomes), await words.looked()


@pytest.mark.long
async def test_a_server_that_is_killed_under_load(old: Words) -> None:
    """Without tokens: nothing is lost, and every duplicated row had an unknown outcome."""
    outcomes, rows = await _through_deaths(old)
    assert {*outcomes} <= {Outcome.DELIVERED, Outcome.DUPLICATE}
    assert sorted({*rows}, key=lambda row: int(row[0])) == told([(n, "w") for n in range(COUNT)])
    assert len(rows) - COUNT <= 2 * 4 * 50


@pytest.mark.long
async def test_an_engine_that_is_killed_under_load(engine: EngineServer) -> None:
    """With tokens: every row is stored once."""
    words = Words(engine)
    outcomes, rows = await _through_deaths(words)
    assert {*outcomes} <= {Outcome.DELIVERED, Outcome.DUPLICATE}
    assert rows == told([(number, "w") for number in range(COUNT)])


async def test_an_answer_that_is_lost(words: Words) -> None:
    """batcher/B38: the batch that is sent again is stored once."""
    program = words.server.program
    async with words.sink() as patient, words.sink(timeout=0.5) as sink:
        batch = RowBatch([(1, "a"), (2, "b")])
        await asyncio.to_thread(program.pause)
        try:
            errors = await send(sink, batch)
        finally:
            await asyncio.to_thread(program.resume)
        assert {classified(error, sink.classify) for error in errors.values()} == {
            ErrorClass.UNKNOWN
        }
        assert await send(patient, batch) == {}  # a busy machine is slow
    assert await words.looked() == told([(1, "a"), (2, "b")])


async def test_an_old_server_that_is_stopped(old: Words) -> None:
    """Rows sent to it are stored when it continues, and again if they are resent."""
    program = old.server.program
    async with old.sink(timeout=0.5) as sink:
        await asyncio.to_thread(program.pause)
        try:
            errors = await written(sink, [(1, "a")])
        finally:
            await asyncio.to_thread(program.resume)
        assert isinstance(errors[0], UnknownOutcomeError)


async def test_a_server_that_is_down(old: Words) -> None:
    program = old.server.program
    async with old.sink() as sink:
        await asyncio.to_thread(program.kill)
        try:
            assert isinstance((await written(sink, [(1, "a")]))[0], UnavailableError)
            with pytest.raises(UnavailableError):
                async with old.sink():
                    pass
        finally:
            await asyncio.to_thread(program.start)
        assert await written(sink, [(1, "a")]) == {}
    assert await old.looked() == told([(1, "a")])


async def test_a_user_that_may_not_write_gives_no_row_up(old: Words) -> None:
    """Permissions on the server and on a database."""
    async with old.sink(auth=("reader", "secret")) as sink:
        errors = await written(sink, [(1, "a"), (2, "b")])
        assert {*errors} == {0, 1}
        assert isinstance(errors[0], RefusedError)
        assert "give the user a profile without readonly" in str(errors[0])
    with pytest.raises(ConfigError, match="grant the user"):
        async with old.sink(auth=("elsewhere", "secret"), database="default"):
            pass
    assert await old.looked() == []


async def test_too_many_parts_are_a_throttle(old: Words) -> None:
    """Until the server has merged them."""
    old.make(after=" SETTINGS parts_to_throw_insert = 2, parts_to_delay_insert = 2")
    old.server.run("SYSTEM STOP MERGES")
    async with old.sink() as sink:
        assert await written(sink, [(1, "a")]) == {}
        assert await written(sink, [(2, "b")]) == {}
        errors = await written(sink, [(3, "c"), (4, "d")])
        assert {type(error) for error in errors.values()} == {ThrottledError}
        old.server.run("SYSTEM START MERGES")
        old.server.run("OPTIMIZE TABLE words FINAL")
        assert await written(sink, [(3, "c"), (4, "d")]) == {}
    assert await old.looked() == told([(1, "a"), (2, "b"), (3, "c"), (4, "d")])


async def test_too_many_queries_are_a_throttle(old: Words) -> None:
    """Insufficient memory is not the fault of a row, either."""
    async with old.sink(settings={"max_concurrent_queries_for_user": 1}) as sink:
        other = asyncio.create_task(asyncio.to_thread(old.server.run, ENDLESS))
        while ENDLESS not in await asyncio.to_thread(old.server.run, "SHOW PROCESSLIST"):
            pass
        assert type((await written(sink, [(1, "a")]))[0]) is ThrottledError
        kill = f"KILL QUERY WHERE query LIKE '{ENDLESS}%' SYNC"
        await asyncio.to_thread(old.server.run, kill)
        with pytest.raises(RuntimeError, match="cancelled"):
            await other
        assert await written(sink, [(1, "a")]) == {}
    async with old.sink(settings={"max_memory_usage": 1}) as sink:
        rows = [(number, "x" * 100) for number in range(10_000)]
        errors = await written(sink, rows)
        assert {type(error) for error in errors.values()} == {TransientError}
        assert len(errors) == len(rows)
    assert await old.looked() == told([(1, "a")])
