"""Subscriptions in the schema of the log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ..._core import checks
from ..._core.clock import LOOP_CLOCK
from ..._core.errors import ClosedError
from ..._core.logs import for_log, log_safely
from ..._core.opening import Openable
from ..._core.runtime.threads import close_within
from ..client.access import Access, need_asyncpg
from ..client.answers import ANSWER_TIMEOUT
from ..schema.connected import connected_to_log
from ..schema.opened import DEFAULT_SCHEMA, check_schema_name
from .leases import SlotLeases

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from contextlib import AsyncExitStack
    from datetime import timedelta

    import asyncpg

    from ..._core.subscriptions import Move, Subscribed, SubscriptionStart
    from ..client.access import PoolFactory, PostgresAccess, Prepared

logger = logging.getLogger("sluicegate.postgres")

LEASE = 30.0
"""Default lease in seconds."""
_CONNECTIONS = 2
_NOT_FREED = "%r: its locks could not be released; they expire with their leases within %g s (%s)"


class PostgresSubscriptions(Openable):
    """Positions and locks of subscriptions, in the schema of the log in PostgreSQL.

    A lock is a lease: it expires after `lease` seconds, by the server's clock, unless it is
    extended. A store of a slot whose lock has passed to another process is refused. The processes
    of a subscription are counted, so that they can share its slots evenly. Works behind a pooler.

    Args:
        dsn: `postgresql://user:password@host:port/database`, or a `PostgresAccess`. Never
            shown.
        schema: the schema of the log, created by `sluicegate pg install`; default `"sluicegate"`.
        lease: seconds until a lock expires after it was taken or extended; default 30. The slots of
            a killed process are blocked for this long.
        pool: an asyncpg pool of the application, or a function that creates or returns one, instead
            of `dsn`.
        close_pool: whether closing closes that pool; default: only if a function created it.
        pool_size: number of connections; default 2.
        close_timeout: timeout in seconds for releasing the locks and closing the connections;
            default 5.
        answer_timeout: seconds for the answer to each statement of the library itself; then the
            connection is ended, which counts as an outage. Default 20; at most half of `lease`.
        statement_timeout: timeout in seconds of a statement on the server; default: the server's
            setting.
        prepared_statements: as for `PostgresSink`.

    Raises `ConfigError` for a bad argument and `MissingExtra` without asyncpg. The constructor does
    not suspend and does not connect. Opening connects, and raises `ConfigError` for a schema that
    is missing or older than this release, with the command that repairs it. Methods suspend, and
    raise asyncpg's errors, or `UnavailableError` without a connection. A cancelled call may have
    taken effect.
    """

    _run_time = ("_leases",)

    def __init__(
        self,
        dsn: str | PostgresAccess | None = None,
        *,
        schema: str = DEFAULT_SCHEMA,
        lease: float | timedelta = LEASE,
        pool: asyncpg.Pool[Any] | PoolFactory | None = None,
        close_pool: bool | None = None,
        pool_size: int | None = None,
        close_timeout: float | timedelta = 5.0,
        answer_timeout: float | timedelta = ANSWER_TIMEOUT,
        statement_timeout: float | timedelta | None = None,
        prepared_statements: Prepared = "auto",
    ) -> None:
        need_asyncpg()
        self._access = Access.of(
            dsn,
            pool=pool,
            close_pool=close_pool,
            size=_CONNECTIONS if pool_size is None else pool_size,
            timeout=statement_timeout,
            prepared=prepared_statements,
            answer_timeout=answer_timeout,
            lease=lease,
        )
        self._schema = check_schema_name(schema)
        self._lease = checks.seconds("lease", lease, usual=checks.LONG_TIMEOUT)
        self._close_timeout = checks.seconds(
            "close_timeout", close_timeout, usual=checks.LONG_TIMEOUT
        )
        self._leases: SlotLeases | None = None

    async def _open(self, stack: AsyncExitStack) -> None:
        connections = await connected_to_log(
            stack, self._access, self._schema, close_timeout=self._close_timeout
        )
        self._leases = SlotLeases(
            connections, self._schema, self._lease, cut_within=self._close_timeout
        )
        stack.push_async_callback(self._leave, self._leases)

    async def _leave(self, leases: SlotLeases) -> None:
        """Release all held locks within `close_timeout`; otherwise the leases expire."""
        try:
            seconds = close_within(self._close_timeout)
            async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + seconds):
                await leases.leave()
        except Exception as error:
            log_safely(logger, logging.WARNING, _NOT_FREED, self, self._lease, for_log(error))

    def _opened(self) -> SlotLeases:
        if self._leases is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        return self._leases

    async def initialize(self, name: str, start: SubscriptionStart) -> bool:
        """Store the start of a subscription unless it exists; return whether it was stored."""
        return await self._opened().initialize(checks.text("name", name), start)

    async def read(self, name: str) -> Subscribed | None:
        """Return the stored subscription; `None` before `initialize`."""
        return await self._opened().read(name)

    async def store(self, name: str, moves: Mapping[int, Move]) -> Collection[int]:
        """Move slots whose stored position has not changed; return these slots.

        Slots whose lock another process has are left out.
        """
        return await self._opened().store(name, moves)

    async def try_store(
        self, name: str, moves: Mapping[int, Move]
    ) -> tuple[Collection[int], Collection[int]]:
        """As `store`, without waiting for slots that another session has locked; return the moved
        slots, and the locked ones.
        """
        return await self._opened().try_store(name, moves)

    @property
    def keep_every(self) -> float | None:
        """Seconds between calls of `keep`: a third of the lease."""
        return self._lease / 3

    async def lock(self, names: Collection[str]) -> Collection[str]:
        """Take each of these locks that is free; return the taken ones. One statement for all.

        Only slots of existing subscriptions can be locked. Raises `ConfigError` for names not made
        by `slot_lock`.
        """
        return await self._opened().lock(names)

    async def keep(self, names: Collection[str]) -> Collection[str]:
        """Extend these locks; return those still held."""
        return await self._opened().keep(names)

    async def try_keep(self, names: Collection[str]) -> tuple[Collection[str], Collection[str]]:
        """As `keep`, without waiting for slots that another session has locked; return the extended
        locks, and the locked ones, which are not extended.
        """
        return await self._opened().try_keep(names)

    async def unlock(self, names: Collection[str]) -> None:
        """Release these locks; locks that are not held are ignored.

        A slot that another session keeps locked is left out: its lease expires.
        """
        await self._opened().unlock(names)

    async def members(self, name: str) -> int:
        """Count the processes that called this for the subscription within the last lease."""
        return await self._opened().members(name)

    @property
    def log_schema(self) -> str:
        """The schema of the log."""
        return self._schema

    def __repr__(self) -> str:
        return f"PostgresSubscriptions({self._access.place}, schema={self._schema!r})"
