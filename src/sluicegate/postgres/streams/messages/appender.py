"""The open transaction that holds the horizon of a log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class OpenAppender:
    """A transaction that holds the horizon."""

    pid: int
    application: str
    user: str | None
    state: str | None
    age: float | None
    """Seconds since it began; `None` if the role may not see it."""

    def __str__(self) -> str:
        application = f"application {self.application!r}" if self.application else None
        user = f"user {self.user!r}" if self.user else None
        age = f"open for {self.age:.0f} s" if self.age is not None else None
        return ", ".join(filter(None, [f"pid {self.pid}", application, user, self.state, age]))


def oldest_appender(schema: str) -> str:
    """Return the query for the oldest one; `schema` is a quoted name."""
    return (
        "SELECT p.pid, coalesce(s.application_name, '') AS application, "  # noqa: S608
        "s.usename::text AS user, s.state, "
        "extract(epoch FROM clock_timestamp() - s.xact_start)::float8 AS age "
        f"FROM {schema}.appender p LEFT JOIN pg_stat_activity s USING (pid) "
        "ORDER BY p.mark, s.xact_start LIMIT 1"
    )


def appender_of(rows: Sequence[Any]) -> OpenAppender | None:
    """Return the appender of a row; `None` if no appending transaction is open."""
    return OpenAppender(*rows[0]) if rows else None
