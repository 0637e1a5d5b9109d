"""A transaction on a connection of each driver, with one interface for the tests.

White box: the type of an appended message is private.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
from psycopg.rows import dict_row
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from sluicegate.postgres import StreamLog

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.postgres.streams.log_help import Log

    from sluicegate.postgres.streams.message import Appended


class Driver(ABC):
    """One way to append: a transaction as a context, `append` and `execute` inside."""

    def __init__(self, log: Log) -> None:
        self.dsn = log.dsn
        self.log = StreamLog(log.schema)

    @abstractmethod
    def transaction(self) -> Any:
        """An async context with an open transaction: committed at the end, or rolled back."""

    @abstractmethod
    def savepoint(self, con: Any) -> Any:
        """An async context inside it."""

    async def append(self, con: Any, stream: str, *messages: Any, **how: Any) -> list[Appended]:
        return await self.log.append(con, stream, messages, **how)

    @abstractmethod
    async def execute(self, con: Any, statement: str) -> None: ...


class Asyncpg(Driver):
    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Any]:
        con = await asyncpg.connect(self.dsn)
        try:
            async with con.transaction():
                yield con
        finally:
            await con.close()

    def savepoint(self, con: Any) -> Any:
        return con.transaction()

    async def execute(self, con: Any, statement: str) -> None:
        await con.execute(statement)


class AsyncpgPool(Asyncpg):
    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Any]:
        async with (
            asyncpg.create_pool(self.dsn, min_size=1, max_size=1) as pool,
            pool.acquire() as con,
            con.transaction(),
        ):
            yield con


class Psycopg(Driver):
    """With the user's own row factory."""

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Any]:
        async with await psycopg.AsyncConnection[Any].connect(
            self.dsn, row_factory=dict_row
        ) as con:
            yield con

    def savepoint(self, con: Any) -> Any:
        return con.transaction()

    async def execute(self, con: Any, statement: str) -> None:
        await con.execute(statement)


class Alchemy(Driver):
    scheme = "postgresql+asyncpg"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.dsn.partition('://')[2]}"

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Any]:
        engine = create_async_engine(self.url)
        try:
            async with AsyncSession(engine) as session, session.begin():
                yield session
        finally:
            await engine.dispose()

    def savepoint(self, con: Any) -> Any:
        return con.begin_nested()

    async def execute(self, con: Any, statement: str) -> None:
        await con.execute(text(statement))


class AlchemyPsycopg(Alchemy):
    """A connection, not a session."""

    scheme = "postgresql+psycopg"

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Any]:
        engine = create_async_engine(self.url)
        try:
            async with engine.begin() as con:
                yield con
        finally:
            await engine.dispose()


class Blocking(Driver):
    """psycopg 3, blocking."""

    async def append(self, con: Any, stream: str, *messages: Any, **how: Any) -> list[Appended]:
        return self.log.append_sync(con, stream, messages, **how)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Any]:
        with psycopg.Connection[Any].connect(self.dsn, row_factory=dict_row) as con:
            yield con

    @asynccontextmanager
    async def savepoint(self, con: Any) -> AsyncGenerator[None]:
        with con.transaction():
            yield

    async def execute(self, con: Any, statement: str) -> None:
        con.execute(statement)


class BlockingAlchemy(Blocking):
    """A session of SQLAlchemy, blocking."""

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Any]:
        engine = create_engine(f"postgresql+psycopg://{self.dsn.partition('://')[2]}")
        try:
            with Session(engine) as session, session.begin():
                yield session
        finally:
            engine.dispose()

    @asynccontextmanager
    async def savepoint(self, con: Any) -> AsyncGenerator[None]:
        with con.begin_nested():
            yield

    async def execute(self, con: Any, statement: str) -> None:
        con.execute(text(statement))


class BlockingConnection(BlockingAlchemy):
    """A connection of SQLAlchemy, blocking."""

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Any]:
        engine = create_engine(f"postgresql+psycopg://{self.dsn.partition('://')[2]}")
        try:
            with engine.begin() as con:
                yield con
        finally:
            engine.dispose()


DRIVERS = [
    Asyncpg,
    AsyncpgPool,
    Psycopg,
    Alchemy,
    AlchemyPsycopg,
    Blocking,
    BlockingAlchemy,
    BlockingConnection,
]
