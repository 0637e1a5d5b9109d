"""Hostile and unlucky use: names with markup and control characters, forms that are sent twice, roles
without rights, locked tables, applications that refuse or fail.
"""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from tests.console.console_help import Browser, browsing, kill, question, words
from tests.console.contents import parked
from tests.postgres.queues.jobs_help import insert
from tests.postgres.queues.operated_help import operated

from sluicegate import Batcher
from sluicegate.console import Console, LetterStore
from sluicegate.postgres import PostgresAccess, PostgresParkStore, install_streams
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from starlette.requests import Request
    from tests.postgres.streams.log_help import Log

pytestmark = pytest.mark.usefixtures("real_clock")
NASTY = "a\x1b[31m\u202eb\r\nc\nd<i>\"'&%00+{{7*7}}"
SHOWN = "a\\x1b[31m\\u202eb\\r\\nc\\nd<i>\"'&%00+{{7*7}}"


# -- names -----------------------------------------------------------------------------------------


async def test_a_key_with_any_characters_is_operated_unchanged(log: Log) -> None:
    async with (
        operated(log) as (con, admin),
        browsing(postgres=log.dsn, schema=log.schema) as browser,
    ):
        await admin.create("mails", poison="skip", max_attempts=1)
        await insert(con, log, "mails", (NASTY, 1))
        page = await browser.get("jobs", queue="mails")
        assert SHOWN in words(page)
        assert "<i>" not in page.text
        asked, result = await browser.do("park-key", queue="mails", key=NASTY)
        assert SHOWN in asked
        assert SHOWN in result
        assert [each.key for each in await (await admin.keys("mails")).lanes("parked")] == [NASTY]


async def test_parked_keys_with_any_characters_and_lengths(log: Log) -> None:
    names = ("\0nul", NASTY, "\ud800", "x" * 100_000)
    async with (
        browsing(postgres=log.dsn, schema=log.schema) as browser,
        PostgresParkStore(log.dsn, schema=log.schema) as store,
    ):
        for name in names:
            await store.park("ledger", name, [parked()])
        page = await browser.get("parked-keys")
        assert len(page.text) < 20_000
        assert "(100,000 characters: see sluicegate parked )" in words(page)
        links = await browser.links("parked-keys", "parked-key?")
        assert len(links) == 3
        for name in names[:2]:
            await browser.do("unpark-records", group="ledger", key=name)
        assert await store.requests("ledger") == {*names[:2]}


async def test_parts_and_stores_with_markup_in_their_names(tmp_path: Path) -> None:
    """A file of dead letters may have any name, and so may a part."""
    path = tmp_path / NASTY.replace("/", "")
    path.touch()
    made: Batcher[int] = Batcher(MemorySink(), name="<b>\u202e{{7*7}}")
    async with made, browsing(made, letters=[LetterStore(path)]) as browser:
        for name in ("", "parts", "stores"):
            page = await browser.get(name)
            assert "<i>" not in page.text
            assert "<b>" not in page.text
            assert "\u202e" not in page.text
        for link in [
            *await browser.links("parts", "part?"),
            *await browser.links("stores", "letters?"),
        ]:
            page = await browser.get(link)
            assert page.status_code == 200
            assert "<b>" not in page.text
            assert "<i>" not in page.text


@pytest.mark.parametrize(
    "path", ["/static/%2e%2e/door.py", "/static/%252e%252e/door.py", "/static/..%2fdoor.py"]
)
async def test_a_path_leads_to_no_other_file(path: str) -> None:
    async with browsing() as browser:
        url = httpx.URL("http://localhost:8377", raw_path=path.encode())
        assert (await browser.client.get(url)).status_code == 404


async def test_a_head_request_changes_nothing_and_other_methods_are_refused() -> None:
    async with browsing() as browser:
        assert (await browser.client.head("/parts")).status_code == 200
        for method in ("PUT", "DELETE", "OPTIONS", "TRACE", "ODD"):
            for name in ("/", "/act", "/login", "/nowhere", "/static/console.css"):
                assert (await browser.client.request(method, name)).status_code == 405


# -- forms that are sent twice ---------------------------------------------------------------------


async def test_a_form_is_performed_once(log: Log) -> None:
    """A double click, and a form that the button Back has shown again."""
    async with (
        operated(log) as (con, admin),
        browsing(postgres=log.dsn, schema=log.schema) as browser,
    ):
        await admin.create("mails")
        schedules = await admin.schedules("mails")
        await schedules.put("nightly", every=3600.0)
        _, form = await browser.ask("run-schedule", queue="mails", name="nightly")
        pages = await asyncio.gather(*(browser.post("act", form) for _ in range(3)))
        pages.append(await browser.post("act", form))
        assert {question(page) for page in pages} == {
            "The schedule nightly of the queue mails has enqueued the job 1."
        }
        assert await con.fetchval(f"SELECT count(*) FROM {log.sql}.job") == 1
        async with browsing(postgres=log.dsn, schema=log.schema) as other:
            assert (await other.post("act", form)).status_code == 403


