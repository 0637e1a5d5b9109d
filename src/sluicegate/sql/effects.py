"""The destination for handlers with effects in an SQLite file.

1. One connection serves transactions, claims and positions, one at a time: a file of SQLite has one
   writer. Other processes wait for its write lock, for at most `busy_timeout`.
2. A transaction begins with the write lock, so that nothing that a handler has read is changed
   before the COMMIT. The position moves last: an owner moves it only in its own epoch, and only from
   the position that it knows. A claim begins a new epoch, which ends the earlier ownership.
3. While a handler has the connection, SQLite's authorizer refuses each statement that begins or ends
   a transaction. It also refuses every statement after one that has rolled the transaction back by
   itself (`OR ROLLBACK`, a full disk), which would commit alone. Statements are not cached, since a
   cached one is not checked again.
4. A COMMIT that fails has either left the transaction open, and it is rolled back, or its outcome is
   unknown, and the stored position shows it.
"""

# ruff: noqa: S608  # the table's own name is the only text that is put into statements, quoted

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from .._core import checks
from .._core.checks import bad
from .._core.classify import caused, classified_by_cause
from .._core.clock import LOOP_CLOCK
from .._core.errors import (
    ClosedError,
    ErrorClass,
    KeyStopped,
    PermanentError,
    PositionLost,
    TransactionLost,
    UnavailableError,
    UnknownOutcomeError,
)
from .._core.keywords import known_arguments
from .._core.opening import Openable
from .._core.positions import PositionUnit, not_in_transaction, not_its_to_end
from .._core.public import publish
from .._core.runtime.threads import in_thread
from .._core.sink import Capabilities, WriteResult
from .._core.source import Position, TopicPartition
from .._core.transaction import Attempt, has_ended
from .errors import class_of_sqlite

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Generator, Mapping
    from contextlib import AsyncExitStack
    from datetime import timedelta

    from .._core.batch import Batch
    from .._core.positions import Effect
    from .._core.transaction import Unit

_COLUMNS = (
    "consumer_group TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, "
    "position INTEGER, metadata TEXT NOT NULL DEFAULT '', epoch INTEGER NOT NULL, "
    "format INTEGER NOT NULL DEFAULT 1, PRIMARY KEY (consumer_group, topic, partition)"
)
_THIS = "consumer_group = ? AND topic = ? AND partition = ?"
_STORED = "position, CAST(metadata AS BLOB), epoch"
"""As bytes, whatever the connection's `text_factory` is."""
_ENDS_IT = {
    "close": "close()",
    "commit": "commit()",
    "rollback": "rollback()",
    "executescript": "executescript(), which commits first",
    "set_authorizer": "set_authorizer()",
}


def _class_of(error: BaseException) -> ErrorClass | None:
    return class_of_sqlite(error) if isinstance(error, sqlite3.Error) else None


