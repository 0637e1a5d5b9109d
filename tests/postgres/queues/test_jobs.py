"""Jobs are listed in pages, shown in full, cancelled, and tried again.

White box: the queries of the pages are explained.
"""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.queues.jobs_help import claim, handled, insert, settle
from tests.postgres.queues.operated_help import end, fail, operated
from tests.postgres.queues.queue_help import waits_for_a_lock

from sluicegate import ConfigError, RefusedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.postgres.streams.log_help import Log

    from sluicegate.postgres.queues.contents import JobAdmin
    from sluicegate.postgres.queues.jobs import Job

pytestmark = pytest.mark.usefixtures("real_clock")


async def pages(jobs: JobAdmin, limit: int = 2, **filters: Any) -> AsyncIterator[Job]:
    """Yield the jobs of all pages."""
    after = None
    while True:
        page = await jobs.list(limit=limit, after=after, **filters)
        assert len(page.items) <= limit
        for job in page.items:
            yield job
        after = page.next
        if after is None:
            return


async def places(jobs: JobAdmin, limit: int = 2, **filters: Any) -> list[int]:
    return [job.place async for job in pages(jobs, limit, **filters)]


async def delayed(con: Any, log: Log, key: str | None, due: str) -> int:
    """Insert a job that is due at a time."""
    return int(
        await con.fetchval(
            f"INSERT INTO {log.sql}.job (queue, key, payload, due) "
            "VALUES ('q', $1, '1', $2::text::timestamptz) RETURNING place",
            *(key, due),
        )
    )


async def test_every_job_is_in_the_pages_of_its_state_and_key_once(log: Log) -> None:
    """In stable order; the first job of a key has the state of its key."""
    async with operated(log) as (con, admin):
        await admin.create("q", max_attempts=1)
        other = await admin.create("other")
        await insert(con, log, other.name, ("k0", 0))
        for poison in ("park_key", "block"):
            await admin.alter("q", poison=poison)
            stopped = [*((f"{poison}{n}", n) for n in range(3)), (None, 3)]
            await insert(con, log, "q", *stopped, *stopped)
            for row in {each["r_lease"]: each for each in await claim(con, log, "q")}.values():
                await end(con, log, "q", row, "fail")
        await insert(con, log, "q", *((f"k{n % 3}", n) for n in range(6)), (None, 6), (None, 7))
        claims = f"SELECT * FROM {log.sql}.claim_jobs('q', 'g', 'me', 2, 2, 1, 30)"
        await con.fetch(claims)
        assert await con.fetch(claims)
        late = [
            await delayed(con, log, key, due)
            for key, due in (("k0", "infinity"), ("k0", "2100-01-01"), (None, "2100-01-01"))
        ]
        jobs = await admin.jobs("q")
        every = {job.place: job async for job in pages(jobs)}
        stored = await con.fetch(f"SELECT place FROM {log.sql}.job WHERE queue = 'q' ORDER BY 1")
        assert [*every] == [row["place"] for row in stored]
        for state in ("waiting", "delayed", "leased", "blocked", "parked"):
            found = await places(jobs, state=state)
            assert {*found} == {place for place, job in every.items() if job.state == state}, state
            assert len(found) == len({*found}) > 0, state
            assert await places(jobs, 1, state=state) == found
        assert await places(jobs, state="delayed") == [*late[1:], late[0]]
        assert await places(jobs, key="k0") == [p for p, job in every.items() if job.key == "k0"]
        assert await places(jobs, key="k0", state="delayed") == late[:2]
        assert [job.key async for job in pages(jobs, state="parked")] == [
            *(f"park_key{n}" for n in range(3)),
            *(None, None),
        ]
        (leased,) = [job for job in every.values() if job.state == "leased" and job.key == "k0"]
        assert (leased.owner, leased.attempts) == ("me", 1)
        assert leased.lease_until is not None
        assert await places(jobs, 1, state="waiting", key="park_key0") != []


