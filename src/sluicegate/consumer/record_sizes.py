"""The size of a record in the window: the length of its value, or the result of a function."""

from __future__ import annotations

from operator import attrgetter
from operator import index as whole
from typing import TYPE_CHECKING

from .._core.runtime.loops import Exit
from .._core.source import UndecodableRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .._core.source import SourceRecord


_value = attrgetter("value")


class RecordSizes:
    """Sizes of records. If the function fails for a record, its size is that of its value."""

    def __init__(self, size_of: Callable[[SourceRecord], int] | None) -> None:
        self._size_of = size_of
        self.errors: dict[int, BaseException] = {}
        """Errors of the function in the last call of `of`, by the record's offset."""

    def of(self, records: Sequence[SourceRecord]) -> Sequence[int]:
        """Return the sizes of records, in bytes."""
        self.errors.clear()
        if (size_of := self._size_of) is not None:
            return [self._measured(record, size_of) for record in records]
        try:
            return [*map(len, map(_value, records))]
        except TypeError:  # such as the value of a tombstone
            return [size_of_value(record.value) for record in records]

    def _measured(self, record: SourceRecord, size_of: Callable[[SourceRecord], int]) -> int:
        try:
            size = whole(size_of(record))
            if size < 0:
                raise ValueError(f"size_of returned {size}; it must be at least 0")
        except BaseException as error:
            if isinstance(error, Exit):
                raise
            if type(record) is UndecodableRecord:
                return size_of_value(record.value)
            self.errors[record.offset] = error
            return size_of_value(record.value)
        return size


def size_of_value(value: object) -> int:
    """Return the size of a value in bytes; 0 for a value without a length."""
    try:
        return len(value)  # type: ignore[arg-type]
    except TypeError:
        return 0
