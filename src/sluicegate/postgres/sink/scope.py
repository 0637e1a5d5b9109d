"""The transaction around a write's statements: its own, or a savepoint in a larger one.

A write begins a transaction for several statements, rolls it back when a row is at fault, and
commits it. With a savepoint, a rollback returns to the start of the write, no rows are kept before
the whole transaction commits, and staging tables remain for the next write. If statements cannot be
prepared, every statement of a write is in a *block*: a transaction that is open from the start.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from ..._core.errors import TransientError
from ..client.statements import BEGIN

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

SAVEPOINT = "sluicegate_write"


class StatementLost(Exception):
    """The server has lost a prepared statement, but the write can do without prepared statements.

    The write was rolled back.
    """


class Scope(ABC):
    """The transaction in which a write runs."""

    is_inside: ClassVar[bool]
    """Whether the write is inside a larger transaction, whose commit alone keeps the rows."""
    is_block: ClassVar[bool] = True
    """Whether a transaction is open all the time, so that no statement commits by itself."""
    opening: str = ""
    """The statement with which a write begins, if any; the write then ends with the commit."""
    may_switch: ClassVar[bool] = False
    """Whether a lost statement ends the write with `StatementLost`."""

    @abstractmethod
    async def begin(self, con: PoolConnectionProxy[Any], script: str) -> None:
        """Begin several statements; `script` creates the tables that they need."""

    @abstractmethod
    async def undo(self, con: PoolConnectionProxy[Any]) -> None:
        """Roll this write back."""

    @abstractmethod
    async def commit(self, con: PoolConnectionProxy[Any]) -> None:
        """Commit the statements."""


class OwnTransaction(Scope):
    """A transaction for several statements of a write; a single statement commits by itself."""

    is_inside = is_block = False

    async def begin(self, con: PoolConnectionProxy[Any], script: str) -> None:
        await con.execute(f"{BEGIN}; {script}")

    async def undo(self, con: PoolConnectionProxy[Any]) -> None:
        if con.is_in_transaction():
            await con.execute("ROLLBACK")

    async def commit(self, con: PoolConnectionProxy[Any]) -> None:
        await con.execute("COMMIT")


class SwitchingTransaction(OwnTransaction):
    """Like its base, for connections on which statements need not be prepared."""

    may_switch = True


class Block(Scope):
    """A transaction that is open from the start of the write, and again after a rollback."""

    is_inside = False

    def __init__(self, begin: str) -> None:
        self.opening = begin

    async def begin(self, con: PoolConnectionProxy[Any], script: str) -> None:
        await con.execute(script)

    async def undo(self, con: PoolConnectionProxy[Any]) -> None:
        await con.execute(f"ROLLBACK; {self.opening}")

    async def commit(self, con: PoolConnectionProxy[Any]) -> None:
        tag = await con.execute("COMMIT")
        if tag != "COMMIT":
            raise TransientError("the server rolled the write back instead of committing it")


class Savepoint(Scope):
    """A savepoint in the transaction that has set it."""

    is_inside = True

    def __init__(self, name: str = SAVEPOINT) -> None:
        self._name = name

    async def begin(self, con: PoolConnectionProxy[Any], script: str) -> None:
        await con.execute(script)

    async def undo(self, con: PoolConnectionProxy[Any]) -> None:
        await con.execute(f"ROLLBACK TO SAVEPOINT {self._name}")

    async def commit(self, con: PoolConnectionProxy[Any]) -> None:
        """Leave the rows to the transaction's commit."""


ALONE = OwnTransaction()
SWITCHING = SwitchingTransaction()
WITHIN = Savepoint()
