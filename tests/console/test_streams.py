"""The pages of streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.console.console_help import browsing, words
from tests.console.contents import fill_streams, parked
from tests.postgres.streams.served_help import consumed

from sluicegate.postgres import PostgresParkStore, SubscriptionAdmin

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

pytestmark = pytest.mark.usefixtures("real_clock")


async def test_subscriptions_and_the_messages_at_which_slots_stand(log: Log) -> None:
    async with log.connected() as con, browsing(postgres=log.dsn, schema=log.schema) as browser:
        position = await fill_streams(log, con)
        text = await browser.text("streams")
        assert "Readable up to 5 of 5" in text
        assert "billing no process 5" in text
        assert "mails running 0" in text
        html = (await browser.get("subscription", name="billing")).text
        assert "<img" not in html
        text = await browser.text("subscription", name="billing")
        assert "1 : happened, version 0 of the stream order-1" in text
        assert f"{position} : happened, version 0 of the stream order-" in text
        assert "no process serves the subscription" in text
        assert "Show the 256 slots" in await browser.text("subscription", name="mails")
        assert "255 6 0 – all handled" in await browser.text("subscription", name="mails", all=1)
        await browser.fails(400, "subscription", name="other")


async def test_a_subscription_and_a_slot_are_paused_and_resumed(log: Log) -> None:
    async with (
        log.connected() as con,
        browsing(postgres=log.dsn, schema=log.schema) as browser,
        SubscriptionAdmin(log.dsn, schema=log.schema) as admin,
    ):
        await fill_streams(log, con)
        question = await browser.text("act", do="pause-subscription", name="billing")
        assert "Pause 256 slots" in question
        assert "5 messages wait in them" in question
        done = (await browser.do("pause-subscription", name="billing"))[1]
        assert "256 slots of the subscription billing are paused" in done
        assert (await admin.explain("billing")).is_paused
        await browser.do("resume-subscription", name="billing")
        assert not (await admin.explain("billing")).is_paused
        slot = next(
            each.slot for each in (await admin.explain("billing")).slots if each.oldest == 1
        )
        assert "1 slots" in (await browser.do("pause-subscription", name="billing", slot=slot))[1]
        report = await admin.explain("billing")
        assert [each.slot for each in report.slots if each.is_paused] == [slot]
        assert await consumed(log, "mails") == []
        await browser.do("resume-subscription", name="billing", slot=slot)
        assert await consumed(log, "billing") == [1, 2, 3, 4, 5]


async def test_a_message_is_skipped_with_its_reason(log: Log) -> None:
    async with log.connected() as con, browsing(postgres=log.dsn, schema=log.schema) as browser:
        position = await fill_streams(log, con)
        question = await browser.text("act", do="skip-message", name="billing", position=position)
        assert "1 message of its slot wait" in question
        text = await browser.text("message", position=position)
        assert "Type happened" in text
        assert "metadata" not in text
        assert "metadata" in await browser.text("message", position=position, payload=1)
        await browser.fails(404, "message", position=999)
        await browser.fails(400, "message", position="x")
        _, form = await browser.ask("skip-message", name="billing", position=position)
        answer = await browser.post("act", {**form, "reason": "broken"})
        assert "1 message is skipped by billing" in words(answer)
        why = await con.fetchval(f"SELECT reason FROM {log.sql}.subscription_skip")
        assert why == "broken"
        again = await browser.text("act", do="skip-message", name="billing", position=position)
        assert "nothing to change" in again
        assert position not in await consumed(log, "billing")


async def test_parked_keys_are_listed_shown_and_unparked(log: Log) -> None:
    async with log.connected() as con, browsing(postgres=log.dsn, schema=log.schema) as browser:
        await fill_streams(log, con)
        assert "ann ledger 1 20" in await browser.text("parked-keys")
        assert "ann ledger" in await browser.text("parked-keys", group="ledger")
        assert "No key is parked" in await browser.text("parked-keys", group="other")
        await browser.fails(400, "parked-keys", after="x")
        named: dict[str, Any] = {"group": "ledger", "key": "ann"}
        page = await browser.get("parked-key", **named)
        assert "orders/3@17" in words(page)
        assert '"value"' not in words(page)
        page = await browser.get("parked-key", payload=1, **named)
        assert '"value": "\\"><img src=x' in words(page)
        assert "<img" not in page.text
        await browser.fails(404, "parked-key", group="ledger", key="bob")
        assert "is asked to handle its records" in await browser.text(
            "act", do="unpark-records", **named
        )
        asked, result = await browser.do("unpark-records", **named)
        assert asked == "Unpark the key ann of ledger, with 1 parked records?"
        assert "ledger is asked to handle 1 parked records of the key ann." in result
        async with PostgresParkStore(log.dsn, schema=log.schema) as store:
            assert await store.requests("ledger") == {"ann"}


async def test_parked_keys_are_listed_in_pages(log: Log) -> None:
    async with (
        browsing(postgres=log.dsn, schema=log.schema) as browser,
        PostgresParkStore(log.dsn, schema=log.schema) as store,
    ):
        for number in range(120):
            await store.park("ledger", f"k{number}", [parked()])
        seen: list[str] = []
        page = ["parked-keys?group=ledger"]
        while page:
            seen += await browser.links(page[0], "parked-key?")
            found = await browser.links(page[0], "parked-keys?")
            page = [each for each in found if "after=" in each]
        assert len({*seen}) == len(seen) == 120
