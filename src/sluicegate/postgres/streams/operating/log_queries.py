"""A monitor's queries about a log. Each query is bounded, or ends at its timeout."""

# the quoted name of the schema, and conditions of the library

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ...client.names import quoted
from ..messages.selection import StreamSelection
from ..messages.unread import AGE, UnreadQueries, stored_cursors
from .log_stats import Backlog, HorizonStats, SubscriptionStats, TableStats
from .slot_stats import SlotStats

if TYPE_CHECKING:
    from ...client.connections import Connections

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
SELECT s.slot, s.position, c.messages, o.position, coalesce(o.age, 0), l.owner, l.seconds_left,
  u.paused OR s.paused, s.missed, s.metadata <> '',
  EXISTS (SELECT FROM {schema}.message m
    WHERE m.slot = s.slot AND m.position >= s.position AND m.position > $2
      AND m.position <> ALL (u.earlier) AND {condition})
FROM {schema}.subscription u
JOIN {schema}.subscription_slot s ON s.name = u.name
LEFT JOIN LATERAL (
  SELECT m.position, greatest(extract(epoch FROM clock_timestamp()) - extract(epoch FROM m.at), 0)::float8 AS age
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
SELECT consumer, count(DISTINCT queue) AS keys FROM {schema}.parked GROUP BY consumer
"""
_TABLES = """
SELECT relname AS name, n_live_tup AS live, n_dead_tup AS dead, pg_total_relation_size(relid) AS size
FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = ANY ($2::text[]::name[])
"""


class StoredSubscription(NamedTuple):
    """A stored subscription, without its backlog."""

    selection: str
    stats: SubscriptionStats


class LogQueries:
    """Queries about the log of a schema. Methods suspend, and raise errors of the client."""

    def __init__(self, connections: Connections, schema: str) -> None:
        self._connections = connections
        self._schema = schema

    async def horizon(self) -> HorizonStats:
        """Return how far the log can be read. Call it before `backlog`."""
        ((position, last, age),) = await self._ask(_HORIZON)
        return HorizonStats(position, last, age)

    async def subscriptions(self, lease: float) -> dict[str, StoredSubscription]:
        """Return all subscriptions, without their backlogs."""
        return {
            name: StoredSubscription(
                selection, SubscriptionStats(members, is_paused, slots, missed, None)
            )
            for name, selection, is_paused, members, slots, missed in await self._ask(
                _SUBSCRIPTIONS, lease
            )
        }

    async def backlog(self, name: str, selection: str, horizon: int, most: int) -> Backlog:
        """Return a subscription's backlog up to the horizon; counts at most `most` messages."""
        chosen = StreamSelection.parsed(selection)
        values = chosen.parameters
        places = [f"${3 + number}::text[]" for number in range(len(values))]
        schema = quoted(self._schema)
        unread = UnreadQueries(
            schema, stored_cursors(schema), chosen.condition("m", places), "$2::bigint"
        )
        query = unread.oldest(_WAITING)
        ((waiting, unowned, seconds),) = await self._fetch(query, name, horizon, *values)
        messages = 0
        if waiting:
            ((messages,),) = await self._fetch(unread.count(str(most)), name, horizon, *values)
        return Backlog(messages, seconds or 0.0, waiting, unowned)

    async def slots(self, name: str, selection: str, horizon: int, most: int) -> list[SlotStats]:
        """Return the slots of a subscription; counts at most `most` messages in each."""
        chosen = StreamSelection.parsed(selection)
        query = _chosen(_SLOTS, chosen, 4)
        rows = await self._ask(query, name, horizon, most, *chosen.parameters)
        return [SlotStats(*row) for row in rows]

    async def parked_keys(self) -> dict[str, int]:
        """Return the number of parked keys by consumer."""
        return dict(await self._ask(_PARKED))

    async def tables(self) -> dict[str, TableStats]:
        """Return statistics of the tables of the schema."""
        rows = await self._ask(_TABLES, self._schema, [*TABLES])
        return {name: TableStats(live, dead, size) for name, live, dead, size in rows}

    async def _ask(self, query: str, *arguments: object) -> list[Any]:
        return await self._fetch(query.replace("{schema}", quoted(self._schema)), *arguments)

    async def _fetch(self, query: str, *arguments: object) -> list[Any]:
        async with self._connections.asking() as con:
            rows: list[Any] = await con.fetch(query, *arguments)
            return rows


def _chosen(query: str, selection: StreamSelection, first: int) -> str:
    """Return the query with the condition of a selection; its parameters begin with this number."""
    places = [f"${first + number}::text[]" for number in range(len(selection.parameters))]
    return query.replace("{condition}", selection.condition("m", places))
