"""Operate the subscriptions of a log: inspect them, and change their positions.

1. A change is one statement, and therefore atomic, even when its caller is cancelled.
2. A reset, a skip and a forced deletion increase epochs or move positions, so a process that serves
   the subscription cannot store results of earlier reads.
3. The target of a reset is computed as at a subscription's first start: the horizon first, messages
   in a later statement.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..._core import checks
from ..._core.checks import bad
from ..._core.errors import RefusedError, SluicegateError
from ..._core.keywords import known_arguments
from ..._core.logs import log_safely
from ..._core.subscriptions import SLOTS
from ..client.access import PostgresAccess
from ..client.names import quoted
from ..records.access import SchemaAccess, SchemaObject, appender_of, nearest, oldest_appender
from ..schema.opened import DEFAULT_SCHEMA
from .message import COLUMNS, UndecodableMessage, stored_message
from .queries import LogQueries
from .selection import StreamSelection
from .stats import SubscriptionReport

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import timedelta

    from .message import StoredMessage
    from .queries import StoredSubscription
    from .stats import HorizonStats, SubscriptionStats


logger = logging.getLogger("sluicegate.postgres")

COUNT_TO = 1_000_000
"""Default limit for counting unhandled messages."""
LEFT_OUT = 100_000
"""Maximum number of messages that a reset excludes by their positions."""

_PAUSE = "UPDATE {schema}.subscription SET paused = true WHERE name = $1"
_PAUSE_SLOTS = """
WITH rows AS (
  SELECT slot FROM {schema}.subscription_slot WHERE name = $1 AND slot = ANY ($2::smallint[])
  ORDER BY slot FOR NO KEY UPDATE
)
UPDATE {schema}.subscription_slot s SET paused = $3 FROM rows r WHERE s.name = $1 AND s.slot = r.slot
"""
_RESUME = """
WITH whole AS (UPDATE {schema}.subscription SET paused = false WHERE name = $1), rows AS (
  SELECT slot FROM {schema}.subscription_slot WHERE name = $1 AND paused
  ORDER BY slot FOR NO KEY UPDATE
)
UPDATE {schema}.subscription_slot s SET paused = false FROM rows r
WHERE s.name = $1 AND s.slot = r.slot
"""
_RESET = "SELECT * FROM {schema}.reset_subscription($1, $2, $3, $4, $5, $6, $7)"
_DELETE = "SELECT * FROM {schema}.delete_subscription($1, $2, $3)"
_SKIP = "SELECT * FROM {schema}.skip_message($1, $2, $3)"
_STORED = """
SELECT u.start, {schema}.live_members(u.name, $2) AS members, coalesce((
  SELECT array_agg(k.position ORDER BY k.position) FROM {schema}.subscription_skip k
  WHERE k.name = u.name), '{}') AS skipped
