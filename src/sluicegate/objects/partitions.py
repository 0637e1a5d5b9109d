"""The folder of each item's partition, in Hive's form: `day=2026-01-31/shop=12`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from .._core.arrow import UnreadableRows, rows_of
from .._core.checks import bad, function
from .._core.errors import PermanentError
from .._core.values.encoding import getter, item_error
from .._core.values.rows import check_name, column_names

if TYPE_CHECKING:
    from .._core.arrow import ArrowBatch
    from .._core.values.encoding import Getter

NONE = "__HIVE_DEFAULT_PARTITION__"
"""Hive's partition name for rows without a value."""
_LONGEST = 255
"""Maximum length of a folder's name on file systems, in bytes."""


class Partitions:
    """Determines the folder of an item from its fields or from functions of it."""

    def __init__(self, getters: Mapping[str, Getter], fields: Sequence[str] | None = ()) -> None:
        self._getters = getters
        self._fields = fields
        """The fields that the getters read; `None` if a function may read any field."""

    @classmethod
    def of(cls, given: object) -> Partitions:
        """Validate `partition_by`: field names, or a mapping from names to fields or functions.
        Raises `ConfigError`.
        """
        if given is None:
            return cls({})
        if isinstance(given, Mapping):
            named = cast("Mapping[str, object]", given)
            for name in named:
                check_name("partition_by", name)
            if not named:
                raise bad("partition_by", named, "must name at least one column")
            rule = "must be a field's name, or a function of an item"
            getters = {
                name: _check(f"partition_by[{name!r}]", value, rule)
                for name, value in named.items()
            }
            fields = [value for value in named.values() if isinstance(value, str)]
            return cls(getters, fields if len(fields) == len(named) else None)
        names = column_names("partition_by", given)
        return cls({name: _check("partition_by", name, "must be a name") for name in names}, names)

    @property
    def names(self) -> Sequence[str]:
        """The columns of the partitions."""
        return tuple(self._getters)

    def folder(self, item: Any) -> str:
        """The folder of one item, with a trailing slash. Raises for an invalid value."""
        return "".join(_folder(name, get(item)) for name, get in self._getters.items())

    def items_of(self, batch: ArrowBatch) -> Sequence[Any]:
        """The rows of a columnar batch, with only the required fields."""
        if self._fields is None:
            return batch.rows
        if not self._fields:
            return ()
        missing = [name for name in self._fields if name not in batch.record_batch.schema.names]
        if missing:
            raise PermanentError(f"the batch has no column {', '.join(map(repr, missing))}")
        rows, unreadable = rows_of(batch.record_batch.select([*dict.fromkeys(self._fields)]))
        for error in unreadable.values():
            raise UnreadableRows(str(error))
        return rows

    def groups(
        self, items: Sequence[Any], indices: Sequence[int]
    ) -> tuple[dict[str, Sequence[int]], dict[int, BaseException]]:
        """The given indices of `items` by folder, and an error for each item without a partition."""
        if not self._getters:
            return ({"": indices} if len(indices) else {}), {}
        groups: dict[str, list[int]] = {}
        errors: dict[int, BaseException] = {}
        for index in indices:
            try:
                folder = self.folder(items[index])
            except Exception as error:
                errors[index] = item_error("has no partition", error)
            else:
                groups.setdefault(folder, []).append(index)
        return dict(groups), errors


def _check(name: str, value: object, rule: str) -> Getter:
    if callable(value):
        return cast("Getter", function(name, value, rule))
    found = getter(name, value)
    if found is None:
        raise bad(name, value, rule)
    return found


def _folder(name: str, value: object) -> str:
    made = f"{quote(name, safe='')}={_text(value)}"
    if len(made) > _LONGEST:
        raise ValueError(
            f"the folder of a partition has {len(made)} bytes; the maximum is {_LONGEST}"
        )
    return made + "/"


def _text(value: object) -> str:
    if value is None:
        return NONE
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.isoformat()
    if not isinstance(value, (str, int)):
        raise TypeError(
            "a partition must be text, a whole number, a bool or a date, not "
            f"{type(value).__name__}"
        )
    if value in {"", NONE}:
        raise ValueError(f"a partition's value is {value!r}, which Hive interprets as no value")
    return quote(str(value), safe="")
