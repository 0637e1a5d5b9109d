"""Parked keys for operators: pages, one key with its records, and the plans of their statements.

White box: the statements of pages.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.streams.log_pool import lent

from sluicegate import ConfigError
from sluicegate.cli import main
from sluicegate.consumer import ParkedRecord
from sluicegate.postgres import ParkAdmin, PostgresParkStore
from sluicegate.postgres.queues.jobs import BY_INDEX
from sluicegate.postgres.subscriptions.park_admin import KEYS, RECORDS, ParkedKey

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")
SINCE = datetime(2026, 3, 29, tzinfo=UTC)
POISON = ParkedRecord(
    topic="orders",
    partition=3,
    offset=7,
    key=b"k",
    value=b"the value",
    headers=[("h", b"1")],
    reason="no such customer at postgresql://u:hush-hush@db/x",
    error_type="LookupError",
    message="no such customer",
    attempts=5,
    parked_at=SINCE,
    is_poison=True,
)
BEHIND = replace(POISON, reason="behind", error_type="", message="", attempts=0, is_poison=False)


async def park(log: Log, group: str, key: str, records: int = 1) -> None:
    async with PostgresParkStore(log.dsn, schema=log.schema) as store:
        behind = [replace(BEHIND, offset=8 + n) for n in range(records - 1)]
        await store.park(group, key, [POISON, *behind])


async def test_keys_are_listed_in_pages(log: Log) -> None:
    for number in range(7):
        await park(log, "billing", f"orders/3 k{number}", 1 + number)
        await park(log, "mail", f"orders/3 k{number}")
    async with ParkAdmin(log.dsn, schema=log.schema) as admin:
        for group, expected in ((None, 14), ("billing", 7), ("none", 0)):
            found: list[ParkedKey] = []
            after: str | None = None
            while True:
                page = await admin.list(group, after=after, limit=3)
                found += page.items
                assert len(page.items) <= 3
                if (after := page.next) is None:
                    break
            assert len({(each.group, each.key) for each in found}) == len(found) == expected
            assert (
                {each.group for each in found} <= {"billing", "mail"} if group is None else {group}
            )
        found = [*(await admin.list("billing")).items]
        assert {each.key: each.records for each in found} == {
            f"orders/3 k{number}": 1 + number for number in range(7)
        }
        first = found[0]
        assert (first.topic, first.partition, first.offset) == ("orders", 3, 7)
        assert (first.since, first.attempts, first.error_type) == (SINCE, 5, "LookupError")
        for after in ("x", "", "0" * 5000):
            with pytest.raises(ConfigError, match="after="):
                await admin.list(after=after)


async def test_a_key_is_shown_with_its_records_and_payload_on_request(log: Log) -> None:
    await park(log, "billing", "k", 5)
    async with ParkAdmin(log.dsn, schema=log.schema) as admin:
        assert await admin.show("billing", "other") is None
        detail = await admin.show("billing", "k", limit=3)
        assert detail is not None
        assert detail.key.records == 5
        assert [each.offset for each in detail.records] == [7, 8, 9]
        assert [each.is_poison for each in detail.records] == [True, False, False]
        assert {each.value for each in detail.records} == {None}
        rest = await admin.show("billing", "k", after=detail.next, payload=True)
        assert rest is not None
        assert [each.offset for each in rest.records] == [10, 11]
        assert rest.next is None
        assert {each.value for each in rest.records} == {b"the value"}
        assert [*rest.records[0].headers] == [("h", b"1")]


@pytest.mark.parametrize("statistics", ["none", "ANALYZE"])
async def test_a_page_reads_as_much_however_many_records_are_parked(
    log: Log, statistics: str
) -> None:
    """Of 2,000 keys and one key of 50,000 records, by indexes."""
    await park(log, "billing", "hot")
    async with log.connected() as con:
        await con.execute(f"ALTER TABLE {log.sql}.parked SET (autovacuum_enabled = off)")
        await con.execute(
            f"INSERT INTO {log.sql}.parked (consumer, key, queue, place, record)"
            " SELECT p.consumer, p.key, CASE WHEN n % 26 = 0 THEN sha256(n::text::bytea) ELSE p.queue END,"
            f" sha256(n::text::bytea), p.record FROM {log.sql}.parked p, generate_series(1, 52000) n"
        )
        if statistics == "ANALYZE":
            await con.execute(f"ANALYZE {log.sql}.parked")
        await con.execute(BY_INDEX.replace("true", "false"))
        queue = await con.fetchval(f"SELECT queue FROM {log.sql}.parked ORDER BY id LIMIT 1")
        # the hot key alone is counted up to 10,000
        start = queue
        for query, values in (
            (KEYS, [start, None, 100]),
            (KEYS, [start, "billing", 100]),
            (RECORDS, [queue, 0, 100, True]),
        ):
            text = query.replace("{schema}", log.sql)
            assert len(await con.fetch(text, *values)) == 100
            (plan,) = json.loads(
                await con.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}", *values)
            )
            nodes: list[Any] = [plan["Plan"]]
            for node in nodes:
                nodes += node.get("Plans", [])
            assert "Seq Scan" not in {node["Node Type"] for node in nodes}
            assert plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"] < 2000


def test_the_command_prints_keys_and_records(
    embedded_postgres: EmbeddedPostgres, capsys: pytest.CaptureFixture[str]
) -> None:
    """Secrets in reasons are hidden unless payloads are requested."""
    with lent(embedded_postgres.dsn) as log:

        def run(*arguments: str, code: int = 0) -> tuple[str, str]:
            command, *rest = arguments
            given = ["parked", command, log.dsn, *rest, "--schema", log.schema]
            assert main(given) == code
            return capsys.readouterr()

        assert run("list") == ("", "no key is parked\n")
        asyncio.run(park(log, "billing", "orders/3 k", 3))
        out, err = run("list")
        assert out.splitlines()[1].split()[:5] == [
            "billing",
            "orders/3",
            "k",
            "3",
            "2026-03-29T00:00:00+00:00",
        ]
        assert "orders/3@7" in out
        assert "hush-hush" not in out
        assert err == "`sluicegate parked show DSN GROUP KEY` shows the records of a key\n"
        out, _ = run("list", "billing", "--limit", "1", "--json")
        told = json.loads(out)
        assert told["parked"][0]["key"] == "orders/3 k"
        out, err = run("show", "billing", "orders/3 k", "--limit", "2")
        assert "the value" not in out
        assert "hush-hush" not in out
        assert "there may be more: --after" in err
        assert "unpark" in err
        out, _ = run("show", "billing", "orders/3 k", "--payload", "--json")
        records = json.loads(out)["first_records"]
        assert [each["offset"] for each in records] == [7, 8, 9]
        assert records[0]["value"] == {"$base64": "dGhlIHZhbHVl"}
        _, err = run("unpark", "billing", "orders/3 k")
        assert err.startswith("requested: the consumer that owns the key")
        assert len(json.loads(run("list", "--json")[0])["parked"]) == 1
        run("unpark", "billing", "x", code=2)
        _, err = run("show", "billing", "x", code=2)
        assert "has no parked key 'x'; `sluicegate parked list` prints those that are" in err


def test_hostile_keys_and_texts_hide_no_other_key(
    embedded_postgres: EmbeddedPostgres, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server's JSON operators accept neither a NUL nor half of a surrogate pair."""
    texts = ["a\0b", "\ud800", r"\u0000 \/u0000 C:\\users", "\x1b[31m\r\n", "\u202e", "k" * 100_000]

    async def park_all(log: Log) -> None:
        async with PostgresParkStore(log.dsn, schema=log.schema) as store:
            for each in texts:
                shown: dict[str, Any] = {
                    "topic": each,
                    "key": each,
                    "value": each,
                    "headers": [(each, b"")],
                }
                told: dict[str, Any] = {"reason": each, "message": each, "error_type": each}
                await store.park("billing", each, [replace(POISON, **shown, **told)])

    with lent(embedded_postgres.dsn) as log:
        asyncio.run(park_all(log))

        def run(*arguments: str) -> str:
            command, *rest = arguments
            assert main(["parked", command, log.dsn, *rest, "--schema", log.schema]) == 0
            out = capsys.readouterr().out
            assert all(each == "\n" or each.isprintable() for each in out)
            return out

        assert len(run("list").splitlines()) == 1 + len(texts)
        found = json.loads(run("list", "--json"))["parked"]
        names = ("key", "topic", "reason", "error_type")
        assert sorted(tuple(each[name] for name in names) for each in found) == sorted(
            (each,) * len(names) for each in texts
        )
        for each in texts:
            for more in ([], ["--payload"]):
                told = json.loads(run("show", "billing", each, "--json", *more))
                assert told["first_records"][0]["message"] == each
                run("show", "billing", each, *more)
