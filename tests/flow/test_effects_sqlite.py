"""Handlers whose effects in an SQLite file commit together with the source's position.

White box: transactions of a position without a consumer.
"""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from piping import P0, records
from tests.kafka.source.storm_help import log_lines

from sluicegate import (
    Backoff,
    ClosedError,
    ConfigError,
    ErrorClass,
    Message,
    Nak,
    RetryPolicy,
    RowBatch,
    Terminate,
    ToDeadLetter,
    UnavailableError,
    flow,
    transaction,
)
from sluicegate._core.positions import PositionUnit
from sluicegate.consumer import Commits, MemoryLog, MemorySource, Poison, Position, Skip
from sluicegate.errors import PositionLost, TransactionLost
from sluicegate.postgres import PostgresQueueSource
from sluicegate.sinks import MemorySink, Unit
from sluicegate.sql import SQLiteEffects

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("real_clock")

PROGRAM = Path(__file__).with_name("sqlite_kills.py")
QUICK = RetryPolicy(backoff=Backoff(base=0.001, jitter="none"))


def insert(message: Message, at: int | None = None) -> None:
    """The default effect of a message."""
    values = message.partition, message.offset if at is None else at, str(message.key)
    message.connection.execute("INSERT INTO rows (part, at, key) VALUES (?, ?, ?)", values)


class Scene:
    """A file with a table that handlers write to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "state.db"
        with closing(sqlite3.connect(self.path)) as con, con:
            con.execute(
                "CREATE TABLE rows (n INTEGER PRIMARY KEY, part INT, at INT UNIQUE, key TEXT)"
            )

    def effects(self, **options: Any) -> SQLiteEffects:
        """A new destination for effects."""
        return SQLiteEffects(self.path, **options)

    def flow(
        self, handler: Callable[[Message], object], log: MemoryLog, **options: Any
    ) -> flow.TransactionalPipe:
        """A flow in small transactions without waiting times."""
        sink = options.pop("sink", None) or self.effects()
        source = MemorySource(log, ends=options.pop("ends", True))
        options = {"commits": Commits(every=0.01, after=8), "retry": QUICK, **options}
        return flow.transaction(source, sink, handler, **options)

    def select(self, query: str) -> list[Any]:
        """The rows of a query on a connection of its own."""
        with closing(sqlite3.connect(self.path)) as con:
            return con.execute(query).fetchall()

    @property
    def offsets(self) -> list[int]:
        """The offsets of the effects, in order."""
        return [at for (at,) in self.select("SELECT at FROM rows ORDER BY n")]

    @property
    def position(self) -> int | None:
        """The stored position of the group `memory`."""
        query = "SELECT position FROM sluicegate_positions WHERE consumer_group = 'memory'"
        ((found,),) = self.select(query)
        return None if found is None else int(found)


@pytest.fixture
def made(tmp_path: Path) -> Scene:
    """A new file."""
    return Scene(tmp_path)


async def test_effects_and_position_are_of_the_same_transaction(made: Scene) -> None:
    """S10, P1, S-T7: each message once and in order, also over two runs."""
    seen: list[tuple[int, int]] = []

    def handle(message: Message) -> None:
        insert(message)
        seen.append((len(made.offsets), made.position or 0))

    log = MemoryLog(records(range(6)))
    assert (await made.flow(handle, log, commits=Commits(every=0.01, after=2)).run()).complete
    assert seen == [(0, 0), (0, 0), (2, 2), (2, 2), (4, 4), (4, 4)]
    for record in records(range(5), first=6):
        log.append(record)
    await made.flow(insert, log).run()
    assert made.offsets == list(range(11))
    async with made.effects() as sink:
        assert await sink.claim_positions("memory", [P0]) == {P0: Position(11)}


@pytest.mark.parametrize(
    ("journal", "kills"),
    [
        ("WAL", "one"),
        *(
            pytest.param(journal, "all", marks=pytest.mark.long)
            for journal in ("WAL", "DELETE", "TRUNCATE")
        ),
    ],
)
def test_a_kill_before_any_statement_leaves_effects_and_position_together(
    tmp_path: Path, journal: str, kills: str
) -> None:
    """S-T2, S-T7: also between an effect and the position, and before the COMMIT."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), journal, kills],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= (4 if kills == "one" else 40), done.stdout


