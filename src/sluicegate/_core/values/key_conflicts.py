"""Verdicts on items whose key is taken after an attempt with an unknown outcome. Pure.

1. The first item of a key with the contents of the stored row is a duplicate: an earlier attempt has
   stored it, or another writer has stored the same.
2. Any other item is refused for good if an earlier item of the batch with its key is stored, or may
   be: no attempt can have stored both.
3. Otherwise the outcome stays unknown: another writer may hold the key, or a trigger or a later
   writer may have changed the item's row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import KeyRepeated, StoredRowDiffers

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


NULL_KEY = (
    "an earlier attempt may have stored this row, and its key contains NULL, so that it cannot be "
    "looked up"
)


class KeyConflicts:
    """The items of one batch that hold a key, in the order of the batch.

    Args:
        place: the destination, for messages.
        names: the names of the key's columns or fields, for messages.
    """

    def __init__(self, place: str, names: Sequence[str]) -> None:
        self._place = place
        self._names = ", ".join(names)
        self._holders: dict[Hashable, bool] = {}
        """For each key with an item that is stored or may be: whether one of them is the stored one."""

    def note_stored(self, key: Hashable) -> None:
        """Record that this attempt has stored an item under a key."""
        self._holders[key] = True

    def verdict(
        self, key: Hashable | None, *, is_same: bool
    ) -> KeyRepeated | StoredRowDiffers | None:
        """The error of the next item of a taken key; `None` if it is a duplicate.

        `is_same` states whether it has the contents of the stored row. Without a `key`, its
        conflict is not under this one.
        """
        if key is None:
            return self.differs("no row has its key, but another unique key of it is taken")
        has_holder, is_held = key in self._holders, self._holders.get(key, False)
        self._holders[key] = is_held or is_same
        if is_same and not is_held:
            return None
        if has_holder:
            return KeyRepeated(self._names)
        return self.differs("the row of its key has other contents")

    def differs(self, found: str) -> StoredRowDiffers:
        """The error of an item that may be stored, by what was `found` at the destination."""
        return StoredRowDiffers(
            f"an earlier attempt may have stored this item in {self._place}, but {found} (key: "
            f"{self._names}): another writer may have stored them, or have changed this item's "
            "row; compare the two, and correct the item or the row"
        )
