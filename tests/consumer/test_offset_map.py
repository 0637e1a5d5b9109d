"""The encoding and decoding of the map of finished offsets.

White box: the map alone, which no caller sees.

Planted faults, and the test that detects each:

- no checksum, or one that leaves out the position or the form: `test_altered_text_is_refused`,
  `test_a_map_is_true_only_beside_its_own_position`, `test_a_map_in_another_form_is_refused`;
- an error of another kind for foreign text: `test_foreign_text_raises_nothing_else`;
- the limit checked before base85, or one character off: `test_a_map_never_exceeds_its_limit`;
- a map over the limit refused, or its farthest ranges kept: `test_a_cut_keeps_the_nearest_ranges`;
- inflating without a bound: `test_what_inflates_without_end_is_refused`;
- every range read before the cut: `test_ranges_that_cannot_fit_are_not_even_read`.

White box: the text form, without a source.
"""

from __future__ import annotations

import random
import zlib
from base64 import b85encode
from itertools import count, pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.properties import examples

from sluicegate.consumer.progress.offset_map import (
    LIMIT,
    MOST_RANGES,
    ForeignMap,
    decode,
    encode,
    join,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECKSUM = 5
"""Characters in addition to the listed sizes: a checksum over map and position."""

numbers = st.one_of(st.integers(1, 3), st.integers(1, 1 << 20))
pairs = st.lists(st.tuples(numbers, numbers), max_size=400)
positions = st.integers(0, 1 << 40)


def ranges_of(position: int, gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for gap, run in gaps:
        position += gap
        ranges.append((position, position + run))
        position += run
    return ranges


def scattered(unfinished: int, span: int, seed: int = 7) -> list[tuple[int, int]]:
    """The ranges between `unfinished` random offsets among `span`, the first of which is
    unfinished.
    """
    offsets = {0, *random.Random(seed).sample(range(1, span), unfinished - 1)}
    return [(low + 1, high) for low, high in pairwise([*sorted(offsets), span]) if high - low > 1]


def forged(body: bytes, form: str, position: int = 0) -> str:
    """A text with a valid checksum."""
    checksum = zlib.crc32(form.encode() + body, zlib.crc32(position.to_bytes(8, "big")))
    return form + b85encode(checksum.to_bytes(4, "big") + body).decode()


@pytest.mark.parametrize(
    ("unfinished", "span", "size"),
    [
        (1, 50_001, 9),
        (16, 1_000, 47),
        (100, 20_000, 259),
        (1_000, 50_000, 1_586),
        (3_000, 30_000, 2_711),
        (10_000, 20_000, 3_129),
        (16_000, 32_000, 5_004),
    ],
)
def test_the_listed_sizes(unfinished: int, span: int, size: int) -> None:
    """consumer/4.3: except for a checksum and, in the densest rows, 4 % that a bitmap would
    save.
    """
    ranges = scattered(unfinished, span)
    text, cut = encode(0, ranges, limit=10_000)
    assert not cut
    assert len(text) <= 1.04 * size + CHECKSUM
    assert decode(0, text) == ranges


def test_no_finished_record_is_no_text() -> None:
    assert encode(5, []) == ("", False)
    assert decode(5, "") == []
    assert decode(5, None) == []


def test_a_window_of_twenty_thousand_fits() -> None:
    """consumer/4.3: for any distribution of its finished records."""
    for unfinished in (10_000, 5_000, 15_000):
        assert not encode(
            1 << 40,
            [(at + (1 << 40), end + (1 << 40)) for at, end in scattered(unfinished, 20_000)],
        ).cut
    every_other = [(at, at + 1) for at in range(1, 20_000, 2)]
    assert not encode(0, every_other).cut


@examples(25, long=200)
@given(position=positions, gaps=pairs)
def test_a_map_is_read_as_it_was_written(position: int, gaps: list[tuple[int, int]]) -> None:
    """consumer/C:C4."""
    ranges = ranges_of(position, gaps)
    text, cut = encode(position, ranges)
    assert not cut
    assert decode(position, text) == ranges
    assert text.isascii()


@examples(25, long=200)
@given(position=positions, gaps=pairs, limit=st.integers(0, 600))
def test_a_cut_keeps_the_nearest_ranges(
    position: int, gaps: list[tuple[int, int]], limit: int
) -> None:
    ranges = ranges_of(position, gaps)
    text, cut = encode(position, ranges, limit)
    assert len(text) <= limit
    kept = decode(position, text)
    assert kept == ranges[: len(kept)]
    assert cut is (len(kept) < len(ranges))


@pytest.mark.parametrize("limit", [*range(40), 999, 1_000, 1_001, 1_002, 1_003, LIMIT])
def test_a_map_never_exceeds_its_limit(limit: int) -> None:
    """It uses most of the limit: as many as fit of 16,000 unfinished offsets."""
    text, cut = encode(0, scattered(16_000, 32_000), limit)
    assert cut
    assert len(text) <= limit
    assert len(text) >= 0.97 * limit - 6 - 2 * (limit < 20)


@pytest.mark.parametrize("step", [2, 3, 200])
def test_ranges_that_cannot_fit_are_not_even_read(step: int) -> None:
    """Whatever their number, and however well they compress."""
    read = 0

    def endless() -> Iterator[tuple[int, int]]:
        nonlocal read
        noise = random.Random(3)
        for at in count(0, step):
            read += 1
            yield at + 1, at + (2 if step < 200 else noise.randrange(2, 200))

    text, cut = encode(0, endless())
    assert cut
    assert read <= MOST_RANGES + 1
    if step == 200:
        assert read <= 3 * len(decode(0, text))
    else:
        assert len(decode(0, text)) == MOST_RANGES


@pytest.mark.parametrize(
    "ranges", [[(-1, 1)], [(1, 1)], [(2, 1)], [(1, 3), (3, 4)], [(5, 6), (1, 2)]]
)
def test_ranges_that_no_tracker_has_are_refused(ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="range"):
        encode(0, ranges)


def test_the_first_range_may_begin_at_the_position() -> None:
    """All delivered records are finished, and an earlier claim finished the next one."""
    assert decode(7, encode(7, [(7, 9), (12, 13)]).text) == [(7, 9), (12, 13)]


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([[], []], []),
        ([[(2, 3), (5, 6)], []], [(2, 3), (5, 6)]),
        ([[], [(0, 3), (5, 6)]], [(0, 3), (5, 6)]),
        ([[(2, 3)], [(3, 6), (8, 9)]], [(2, 6), (8, 9)]),
        ([[(2, 3)], [(4, 6)], [(6, 7)]], [(2, 3), (4, 7)]),
    ],
)
def test_ranges_of_two_maps_are_joined_where_they_touch(
    parts: list[list[tuple[int, int]]], whole: list[tuple[int, int]]
) -> None:
    assert list(join(*parts)) == whole


