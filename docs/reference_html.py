"""Repair the HTML of the reference: no private paths, no labels that say nothing, no empty lines.

mkdocstrings shows the path of each type when the pointer rests on it, and the bases of each class,
whether or not a program may import them.
"""  # noqa: INP001  # a hook of MkDocs, loaded by its path

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page

SHOWN_PATH = re.compile(r' title="[^"]*\bsluicegate\.[^"]*"')
BASES = re.compile(r'<p class="doc doc-class-bases">\s*Bases: (.*?)</p>', re.DOTALL)
BASE = re.compile(r"<code>.*?</code>", re.DOTALL)
UNDOCUMENTED = re.compile(r'<code><span title="[^"]*\bsluicegate\.')
LABEL = re.compile(
    r'<small class="doc doc-label doc-label-(?:class|instance)-attribute">.*?</small>'
)
CODE = re.compile(r"(<pre.*?</pre>)", re.DOTALL)
LINES = re.compile(r"\s*\n\s*")


def on_post_page(output: str, *, page: Page, **_: Any) -> str:
    """Called by MkDocs with the HTML of each page."""
    if not page.file.src_uri.startswith("reference/api/"):
        return output
    public = SHOWN_PATH.sub("", BASES.sub(_public_bases, output))
    return _without_empty_lines(LABEL.sub("", public))


def _public_bases(found: re.Match[str]) -> str:
    kept = [base for base in BASE.findall(found[1]) if not UNDOCUMENTED.match(base)]
    return found[0].replace(found[1], ", ".join(kept)) if kept else ""


def _without_empty_lines(output: str) -> str:
    """Outside of code; a fifth of a page is indentation."""
    parts = CODE.split(output)
    parts[::2] = [LINES.sub("\n", part) for part in parts[::2]]
    return "".join(parts)
