"""The short snippets that stand in a page, to be run as they are."""

from __future__ import annotations

import re

from tests.examples.example import DOCS


def snippet_on(page: str, beginning: str) -> str:
    """The page's one Python snippet that begins so."""
    every: list[str] = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    (found,) = [snippet for snippet in every if snippet.startswith(beginning)]
    return found
