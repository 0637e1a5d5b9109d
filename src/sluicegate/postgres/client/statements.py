"""Whether the connections of one pool prepare statements, and how their transactions begin.

1. Prepared statements are lost behind a pooler that lends a server for one transaction. Worse, the
   server may have another client's statement of the same name. Behind such a pooler, statements
   have no names, and all run in transaction blocks: only a block ensures that asyncpg describes a
   statement, reads its types and executes it on one server.
2. Each new connection is examined, since a host name may lead to a pooler later. A pooler sends its
   clients an invented process id, for cancellations, which differs from the server's. A pooler in
   session mode is treated like one in transaction mode, since a reload can change the mode.
3. Session settings are set in each transaction instead: `statement_timeout`, which a pooler refuses
   as a startup parameter.
4. Every transaction has the level READ COMMITTED, since statements of a horizon, a claim or a check
   must see what others committed before them; `default_transaction_isolation` may be another. Blocks
   begin with it. A single statement has the default level of its session, which is set for a direct
   connection; for another one with another level, single statements run in blocks too.
5. Switching is final, for the whole pool, and logged once.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from .answers import answered, keep_alive
from .errors import is_gone, message_of, pooler_error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from asyncpg import Connection
    from asyncpg.pool import PoolConnectionProxy

    from .access import Access

logger = logging.getLogger("sluicegate.postgres")

_TIMEOUT = "statement_timeout"
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
_LEVEL = "default_transaction_isolation"


class Statements:
    """How statements run on the connections of one open pool."""

    def __init__(self, access: Access) -> None:
        self._choice = access.prepared
        self._place = access.place
        self._timeout = access.statement_timeout
        self._answer_timeout = access.answer_timeout
        self.are_prepared = access.prepared is not False
        self._is_level_other = False
        """Whether sessions that are not the client's own have another isolation level."""

    @property
    def may_switch(self) -> bool:
        """Whether statements are currently prepared, but need not be."""
        return self.are_prepared and self._choice == "auto"

    @property
    def limit(self) -> str:
        """The statement that sets the time limit in a transaction; empty if not needed."""
        if self.are_prepared or self._timeout is None:
            return ""
        return f"SET LOCAL {_TIMEOUT} = {round(self._timeout * 1000)}"

    @property
    def begin(self) -> str:
        """Begin a transaction."""
        return f"{BEGIN}; {self.limit}" if self.limit else BEGIN

    @property
    def are_in_blocks(self) -> bool:
        """Whether single statements run in transaction blocks."""
        return not self.are_prepared or self._is_level_other

    @asynccontextmanager
    async def block(self, con: PoolConnectionProxy[Any]) -> AsyncGenerator[None]:
        """Run statements in one transaction if they are not prepared, or have another level."""
        if not self.are_in_blocks:
            yield
            return
        async with _between(con, self.begin, "COMMIT"):
            yield

    async def keep(self, con: PoolConnectionProxy[Any], *, cached: bool) -> None:
        """Prepare statements exactly if the user's pool caches them."""
        self.are_prepared = cached
        await self._check_level(con)

    async def _check_level(self, con: Connection[Any] | PoolConnectionProxy[Any]) -> None:
        """Use blocks if the session has another isolation level, which others may rely on."""
        tag = await con.execute(f"SELECT WHERE current_setting('{_LEVEL}') <> 'read committed'")
        self._is_level_other |= tag == "SELECT 1"

    def switch(self, reason: str) -> None:
        """Stop preparing statements, for a `reason` that is logged the first time."""
        if not self.are_prepared:
            return
        self.are_prepared = False
        logger.info(
            "PostgreSQL at %s is behind a pooler: %s. Statements are not prepared and run in "
            "transaction blocks; prepared_statements=True prepares them anyway, False skips the "
            "test for a pooler",
            self._place,
            reason,
        )

    async def connect(self, *arguments: Any, **options: Any) -> Connection[Any]:
        """Connect for the pool, in place of `asyncpg.connect`."""
        make = options.pop("connect_with")
        prepared = (
            await self._connect_prepared(make, arguments, options) if self.are_prepared else None
        )
        con: Connection[Any] = prepared or await make(
            *arguments, **{**options, "statement_cache_size": 0}
        )
        keep_alive(con)
        return con

    async def _connect_prepared(
        self, make: Any, arguments: tuple[Any, ...], options: Mapping[str, Any]
    ) -> Connection[Any] | None:
        """Return a connection that prepares statements; `None` if none may be prepared."""
        try:
            con: Connection[Any] = await make(*arguments, **self._with_limit(options))
        except Exception as error:
            if not (self.may_switch and _is_limit_refused(error)):
                raise
            self.switch(f"{_TIMEOUT} is refused as a startup parameter")
            return None
        try:
            with answered(con, self._answer_timeout, self._place):
                if await _is_direct(con):
                    return con
                if not self.may_switch:
                    await self._check_level(con)
                    return con
        except BaseException:
            con.terminate()
            raise
        self.switch("the server's process id differs from the one sent to the connection")
        con.terminate()
        return None

    def _with_limit(self, options: Mapping[str, Any]) -> dict[str, Any]:
        if self._timeout is None:
            return dict(options)
        settings: dict[str, Any] = {
            _TIMEOUT: str(round(self._timeout * 1000)),
            **(options.get("server_settings") or {}),
        }
        return {**options, "server_settings": settings}


async def is_pooled(con: Connection[Any] | PoolConnectionProxy[Any]) -> bool:
    """Return whether there is a pooler in front of the server. Suspends for one round trip.

    The simple protocol returns only the number of rows here, and prepares nothing.
    """
    tag = await con.execute(f"SELECT WHERE pg_backend_pid() <> {con.get_server_pid()}")
    return tag == "SELECT 1"


async def _is_direct(con: Connection[Any]) -> bool:
    """Return whether there is no pooler in front of the server, and set the session's isolation
    level if so.

    It is the same round trip as of `is_pooled`. The session of a pooler belongs to others too.
    """
    tag = await con.execute(
        f"SELECT set_config('{_LEVEL}', 'read committed', false) "
        f"WHERE pg_backend_pid() = {con.get_server_pid()}"
    )
    return tag == "SELECT 1"


def keeps_statements(con: PoolConnectionProxy[Any]) -> bool:
    """Return whether a connection of the user prepares named statements."""
    pooled: Any = con
    return bool(pooled._config.statement_cache_size)  # noqa: SLF001  # of asyncpg 0.30 to 0.32: see the extra


@asynccontextmanager
async def rolled_back(con: PoolConnectionProxy[Any], begin: str = BEGIN) -> AsyncGenerator[None]:
    """Run statements in a transaction without effects.

    After a cancellation, the return of the connection rolls it back, in bounded time.
    """
    async with _between(con, begin, "ROLLBACK"):
        yield


@asynccontextmanager
async def _between(con: PoolConnectionProxy[Any], begin: str, end: str) -> AsyncGenerator[None]:
    await con.execute(begin)
    try:
        yield
    except Exception:
        if not is_gone(con):
            await con.execute("ROLLBACK")
        raise
    await con.execute(end)


def _is_limit_refused(error: Exception) -> bool:
    pooler = pooler_error(error)
    return pooler is not None and message_of(pooler).endswith(f"parameter: {_TIMEOUT}")
