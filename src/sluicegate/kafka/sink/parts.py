"""The sources of a record's parts: fields of the item, where they are given by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..._core import checks
from ..._core.values.encoding import getter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..._core.values.encoding import Getter


@dataclass(frozen=True, slots=True)
class RecordParts:
    """The parts that are given as a field or a function; the others have their defaults."""

    given: frozenset[str]
    fields: Mapping[str, str]
    """Field names by argument."""

    @classmethod
    def of(cls, **arguments: object) -> RecordParts:
        """Find the field names among the validated arguments."""
        given = frozenset(name for name, value in arguments.items() if value is not None)
        return cls(given, {n: value for n, value in arguments.items() if isinstance(value, str)})

    @property
    def has_place(self) -> bool:
        """Whether each record has its own key or partition."""
        return not self.given.isdisjoint({"key", "partition"})


def part(name: str, value: object) -> Getter | None:
    """The function that gets a part from an item; `None` if none is given. Raises `ConfigError`."""
    if callable(value):
        checks.optional_function(name, value, "must be a field's name or a function of an item")
    return getter(name, value)
