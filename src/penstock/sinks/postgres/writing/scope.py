"""The transaction around a write's statements: its own, or a savepoint within a larger one.

A write begins one for several statements, rolls it back when a row is to blame, and commits it. In
a savepoint a rollback reaches to where the write began, nothing is kept before the whole
transaction commits, and staging tables stay for the next write.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

SAVEPOINT = "penstock_write"


class Scope(ABC):
    """The transaction that a write runs in."""

    is_inside: ClassVar[bool]
    """Whether a larger transaction is open, so that no statement keeps its rows by itself."""

    @abstractmethod
    async def begin(self, con: PoolConnectionProxy[Any], script: str) -> None:
        """Begin several statements; `script` makes the tables that they need."""

    @abstractmethod
    async def undo(self, con: PoolConnectionProxy[Any]) -> None:
        """Roll this write back."""

    @abstractmethod
    async def commit(self, con: PoolConnectionProxy[Any]) -> None:
        """End the statements."""


class OwnTransaction(Scope):
    """A transaction per write."""

    is_inside = False

    async def begin(self, con: PoolConnectionProxy[Any], script: str) -> None:
        await con.execute(f"BEGIN; {script}")

    async def undo(self, con: PoolConnectionProxy[Any]) -> None:
        if con.is_in_transaction():
            await con.execute("ROLLBACK")

    async def commit(self, con: PoolConnectionProxy[Any]) -> None:
        await con.execute("COMMIT")


class Savepoint(Scope):
    """A part of a transaction, which has set the savepoint."""

    is_inside = True

    async def begin(self, con: PoolConnectionProxy[Any], script: str) -> None:
        await con.execute(script)

    async def undo(self, con: PoolConnectionProxy[Any]) -> None:
        await con.execute(f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")

    async def commit(self, con: PoolConnectionProxy[Any]) -> None:
        """Leave the rows to the transaction's commit."""


ALONE = OwnTransaction()
WITHIN = Savepoint()