async def test_finished_jobs_come_last_ones_first(log: Log) -> None:
    """Of one time, too; by outcome, key, error class and age."""
    async with operated(log) as (con, admin):
        await admin.create("q", poison="skip", max_attempts=1, keep_done=3600)
        await insert(con, log, "q", *((f"k{n % 2}", n) for n in range(6)), (None, 6))
        await handled(con, log, "q")
        await insert(con, log, "q", *((f"k{n % 2}", n) for n in range(5)))
        while rows := await claim(con, log, "q"):
            for row in {each["r_lease"]: each for each in rows}.values():
                await end(con, log, "q", row, "fail")
        await con.execute(
            f"UPDATE {log.sql}.finished_job SET error = NULL WHERE payload = '0';"
            f"UPDATE {log.sql}.finished_job SET finished_at = '2020-01-01' WHERE place % 2 = 0"
        )
        jobs = await admin.jobs("q")
        rows = await con.fetch(
            f"SELECT place, outcome, key, error FROM {log.sql}.finished_job "
            "ORDER BY finished_at DESC, place DESC"
        )
        for outcome in ("done", "dead"):
            of_outcome = [row for row in rows if row["outcome"] == outcome]
            assert await places(jobs, state=outcome) == [row["place"] for row in of_outcome]
            assert await places(jobs, state=outcome, key="k1") == [
                row["place"] for row in of_outcome if row["key"] == "k1"
            ]
            assert await places(jobs, state=outcome, older_than=timedelta(hours=1)) == [
                row["place"] for row in of_outcome if row["place"] % 2 == 0
            ]
        assert await jobs.errors() == {"": 1, "ValueError": 4}
        assert await jobs.errors(count_to=2) == {"": 1, "ValueError": 2}
        for error, count in {"": 1, "ValueError": 4, "KeyError": 0}.items():
            assert len(await places(jobs, state="dead", error=error)) == count
        assert await places(jobs) == []


async def test_payloads_are_given_on_request(log: Log) -> None:
    """A value that Python does not decode is text, and a time that it does not hold is a near one."""
    async with operated(log) as (con, admin):
        await admin.create("q")
        await insert(con, log, "q", (None, {"a": 1}))
        deep = "[" * 5000 + "]" * 5000
        await con.execute(
            f"INSERT INTO {log.sql}.job (queue, payload, headers, at) "
            "VALUES ('q', $1::text::jsonb, '{\"h\": 1}', '4713-01-01 BC')",
            deep,
        )
        jobs = await admin.jobs("q")
        assert [job.payload async for job in pages(jobs)] == [None, None]
        found = [job async for job in pages(jobs, payload=True)]
        assert [job.payload for job in found] == [{"a": 1}, deep]
        assert (found[1].headers, found[1].at.year) == ({"h": 1}, 1)
        assert [job.payload for job in await jobs.find([found[0].place, 9999])] == [None]


async def test_filters_without_an_index_are_refused(log: Log) -> None:
    async with operated(log) as (con, admin):
        await admin.create("q")
        await insert(con, log, "q", ("a", 1), ("a", 2))
        jobs = await admin.jobs("q")
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"state": "busy"}, "state='busy': must be one of"),
            ({"error": "E"}, 'requires state="dead"'),
            ({"state": "dead", "error": "E", "key": "a"}, "and no key"),
            ({"state": "parked", "key": "a"}, "cannot be given for parked jobs"),
            ({"older_than": timedelta(1)}, "requires jobs that have left"),
            ({"after": "x"}, "must be the `next` of a page"),
            ({"after": (await jobs.list(limit=1)).next, "state": "delayed"}, "same filters"),
        ]
        for filters, rule in wrong:
            with pytest.raises(ConfigError, match=rule):
                await jobs.list(**filters)


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_job_is_shown_with_its_lane_and_what_it_waits_for(log: Log, ordered: bool) -> None:
    async with operated(log) as (con, admin):
        await admin.create("q", ordering_required=ordered, poison="block", max_attempts=1)
        jobs = await admin.jobs("q")
        await insert(con, log, "q", ("a", 1), ("a", 2))
        one, two = await places(jobs)

        async def why(place: int) -> str:
            shown = await jobs.show(place)
            assert shown is not None
            return shown.waits_for or ""

        assert "bell" in await why(one)
        await fail(con, log, "q")
        shown = await jobs.show(one)
        assert shown is not None
        assert (shown.job.state, shown.job.payload, shown.job.reason) == ("blocked", 1, "boom")
        assert shown.lane is not None
        assert shown.lane.jobs == 2
        assert re.match(r"blocked for \d+ s after 1 attempts: boom", shown.waits_for or "")
        assert (await why(two)).startswith(
            f"behind the job at {one}, which is blocked: blocked for"
        )
        late = await delayed(con, log, "a", "2100-01-01")
        assert "due at 2100-01-01" in await why(late)
        await jobs.cancel([one])
        shown = await jobs.show(one)
        assert shown is not None
        assert (shown.job.state, shown.lane, shown.waits_for) == ("cancelled", None, None)
        assert await jobs.show(9999) is None


