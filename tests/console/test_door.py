"""Admission: hosts, loopback, tokens, sessions, forged forms, headers and mounted consoles."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from tests.console.console_help import HERE, TOKEN, Browser, browsing, question, words

from sluicegate import Batcher, ConfigError, Consumer
from sluicegate.console import Console
from sluicegate.consumer import MemoryLog, MemorySource
from sluicegate.sinks import MemorySink

pytestmark = pytest.mark.usefixtures("real_clock")


def consumer() -> Consumer:
    return Consumer(MemorySource(MemoryLog()), name="ledger")


def batcher() -> Batcher[int]:
    return Batcher(MemorySink(), name="audit")


async def test_a_page_has_the_headers_that_confine_it() -> None:
    async with browsing(batcher()) as browser:
        page = await browser.get("")
        assert page.status_code == 200
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["referrer-policy"] == "no-referrer"
        assert page.headers["cache-control"] == "no-store"
        assert "<script>" not in page.text
        assert not re.search(r"\s(style|on\w+)=", page.text)
        assert "://" not in re.sub(r"http://www.w3.org\S*", "", page.text)


async def test_the_page_needs_nothing_from_elsewhere() -> None:
    async with browsing() as browser:
        page = await browser.get("")
        names = re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text)
        assert len(names) == 4
        for name in names:
            assert (await browser.client.get(name)).status_code == 200
        assert '"allowEval":false' in page.text


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.", "", "["])
async def test_a_foreign_host_is_refused(host: str) -> None:
    """A page with a rebound DNS name would reach it otherwise."""
    async with browsing() as browser:
        page = await browser.client.get("/", headers={"host": host})
        assert page.status_code == 421
        for name in ("localhost:1", "127.0.0.1", "[::1]:8377"):
            assert (await browser.client.get("/", headers={"host": name})).status_code == 200


async def test_a_named_host_is_answered() -> None:
    async with browsing(hosts=["Ops.example"], token=TOKEN) as browser:
        page = await browser.client.get("/", headers={"host": "ops.example"})
        assert page.status_code == 200
        assert "Log in" in words(page)


async def test_without_a_token_only_loopback_is_answered() -> None:
    browser = Browser(Console(), ("10.1.2.3", 1))
    page = await browser.get("")
    assert page.status_code == 403
    assert "10.1.2.3" in question(page)
    page = await browser.client.get("/", headers={"x-forwarded-for": "127.0.0.1"})
    assert page.status_code == 403
    local = Browser(Console())
    page = await local.client.get("/", headers={"x-forwarded-for": "1.2.3.4"})
    assert page.status_code == 403
    assert (await browser.get("act", do="x")).status_code == 403


async def test_a_token_is_needed_also_on_loopback() -> None:
    async with browsing(batcher(), token=TOKEN) as browser:
        page = await browser.get("parts")
        assert page.url.path == "/login"
        form = {"csrf": csrf(page), "token": "wrong-" + TOKEN}
        page = await browser.post("login", form)
        assert page.status_code == 403
        assert "wrong" in words(page)
        assert TOKEN not in page.text
        assert (await browser.get("parts")).url.path == "/login"
        page = await browser.post("login", {"csrf": csrf(page), "token": TOKEN})
        assert page.url.path == "/"
        assert "audit" in await browser.text("parts")
        for cookie in browser.client.cookies.jar:
            assert TOKEN not in str(cookie.value)
        page = await browser.get("parts")
        page = await browser.post("logout", {"csrf": csrf(page)})
        assert (await browser.get("parts")).url.path == "/login"


async def test_a_login_changes_the_session() -> None:
    """A session that somebody else has set is worth nothing after the login."""
    async with browsing(token=TOKEN) as browser:
        page = await browser.get("login")
        (before,) = [each.value for each in browser.client.cookies.jar]
        page = await browser.post("login", {"csrf": csrf(page), "token": TOKEN})
        (after,) = [each.value for each in browser.client.cookies.jar]
        assert before != after
        browser.client.cookies.jar.clear()
        assert (await browser.get("parts")).url.path == "/login"


async def test_a_refresh_without_a_session_is_no_page() -> None:
    async with browsing(token=TOKEN) as browser:
        page = await browser.client.get("/", headers={"hx-request": "true"})
        assert page.status_code == 401


async def test_a_session_cookie_is_kept_from_scripts_and_other_sites() -> None:
    async with browsing() as browser:
        page = await browser.get("")
        cookie = page.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert "secure" not in cookie
        page = await browser.client.get("https://localhost/", headers={"cookie": ""})
        assert "secure" in page.headers["set-cookie"].lower()


def csrf(page: httpx.Response) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', page.text)
    assert found is not None, words(page)
    return found[1]


async def test_a_forged_form_is_refused() -> None:
    """It lacks the token of the session, or comes from another site, or is of another kind."""
    async with consumer() as part, browsing(part) as browser, browsing(part) as other:
        _, known = await browser.ask("resume-part", name="ledger")
        _, theirs = await other.ask("resume-part", name="ledger")
        for token in ("", "é", theirs["csrf"], None):
            form = {name: value for name, value in known.items() if name != "csrf"}
            answer = await browser.post("act", form if token is None else {**form, "csrf": token})
            assert answer.status_code == 403
            assert "Nothing was changed" in question(answer)
        for name, value, status in (
            ("origin", "http://evil.example", 403),
            ("origin", "http://localhost:9", 403),
            ("origin", "http://localhost:8377", 200),
            ("origin", "null", 200),
            ("sec-fetch-site", "cross-site", 403),
            ("sec-fetch-site", "same-site", 403),
            ("sec-fetch-site", "same-origin", 200),
        ):
            answer = await browser.post("act", known, headers={name: value})
            assert answer.status_code == status, (name, value)
        answer = await browser.client.post("/act", json=known)
        assert answer.status_code == 415
        answer = await browser.post("act", {**known, "key": "x" * 70_000})
        assert answer.status_code == 413
        answer = await browser.client.post(
            "/act",
            content=b"csrf=%ff",
            headers={"content-type": "application/x-www-form-urlencoded"},
        )
        assert answer.status_code == 400
        browser.client.cookies.jar.clear()
        assert (await browser.post("act", known)).status_code == 403


async def test_an_action_is_no_link() -> None:
    """A GET only asks; other methods do not exist."""
    async with consumer() as part, browsing(part) as browser:
        await browser.ask("pause-part", name="ledger")
        assert not any(each.is_paused for each in part.stats().partitions.values())
        assert (await browser.client.put("/act")).status_code == 405
        assert (await browser.client.post("/part?name=ledger")).status_code == 405


async def test_a_read_only_console_refuses_actions() -> None:
    async with consumer() as part, browsing(part) as browser:
        _, form = await browser.ask("pause-part", name="ledger")
        async with browsing(part, read_only=True) as reader:
            page = await reader.get("part", name="ledger")
            assert "/act" not in page.text
            assert "read-only" in page.text
            assert (await reader.get("act", do="pause-part", name="ledger")).status_code == 403
            assert (await reader.post("act", form)).status_code == 403


async def test_unknown_addresses_have_a_page() -> None:
    async with browsing() as browser:
        for name in ("nothing", "a/b", "static/../door.py", "queues", "part?name=none"):
            page = await browser.get(name)
            assert page.status_code == 404, name
        assert "aria-current" not in (await browser.get("nothing")).text
        page = await browser.get("act", do="<b>")
        assert page.status_code == 404
        assert "<b>" not in page.text
        assert (await browser.get("part")).status_code == 400
        assert (await browser.get("done", result="x")).status_code == 404


async def test_a_result_belongs_to_its_session() -> None:
    async with consumer() as part, browsing(part) as browser:
        _, form = await browser.ask("resume-part", name="ledger")
        page = await browser.post("act", form)
        assert page.url.path == "/done"
        assert (await browser.client.get(page.url)).status_code == 200
        browser.client.cookies.jar.clear()
        assert (await browser.client.get(page.url)).status_code == 404


async def test_a_form_that_ends_early_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async with browsing() as browser:
        page = await browser.get("")
        cookie = f"{page.headers['set-cookie'].partition(';')[0]}"
        headers = {
            "host": "localhost",
            "cookie": cookie,
            "content-type": "application/x-www-form-urlencoded",
        }
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.disconnect"}

        async def send(event: Any) -> None:
            sent.append(event)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/act",
            "query_string": b"",
            "client": HERE,
            "headers": [(name.encode(), text.encode()) for name, text in headers.items()],
        }
        await browser.app(scope, receive, send)
        assert sent[0]["status"] == 400
        assert caplog.messages == []


# -- mounted ---------------------------------------------------------------------------------------


async def test_a_mounted_console_asks_the_application() -> None:
    """It works below a path, for any host, and its forms belong to the user."""
    users: dict[str, bool | str] = {"ann": "ann", "bob": False, "eve": True}

    async def authorize(request: Request) -> bool | str:
        return users.get(request.headers.get("x-user", ""), False)

    async with consumer() as part:
        app = Starlette(routes=[Mount("/ops/gate", Console(part, authorize=authorize))])
        browser = Browser(app, ("203.0.113.9", 1), "/ops/gate")
        for user in ("bob", "nobody"):
            page = await browser.client.get("/ops/gate/", headers={"x-user": user})
            assert page.status_code == 403
            assert "ledger" not in page.text
        browser.client.cookies.jar.clear()
        browser.client.headers.update({"x-user": "ann", "host": "ops.example"})
        page = await browser.get("")
        assert "Path=/ops/gate" in page.headers["set-cookie"]
        for path in re.findall(r'(?:href|src|action|hx-get)="([^"#]*)"', page.text):
            assert path.startswith("/ops/gate/")
            assert (await browser.client.get(path)).status_code == 200
        _, result = await browser.do("resume-part", name="ledger")
        assert "Resumed" in result
        _, form = await browser.ask("resume-part", name="ledger")
        browser.client.headers["x-user"] = "eve"
        assert (await browser.post("act", form)).status_code == 403


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"token": "short"}, "at least 16"),
        ({"token": "sixteen letters and spaces"}, "token="),
        ({"token": 1}, "token="),
        ({"token": TOKEN, "authorize": bool}, "authorize"),
        ({"authorize": "yes"}, "authorize="),
        ({"hosts": "ops.example"}, "hosts="),
        ({"hosts": [""]}, "hosts="),
        ({"read_only": 1}, "read_only="),
        ({"postgres": ""}, "dsn="),
        ({"postgres": "postgresql://h/d", "schema": ""}, "schema="),
    ],
)
def test_a_bad_argument_is_refused(options: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        Console(**options)  # type: ignore[arg-type]
    assert "short" not in str(caught.value)
    with pytest.raises(ConfigError, match="parts="):
        Console(1)  # type: ignore[arg-type]
