"""Every page in a real browser: accessible in both colour schemes and on a phone, without mistakes.

With `SLUICEGATE_SCREENSHOTS` set to a folder, a picture of each page is stored there.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from tests.console.browser.chromium import DESKTOP, PHONE, running, served, tab
from tests.console.console_help import kill
from tests.console.contents import MARKUP, fill_spool, fill_streams, keep, letters
from tests.postgres.queues.jobs_help import create, insert

from sluicegate import Batcher, Consumer, RetryPolicy
from sluicegate.console import Console, LetterStore
from sluicegate.consumer import MemoryLog, MemorySource
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.console.browser.chromium import Chromium, Tab
    from tests.postgres.streams.log_help import Log

    from sluicegate import Message

pytestmark = pytest.mark.usefixtures("real_clock")
PICTURES = os.environ.get("SLUICEGATE_SCREENSHOTS")
START = (
    *("/", "/parts", "/queues", "/streams", "/stores", "/spools", "/nowhere"),
    *("/part?name=ledger", "/part?name=audit"),
    *(
        "/queue?name=mails",
        "/jobs?queue=mails",
        "/jobs?queue=mails&state=dead",
        "/dead?queue=mails",
    ),
    "/job?queue=mails&place=1&payload=1",
    *("/act?do=retry-jobs&queue=mails&state=dead", "/act?do=park-key&queue=mails&key=k3"),
    *("/subscription?name=billing", "/parked-keys"),
    *(
        "/parked-key?group=ledger&key=ann&payload=1",
        "/message?position=1&payload=1",
        "/act?do=skip-message&name=billing&position=1",
    ),
    *("/letters?store=audit", "/letter?store=audit&letter=key-0001&payload=1"),
    *("/act?do=replay-letters&store=audit", "/act?do=purge-letters&store=audit"),
    *("/spool?spool={spool}", "/spool-items?spool={spool}&parked=1&payload=1"),
    "/spool-item?spool={spool}&parked=1&offset=1&payload=1",
)
"""All kinds of pages."""


@asynccontextmanager
async def filled(log: Log, folder: Path) -> AsyncGenerator[tuple[str, str]]:
    """A console that shows something on every page; its address, and the name of its spool."""
    memory = MemoryLog()
    for number in range(9):
        memory.produce("payments", number, key=f"customer-{number % 3}")

    async def book(message: Message) -> None:
        raise ValueError(f"no such account {MARKUP}")

    sent = LetterStore(
        await keep(folder / "dead.jsonl", letters(60)), name="audit", sink=MemorySink[Any]()
    )
    spool = fill_spool(folder / "spool")
    batcher = Batcher(MemorySink[Any](), name="audit")
    source = MemorySource(memory, ends=True)
    consumer = Consumer(source, name="ledger", retry=RetryPolicy(attempts=1), poison="block")
    async with AsyncExitStack() as stack:
        con = await stack.enter_async_context(log.connected())
        await create(con, log, "mails", poison="skip")
        jobs = [(f"k{number % 40}", {"n": number, "note": MARKUP}) for number in range(90)]
        await insert(con, log, "mails", (f"k{MARKUP}", MARKUP), *jobs)
        await kill(con, log, "mails", error=f"ValueError{MARKUP}")
        await fill_streams(log, con)
        await stack.enter_async_context(batcher)
        await stack.enter_async_context(consumer)
        await batcher.add(1)
        del book
        console = Console(
            *(consumer, batcher),
            postgres=log.dsn,
            schema=log.schema,
            letters=[sent],
            spools=[spool],
        )
        await stack.enter_async_context(console)
        yield await stack.enter_async_context(served(console)), str(spool)


@pytest.mark.parametrize(
    ("scheme", "size", "rules"),
    [
        ("light", DESKTOP, ()),
        pytest.param("dark", DESKTOP, ("color-contrast",), marks=pytest.mark.long),
        pytest.param("light", PHONE, ("scrollable-region-focusable",), marks=pytest.mark.long),
    ],
)
async def test_every_page_is_accessible_and_without_mistakes(
    log: Log,
    program: Chromium,
    tmp_path: Path,
    scheme: Literal["light", "dark"],
    size: tuple[int, int],
    rules: tuple[str, ...],
) -> None:
    """In both colour schemes, and on a phone. Markup in keys, payloads and errors runs nothing."""
    async with (
        filled(log, tmp_path) as (url, spool),
        running(program) as browser,
        tab(browser, url) as page,
    ):
        await page.page.emulate_media(color_scheme=scheme)
        await page.resize(size)
        wrong: list[object] = []
        for path in START:
            await page.go(path.format(spool=spool), 404 if path == "/nowhere" else 200)
            wrong += await page.violations(*rules)
            wrong += await cut_off(page) if size == DESKTOP else []
            await picture(page, path, f"{scheme}-{size[0]}")
        told = "Failed to load resource: the server responded with a status of 404 (Not Found)"
        assert page.mistakes == [f"console: {told}"]
        assert wrong == []


async def cut_off(page: Tab) -> list[object]:
    """The tables that are wider than the window."""
    wide = await page.page.eval_on_selector_all(
        ".scroll", "all => all.filter(each => each.scrollWidth > each.clientWidth).length"
    )
    return [(page.page.url, "tables are cut off", wide)] if wide else []


async def picture(page: Tab, path: str, kind: str) -> None:
    if PICTURES:
        name = path.partition("&spool")[0].strip("/").replace("?", "-").replace("/", "-")
        file = Path(PICTURES) / f"{name or 'overview'}-{kind}.png"
        await page.page.screenshot(path=file, full_page=True)


async def press(page: Tab, *texts: str) -> None:
    """Press Tab until a link or button with the text has the focus, which must be visible; then
    Enter.
    """
    for text in texts:
        found = ["", ""]
        for _ in range(80):
            await page.page.keyboard.press("Tab")
            found = await page.page.evaluate(
                "() => [document.activeElement.innerText || '',"
                " getComputedStyle(document.activeElement).outlineStyle]"
            )
            if found[0].strip() == text:
                break
        assert found[0].strip() == text, f"{text!r} does not get the focus"
        assert found[1] != "none", f"the focus on {text!r} is not visible"
        async with page.page.expect_navigation():
            await page.page.keyboard.press("Enter")


async def test_a_dead_job_is_retried_with_the_keyboard_only(
    log: Log, program: Chromium, tmp_path: Path
) -> None:
    async with (
        filled(log, tmp_path) as (url, _),
        running(program) as browser,
        tab(browser, url) as page,
    ):
        await page.go("/")
        before = await dead(log)
        await press(page, "Queues", "mails", "Skip to the content", "Dead letters", "Retry …")
        assert f"Retry {before} dead jobs" in await page.text()
        await press(page, "Retry")
        assert f"{before} jobs of the queue mails" in await page.text()
        assert await dead(log) == 0
        assert [*page.mistakes, *await page.violations()] == []


async def dead(log: Log) -> int:
    async with log.connected() as con:
        query = f"SELECT count(*) FROM {log.sql}.finished_job WHERE outcome = 'dead'"
        return int(await con.fetchval(query))


async def test_a_table_is_refreshed_unless_that_is_switched_off(
    log: Log, program: Chromium, tmp_path: Path
) -> None:
    async with (
        filled(log, tmp_path) as (url, _),
        running(program) as browser,
        tab(browser, url) as page,
        log.connected() as con,
    ):
        await page.go("/queues")
        assert "new-queue" not in await page.text()
        await create(con, log, "new-queue")
        await page.page.get_by_text("new-queue").wait_for()
        assert "As of" in await page.text()
        assert [*page.mistakes, *await page.violations()] == []


@pytest.mark.long  # the tests without a browser run no scripts, either
async def test_without_scripts_all_actions_work(
    log: Log, program: Chromium, tmp_path: Path
) -> None:
    async with (
        filled(log, tmp_path) as (url, spool),
        running(program) as browser,
        tab(browser, url, scripts=False) as page,
    ):
        for path, button, confirm, result in (
            ("/queue?name=mails", "Pause", "Pause", "The queue mails is paused"),
            ("/dead?queue=mails", "Retry all …", "Retry", "retried"),
            ("/subscription?name=billing", "Pause", "Pause", "256 slots of the subscription"),
            ("/letters?store=audit", "Send again", "Send again", "60 delivered"),
            (f"/spool?spool={spool}", "Replay parked items", "Replay", "3 parked items"),
        ):
            await page.go(path)
            await page.page.get_by_role("link", name=button, exact=True).first.click()
            await page.page.get_by_role("button", name=confirm, exact=True).click()
            assert result in await page.text()
            await page.page.get_by_role("link", name="Back", exact=True).click()
        assert page.mistakes == []
