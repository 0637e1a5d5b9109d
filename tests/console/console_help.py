"""A browser without scripts: it keeps cookies, follows links and sends the forms of pages."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from html import unescape
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import httpx
from tests.postgres.queues.jobs_help import claim

from sluicegate.console import Console

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.postgres.streams.log_help import Log

HERE = ("127.0.0.1", 50_000)
TOKEN = "correct-horse-battery-staple"
_SETTLE = "SELECT r_fate FROM {s}.settle_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, '{{}}', '{{}}')"


class _Forms(HTMLParser):
    """The forms of a page: their method, address and fields."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str, list[tuple[str, str]]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.found.append((given.get("method", "get"), given["action"], []))
        elif tag == "input" and given.get("name") and given.get("type") != "checkbox":
            self.found[-1][2].append((given["name"], given.get("value", "")))


class Browser:
    """Pages of a console."""

    def __init__(self, app: Any, client: tuple[str, int] = HERE, base: str = "") -> None:
        transport = httpx.ASGITransport(app, client=client, raise_app_exceptions=True)
        self.client = httpx.AsyncClient(
            transport=transport, base_url="http://localhost:8377", follow_redirects=True
        )
        self.app = app
        self.base = base

    async def get(self, name: str, /, **query: object) -> httpx.Response:
        """Return a page of the console."""
        shown = f"?{urlencode(query, doseq=True)}" if query else ""
        return await self.client.get(f"{self.base}/{name}{shown}")

    async def text(self, name: str, /, **query: object) -> str:
        """Return the text of a page that exists."""
        answer = await self.get(name, **query)
        assert answer.status_code == 200, words(answer)
        return words(answer)

    async def fails(self, status: int, name: str, /, **query: object) -> str:
        """Return the text of a page that exists only with this status."""
        answer = await self.get(name, **query)
        assert answer.status_code == status, (answer.status_code, words(answer))
        return words(answer)

    async def links(self, name: str, start: str, /, **query: object) -> list[str]:
        """Return the links of a page that begin with a name, without the mount path."""
        found = re.findall(r'href="/([^"]*)"', (await self.get(name, **query)).text)
        return [unescape(each) for each in found if each.startswith(start)]

    async def ask(self, action: str, /, **fields: object) -> tuple[str, dict[str, str]]:
        """Return the question of an action, and the fields of the form that performs it."""
        answer = await self.get("act", do=action, **fields)
        assert answer.status_code == 200, words(answer)
        forms = _Forms()
        forms.feed(answer.text)
        form = next(each for each in forms.found if each[1].endswith("/act"))
        assert form[0] == "post"
        return question(answer), dict(form[2])

    async def post(self, name: str, fields: Any, **options: Any) -> httpx.Response:
        """Send a form, with the ends of lines that browsers send."""
        sent = {field: "\r\n".join(re.split("\r\n|\r|\n", text)) for field, text in fields.items()}
        return await self.client.post(f"{self.base}/{name}", data=sent, **options)

    async def do(self, action: str, /, **fields: object) -> tuple[str, str]:
        """Perform an action, with its confirmation; return the question and the result."""
        asked, form = await self.ask(action, **fields)
        answer = await self.post("act", form)
        assert answer.status_code == 200, words(answer)
        assert answer.history[0].status_code == 303
        return asked, words(answer)


@asynccontextmanager
async def browsing(*parts: Any, **options: Any) -> AsyncGenerator[Browser]:
    """A browser on the host of a console."""
    async with Console(*parts, **options) as console:
        browser = Browser(console)
        async with browser.client:
            yield browser


def words(answer: httpx.Response) -> str:
    """Return the text of the main part of a page, without markup."""
    main = re.sub(r"(?s).*<main[^>]*>|</main>.*", "", answer.text)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", main)).split())


def question(answer: httpx.Response) -> str:
    """Return the question, the result, or the error of a page."""
    found = re.search(r'(?s)class="question"[^>]*>(.*?)</p>', answer.text)
    assert found is not None, words(answer)
    return unescape(found[1])


async def kill(con: Any, log: Log, queue: str, error: str = "ValueError", most: int = 100) -> int:
    """Make dead letters of the first jobs of at most ten keys; return their number."""
    rows = {row["r_lease"]: row for row in reversed(await claim(con, log, queue))}
    for row in [*rows.values()][:most]:
        values = (
            *([row["r_lease"]], [row["r_lane"]], ["fail"], [row["r_place"]], [0.0]),
            *([row["r_attempts"]], ["boom <b>"], [error]),
        )
        await con.fetchval(_SETTLE.format(s=log.sql), queue, *values)
    return len(rows)