async def test_a_handler_that_raises_leaves_nothing_and_its_message_comes_back(made: Scene) -> None:
    """S-T7: the effects before it are committed, those of the failed attempt rolled back."""
    tries: list[int] = []

    def handle(message: Message) -> None:
        tries.append(message.offset)
        insert(message)
        if message.offset == 3 and tries.count(3) < 3:
            raise ValueError("not yet")

    await made.flow(handle, MemoryLog(records(range(6)))).run()
    assert made.offsets == list(range(6))
    assert tries == [0, 1, 2, 3, 0, 1, 2, 3, 3, 4, 5]


async def test_a_rollback_leaves_the_state_unchanged(made: Scene) -> None:
    """S10, S-T7: after a rollback the state is unchanged and the message is redelivered."""

    def handle(message: Message) -> None:
        insert(message)
        raise ValueError("never")

    pipe = made.flow(handle, MemoryLog(records(range(3))), ends=False)
    async with log_lines() as lines, asyncio.TaskGroup() as tasks:
        tasks.create_task(pipe.run())
        await lines.wait("blocks its key")
        assert (made.offsets, made.position) == ([], None)
        pipe.stop()


async def test_what_a_handler_answers_counts_as_in_a_consumer(made: Scene) -> None:
    letters, naks = MemorySink[Any](), 0

    def handle(message: Message) -> object:
        nonlocal naks
        insert(message)
        if message.offset == 1:
            return Skip()
        if message.offset == 2 and (naks := naks + 1) < 2:
            return Nak(0.001)
        if message.offset == 3:
            return ToDeadLetter("unwanted")
        if message.offset == 4:
            return Terminate("spoiled")
        return 17 if message.offset == 5 else None

    options: dict[str, Any] = {"poison": Poison("skip", dead_letters=letters)}
    await made.flow(handle, MemoryLog(records(range(7))), **options).run()
    assert made.offsets == [0, 1, 2, 6]
    assert [letter.item["offset"] for letter in letters.items] == [3, 4, 5]


# -- uses of the connection by a handler -----------------------------------------------------------


def swallowed(call: Callable[[], object]) -> None:
    """A handler that goes on after an error."""
    with suppress(Exception):
        call()


def within(con: Any) -> None:
    with con:
        pass


def goes_on(con: Any) -> None:
    rolled_back(con)
    con.execute("INSERT INTO rows (at) VALUES (99)")


def rolled_back(con: Any) -> None:
    swallowed(lambda: con.execute("INSERT OR ROLLBACK INTO rows (at) VALUES (0)"))


ENDS: dict[str, Callable[[Any], object]] = {
    "COMMIT": lambda con: con.execute("COMMIT"),
    "of a cursor": lambda con: con.cursor().execute("END"),
    "of its connection": lambda con: con.cursor().connection.commit(),
    "ROLLBACK": lambda con: con.execute(" rollback"),
    "BEGIN": lambda con: con.execute("BEGIN"),
    "commit()": lambda con: con.commit(),
    "rollback()": lambda con: con.rollback(),
    "close()": lambda con: con.close(),
    "executescript()": lambda con: con.executescript("SELECT 1"),
    "with": within,
    "rolled back": rolled_back,
    "and goes on": goes_on,
}


