"""The handling of jobs by a consumer and its queue: attempts, poison, order, delays, keys.

White box: the signals of a run, since no event tells of a new reason.
"""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.access_help import access_from

from sluicegate import (
    Consumer,
    Nak,
    RetryPolicy,
    Terminate,
    ToDeadLetter,
    TransientError,
    UnavailableError,
)
from sluicegate._core.clock import wait_until
from sluicegate.batcher import LoopClock
from sluicegate.consumer import PoisonError
from sluicegate.postgres import PostgresQueueSource, QueueAdmin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from tests.postgres.streams.log_help import Log

    from sluicegate import Message

pytestmark = pytest.mark.usefixtures("real_clock")

CLOCK = LoopClock()


def quick(tries: int, error: BaseException | None = None, waited: float = 0.0) -> float:
    """A negligible wait."""
    del tries, error, waited
    return 0.001


def long(tries: int, error: BaseException | None = None, waited: float = 0.0) -> float:
    """A wait that is left to the queue."""
    del tries, error, waited
    return 5.0


QUICK = RetryPolicy(attempts=3, unlisted_attempts=3, backoff=quick)


async def make(log: Log, name: str = "jobs", **settings: Any) -> None:
    async with QueueAdmin(log.dsn, schema=log.schema) as admin:
        await admin.create(name, **settings)


async def enqueue(log: Log, *jobs: tuple[str | None, Any], **columns: Any) -> None:
    """Insert jobs with these keys and payloads, one statement each."""
    names = "".join(f", {name}" for name in columns)
    values = "".join(f", ${n}" for n in range(3, 3 + len(columns)))
    async with log.connected() as con:
        for key, payload in jobs:
            await con.execute(
                f"INSERT INTO {log.sql}.job (queue, key, payload{names}) "
                f"VALUES ('jobs', $1, $2{values})",
                key,
                json.dumps(payload),
                *columns.values(),
            )


def source(log: Log, **options: Any) -> PostgresQueueSource:
    settings: dict[str, Any] = {"schema": log.schema, "poll": 0.02, "close_timeout": 2.0}
    settings |= {"ends": True, **options}
    return PostgresQueueSource(access_from(log.dsn, settings), queue="jobs", **settings)


async def handle_all(
    log: Log, handler: Callable[[Message], Awaitable[object]], **options: Any
) -> list[tuple[object, Any, int]]:
    """Handle all ready jobs; return key, payload and attempt number of each call, in order."""
    tries: list[tuple[object, Any, int]] = []

    async def handle(message: Message) -> object:
        tries.append((message.key, json.loads(message.value), message.attempt))
        return await handler(message)

    consumer = Consumer(source(log, **options), name="test", retry=QUICK)
    report = await consumer.run(handle)
    assert report.complete
    return tries


async def left(log: Log) -> list[tuple[Any, ...]]:
    """Key and payload of the remaining jobs, in order."""
    async with log.connected() as con:
        rows = await con.fetch(f"SELECT key, payload FROM {log.sql}.job ORDER BY place")
    return [(row["key"], json.loads(row["payload"])) for row in rows]


async def dead(log: Log) -> list[tuple[Any, ...]]:
    """Payload, attempts, reason and error of the dead letters, in order."""
    async with log.connected() as con:
        rows = await con.fetch(
            f"SELECT payload, attempts, reason, error FROM {log.sql}.finished_job "
            "WHERE outcome = 'dead' ORDER BY place"
        )
    return [(json.loads(row[0]), *row[1:]) for row in rows]


async def acknowledge(_: Message) -> None:
    """Acknowledge the job."""


def failing(*payloads: int, answer: Callable[[], object]) -> Callable[[Message], Awaitable[object]]:
    async def handle(message: Message) -> object:
        return answer() if json.loads(message.value) in payloads else None

    return handle


def raising() -> object:
    raise PoisonError("no such customer")


async def test_jobs_are_handled_in_order_per_key_with_their_parts(log: Log) -> None:
    """Q-T11: none of them remains."""
    await make(log)
    await enqueue(log, *[(f"k{n % 3}", n) for n in range(30)])
    await enqueue(log, (None, 30), headers=json.dumps({"who": "ann", "n": 1}))
    seen: dict[object, list[int]] = {}
    headers: list[Any] = []

    async def handle(message: Message) -> None:
        await asyncio.sleep(0)
        seen.setdefault(message.key, []).append(json.loads(message.value))
        assert message.topic == "jobs"
        assert message.timestamp > 0
        if message.key is None:
            headers.extend(message.headers)

    await handle_all(log, handle)
    expected: dict[object, list[int]] = {f"k{k}": [*range(k, 30, 3)] for k in range(3)}
    assert seen == expected | {None: [30]}
    assert dict(headers) == {"who": b"ann", "n": b"1"}
    assert await left(log) == []
    async with log.connected() as con:
        rows = await con.fetchval(
            f"SELECT (SELECT count(*) FROM {log.sql}.lane) + (SELECT count(*) FROM {log.sql}.bell)"
        )
    assert rows == 0


