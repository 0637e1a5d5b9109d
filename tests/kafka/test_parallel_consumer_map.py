"""The offset map of Confluent's parallel consumer, from bytes built by hand. White box: the two
formats of the map.

Planted faults, and the test that detects each:

- the first run is treated as finished, or bits are read from the highest on:
  `test_every_form_tells_the_same`;
- decompression without a limit on the size or the memory: `test_a_bomb_is_refused`;
- lengths are read as unsigned: `test_what_no_encoder_writes_is_refused`.
"""

from __future__ import annotations

import struct
import sys
import tracemalloc
from base64 import b64encode
from functools import partial

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.consumer.progress import offset_map
from sluicegate.consumer.progress.offset_map import ForeignMap
from sluicegate.kafka import ConfluentKafkaSource, KafkaSource
from sluicegate.kafka.parallel_consumer_map import confluent_ranges

decode = partial(offset_map.decode, foreign=confluent_ranges)

RUNS = [2, 3, 1, 1, 130, 300]
"""Unfinished 0 and 1, 5, 7 to 136; finished 2 to 4, 6, 137 to 436."""
RANGES = [(2, 5), (6, 7), (137, 437)]


def text(magic: str, payload: bytes) -> str:
    return b64encode(magic.encode("latin-1") + payload).decode()


