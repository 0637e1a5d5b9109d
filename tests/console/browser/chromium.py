"""Headless Chromium, from the path or from Debian's packages, and pages that note every mistake.

A page collects its mistakes: messages on the console of the browser (a violation of the content
security policy is one), exceptions of scripts, and requests that leave the server. Accessibility is judged by axe-core, as WCAG 2.1 AA asks.
"""

from __future__ import annotations

import os
import shutil
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import uvicorn
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import async_playwright
from tests.debian_packages import library_path, unpacked

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from playwright.async_api import Browser, ConsoleMessage, Page, Request

PROGRAM = "usr/lib/chromium/chromium"
DESKTOP, PHONE = (1280, 900), (375, 812)
LEVELS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa")


@dataclass(frozen=True)
class Chromium:
    """The program, and the folders of its libraries."""

    program: str
    libraries: str = ""


def chromium() -> Chromium:
    """Find Chromium, or fetch it. Raises `EmbeddedUnavailable` with the reason."""
    found = shutil.which("chromium")
    if found is not None:
        return Chromium(found)
    folder = unpacked("chromium", ("chromium",), (), PROGRAM, whole=True)
    return Chromium(str(folder / PROGRAM), library_path(folder))


@asynccontextmanager
async def running(program: Chromium) -> AsyncGenerator[Browser]:
    """Run a browser for a test."""
    env = {**os.environ, "LD_LIBRARY_PATH": program.libraries}
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=program.program, env={**env})
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def served(app: Any) -> AsyncGenerator[str]:
    """Serve an ASGI app on loopback, on this loop; yield its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_config=None, log_level=100, timeout_graceful_shutdown=1)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listener])
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await server.shutdown(sockets=[listener])


@dataclass
class Tab:
    """A page of a server, and the mistakes seen so far."""

    page: Page
    url: str
    mistakes: list[str] = field(default_factory=list[str])

    def note(self) -> None:
        """Begin to note mistakes."""
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.mistakes.append(f"exception: {error}"))
        self.page.on("request", self._on_request)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.mistakes.append(f"console: {message.text}")

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith((self.url, "data:")):
            self.mistakes.append(f"request: {request.url}")

    async def go(self, path: str, status: int = 200) -> None:
        """Load a page."""
        answer = await self.page.goto(self.url + path)
        assert answer is not None
        assert answer.status == status, (path, answer.status, await self.text())

    async def text(self) -> str:
        """The visible text."""
        return await self.page.inner_text("body")

    async def resize(self, size: tuple[int, int]) -> None:
        """Change the size of the window."""
        await self.page.set_viewport_size({"width": size[0], "height": size[1]})

    async def violations(self, *rules: str) -> list[object]:
        """What axe-core sees, by default by all rules, and whether the page is too wide."""
        options = {"runOnly": list(rules or LEVELS), "resultTypes": ["violations"]}
        if not await self.page.evaluate("'axe' in window"):
            await self.page.evaluate(Axe().axe_script)
        found: Any = await self.page.evaluate("options => axe.run(options)", options)
        violations: list[object] = [
            (self.page.url, each["id"], each["help"], [node["html"] for node in each["nodes"]][:3])
            for each in found["violations"]
        ]
        width: Any = await self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return violations + ([(self.page.url, "too wide", width)] if width else [])


@asynccontextmanager
async def tab(
    browser: Browser,
    url: str,
    *,
    scripts: bool = True,
) -> AsyncGenerator[Tab]:
    """Open a tab with its own cookies."""
    # without transitions, in which a colour would be measured
    context = await browser.new_context(java_script_enabled=scripts, reduced_motion="reduce")
    context.set_default_timeout(10_000)
    try:
        made = Tab(await context.new_page(), url)
        made.note()
        yield made
    finally:
        await context.close()