async def test_a_failed_try_holds_its_key_and_no_other(log: Log) -> None:
    """consumer/C:O2: under the lease, because the backoff is short."""
    await make(log)
    await enqueue(log, ("a", 1), ("a", 2), ("b", 3))
    failures = [Nak(), Nak()]
    tries = await handle_all(log, failing(1, answer=lambda: failures.pop() if failures else None))
    assert [each for each in tries if each[0] == "a"] == [
        ("a", 1, 1),
        ("a", 1, 2),
        ("a", 1, 3),
        ("a", 2, 1),
    ]
    assert await left(log) == []


async def test_a_long_backoff_is_left_to_the_queue_with_the_tries(log: Log) -> None:
    """Q-T12: another process continues the count; jobs delivered behind it stay behind it."""
    await make(log)
    await enqueue(log, ("a", 1), ("a", 2), ("b", 3))
    tries = await handle_all(log, failing(1, answer=lambda: Nak(delay=30.0)))
    assert sorted(tries) == [("a", 1, 1), ("b", 3, 1)]
    async with log.connected() as con:
        lane = await con.fetchrow(
            f"SELECT lease, attempts, due > now() + interval '20 s' AS waits FROM {log.sql}.lane"
        )
        assert tuple(lane) == (None, 1, True)
        await con.execute(f"UPDATE {log.sql}.lane SET due = now()")
    assert await handle_all(log, acknowledge) == [("a", 1, 2), ("a", 2, 1)]


async def test_an_outage_is_waited_for_under_the_lease(log: Log) -> None:
    """However long the waits are, no attempt is counted, and `explain()` shows the outage."""
    await make(log)
    await enqueue(log, ("a", 1))
    failed = asyncio.Event()

    async def handle(_: Message) -> None:
        failed.set()
        raise UnavailableError("the bank is away")

    policy = RetryPolicy(attempts=2, backoff=long)
    async with running(Consumer(source(log), name="test", retry=policy), handle) as consumer:
        await failed.wait()
        await told(consumer, "backing off")
        assert "the bank is away" in str(consumer.explain())
        async with log.connected() as con:
            assert await con.fetchval(f"SELECT lease IS NOT NULL FROM {log.sql}.lane")
    assert [each[2] for each in await handle_all(log, acknowledge)] == [1]


async def test_the_last_error_is_told_when_the_queue_allows_fewer_tries(log: Log) -> None:
    """Q-T12: of attempts that were left to the queue, by the claim that gives up the job."""
    await make(log, max_attempts=2)
    await enqueue(log, ("a", 1))
    patient = RetryPolicy(attempts=9, backoff=long)
    consumers = (Consumer(source(log), name="test", retry=patient) for _ in range(3))
    for consumer in consumers:
        await consumer.run(failing(1, answer=lambda: Nak(error=TransientError("too busy"))))
        async with log.connected() as con:
            await con.execute(f"UPDATE {log.sql}.lane SET due = now() WHERE state = 0")
    async with log.connected() as con:
        lane = await con.fetchrow(f"SELECT state, attempts, reason FROM {log.sql}.lane")
    assert tuple(lane) == (2, 2, "too busy")


def terminating() -> object:
    return Terminate("no such customer")


@pytest.mark.parametrize(
    ("poison", "is_left", "is_dead", "answer"),
    [
        ("park_key", True, False, raising),
        ("block", True, False, terminating),
        ("block_and_dead_letter", True, True, raising),
        ("skip", False, True, terminating),
    ],
)
async def test_the_queue_decides_about_poison(
    log: Log, poison: Any, is_left: bool, is_dead: bool, answer: Callable[[], object]
) -> None:
    """Q-T10, Q-T15: other keys continue, and a dead letter is written once, with the reason."""
    await make(log, poison=poison)
    await enqueue(log, ("a", 1), ("a", 2), ("a", 3), ("b", 4))
    tries = await handle_all(log, failing(2, answer=answer))
    handled = [payload for _, payload, _ in tries]
    assert sorted(handled) == ([1, 2, 4] if is_left else [1, 2, 3, 4])
    assert await left(log) == ([("a", 2), ("a", 3)] if is_left else [])
    letters = await dead(log)
    assert letters == ([(2, 1, "no such customer", "PoisonError")] if is_dead else [])
    if not is_left:
        return
    assert await handle_all(log, acknowledge) == []
    async with QueueAdmin(log.dsn, schema=log.schema) as admin:
        keys = await admin.keys("jobs")
        await (keys.unpark("a") if poison == "park_key" else keys.unblock("a"))
    assert [each[1] for each in await handle_all(log, acknowledge)] == [2, 3]
    assert await dead(log) == []  # it is done, so its letter must not be redriven


async def test_a_handler_may_send_a_job_to_the_dead_letters(log: Log) -> None:
    """Whatever the poison strategy of the queue; its key continues."""
    await make(log)
    await enqueue(log, ("a", 1), ("a", 2), (None, 3))
    await handle_all(log, failing(1, 3, answer=lambda: ToDeadLetter("too old")))
    assert [each[:3] for each in await dead(log)] == [(1, 1, "too old"), (3, 1, "too old")]
    assert await left(log) == []


