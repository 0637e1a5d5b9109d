"""Queries about a log: how far it can be read, its subscriptions, and their unread messages by slot.

1. Each query is bounded, or ends at its timeout.
2. Cursors are a subquery with the columns `slot`, `position` (everything before it is read) and
   `earlier` (positions that are not delivered).
3. Each slot is one index probe, from its position to the horizon, which is read in an earlier
   statement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..client.names import quoted
from .selection import StreamSelection
from .stats import Backlog, HorizonStats, SlotStats, SubscriptionStats, TableStats

if TYPE_CHECKING:
    from ..records.access import SchemaAccess


GIVEN = (
    "SELECT g.slot, g.position, $3::bigint[] AS earlier "
    "FROM unnest($1::smallint[], $2::bigint[]) AS g(slot, position)"
)
"""Cursors given as parameters: slots, positions, and positions that are not delivered."""

AGE = "greatest(extract(epoch FROM clock_timestamp()) - extract(epoch FROM r.at), 0)::float8"
"""Seconds since `r` was appended, by the server's clock."""
TABLES = ("message", "parked", "stream_end", "subscription", "subscription_member", "subscription_skip", "subscription_slot")  # fmt: skip
_HORIZON = """
SELECT {schema}.horizon() AS position,
  (SELECT last_value - (NOT is_called)::int FROM {schema}.position) AS last,
  (SELECT extract(epoch FROM clock_timestamp() - min(a.xact_start))::float8
   FROM {schema}.appender p JOIN pg_stat_activity a USING (pid)) AS appender_age
"""
_SUBSCRIPTIONS = """
SELECT u.name, u.selection, u.paused,
  CASE WHEN EXISTS (SELECT FROM {schema}.subscription_slot s WHERE s.name = u.name AND s.epoch > 0)
   THEN (SELECT count(*) FROM {schema}.subscription_member m
    WHERE m.name = u.name AND m.seen_at > clock_timestamp() - make_interval(secs => $1))
   END AS members,
  (SELECT count(*) FROM {schema}.subscription_slot s WHERE s.name = u.name AND s.paused) AS slots,
  (SELECT coalesce(sum(s.missed), 0)::bigint FROM {schema}.subscription_slot s
   WHERE s.name = u.name) AS missed
FROM {schema}.subscription u ORDER BY u.name
"""
_WAITING = (
    "count(*) AS waiting, "
    "count(*) FILTER (WHERE c.lease_until IS NULL OR c.lease_until <= clock_timestamp()) AS unowned, "
    f"max({AGE}) AS seconds"
)
_SLOTS = """
SELECT s.slot, s.position, c.messages, o.position, o.message, coalesce(o.age, 0), l.owner, l.seconds_left,
  u.paused OR s.paused, s.missed,
  EXISTS (SELECT FROM {schema}.message m
    WHERE m.slot = s.slot AND m.position >= s.position AND m.position > $2
      AND m.position <> ALL (u.earlier) AND {condition})
FROM {schema}.subscription u
JOIN {schema}.subscription_slot s ON s.name = u.name
LEFT JOIN LATERAL (
  SELECT m.position, format('%s, version %s of the stream %s', m.type, m.version, m.stream) AS message,
    greatest(extract(epoch FROM clock_timestamp()) - extract(epoch FROM m.at), 0)::float8 AS age
  FROM {schema}.message m
  WHERE m.slot = s.slot AND m.position >= s.position AND m.position <= $2
    AND m.position <> ALL (u.earlier) AND {condition}
  ORDER BY m.position LIMIT 1) o ON true
CROSS JOIN LATERAL (
  SELECT count(*) AS messages FROM (
    SELECT FROM {schema}.message m
    WHERE m.slot = s.slot AND m.position >= s.position AND m.position <= $2
      AND m.position <> ALL (u.earlier) AND {condition} LIMIT $3) f) c
LEFT JOIN LATERAL (
  SELECT s.owner, extract(epoch FROM s.lease_until - clock_timestamp())::float8 AS seconds_left
  WHERE s.lease_until > clock_timestamp()) l ON true
WHERE u.name = $1 ORDER BY s.slot
"""
_PARKED = """
SELECT consumer, count(DISTINCT queue) AS keys FROM {schema}.parked
WHERE right(consumer, 9) <> ' (unpark)' GROUP BY consumer
"""  # without requests to unpark
_TABLES = """
SELECT relname AS name, n_live_tup AS live, n_dead_tup AS dead, pg_total_relation_size(relid) AS size
FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = ANY ($2::text[]::name[])
"""


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


class StoredSubscription(NamedTuple):
    """A stored subscription, without its backlog."""

    selection: str
    stats: SubscriptionStats


class LogQueries:
    """Queries about the log of a schema. They suspend, and raise the errors of `SchemaAccess`."""

    def __init__(self, access: SchemaAccess) -> None:
        self._access = access
        self._schema = access.schema

    async def horizon(self) -> HorizonStats:
        """Return how far the log can be read. Call it before `backlog`."""
        ((position, last, age),) = await self._access.rows(_HORIZON)
        return HorizonStats(position, last, age)

    async def subscriptions(self, lease: float) -> dict[str, StoredSubscription]:
        """Return all subscriptions, without their backlogs."""
        return {
            name: StoredSubscription(
                selection, SubscriptionStats(members, is_paused, slots, missed, None)
            )
            for name, selection, is_paused, members, slots, missed in await self._access.rows(
                _SUBSCRIPTIONS, lease
            )
        }

    async def backlog(self, name: str, selection: str, horizon: int, most: int) -> Backlog:
        """Return a subscription's backlog up to the horizon; counts at most `most` messages."""
        chosen = StreamSelection.parse(selection)
        values = chosen.parameters
        places = [f"${3 + number}::text[]" for number in range(len(values))]
        schema = quoted(self._schema)
        unread = UnreadQueries(
            schema, stored_cursors(schema), chosen.condition("m", places), "$2::bigint"
        )
        query = unread.oldest(_WAITING)
        ((waiting, unowned, seconds),) = await self._access.rows(query, name, horizon, *values)
        messages = 0
        if waiting:
            ((messages,),) = await self._access.rows(
                unread.count(str(most)), name, horizon, *values
            )
        return Backlog(messages, seconds or 0.0, waiting, unowned)

    async def slots(self, name: str, selection: str, horizon: int, most: int) -> list[SlotStats]:
        """Return the slots of a subscription; counts at most `most` messages in each."""
        chosen = StreamSelection.parse(selection)
        query = _chosen(_SLOTS, chosen, 4)
        rows = await self._access.rows(query, name, horizon, most, *chosen.parameters)
        return [SlotStats(*row) for row in rows]

    async def parked_keys(self) -> dict[str, int]:
        """Return the number of parked keys by consumer."""
        return dict(await self._access.rows(_PARKED))

    async def tables(self) -> dict[str, TableStats]:
        """Return statistics of the tables of the schema."""
        rows = await self._access.rows(_TABLES, self._schema, [*TABLES])
        return {name: TableStats(live, dead, size) for name, live, dead, size in rows}


def _chosen(query: str, selection: StreamSelection, first: int) -> str:
    """Return the query with the condition of a selection; its parameters begin with this number."""
    places = [f"${first + number}::text[]" for number in range(len(selection.parameters))]
    return query.replace("{condition}", selection.condition("m", places))


# ruff: noqa: S608  # a quoted name, and conditions of the library
