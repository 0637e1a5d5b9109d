"""A database that is down, and comes back; one without the schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.console.console_help import browsing, words

from sluicegate import Batcher
from sluicegate.postgres import QueueAdmin, install_streams
from sluicegate.sinks import MemorySink
from sluicegate.testing import embedded_postgres

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")


async def test_a_database_that_is_down_has_a_page_without_the_password() -> None:
    """The page says which database, and since when; the parts are shown all the same."""
    dsn = "postgresql://app:hunter2@127.0.0.1:1/shop"
    async with browsing(Batcher(MemorySink(), name="audit"), postgres=dsn) as browser:
        page = await browser.get("queues")
        assert page.status_code == 503
        text = words(page)
        assert "127.0.0.1:1/shop does not answer" in text
        assert "First noticed at 20" in text
        assert "reload" in text
        assert "hunter2" not in page.text
        again = words(await browser.get("queue", name="mails"))
        assert text.partition("First")[2][:30] == again.partition("First")[2][:30]
        page = await browser.get("")
        assert page.status_code == 200
        assert "audit" in words(page)
        assert "cannot be read" in words(page)
        assert "hunter2" not in page.text


async def test_a_console_reconnects_by_itself() -> None:
    """Also between a question and its confirmation: the form can be sent again."""
    with embedded_postgres() as server:
        await install_streams(server.dsn)
        async with QueueAdmin(server.dsn) as admin:
            await admin.create("mails")
        async with browsing(postgres=server.dsn) as browser:
            _, form = await browser.ask("pause-queue", queue="mails")
            server.stop()
            pages = [await browser.get("queues"), await browser.post("act", form)]
            assert [page.status_code for page in pages] == [503, 503]
            password = server.dsn.partition("@")[0].rpartition(":")[2]
            assert password not in pages[0].text + pages[1].text
            server.start()
            assert "is paused" in words(await browser.post("act", form))


async def test_a_database_without_the_schema_says_how_to_install_it(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    async with browsing(postgres=embedded_postgres.dsn, schema="no_such") as browser:
        page = await browser.get("queues")
        assert page.status_code == 400
        assert "sluicegate pg install" in words(page)
