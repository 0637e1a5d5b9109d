"""Give each page its title, its description and its weight in the search, unless its front matter does.

1. The title is the heading: the navigation has shorter names, which say nothing in a browser's tab.
   Pages of the reference say so, since some guides have the same heading.
2. The description is the beginning of the first paragraph, if that is not about a program above it.
3. Guides come first in the search. Long programs are not searched: one hit would fill the list.
"""  # noqa: INP001  # a hook of MkDocs, loaded by its path

from __future__ import annotations

import html
import re
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

REFERENCE = "reference/api/"
WEIGHTS = {
    "index.md": 6.0,
    "how-to/": 2.0,
    "tutorial/": 2.0,
    "reference/glossary.md": 3.0,
    REFERENCE: 0.5,
    "changelog.md": 0.1,
}
LINES = 12
"""The number of lines from which a block of code is not searched."""
PARAGRAPH = re.compile(r"(?<=\n\n)([A-Za-z`*\[\"].*(?:\n.+)*)")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
BLOCK = re.compile(r'<div class="([^"]*highlight)">(?=<pre>)(.*?)</pre>', re.DOTALL)


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Called by MkDocs with the text of each page."""
    path = page.file.src_uri
    if heading := re.search(r"^# (.+?)(?: \{.*)?$", markdown, re.MULTILINE):
        title = heading[1].replace("`", "")
        page.meta.setdefault("title", title)
        top, *_code = markdown.partition("\n```")
        paragraph = PARAGRAPH.search(top)
        text = (
            LINK.sub(r"\1", paragraph[1]) if paragraph else f"{title}: a program, and how it works."
        )
        text = re.sub(r"[`*]|\[\w+\.\S+\]", "", text)
        text = textwrap.shorten(text, 160, placeholder=" …")
        page.meta.setdefault("description", html.escape(text))  # the theme does not escape it
    for folder, weight in WEIGHTS.items():
        if path.startswith(folder):
            page.meta.setdefault("search", {"boost": weight})
    return markdown


def on_post_page(output: str, *, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Called by MkDocs with the HTML of each page."""
    name = config.site_name
    if page.file.src_uri == "index.md":
        return output.replace(f"<title>{name} - {name}<", f"<title>{name}<", 1)
    if page.file.src_uri.startswith(REFERENCE):
        return output.replace(f" - {name}</title>", f", reference - {name}</title>", 1)
    return output


def on_page_content(output: str, **_: Any) -> str:
    """Called by MkDocs with the HTML of each page's text."""
    return BLOCK.sub(_block, output)


def _block(found: re.Match[str]) -> str:
    if found[2].count("\n") < LINES:
        return found[0]
    return found[0].replace("<div ", "<div data-search-exclude ", 1)
