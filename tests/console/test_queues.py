"""Queues, keys and jobs of a real database: pages, filters, and actions with their numbers."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.console.console_help import Browser, browsing, kill, words
from tests.postgres.queues.jobs_help import claim, insert
from tests.postgres.queues.operated_help import fail, operated

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.postgres.streams.log_help import Log

    from sluicegate.postgres import QueueAdmin

pytestmark = pytest.mark.usefixtures("real_clock")

MARKUP = "<script>alert(1)</script>"


@asynccontextmanager
async def opened(log: Log, **options: Any) -> AsyncGenerator[tuple[Browser, Any, QueueAdmin]]:
    """A console of the log's schema, with the queue `mails`."""
    async with operated(log) as (con, admin):
        await admin.create("mails", poison="skip", max_attempts=1)
        async with browsing(postgres=log.dsn, schema=log.schema, **options) as browser:
            yield browser, con, admin


async def states(con: Any, log: Log) -> list[Any]:
    rows = await con.fetch(f"SELECT outcome FROM {log.sql}.finished_job ORDER BY place")
    return [row["outcome"] for row in rows]


async def test_the_queues_and_their_numbers(log: Log) -> None:
    async with opened(log) as (browser, con, admin):
        await admin.create("bills", ordering_required=True)
        await insert(con, log, "mails", ("a", 1), ("a", 2), ("b", 3))
        await kill(con, log, "mails")
        for name in ("", "queues"):
            text = await browser.text(name)
            assert re.search(r"bills running 0 0 0 0 0 0 0 0 0.0 s", text), text
            assert re.search(r"mails running 1 \d 0 0 0 0 2 0", text), text
        text = await browser.text("queue", name="mails")
        assert "no consumer is registered" in text
        assert "max_attempts 1" in text


async def test_a_queue_is_paused_and_resumed(log: Log) -> None:
    async with opened(log) as (browser, con, admin):
        await insert(con, log, "mails", ("a", 1), ("a", 2))
        asked, result = await browser.do("pause-queue", queue="mails")
        assert asked == "Pause the queue mails, with 2 jobs?"
        assert "The queue mails is paused." in result
        assert (await admin.lag())["mails"].is_paused
        asked, _ = await browser.ask("pause-queue", queue="mails")
        page = await browser.get("act", do="pause-queue", queue="mails")
        assert re.findall(r'aria-current="page">([^<]*)', page.text) == ["Queues"]
        assert "nothing to change" in words(page)
        await browser.do("resume-queue", queue="mails")
        assert not (await admin.lag())["mails"].is_paused


async def test_keys_by_state_and_their_actions(log: Log) -> None:
    async with opened(log) as (browser, con, admin):
        await admin.alter("mails", poison="park_key")
        await insert(con, log, "mails", (MARKUP, 1), (MARKUP, 2), ("b", 3))
        assert await fail(con, log, "mails") == "parked"
        page = await browser.get("queue", name="mails", state="parked")
        assert MARKUP not in page.text
        assert MARKUP in words(page)
        assert "boom" in words(page)
        assert MARKUP not in await browser.text("queue", name="mails", state="leased")
        assert "No key is delayed" in await browser.text("queue", name="mails", state="delayed")
        assert (await browser.get("queue", name="mails", state="odd")).status_code == 400
        keys = await admin.keys("mails")
        asked, result = await browser.do("unpark-key", queue="mails", key=MARKUP)
        assert asked == f"Unpark: the key {MARKUP} of the queue mails, with 2 jobs?"
        assert "continues, with attempts from 0" in result
        assert await keys.lanes("parked") == []
        page = await browser.get("act", do="unpark-key", queue="mails", key=MARKUP)
        assert "nothing to change" in words(page)
        await browser.do("park-key", queue="mails", key="b")
        assert [(each.key, each.reason) for each in await keys.lanes("parked")] == [
            ("b", "parked by an operator")
        ]
        _, result = await browser.do("unblock-key", queue="mails", key="b")
        assert "attempts kept" in result
        _, form = await browser.ask("unblock-key", queue="mails", key="b")
        page = await browser.post("act", form)
        assert page.status_code == 400
        assert "neither blocked nor parked" in words(page)
        await browser.do("park-key", queue="mails", key=MARKUP)
        _, result = await browser.do("skip-key", queue="mails", key=MARKUP)
        assert "dead letter" in result
        assert await states(con, log) == ["dead"]