async def test_a_job_without_a_key_that_fails_stops_no_other(log: Log) -> None:
    """Q-T7."""
    await make(log)
    await enqueue(log, (None, 1), (None, 2), (None, 3))
    await handle_all(log, failing(2, answer=raising))
    assert await left(log) == [(None, 2)]


async def test_exit_ends_the_run_and_leaves_the_job(log: Log) -> None:
    await make(log)
    await enqueue(log, ("a", 1), ("a", 2))
    consumer = Consumer(source(log), name="test", retry=QUICK, poison="exit")
    with pytest.raises(PoisonError):
        await consumer.run(failing(1, answer=raising))
    assert await left(log) == [("a", 1), ("a", 2)]
    assert [each[1] for each in await handle_all(log, acknowledge)] == [1, 2]


async def test_an_ordered_queue_is_one_line_whatever_the_keys(log: Log) -> None:
    """R7, Q-T8: the job's own key is a header; poison stops the whole queue."""
    await make(log, ordering_required=True)
    await enqueue(log, *[(None if n == 3 else f"k{n}", n) for n in range(8)])
    running: list[int] = []
    keys: list[Any] = []

    async def handle(message: Message) -> None:
        assert not running
        running.append(message.offset)
        await asyncio.sleep(0)
        running.pop()
        keys.append(dict(message.headers).get("key"))
        if json.loads(message.value) == 5:
            raising()

    tries = await handle_all(log, handle)
    assert [(key, payload) for key, payload, _ in tries] == [("", n) for n in range(6)]
    assert keys[:5] == [b"k0", b"k1", b"k2", None, b"k4"]
    assert await left(log) == [("k5", 5), ("k6", 6), ("k7", 7)]


async def test_a_batch_handler_settles_jobs_of_many_keys(log: Log) -> None:
    """O-T12: by position; a failed job holds its key."""
    await make(log)
    await enqueue(log, *[(f"k{n % 5}", n) for n in range(20)])
    sizes: list[int] = []

    async def handle(messages: Sequence[Message]) -> list[object]:
        sizes.append(len(messages))
        return [
            Terminate("bad") if json.loads(message.value) == 7 else None for message in messages
        ]

    consumer = Consumer(source(log), name="test", retry=QUICK)
    await consumer.run_batch(handle, size=20, max_wait=0.05)
    assert max(sizes) > 1
    assert await left(log) == [("k2", 7), ("k2", 12), ("k2", 17)]


async def test_jobs_that_are_settled_together_are_stored_in_one_statement(log: Log) -> None:
    """Q19: for a batch of jobs of several keys; a trigger counts the statements that delete
    jobs.
    """
    await make(log)
    await enqueue(log, *[(f"k{n % 5}", n) for n in range(20)])
    async with log.connected() as con:
        await con.execute(
            f"CREATE TABLE {log.sql}.counted (jobs bigint);"
            f"CREATE FUNCTION {log.sql}.count_jobs() RETURNS trigger LANGUAGE plpgsql "
            "SECURITY DEFINER AS $$ BEGIN "
            f"INSERT INTO {log.sql}.counted SELECT count(*) FROM gone; RETURN NULL; END $$;"
            f"CREATE TRIGGER counted AFTER DELETE ON {log.sql}.job "
            "REFERENCING OLD TABLE AS gone "
            f"FOR EACH STATEMENT EXECUTE FUNCTION {log.sql}.count_jobs()"
        )
        together: list[int] = []

        async def handle(messages: Sequence[Message]) -> None:
            together.append(len(messages))

        consumer = Consumer(source(log), name="test", retry=QUICK)
        await consumer.run_batch(handle, size=20, max_wait=0.2)
        stored = [row["jobs"] for row in await con.fetch(f"TABLE {log.sql}.counted")]
    assert sum(stored) == 20
    assert [jobs for jobs in stored if jobs] == together


async def test_a_consumer_is_told_of_a_pause(log: Log) -> None:
    await make(log)
    await enqueue(log, ("a", 1))
    async with QueueAdmin(log.dsn, schema=log.schema) as admin:
        await admin.pause("jobs")
    consumer = Consumer(source(log, ends=False), name="test")
    async with running(consumer, acknowledge):
        await told(consumer, "the queue is paused")


@asynccontextmanager
async def running(
    consumer: Consumer, handler: Callable[[Message], Awaitable[object]]
) -> AsyncIterator[Consumer]:
    async with consumer:
        run = asyncio.create_task(consumer.run(handler))
        try:
            yield consumer
        finally:
            consumer.stop()
            await run


async def told(consumer: Consumer, text: str) -> None:
    """Suspend until the explanation contains this text."""
    run = consumer._open()  # there is no public event for it
    while text not in str(consumer.explain()):
        await wait_until(CLOCK, math.inf, run.readiness, run.settled)
