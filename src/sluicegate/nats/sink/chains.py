"""The send order of a batch's items: all at once, or one after another within a key. Pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ..._core.order.keys import accepted
from ..._core.order.left_out import stopped_behind_error

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ..._core.errors import KeyStopped


class KeyChains:
    """The items that can be sent now, and those that wait for an earlier item of their key.

    Args:
        indices: the items that can be sent, in order.
        keys: those of all items of the batch; with `None`, every item can be sent at once.
    """

    def __init__(self, indices: Collection[int], keys: Sequence[object] | None) -> None:
        self._next: dict[int, int] = {}
        self.ready = deque(indices if keys is None else self._firsts({*indices}, keys))

    def _firsts(self, indices: set[int], keys: Sequence[object]) -> list[int]:
        """The first item of each key, if it can be sent; also records the successor of each item."""
        last: dict[object, int] = {}
        firsts: list[int] = []
        for index, given in enumerate(keys):
            key = accepted(given)
            before = last.get(key)
            if before is not None:
                self._next[before] = index
            elif index in indices:
                firsts.append(index)
            last[key] = index
        return firsts

    def stored(self, index: int, errors: Mapping[int, object]) -> None:
        """Release the successor of a stored item, unless it has an error."""
        following = self._next.get(index)
        if following is not None and following not in errors:
            self.ready.append(following)

    def left_out(
        self, index: int, error: BaseException, errors: Mapping[int, object]
    ) -> dict[int, KeyStopped]:
        """The errors of the items after a failed one, up to the first that had failed before."""
        found: dict[int, KeyStopped] = {}
        following = self._next.get(index)
        if following is None:
            return found
        stopped = stopped_behind_error(error)
        while following is not None and following not in errors:
            found[following] = stopped
            following = self._next.get(following)
        return found