def bits(runs: list[int], header: str) -> bytes:
    """A length and the bits, in a buffer with one spare byte."""
    flags = [number % 2 for number, run in enumerate(runs) for _ in range(run)]
    content = bytearray(-(-len(flags) // 8) + 1)
    for at, flag in enumerate(flags):
        content[at // 8] |= flag << at % 8
    return struct.pack(header, len(flags)) + content


def streamed(payload: bytes) -> bytes:
    """A frame without its content size, as in a stream."""
    compressor = zstandard.ZstdCompressor().compressobj()
    return compressor.compress(payload) + compressor.flush()


def forms(runs: list[int]) -> dict[str, bytes]:
    plain = {
        "n": struct.pack(f">{len(runs)}h", *runs),
        "e": struct.pack(f">{len(runs)}i", *runs),
        "l": bits(runs, ">h"),
        "o": bits(runs, ">i"),
    }
    compressed = zip("Jpas", plain.values(), strict=True)
    return plain | {magic: streamed(payload) for magic, payload in compressed}


@pytest.mark.parametrize("magic", "neloJpas")
def test_every_form_tells_the_same(magic: str) -> None:
    stored = text(magic, forms(RUNS)[magic])
    assert decode(1_000, stored) == [(1_000 + start, 1_000 + end) for start, end in RANGES]


@settings(max_examples=60, deadline=None)
@given(
    first=st.integers(0, 9),
    rest=st.lists(st.integers(1, 40), max_size=30),
    position=st.integers(0, 1 << 50),
)
def test_runs_and_bits_agree(first: int, rest: list[int], position: int) -> None:
    runs = [first, *rest]
    payloads = forms(runs)
    expected = decode(position, text("e", payloads["e"]))
    offsets = {offset for start, end in expected for offset in range(start, end)}
    assert len(offsets) == sum(runs[1::2])
    for magic in "nloJs":
        assert decode(position, text(magic, payloads[magic])) == expected


def test_bytes_by_hand() -> None:
    """Offset 5 unfinished, 6 and 7 finished: a run of 1, a run of 2; bits 0, 1, 1 of 3."""
    assert decode(5, text("n", bytes.fromhex("0001 0002"))) == [(6, 8)]
    assert decode(5, text("e", bytes.fromhex("00000001 00000002"))) == [(6, 8)]
    assert decode(5, text("l", bytes.fromhex("0003 0600"))) == [(6, 8)]
    assert decode(5, text("o", bytes.fromhex("00000003 0600"))) == [(6, 8)]
    assert decode(5, "bgABAAI=") == [(6, 8)]


def test_nothing_finished_is_an_empty_map() -> None:
    assert decode(5, text("n", bytes.fromhex("0001"))) == []
    assert decode(5, text("n", bytes.fromhex("0000"))) == []
    assert decode(5, text("l", bytes.fromhex("0000 00"))) == []
    assert decode(5, text("o", bytes.fromhex("00000008 0000"))) == []


def test_bits_beyond_the_length_are_ignored() -> None:
    assert decode(0, text("l", bytes.fromhex("0003 feff"))) == [(1, 3)]


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        (text("\x01", b"12345678"), "Kafka Streams"),
        (text("\x02", b"12345678"), "Kafka Streams"),
        (text("L", b"\0\1"), "unknown magic byte b'L'"),
        (text("\xee", b"\0\1"), "unknown magic byte"),
        ("bgABAAI", "not base64"),
        ("some words", "not base64"),
        ("größe", "not base64"),
        ("=", "not base64"),
        (text("n", b""), "0 bytes are not lengths"),
        (text("n", b"\0\1\0"), "3 bytes are not lengths"),
        (text("n", b"\xff\xff\0\1"), "4 bytes are not lengths"),
        (text("n", b"\0\1\xff\xff"), "4 bytes are not lengths"),
        (text("n", b"\0\1\0\1\0\0\0\1"), "8 bytes are not lengths"),
        (text("e", b"\0\1\0\1\0\0"), "6 bytes are not lengths"),
        (text("l", b"\0"), "1 bytes are not the bits of -1"),
        (text("l", b"\0\x09\xff"), "3 bytes are not the bits of 9"),
        (text("l", b"\xff\xff\xff"), "are not the bits of -1"),
        (text("o", b"\x7f\xff\xff\xff\0"), "are not the bits of 2147483647"),
        (text("J", b"\0\1\0\1"), "not zstd"),
        (text("J", streamed(forms(RUNS)["n"])[:-3]), "not one zstd frame"),
        (text("J", streamed(forms(RUNS)["n"]) + b"x"), "not one zstd frame"),
        (text("J", streamed(forms(RUNS)["n"]) + bytes(99)), "not zstd"),
        (text("J", b""), "not one zstd frame"),
    ],
)
def test_what_no_encoder_writes_is_refused(stored: str, why: str) -> None:
    with pytest.raises(ForeignMap, match=why):
        decode(0, stored)


def test_a_bomb_is_refused() -> None:
    """Before it uses much memory."""
    many = bytes(100_000_000)
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    wide = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    bombs = {
        streamed(bytes(300_000)): "at most 262,144 bytes",
        streamed(many): "at most 262,144 bytes",
        zstandard.ZstdCompressor().compress(many): "at most 262,144 bytes",
        wide.compress(many) + wide.flush(): "too much memory",
    }
    for bomb, why in bombs.items():
        tracemalloc.start()
        try:
            with pytest.raises(ForeignMap, match=why):
                decode(0, text("J", bomb))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 10_000_000


def test_without_zstandard_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ForeignMap, match=r'pip install "sluicegate\[files\]"'):
        decode(0, text("J", forms(RUNS)["J"]))
    assert decode(0, text("n", forms(RUNS)["n"])) == RANGES


@settings(max_examples=100, deadline=None)
@given(
    magic=st.sampled_from("neloJpas\x01L"), payload=st.binary(max_size=40), compress=st.booleans()
)
def test_any_payload_is_read_or_refused(magic: str, payload: bytes, *, compress: bool) -> None:
    try:
        ranges = decode(9, text(magic, streamed(payload) if compress else payload))
    except ForeignMap:
        return
    assert all(9 <= start < end for start, end in ranges)
    assert ranges == sorted(ranges)


@pytest.mark.parametrize("kind", [KafkaSource, ConfluentKafkaSource])
def test_a_source_on_either_client_reads_it(kind: type[KafkaSource | ConfluentKafkaSource]) -> None:
    source = kind("orders", bootstrap="127.0.0.1:1", group="bills")
    assert source.capabilities.foreign_map is confluent_ranges
