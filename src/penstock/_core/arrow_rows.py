"""Rows of a record batch: a value without a Python equivalent affects only its own row.

1. Some Arrow values have no Python equivalent: text that is not UTF-8, dates and timestamps outside
   the years 1 to 9999, times in zones that Python does not know. `to_pylist` raises for the whole
   column.
2. Rows are then created value by value. An *unreadable* row is refused with `PermanentError`, which
   names the column and the reason.
3. A dead letter shows an unreadable value as text: bytes that are not UTF-8 as escapes, dates and
   timestamps in ISO 8601 with their actual year.
"""

from __future__ import annotations

from typing import Any

from .errors import PermanentError

_DAYS_OF_CYCLE = 146_097
"""Period of the calendar, in days: 400 years."""
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


class UnreadableRows(PermanentError):
    """Some rows of a batch hold values without a Python equivalent."""


def values_of(column: Any) -> tuple[list[Any], dict[int, str]]:
    """Return a column's values, with unreadable ones as text, and the reasons for these."""
    try:
        return column.to_pylist(), {}
    except Exception:
        return _one_by_one(column)


def rows_of(record_batch: Any) -> tuple[list[dict[str, Any]], dict[int, PermanentError]]:
    """Return all rows as dictionaries, with unreadable values as text, and their errors."""
    try:
        return record_batch.to_pylist(), {}
    except Exception:
        names: list[str] = record_batch.schema.names
    columns: list[list[Any]] = []
    errors: dict[int, PermanentError] = {}
    for place, name in enumerate(names):
        values, unreadable = values_of(record_batch.column(place))
        columns.append(values)
        for index, why in unreadable.items():
            errors.setdefault(index, refusal(name, why))
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)], errors


def refusal(name: str, why: str) -> PermanentError:
    """Return the error of a row whose value in this column cannot be written."""
    return PermanentError(f"column {name!r}: {why}")


def _one_by_one(column: Any) -> tuple[list[Any], dict[int, str]]:
    values: list[Any] = []
    unreadable: dict[int, str] = {}
    for index, scalar in enumerate(column):
        try:
            values.append(scalar.as_py())
        except Exception as error:
            values.append(_shown(scalar))
            unreadable[index] = _reason(scalar, error)
    return values, unreadable


def _reason(scalar: Any, error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "holds bytes that are not UTF-8"
    return f"holds a {scalar.type} that Python has no object for ({type(error).__name__}: {error})"


def _shown(scalar: Any) -> Any:
    """Return an unreadable value as text, or as a list or dictionary of its parts."""
    kind = str(scalar.type)
    if hasattr(scalar, "as_buffer"):
        return scalar.as_buffer().to_pybytes().decode("utf-8", "backslashreplace")
    if kind.startswith("struct"):
        return {name: _one_by_one([each])[0][0] for name, each in scalar.items()}
    if hasattr(scalar, "values") and scalar.values is not None:
        return values_of(scalar.values)[0]
    if kind.startswith("date32"):
        return _date(scalar.value)
    if kind.startswith("date64"):
        return _date(scalar.value // 86_400_000)
    if kind.startswith("timestamp"):
        return _moment(scalar.value, scalar.type.unit) + ("Z" if scalar.type.tz else "")
    return str(getattr(scalar, "value", scalar))


def _moment(value: int, unit: str) -> str:
    seconds, rest = divmod(value, _PER_SECOND[unit])
    days, second = divmod(seconds, 86_400)
    fraction = f".{rest:0{len(str(_PER_SECOND[unit])) - 1}d}" if rest else ""
    return f"{_date(days)}T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}{fraction}"


def _date(days: int) -> str:
    """Format days since 1970-01-01 in ISO 8601, proleptic Gregorian; the year before 1 is 0."""
    # counted from 0000-03-01, so that a leap day is the last day of its year
    cycles, day = divmod(days + 719_468, _DAYS_OF_CYCLE)
    years = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * years + years // 4 - years // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5
    year = years + 400 * cycles + (month > 9)
    sign = "-" if year < 0 else ""
    return f"{sign}{abs(year):04d}-{(month + 2) % 12 + 1:02d}-{day + 1:02d}"
