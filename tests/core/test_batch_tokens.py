"""Tokens of batches, which destinations keep.

White box: a digest.
"""

from __future__ import annotations

from sluicegate._core.batch import token_of_batch


def test_a_whole_batch_has_the_token_of_its_indices() -> None:
    """So that a release with another implementation finds the same objects and rows."""
    assert token_of_batch("path", range(3), None) == token_of_batch("path", [0, 1, 2], None)
    assert token_of_batch("path", range(3), None) == "path-99a5826197698e6d"
    assert token_of_batch("path", range(1, 3), None) != token_of_batch("path", range(2), None)
