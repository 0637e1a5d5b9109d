"""Order by key inside one write: nothing of a key takes effect behind an item of it that failed.

A batch whose order matters carries `keys`. A sink that writes it as a whole, and leaves the refused
items out, leaves out those behind them as well, and may call itself `key_prefix_safe`. What was
left out was not applied and is nobody's fault: `KeyStopped`.
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
    """The items behind a failed one of their key, by index, each with an error that names the first
    failure of the key.

    Whether they have failed as well makes no difference; those that are `done` whatever happens are
    left alone. Without keys there are none.
    """
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
    """The error of an item behind one that failed with `first`."""
    if isinstance(first, KeyStopped):
        return first
    message = f"an earlier item of its key failed: {type(first).__name__}: {text_of(first)}"
    return caused(KeyStopped(message), first)
