"""Items as entries of streams: `XADD`, and `XRANGE` to look up an entry. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from .._core.errors import PermanentError, RefusedError, TooLargeError
from .._core.text import repr_of
from .._core.values.encoding import item_error
from .commands import Command, bulk, joined, packed
from .items import RedisItems, name_of
from .values import LONGEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .._core.errors import SinkError
    from .._core.values.encoding import Getter

_ID = re.compile(rb"(\d{1,20})(?:-(\d{1,20}|\*))?")
AUTO = b"*"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamForm:
    """The conversion of items to entries.

    `maxlen` and `max_age` (seconds) trim, exactly unless `approximate`; `id` determines the ids of
    entries.
    """

    name: str | Callable[[Any], Any]
    fields: Callable[[Any], Sequence[bytes]]
    id: Getter | None
    maxlen: int | None
    max_age: float | None
    approximate: bool
    create: bool
    ignores_known: bool

    joins = False

    @property
    def ordered(self) -> bool:
        """Whether entries must stay in order."""
        return self.id is not None

    def prepared(self, items: Iterable[Any]) -> RedisItems:
        """Convert all items to entries. Does not suspend."""
        made = RedisItems()
        for index, item in enumerate(items):
            try:
                name = name_of(self.name, item)
                values = self.fields(item)
                if not values:
                    raise ValueError("an entry requires at least one field, and this one has none")
                entry_id = AUTO if self.id is None else self._id(self.id(item))
            except Exception as error:
                made.errors[index] = item_error("cannot become an entry", error)
                continue
            if (size := sum(map(len, values))) > LONGEST:
                made.errors[index] = too_large(size)
                continue
            made.indices.append(index)
            made.names.append(name)
            made.values.append(values)
            made.ids.append(entry_id)
            made.sizes.append(size)
        return made

    def commands(self, made: RedisItems, places: Iterable[int], now: float) -> list[Command]:
        """An `XADD` for each place; `now` is in seconds since 1970."""
        options = self._options(now)
        count, heads = 3 + len(options), dict[bytes, bytes]()
        found: list[Command] = []
        for place in places:
            name, values = made.names[place], made.values[place]
            if (head := heads.get(name)) is None:
                head = heads[name] = b"".join(map(bulk, (b"XADD", name, *options)))
            data = joined(count + len(values), (head, bulk(made.ids[place]), *values))
            found.append(Command(name, (place,), data))
        return found

    def detail(self, answer: object, name: bytes) -> str | SinkError | None:
        """The id of the new entry, an error for a missing stream, or `None` for an invalid reply."""
        if answer is None:
            told = f"there is no stream {name!r}, and create=False"
            return RefusedError(told, repair=f"create the stream {name!r}, or leave create=True")
        return answer.decode() if isinstance(answer, bytes) else None

    def lookups(self, made: RedisItems, places: Iterable[int]) -> list[Command]:
        """An `XRANGE` for each entry that has its own id."""
        return [
            Command(
                made.names[place],
                (place,),
                packed(b"XRANGE", made.names[place], made.ids[place], made.ids[place]),
            )
            for place in places
        ]

    def _options(self, now: float) -> list[bytes]:
        options = [] if self.create else [b"NOMKSTREAM"]
        how = b"~" if self.approximate else b"="
        if self.maxlen is not None:
            options += [b"MAXLEN", how, b"%d" % self.maxlen]
        if self.max_age is not None:
            options += [b"MINID", how, b"%d" % max(0, 1000 * (now - self.max_age))]
        return options

    def _id(self, given: object) -> bytes:
        made = _id_text(given)
        if made == AUTO and not self.ignores_known:
            return AUTO
        found = _ID.fullmatch(made)
        if found is None:
            rule = "expected milliseconds, or milliseconds-number"
            raise ValueError(f"{repr_of(given)} is not an entry id; {rule}")
        milliseconds, number = found[1], found[2] or b"0"
        if number == AUTO and self.ignores_known:
            raise ValueError('on_conflict="ignore" requires complete ids, such as 1700000000000-0')
        return milliseconds + b"-" + number


def _id_text(given: object) -> bytes:
    """The id as text; empty for a value that cannot be an id."""
    if given is None:
        return AUTO
    if isinstance(given, int) and not isinstance(given, bool):
        return b"%d" % given
    made = given.encode() if isinstance(given, str) else given
    return made if isinstance(made, bytes) else b""


def too_large(size: int) -> PermanentError:
    """The error of a value that exceeds the limit of any server."""
    return TooLargeError(f"{size:,} bytes are more than Redis accepts in one value ({LONGEST:,})")


def same_entry(answer: object, values: Sequence[bytes]) -> bool | None:
    """Whether a lookup's reply has an entry with these fields; `None` if it has no entry."""
    entries = cast("list[Any]", answer) if isinstance(answer, list) else []
    return [*map(bulk, entries[0][1])] == [*values] if entries else None