async def test_the_only_lane_of_an_ordered_queue(log: Log) -> None:
    async with opened(log) as (browser, con, admin):
        await admin.create("bills", ordering_required=True)
        await insert(con, log, "bills", (None, 1))
        asked, _ = await browser.do("park-key", queue="bills")
        assert asked.startswith("Park the only lane of the queue bills")
        assert "parked" in await browser.text("queue", name="bills")
        await browser.do("unpark-key", queue="bills")
        assert await (await admin.keys("bills")).lanes("parked") == []
        assert (await browser.get("act", do="park-key", queue="mails")).status_code == 400


async def test_jobs_are_listed_in_pages(log: Log) -> None:
    async with opened(log) as (browser, con, _):
        await insert(con, log, "mails", *[(f"k{n % 3}", n) for n in range(120)])
        seen: list[int] = []
        address: str | None = "/jobs?queue=mails"
        while address is not None:
            page = await browser.client.get(address)
            seen += [int(each) for each in re.findall(r"place=(\d+)", page.text)]
            found = re.search(r'rel="next" href="([^"]*)"', page.text)
            address = None if found is None else found[1].replace("&amp;", "&")
        assert seen == sorted(set(seen))
        assert len(seen) == 120
        text = await browser.text("jobs", queue="mails", key="k1", state="waiting")
        assert "k1" in text
        assert "k2" not in text
        for bad in ({"state": "odd"}, {"after": "x"}, {"state": "dead", "older_than": "soon"}):
            assert (await browser.get("jobs", queue="mails", **bad)).status_code == 400
        assert (await browser.get("jobs", queue="none")).status_code == 400


async def test_dead_letters_by_class_are_retried(log: Log) -> None:
    async with opened(log) as (browser, con, _):
        await insert(con, log, "mails", *[(f"k{n}", n) for n in range(5)])
        await kill(con, log, "mails", "ValueError")
        await insert(con, log, "mails", *[(f"m{n}", n) for n in range(4)])
        await kill(con, log, "mails", MARKUP)
        text = await browser.text("dead", queue="mails")
        assert "ValueError 5" in text
        assert f"{MARKUP} 4" in text
        fields = {"queue": "mails", "state": "dead", "error": "ValueError"}
        text = await browser.text("jobs", **fields)
        assert text.count("boom <b>") == 5
        asked, form = await browser.ask("retry-jobs", **fields)
        assert asked == ("Retry 5 dead jobs of the queue mails with the error class ValueError?")
        await con.execute(
            f"DELETE FROM {log.sql}.finished_job WHERE place = (SELECT min(place) FROM "
            f"{log.sql}.finished_job WHERE error = 'ValueError')"
        )
        page = await browser.post("act", form)
        assert "4 jobs of the queue mails" in words(page)
        assert "It was 5 when you confirmed; the real number is 4." in words(page)
        assert await states(con, log) == ["dead"] * 4


async def test_later_dead_letters_are_spared(log: Log) -> None:
    """What is done is what was asked: not the jobs that came after the question."""
    async with opened(log) as (browser, con, _):
        await insert(con, log, "mails", ("a", 1), ("b", 2))
        await kill(con, log, "mails")
        asked, form = await browser.ask("purge-jobs", queue="mails", state="dead")
        assert asked == "Delete 2 dead jobs of the queue mails?"
        await con.execute("SELECT pg_sleep(0.01)")
        await insert(con, log, "mails", ("c", 3))
        await kill(con, log, "mails")
        page = await browser.post("act", form)
        assert "2 jobs of the queue mails deleted." in words(page)
        assert await states(con, log) == ["dead"]
        _, form = await browser.ask("cancel-jobs", queue="mails")
        await insert(con, log, "mails", ("d", 4))
        page = await browser.post("act", form)
        assert "0 jobs" in words(page)
        await insert(con, log, "mails", ("d", 5))
        asked, form = await browser.ask("purge-jobs", queue="mails", state="waiting")
        assert asked == "Delete 2 jobs of the queue mails?"
        await con.execute("SELECT pg_sleep(0.01)")
        await insert(con, log, "mails", ("d", 6))
        page = await browser.post("act", form)
        assert "2 jobs of the queue mails deleted." in words(page)
        assert await con.fetchval(f"SELECT count(*) FROM {log.sql}.job") == 1