@pytest.mark.parametrize("swallows", [False, True])
@pytest.mark.parametrize("how", ENDS)
async def test_a_handler_cannot_end_the_transaction(
    made: Scene, how: str, *, swallows: bool
) -> None:
    """S-T7: its own effects are rolled back, those of its neighbours commit."""
    letters = MemorySink[Any]()

    def handle(message: Message) -> None:
        insert(message)
        if message.offset == 2:
            call = ENDS[how]
            con = message.connection
            if swallows:
                swallowed(lambda: call(con))
            else:
                call(con)

    options: dict[str, Any] = {"poison": Poison("skip", dead_letters=letters)}
    await made.flow(handle, MemoryLog(records(range(5))), **options).run()
    harmless = swallows and how in {"commit()", "rollback()", "close()", "executescript()", "with"}
    assert made.offsets == ([0, 1, 2, 3, 4] if harmless else [0, 1, 3, 4])
    assert made.position == 5
    if not harmless:
        (letter,) = letters.items
        told = "rolled the transaction back" if how in {"rolled back", "and goes on"} else "refuses"
        assert told in letter.message


async def test_savepoints_are_the_handlers_own_and_a_failed_statement_fails_alone(
    made: Scene,
) -> None:
    def handle(message: Message) -> None:
        con = message.connection
        assert isinstance(con, sqlite3.Connection)
        con.execute("SAVEPOINT mine")
        insert(message)
        con.execute("ROLLBACK TO mine")
        con.execute("RELEASE mine")
        insert(message)
        with pytest.raises(sqlite3.IntegrityError):
            insert(message)

    await made.flow(handle, MemoryLog(records(range(4)))).run()
    assert made.offsets == list(range(4))


async def test_an_error_of_the_database_costs_its_own_message_only(made: Scene) -> None:
    """A constraint at once, or with the COMMIT."""
    with closing(sqlite3.connect(made.path)) as con, con:
        con.execute(
            "CREATE TABLE parts (row INT REFERENCES rows (at) DEFERRABLE INITIALLY DEFERRED)"
        )
    letters = MemorySink[Any]()

    def handle(message: Message) -> None:
        insert(message, 0 if message.offset == 3 else None)
        row = 99 if message.offset == 5 else message.offset
        message.connection.execute("INSERT INTO parts VALUES (?)", (row,))

    options: dict[str, Any] = {"poison": Poison("skip", dead_letters=letters)}
    sink = made.effects(on_connect=lambda con: con.execute("PRAGMA foreign_keys = ON"))
    await made.flow(handle, MemoryLog(records(range(8))), sink=sink, **options).run()
    assert sorted(letter.item["offset"] for letter in letters.items) == [3, 5]
    assert made.offsets == [0, 1, 2, 4, 6, 7]


async def test_the_connection_is_taken_back_when_the_handler_has_ended(made: Scene) -> None:
    kept: list[tuple[Message, Any]] = []

    def handle(message: Message) -> None:
        insert(message)
        for earlier, con in kept:
            with pytest.raises(ClosedError, match="its handler runs"):
                earlier.connection  # noqa: B018
            with pytest.raises(ClosedError, match="the handler has ended"):
                con.execute("SELECT 1")
        kept.append((message, message.connection))

    await made.flow(handle, MemoryLog(records(range(4)))).run()
    assert made.offsets == list(range(4))


async def test_the_connection_of_the_application_may_have_any_settings(made: Scene) -> None:
    def settings(con: sqlite3.Connection) -> None:
        con.row_factory = lambda *_: "a row"
        con.text_factory = bytes

    for _ in range(2):
        sink = made.effects(on_connect=settings, positions='my "own" positions')
        log = MemoryLog(records(range(3)))
        await made.flow(insert, log, sink=sink).run()
    assert made.offsets == list(range(3))


async def test_a_cancelled_opening_closes_the_file(made: Scene) -> None:
    cons: list[sqlite3.Connection] = []
    begun, go_on = threading.Event(), threading.Event()

    def connected(con: sqlite3.Connection) -> None:
        cons.append(con)
        begun.set()
        go_on.wait()

    async def opened() -> None:
        async with made.effects(on_connect=connected):
            raise AssertionError("it was cancelled")

    opening = asyncio.create_task(opened())
    await asyncio.to_thread(begun.wait)
    opening.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        cons[0].execute("SELECT 1")


