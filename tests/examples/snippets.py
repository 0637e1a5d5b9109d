"""Short snippets of a page, to be run unchanged."""

from __future__ import annotations

import re

from tests.examples.example import DOCS


def snippet_on(page: str, beginning: str) -> str:
    """The page's only Python snippet with this beginning."""
    every: list[str] = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    (found,) = [snippet for snippet in every if snippet.startswith(beginning)]
    return found
