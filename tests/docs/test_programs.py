"""Each page shows the programs as they are in their files."""

from __future__ import annotations

import pytest
from tests.docs.programs import DOCS, filled

PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_its_programs(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert filled(text) == text, "run `make format`"


def test_a_section_is_shown_without_its_marks_and_its_indentation() -> None:
    comment = "<!-- program: examples/jetstream_sources.py:keys -->"
    shown = filled(f"{comment}\n```python\nold\n```\n\n```python\nother\n```\n")
    assert shown.startswith(f"{comment}\n```python\n")
    block, other = shown.split("```\n\n")
    assert block.count("\n") > 2
    assert block.splitlines()[2][0] != " "
    assert "--8<--" not in block
    assert other == "```python\nother\n```\n"


@pytest.mark.parametrize(
    "page",
    [
        "<!-- program: examples/order.py:missing -->\n```python\n```",
        "<!-- program: examples/order.py -->\n\n```python\n```",
        '```python\n--8<-- "examples/order.py"\n```',
    ],
)
def test_a_comment_that_would_show_nothing_is_an_error(page: str) -> None:
    with pytest.raises(LookupError):
        filled(page)
