"""Items whose keys are taken when they are sent again after an attempt with an unknown outcome."""

from __future__ import annotations

from sluicegate import Outcome, RowBatch

KEPT, TOLD, NEVER, UNKNOWN = (
    Outcome.DELIVERED, Outcome.DUPLICATE, Outcome.REJECTED, Outcome.UNKNOWN,
)  # fmt: skip
CASES: list[tuple[int, str, str | None, bool, Outcome]] = [
    (1, "first", "first", True, TOLD),
    (1, "second", None, True, NEVER),
    (2, "mine", "of another writer", True, UNKNOWN),
    (2, "mine too", None, True, NEVER),
    (3, "new", None, True, KEPT),
    (3, "newer", None, True, NEVER),
    (3, "new", None, True, NEVER),
    (4, "not tried", "tried", False, NEVER),
    (4, "tried", None, True, TOLD),
    (5, "twin", "twin", True, TOLD),
    (5, "twin", None, True, NEVER),
    (6, "not stored", "stored", True, UNKNOWN),
    (6, "stored", None, True, TOLD),
    (7, "new", None, True, KEPT),
    (8, "new", None, False, KEPT),
    (8, "not tried", None, False, NEVER),
]
"""An item, the row of its key before the write, whether an attempt is unknown, and its outcome."""


STOPPED = {3, 6}
"""The items behind a failed one in a batch with keys."""
DIFFERING = {2, 11}
"""The items whose stored rows differ."""


def taken() -> dict[int, str]:
    """The stored rows before the write."""
    return {number: stored for number, _, stored, _, _ in CASES if stored is not None}


def stored_after() -> dict[int, str]:
    """The stored rows after the write."""
    return taken() | {number: word for number, word, _, _, end in CASES if end is KEPT}


def batch_of_cases(*, has_keys: bool) -> RowBatch[tuple[int, str]]:
    """The items, in doubt as the table says."""
    items = [(number, word) for number, word, *_ in CASES]
    batch = RowBatch(items, keys=[number for number, _ in items] if has_keys else None)
    batch.delivery.doubt([place for place, case in enumerate(CASES) if case[3]])
    return batch


def expected_outcomes(*, has_keys: bool) -> list[Outcome]:
    """The outcomes of the items."""
    found = [case[4] for case in CASES]
    return [UNKNOWN if has_keys and at in STOPPED else end for at, end in enumerate(found)]
