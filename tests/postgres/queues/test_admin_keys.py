"""Keys and jobs under operation: unblocked, parked, redriven, purged, forgotten."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.postgres.queues.jobs_help import claim, handled, insert
from tests.postgres.queues.operated_help import end, fail, operated

from sluicegate import ConfigError, RefusedError

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

pytestmark = pytest.mark.usefixtures("real_clock")


async def payloads(con: Any, log: Log, table: str = "job") -> list[str]:
    rows = await con.fetch(f"SELECT payload FROM {log.sql}.{table} ORDER BY place")
    return [row["payload"] for row in rows]


async def test_an_unblocked_key_continues_with_its_attempts_counted(log: Log) -> None:
    """Q14: the job is given out again before later ones; its attempts are kept."""
    async with operated(log) as (con, admin):
        await admin.create("mails", poison="block", max_attempts=3)
        await insert(con, log, "mails", ("a", 1), ("a", 2))
        assert await fail(con, log, "mails", 2) == "blocked"
        keys = await admin.keys("mails")
        assert await claim(con, log, "mails") == []
        (lane,) = await keys.lanes("blocked")
        assert (lane.key, lane.attempts, lane.reason, lane.jobs) == ("a", 2, "boom", 2)
        await keys.unblock("a")
        (row,) = await claim(con, log, "mails")
        assert (row["r_payload"], row["r_attempts"]) == ("1", 3)
        await end(con, log, "mails", row, "fail")
        await keys.unblock("a")
        (row,) = await claim(con, log, "mails")
        assert (row["r_payload"], row["r_attempts"]) == ("1", 3)
        await end(con, log, "mails", row, "nak")
        assert await keys.lanes("blocked") == []


async def test_a_job_is_skipped_into_the_dead_letters(log: Log) -> None:
    """Q14: the key continues behind it; refused while a consumer has a lease of it."""
    async with operated(log) as (con, admin):
        await admin.create("mails", poison="block", max_attempts=1)
        await insert(con, log, "mails", ("a", 1), ("a", 2))
        keys = await admin.keys("mails")
        (row, _) = await claim(con, log, "mails")
        assert await keys.park("a", "by hand")
        with pytest.raises(RefusedError, match="a consumer has a lease on the key 'a'"):
            await keys.unblock("a", skip=True)
        await end(con, log, "mails", row, "nak")
        await keys.unblock("a", skip=True)
        assert await payloads(con, log, "finished_job") == ["1"]
        assert await handled(con, log, "mails") == [2]


async def test_a_parked_key_waits_in_order_with_what_comes_meanwhile(log: Log) -> None:
    """Q14: other keys continue; after an unpark, attempts start at 0."""
    async with operated(log) as (con, admin):
        await admin.create("mails", max_attempts=2)
        await insert(con, log, "mails", ("a", 1), ("b", 2))
        assert await fail(con, log, "mails", 1) == "parked"
        await con.execute(f"UPDATE {log.sql}.lane SET lease_until = now()")
        await insert(con, log, "mails", ("a", 3))
        assert await handled(con, log, "mails") == [2]
        keys = await admin.keys("mails")
        assert [lane.state for lane in await keys.lanes()] == ["parked"]
        await keys.unpark("a")
        (row,) = rows = (await claim(con, log, "mails"))[:1]
        assert (row["r_payload"], row["r_attempts"]) == ("1", 1)
        await end(con, log, "mails", rows[0], "nak")
        assert await handled(con, log, "mails") == [1, 3]


async def test_a_key_without_jobs_is_parked_in_advance(log: Log) -> None:
    async with operated(log) as (con, admin):
        await admin.create("mails")
        keys = await admin.keys("mails")
        assert not await keys.park("a")
        await insert(con, log, "mails", ("a", 1))
        assert await claim(con, log, "mails") == []
        await keys.unpark("a")
        assert await handled(con, log, "mails") == [1]


async def test_an_ordered_queue_is_unblocked_without_a_key(log: Log) -> None:
    """Q-T10: until then no later job is given out; one dead letter is kept."""
    async with operated(log) as (con, admin):
        await admin.create(
            "line", ordering_required=True, poison="block_and_dead_letter", max_attempts=1
        )
        await insert(con, log, "line", ("a", 1), ("b", 2), (None, 3))
        assert await fail(con, log, "line") == "blocked"
        assert await claim(con, log, "line") == []
        keys = await admin.keys("line")
        with pytest.raises(ConfigError, match="key='a': must be omitted"):
            await keys.unblock("a")
        (lane,) = await keys.lanes()
        assert (lane.key, lane.jobs, lane.state) == ("", 3, "blocked")
        await keys.unblock()
        assert await payloads(con, log, "finished_job") == ["1"]
        assert await handled(con, log, "line") == [1, 2, 3]


async def test_a_key_without_characters_is_a_key(log: Log) -> None:
    async with operated(log) as (_, admin):
        await admin.create("mails")
        keys = await admin.keys("mails")
        await keys.park("")
        await keys.unpark("")


async def test_a_purge_leaves_no_keys_in_the_way(log: Log) -> None:
    """Neither keys whose jobs arrived meanwhile, nor parked ones."""
    async with operated(log) as (con, admin):
        await admin.create("mails")
        await con.execute(
            f"INSERT INTO {log.sql}.job (queue, key, payload) "
            "SELECT 'mails', 'k' || n, '1' FROM generate_series(1, 300) AS n"
        )
        await con.execute(f"SELECT {log.sql}.merge_bells('mails', 1000, now())")
        await (await admin.keys("mails")).park("k7")
        assert await (await admin.jobs("mails")).purge("waiting") == 300
        lanes = await con.fetch(f"SELECT key FROM {log.sql}.lane")
        assert [row["key"] for row in lanes] == ["k7"]


async def test_a_queue_keeps_its_name(log: Log) -> None:
    async with operated(log) as (con, admin):
        await admin.create("mails")
        with pytest.raises(asyncpg.ObjectInUseError, match="keeps its name"):
            await con.execute(f"UPDATE {log.sql}.queue SET name = 'letters'")


async def test_a_key_in_another_state_is_told(log: Log) -> None:
    async with operated(log) as (con, admin):
        await admin.create("mails")
        await insert(con, log, "mails", ("a", 1))
        keys = await admin.keys("mails")
        for change in (keys.unblock("a"), keys.unpark("b"), keys.unblock("a", skip=True)):
            with pytest.raises(ConfigError, match="is neither blocked nor parked"):
                await change
        with pytest.raises(ConfigError, match="must be text, without NUL"):
            await keys.park("a\0b")
        with pytest.raises(ConfigError, match="state='busy': must be one of"):
            await keys.lanes("busy")  # type: ignore[arg-type]  # what is tested


async def test_lanes_are_listed_by_state(log: Log) -> None:
    async with operated(log) as (con, admin):
        await admin.create("mails")
        await insert(con, log, "mails", *((key, 1) for key in "abcd"))
        sql = f"SELECT * FROM {log.sql}.claim_jobs('mails', 'g', 'one', 1, 1, 0, 30)"
        (first,) = await con.fetch(sql)
        await end(con, log, "mails", first, "nak", 60.0)
        (second,) = await con.fetch(sql)
        keys = await admin.keys("mails")
        await keys.park("d")
        found = {lane.key: lane for lane in await keys.lanes()}
        states = {key: lane.state for key, lane in found.items()}
        assert states["d"] == "parked"
        assert states[first["r_key"]] == "delayed"
        assert states[second["r_key"]] == "leased"
        assert sorted(states.values()) == ["delayed", "leased", "parked", "ready"]
        leased = found[second["r_key"]]
        assert (leased.owner, leased.group) == ("one", "g")
        assert 25 < (leased.lease_left or 0) <= 30
        assert 55 < found[first["r_key"]].due_in <= 60
        assert len(await keys.lanes(limit=2)) == 2


async def test_jobs_without_a_key_are_stopped_one_by_one(log: Log) -> None:
    """They continue by place, or are cancelled."""
    async with operated(log) as (con, admin):
        await admin.create("mails", poison="block", max_attempts=1)
        await insert(con, log, "mails", (None, 1), (None, 2), (None, 3))
        for row in (await claim(con, log, "mails"))[:2]:
            assert await end(con, log, "mails", row, "fail") == "blocked"
        jobs = await admin.jobs("mails")
        one, two = (await jobs.list("blocked")).items
        assert (one.state, one.attempts, one.reason) == ("blocked", 1, "boom")
        assert await jobs.retry([one.place]) == {one.place: "ready"}
        assert await jobs.cancel([two.place]) == {two.place: "cancelled"}
        assert await payloads(con, log, "finished_job") == ["2"]
        assert [row["r_payload"] for row in await claim(con, log, "mails")] == ["1"]


async def dead_letters(con: Any, log: Log, count: int) -> None:
    for number in range(count):
        await insert(con, log, "mails", ("ab"[number % 2], number))
        await fail(con, log, "mails")


async def test_dead_letters_are_redriven_in_their_order(log: Log) -> None:
    """All, those of a key, some places, a number; letters of jobs that die meanwhile stay."""
    async with operated(log) as (con, admin):
        await admin.create("mails", poison="skip", max_attempts=1)
        await dead_letters(con, log, 6)
        jobs = await admin.jobs("mails")
        assert await jobs.redrive(key="a", limit=1) == 1
        places = await con.fetch(f"SELECT place FROM {log.sql}.finished_job ORDER BY place")
        assert await jobs.redrive(places=[places[0]["place"]]) == 1
        done: list[int] = []
        assert await jobs.redrive(batch=3, on_batch=done.append) == 4
        assert done == [3, 4]
        assert await payloads(con, log) == ["0", "1", "2", "3", "4", "5"]
        assert await jobs.redrive() == 0
        assert sorted(await handled(con, log, "mails")) == [0, 1, 2, 3, 4, 5]


async def test_jobs_are_purged_by_kind_key_and_age(log: Log) -> None:
    """Leased jobs stay."""
    async with operated(log) as (con, admin):
        await admin.create("mails", poison="skip", max_attempts=1, keep_done=3600)
        await dead_letters(con, log, 4)
        jobs = await admin.jobs("mails")
        hour_ago = datetime.now(UTC) - timedelta(hours=1)
        assert await jobs.purge("dead", older_than=hour_ago) == 0
        assert await jobs.purge("dead", key="a") == 2
        assert await jobs.purge("dead") == 2
        await insert(con, log, "mails", ("a", 1))
        assert await handled(con, log, "mails") == [1]
        assert await jobs.purge("done", older_than=timedelta(hours=1)) == 0
        assert await jobs.purge("done") == 1
        await insert(con, log, "mails", ("a", 1))
        await claim(con, log, "mails")
        await insert(con, log, "mails", ("a", 2), ("b", 3), ("c", 4), (None, 5))
        assert await jobs.purge("waiting", older_than=timedelta(hours=1)) == 0
        assert await jobs.purge("waiting", key="b") == 1
        done: list[int] = []
        assert await jobs.purge("waiting", batch=1, on_batch=done.append) == 2
        assert done == [1, 2]
        assert await payloads(con, log) == ["1", "2"]
        with pytest.raises(ConfigError, match="older_than=5: must be an aware datetime"):
            await jobs.purge("done", older_than=5)  # type: ignore[arg-type]  # what is tested
        with pytest.raises(ConfigError, match="what='all': must be one of"):
            await jobs.purge("all")  # type: ignore[arg-type]  # what is tested


async def test_retention_deletes_what_is_kept_no_longer(log: Log) -> None:
    """Q17: by outcome, as configured for the queue; ids of waiting jobs stay, so that none is
    enqueued twice.
    """
    async with operated(log) as (con, admin):
        await admin.create("mails", poison="skip", max_attempts=1, keep_done=60, keep_dead=7200)
        await dead_letters(con, log, 2)
        await insert(con, log, "mails", ("a", 1))
        await handled(con, log, "mails")
        await con.fetch(
            f"SELECT * FROM {log.sql}.enqueue('mails', '{{a,b}}', '{{1,2}}', "
            "p_ids => ARRAY[gen_random_uuid(), gen_random_uuid()]::text[], "
            "p_client => 'c', p_numbers => '{1,2}')"
        )
        (row, *_) = await claim(con, log, "mails")
        await con.execute(
            f"DELETE FROM {log.sql}.job WHERE place = $1; ".replace("$1", str(row["r_place"]))
        )
        for table, column in (
            ("finished_job", "finished_at"),
            ("job_id", "at"),
            ("queue_client", "at"),
        ):
            await con.execute(
                f"UPDATE {log.sql}.{table} SET {column} = {column} - interval '1 hour'"
            )
        jobs = await admin.jobs("mails")
        assert await jobs.apply_retention() == (1, 0, 0, 0, 0)
        soon = timedelta(minutes=1)
        assert await jobs.apply_retention(keep_ids=soon, keep_clients=soon) == (0, 0, 0, 1, 1)
        await admin.alter("mails", keep_dead=60)
        assert await (await admin.jobs("mails")).apply_retention() == (0, 2, 0, 0, 0)
