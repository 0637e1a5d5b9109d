"""The program of the page about the console."""

from __future__ import annotations

import pytest
from examples.apps.console_app import app, audit
from tests.console.console_help import Browser, words


@pytest.mark.usefixtures("real_clock")
async def test_the_console_of_the_page_shows_its_batcher_to_admins() -> None:
    async with app.router.lifespan_context(app):
        browser = Browser(app, ("203.0.113.9", 1), "/ops")
        assert (await browser.client.post("/events", content=b"one")).status_code == 202
        assert audit.stats().open_items == 1
        assert (await browser.get("")).status_code == 403
        browser.client.headers["x-user"] = "ann"
        assert "1 accepted" in words(await browser.get("part", name="audit"))