# -- owners and other users of the file ------------------------------------------------------------


async def test_nothing_of_an_earlier_owner_commits(made: Scene) -> None:
    """S-T3, S-T11: a claim ends the ownership of the partition."""
    async with made.effects() as first, made.effects() as second:
        assert await first.claim_positions("g", [P0]) == {}
        assert await first.store_positions("g", {P0: Position(3, "m")}) == [P0]
        assert await second.claim_positions("g", [P0]) == {P0: Position(3, "m")}
        assert await first.store_positions("g", {P0: Position(4)}) == []
        with pytest.raises(PositionLost, match="another process took it over"):
            await first.read_positions("g", [P0])
        with pytest.raises(PositionLost, match="took it over"):
            async with transaction(first, PositionUnit("g", P0, Position(5))):
                pass
        async with transaction(second, PositionUnit("g", P0, Position(5))):
            pass
        assert await second.read_positions("g", [P0]) == {P0: Position(5)}
        for change, told in (
            ("UPDATE sluicegate_positions SET position = 1", "from 5 to 1"),
            ("DELETE FROM sluicegate_positions", "its row was deleted"),
        ):
            with closing(sqlite3.connect(made.path)) as con, con:
                con.execute(change)
            with pytest.raises(PositionLost, match=told):
                async with transaction(second, PositionUnit("g", P0, Position(6))):
                    pass
        second.release_positions("g", [P0])
        with pytest.raises(PositionLost, match="not claimed"):
            await second.read_positions("g", [P0])


async def test_a_cancelled_transaction_leaves_no_lock(made: Scene) -> None:
    """S-T8: whatever the thread was doing."""
    async with made.effects() as sink, made.effects(busy_timeout=1.0) as other:
        await sink.claim_positions("g", [P0])
        await other.claim_positions("h", [P0])
        for steps in range(12):
            work = asyncio.ensure_future(_moved(sink, Position(steps + 1)))
            for _ in range(steps):
                await asyncio.sleep(0)
            work.cancel()
            await asyncio.wait([work])
            found = await sink.read_positions("g", [P0])
            await sink.claim_positions("g", [P0])
            assert found.get(P0, Position(0)).offset <= steps + 1
            assert await other.store_positions("h", {P0: Position(steps + 1)}) == [P0]


async def _moved(sink: SQLiteEffects, position: Position) -> None:
    async with transaction(sink, PositionUnit("g", P0, position)):
        pass


async def test_another_writer_is_waited_for_and_is_an_outage_in_the_end(made: Scene) -> None:
    """S-T4: nothing is applied, and no attempt is used."""
    loop, tries, is_away, is_done = asyncio.get_running_loop(), 0, asyncio.Event(), asyncio.Event()

    def traced(statement: str) -> None:
        nonlocal tries
        tries += statement.startswith("BEGIN")
        if tries == 9:
            loop.call_soon_threadsafe(is_away.set)

    def handle(message: Message) -> None:
        insert(message)
        if message.offset == 2:
            loop.call_soon_threadsafe(is_done.set)

    log = MemoryLog(partitions=[P0])
    sink = made.effects(busy_timeout=0.02, on_connect=lambda con: con.set_trace_callback(traced))
    retry = RetryPolicy(attempts=2, backoff=Backoff(base=0.001, jitter="none"))
    pipe = made.flow(handle, log, sink=sink, ends=False, retry=retry, poison="exit")
    async with asyncio.timeout(20.0), asyncio.TaskGroup() as tasks:
        tasks.create_task(pipe.run())
        await pipe.wait_ready()
        with closing(sqlite3.connect(made.path, isolation_level=None)) as con:
            con.execute("BEGIN IMMEDIATE")
            for record in records(range(3)):
                log.append(record)
            await is_away.wait()
            con.execute("ROLLBACK")
        await is_done.wait()
        pipe.stop()
    assert (made.offsets, made.position) == ([0, 1, 2], 3)


