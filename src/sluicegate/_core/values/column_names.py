"""Names of columns, as arguments of sinks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ..checks import bad


def column_names(name: str, value: object) -> tuple[str, ...]:
    """Check a sequence of distinct column names. Raises `ConfigError`."""
    rule = "must be a sequence of at least one column name, without repetitions"
    if isinstance(value, str):
        listed = tuple(each.strip() for each in value.split(","))
        raise bad(name, value, f"{rule}; write {name}={listed!r}")
    if isinstance(value, bytes) or not isinstance(value, Sequence):
        raise bad(name, value, rule)
    named = cast("Sequence[str]", value)
    found = tuple(named)
    if not found or len(set(found)) != len(found):
        raise bad(name, named, rule)
    for each in found:
        check_name(name, each)
    return found


def optional_names(name: str, value: object) -> tuple[str, ...] | None:
    """Like `column_names`, but accept `None`."""
    return None if value is None else column_names(name, value)


def check_name(name: str, value: object) -> None:
    """Check one name. Raises `ConfigError`."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise bad(name, value, "must be a name: text that is not empty, without NUL")
