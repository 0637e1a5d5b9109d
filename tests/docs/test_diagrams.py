"""Each diagram was drawn from its present source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.docs.diagrams import digest, sources

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.stem)
def test_a_drawing_is_that_of_its_source(source: Path) -> None:
    drawn = source.with_suffix(".svg").read_text(encoding="utf-8")
    assert digest(source) in drawn, "run `make diagrams`"
