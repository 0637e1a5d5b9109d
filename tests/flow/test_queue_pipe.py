"""Pipes from a queue through a batcher: at least once, and in order per key."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from queue_flows import FlowQueue, flow_queue, row_of, running
from tests.postgres.sink.postgres_help import proxied

from sluicegate import (
    Backoff,
    Batcher,
    Limits,
    Retry,
    RetryPolicy,
    Terminate,
    ToDeadLetter,
    flow,
    stack,
)
from sluicegate.consumer import Commits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from sluicegate import Message
    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

JOBS = 150
CUT_EVERY = 23


def piped(
    made: FlowQueue,
    transform: Callable[[Message], object] | None = None,
    *,
    dsn: str = "",
    source: Any = None,
    **options: Any,
) -> flow.Pipe:
    """A pipe into the table, in small batches; those of a key run one after another."""
    batcher: Batcher[Any] = Batcher(
        stack(made.sink(dsn), Retry()),
        key=lambda row: row[1] or row[2],
        limits=Limits(max_items=20, max_delay=0.01),
    )
    return flow.pipe(
        source or made.source(),
        batcher,
        transform=transform or (lambda message: row_of(message, "here")),
        retry=RetryPolicy(backoff=Backoff(base=0.01, longest=0.1, jitter="none")),
        commits=Commits(every=0.02),
        **options,
    )


@pytest.mark.parametrize("ordered", [False, True])
async def test_every_row_is_written_in_order_per_key(
    embedded_postgres: EmbeddedPostgres, ordered: bool
) -> None:
    """Q-T11: once, as long as nothing fails."""
    options: dict[str, Any] = {"ordering_required": True, "poison": "block"} if ordered else {}
    async with flow_queue(embedded_postgres.dsn, **options) as made:
        await made.produce(JOBS, random.Random(6))
        async with running(piped(made, source=made.source(ends=False))):
            await made.produce(JOBS, random.Random(7))
            await made.handled()
        await made.assert_exact()


@pytest.mark.parametrize("how", ["refused", "end"])
async def test_a_rejected_row_parks_its_key_and_the_others_continue(
    embedded_postgres: EmbeddedPostgres, how: str
) -> None:
    """Q9, Q-T15: no job behind it leaves the queue; rows behind it may be written early and
    repeated. An unwritten job before it stays in front of it. The error is stored with the key.
    """
    async with flow_queue(embedded_postgres.dsn) as made:
        key = await made.enqueue("k", "a", how, "b", "c")
        others = [*await made.enqueue("l", "d", "e"), *await made.enqueue(None, "f")]
        await piped(made, spoil).run()
        rows = await made.places()
        left = await made.waiting()
        assert left in (key[1:], key)
        assert {*others, *key[:1]} - {*left} <= {*rows} <= {*others, *key} - {key[1]}
        assert await made.letters() == []
        lane = await made.lane("k")
        assert (lane["state"], lane["lease"]) == (2, None)
        assert ("effect_word_check" if how == "refused" else "spoiled") in lane["reason"]
        await made.con.execute(
            f"UPDATE {made.log.sql}.job SET payload = '\"g\"' WHERE place = $1", key[1]
        )
        resume = f"SELECT {made.log.sql}.resume_lane('q', 'k', false, false)"
        assert await made.con.fetchval(resume) == "ready"
        await piped(made, spoil).run()
        assert {*await made.places()} == {*key, *others}
        assert [each for each in (await made.places())[len(rows) :] if each in key] == left
        assert await made.waiting() == []


def spoil(message: Message) -> object:
    """Return the result that the payload names."""
    row = row_of(message, "here")
    return {"bury": ToDeadLetter("unwanted"), "end": Terminate("spoiled")}.get(row[3], row)


@pytest.mark.parametrize("poison", ["skip", "block", "block_and_dead_letter", "park_key"])
async def test_the_queue_decides_what_becomes_of_a_job_that_cannot_be_written(
    embedded_postgres: EmbeddedPostgres, poison: str
) -> None:
    """Q9: at most one dead letter; if the transform asks for one, exactly one in any case."""
    async with flow_queue(embedded_postgres.dsn, poison=poison) as made:
        key = await made.enqueue("k", "a", "refused", "b")
        buried = await made.enqueue("l", "bury", "c")
        await piped(made, spoil).run()
        is_letter = poison in {"skip", "block_and_dead_letter"}
        assert await made.letters() == ([key[1]] if is_letter else []) + buried[:1]
        assert await made.waiting() == ([] if poison == "skip" else key[1:])
        assert {key[0], buried[1]} <= {*await made.places()}
        if poison == "skip":
            assert key[2] in await made.places()


async def test_rows_of_an_unknown_outcome_are_written_again(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    """Q-T13: the answer to the write is lost; no job is lost, and no other is repeated."""
    async with (
        flow_queue(embedded_postgres.dsn) as made,
        proxied(embedded_postgres.dsn) as (proxy, dsn),
    ):
        first = await made.enqueue("k", *"abc")
        pipe = piped(made, dsn=dsn, source=made.source(ends=False))
        async with running(pipe):
            await made.handled()
            proxy.cut_answer = "INSERT"
            doubted = await made.enqueue("k", "d")
            await made.handled()
            last = await made.enqueue("k", "e")
            await made.handled()
        assert proxy.cuts == 1
        assert await made.places() == [*first, *doubted, *doubted, *last]


async def test_cut_connections_of_the_sink_and_the_source_lose_no_job(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    """Q-T2, Q-T13, Q-T11."""
    async with (
        flow_queue(embedded_postgres.dsn) as made,
        proxied(embedded_postgres.dsn) as (proxy, dsn),
    ):
        seen = 0

        def cut(_: bytes, __: bytes) -> bool:
            nonlocal seen
            seen += 1
            if is_cut := seen % CUT_EVERY == 0:
                asyncio.get_running_loop().call_soon(setattr, proxy, "cut_request", cut)
            return is_cut

        source = made.source(dsn, ends=False, lease=5.0, per_key=2)
        async with running(piped(made, dsn=dsn, source=source)):
            await made.produce(40, random.Random(8))
            proxy.cut_request = cut
            await made.produce(40, random.Random(9))
            await made.handled()
            proxy.cut_request = None
        assert proxy.cuts > 2
        await made.assert_in_order()


@asynccontextmanager
async def locked(made: FlowQueue) -> AsyncIterator[None]:
    """Block all writes inside the block."""
    async with made.log.connected() as con, con.transaction():
        await con.execute(f"LOCK TABLE {made.log.sql}.effect")
        yield


@pytest.mark.parametrize("drain", [0.1, 10.0])
async def test_a_drain_gives_back_what_is_not_written(
    embedded_postgres: EmbeddedPostgres, drain: float
) -> None:
    """Q-T2: at once and without a counted attempt; they need not wait for the leases to expire."""
    async with flow_queue(embedded_postgres.dsn, max_attempts=1) as made:
        await made.produce(JOBS, random.Random(10))
        pipe = piped(made, source=made.source(ends=False), drain=drain)
        async with asyncio.TaskGroup() as tasks:
            async with locked(made):
                run = tasks.create_task(pipe.run())
                await made.until_waits("relation")
                pipe.stop()
                if drain < 1:
                    await run
            await run
        assert await made.ask(LEASED) == 0
        left = {*await made.waiting()}
        if drain < 1:
            assert len(left) == len(made.sent)
            assert await made.ask("SELECT coalesce(max(attempts), 0) FROM {schema}.lane") == 0
            assert await made.ask("SELECT coalesce(max(attempts), 0) FROM {schema}.job") == 0
        else:
            assert left.isdisjoint(await made.places())
            assert {*await made.places()} | left == {job.place for job in made.sent}
        await piped(made).run()
        assert await made.letters() == []
        await made.assert_in_order()


LEASED = """
SELECT (SELECT count(*) FROM {schema}.lane WHERE lease IS NOT NULL)
  + (SELECT count(*) FROM {schema}.job WHERE lease IS NOT NULL)
"""
