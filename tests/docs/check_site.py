"""The built docs in a browser: titles, descriptions, the search, and no request that leaves the
server. `make check` runs it on the site that it has built.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from starlette.staticfiles import StaticFiles
from tests.console.browser.chromium import running, served, tab
from tests.console.browser.conftest import program

if TYPE_CHECKING:
    from tests.console.browser.chromium import Chromium

__all__ = ["program"]

pytestmark = pytest.mark.usefixtures("real_clock")

SITE = Path(__file__).parents[2] / ".venv" / "site"
PAGES = sorted(SITE.rglob("index.html"))
LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?((?:https?:)?//[^\" >]+)"
    r"|<link\b(?![^>]*rel=\"?canonical)[^>]*\bhref=\"?((?:https?:)?//[^\" >]+)"
    r"|(?:@import|url\()[ \"']*((?:https?:)?//[^\"')]+)"
)
SHOWN = (
    "/",
    "/how-to/operate/",
    "/explanation/queues-and-streams/",
    "/explanation/benchmarks/",
    "/reference/api/kafka/",
)
FIRST = {
    "install": "/",
    "list dead jobs": "/how-to/operate-a-queue/",
    "cancel a job": "/how-to/operate-a-queue/",
    "replay a dead letter": "/how-to/keep-dead-letters/",
    "spark-submit": "/how-to/run-on-a-spark-cluster/",
    "visibility timeout": "/how-to/consume-a-queue/",
    "MaxBatchSize": "/reference/glossary/",
    "Hopper": "/reference/glossary/",
    "sub-batcher": "/reference/glossary/",
    "bulkhead": "/reference/glossary/",
    "competing consumers": "/reference/glossary/",
}
"""By search, the page that must come first."""


def contents(path: Path, name: str) -> str:
    text = path.read_text(encoding="utf-8")
    found = re.search(rf'<meta name="?{name}"? content="([^"]*)"|<{name}>([^<]*)', text)
    assert found, (path, name)
    return found[1] or found[2]


def test_each_page_has_a_title_and_a_description_of_its_own() -> None:
    assert len(PAGES) > 50, "run `make check`"
    for name in ("title", "description"):
        times = Counter(contents(page, name) for page in PAGES)
        assert [text for text, number in times.items() if number > 1 or not text] == []


def test_no_page_loads_anything_from_another_host() -> None:
    loaded = [
        (str(path.relative_to(SITE)), *filter(None, found.groups()))
        for path in SITE.rglob("*")
        if path.suffix in {".html", ".css", ".svg"}
        for found in LOADED.finditer(path.read_text(encoding="utf-8"))
    ]
    assert loaded == []


async def test_pages_load_without_mistakes_and_the_search_finds_the_guide_first(
    program: Chromium,
) -> None:
    async with (
        running(program) as browser,
        served(StaticFiles(directory=SITE, html=True)) as url,
        tab(browser, url) as site,
    ):
        for path in SHOWN:
            await site.go(path)
            await site.page.wait_for_load_state("networkidle")
        first = {}
        for words in FIRST:
            await site.go("/")
            await site.page.fill("input.md-search__input", words)
            await site.page.press("input.md-search__input", "End")  # a key makes it search
            link = site.page.locator(".md-search-result__link").first
            await link.wait_for(state="attached", timeout=60_000)  # it reads the index first
            first[words] = str(await link.get_attribute("href")).partition("?")[0]
        assert site.mistakes == []
        assert first == {words: url + page for words, page in FIRST.items()}
