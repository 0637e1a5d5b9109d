"""The ring of 65,536 slots: the slot of a key, and ranges of slots. Pure.

1. The slot is the first two bytes of the key's hash, little-endian. It is the same in every process
   and on every machine.
2. The function is a property of the queue. The server computes SHA-256 itself, so a plain `INSERT`
   needs no slot. A BLAKE3 slot is computed by the producer and sent with the job.
3. Text is hashed in UTF-8, and bytes unchanged. A whole number, below 2^128, is hashed as 16
   little-endian bytes. The server knows only the text of a key, so with SHA-256 a number's slot is
   that of its digits.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

from ..._core import checks
from ..._core.checks import bad
from ..._core.extras import need

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SlotFunction: TypeAlias = Literal["sha256", "blake3"]
SLOT_FUNCTIONS: tuple[SlotFunction, ...] = get_args(SlotFunction)
_NUMBERS = 1 << 128
SLOTS = 65_536
PART = 256
"""Slots in an automatic range."""


def need_slots(function: str) -> SlotFunction:
    """Return the slot function. Raises `MissingExtra` if this process cannot compute it."""
    for known in SLOT_FUNCTIONS:
        if function == known:
            if known == "blake3":
                need("blake3", "blake3", "a queue with slot_function='blake3'")
            return known
    raise bad("slot_function", function, f"must be one of {', '.join(SLOT_FUNCTIONS)}")


def ring_slot(key: str | bytes | int, function: SlotFunction = "sha256") -> int:
    """Return the slot of a key, 0 to 65,535.

    Args:
        key: text, bytes, or a whole number from 0 to 2^128 - 1.
        function: the slot function of the queue.

    Raises `ConfigError` for any other key or function, and `MissingExtra` if the function needs the
    package blake3 and it is not installed.
    """
    data = _bytes(key)
    if function == "sha256":
        digest = hashlib.sha256(data).digest()
    else:
        need_slots(function)
        import blake3  # an optional dependency

        digest = blake3.blake3(data).digest(length=2)
    return digest[0] + 256 * digest[1]


def _bytes(key: object) -> bytes:
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, bytes):
        return key
    if isinstance(key, int) and not isinstance(key, bool) and 0 <= key < _NUMBERS:
        return key.to_bytes(16, "little")
    raise bad("key", key, "must be text, bytes or a whole number from 0 to 2^128 - 1")


class SlotRange(NamedTuple):
    """Slots from `lo` to `hi`, both included, and their consumer."""

    lo: int
    hi: int
    consumer: str


def checked_range(lo: object, hi: object, consumer: object) -> SlotRange:
    """Raise `ConfigError` unless this is a range of the ring with a consumer."""
    for name, slot in (("lo", lo), ("hi", hi)):
        if checks.count(name, slot, least=0) >= SLOTS:
            raise bad(name, slot, f"must be below {SLOTS}")
    found = SlotRange(int(str(lo)), int(str(hi)), checks.text("consumer", consumer))
    if found.lo > found.hi:
        raise bad("lo", lo, f"must not be above hi={hi}")
    return found


def after_move(ranges: Iterable[SlotRange], moved: SlotRange) -> list[SlotRange]:
    """Return the ranges to assign so that `moved` gets its consumer and no other slot changes.

    Ranges that it overlaps are split, and all their slots are assigned in one call.
    """
    found = [moved]
    for each in ranges:
        if each.hi < moved.lo or moved.hi < each.lo:
            continue
        if each.lo < moved.lo:
            found.append(SlotRange(each.lo, moved.lo - 1, each.consumer))
        if each.hi > moved.hi:
            found.append(SlotRange(moved.hi + 1, each.hi, each.consumer))
    return sorted(found)


def in_parts(ranges: Sequence[SlotRange]) -> list[SlotRange]:
    """Convert ranges to automatic ones, each with the consumer that has most of its slots."""
    found: list[SlotRange] = []
    for lo in range(0, SLOTS, PART):
        hi, shares = lo + PART - 1, dict[str, int]()
        for each in ranges:
            common = min(hi, each.hi) - max(lo, each.lo) + 1
            if common > 0:
                shares[each.consumer] = shares.get(each.consumer, 0) + common
        if shares:
            most = max(shares, key=lambda consumer: (shares[consumer], consumer))
            found.append(SlotRange(lo, hi, most))
    return found


def gaps(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the spans of slots that are covered by none of these spans, which may overlap."""
    first = 0
    for lo, hi in sorted(spans):
        if lo > first:
            yield first, lo - 1
        first = max(first, hi + 1)
    if first < SLOTS:
        yield first, SLOTS - 1
