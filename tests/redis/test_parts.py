"""The parts of a batch for Redis: their sizes, and the order within keys and streams.

White box: the division of a batch, without a server.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.redis.commands import RedisItem
from sluicegate.redis.write import PART_BYTES, parts_of


def items(names: list[bytes], sizes: list[int] | None = None) -> list[RedisItem]:
    found = sizes or [10] * len(names)
    return [
        RedisItem(index, name, (bytes(size),))
        for index, (name, size) in enumerate(zip(names, found, strict=True))
    ]


def indices(parts: list[list[RedisItem]]) -> list[list[int]]:
    return [[item.index for item in part] for part in parts]


@pytest.mark.parametrize(
    ("joins", "parts"), [(True, [[0, 1, 2, 3], [4]]), (False, [[0, 2], [1, 3], [4]])]
)
def test_elements_of_one_list_are_one_part(*, joins: bool, parts: list[list[int]]) -> None:
    """Elements of one key, too, because they are one command; those of another list wait."""
    made = items([b"x", b"x", b"x", b"x", b"y"])
    keys = [*"aabba"]
    assert indices(parts_of(made, keys, joins=joins, ordered=False)) == parts


def test_a_part_is_about_a_mebibyte_and_a_larger_item_alone() -> None:
    half = PART_BYTES // 2
    made = items([b"x"] * 6, [half, half, 1, 3 * PART_BYTES, 1, 1])
    parts = parts_of(made, None, joins=False, ordered=False)
    assert indices(parts) == [[0, 1], [2], [3], [4, 5]]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([b"x", b"y"])), max_size=12),
    st.booleans(),
    st.booleans(),
)
def test_order_is_kept(placed: list[tuple[str, bytes]], joins: bool, ordered: bool) -> None:
    """Nothing is lost. Items of a key are in order, and share a part only as one command; with ids,
    items of a name are also in order.
    """
    keys, names = [key for key, _ in placed], [name for _, name in placed]
    parts = indices(parts_of(items(names), keys, joins=joins, ordered=ordered))
    part_of = {place: number for number, part in enumerate(parts) for place in part}
    assert sorted(part_of) == [*range(len(placed))]
    assert all(part == sorted(part) for part in parts)
    for first in range(len(placed)):
        for later in range(first + 1, len(placed)):
            if keys[first] == keys[later]:
                is_one_command = joins and names[first] == names[later]
                assert part_of[first] < part_of[later] or (
                    is_one_command and part_of[first] == part_of[later]
                )
            if ordered and names[first] == names[later]:
                assert part_of[first] <= part_of[later]
