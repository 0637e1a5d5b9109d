"""Withdrawn items: taken back by their source, and not written again.

1. A write that is in flight at the withdrawal may end; its results are booked as usual.
2. After that, `send` answers with `WithdrawnError` for these items without writing them, and
   replaces the error of a write in flight. Retries, bisections, branches and dead letters all use
   `send`.
3. So they end as unsent, or as unknown if an earlier attempt may have applied them.
4. A combined item that represents a withdrawn one is not written either; the other items of it also
   end as unsent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import WithdrawnError

if TYPE_CHECKING:
    from .batch import Batch

WITHDRAWN = "its source has withdrawn it"


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
