"""When two keys are equal. White box: the identity of a key."""

from __future__ import annotations

import uuid
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum

import pytest

from sluicegate._core.order.keys import identity, key_of, key_text, shown


class Colour(Enum):
    RED = 1


class Number(IntEnum):
    ONE = 1


class Word(StrEnum):
    ONE = "1"


APART = [
    1,
    True,
    1.0,
    "1",
    b"1",
    None,
    Decimal(1),
    Number.ONE,
    Word.ONE,
    Colour.RED,
    (1,),
    (True,),
    (1.0,),
    ((1,),),
    (),
    uuid.UUID(int=1),
]


def test_keys_that_only_look_alike_are_different() -> None:
    """consumer/C:O3: 1, True and 1.0 do not share a lane, alone or in a tuple."""
    assert len({identity(key) for key in APART}) == len(APART)


@pytest.mark.parametrize("key", APART, ids=repr)
def test_a_key_is_shown_as_it_was(key: object) -> None:
    assert shown(identity(key)) == key
    assert type(shown(identity(key))) is type(key)


def test_bytes_likes_with_the_same_content_are_the_same_key() -> None:
    """consumer/C:O3: later changes of the buffer have no effect."""
    buffer = bytearray(b"key")
    known = identity(buffer)
    buffer[:] = b"was"
    assert known == identity(b"key") == identity(memoryview(b"key"))
    assert identity(b"") != identity(None)
    assert identity((bytearray(b"key"), 1)) == identity((b"key", 1))


@pytest.mark.parametrize("key", [[1], {}, {1}, ([],), float("nan"), (float("nan"),)], ids=repr)
def test_what_cannot_be_a_key_is_refused(key: object) -> None:
    """consumer/C:O3."""
    with pytest.raises(TypeError, match="cannot be a key"):
        identity(key)
    with pytest.raises(TypeError, match="cannot be a tenant"):
        identity(key, "tenant")


def test_no_two_keys_have_the_same_text() -> None:
    """A dead letter names its item's key in this form, and a command searches for it."""
    keys = [*APART, "acme/42", ":1", "::1", ":None", "", "a\nb", "a\0b", "\ud800"]
    assert len({key_text(key) for key in keys}) == len(keys)
    assert [key_text(key) for key in ("acme/42", "", 42, ("ann", 7), ":x", "a\nb")] == [
        "acme/42",
        "",
        ":42",
        ":('ann', 7)",
        ":':x'",
        ":'a\\nb'",
    ]


@pytest.mark.parametrize(
    "key", ["acme/42", ":1", "a\0b", 42, True, 1.5, None, b"x", ("ann", (7, b"")), ()], ids=repr
)
def test_a_key_of_plain_values_can_be_read_back(key: object) -> None:
    assert key_of(key_text(key)) == key
    assert type(key_of(key_text(key))) is type(key)


@pytest.mark.parametrize("text", [":[1]", ":<Colour.RED: 1>", ":", ":Decimal('1')"])
def test_a_text_that_only_its_program_can_read_stands_for_itself(text: str) -> None:
    assert key_of(text) == text
