"""The prefix rule: an item never gets ahead of the item before it with the same key.

A sink that is `key_prefix_safe` may get several items of a key in one write. If one of them fails,
the later ones of its key were not applied, regardless of their errors; they are sent after it.

1. Retries of an item include the items behind it; attempts are counted for the first item only.
2. When its retries end, the items behind it also leave. They are not dead-lettered: they return to
   their origin, to be sent later.
3. An item that an earlier attempt may have applied is not sent in another batch: it ends as
   unknown.
4. A withdrawn item leaves alone: the items behind it are retried without it.

The rule applies to batches with `Delivery.keeps_prefix`, and not on branches, which are never
prefix-safe.
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
    """Map failed items behind a failed one of their key to the first failed item of that key."""
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
    """Add the errors of withdrawn items that have already left: others may have left with them."""
    delivery = batch.delivery
    if not delivery.keeps_prefix or delivery.withdrawn is None:
        return errors
    gone = withdrawn_among(batch)
    failed = [i for i in gone if not delivery.verdict(batch.roots((i,))[0]).is_safe]
    return {**{index: gone[index] for index in failed}, **errors}


def held_back(
    batch: Batch[Any], errors: Mapping[int, BaseException]
) -> Mapping[int, BaseException]:
    """Replace errors of items behind a failed one with `KeyStopped`; a cut leaves these unsent."""
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