@known_arguments()
class SQLiteEffects(Openable):
    """The destination of a `flow.transaction` whose handler has its effects in an SQLite file. They
    commit together with the position of the source, so that each message takes effect once.

    `await flow.transaction(source, SQLiteEffects("state.db"), handler).run()` calls the plain
    function `handler(message)` for each message, in order per partition, in a thread.
    `message.connection` is a `sqlite3` connection inside the open transaction. It is lent: savepoints
    are allowed (`SAVEPOINT`, `ROLLBACK TO`, `RELEASE`); a COMMIT, ROLLBACK or BEGIN is refused, as are
    `commit()`, `rollback()`, `executescript()` and any use after the handler has returned.

    Transactions run one at a time, and each has the write lock of the file from its beginning, also
    while a handler waits for something else: other writers of the file wait as well. If the handler
    raises, the transaction is rolled back; the earlier messages of the transaction are handled again
    and commit. So their effects elsewhere are repeated.

    Args:
        path: the file; created if it does not exist, in an existing folder. It may contain any other
            tables.
        busy_timeout: the longest wait in seconds for other writers of the file; default 5. After
            that, nothing is applied, which counts as an outage.
        on_connect: a function that is called with the new `sqlite3` connection, in a thread: for
            `PRAGMA foreign_keys = ON`, a `row_factory` or functions of your own.
        positions: the table of positions, taken literally; created if it is missing.

    A commit is on disk (`PRAGMA synchronous = FULL`). The journal mode is that of the file; with WAL,
    readers do not block a commit.

    Raises `ConfigError` for a bad argument. Constructing opens nothing. Opening suspends; it raises
    `ConfigError` for a file that is not an SQLite database or not writable, or if the table of
    positions has another shape, and `UnavailableError` if another process has the write lock.
    """

    _run_time = ("_file",)

    keeps_group_offsets = False
    refuses_units = "its transactions belong to messages, and commit the position of their source"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_timeout: float | timedelta = 5.0,
        on_connect: Callable[[sqlite3.Connection], object] | None = None,
        positions: str = "sluicegate_positions",
    ) -> None:
        text = checks.text("path", os.fspath(path))
        if text == ":memory:":
            raise bad("path", text, "must be a file, since positions must survive the process")
        self._path = text
        self._busy = checks.seconds("busy_timeout", busy_timeout, usual=checks.LONG_TIMEOUT)
        rule = "must be a function of a sqlite3 connection"
        self._on_connect = checks.optional_function("on_connect", on_connect, rule)
        self._table = checks.text("positions", positions)
        self._file: _File | None = None

    @property
    def capabilities(self) -> Capabilities:
        """One transaction at a time."""
        return Capabilities(key_prefix_safe=True, transactional=True, max_concurrency=1)

    def classify(self, error: BaseException) -> ErrorClass | None:
        """The class of an error by SQLite's code."""
        return classified_by_cause(error, _class_of)

    def check_handler(self, handler: object) -> None:
        """Raise `ConfigError` for an async function: calls on a `sqlite3` connection would block
        the loop.
        """
        if callable(handler) and not isinstance(handler, type) and checks.is_async(handler):
            rule = (
                "must be a plain function, which runs in a thread, since message.connection is a "
                "sqlite3 connection, whose calls block"
            )
            raise bad("transform", handler, rule)

    async def write(self, batch: Batch[Effect]) -> None:
        """Raise `ConfigError`: handlers run only in the transactions of a flow."""
        raise not_in_transaction(self)

    @asynccontextmanager
    async def transaction(
        self, unit: Unit | PositionUnit | None
    ) -> AsyncGenerator[_EffectsTransaction]:
        """A transaction that moves the position of a source last.

        Suspends while another transaction runs, and while threads work. Raises `PositionLost` if the
        partition has another owner, `UnavailableError` if the file was locked for `busy_timeout`, and
        `UnknownOutcomeError` if the COMMIT may or may not have been applied.
        """
        if not isinstance(unit, PositionUnit):
            raise bad("unit", unit, f"must be a PositionUnit: {self.refuses_units}")
        async with self._turn() as file:
            owned = file.owned(unit.group, unit.partition)
            within = _EffectsTransaction(unit, file)
            try:
                await in_thread(file.begin)
                try:
                    yield within
                finally:
                    within.end()
                await in_thread(file.commit, owned, unit.position)
            finally:
                await in_thread(file.roll_back)
            within.commits()

    # -- positions: see `sluicegate._core.positions`
    # --------------------------------------------------

    async def claim_positions(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """Own these positions from now on; return the stored ones. Suspends."""
        async with self._turn() as file:
            return await in_thread(file.claim, group, sorted(partitions))

    async def read_positions(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """The current positions of claimed partitions. Suspends. Raises `PositionLost`."""
        async with self._turn() as file:
            return await in_thread(file.read, group, partitions)

    async def store_positions(
        self, group: str, positions: Mapping[TopicPartition, Position]
    ) -> Collection[TopicPartition]:
        """Store positions without effects; return the partitions whose positions are stored.
        Suspends.
        """
        async with self._turn() as file:
            return await in_thread(file.store, group, positions)

    def release_positions(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Give up the claims of these partitions."""
        if self._file is not None:
            self._file.release(group, partitions)

    # -- opening and closing -----------------------------------------------------------------------

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[_File]:
        """The file, for one use at a time."""
        file = self._file
        if file is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        try:
            async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + self._busy):
                await file.turn.acquire()
        except TimeoutError as error:
            told = f"a transaction in {self._path} has not ended within {self._busy:g} s"
            raise UnavailableError(f"{told} (busy_timeout)") from error
        try:
            yield file
        finally:
            file.turn.release()

    async def _open(self, stack: AsyncExitStack) -> None:
        file = _File(self._path, self._busy, self._table)
        # before it is opened: a cancelled opening leaves it open
        stack.push_async_callback(in_thread, file.close)
        await in_thread(file.open, self._on_connect)
        self._file = file

    def __repr__(self) -> str:
        return f"SQLiteEffects({self._path!r})"


class _EffectsTransaction(Attempt):
    """A transaction in which handlers run."""

    def __init__(self, unit: PositionUnit, file: _File) -> None:
        super().__init__(unit)
        self._file = file
        self._turn = asyncio.Lock()
        self._is_over = False

    @property
    def capabilities(self) -> Capabilities:
        """No effect runs after a failed one."""
        return Capabilities(key_prefix_safe=True)

    def end(self) -> None:
        """Refuse further writes."""
        self._is_over = True

    async def write(self, batch: Batch[Effect]) -> WriteResult | None:
        """Run the effects, one after the other, up to the first that fails. Suspends as they do."""
        async with self._turn:
            if self._is_over:
                raise has_ended(self.unit)
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
        failed: Exception | None = None
        with self._file.lent() as lent:
            try:
                await effect.run(lent)
            except Exception as error:
                failed = error
        if self._file.refused is not None:
            return not_its_to_end(self._file.refused)
        is_ended = not self._file.is_in_transaction
        if is_ended and (failed is None or self._file.has_denied):
            return PermanentError(
                "the handler has gone on although one of its statements has rolled the transaction "
                "back (such as OR ROLLBACK, or RAISE(ROLLBACK) in a trigger); raise its error, or "
                "use a SAVEPOINT"
            )
        return failed


class _Lent:
    """The connection, valid until the handler has ended. Looks like a `sqlite3.Connection`."""

    def __init__(self, con: sqlite3.Connection) -> None:
        self._con = con
        self._is_over = False

    def end(self) -> None:
        """Refuse further use."""
        self._is_over = True

    @property  # type: ignore[misc]  # looks like a connection
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride,reportIncompatibleMethodOverride]
        return type(self._con)

    def __getattr__(self, name: str) -> Any:
        if self._is_over:
            raise ClosedError(
                f"message.connection.{name}: the handler has ended, and its connection is used for "
                "other messages; use your own connection"
            )
        if name in _ENDS_IT:
            raise not_its_to_end(_ENDS_IT[name])
        return getattr(self._con, name)

    def __enter__(self) -> None:
        raise not_its_to_end("`with`, which commits; use SAVEPOINT instead:")

    def __exit__(self, *_: object) -> None:
        """Never reached."""

    def __repr__(self) -> str:
        return f"<{'ended ' if self._is_over else ''}message.connection {self._con!r}>"


class _Owned(NamedTuple):
    """A claimed position: the epoch of its owner, and the last known position."""

    group: str
    partition: TopicPartition
    epoch: int
    position: Position | None

    @property
    def key(self) -> tuple[str, str, int]:
        """The key of its row."""
        return self.group, self.partition.topic, self.partition.partition


class _File:
    """An open file, and the positions that it owns. Methods that use the connection block."""

    _con: sqlite3.Connection

    def __init__(self, path: str, busy: float, table: str) -> None:
        self._path = path
        self._busy = busy
        self._table = '"' + table.replace('"', '""') + '"'
        self._owned: dict[tuple[str, TopicPartition], _Owned] = {}
        self._is_lent = False
        self._closing = ExitStack()
        self.refused: str | None = None
        """The statement by which the last handler has tried to begin or end the transaction."""
        self.has_denied = False
        """Whether the last handler has gone on after its transaction had ended."""
        self.turn = asyncio.Lock()

    def open(self, on_connect: Callable[[sqlite3.Connection], object] | None) -> None:
        """Open the file and create the table of positions.

        Raises `ConfigError`; closing is needed even then.
        """
        try:
            con = sqlite3.connect(
                self._path,
                timeout=self._busy,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=0,
            )
            self._con = self._closing.enter_context(closing(con))
            self._con.execute("PRAGMA synchronous = FULL")
            if on_connect is not None:
                on_connect(self._con)
            self._con.set_authorizer(self._authorize)
            with self._transaction():
                create = f"CREATE TABLE IF NOT EXISTS {self._table} ({_COLUMNS}) WITHOUT ROWID"
                self._con.execute(create)
                self._con.execute(f"SELECT {_STORED} FROM {self._table} WHERE {_THIS}", [0] * 3)
        except sqlite3.Error as error:
            rule = f"must be a file that SQLite can write, with a table {self._table} of positions"
            raise bad("path", self._path, f"{rule} ({error})") from error

    def close(self) -> None:
        """Close the file, if it was opened."""
        self._closing.close()

    def _rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        cursor = sqlite3.Cursor(self._con)  # without the connection's `row_factory`
        return cursor.execute(statement, values).fetchall()

    # -- transactions ------------------------------------------------------------------------------

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction is open. Does not block."""
        return self._con.in_transaction

    def begin(self) -> None:
        """Begin with the write lock. Raises `UnavailableError`."""
        with self._as_outage():
            self._con.execute("BEGIN IMMEDIATE")

    def commit(self, owned: _Owned, position: Position) -> None:
        """Move the position and commit. Raises `PositionLost`, `TransactionLost`, `UnavailableError` if
        readers block it, and `UnknownOutcomeError`.
        """
        if not self._con.in_transaction:
            raise TransactionLost("a handler's statement has rolled the transaction back")
        self._advance(owned, position)
        self._commit()
        self._note_moved(owned, position)

    def _commit(self) -> None:
        try:
            with self._as_outage():
                self._con.execute("COMMIT")
        except sqlite3.Error as error:
            if self._con.in_transaction:
                raise
            told = f"it is not known whether SQLite has committed in {self._path} ({error})"
            raise UnknownOutcomeError(told) from error

    def roll_back(self) -> None:
        """Roll back a transaction that is still open."""
        if self._con.in_transaction:
            self._con.execute("ROLLBACK")

    @contextmanager
    def _transaction(self) -> Generator[None]:
        self.begin()
        try:
            yield
            self._commit()
        finally:
            self.roll_back()

    @contextmanager
    def _as_outage(self) -> Generator[None]:
        """Raise `UnavailableError` if another process has locked the file for `busy_timeout`."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            told = f"another user of {self._path} has locked it for {self._busy:g} s (busy_timeout)"
            raise UnavailableError(told) from error

    @contextmanager
    def lent(self) -> Generator[_Lent]:
        """Lend the connection to a handler. Does not block."""
        lent = _Lent(self._con)
        self._is_lent, self.refused, self.has_denied = True, None, False
        try:
            yield lent
        finally:
            self._is_lent = False
            lent.end()

    def _authorize(self, action: int, what: str | None, *_: object) -> int:
        if not self._is_lent:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_TRANSACTION:
            self.refused = what
            return sqlite3.SQLITE_DENY
        if self._con.in_transaction:
            return sqlite3.SQLITE_OK
        self.has_denied = True
        return sqlite3.SQLITE_DENY

    # -- positions ---------------------------------------------------------------------------------

    def owned(self, group: str, partition: TopicPartition) -> _Owned:
        """Return a claimed position. Does not block. Raises `PositionLost`."""
        owned = self._owned.get((group, partition))
        if owned is None:
            raise PositionLost(f"{partition} is not claimed, or was released")
        return owned

    def release(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Give up the claims of these partitions. Does not block."""
        for each in partitions:
            self._owned.pop((group, each), None)

    def _note_moved(self, owned: _Owned, position: Position | None) -> None:
        key = owned.group, owned.partition
        known = self._owned.get(key)
        if known is not None and known.epoch == owned.epoch:  # not released meanwhile
            self._owned[key] = owned._replace(position=position)

    def claim(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Position]:
        """Begin a new epoch of each position; return those that are stored."""
        claimed: list[_Owned] = []
        with self._transaction():
            for each in partitions:
                ((offset, metadata, epoch, form),) = self._rows(
                    f"INSERT INTO {self._table} (consumer_group, topic, partition, epoch) "
                    "VALUES (?, ?, ?, 1) ON CONFLICT DO UPDATE SET epoch = epoch + 1 "
                    f"RETURNING {_STORED}, format",
                    group,
                    *each,
                )
                checks.known_format("positions", self._table, form)
                claimed.append(_Owned(group, each, epoch, _position(offset, metadata)))
        self._owned.update({(group, each.partition): each for each in claimed})
        return {each.partition: each.position for each in claimed if each.position is not None}

    def read(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Position]:
        """Read claimed positions. Raises `PositionLost`."""
        found: dict[TopicPartition, Position] = {}
        for partition in partitions:
            owned = self.owned(group, partition)
            with self._as_outage():
                rows = self._select(owned)
            if not rows or rows[0][2] != owned.epoch:
                raise PositionLost(self._reason(owned, rows))
            position = _position(*rows[0][:2])
            self._note_moved(owned, position)
            if position is not None:
                found[partition] = position
        return found

    def store(
        self, group: str, positions: Mapping[TopicPartition, Position]
    ) -> list[TopicPartition]:
        """Move positions without effects; return the moved ones."""
        moved: list[_Owned] = []
        with self._transaction():
            for partition in sorted(positions):
                owned = self.owned(group, partition)
                try:
                    self._advance(owned, positions[partition])
                except PositionLost:
                    continue
                moved.append(owned)
        for owned in moved:
            self._note_moved(owned, positions[owned.partition])
        return [owned.partition for owned in moved]

    def _advance(self, owned: _Owned, position: Position) -> None:
        known = None if owned.position is None else owned.position.offset
        is_moved = self._rows(
            f"UPDATE {self._table} SET position = ?, metadata = ? "
            f"WHERE {_THIS} AND epoch = ? AND position IS ? RETURNING 1",
            *position,
            *owned.key,
            owned.epoch,
            known,
        )
        if not is_moved:
            raise PositionLost(self._reason(owned, self._select(owned)))

    def _select(self, owned: _Owned) -> list[tuple[Any, ...]]:
        return self._rows(f"SELECT {_STORED} FROM {self._table} WHERE {_THIS}", *owned.key)

    def _reason(self, owned: _Owned, rows: list[tuple[Any, ...]]) -> str:
        """The reason why a position could not be moved."""
        if not rows:
            told = "its row was deleted; the next assignment begins at the source's start point"
        elif rows[0][2] != owned.epoch:
            told = f"another process took it over (epoch {rows[0][2]}, not {owned.epoch})"
        else:
            known = None if owned.position is None else owned.position.offset
            told = f"it was changed from {known} to {rows[0][0]} by other means"
        return f"{self._table} in {self._path}: {told}"


def _position(offset: int | None, metadata: bytes) -> Position | None:
    return None if offset is None else Position(offset, metadata.decode())


publish("sluicegate.sql", SQLiteEffects)
