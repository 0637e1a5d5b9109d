"""Schedules of a queue: their pages, and their actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.console.console_help import browsing, words
from tests.postgres.queues.operated_help import operated

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

pytestmark = pytest.mark.usefixtures("real_clock")


async def test_schedules_are_shown_and_operated(log: Log) -> None:
    async with (
        operated(log) as (_, admin),
        browsing(postgres=log.dsn, schema=log.schema) as browser,
    ):
        await admin.create("mails")
        assert "has no schedule" in await browser.text("schedules", queue="mails")
        schedules = await admin.schedules("mails")
        await schedules.put("<b>nightly", cron="30 2 * * *", payload={"secret": "<b>"})
        await schedules.put("often", every=90.0, key="a")
        text = await browser.text("schedules", queue="mails")
        assert "30 2 * * *" in text
        assert "every 1 min 30 s" in text
        named = {"queue": "mails", "name": "<b>nightly"}
        page = await browser.get("schedule", **named)
        assert "02:30:00" in words(page)
        assert "secret" not in page.text
        page = await browser.get("schedule", **named, payload=1)
        assert "secret" in words(page)
        assert "<b>" not in page.text
        asked, result = await browser.do("pause-schedule", **named)
        assert asked == "Pause: the schedule <b>nightly of the queue mails?"
        stored = await schedules.show("<b>nightly")
        assert stored is not None
        assert stored.is_paused
        page = await browser.get("act", do="pause-schedule", **named)
        assert "nothing to change" in words(page)
        _, result = await browser.do("run-schedule", **named)
        assert "has enqueued the job 1" in result
        await browser.do("resume-schedule", **named)
        stored = await schedules.show("<b>nightly")
        assert stored is not None
        assert not stored.is_paused
        await browser.do("delete-schedule", **named)
        assert await schedules.show("<b>nightly") is None
        assert (await browser.get("schedule", **named)).status_code == 404
        assert (await schedules.show("often")) is not None
