"""Queries for the unread messages of a log by slot: the oldest one, and their number.

1. Cursors are a subquery with the columns `slot`, `position` (everything before it is read) and
   `earlier` (positions that are not delivered).
2. Each slot is one index probe, from its position to the horizon, which is read in an earlier
   statement.
"""

# ruff: noqa: S608  # a quoted name, and conditions of the library

from __future__ import annotations

from dataclasses import dataclass

GIVEN = (
    "SELECT g.slot, g.position, $3::bigint[] AS earlier "
    "FROM unnest($1::smallint[], $2::bigint[]) AS g(slot, position)"
)
"""Cursors given as parameters: slots, positions, and positions that are not delivered."""

AGE = "greatest(extract(epoch FROM clock_timestamp()) - extract(epoch FROM r.at), 0)::float8"
"""Seconds since `r` was appended, by the server's clock."""


def stored_cursors(schema: str) -> str:
    """Return a query for the cursors of the subscription `$1`, with `lease_until`."""
    return (
        "SELECT s.slot, s.position, u.earlier, s.lease_until "
        f"FROM {schema}.subscription u JOIN {schema}.subscription_slot s USING (name) "
        "WHERE name = $1"
    )


@dataclass(frozen=True, slots=True)
class UnreadQueries:
    """Queries for these cursors; `schema` is a quoted name."""

    schema: str
    cursors: str
    condition: str
    """The condition of the selection on a row `m` of the table of messages."""
    horizon: str
    """The placeholder of the horizon, such as `$2`."""

    def oldest(self, columns: str) -> str:
        """Return a query for the oldest unread message of each slot that has any.

        `columns` may use the cursor `c` and the message `r`, which has `at`.
        """
        return (
            f"SELECT {columns} FROM ({self.cursors}) AS c CROSS JOIN LATERAL "
            f"(SELECT m.at {self._unread} ORDER BY m.position LIMIT 1) AS r"
        )

    def by_slot(self, most: str) -> str:
        """Return a query with a row for each slot with unread messages.

        Its columns are `slot`, `messages` (at most `most`, a placeholder or a number) and
        `seconds`, the age of the oldest.
        """
        counted = f"SELECT count(*) FROM (SELECT {self._unread} LIMIT {most}) AS f"
        return self.oldest(f"c.slot, ({counted}) AS messages, {AGE} AS seconds")

    def count(self, most: str) -> str:
        """Return a query for `messages`, the number of unread ones in all slots, at most `most`."""
        return (  # the inner limit prevents the planner from reading the whole log for a join
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
