"""Pages and docstrings name producers, workers and callers instead of unnamed persons."""

from __future__ import annotations

import re

import pytest
from tests.docs.pages import ROOT

PERSONS = re.compile(r"\b(?:(?:some|no|any)body|(?:some|any)one|whoever)\b", re.IGNORECASE)
MOST = 0.1
"""Occurrences of these words per thousand words."""


@pytest.mark.parametrize(("folder", "kind"), [("docs", "*.md"), ("src", "*.py")])
def test_there_are_hardly_any_nameless_persons(folder: str, kind: str) -> None:
    text = "\n".join(path.read_text() for path in (ROOT / folder).rglob(kind))
    assert 1_000 * len(PERSONS.findall(text)) / len(text.split()) < MOST
