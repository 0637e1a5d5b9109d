"""Items return from a spool as they were, whatever they are."""

from __future__ import annotations

import asyncio
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from spooling.spools import spooled

from sluicegate.testing import FakeClock, FakeSink

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.filterwarnings("ignore:an item is a list of dict objects")
text = st.text(st.characters(codec=None), max_size=8)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    text,
    st.binary(max_size=8),
)
values = st.recursive(
    scalars,
    lambda part: st.one_of(
        st.lists(part, max_size=4),
        st.dictionaries(text | st.integers() | st.binary(max_size=4), part, max_size=4),
        st.dictionaries(st.sampled_from(["$int", "$mapping"]), part),
    ),
    max_leaves=10,
)


def through(items: Sequence[Any], **spool: Any) -> list[Any]:
    """Return the items that arrive behind a spool."""
    sink = FakeSink[Any]()

    async def main(clock: FakeClock, folder: Path) -> None:
        async with spooled(folder, sink, clock, {"durability": "os", **spool}) as batcher:
            await asyncio.gather(*map(batcher.deliver, items))

    with TemporaryDirectory() as folder, FakeClock() as clock:
        clock.run(main(clock, Path(folder)))
    return sink.applied


def exactly(value: Any) -> Any:
    """A form in which values that differ in type or sign are not equal, and NaN equals itself."""
    if isinstance(value, dict):
        return [(exactly(name), exactly(part)) for name, part in value.items()]
    if isinstance(value, list):
        return [*map(exactly, value)]
    return type(value), repr(value)


@given(st.lists(values, min_size=1, max_size=8))
def test_values_of_json_and_exact_values_return_as_they_were(items: list[Any]) -> None:
    assert exactly(through(items)) == exactly(items)


def test_an_integer_with_more_digits_than_python_converts_returns() -> None:
    items = [10**5000, {"id": 1, "number": 10**5000}]
    assert through(items) == items


@given(st.lists(values, min_size=1, max_size=4))
def test_values_return_through_functions_of_the_users_own(items: list[Any]) -> None:
    found = through(items, encode=pickle.dumps, decode=pickle.loads)
    assert exactly(found) == exactly(items)


class Order(BaseModel):
    id: int
    at: datetime
    due: date
    sum: Decimal


@pytest.mark.parametrize("decode", [None, Order.model_validate])
def test_a_model_returns_as_its_fields_and_decode_makes_it_a_model_again(decode: Any) -> None:
    at = datetime(2024, 2, 29, tzinfo=UTC)
    order = Order(id=1, at=at, due=date(2024, 3, 1), sum=Decimal("1.10"))
    (found,) = through([order], decode=decode)
    assert found == (order.model_dump(mode="json") if decode is None else order)


@pytest.mark.parametrize("item", [bytearray(b"\x00\xff"), b""])
def test_decode_gets_bytes_as_they_are(item: bytes) -> None:
    assert through([item], decode=lambda value: (type(value), value)) == [(bytes, item)]
