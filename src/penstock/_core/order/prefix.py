"""The prefix rule: an item goes no further than the one before it of its key.

A sink that is `key_prefix_safe` may get several items of a key in one write. Where one of them
fails, the later ones of its key were not applied, whatever error they were given: they are not at
fault, and their turn comes after it.

1. While an item is tried again, those behind it are tried again with it, and it alone counts the
   attempts.
2. When it leaves for good, they leave with it: they are not dead letters, and go back to where they
   came from, to be sent after it.
3. What may have been applied by an earlier try is not sent in another batch: it ends unknown.

The rule holds where a batch was made for it (`Delivery.keeps_prefix`), and not on branches: none of
those is safe for prefixes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .keys import accepted
from .stopped import behind as stopped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..batch import Batch


def leaders(batch: Batch[Any], errors: Mapping[int, BaseException]) -> dict[int, int]:
    """For each failed item behind another failed one of its key: the index of the first of
    those.
    """
    if not batch.delivery.keeps_prefix or batch.keys is None or len(errors) < 2:
        return {}
    first: dict[object, int] = {}
    behind: dict[int, int] = {}
    for index in sorted(errors):
        leader = first.setdefault(accepted(batch.keys[index]), index)
        if leader != index:
            behind[index] = leader
    return behind


def held_back(
    batch: Batch[Any], errors: Mapping[int, BaseException]
) -> Mapping[int, BaseException]:
    """The errors with those of items that only stand behind another one replaced by `KeyStopped`. A
    cut leaves these items unsent.
    """
    behind = leaders(batch, errors)
    if not behind:
        return errors
    batch.hold(behind)
    return {
        index: stopped(errors[behind[index]]) if index in behind else error
        for index, error in errors.items()
    }
