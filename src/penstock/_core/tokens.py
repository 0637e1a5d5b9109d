"""Deduplication tokens for destinations, derived from a batch's path and its items' origins."""

from __future__ import annotations

import hashlib
from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def token_of_batch(
    path: str, origins: Sequence[int], groups: Sequence[tuple[int, ...]] | None
) -> str:
    """Return one token for all items; equal only for the same items (or groups) and path."""
    digest = hashlib.blake2b(digest_size=8)
    if groups is not None:
        origins = [number for group in groups for number in (len(group), *group)]
    digest.update(array("I", origins).tobytes())
    return f"{path}-{digest.hexdigest()}"


def tokens_of_items(path: str, origins: Sequence[int | tuple[int, ...]]) -> list[str]:
    """Return a token for each item."""
    return [f"{path}-{'.'.join(map(str, o)) if isinstance(o, tuple) else o}" for o in origins]
