"""Sticky routing: which consumer gets the jobs of a slot, and which consumer waits for another."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.postgres.queues.queue_help import Queue, at, payloads, queue, waits_for_a_lock

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate.batcher import LoopClock

SLOTS = {"b": 9022, "c": 32046, "a": 38858}
"""The first two bytes of the SHA-256 of each key, little-endian; other programs may rely on
them.
"""
ALL = 65535


async def sticky(con: Any, log: Log) -> Queue:
    return await queue(con, log, sticky=True)


async def test_slots_are_pinned(log: Log, real_clock: LoopClock) -> None:
    """Q2, Q-T6. In SQL, and in another process without SQL."""
    pinned = {
        **SLOTS,
        "": 45283,
        "k": 21634,
        "m": 50786,
        "schl\u00fcssel": 60620,
        "\U0001f600": 17648,
    }
    code = (
        "import hashlib, sys\n"
        "for key in sys.argv[1:]:\n"
        "    print(int.from_bytes(hashlib.sha256(key.encode()).digest()[:2], 'little'))"
    )
    told = subprocess.run(  # noqa: ASYNC221  # short
        [sys.executable, "-c", code, *pinned], capture_output=True, check=True, text=True
    )
    assert [int(line) for line in told.stdout.split()] == [*pinned.values()]
    async with log.connected() as con:
        for key, slot in pinned.items():
            assert await con.fetchval(f"SELECT {log.sql}.ring_slot($1)", key) == slot


async def test_slots_are_uniform(log: Log, real_clock: LoopClock) -> None:
    """Q-T6. Each of 64 equal parts has its share of 16,000 keys, within five standard
    deviations.
    """
    async with log.connected() as con:
        rows = await con.fetch(
            f"SELECT {log.sql}.ring_slot('key ' || n) AS slot FROM generate_series(1, 16000) n"
        )
    for parts in (Counter(row[0] >> 10 for row in rows), Counter(row[0] & 63 for row in rows)):
        assert len(parts) == 64
        assert all(abs(count - 250) < 80 for count in parts.values())


@pytest.mark.parametrize("ending", ["ack", "nak", "expiry"])
async def test_a_new_owner_waits_for_the_leases_of_the_earlier_one(
    log: Log, real_clock: LoopClock, ending: str
) -> None:
    """Q6, Q-T1, Q-T2, Q-T5. The earlier owner gets no new job meanwhile."""
    async with log.connected() as con:
        q = await sticky(con, log)
        await q.assign(con, (0, ALL, "A"))
        await q.enqueue(con, ("a", 1), ("b", 2), ("c", 3))
        leases = await q.claim(con, "A")
        assert len(leases) == 3
        await q.assign(con, (0, ALL, "B"))
        await q.enqueue(con, ("new", 4), ("b", 5))
        for who in ("A", "B"):
            assert await q.claim(con, who, now=29) == []
        first, *others = leases
        assert await q.settle(con, [first], now=29) == (
            ["freed"] if first.key == "b" else ["empty"]
        )
        assert await q.claim(con, "B", now=29) == []
        now = 29
        if ending == "ack":
            await q.settle(con, others, now=29)
        elif ending == "nak":
            await q.settle(con, others, "nak", delay=1000, attempts=1, now=29)
        else:
            now = 30
        assert await q.claim(con, "A", now=now) == []
        assert 4 in payloads(await q.claim(con, "B", now=now))


async def test_parts_of_a_split_range_drain_on_their_own(log: Log, real_clock: LoopClock) -> None:
    """Q-T3. A continues in the part that it keeps."""
    async with log.connected() as con:
        q = await sticky(con, log)
        await q.assign(con, (0, ALL, "A"))
        await q.enqueue(con, ("b", 1), ("c", 2))
        (of_b,) = [job for job in await q.claim(con, "A") if job.key == "b"]
        await q.assign(con, (0, 20000, "B"), (20001, ALL, "A"))
        await q.enqueue(con, ("f", 3), ("a", 4))  # the slot of "f" is B's
        assert payloads(await q.claim(con, "A")) == [4]
        assert await q.claim(con, "B") == []
        await q.settle(con, [of_b])
        assert payloads(await q.claim(con, "B")) == [3]


async def test_a_merged_range_drains_of_both_owners(log: Log, real_clock: LoopClock) -> None:
    """Q-T3."""
    async with log.connected() as con:
        q = await sticky(con, log)
        await q.assign(con, (0, 20000, "A"), (20001, ALL, "B"))
        await q.enqueue(con, ("b", 1), ("c", 2))
        of_a = await q.claim(con, "A")
        of_b = await q.claim(con, "B")
        await q.assign(con, (0, ALL, "C"))
        await q.enqueue(con, ("f", 3))
        assert await q.claim(con, "C") == []
        await q.settle(con, of_a)
        assert await q.claim(con, "C") == []
        await q.settle(con, of_b)
        assert payloads(await q.claim(con, "C")) == [3]


async def test_a_chain_waits_for_all_before_and_a_range_handed_back_for_none_of_its_own(
    log: Log, real_clock: LoopClock
) -> None:
    """R4, Q-T3."""
    async with log.connected() as con:
        q = await sticky(con, log)
        await q.assign(con, (0, ALL, "A"))
        await q.enqueue(con, ("b", 1))
        of_a = await q.claim(con, "A")
        await q.assign(con, (0, ALL, "B"))
        await q.assign(con, (0, ALL, "C"))
        await q.enqueue(con, ("c", 2))
        assert await q.claim(con, "C") == []
        await q.assign(con, (0, ALL, "A"))
        assert payloads(await q.claim(con, "A")) == [2]
        await q.assign(con, (0, ALL, "C"))
        await q.enqueue(con, ("a", 3))
        await q.settle(con, of_a)
        assert await q.claim(con, "C", now=29) == []
        assert payloads(await q.claim(con, "C", now=30)) in ([2, 3], [3, 2])


async def test_groups_are_apart_although_consumers_have_the_same_names(
    log: Log, real_clock: LoopClock
) -> None:
    """Q4, Q-T4. Neither routing nor draining confuses them; a key still has one holder."""
    async with log.connected() as con:
        q = await sticky(con, log)
        await q.assign(con, (0, ALL, "A"))
        await q.assign(con, (0, 20000, "B"), (20001, ALL, "A"), group="h")
        await q.enqueue(con, ("b", 1), ("c", 2))
        assert payloads(await q.claim(con, "B", group="h")) == [1]
        assert payloads(await q.claim(con, "A", lanes=1)) == [2]
        await q.enqueue(con, ("f", 3), ("b", 4), ("a", 5))
        await q.assign(con, (0, ALL, "B"), group="h")  # A of the other group has "c"
        assert payloads(await q.claim(con, "A", group="h")) == []
        assert sorted(payloads(await q.claim(con, "B", group="h"))) == [3, 5]


async def test_jobs_without_a_key_are_for_any_consumer(log: Log, real_clock: LoopClock) -> None:
    """Q5, Q-T7. Draining ranges do not matter, and neither does having none."""
    async with log.connected() as con:
        q = await sticky(con, log)
        await q.assign(con, (0, ALL, "A"))
        await q.enqueue(con, ("a", 1))
        await q.claim(con, "A")
        await q.assign(con, (0, ALL, "B"))
        await q.enqueue(con, (None, 2), (None, 3), ("b", 4))
        assert payloads(await q.claim(con, "B", loose=1)) == [2]
        assert payloads(await q.claim(con, "X", loose=1)) == [3]


@pytest.mark.parametrize("automatic", [False, True])
async def test_a_reassignment_waits_for_a_claim_that_has_begun(
    log: Log, real_clock: LoopClock, automatic: bool
) -> None:
    """R5, Q-T1. Its leases are not committed, but the new owner sees them."""
    async with log.connected() as con, log.connected() as slow, log.connected() as other:
        q = await sticky(con, log)
        if automatic:
            await q.call(con, "seen_consumer", "g", "A", 50.0, at(0))
            assert await q.call(con, "balance_ranges", "g", 0.0, at(0)) == 256
        else:
            await q.assign(con, (0, ALL, "A"))
        assert await q.claim(con, "A") == []  # no range is draining any more
        await q.enqueue(con, ("a", 1))
        pending = slow.transaction()
        await pending.start()
        assert payloads(await q.claim(slow, "A")) == [1]
        if automatic:
            await q.call(con, "seen_consumer", "g", "B", 500.0, at(0))
            moving = q.call(other, "balance_ranges", "g", 0.0, at(60))  # A is gone
        else:
            moving = q.assign(other, (0, ALL, "B"))
        task = asyncio.create_task(moving)
        await waits_for_a_lock(log, other)
        await pending.commit()
        await task
        await q.enqueue(con, ("a", 2), ("new", 3))
        in_the_part = 3 if not automatic else None
        found = payloads(await q.claim(con, "B", now=29))
        assert in_the_part not in found
        assert 2 not in found


async def test_automatic_ranges_come_to_rest_and_leave_the_gone(
    log: Log, real_clock: LoopClock
) -> None:
    """R6."""
    async with log.connected() as con:
        q = await sticky(con, log)

        async def shares(now: float, *consumers: str) -> list[int]:
            for name in consumers:
                await q.call(con, "seen_consumer", "g", name, 5.0, at(now))
            for step in range(20):
                await q.call(con, "balance_ranges", "g", 0.1, at(now + step / 10))
            assert await q.call(con, "balance_ranges", "g", 0.0, at(now + 3)) == 0
            rows = await con.fetch(
                f"SELECT count(*), sum(hi - lo + 1) AS slots FROM {q.sql}.ring_range"
                " WHERE queue = $1 GROUP BY consumer ORDER BY 1",
                q.name,
            )
            assert sum(row["slots"] for row in rows) == 65536
            return [row["count"] for row in rows]

        assert await shares(0, "A") == [256]
        assert await shares(10, "A", "B") == [128, 128]
        assert await shares(20, "A", "B", "C") == [85, 85, 86]
        assert await shares(30, "C") == [256]


async def test_ranges_of_an_operator_are_not_balanced(log: Log, real_clock: LoopClock) -> None:
    async with log.connected() as con:
        q = await sticky(con, log)
        await q.call(con, "seen_consumer", "g", "A", 500.0, at(0))
        assert await q.call(con, "balance_ranges", "g", 0.0, at(0)) == 256
        await q.assign(con, (0, ALL, "B"))
        assert await q.call(con, "balance_ranges", "g", 0.0, at(9)) == 0
        assert await q.count(con, "ring_range") == 1


WRONG: tuple[list[tuple[int, int, str]], ...] = (
    [(0, 70000, "A")],
    [(-1, 10, "A")],
    [(10, 9, "A")],
    [(0, 10, "")],
    [(0, 10, "A"), (10, 20, "B")],
    [(50, 150, "A")],
)


async def test_ranges_that_make_no_sense_are_refused(log: Log, real_clock: LoopClock) -> None:
    """R5."""
    async with log.connected() as con:
        q = await sticky(con, log)
        await q.assign(con, (0, 100, "A"), (101, 200, "B"))
        for wrong in WRONG:
            with pytest.raises(asyncpg.PostgresError) as raised:
                await q.assign(con, *wrong)
            assert raised.value.sqlstate == "PS013", wrong
            assert await q.count(con, "ring_range") == 2
