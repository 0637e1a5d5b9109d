"""The slot of a key on the ring of 65,536. Pure.

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
from typing import Literal, TypeAlias, get_args

from ...._core.checks import bad
from ...._core.extras import need

SlotFunction: TypeAlias = Literal["sha256", "blake3"]
SLOT_FUNCTIONS: tuple[SlotFunction, ...] = get_args(SlotFunction)
SLOTS = 65_536
_NUMBERS = 1 << 128


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
