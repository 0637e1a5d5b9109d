"""The parts of a batch for Redis: their sizes, and the order within keys and streams.

White box: the parts, without a server.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluicegate.redis.commands import RedisItem
from sluicegate.redis.write import PART_BYTES, parts_of


def items(names: list[bytes], sizes: list[int] | None = None) -> list[RedisItem]:
    found = sizes or [10] * len(names)
    return [
        RedisItem(index, name, (bytes(size),), b"*")
        for index, (name, size) in enumerate(zip(names, found, strict=True))
    ]


def indices(parts: list[list[RedisItem]]) -> list[list[int]]:
    return [[item.index for item in part] for part in parts]


def test_a_part_is_about_a_mebibyte_and_a_larger_item_alone() -> None:
    half = PART_BYTES // 2
    made = items([b"x"] * 6, [half, half, 1, 3 * PART_BYTES, 1, 1])
    parts = parts_of(made, None, ordered=False)
    assert indices(parts) == [[0, 1], [2], [3], [4, 5]]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([b"x", b"y"])), max_size=12),
    st.booleans(),
)
def test_order_is_kept(placed: list[tuple[str, bytes]], ordered: bool) -> None:
    """Nothing is lost. Items of a key are in order, and never share a part; with ids, items of a name
    are also in order.
    """
    keys, names = [key for key, _ in placed], [name for _, name in placed]
    parts = indices(parts_of(items(names), keys, ordered=ordered))
    part_of = {place: number for number, part in enumerate(parts) for place in part}
    assert sorted(part_of) == [*range(len(placed))]
    assert all(part == sorted(part) for part in parts)
    for first in range(len(placed)):
        for later in range(first + 1, len(placed)):
            if keys[first] == keys[later]:
                assert part_of[first] < part_of[later]
            if ordered and names[first] == names[later]:
                assert part_of[first] <= part_of[later]