async def test_two_operators_retry_the_same_job(log: Log) -> None:
    async with (
        operated(log) as (con, admin),
        browsing(postgres=log.dsn, schema=log.schema) as browser,
        browsing(postgres=log.dsn, schema=log.schema) as other,
    ):
        await admin.create("mails", poison="skip", max_attempts=1)
        await insert(con, log, "mails", ("a", 1))
        await kill(con, log, "mails")
        forms = [
            (await each.ask("retry-jobs", queue="mails", places=1))[1] for each in (browser, other)
        ]
        assert "1 job of" in words(await browser.post("act", forms[0]))
        assert "It was 1 when you confirmed; the real number is 0" in words(
            await other.post("act", forms[1])
        )
        assert await con.fetchval(f"SELECT count(*) FROM {log.sql}.job") == 1


# -- databases -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "refused", "needed"),
    [
        ("read", "queues", "--operate"),
        ("work", "streams", "--subscribe"),
        ("operate", "parked-keys", "--subscribe"),
    ],
)
async def test_a_role_without_a_right_reads_which_one_it_needs(
    log: Log, right: str, refused: str, needed: str
) -> None:
    role = f"only_{right}_{log.schema}"
    async with log.connected() as con:
        await con.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'hunter2x'")
        try:
            await install_streams(log.dsn, schema=log.schema, **{right: role})  # type: ignore[arg-type]
            dsn = re.sub("//[^@]*@", f"//{role}:hunter2x@", log.dsn)
            async with browsing(postgres=dsn, schema=log.schema) as browser:
                assert (await browser.get("")).status_code == 200
                page = await browser.get(refused)
                assert page.status_code == 409
                assert needed in question(page)
                assert "hunter2x" not in page.text
        finally:
            await con.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
            await con.execute(f"DELETE FROM {log.sql}.grantee WHERE role::text = '{role}'")


async def test_an_older_schema_names_the_upgrade(log: Log) -> None:
    async with log.connected() as con:
        rows = await con.fetch(f"DELETE FROM {log.sql}.migration WHERE version > 2 RETURNING *")
        assert rows
        async with browsing(postgres=log.dsn, schema=log.schema) as browser:
            for name in ("queues", "streams", "parked-keys"):
                assert "is at version 2" in await browser.fails(400, name)
            assert "sluicegate pg upgrade" in await browser.text("")


async def test_a_locked_table_has_a_page(log: Log) -> None:
    async with operated(log) as (con, admin):
        await admin.create("mails")
        access = PostgresAccess(log.dsn, statement_timeout=0.1)
        async with browsing(postgres=access, schema=log.schema) as browser, con.transaction():
            await con.execute(f"LOCK TABLE {log.sql}.job IN ACCESS EXCLUSIVE MODE")
            assert "locked" in await browser.fails(503, "jobs", queue="mails")


# -- applications ----------------------------------------------------------------------------------


@asynccontextmanager
async def mounted() -> AsyncGenerator[httpx.AsyncClient]:
    """A console in a FastAPI application behind a proxy, by the header `x-user`."""

    async def authorize(request: Request) -> bool | str:
        user = str(request.headers.get("x-user", ""))
        if user == "failing":
            raise RuntimeError("hunter2")
        if user == "unknown":
            raise HTTPException(401, headers={"www-authenticate": "Basic"})
        return user

    part: Batcher[int] = Batcher(MemorySink(), name="audit")
    console = Console(part, authorize=authorize)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        async with part, console:
            yield

    app = FastAPI(lifespan=lifespan)
    app.mount("/ops", console)
    transport = httpx.ASGITransport(app, root_path="/proxy", client=("203.0.113.9", 1))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="https://ops.example") as client,
    ):
        yield client


async def test_an_application_refuses_in_its_own_way() -> None:
    async with mounted() as client:
        page = await client.get("/proxy/ops/parts", headers={"x-user": "unknown"})
        assert (page.status_code, page.headers["www-authenticate"]) == (401, "Basic")
        page = await client.get("/proxy/ops/parts", headers={"x-user": "failing"})
        assert page.status_code == 500
        assert "Path=/proxy/ops; SameSite=strict; Secure" in page.headers["set-cookie"]
        assert "hunter2" not in page.text
        assert "audit" not in page.text
        page = await client.get("/proxy/ops/parts")
        assert page.status_code == 403
        page = await client.get("/proxy/ops/parts", headers={"x-user": "ann"})
        assert "audit" in words(page)
        for link in re.findall(r'(?:href|src|action|hx-get)="([^"#]*)"', page.text):
            assert link.startswith("/proxy/ops/")
            found = await client.get(link, headers={"x-user": "ann"})
            assert found.status_code == 200


async def test_a_proxy_with_tls_makes_the_cookie_secure() -> None:
    async with browsing(token="correct-horse-battery-staple") as browser:
        page = await browser.client.get("/login", headers={"x-forwarded-proto": "https"})
        assert "; Secure" in page.headers["set-cookie"]


async def test_an_action_is_one_line_of_the_log(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sluicegate.console")
    options: dict[str, Any] = {"postgres": log.dsn, "schema": log.schema}
    async with operated(log) as (_, admin), Console(**options, authorize=lambda _: "a\nb") as app:
        await admin.create("mails")
        browser = Browser(app)
        await browser.do("pause-queue", queue="mails")
    assert caplog.messages == ["a\\nb by the console: pause-queue: The queue mails is paused."]
