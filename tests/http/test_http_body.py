"""Items as bodies: the ceiling holds for any records, order is kept, and items that do not fit are
refused alone. White box: the encoding of items and the bodies of a request.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluicegate import PermanentError
from sluicegate._core.values.encoding import _BETWEEN, all_to_json, encoded_items, ndjson, to_json
from sluicegate.http.write import bodies, json_array

if TYPE_CHECKING:
    from collections.abc import Sequence


def envelope(records: Sequence[bytes]) -> bytes:
    return b'{"points":[' + b",".join(records) + b"]}"


@given(
    lengths=st.lists(st.integers(0, 40), max_size=60),
    most=st.one_of(st.none(), st.integers(1, 120)),
    join=st.sampled_from([ndjson, json_array, envelope]),
)
def test_no_body_is_longer_than_the_ceiling_and_no_record_is_lost(
    lengths: list[int], most: int | None, join: Any
) -> None:
    """B-T26, batcher/4a.3: a record is refused only if it is too long by itself; all others are
    sent once, in order.
    """
    records = [b"%d" % (number % 10) * length for number, length in enumerate(lengths)]
    made = bodies(records, join, most)
    sent = [place for body in made.bodies for place in body.places]
    assert sorted([*sent, *made.refused]) == list(range(len(records)))
    assert sent == sorted(sent)
    for body in made.bodies:
        assert body.content == join(records[body.places.start : body.places.stop])
        assert most is None or len(body.content) <= most
    for place in made.refused:
        assert most is not None
        assert len(join([records[place]])) > most


def test_bodies_are_filled() -> None:
    made = bodies([b"x" * 9] * 1_000, ndjson, 100)
    assert [len(body.content) for body in made.bodies] == [100] * 100


def test_a_record_that_cannot_be_joined_is_refused_alone() -> None:
    def join(records: Sequence[bytes]) -> bytes:
        if b"bad" in records:
            raise ValueError("no place for it")
        return b"".join(records)

    made = bodies([b"a", b"bad", b"b", b"c"], join, None)
    assert b"".join(body.content for body in made.bodies) == b"abc"
    assert "no place for it" in str(made.refused[1])


@dataclass
class Point:
    x: int
    at: date


def test_json_has_a_form_for_the_usual_values() -> None:
    item = {
        "point": Point(1, date(2024, 2, 29)),
        "at": datetime(2024, 2, 29, 12, tzinfo=UTC),
        "id": UUID(int=1),
        "price": Decimal("1.10"),
        "word": "naïve\n",
    }
    assert json.loads(to_json(item)) == {
        "point": {"x": 1, "at": "2024-02-29"},
        "at": "2024-02-29T12:00:00+00:00",
        "id": "00000000-0000-0000-0000-000000000001",
        "price": "1.10",
        "word": "naïve\n",
    }
    assert b"\n" not in to_json(item)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # under load
@given(st.lists(JSON))
def test_all_at_once_is_the_same_as_one_by_one(items: list[Any]) -> None:
    assert all_to_json(items) == [to_json(item) for item in items]


def test_an_item_that_imitates_what_stands_between_items_stays_whole() -> None:
    items = [_BETWEEN, {_BETWEEN: _BETWEEN}, [f'","{_BETWEEN}'], "\\"]
    assert [json.loads(text) for text in all_to_json(items)] == items


@pytest.mark.parametrize(
    "item", [float("nan"), float("inf"), object(), b"bytes", {"a": {1j}}, "\ud800", Point]
)
def test_an_item_that_cannot_be_encoded_fails_alone(item: Any) -> None:
    """batcher/4a.3, B-T26"""
    made = encoded_items(None, [1, item, 2], lines=True)
    assert (list(made.indices), list(made.records)) == ([0, 2], [b"1", b"2"])
    error = made.errors[1]
    assert isinstance(error, PermanentError)
    assert error.__cause__ is not None


def test_an_encoder_may_return_bytes_or_text_and_nothing_else() -> None:
    made = encoded_items(lambda item: item, ["ä", b"b", bytearray(b"c"), 4, None], lines=False)
    assert list(made.records) == ["ä".encode(), b"b", b"c"]
    assert "expected bytes or str" in str(made.errors[3])


def test_a_line_that_would_be_taken_for_two_is_refused() -> None:
    made = encoded_items(lambda item: item, ["a", "b\nc", b"d"], lines=True)
    assert list(made.records) == [b"a", b"d"]
    assert "newline" in str(made.errors[1])
