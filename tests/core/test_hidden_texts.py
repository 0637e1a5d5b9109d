"""Secrets in texts are hidden in a time that grows with the text, not with its square.

White box: the functions themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sluicegate._core.text import hide
from sluicegate.letters.text import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("part", ["a", "pass", ":/ ", "@ a:b ", "a' "])
@pytest.mark.parametrize("shown", [hide, without_secrets])
def test_a_long_text_takes_no_longer_than_its_length(
    shown: Callable[[str], str], part: str
) -> None:
    """The text would take minutes, or hours, if each place were compared with the rest."""
    text = part * 50_000
    assert "hush" not in shown(f"{text} postgres://ann:hush@db")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at postgres://ann:hush@db/x now", "at postgres://*** now"),
        ("at ann:hu@sh@db", "at ***@db"),
        ("ann:hush@db and http://h/x@y", "***@db and http://***"),
        ("password = 'hu sh' x", "password=*** x"),
    ],
)
def test_secrets_are_hidden_and_the_rest_is_shown(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