async def test_a_job_without_a_key_tells_why_it_waits(log: Log) -> None:
    async with operated(log) as (con, admin):
        await admin.create("q", max_attempts=2)
        await insert(con, log, "q", (None, 1))
        jobs = await admin.jobs("q")
        (place,) = await places(jobs)
        seen: list[str] = []

        async def look() -> None:
            shown = await jobs.show(place)
            assert shown is not None
            seen.append(f"{shown.job.state}: {shown.waits_for}")

        await look()
        await admin.pause("q")
        await look()
        await admin.resume("q")
        (row,) = await claim(con, log, "q")
        await look()
        await end(con, log, "q", row, "nak", 3600)
        await look()
        await jobs.retry([place])
        await fail(con, log, "q", 1)
        (place,) = await places(jobs)
        await look()
        for told, start in zip(
            seen,
            (
                "waiting: ready: the next claim",
                "waiting: the queue is paused",
                "leased: leased by one until 2",
                "delayed: due at 2",
                "parked: parked after 1 attempts: boom; `sluicegate queue retry`",
            ),
            strict=True,
        ):
            assert told.startswith(start), told
        assert seen[3].endswith("after 1 attempts: boom")


async def test_a_cancelled_job_leaves_and_returns_only_by_a_retry(log: Log) -> None:
    """Waiting, delayed, blocked, and without a key; its lock is free; its key continues."""
    async with operated(log) as (con, admin):
        await admin.create("q", poison="block_and_dead_letter", max_attempts=1)
        jobs = await admin.jobs("q")
        await insert(con, log, "q", ("a", 1), ("a", 2), (None, 3))
        one, two, loose = await places(jobs)
        await delayed(con, log, "b", "2100-01-01")
        await con.execute(
            f"INSERT INTO {log.sql}.job (queue, payload, queueing_lock) VALUES ('q', '4', 'lock')"
        )
        *_, late, locked = await places(jobs)
        await fail(con, log, "q")
        await con.execute(f"UPDATE {log.sql}.job SET lease = NULL, lease_until = NULL")
        every = [one, late, loose, locked]
        assert await jobs.cancel([*every, 9999]) == {
            **dict.fromkeys(every, "cancelled"),
            9999: "missing",
        }
        assert await places(jobs) == [two]
        assert {*await places(jobs, state="cancelled")} == {*every}
        assert await places(jobs, state="dead") == []  # the letter of the blocked job was cancelled
        assert await jobs.redrive() == 0
        assert not await con.fetchval(f"SELECT count(*) FROM {log.sql}.queueing_lock")
        assert await handled(con, log, "q") == [2]
        (job,) = await jobs.find([one])
        assert (job.reason, job.attempts) == ("cancelled by an operator", 1)
        assert await jobs.retry([one]) == {one: "enqueued"}
        assert await handled(con, log, "q") == [1]
        assert await jobs.purge("cancelled", key="b") == 1
        assert await jobs.cancel([one]) == {one: "missing"}
        assert await jobs.cancel([]) == await jobs.retry([]) == {}


async def test_a_parked_key_stays_parked_behind_a_cancelled_job(log: Log) -> None:
    async with operated(log) as (con, admin):
        await admin.create("q", max_attempts=1)
        await insert(con, log, "q", ("a", 1), ("a", 2))
        await fail(con, log, "q")
        jobs = await admin.jobs("q")
        one, two = await places(jobs)
        await jobs.cancel([one])
        assert await handled(con, log, "q") == []
        assert await places(jobs, state="parked") == [two]
        await (await admin.keys("q")).unpark("a")
        assert await handled(con, log, "q") == [2]


async def cancelled_while_leased(
    con: Any, log: Log, jobs: JobAdmin, key: str | None
) -> tuple[int, Any]:
    """The place of a leased job that is cancelled, and its row."""
    await insert(con, log, "q", (key, 1), (key, 2))
    (row, *_) = await claim(con, log, "q")
    place = int(row["r_place"])
    assert await jobs.cancel([place]) == {place: "cancelling"}
    shown = await jobs.show(place)
    assert shown is not None
    assert shown.job.is_cancelled
    assert "cancelled" in (shown.waits_for or "")
    return place, row


@pytest.mark.parametrize("key", ["a", None])
@pytest.mark.parametrize("poison", ["park_key", "skip", "block_and_dead_letter"])
@pytest.mark.parametrize("how", ["nak", "fail", "bury", "free", "expires"])
async def test_a_leased_job_that_was_cancelled_ends_with_its_lease(
    log: Log, key: str | None, poison: Any, how: str
) -> None:
    """However it ends: it is not given out again, and its key continues."""
    async with operated(log) as (con, admin):
        await admin.create("q", poison=poison)
        jobs = await admin.jobs("q")
        place, row = await cancelled_while_leased(con, log, jobs, key)
        if how == "expires":
            await con.execute(
                f"UPDATE {log.sql}.lane SET lease_until = now();"
                f"UPDATE {log.sql}.job SET lease_until = now() WHERE place = {place}"
            )
        elif how == "free" and key is not None:
            assert await settle(con, log, "q", [row], "free", []) == ["freed"]
        else:
            fate = await end(con, log, "q", row, how)
            assert fate == ("freed" if how == "free" else "dead")
        await con.execute(f"UPDATE {log.sql}.job SET lease = NULL WHERE place <> {place}")
        assert await handled(con, log, "q") == [2]
        (job,) = await jobs.find([place])
        assert (job.state, job.reason, job.error) == ("cancelled", "cancelled by an operator", None)


