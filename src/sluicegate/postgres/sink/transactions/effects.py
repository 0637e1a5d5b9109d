"""A transaction in which handlers run.

1. A handler has the connection while it runs, and may begin its own savepoints. Statements that
   begin or end the transaction are refused if that is visible in their text.
2. Other cases are detected afterwards: the session is no longer in a transaction, or in one without
   the mark that the first statement has set.
3. A transaction that is not committed is rolled back by the asyncpg object that began it, since
   asyncpg counts savepoints by that object; otherwise the connection is closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...._core.classify import caused, causes
from ...._core.clock import LOOP_CLOCK
from ...._core.errors import KeyStopped, TransientError
from ...._core.positions import CauseUnclear, aborted_by_handler, ended_by_handler
from ...._core.sink import Capabilities, WriteResult
from ...client.errors import is_gone, sqlstate
from ...client.lent import LentConnection
from .ledger import ON_DISK
from .position_owner import MovesPosition

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    from ...._core.batch import Batch
    from ...._core.positions import Effect, PositionUnit
    from ...client.statements import Statements

_ABORTED = "25P02"
"""The SQLSTATE of a statement in a transaction in which an earlier statement has failed."""
_MARK = "SELECT set_config('sluicegate.handlers', 'on', true)"
_MARKED = "SELECT current_setting('sluicegate.handlers', true)"
_UNCLEAR = "a handler has made the transaction unusable; the handlers run again, with a check after each one"


class EffectsTransaction(MovesPosition):
    """A transaction of handlers, in which the position is moved last."""

    def __init__(
        self,
        con: PoolConnectionProxy[Any],
        *,
        statements: Statements,
        unit: PositionUnit,
        place: str,
        idle_timeout: float,
        close_timeout: float,
    ) -> None:
        super().__init__(con, statements=statements, unit=unit, place=place, keeper="")
        self._idle_timeout = idle_timeout
        self._close_timeout = close_timeout
        self._top = con.transaction(isolation="read_committed")

    @property
    def capabilities(self) -> Capabilities:
        """No effect runs after a failed one."""
        return Capabilities(key_prefix_safe=True)

    async def _begin(self) -> None:
        await self._top.start()
        await self._con.execute(f"{ON_DISK}; {_MARK}; {self._settings(self._idle_timeout)}")

    async def write(self, batch: Batch[Effect]) -> WriteResult | None:
        """Run the effects, one after the other, up to the first that fails.

        Suspends as they do. Raises `TransactionLost` if the transaction is lost, and
        `CauseUnclear`.
        """
        async with self._turn:
            self._check()
            for index, effect in enumerate(batch):
                error = await self._run(effect)
                if error is None:
                    continue
                effect.failed(error)
                behind = caused(KeyStopped("an earlier effect has failed"), error)
                errors = dict.fromkeys(range(index, len(batch)), behind)
                return WriteResult.failed(batch, {**errors, index: error})
        return None

    async def _run(self, effect: Effect) -> Exception | None:
        """Run an effect; return the error that it has caused."""
        lent, began = LentConnection(self._con), LOOP_CLOCK.now()
        failed: Exception | None = None
        try:
            await effect.run(lent)
        except Exception as error:
            failed = error
        finally:
            lent.end()
        if is_gone(self._con):
            return self._cut_off(failed, LOOP_CLOCK.now() - began)
        if not self._con.is_in_transaction():
            return ended_by_handler()
        if effect.is_checked:
            return failed or await self._after()
        if failed is not None and _is_aborted(failed):
            raise CauseUnclear(_UNCLEAR) from failed
        return failed

    def _cut_off(self, error: Exception | None, seconds: float) -> Exception:
        """The error of a handler that was idle for too long. Raises `TransactionLost` in other
        cases.
        """
        lost = self._lose(error or ConnectionError("the connection is closed"))
        if seconds < self._idle_timeout:
            raise lost
        return TransientError(
            f"the handler ran for {seconds:.3g} s, and the server has ended its session because a "
            f"transaction may be idle for at most idle_timeout={self._idle_timeout:g} s between "
            "two statements; call slow services before the first statement, or increase "
            "idle_timeout"
        )

    async def _after(self) -> Exception | None:
        """The error of a handler that has left the transaction unusable."""
        try:
            is_marked = await self._con.fetchval(_MARKED) == "on"
        except Exception as error:
            if not _is_aborted(error):
                raise self._told(error)  # noqa: B904  # the cause is set
            return aborted_by_handler()
        return None if is_marked else ended_by_handler()

    async def _complete(self) -> None:
        if (error := await self._after()) is not None:
            raise CauseUnclear(_UNCLEAR) from error
        await self._advance()

    async def _send_commit(self) -> None:
        await self._top.commit()

    async def roll_back(self) -> None:
        """Roll back within `close_timeout`, also after a cancelled statement; or close the
        connection.

        Cancelling a statement sends a separate request to the server, whose response the rollback
        awaits. Otherwise the statement would continue without its client and hold its locks.
        """
        try:
            async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + self._close_timeout):
                await self._top.rollback()
        except BaseException as error:
            if not is_gone(self._con):
                self._con.terminate()
            if not isinstance(error, Exception):
                raise


def _is_aborted(error: Exception) -> bool:
    return any(sqlstate(link) == _ABORTED for link in causes(error))
