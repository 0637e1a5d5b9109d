"""The parts of a batch, which are sent one after another. Pure.

1. A part has at most about `PART_BYTES`; a larger item is sent alone. A lost connection leaves at
   most one part unknown.
2. In a batch with keys, no item may be stored after a failed item of its key, but Redis continues
   after a failed command. So commands of one key are in different parts, and the next one is sent
   once the previous one is stored. The elements of one list are one command in one part.
3. Entries with their own ids stay in order, since a stream accepts only increasing ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core.order.keys import accepted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .items import RedisItems

PART_BYTES = 1 << 20


def parts_of(
    made: RedisItems, keys: Sequence[object] | None, *, joins: bool, ordered: bool
) -> list[list[int]]:
    """The places of each part.

    Args:
        made: the items.
        keys: those of all items of the batch, by index, if order matters.
        joins: whether items with the same name form one command.
        ordered: whether the order within a name must be kept.
    """
    places = range(len(made.indices))
    waves = [places] if keys is None else _waves(made, keys, joins=joins, ordered=ordered)
    return [part for wave in waves for part in _cut(wave, made.sizes)]


def _waves(
    made: RedisItems, keys: Sequence[object], *, joins: bool, ordered: bool
) -> list[list[int]]:
    last: dict[object, tuple[bytes, int]] = {}
    highest: dict[bytes, int] = {}
    found: list[list[int]] = []
    for place, index in enumerate(made.indices):
        key, name = accepted(keys[index]), made.names[place]
        before, wave = last.get(key, (b"", -1))
        if not (joins and before == name):
            wave += 1
        if ordered:
            highest[name] = wave = max(wave, highest.get(name, 0))
        last[key] = name, wave
        while len(found) <= wave:
            found.append([])
        found[wave].append(place)
    return found


def _cut(places: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    parts: list[list[int]] = []
    room = 0
    for place in places:
        if not parts or sizes[place] > room:
            parts.append([])
            room = PART_BYTES
        parts[-1].append(place)
        room -= sizes[place]
    return parts