def test_a_map_is_true_only_beside_its_own_position() -> None:
    """consumer/C:C4: if a tool moves the offset but keeps the metadata, no other record is
    skipped.
    """
    text, _ = encode(100, [(101, 150)])
    for position in (0, 99, 101, 150, 1 << 40):
        with pytest.raises(ForeignMap, match=f"damaged, or not of position {position}"):
            decode(position, text)


@examples(25, long=200)
@given(gaps=pairs.filter(bool), data=st.data())
def test_altered_text_is_refused(gaps: list[tuple[int, int]], data: st.DataObject) -> None:
    """Or it is another spelling of the same bytes; it never describes other records."""
    ranges = ranges_of(0, gaps)
    text, _ = encode(0, ranges)
    at = data.draw(st.integers(0, len(text) - 1))
    altered = data.draw(
        st.sampled_from(
            [
                text[:at],
                text[at + 1 :],
                text[:at] + "x" + text[at + 1 :],
                text + "xx",
                "!" + text[1:],
                "#" + text[1:],
            ]
        )
    )
    try:
        found = decode(0, altered)
    except ForeignMap:
        return
    assert found in (ranges, [])
    assert found or not altered


@pytest.mark.parametrize("unfinished", [3, 120])
def test_a_map_in_another_form_is_refused(unfinished: int) -> None:
    """Whatever its bytes would mean in that form."""
    for seed in range(100):
        text, _ = encode(0, scattered(unfinished, 3_000, seed))
        other = {"!": "#", "#": "!"}[text[0]]
        with pytest.raises(ForeignMap, match="damaged"):
            decode(0, other + text[1:])


@examples(15, long=200)
@given(
    position=positions,
    form=st.sampled_from(["", "!", "#", "~"]),
    text=st.text(max_size=60)
    | st.text("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ!#$+/=", max_size=60),
)
def test_foreign_text_raises_nothing_else(position: int, form: str, text: str) -> None:
    for each in (form + text, forged(text.encode("utf-8", "surrogatepass"), form, position)):
        try:
            ranges = decode(position, each)
        except ForeignMap:
            continue
        assert all(start < end for start, end in ranges)


def test_what_inflates_without_end_is_refused() -> None:
    compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    bomb = compressor.compress(bytes(100_000_000)) + compressor.flush()
    with pytest.raises(ForeignMap, match="not one deflated map"):
        decode(0, forged(bomb, "#"))


@pytest.mark.parametrize(
    ("body", "form", "why"),
    [
        (b"", "!", "0 numbers"),
        (b"\x01", "!", "1 numbers"),
        (b"\x01\x00", "!", "2 numbers, 1 of them 0"),
        (b"\x01\x01\x00\x01", "!", "4 numbers, 1 of them 0"),
        (b"\x01\x80", "!", "inside a number"),
        (b"\x01" + b"\xff" * 9 + b"\x01", "!", "more than 63 bits"),
        ((b"\xff" * 8 + b"\x7f") * 2, "!", "beyond every offset"),
        (b"\x01\x01" * (MOST_RANGES + 1), "!", "32770 numbers"),
        (b"\x07", "#", "not deflated"),
        (b"\x00", "#", "not one deflated map"),
        (zlib.compressobj(wbits=-15).flush() + b"x", "#", "not one deflated map"),
    ],
)
def test_a_right_checksum_over_nonsense_is_refused(body: bytes, form: str, why: str) -> None:
    with pytest.raises(ForeignMap, match=why):
        decode(0, forged(body, form))


def test_a_form_of_a_later_version_is_refused() -> None:
    with pytest.raises(ForeignMap, match="unknown form '~'"):
        decode(0, forged(b"\x01\x01", "~"))
