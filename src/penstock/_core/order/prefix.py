"""The prefix rule: an item goes no further than the one before it of its key.

A sink that is `key_prefix_safe` may get several items of a key in one write. If one of them fails,
the later ones of its key were not applied, regardless of their errors; they are sent after it.

1. Retries of an item include those behind it, and it alone counts the attempts.
2. When it leaves for good, they leave with it: they are not dead letters, and return to their
   origin, to be sent after it.
3. An item that an earlier try may have applied is not sent in another batch: it ends unknown.
4. A withdrawn item leaves alone: those behind it are tried again without it.

The rule holds for a batch made for it (`Delivery.keeps_prefix`), and not on branches: none of those
is safe for prefixes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..withdrawn import withdrawn_among
from .keys import accepted
from .stopped import behind as stopped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..batch import Batch


def leaders(batch: Batch[Any], errors: Mapping[int, BaseException]) -> dict[int, int]:
    """By failed item behind another failed one of its key: the first failed index of that key."""
    if not batch.delivery.keeps_prefix or batch.keys is None or len(errors) < 2:
        return {}
    first: dict[object, int] = {}
    behind: dict[int, int] = {}
    for index in sorted(errors):
        leader = first.setdefault(accepted(batch.keys[index]), index)
        if leader != index:
            behind[index] = leader
    return behind


def with_withdrawn(
    batch: Batch[Any], errors: Mapping[int, BaseException]
) -> Mapping[int, BaseException]:
    """The errors, also of withdrawn items that have left already: others may have left with them."""
    delivery = batch.delivery
    if not delivery.keeps_prefix or delivery.withdrawn is None:
        return errors
    gone = withdrawn_among(batch)
    failed = [i for i in gone if not delivery.verdict(batch.roots((i,))[0]).is_success]
    return {**{index: gone[index] for index in failed}, **errors}


def held_back(
    batch: Batch[Any], errors: Mapping[int, BaseException]
) -> Mapping[int, BaseException]:
    """The errors, those of items behind a failed one as `KeyStopped`; a cut leaves these unsent."""
    if not errors:
        return errors
    known = with_withdrawn(batch, errors)
    behind = {i: leader for i, leader in leaders(batch, known).items() if i in errors}
    if not behind:
        return errors
    batch.hold(behind)
    return {
        index: stopped(known[behind[index]]) if index in behind else error
        for index, error in errors.items()
    }
