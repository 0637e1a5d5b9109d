"""The navigation of the docs contains each page once, and each entry is a page.

`mkdocs build --strict` finds missing and omitted pages too; this test needs no build.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


class Settings(yaml.SafeLoader):
    """Reads MkDocs' settings; tags for Python objects and environment variables become text."""


Settings.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda *_: None)
Settings.add_constructor("!ENV", lambda *_: None)


def listed(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    for below in entry.values() if isinstance(entry, dict) else ():
        yield from listed(below)
    for below in entry if isinstance(entry, list) else ():
        yield from listed(below)


def settings() -> dict[str, Any]:
    read = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Settings)
    assert isinstance(read, dict)
    return read


def test_each_page_is_in_the_navigation() -> None:
    docs = ROOT / "docs"
    pages = {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}
    assert {*listed(settings()["nav"])} == pages, "list the page under `nav` in mkdocs.yml"


def test_no_page_is_in_it_twice() -> None:
    times = Counter(listed(settings()["nav"]))
    assert [page for page, number in times.items() if number > 1] == []
