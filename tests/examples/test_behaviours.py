"""Every id that a test cites is a promise on the page of behaviours, and vice versa."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from tests.examples.example import DOCS, ROOT

PAGE = DOCS / "explanation" / "behaviours.md"
CITED = re.compile(
    r"""(?<![\w/.-])(?:
    (?:(?:batcher|consumer|spark)/)?[BGOPQS]-T\d+
    | (?:batcher|consumer)/(?:[A-Z]:)?[A-Z][a-z]?\d+
    | (?:batcher|consumer)/\d+[a-c]?(?:\.\d+)?(?:-\d+)?
    | (?:batcher|consumer)/[A-Z]:\d\.\d
    | (?:[BCFGINOPQRS]|Ba)\d+ (?=[,:.]|\ to\ )
    | (?:design|decisions)\ \d(?:\.\d)?
    )(?![\w/])""",
    re.VERBOSE,
)
TEXT = re.compile(r'"""(.*?)"""', re.DOTALL)


def normal(cited: str) -> str:
    """The form of an id on the page."""
    part, _, rest = cited.rpartition("/")
    if part and re.match(r"[BGOPQS]-T|I\d", rest):
        return rest
    return f"batcher/{cited}" if re.fullmatch(r"B\d+", cited) else cited


def cited_in(text: str) -> set[str]:
    """The ids in the docstrings of a test file."""
    return {normal(cited) for part in TEXT.findall(text) for cited in CITED.findall(part)}


@cache
def cited_by_tests() -> dict[str, set[str]]:
    """The ids that tests cite, each with its files."""
    found: dict[str, set[str]] = {}
    for path in sorted(Path(ROOT, "tests").rglob("*.py")):
        if path != Path(__file__):
            for cited in cited_in(path.read_text()):
                found.setdefault(cited, set()).add(str(path.relative_to(ROOT)))
    return found


@cache
def promised() -> Counter[str]:
    """The ids on the page, with the number of their rows."""
    rows = re.findall(r"^- \*\*([^*]+)\*\* ", PAGE.read_text(), re.MULTILINE)
    return Counter(cited for ids in rows for cited in ids.split(", "))


def test_every_cited_id_is_on_the_page() -> None:
    known = promised()
    assert {cited: files for cited, files in cited_by_tests().items() if cited not in known} == {}


def test_every_promise_is_cited_by_a_test() -> None:
    assert promised().keys() - cited_by_tests().keys() == set()


def test_an_id_stands_once() -> None:
    assert [cited for cited, rows in promised().items() if rows > 1] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("B-T57: always", {"B-T57"}),
        ("batcher/4b.1 to 4b.3, B-T42: x", {"batcher/4b.1", "B-T42"}),
        ("batcher/B-T38, design 3.3: x", {"B-T38", "design 3.3"}),
        ("consumer/C:Ba3, I5.", {"consumer/C:Ba3", "I5"}),
        ("B-T17, B25: by status", {"B-T17", "batcher/B25"}),
        ("O-T4, consumer/C:B1: with `in_flight=3`", {"O-T4", "consumer/C:B1"}),
        ("batcher/I1: x, batcher/1.2-13: y", {"I1", "batcher/1.2-13"}),
        ("S-T1, S18: x", {"S-T1", "S18"}),
        ("consumer/C:N12, R1.", {"consumer/C:N12", "R1"}),
        ("consumer/A:O4, P2: x", {"consumer/A:O4", "P2"}),
        ("design 4: x, and A1 waits while B1 runs", {"design 4"}),
        ("Q-T9, Q8: refused", {"Q-T9", "Q8"}),
        ("a path as tests/B-T3.py, or acme/42", set()),
    ],
)
def test_ids_are_found_in_a_docstring(text: str, found: set[str]) -> None:
    assert cited_in(f'"""{text}"""') == found
