"""Statements on the schema of queues, with errors translated for operators."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from ...._core.classify import caused
from ...._core.errors import ConfigError, RefusedError, SluicegateError, UnavailableError
from ...._core.text import text_of
from ...client.errors import LOCK_NOT_AVAILABLE, is_lost, shown, sqlstate
from ...client.names import quoted
from ...client.refusals import refusal, repair_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from ...client.connections import Connections

NO_QUEUE, BAD_RANGES, NO_RIGHT = "PS010", "PS013", "42501"


class SchemaAccess:
    """Access to a schema with queues, over open connections.

    Raises `ConfigError` for a queue that does not exist and for invalid ranges, `RefusedError` if
    the role lacks a privilege, and `UnavailableError` without a connection.
    """

    def __init__(self, connections: Connections, schema: str, place: str) -> None:
        self._connections = connections
        self.schema = schema
        self._place = place

    async def rows(self, query: str, *arguments: object) -> list[Any]:
        """Return the rows of one statement, which is its own transaction."""
        with self._told():
            async with self._connections.asking() as con:
                return await SchemaStatements(con, self.schema).rows(query, *arguments)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[SchemaStatements]:
        """Run statements that take effect together, or not at all."""
        with self._told():
            async with self._connections.asking() as con:
                statements = SchemaStatements(con, self.schema)
                if con.is_in_transaction():  # always the case behind a pooler
                    yield statements
                    return
                async with con.transaction(isolation="read_committed"):
                    yield statements

    @contextmanager
    def _told(self) -> Generator[None]:
        try:
            yield
        except SluicegateError:
            raise
        except Exception as error:
            raise self._error(error) from error

    def _error(self, error: Exception) -> Exception:
        state = sqlstate(error)
        if is_lost(error):
            text = f"the connection to {self._place} was lost; check whether the change took effect"
            return caused(UnavailableError(f"{text} ({shown(error)})"), error)
        if state is None:
            return error
        if state in {NO_QUEUE, BAD_RANGES}:
            return caused(ConfigError(text_of(error)), error)
        where = f"the queues at {self._place}"
        if state == LOCK_NOT_AVAILABLE:
            text = f"{where}: open transactions that have written jobs did not end in time"
            return caused(RefusedError(text, repair="end them, or try again"), error)
        repair = repair_of(error, self._place)
        if state == NO_RIGHT:
            install = f"`sluicegate pg install DSN --schema {self.schema} --operate ROLE`"
            repair = f"connect as the owner of the schema, or have the owner run {install}"
        return refusal(error, where, repair)


class SchemaStatements:
    """The statements of one transaction."""

    def __init__(self, con: Any, schema: str) -> None:
        self._con = con
        self._schema = quoted(schema)

    async def rows(self, query: str, *arguments: object) -> list[Any]:
        """Return the rows of one statement. Raises errors of the client."""
        found: list[Any] = await self._con.fetch(
            query.replace("{schema}", self._schema), *arguments
        )
        return found
