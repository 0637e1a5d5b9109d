"""Items that are left out of a write: behind a failed item of their key, or withdrawn by their source.

A batch whose order matters carries `keys`. No item is applied after a failed item of its key:

1. A sink that writes a batch without the refused items also omits the items behind them, and may
   declare itself `key_prefix_safe`. The omitted items were not applied and are not the cause: their
   error is `KeyStopped`.
2. Such a sink may get several items of a key in one write (`Delivery.keeps_prefix`; not on
   branches, which are never prefix-safe). If one of them fails, the later ones of its key were not
   applied, regardless of their errors.
3. Retries of an item include the items behind it; attempts are counted for the first item only.
4. When its retries end, the items behind it also leave. They are not dead-lettered: they return to
   their origin, to be sent later. One that an earlier attempt may have applied ends as unknown.

A withdrawn item is not written again:

5. A write that is in flight at the withdrawal may end; its results are booked as usual. After that,
   `send` answers with `WithdrawnError` without writing it, and replaces the error of a write in
   flight. Retries, bisections, branches and dead letters all use `send`.
6. So it ends as unsent, or as unknown if an earlier attempt may have applied it.
7. A combined item that represents a withdrawn one is not written either; the other items of it also
   end as unsent. The items behind a withdrawn one are retried without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..classify import caused
from ..errors import KeyStopped, WithdrawnError
from ..text import text_of
from .keys import accepted

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ..batch import Batch

WITHDRAWN = "its source has withdrawn it"


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
        index: stopped_behind_error(known[behind[index]]) if index in behind else error
        for index, error in errors.items()
    }


def stopped_behind(
    keys: Sequence[object] | None, errors: Mapping[int, BaseException], done: Collection[int] = ()
) -> dict[int, KeyStopped]:
    """Return the errors, by index, of items behind a failed one of their key, unless `done`."""
    if keys is None or not errors:
        return {}
    first: dict[object, BaseException] = {}
    stopped: dict[int, KeyStopped] = {}
    for index in range(min(errors), len(keys)):
        key, error = accepted(keys[index]), errors.get(index)
        if key in first:
            if index not in done and not isinstance(error, KeyStopped):
                stopped[index] = stopped_behind_error(first[key])
        elif error is not None:
            first[key] = error
    return stopped


def stopped_behind_error(first: BaseException) -> KeyStopped:
    """Return the error of an item behind one that failed with `first`."""
    if isinstance(first, KeyStopped):
        return first
    message = f"an earlier item of its key failed: {type(first).__name__}: {text_of(first)}"
    return caused(KeyStopped(message), first)


def withdrawn_among(batch: Batch[Any], *, wholly: bool = False) -> dict[int, BaseException]:
    """Return the errors of the withdrawn items of a batch.

    With `wholly`, a combined item counts only if all of its items are withdrawn.
    """
    gone = batch.delivery.withdrawn
    if not gone:
        return {}
    indices = [
        index
        for index, origin in enumerate(batch.origins)
        if (all if wholly else any)(
            root in gone for root in (origin if isinstance(origin, tuple) else (origin,))
        )
    ]
    if not indices:
        return {}
    return dict.fromkeys(indices, WithdrawnError(f"not sent: {WITHDRAWN}"))
