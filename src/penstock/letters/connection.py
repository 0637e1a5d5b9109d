"""A connection to the database of dead letters. Its errors hide passwords and values of items."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from .._core import told
from .store import StoreError
from .text import without_secrets

if TYPE_CHECKING:
    import asyncpg
    from asyncpg.transaction import Transaction

_PLAIN_DSN = re.compile(
    r"postgres(?:ql)?://(?:(?P<user>[^@/?#]*)@)?(?P<hosts>[\w.,-]*)(?P<port>:\d+)?(?P<database>/[\w-]*)?(?:\?[^@]*)?"
)
"""A DSN that can be split safely. In any other, a part of the password may look like a host."""
_DSN_RULE = (
    "postgresql://USER:PASSWORD@HOST:PORT/DATABASE, the port a number, and characters "
    "such as @ : / # % in a password as %40 and so on"
)


class LetterConnection:
    """One connection. Methods raise `StoreError`."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: asyncpg.Connection[Any] | None = None

    async def open(self) -> None:
        """Connect."""
        import asyncpg  # an optional dependency

        try:
            self._connection = await asyncpg.connect(self._dsn)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise StoreError(f"no connection to {self.place}: {self.text_of(error)}") from None
        except (ValueError, TypeError, LookupError):  # its text may hold any part of the DSN
            raise StoreError(f"the DSN of {self.place} cannot be read: {_DSN_RULE}") from None

    async def close(self) -> None:
        """Disconnect, in 5 s at most."""
        if self._connection is not None:
            await self._connection.close(timeout=5.0)

    def transaction(self) -> Transaction:
        """A transaction, as a context manager."""
        return self._open.transaction()

    @property
    def _open(self) -> asyncpg.Connection[Any]:
        if self._connection is None:
            raise StoreError("the store is not open")
        return self._connection

    async def ask(self, table: str, statement: str, *arguments: object) -> list[asyncpg.Record]:
        """The rows of a statement about `table`, which the error names."""
        import asyncpg  # an optional dependency

        try:
            return await self._open.fetch(statement, *arguments)
        except (
            OSError,
            asyncpg.PostgresError,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,
        ) as error:
            raise StoreError(f"{table} at {self.place}: {self.text_of(error)}") from error

    @property
    def place(self) -> str:
        """The server's address, without anything that may be a part of the password."""
        found = _PLAIN_DSN.fullmatch(self._dsn)
        if found is None:
            return "PostgreSQL"
        port = (
            "" if found["user"] is None else found["port"] or ""
        )  # of USER:NUMBER alone it may be a password
        return f"{found['hosts'] or 'the default host'}{port}{found['database'] or ''}"

    def text_of(self, error: BaseException) -> str:
        """An error's text without values of items and without the DSN's secrets."""
        text = told.for_log(error).partition(": ")[2] or type(error).__name__
        for part in _suspects(self._dsn):
            text = text.replace(part, "***")
        return without_secrets(text)


def _suspects(dsn: str) -> list[str]:
    """The parts of a DSN that may be a password or a piece of one, longest first."""
    rest = dsn.partition(":")[2].lstrip("/").partition(":")[2]
    if _PLAIN_DSN.fullmatch(dsn):
        rest = rest.partition("@")[0] + "?" + dsn.partition("?")[2]
    found = {
        part
        for part in (*re.split(r"[:/@?#&=]", rest), *re.split(r"[:/@?#&=]", unquote(rest)))
        if len(part) > 2
    }
    return sorted(found, key=len, reverse=True)
