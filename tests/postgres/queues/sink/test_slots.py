"""Q-T6: the slot of a key is the same in every process, and keys are spread over all slots.

White box: the functions of slots, which must never change.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from sluicegate import ConfigError
from sluicegate.errors import MissingExtra
from sluicegate.postgres.queues.ring import SLOT_FUNCTIONS, SLOTS, need_slots, ring_slot

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate.batcher import LoopClock
    from sluicegate.postgres.queues.ring import SlotFunction

VECTORS: list[tuple[str | bytes | int, int, int]] = [
    ("", 45283, 5039),  # the published hashes of the empty input: e3b0c442..., af1349b9...
    ("a", 38858, 30231),
    ("order-17", 43378, 53794),
    ("Zürich", 20802, 63364),
    ("\U0001f600", 17648, 33138),
    (b"\x00\x01", 5044, 28795),
    (0, 18231, 29413),
    (1, 47948, 20596),
    (1 << 64, 13469, 19130),
    ((1 << 128) - 1, 50778, 34755),
]


@pytest.mark.parametrize(("key", "sha256", "blake3"), VECTORS)
def test_slots_are_pinned(key: str | bytes | int, sha256: int, blake3: int) -> None:
    """Q-T6. A changed slot would send the jobs of a key to another consumer after an upgrade."""
    assert (ring_slot(key), ring_slot(key, "sha256"), ring_slot(key, "blake3")) == (
        sha256,
        sha256,
        blake3,
    )


def test_text_is_hashed_in_utf_8_and_numbers_as_16_bytes_little_endian() -> None:
    """Q-T6"""
    for function in SLOT_FUNCTIONS:
        assert ring_slot("Zürich", function) == ring_slot("Zürich".encode(), function)
        assert ring_slot(258, function) == ring_slot(b"\x02\x01" + bytes(14), function)


def test_another_process_has_the_same_slots() -> None:
    """Q-T6: nothing depends on the seed of `hash()`."""
    code = (
        "from sluicegate.postgres.queues.ring import ring_slot\n"
        "print([ring_slot(f'k{n}', f) for n in range(20) for f in ('sha256', 'blake3')])"
    )
    here = [ring_slot(f"k{n}", f) for n in range(20) for f in SLOT_FUNCTIONS]
    for seed in ("1", "2"):
        found = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        )
        assert found.stdout.strip() == str(here)


@pytest.mark.parametrize("function", SLOT_FUNCTIONS)
def test_keys_are_uniform_over_the_ring(function: SlotFunction) -> None:
    """Q-T6: chi-squared over the 256 automatic ranges, and both ends of the ring are reached."""
    count = 256 * 200
    ranges = [0] * 256
    slots = [ring_slot(f"order-{n}", function) for n in range(count)]
    for slot in slots:
        ranges[slot // 256] += 1
    spread = sum((found - 200) ** 2 / 200 for found in ranges)
    assert 160 < spread < 370, spread  # 255 degrees of freedom: one in 100,000 exceeds it
    assert min(slots) < 16
    assert max(slots) >= SLOTS - 16
    low = [0] * 256
    for slot in slots:
        low[slot % 256] += 1
    assert 160 < sum((found - 200) ** 2 / 200 for found in low) < 370


async def test_the_server_computes_the_same_slots(log: Log, real_clock: LoopClock) -> None:
    """Q-T6: the SQL function `ring_slot` is SHA-256 of the text in UTF-8."""
    keys = [*(f"order-{n}" for n in range(2000)), "", "Zürich", "\U0001f600", "x" * 1000]
    async with log.connected() as con:
        rows = await con.fetch(
            f"SELECT {log.sql}.ring_slot(k) FROM unnest($1::text[]) WITH ORDINALITY u (k, n) "
            "ORDER BY n",
            keys,
        )
    assert [row[0] for row in rows] == [ring_slot(key) for key in keys]


@pytest.mark.parametrize("key", [None, 1.5, True, -1, 1 << 128, ("a",)])
def test_other_keys_are_refused(key: Any) -> None:
    with pytest.raises(ConfigError, match="key="):
        ring_slot(key)


def test_an_unknown_function_and_a_missing_package_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match="slot_function='md5'"):
        need_slots("md5")
    with pytest.raises(ConfigError, match="slot_function='md5'"):
        ring_slot("a", "md5")  # type: ignore[arg-type]  # what a caller may give
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"sluicegate\[blake3\]"):
        need_slots("blake3")
