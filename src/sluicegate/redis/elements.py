"""Items as elements of lists: `RPUSH` or `LPUSH`, and `LTRIM`. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .._core.errors import RefusedError
from .._core.values.encoding import item_error
from .commands import Command, bulk, joined, packed
from .items import RedisItems, name_of
from .stream import too_large
from .values import LONGEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .._core.errors import SinkError


@dataclass(frozen=True, slots=True, kw_only=True)
class ListForm:
    """The conversion of items to elements, the end of the list where they are pushed, and the limit
    on its length.
    """

    name: str | Callable[[Any], Any]
    element: Callable[[Any], bytes]
    push: Literal["right", "left"]
    maxlen: int | None
    create: bool

    joins = True
    ordered = False
    ignores_known = False

    def prepared(self, items: Iterable[Any]) -> RedisItems:
        """Convert all items to elements. Does not suspend."""
        made = RedisItems()
        for index, item in enumerate(items):
            try:
                name, value = name_of(self.name, item), self.element(item)
            except Exception as error:
                made.errors[index] = item_error("cannot become an element", error)
                continue
            if len(value) > LONGEST:
                made.errors[index] = too_large(len(value))
                continue
            made.indices.append(index)
            made.names.append(name)
            made.values.append((value,))
            made.sizes.append(len(value))
        return made

    def commands(self, made: RedisItems, places: Iterable[int], now: float) -> list[Command]:
        """One push for all elements of each list, followed by a trim if there is a limit."""
        of_name: dict[bytes, list[int]] = {}
        for place in places:
            of_name.setdefault(made.names[place], []).append(place)
        verb = (b"R" if self.push == "right" else b"L") + b"PUSH" + (b"" if self.create else b"X")
        found: list[Command] = []
        for name, own in of_name.items():
            elements = [made.values[place][0] for place in own]
            data = joined(2 + len(own), (bulk(verb), bulk(name), *elements))
            found.append(Command(name, own, data))
            if self.maxlen is not None:
                kept = (-self.maxlen, -1) if self.push == "right" else (0, self.maxlen - 1)
                trim = packed(b"LTRIM", name, *(b"%d" % at for at in kept))
                found.append(Command(name, (), trim))
        return found

    def detail(self, answer: object, name: bytes) -> str | SinkError | None:
        """`""` for stored elements, an error for a missing list, or `None` for an invalid reply."""
        if answer == 0:
            told = f"there is no list {name!r}, and create=False"
            return RefusedError(told, repair=f"create the list {name!r}, or leave create=True")
        return "" if isinstance(answer, int) else None

    def lookups(self, made: RedisItems, places: Iterable[int]) -> list[Command]:
        """Empty: elements have no ids."""
        return []
