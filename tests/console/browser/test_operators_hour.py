"""A queue that broke down is repaired by the pages of the console only."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from tests.console.browser.chromium import running, served, tab
from tests.postgres.queues import hour_help as hour

from sluicegate.console import Console

if TYPE_CHECKING:
    from tests.console.browser.chromium import Chromium
    from tests.postgres.streams.log_help import Log

pytestmark = pytest.mark.usefixtures("real_clock")


async def test_an_operators_hour_by_pages(log: Log, program: Chromium) -> None:
    async with (
        hour.broken_down(log),
        Console(postgres=log.dsn, schema=log.schema) as console,
        served(console) as url,
        running(program) as browser,
        tab(browser, url) as tab_,
    ):
        page = tab_.page

        async def follow(name: str) -> str:
            """Follow a link; return the text of its page."""
            await page.get_by_role("link", name=name, exact=True).first.click()
            return await tab_.text()

        async def confirm(label: str) -> str:
            await page.get_by_role("button", name=label, exact=True).click()
            return await tab_.text()

        # found
        await tab_.go("/")
        text = " ".join((await follow("mails")).split())
        assert re.search(f"Jobs 10,000\\+ .* Parked 40 Dead letters {hour.DEAD} ", text)
        assert "no consumer is registered" in text
        text = " ".join((await follow("Dead letters")).split())
        for error, count in hour.ERRORS.items():
            assert f"{error} {count}" in text
        # explained
        for name, why in hour.WHY.items():
            await tab_.go(f"/queue?name=mails&key={name}")
            assert re.search(why, await tab_.text())
        await tab_.go("/queue?name=mails&state=parked")
        assert "no answer; `sluicegate queue unpark` continues it" in await tab_.text()
        # repaired
        await follow("Unpark")
        assert "continues, with attempts from 0" in await confirm("Unpark")
        for path, count, state in (
            ("/jobs?queue=mails&state=parked", len(hour.PARKED) - 1, "parked"),
            ("/dead?queue=mails", hour.DEAD, "dead"),
        ):
            await tab_.go(path)
            question = f"Retry {count} {state} jobs of the queue mails?"
            assert question in await follow("Retry all …")
            assert re.search(f"{count} jobs of the queue mails .*retried", await confirm("Retry"))
        await tab_.go("/queue?name=mails&state=parked")
        assert "No key is parked." in await tab_.text()
        await hour.handle_all(log)
        await tab_.go("/queue?name=mails")
        assert "No key has work." in await tab_.text()
        assert tab_.mistakes == []