FROM {schema}.subscription u WHERE u.name = $1
"""
_MESSAGE = f"SELECT {COLUMNS}, false FROM {{schema}}.message m WHERE m.position = $1"  # noqa: S608
_NO_SKIP: Mapping[str, str] = {
    "unknown": "is not the position of a message in the log",
    "other": "is a message of a stream that the subscription does not read",
    "handled": "is before the position of its slot: the subscription has handled it",
    "already": "is already excluded, by a skip or by the subscription's start",
}
_SKIPPED = "%s: message %d (%s, version %d, slot %d) is skipped%s"
_POINT = 'must be "beginning", "next", a position of at least 0, or a datetime with a time zone'
ResetPoint = Literal["beginning", "next"] | datetime | int


class SkippedMessage(NamedTuple):
    """A message that a subscription skips."""

    position: int
    slot: int
    stream: str
    version: int
    type: str


@known_arguments(access=PostgresAccess)
class SubscriptionAdmin(SchemaObject):
    """Inspects the subscriptions of a log, and pauses, moves or deletes them.

    It manages subscriptions whose positions are in the log's schema. If `flow.transaction` keeps
    positions in a destination's own table, the positions here are copies: a reset or a deletion
    does not change where such a flow continues. Processes are detected by their leases, so
    processes with other locks are not detected: stop them before a reset or a deletion.

    Args:
        dsn: `postgresql://user:password@host:port/database`, or a `PostgresAccess`. Never
            shown. The role needs the right to subscribe.
        schema: the schema of the log; default `"sluicegate"`.
        lease: seconds for which a process counts as serving after it was last seen; the `lease` of
            the subscriptions, by default 30.

    Raises `ConfigError` for a bad argument and `MissingExtra` without asyncpg. Opening connects,
    and raises `ConfigError` if the schema is missing or older. Methods suspend for a few
    statements, and raise `ConfigError` if the subscription does not exist, `RefusedError` if the
    role lacks a right, and `UnavailableError` without a connection. A cancelled change may have
    taken effect.
    """

    def __init__(
        self,
        dsn: str | PostgresAccess,
        *,
        schema: str = DEFAULT_SCHEMA,
        lease: float | timedelta = 30.0,
    ) -> None:
        super().__init__(dsn, schema=schema, size=1)
        self._lease = checks.seconds("lease", lease, usual=checks.LONG_TIMEOUT)

    # -- queries -----------------------------------------------------------------------------------

    async def lag(
        self, subscription: str | None = None, *, count_to: int = COUNT_TO
    ) -> dict[str, SubscriptionStats]:
        """Return statistics of subscriptions, with the number of unhandled messages up to the
        horizon.

        Args:
            subscription: only this one; default: all.
            count_to: maximum number of messages counted for each; default 1,000,000.
        """
        most = checks.count("count_to", count_to)
        found = await self._find(subscription)
        horizon = await self._queries.horizon()
        return {
            name: stored.stats.with_backlog(
                await self._queries.backlog(name, stored.selection, horizon.position, most)
            )
            for name, stored in found.items()
        }

    async def explain(self, subscription: str, *, count_to: int = COUNT_TO) -> SubscriptionReport:
        """Return the subscription's state in each slot, with reasons, and what holds back the horizon.

        Args:
            subscription: its name.
            count_to: maximum number of messages counted in each slot; default 1,000,000.
        """
        most = checks.count("count_to", count_to)
        stored = (await self._find(subscription))[subscription]
        rows = await self._access_now.rows(_STORED, subscription, self._lease)
        if not rows:  # deleted meanwhile
            raise self._missing(subscription, ())
        start, members, skipped = rows[0]
        horizon = await self._queries.horizon()
        return SubscriptionReport(
            subscription,
            str(StreamSelection.parse(stored.selection)),
            start,
            stored.stats.is_paused,
            members,
            tuple(skipped),
            horizon,
            appender_of(await self._access_now.rows(oldest_appender(quoted(self._schema)))),
            tuple(
                await self._queries.slots(subscription, stored.selection, horizon.position, most)
            ),
        )

    async def horizon(self) -> HorizonStats:
        """Return how far the log can be read now."""
        return await self._queries.horizon()

    async def message(self, position: int) -> StoredMessage | None:
        """Return the message at a position of the log, with its contents; `None` if there is none.

        Raises `UndecodableMessage` if its contents cannot be decoded.
        """
        rows = await self._access_now.rows(_MESSAGE, checks.count("position", position))
        found = stored_message(rows[0]) if rows else None
        if isinstance(found, UndecodableMessage):
            raise found
        return found

    # -- changes -----------------------------------------------------------------------------------

    async def pause(self, subscription: str, slots: Collection[int] | None = None) -> None:
        """Stop delivery until `resume`. Processes continue with the messages that they have read.

        They notice the pause at their next poll, within a second or their `poll`.

        Args:
            subscription: its name.
            slots: pause only these slots; default: the whole subscription.
        """
        wanted = None if slots is None else checked_slots(slots)
        await self._find(subscription)
        if wanted is None:
            await self._access_now.rows(_PAUSE, subscription)
        else:
            await self._access_now.rows(_PAUSE_SLOTS, subscription, wanted, True)

    async def resume(self, subscription: str, slots: Collection[int] | None = None) -> None:
        """End a pause.

        Args:
            subscription: its name.
            slots: resume only these slots, which does not end a pause of the whole subscription;
                default: the subscription and all its slots.
        """
        wanted = None if slots is None else checked_slots(slots)
        await self._find(subscription)
        if wanted is None:
            await self._access_now.rows(_RESUME, subscription)
        else:
            await self._access_now.rows(_PAUSE_SLOTS, subscription, wanted, False)

    async def reset(self, subscription: str, to: ResetPoint, *, force: bool = False) -> int:
        """Move the subscription, forwards or backwards; return the first position that it reads.

        Skipped messages stay skipped, and the count of missed messages restarts.

        Args:
            subscription: its name.
            to: `"beginning"`; `"next"`, the next appended message; a position; or an aware time:
                messages from that time on, and all messages appended from now on.
            force: reset it even while processes serve it. They cannot store results of earlier
                reads, and continue from the new positions; messages in progress may be handled
                again.

        Raises `RefusedError` while processes serve it, unless forced, and `ConfigError` for a naive
        time or a position beyond the log.
        """
        position, time, text = checked_point(to)
        checks.flag("force", force)
        values = (subscription, position, time, text, LEFT_OUT, force, self._lease)
        ((state, number),) = await self._access_now.rows(_RESET, *values)
        if state == "beyond":
            raise bad("to", to, f"must be at most {number}, the position after the end of the log")
        if state == "many":
            rule = f"has more than {number:,} older messages after it, since the server's clock was set back"
            raise bad("to", text, rule)
        await self._check(subscription, state, number)
        return int(number)

    async def skip(self, subscription: str, position: int, reason: str = "") -> SkippedMessage:
        """Skip one message. The skip is recorded in the table `subscription_skip`, and logged.

        Other messages are still delivered. A process that is handling messages of its slot abandons
        them within a third of its lease, and reads the slot again without this message.

        Args:
            subscription: its name.
            position: the message's position in the log.
            reason: the reason, which is recorded.

        Raises `ConfigError` if there is no message at the position, or the subscription does not
        read it, has handled it, or already skips it.
        """
        checks.count("position", position)
        ((state, slot, stream, version, kind),) = await self._access_now.rows(
            _SKIP, subscription, position, reason
        )
        await self._check(subscription, state, 0)
        if state in _NO_SKIP:
            raise bad("position", position, _NO_SKIP[state])
        why = f": {reason}" if reason else ""
        told = (subscription, position, stream, version, slot, why)
        log_safely(logger, logging.INFO, _SKIPPED, *told)
        return SkippedMessage(position, slot, stream, version, kind)

    async def delete(self, subscription: str, *, force: bool = False) -> None:
        """Delete the subscription and its positions; retention no longer keeps messages for it.

        Args:
            subscription: its name.
            force: delete it even while processes serve it: their sources fail with a `ConfigError`.
                A process that starts later creates the subscription again.

        Raises `RefusedError` while processes serve it, unless forced.
        """
        checks.flag("force", force)
        ((state, number),) = await self._access_now.rows(_DELETE, subscription, force, self._lease)
        await self._check(subscription, state, number)

    # -- internals ---------------------------------------------------------------------------------

    @property
    def _access_now(self) -> SchemaAccess:
        return self._access_to("log")

    @property
    def _queries(self) -> LogQueries:
        return LogQueries(self._access_now)

    async def _find(self, subscription: str | None) -> dict[str, StoredSubscription]:
        """Return the subscription, or all. Raises `ConfigError` if it does not exist."""
        found = await self._queries.subscriptions(self._lease)
        if subscription is None:
            return found
        if subscription not in found:
            raise self._missing(subscription, found)
        return {subscription: found[subscription]}

    async def _check(self, subscription: str, state: str, number: int) -> None:
        """Raise the error of a change if the subscription is missing or is being served."""
        if state == "missing":
            raise self._missing(subscription, await self._queries.subscriptions(self._lease))
        if state == "live":
            text = f"{number} processes serve the subscription {subscription!r}"
            repair = f"stop them (a killed one still counts for {self._lease:g} s), or force it"
            raise RefusedError(text, repair=repair)

    def _missing(self, subscription: str, others: Collection[str]) -> SluicegateError:
        rule = f"is not in the log {self._schema}; {nearest(str(subscription), others)}"
        return bad("subscription", subscription, rule)


def checked_slots(slots: Collection[int]) -> list[int]:
    """Check and sort slots. Raises `ConfigError`."""
    found = sorted(set(slots))
    for slot in found:
        if checks.count("slots", slot, least=0) >= SLOTS:
            raise bad("slots", slot, f"must be below {SLOTS}")
    if not found:
        raise bad("slots", slots, "must name a slot")
    return found


def checked_point(to: object) -> tuple[int | None, datetime | None, str]:
    """Return the point's position, time and text. Raises `ConfigError`."""
    if to == "beginning":
        return 0, None, "beginning"
    if to == "next":
        return None, None, "next"
    if isinstance(to, datetime) and to.utcoffset() is not None:
        return None, to, to.isoformat()
    if isinstance(to, int) and not isinstance(to, bool) and to >= 0:
        return to, None, f"position {to}"
    raise bad("to", to, _POINT)
