"""Keep private paths off the pages: `Adaptive`, not `penstock._core.adaptive.Adaptive`.

mkdocstrings shows the path of each type when the pointer rests on it, and the bases of each class,
whether or not a program may import them.
"""  # noqa: INP001  # a hook of MkDocs, loaded by its path

from __future__ import annotations

import re
from typing import Any

SHOWN_PATH = re.compile(r' title="[^"]*\bpenstock\.[^"]*"')
BASES = re.compile(r'<p class="doc doc-class-bases">\s*Bases: (.*?)</p>', re.DOTALL)
BASE = re.compile(r"<code>.*?</code>", re.DOTALL)
UNDOCUMENTED = re.compile(r'<code><span title="[^"]*\bpenstock\.')


def on_post_page(output: str, **_: Any) -> str:
    """Called by MkDocs with the HTML of each page."""
    return SHOWN_PATH.sub("", BASES.sub(_public_bases, output))


def _public_bases(found: re.Match[str]) -> str:
    kept = [base for base in BASE.findall(found[1]) if not UNDOCUMENTED.match(base)]
    return found[0].replace(found[1], ", ".join(kept)) if kept else ""