async def test_a_handler_without_end_does_not_stop_a_claim_for_ever(made: Scene) -> None:
    """S-T8."""
    async with made.effects(busy_timeout=0.02) as sink:
        await sink.claim_positions("g", [P0])
        async with transaction(sink, PositionUnit("g", P0, Position(1))):
            with pytest.raises(UnavailableError, match="busy_timeout"):
                await sink.claim_positions("h", [P0])


# -- bad uses --------------------------------------------------------------------------------------


async def test_bad_arguments_and_uses_are_refused(made: Scene, tmp_path: Path) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"path": ":memory:"}, "must be a file"),
        ({"path": ""}, "path"),
        ({"path": "x", "positions": ""}, "positions"),
        ({"path": "x", "busy_timeout": 0}, "busy_timeout"),
        ({"path": "x", "on_connect": 3}, "on_connect"),
    ]
    for arguments, told in bad:
        with pytest.raises(ConfigError, match=told):
            SQLiteEffects(**arguments)

    async def asynchronous(message: Message) -> None:
        """Cannot use the connection without blocking the loop."""

    log = MemoryLog(records(range(1)))
    with pytest.raises(ConfigError, match="must be a plain function"):
        made.flow(asynchronous, log)
    with pytest.raises(ConfigError, match="must be given"):
        flow.transaction(MemorySource(log), made.effects())
    queue = PostgresQueueSource("postgresql://h/d", queue="q")
    with pytest.raises(ConfigError, match="settles its records"):
        flow.transaction(queue, made.effects(), insert)
    with pytest.raises(ClosedError, match="is not open"):
        await made.effects().claim_positions("g", [P0])
    with pytest.raises(ConfigError, match=r"flow\.transaction"):
        await made.effects().write(RowBatch([]))
    (tmp_path / "text").write_text("no database" * 100)
    with closing(sqlite3.connect(tmp_path / "other.db")) as con, con:
        con.execute("CREATE TABLE sluicegate_positions (x)")
    for name in ("text", "other.db", "no/folder.db"):
        with pytest.raises(ConfigError, match="must be a file that SQLite can write"):
            async with SQLiteEffects(tmp_path / name):
                pass
    async with made.effects() as sink:
        with pytest.raises(ConfigError, match="PositionUnit"):
            async with sink.transaction(Unit(application="a", version=1)):
                pass
        assert "state.db" in repr(sink)


async def test_a_transaction_that_is_lost_commits_nothing(made: Scene) -> None:
    class Rolls:
        is_checked = False

        async def run(self, connection: Any) -> None:
            rolled_back(connection)

        def failed(self, error: BaseException) -> None:
            assert "rolled the transaction back" in str(error)

    with closing(sqlite3.connect(made.path)) as con, con:
        con.execute("INSERT INTO rows (at) VALUES (0)")
    async with made.effects() as sink:
        await sink.claim_positions("g", [P0])
        within: Any = None
        with pytest.raises(TransactionLost, match="rolled the transaction back"):
            async with sink.transaction(PositionUnit("g", P0, Position(9))) as within:
                await within.write(RowBatch([Rolls()]))
        with pytest.raises(TransactionLost, match="has ended"):
            await within.write(RowBatch([Rolls()]))
        assert await sink.read_positions("g", [P0]) == {}


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("SELECT * FROM missing", ErrorClass.REFUSED),
        ("INSERT INTO rows (at) VALUES (7), (7)", ErrorClass.PERMANENT),
    ],
)
def test_an_error_is_classed_by_its_code(made: Scene, statement: str, kind: ErrorClass) -> None:
    with closing(sqlite3.connect(made.path)) as con, pytest.raises(sqlite3.Error) as caught:
        con.execute(statement)
    assert made.effects().classify(caught.value) is kind
    assert made.effects().classify(ValueError()) is None