async def test_chosen_jobs_are_cancelled_and_retried(log: Log) -> None:
    async with opened(log) as (browser, con, _):
        await insert(con, log, "mails", ("a", 1), ("b", 2), ("c", 3))
        rows = await claim(con, log, "mails")
        places = [row["r_place"] for row in rows]
        await insert(con, log, "mails", ("d", 4))
        asked, result = await browser.do("cancel-jobs", queue="mails", place=[places[0], 999])
        assert asked == "Cancel 1 job of the queue mails?"
        assert "1 leased: the handler is cancelled, unless it ends before" in result
        asked, result = await browser.do("cancel-jobs", queue="mails", key="d", state="waiting")
        assert asked == "Cancel 1 waiting job of the queue mails with the key d?"
        assert await states(con, log) == ["cancelled"]
        asked, result = await browser.do("retry-jobs", queue="mails", state="cancelled")
        assert "1 enqueued again behind the waiting jobs" in result
        asked, result = await browser.do("retry-jobs", queue="mails", places=places[1])
        assert "1 unchanged: leased by a consumer" in result
        assert "the real number is 0" in result
        bad = {"queue": "mails", "do": "cancel-jobs"}
        assert (await browser.get("act", **bad, places="1,x")).status_code == 400
        assert (
            await browser.get("act", do="purge-jobs", queue="mails", state="leased")
        ).status_code == 400
        asked, result = await browser.do("purge-jobs", queue="mails", state="waiting")
        assert "deleted" in result


async def test_a_payload_is_shown_on_request_only_and_is_no_markup(log: Log) -> None:
    image = '"><img src=x onerror=alert(1)>'
    async with opened(log) as (browser, con, _):
        await insert(con, log, "mails", ("a", {"secret": MARKUP, "b": image}), ("b", "x" * 200_000))
        page = await browser.get("job", queue="mails", place=1)
        assert "secret" not in page.text
        assert "Show the payload" in page.text
        assert "no consumer" in words(page) or "bell" in words(page)
        assert re.search(r"Enqueued \(UTC\) \S+ \S+ Due \(UTC\) – Left \(UTC\) –", words(page))
        page = await browser.get("job", queue="mails", place=1, payload=1)
        assert "secret" in page.text
        assert MARKUP not in page.text
        assert "<img" not in page.text
        assert '\\"><img src=x onerror=alert(1)>' in words(page) or "onerror" in page.text
        page = await browser.get("job", queue="mails", place=2, payload=1)
        assert "The first 20,000 of 200," in words(page)
        assert 20_000 < len(page.text) < 30_000
        assert (await browser.get("job", queue="mails", place=77)).status_code == 404
        assert (await browser.get("job", queue="mails", place="x")).status_code == 400
        assert (await browser.get("job", queue="mails", place="9" * 18)).status_code == 404


async def test_a_control_character_is_escaped(log: Log) -> None:
    async with opened(log) as (browser, con, _):
        await insert(con, log, "mails", ("a\u202eb", 1))
        text = await browser.text("jobs", queue="mails")
        assert "a\\u202eb" in text


async def test_a_read_only_console_shows_everything_and_has_no_action(log: Log) -> None:
    async with opened(log, read_only=True) as (browser, con, _):
        await insert(con, log, "mails", ("a", 1), ("b", 2))
        await kill(con, log, "mails", most=1)
        for name, query in (
            ("", {}),
            ("queues", {}),
            ("queue", {"name": "mails"}),
            ("jobs", {"queue": "mails"}),
            ("dead", {"queue": "mails"}),
            ("job", {"queue": "mails", "place": 1}),
        ):
            page = await browser.get(name, **query)
            assert page.status_code == 200
            assert "/act" not in page.text
        fields = {"do": "purge-jobs", "queue": "mails", "state": "dead"}
        assert (await browser.get("act", **fields)).status_code == 403
