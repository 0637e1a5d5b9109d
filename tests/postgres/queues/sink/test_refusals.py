"""`PostgresQueueSink` with a full or missing queue, and a missing schema, permission or package."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest
from tests.postgres.queues.sink.queue_help import create_queue, item, sink, stored
from tests.postgres.streams.log_help import Log, role

from sluicegate import (
    ConfigError,
    ErrorClass,
    RefusedError,
    RowBatch,
    ThrottledError,
    UnavailableError,
    send,
)
from sluicegate.errors import MissingExtra
from sluicegate.postgres import PostgresQueueSink, install_streams

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock


def one_error(errors: dict[int, BaseException], size: int) -> BaseException:
    """The single error of all items."""
    assert len(errors) == size
    assert len({id(error) for error in errors.values()}) == 1
    return errors[0]


async def test_a_full_queue_throttles_and_takes_jobs_again_when_it_has_room(
    log: Log, real_clock: LoopClock
) -> None:
    """The error names the queue and its limit. Nothing of the write is enqueued."""
    await create_queue(log, max_depth=3)
    async with sink(log, key="key") as it:
        assert await send(it, RowBatch([item("a", n) for n in range(2)])) == {}
        batch = RowBatch([item("a", n) for n in range(2, 4)])
        error = one_error(await send(it, batch), 2)
        assert isinstance(error, ThrottledError)
        assert "'jobs'" in str(error)
        assert "max_depth is 3" in str(error)
        assert it.classify(error) is ErrorClass.THROTTLE
        assert len(await stored(log)) == 2
        async with log.connected() as con:
            await con.execute(f"DELETE FROM {log.sql}.job")
        assert await send(it, batch) == {}
    assert [each.n for each in await stored(log)] == [2, 3]


async def test_a_batch_of_more_jobs_than_a_queue_holds_is_refused_with_both_numbers(
    log: Log, real_clock: LoopClock
) -> None:
    await create_queue(log, max_depth=10)
    async with sink(log, key="key") as it:
        error = one_error(await send(it, RowBatch([item("a", n) for n in range(25)])), 25)
        assert isinstance(error, RefusedError)
        assert "the batch has 25 jobs" in str(error)
        assert "max_depth above 10" in error.repair
        assert await stored(log) == []
        assert await send(it, RowBatch([item("a", n) for n in range(10)])) == {}


async def test_jobs_that_are_known_need_no_room(log: Log, real_clock: LoopClock) -> None:
    """Q-T14: a retry of a write that filled the queue is not throttled."""
    await create_queue(log, max_depth=3)
    async with sink(log, id="id") as it:
        items = [item(None, n, id=f"{n:032}") for n in range(3)]
        for _ in range(2):
            assert await send(it, RowBatch(items)) == {}
    assert len(await stored(log)) == 3


async def test_a_queue_that_is_missing_is_named_at_opening_and_in_a_write(
    log: Log, real_clock: LoopClock
) -> None:
    """A recreated queue is written to at once, with its current slot function."""
    command = f"sluicegate queue create DSN jobs --schema {log.schema}"
    with pytest.raises(ConfigError, match=command) as caught:
        async with sink(log):
            pass
    assert "queue='jobs'" in str(caught.value)
    await create_queue(log)
    async with sink(log, key="key") as it:
        async with log.connected() as con:
            await con.execute(f"DELETE FROM {log.sql}.queue")
        for _ in range(2):
            error = one_error(await send(it, RowBatch([item("a", 1), item("a", 2)])), 2)
            assert isinstance(error, RefusedError)
            assert command in error.repair
        await create_queue(log, slot_function="blake3")
        assert await send(it, RowBatch([item("a", 3)])) == {}
    assert await stored(log) == [("a", 3)]


async def test_a_changed_slot_function_is_read_again(log: Log, real_clock: LoopClock) -> None:
    """One write is refused, and the next one sends slots."""
    await create_queue(log)
    async with sink(log, key="key") as it:
        async with log.connected() as con:
            await con.execute(f"UPDATE {log.sql}.queue SET slot_function = 'blake3'")
        batch = RowBatch([item("a", 1)])
        assert isinstance(one_error(await send(it, batch), 1), RefusedError)
        assert await send(it, batch) == {}
    assert await stored(log) == [("a", 1)]


async def test_a_package_that_is_missing_is_named_at_opening_and_in_a_write(
    log: Log, real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_queue(log)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "blake3" else find(name)
    )
    async with sink(log, key="key") as it:
        async with log.connected() as con:
            await con.execute(f"UPDATE {log.sql}.queue SET slot_function = 'blake3'")
        batch = RowBatch([item("a", 1)])
        await send(it, batch)
        error = one_error(await send(it, batch), 1)
    assert isinstance(error, RefusedError)
    assert 'pip install "sluicegate[blake3]"' in error.repair
    with pytest.raises(MissingExtra, match=r"sluicegate\[blake3\]"):
        async with sink(log):
            pass


async def test_a_schema_that_is_missing_is_named_at_opening_and_in_a_write(
    log: Log, real_clock: LoopClock
) -> None:
    with pytest.raises(ConfigError, match="sluicegate pg install"):
        async with sink(log, schema="nowhere"):
            pass
    await create_queue(log)
    async with sink(log) as it:
        async with log.connected() as con:
            await con.execute(f"DROP SCHEMA {log.sql} CASCADE")
        error = one_error(await send(it, RowBatch([item("a", 1), item("a", 2)])), 2)
    assert isinstance(error, RefusedError)
    assert "sluicegate pg install" in error.repair


async def test_an_older_schema_is_named_at_opening(log: Log, real_clock: LoopClock) -> None:
    await create_queue(log)
    async with log.connected() as con:
        await con.execute(f"DELETE FROM {log.sql}.migration WHERE version > 1")
    with pytest.raises(ConfigError, match="sluicegate pg upgrade"):
        async with sink(log):
            pass


async def test_the_right_to_enqueue_is_enough(log: Log, real_clock: LoopClock) -> None:
    """A role with it sees no job; a role with another permission gets the command at opening."""
    await create_queue(log, max_depth=100)
    async with role(log) as app, role(log) as other:
        await install_streams(log.dsn, schema=log.schema, enqueue=app.name, append=other.name)
        async with sink(log, dsn=app.dsn, key="key", queueing_lock=lambda row: str(row["n"])) as it:
            assert await send(it, RowBatch([item("a", n) for n in range(3)])) == {}
        with pytest.raises(ConfigError, match="--enqueue ROLE"):
            async with sink(log, dsn=other.dsn):
                pass
        async with log.connected() as con:
            await con.execute(f"GRANT SELECT ON {log.sql}.queue TO {other.name}")
            await con.execute(f"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {log.sql} FROM PUBLIC")
        with pytest.raises(ConfigError, match="--enqueue ROLE") as caught:
            async with sink(log, dsn=other.dsn):
                pass
        assert "secret" not in str(caught.value)
    assert len(await stored(log)) == 3


async def test_a_right_that_is_revoked_refuses_every_job_until_it_is_granted(
    log: Log, real_clock: LoopClock
) -> None:
    await create_queue(log)
    async with role(log) as app:
        await install_streams(log.dsn, schema=log.schema, enqueue=app.name)
        async with sink(log, dsn=app.dsn, key="key") as it, log.connected() as con:
            await con.execute(f"REVOKE USAGE ON SCHEMA {log.sql} FROM {app.name}")
            batch = RowBatch([item("a", n) for n in range(3)])
            error = one_error(await send(it, batch), 3)
            assert isinstance(error, RefusedError)
            assert "--enqueue ROLE" in error.repair
            assert "secret" not in f"{error}{it!r}"
            await con.execute(f"GRANT USAGE ON SCHEMA {log.sql} TO {app.name}")
            assert await send(it, batch) == {}
    assert len(await stored(log)) == 3


async def test_a_server_that_does_not_answer_is_unavailable(real_clock: LoopClock) -> None:
    made = PostgresQueueSink("postgresql://u:secret@127.0.0.1:1/x", queue="jobs")
    with pytest.raises(UnavailableError) as caught:
        async with made:
            pass
    assert "secret" not in str(caught.value)
