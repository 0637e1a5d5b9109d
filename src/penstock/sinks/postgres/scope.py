"""What a write's statements stand in: a transaction of their own, or a savepoint of one that goes
on after them.

A write begins one for what takes several statements, undoes it when a row is to blame, and commits
it. In a savepoint everything is undone to where the write began, nothing is kept before the whole
commits, and staging tables stay for the next write.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

SAVEPOINT = "penstock_write"


class Scope(ABC):
    """Where a write stands."""

    is_inside: ClassVar[bool]
    """Whether a transaction is open already, so that no statement keeps its rows by itself."""

    @abstractmethod
    async def begin(self, con: PoolConnectionProxy[Any], script: str) -> None:
        """Several statements come; `script` makes what they need."""

    @abstractmethod
    async def undo(self, con: PoolConnectionProxy[Any]) -> None:
        """Nothing of this write has happened."""

    @abstractmethod
    async def commit(self, con: PoolConnectionProxy[Any]) -> None:
        """They are complete."""


class OwnTransaction(Scope):
    """Each write is atomic by itself."""

    is_inside = False

    async def begin(self, con: PoolConnectionProxy[Any], script: str) -> None:
        await con.execute(f"BEGIN; {script}")

    async def undo(self, con: PoolConnectionProxy[Any]) -> None:
        if con.is_in_transaction():
            await con.execute("ROLLBACK")

    async def commit(self, con: PoolConnectionProxy[Any]) -> None:
        await con.execute("COMMIT")


class Savepoint(Scope):
    """The write is a part of a transaction, which has set the savepoint."""

    is_inside = True

    async def begin(self, con: PoolConnectionProxy[Any], script: str) -> None:
        await con.execute(script)

    async def undo(self, con: PoolConnectionProxy[Any]) -> None:
        await con.execute(f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")

    async def commit(self, con: PoolConnectionProxy[Any]) -> None:
        """The transaction's commit keeps the rows."""


ALONE = OwnTransaction()
WITHIN = Savepoint()
