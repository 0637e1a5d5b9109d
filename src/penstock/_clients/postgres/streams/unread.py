"""The queries for unread messages of a log, slot by slot: the oldest one, and how many there are.

1. Cursors are a query of their own, with the columns `slot`, `position` (everything before it is
   read) and `earlier` (positions that are not delivered).
2. Each slot is a probe of its index behind its position, up to the horizon, which is read in an
   earlier statement.
"""

# ruff: noqa: S608  # a quoted name, and conditions of the library's own

from __future__ import annotations

from dataclasses import dataclass

GIVEN = (
    "SELECT g.slot, g.position, $3::bigint[] AS earlier "
    "FROM unnest($1::smallint[], $2::bigint[]) AS g(slot, position)"
)
"""Cursors of parameters: slots, positions and what is not delivered."""

AGE = "greatest(extract(epoch FROM clock_timestamp() - r.at), 0)::float8"
"""Seconds since `r` was appended, by the server's clock."""


def stored_cursors(schema: str) -> str:
    """Cursors of the subscription `$1`, with `lease_until`."""
    return (
        "SELECT s.slot, s.position, u.earlier, s.lease_until "
        f"FROM {schema}.subscription u JOIN {schema}.subscription_slot s USING (name) "
        "WHERE name = $1"
    )


@dataclass(frozen=True, slots=True)
class UnreadQueries:
    """The queries for these cursors; `schema` is a quoted name."""

    schema: str
    cursors: str
    condition: str
    """On a row `m` of the table of messages: the selection."""
    horizon: str
    """The parameter that has the horizon, as `$2`."""

    def oldest(self, columns: str) -> str:
        """These columns of the cursors `c` and the oldest unread message `r`, which has `at`; a row
        for each slot that has one.
        """
        return (
            f"SELECT {columns} FROM ({self.cursors}) AS c CROSS JOIN LATERAL "
            f"(SELECT m.at {self._unread} ORDER BY m.position LIMIT 1) AS r"
        )

    def by_slot(self, most: str) -> str:
        """A row for each slot with unread messages: `slot`, `messages`, at most `most` (a parameter
        or a number), and
        `seconds`, the age of the oldest.
        """
        counted = f"SELECT count(*) FROM (SELECT {self._unread} LIMIT {most}) AS f"
        return self.oldest(f"c.slot, ({counted}) AS messages, {AGE} AS seconds")

    def count(self, most: str) -> str:
        """How many messages are unread in all slots, `messages`, at most `most`."""
        return (  # the inner limit keeps the planner from reading the whole log for a join
            f"SELECT count(*) AS messages FROM (SELECT FROM ({self.cursors}) AS c "
            f"CROSS JOIN LATERAL (SELECT {self._unread} LIMIT {most}) AS r LIMIT {most}) AS f"
        )

    @property
    def _unread(self) -> str:
        return (
            f"FROM {self.schema}.message m WHERE m.slot = c.slot AND m.position >= c.position "
            f"AND m.position <= {self.horizon} AND m.position <> ALL (c.earlier) "
            f"AND {self.condition}"
        )
