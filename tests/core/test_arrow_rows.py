"""Rows of columns with values that Python has no object for.

White box: the error of a row that cannot be read.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
from sluicegate import (  # noqa: E402
    ArrowBatch,
    Batch,
    Capabilities,
    DeadLetter,
    PermanentError,
    Retry,
    send,
    stack,
)
from sluicegate._core.arrow import UnreadableRows  # noqa: E402
from sluicegate.errors import KeyStopped  # noqa: E402
from sluicegate.sinks import Router  # noqa: E402

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock

DAYS = [0, 10**7, -(10**6), None, 2**31 - 1]
BROKEN = pa.array([b"a", b"\xffA"], pa.binary()).view(pa.string())


def numbers(kind: Any, values: list[int | None]) -> Any:
    return pa.array(values, pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)


SHOWN: dict[str, tuple[Any, list[Any]]] = {
    "date32": (
        numbers(pa.date32(), DAYS),
        [str(day) for day in DAYS if day is not None and not -719_162 <= day <= 2_932_896],
    ),
    "timestamp s": (numbers(pa.timestamp("s"), [0, 10**12]), [str(10**12)]),
    "timestamp us": (
        numbers(pa.timestamp("us", "UTC"), [0, 10**18 + 5]),
        [str(10**18 + 5)],
    ),
    "duration": (numbers(pa.duration("s"), [0, 2**62]), [str(2**62)]),
    "text": (BROKEN, ["\\xffA"]),
    "large text": (
        BROKEN.cast(pa.binary()).cast(pa.large_binary()).view(pa.large_string()),
        ["\\xffA"],
    ),
    "list": (pa.ListArray.from_arrays([0, 1, 2], BROKEN), [["\\xffA"]]),
    "struct": (
        pa.StructArray.from_arrays([BROKEN, pa.array([1, None])], ["t", "n"]),
        [{"t": "\\xffA", "n": None}],
    ),
    "map": (
        pa.MapArray.from_arrays([0, 1, 2], pa.array(["k", "l"]), BROKEN),
        [{"l": "\\xffA"}],
    ),
    "map with a key twice": (
        pa.array([{"a": 1}, [("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int8())),
        [[("a", 1), ("a", 2)]],
    ),
    "unknown zone": (numbers(pa.timestamp("us", "Nowhere/Land"), [0]), ["0"]),
}


@pytest.mark.parametrize("kind", SHOWN)
async def test_a_row_that_python_cannot_hold_fails_alone_and_is_shown(
    fake_clock: FakeClock, kind: str
) -> None:
    """For a sink without column support, through a stack with retries and dead letters."""
    values, shown = SHOWN[kind]
    rows: list[Any] = []
    buried: list[Any] = []

    async def keep(batch: Batch[Any]) -> None:
        rows.extend(batch)

    async def bury(batch: Batch[Any]) -> None:
        buried.extend(batch)

    batch = ArrowBatch(pa.record_batch({"n": range(len(values)), "v": values}))
    assert await send(stack(keep, Retry(), DeadLetter(bury)), batch) == {}
    found = [(letter.item["v"], letter.message) for letter in buried]
    assert [value for value, _ in found] == shown
    assert all(message.startswith("column 'v': holds ") for _, message in found)
    assert len(rows) == len(values) - len(shown)


async def test_a_decorator_that_looks_at_rows_gets_the_others(fake_clock: FakeClock) -> None:
    kept: list[Any] = []

    async def keep(batch: Batch[Any]) -> None:
        kept.extend(batch)

    batch = ArrowBatch(pa.record_batch({"v": BROKEN}))
    errors = await send(Router(lambda row: row["v"], {"a": keep}), batch)
    assert list(errors) == [1]
    assert isinstance(errors[1], PermanentError)
    assert kept == [{"v": "a"}]
    with pytest.raises(
        UnreadableRows, match=r"1 of 2 rows .*column 'v': holds bytes that are not UTF-8"
    ):
        batch[0]


async def test_what_is_behind_an_unreadable_row_of_its_key_is_left_out(
    fake_clock: FakeClock,
) -> None:
    """A sink that keeps prefixes of keys by itself does not see this failure."""

    class Shelf:
        capabilities = Capabilities(key_prefix_safe=True)

        def __init__(self) -> None:
            self.rows: list[Any] = []

        async def write(self, batch: Batch[Any]) -> None:
            self.rows += [row["n"] for row in batch]

    shelf = Shelf()
    texts = pa.array([b"a", b"\xff", b"b", b"c"], pa.binary()).view(pa.string())
    batch = ArrowBatch(pa.record_batch({"n": range(4), "v": texts}), keys=["k", "k", "other", "k"])
    errors = await send(shelf, batch)
    assert {index: type(error) for index, error in errors.items()} == {
        1: PermanentError,
        3: KeyStopped,
    }
    assert shelf.rows == [0, 2]


LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(0, 3)),
    (pa.string(), st.sampled_from(["", "a", "b"])),
]


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Lists, structs and maps of these types, each with its values."""

    def of(pair: tuple[tuple[Any, Any], tuple[Any, Any]]) -> st.SearchStrategy[Any]:
        (kind, values), (key, keys) = pair
        some = st.none() | values
        return st.sampled_from(
            [
                (pa.list_(kind), st.lists(some, max_size=2)),
                (pa.large_list(kind), st.lists(some, max_size=2)),
                (pa.list_(kind, 2), st.lists(some, min_size=2, max_size=2)),
                (pa.struct([("a", kind), ("b", pa.int8())]), st.fixed_dictionaries({"a": some})),
                (pa.map_(key, kind), st.lists(st.tuples(keys, some), max_size=3)),
            ]
        )

    return st.tuples(inner, st.sampled_from(LEAVES)).flatmap(of)


@given(
    st.recursive(st.sampled_from(LEAVES), nested, max_leaves=4).flatmap(
        lambda pair: st.tuples(st.just(pair[0]), st.lists(st.none() | pair[1], max_size=4))
    )
)
def test_maps_are_dictionaries_at_any_depth(drawn: tuple[Any, list[Any]]) -> None:
    """As pyarrow 20 and later makes them on request; only a row with a key twice is unreadable."""
    kind, values = drawn
    batch = ArrowBatch(pa.record_batch({"v": pa.array([None, *values], kind)}).slice(1))
    rows: dict[int, Any] = {}
    for index, value in enumerate(batch.record_batch.column(0)):
        with contextlib.suppress(KeyError, ValueError):  # a key occurs twice
            rows[index] = {"v": value.as_py(maps_as_pydicts="strict")}
    assert {*batch.unreadable()} == {*range(len(values))} - {*rows}
    assert {index: batch.shown(index) for index in rows} == rows