async def test_a_job_that_was_handled_before_it_was_cancelled_is_done(log: Log) -> None:
    async with operated(log) as (con, admin):
        await admin.create("q", keep_done=60)
        jobs = await admin.jobs("q")
        place, row = await cancelled_while_leased(con, log, jobs, "a")
        assert await settle(con, log, "q", [row], "free", [row]) == ["freed"]
        (job,) = await jobs.find([place])
        assert job.state == "done"


async def test_a_cancelled_job_that_another_session_locks_is_not_given_out(log: Log) -> None:
    """Nor are the later jobs of its key, meanwhile; other keys continue."""
    async with operated(log) as (con, admin), log.connected() as other:
        await admin.create("q")
        jobs = await admin.jobs("q")
        place, row = await cancelled_while_leased(con, log, jobs, "a")
        await settle(con, log, "q", [row], "free", [])
        await insert(con, log, "q", ("b", 3))
        async with other.transaction():
            await other.execute(f"SELECT FROM {log.sql}.job WHERE place = {place} FOR UPDATE")
            assert await handled(con, log, "q") == [3]
        assert await handled(con, log, "q") == [2]


async def test_a_job_is_not_cancelled_while_its_new_lane_is_leased(log: Log) -> None:
    """A claim that has not committed makes the lane: the job is leased, and only marked."""
    async with operated(log) as (con, admin), log.connected() as other:
        await admin.create("q")
        await insert(con, log, "q", ("a", 1))
        jobs = await admin.jobs("q")
        (place,) = await places(jobs)
        async with other.transaction():
            (row,) = await claim(other, log, "q")
            cancelling = asyncio.create_task(
                con.fetchrow(f"SELECT * FROM {log.sql}.cancel_jobs('q', ARRAY[{place}])")
            )
            await waits_for_a_lock(log, con)
        assert (await cancelling)["r_fate"] == "cancelling"
        assert await end(con, log, "q", row, "nak") == "dead"


async def test_a_lock_that_lasts_is_told(log: Log) -> None:
    async with operated(log) as (con, admin):
        await admin.create("q")
        await insert(con, log, "q", ("a", 1))
        jobs = await admin.jobs("q")
        (place,) = await places(jobs)
        await con.execute(f"ALTER FUNCTION {log.sql}.cancel_jobs SET lock_timeout = '50ms'")
        try:
            async with con.transaction():
                await claim(con, log, "q")
                with pytest.raises(RefusedError, match="did not end in time"):
                    await jobs.cancel([place])
        finally:
            await con.execute(f"ALTER FUNCTION {log.sql}.cancel_jobs SET lock_timeout = '5s'")


async def test_jobs_are_tried_again_now(log: Log) -> None:
    """Parked, backing off, delayed, dead, leased, and behind another one."""
    async with operated(log) as (con, admin):
        await admin.create("q", max_attempts=3)
        jobs = await admin.jobs("q")
        await insert(con, log, "q", ("a", 1), ("a", 2), (None, 3))
        parked, behind, loose = await places(jobs)
        row, _, keyless = await claim(con, log, "q")
        assert await jobs.retry([parked, loose]) == {parked: "leased", loose: "leased"}
        await end(con, log, "q", row, "nak", 3600)
        await end(con, log, "q", keyless, "nak", 3600)
        assert await claim(con, log, "q") == []
        assert await jobs.retry([parked, behind, loose, 9999]) == {
            parked: "ready",
            behind: "behind",
            loose: "ready",
            9999: "missing",
        }
        row, _, keyless = await claim(con, log, "q")
        assert (row["r_attempts"], keyless["r_attempts"]) == (1, 1)
        for each in (row, keyless):
            assert await end(con, log, "q", each, "fail") == "parked"
        loose = int(keyless["r_place"])
        assert await jobs.retry([parked, loose]) == {parked: "ready", loose: "ready"}
        late = await delayed(con, log, "b", "2100-01-01")
        assert await jobs.retry([late]) == {late: "ready"}
        rows = await claim(con, log, "q")
        assert sorted(row["r_payload"] for row in rows) == ["1", "1", "2", "3"]
