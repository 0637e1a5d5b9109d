"""Programs and targets shown on the pages exist."""

from __future__ import annotations

import re

import pytest
from tests.examples.example import DOCS, ROOT

PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
)


@pytest.mark.parametrize("page", PAGES)
def test_programs_and_targets_exist(page: str) -> None:
    """Every program and every make target in the instructions of a page."""
    text = (ROOT / page).read_text()
    programs = re.findall(r"(?:examples|benchmarks|tests)/[\w/]+\.(?:py|sql)", text)
    assert [program for program in programs if not (ROOT / program).exists()] == []
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"(?:^\$? ?|`)make (?:[A-Z]+=\S+ )*([a-z-]+)", text, re.MULTILINE)
    assert [target for target in targets if f"\n{target}:" not in makefile] == []
