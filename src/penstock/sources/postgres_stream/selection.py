"""What a subscription reads of a log: everything, a category, or streams by name or wildcard. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ..._clients.postgres.names import literal
from ..._core import checks
from ..._core.checks import bad
from ..._core.subscriptions import SLOTS

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST_TOPIC = 200
"""Characters; the name of a longer selection ends in a digest of it."""
_WILD = "*"
_STREAMS = 'must be names of streams, of which parts may be "*", as in "order-*"'


@dataclass(frozen=True, slots=True)
class Selection:
    """A choice of messages by their streams. Without any, everything."""

    schema: str
    category: str | None = None
    names: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    """Names in which `*` stands for any characters, also none."""

    @classmethod
    def of(cls, schema: object, category: object, streams: object) -> Selection:
        """Check the arguments. Raises `ConfigError`."""
        place = checks.text("schema", schema)
        if category is not None:
            if streams is not None:
                raise bad("streams", streams, "leave out either streams= or category=")
            name = checks.text("category", category)
            if "-" in name or _WILD in name:
                rule = "must be what precedes the first '-' of a stream's name; for others streams="
                raise bad("category", category, rule)
            return cls(place, name)
        if streams is None:
            return cls(place)
        given = [streams] if isinstance(streams, str) else streams
        if not isinstance(given, Iterable):
            raise bad("streams", streams, _STREAMS)
        listed = sorted({checks.text("streams", each) for each in cast("Iterable[object]", given)})
        if not listed:
            raise bad("streams", streams, _STREAMS)
        names = tuple(each for each in listed if _WILD not in each)
        return cls(place, None, names, tuple(each for each in listed if _WILD in each))

    @property
    def is_all(self) -> bool:
        """Whether everything is read."""
        return self.category is None and not (self.names or self.patterns)

    @property
    def slots(self) -> Sequence[int]:
        """The slots that can have messages of these streams."""
        if self.names and not self.patterns:
            return sorted({slot_of(name) for name in self.names})
        return range(SLOTS)

    @property
    def condition(self) -> str:
        """What is true in SQL for the messages, of the table `m`."""
        if self.category is not None:
            return f"m.category = {literal(self.category)}"
        streams = [f"m.stream LIKE {literal(_like(each))}" for each in self.patterns]
        if self.names:
            streams.append(f"m.stream IN ({', '.join(map(literal, self.names))})")
        if not streams:
            return "true"
        among = f"({' OR '.join(streams)})"
        category = self._common_category()
        return among if category is None else f"m.category = {literal(category)} AND {among}"

    def _common_category(self) -> str | None:
        """The category that all these streams are in, if their names show one."""
        found = {each.partition("-")[0] for each in (*self.names, *self.patterns)}
        shows = all("-" in each for each in self.patterns)
        (category, *others) = found
        return category if shows and not others and _WILD not in category else None

    @property
    def topic(self) -> str:
        """The name of the selection, as the topic of its records."""
        if self.is_all:
            return self.schema
        full = f"{self.schema}:{self.category or ','.join((*self.names, *self.patterns))}"
        if len(full) <= LONGEST_TOPIC:
            return full
        digest = hashlib.sha256(full.encode()).hexdigest()[:16]
        return f"{full[: LONGEST_TOPIC - 17]}:{digest}"

    def __str__(self) -> str:
        if self.category is not None:
            return f"category {self.category!r}"
        streams = ", ".join(map(repr, (*self.names, *self.patterns)))
        return f"streams {streams}" if streams else "all streams"


def slot_of(stream: str) -> int:
    """The slot of a stream, as the log computes it."""
    return hashlib.sha256(stream.encode()).digest()[0]


def _like(pattern: str) -> str:
    """A pattern of LIKE."""
    for special in "\\%_":
        pattern = pattern.replace(special, f"\\{special}")
    return pattern.replace(_WILD, "%")
