"""The page of behaviours has each id that a test cites."""

from __future__ import annotations

import pytest
from tests.docs.behaviours import PAGE, cited_in, page


def test_the_page_is_that_of_the_tests() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make format`"


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
    assert cited_in(text) == found
