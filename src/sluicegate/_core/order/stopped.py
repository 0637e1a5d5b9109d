"""Order by key within one write: no item is applied after a failed item of its key.

A batch whose order matters carries `keys`. A sink that writes the batch without the refused items
also omits the items behind them, and may declare itself `key_prefix_safe`. The omitted items were
not applied and are not the cause: their error is `KeyStopped`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..causes import caused
from ..errors import KeyStopped
from ..text import text_of
from .keys import accepted

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


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
                stopped[index] = behind(first[key])
        elif error is not None:
            first[key] = error
    return stopped


def behind(first: BaseException) -> KeyStopped:
    """Return the error of an item behind one that failed with `first`."""
    if isinstance(first, KeyStopped):
        return first
    message = f"an earlier item of its key failed: {type(first).__name__}: {text_of(first)}"
    return caused(KeyStopped(message), first)
