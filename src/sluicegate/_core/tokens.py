"""Deduplication tokens for destinations, derived from a batch's path and its items' origins."""

from __future__ import annotations

import hashlib
from array import array
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def token_of_batch(
    path: str, origins: Sequence[int], groups: Sequence[tuple[int, ...]] | None
) -> str:
    """Return one token for all items; equal only for the same items (or groups) and path."""
    if groups is not None:
        origins = [number for group in groups for number in (len(group), *group)]
    digest = _digest_of_range(origins) if isinstance(origins, range) else _digest(origins)
    return f"{path}-{digest}"


def tokens_of_items(path: str, origins: Sequence[int | tuple[int, ...]]) -> list[str]:
    """Return a token for each item."""
    return [f"{path}-{'.'.join(map(str, o)) if isinstance(o, tuple) else o}" for o in origins]


def _digest(numbers: Sequence[int]) -> str:
    return hashlib.blake2b(array("I", numbers).tobytes(), digest_size=8).hexdigest()


@lru_cache(maxsize=256)
def _digest_of_range(numbers: range) -> str:
    """The digest of a whole batch, which depends only on its size."""
    return _digest(numbers)
