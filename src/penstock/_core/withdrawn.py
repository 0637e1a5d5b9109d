"""Withdrawn items: their source takes them back, and no write may have them any more.

1. A write that has them when they are withdrawn may end: what it applies is booked as usual.
2. `send` answers them with `WithdrawnError` from then on, unwritten, and replaces the error of a
   write that had them: retries, bisections, branches and dead letters all send through it.
3. So they end unsent, or unknown where an earlier try may have applied them.
4. A combined item that stands for a withdrawn one is not written either; its other items end
   unsent as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import WithdrawnError

if TYPE_CHECKING:
    from .batch import Batch

WITHDRAWN = "its source has withdrawn it"


def withdrawn_among(batch: Batch[Any], *, wholly: bool = False) -> dict[int, BaseException]:
    """The errors of those items of a batch that are not sent any more.

    With `wholly`, of combined ones only those that stand for nothing else.
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
