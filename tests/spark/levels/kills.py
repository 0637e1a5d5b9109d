"""One seeded kill: a write at one of the delivery levels, and a process that SIGKILL ends at some
moment during it.

White box: the stages of a table, which a kill strikes.

1. The expected content of the table is computed here from the seed and compared row by row. Reports
   are not used.
2. A moment is either reached in the sink, or is the moment at which the server checks a certain
   row. The check is a constraint, which stages and new tables have, too. Notes (files) ensure that
   the kill happens once, in whichever process.
3. A write that raises is repeated under the same name, as an operator would; some successful writes
   are also repeated, as Spark would after a restart.
4. `atomic` is also checked in between: the table has either the old rows or the new ones.
"""

from __future__ import annotations

import hashlib
import os
import random
import select
import signal
import threading
from collections import Counter
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
from tests.spark.sql import query

from sluicegate import Batch, Retry, Sink, Timeout, WriteResult, send, stack
from sluicegate._core.decorator import WrappingSink
from sluicegate.postgres import PostgresSink
from sluicegate.postgres.sink.stages import TableStages
from sluicegate.spark import foreach_batch, write_dataframe

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from sluicegate._core.positions import PositionUnit
    from sluicegate._core.staging import Epoch, OpenStage
    from sluicegate._core.transaction import Committed
    from sluicegate.sinks import Transaction, Unit
    from sluicegate.testing import EmbeddedPostgres

Row = tuple[int, int, int]
"""Id, key, value."""

WAYS = ("at_least_once", "bucket", "append", "overwrite")
ROW, CHUNK, STAGED, BEFORE_COMMIT, AFTER_COMMIT, BEFORE_PUBLISH, PUBLISHED = (
    "a row",
    "a chunk",
    "a stage is written",
    "before a commit",
    "after a commit",
    "before the publication",
    "after the publication",
)
SERVER = ("backend", "postmaster")
ANYWHERE = [("worker", CHUNK), *((victim, ROW) for victim in SERVER)]
IN_TRANSACTIONS = [
    (victim, moment) for victim in ("worker", *SERVER) for moment in (BEFORE_COMMIT, AFTER_COMMIT)
]
STAGES = [
    *((victim, STAGED) for victim in ("worker", *SERVER)),
    *(
        (victim, moment)
        for victim in SERVER
        for moment in (BEFORE_PUBLISH, BEFORE_COMMIT, AFTER_COMMIT, PUBLISHED)
    ),
]
KILLS = {
    "at_least_once": ANYWHERE,
    "bucket": ANYWHERE + IN_TRANSACTIONS,
    "append": ANYWHERE + STAGES,
    "overwrite": ANYWHERE + STAGES,
}
DRIVER = {
    "at_least_once": [CHUNK],
    "bucket": [CHUNK, BEFORE_COMMIT, AFTER_COMMIT],
    "append": [CHUNK, STAGED, BEFORE_PUBLISH, BEFORE_COMMIT, AFTER_COMMIT, PUBLISHED],
    "overwrite": [CHUNK, STAGED, BEFORE_PUBLISH, BEFORE_COMMIT, AFTER_COMMIT, PUBLISHED],
}
DRIVER_NOTE = "driver"
"""The file that contains the driver's process group."""
BUCKETS = 3
WRITES = 4
"""The maximum number of repetitions of a write."""


class Kill:
    """Kills one process once; travels with the sink."""

    def __init__(
        self, folder: Path, data: Path, victim: str, moment: str, *, row: int, nth: int
    ) -> None:
        self.folder = str(folder)
        self.data = str(data)
        self.victim = victim
        self.moment = moment
        self.row = row
        self.nth = nth
        """The index among the moments of this kind."""

    def prepare(self) -> None:
        """Write the notes; the process that takes the last one dies or kills."""
        for place in range(self.nth):
            (Path(self.folder) / str(place)).touch()

    @property
    def has_happened(self) -> bool:
        return not (Path(self.folder) / str(self.nth - 1)).exists()

    def is_now(self, moment: str) -> bool:
        """Whether this is the moment; takes a note."""
        return moment == self.moment and self._took_the_last()

    def _took_the_last(self) -> bool:
        for place in range(self.nth):
            with suppress(FileNotFoundError):
                (Path(self.folder) / str(place)).unlink()
                return place == self.nth - 1
        return False

    def command(self) -> str:
        """The same for the server's shell, which runs it in the server's data folder; `%`
        represents the backend's id.
        """
        *decoys, last = [f"rm {self.folder}/{place} 2>/dev/null" for place in range(self.nth)]
        victim = "%" if self.victim == "backend" else "$(head -n 1 postmaster.pid)"
        return " || ".join([*decoys, f"{{ {last} && kill -9 {victim}; }}", "true"])

    async def at(self, moment: str, dsn: str) -> None:
        """Kill if this is the moment."""
        if self.is_now(moment):
            await self.strike(dsn)

    async def strike(self, dsn: str) -> None:
        """Kill now. Returns if another process is killed."""
        if self.victim == "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.victim == "backend":
            await _kill_a_backend(dsn)
        elif self.victim == "postmaster":
            os.kill(
                int((Path(self.data) / "postmaster.pid").read_text().split()[0]), signal.SIGKILL
            )
        else:
            os.killpg(int((Path(self.folder) / DRIVER_NOTE).read_text()), signal.SIGKILL)


async def _kill_a_backend(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        os.kill(await connection.fetchval("SELECT pg_backend_pid()"), signal.SIGKILL)
    finally:
        connection.terminate()


class StruckChunk(WrappingSink[Any]):
    """Kills when half of the chunk with a certain row is written."""

    def __init__(self, inner: Sink[Any], kill: Kill, dsn: str) -> None:
        super().__init__(inner)
        self.kill = kill
        self.dsn = dsn

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        if (
            self.kill.moment == CHUNK
            and any(row["id"] == self.kill.row for row in batch)
            and self.kill.is_now(CHUNK)
        ):
            half = len(batch) // 2
            await send(self.inner, batch.pick(range(half)))
            await self.kill.strike(self.dsn)
            batch = batch.pick(range(half, len(batch)))  # a worker outlives its driver for a while
        errors = await send(self.inner, batch)
        return WriteResult.failed(batch, errors) if errors else None


class StruckStages(TableStages):
    """The stages of a `StruckSink`."""

    struck: StruckSink

    @asynccontextmanager
    async def stage(self, epoch: Epoch) -> AsyncGenerator[OpenStage]:
        async with super().stage(epoch) as made:
            yield made
            await self.struck.kill.at(STAGED, self.struck.dsn)

    async def publish(self, *given: Any, **options: Any) -> Committed | None:
        struck = self.struck
        await struck.look()
        await struck.kill.at(BEFORE_PUBLISH, struck.dsn)
        before = await super().publish(*given, **options)
        await struck.kill.at(PUBLISHED, struck.dsn)
        await struck.look()
        return before


class StruckSink(PostgresSink):
    """Kills at moments of transactions, stages and publications; records the table's content before
    and after these.
    """

    kill: Kill
    dsn: str
    name: str

    @asynccontextmanager
    async def transaction(
        self, unit: Unit | PositionUnit | None
    ) -> AsyncGenerator[Transaction[Any]]:
        async with super().transaction(unit) as within:
            yield within
            await self.kill.at(BEFORE_COMMIT, self.dsn)
        await self.kill.at(AFTER_COMMIT, self.dsn)

    def _stages(self) -> StruckStages:
        stages = StruckStages(self._opened())
        stages.struck = self
        return stages

    async def look(self) -> None:
        with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):  # it is down
            connection = await asyncpg.connect(self.dsn)
            try:
                found = [
                    tuple(row)
                    for row in await connection.fetch(f"SELECT id, key, value FROM {self.name}")
                ]
            finally:
                connection.terminate()
            with (Path(self.kill.folder) / "seen").open("a") as seen:
                seen.write(f"{digest(found)}\n")


def digest(rows: Sequence[tuple[Any, ...]]) -> str:
    """Equal for equal rows in any order."""
    return f"{len(rows)} rows, {hashlib.sha256(repr(sorted(rows)).encode()).hexdigest()[:12]}"


class Killed:
    """One run. With `by_driver` the driver is killed, so another process begins the run, and this
    one repeats it.
    """

    def __init__(
        self, seed: int, server: tuple[str, Path], folder: Path, *, by_driver: bool = False
    ) -> None:
        rng = self.rng = random.Random(seed)
        self.seed = seed
        self.way = WAYS[seed % len(WAYS)]
        self.dsn, data = server
        self.folder = folder
        self.name = f"{'drivers' if by_driver else 'kills'}_{seed}"
        self.old: list[Row] = [
            (number, number % 97, rng.randrange(1000)) for number in range(rng.randint(1, 300))
        ]
        first = rng.randrange(300) if self.way == "at_least_once" else 1000
        self.new: list[Row] = [
            (number, number * 7919 % 97, rng.randrange(1000))
            for number in range(first, first + rng.randint(600, 2000))
        ]
        victim, moment = (
            ("driver", rng.choice(DRIVER[self.way])) if by_driver else rng.choice(KILLS[self.way])
        )
        row = rng.choice(self.new)[0]
        self.kill = Kill(folder, data, victim, moment, row=row, nth=self._nth(moment))
        self.streams = by_driver and self.way != "overwrite" and rng.random() < 0.5
        self.is_repeated = moment in {AFTER_COMMIT, PUBLISHED} or rng.random() < 0.25
        self.errors: list[BaseException] = []

    def _nth(self, moment: str) -> int:
        if moment == ROW and self.way in {"append", "overwrite"}:
            return self.rng.randint(1, 2)  # in its stage, or when it is moved into the table
        if moment == STAGED or (moment in {BEFORE_COMMIT, AFTER_COMMIT} and self.way == "bucket"):
            return self.rng.randint(1, BUCKETS)
        return 1

    def __repr__(self) -> str:
        kill = self.kill
        return (
            f"seed {self.seed}: {self.way}, {kill.victim} killed at {kill.moment} (number "
            f"{kill.nth}, row {kill.row})"
        )

    # -- actual and expected content ---------------------------------------------------------------

    def prepare(self) -> None:
        """Create the table with the old rows, and the notes."""
        row = self.kill.row if self.kill.moment == ROW else "NULL"
        unique = f"CREATE UNIQUE INDEX ON {self.name} (id);" if self.way == "at_least_once" else ""
        command = f"replace('{self.kill.command()}', '%', pg_backend_pid()::text)"
        query(
            self.dsn,
            f"""
            DROP TABLE IF EXISTS {self.name};
            CREATE OR REPLACE FUNCTION checked_{self.name}(id bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
                IF id = {row} THEN
                    EXECUTE 'COPY (SELECT 1) TO PROGRAM ' || quote_literal({command});
                END IF;
                RETURN true;
            END $$;
            CREATE TABLE {self.name} (id bigint, key bigint, value bigint, serial bigserial, CHECK (checked_{self.name}(id)));
            {unique}
            INSERT INTO {self.name} (id, key, value) VALUES {", ".join(map(repr, self.old))};
            """,
        )
        self.kill.prepare()  # now that the old rows exist

    def expected(self) -> list[Row]:
        """The rows of the table after the write."""
        if self.way == "at_least_once":
            return sorted({row[0]: row for row in [*self.old, *self.new]}.values())
        return sorted(self.new if self.way == "overwrite" else [*self.old, *self.new])

    def check(self, rows: list[tuple[Any, ...]]) -> None:
        """Compare the whole table."""
        found, expected = Counter(rows), Counter(self.expected())
        lost, more = expected - found, found - expected
        assert not lost, (
            f"{self}: {lost.total()} rows of {expected.total()} are lost, {sorted(lost)[:3]} "
            f"among them; {more.total()} too many"
        )
        assert not more, f"{self}: {more.total()} rows too many, {sorted(more)[:3]} among them"

    def check_seen(self) -> None:
        """Compare the contents recorded in between."""
        seen = self.folder / "seen"
        if seen.exists() and not self.streams:
            either = {digest(self.old), digest(self.expected())}
            odd = set(seen.read_text().splitlines()) - either
            assert not odd, f"{self}: the table had {odd}, and not {either}"

    # -- writing -----------------------------------------------------------------------------------

    def sink(self) -> Any:
        upsert: dict[str, Any] = (
            {"on_conflict": "update", "conflict_columns": ("id",)}
            if self.way == "at_least_once"
            else {}
        )
        destination = StruckSink(
            self.dsn, table=self.name, columns=("id", "key", "value"), pool_size=3, **upsert
        )
        destination.kill, destination.dsn, destination.name = self.kill, self.dsn, self.name
        return stack(StruckChunk(destination, self.kill, self.dsn), Timeout(30.0), Retry())

    def write(self, spark: Any) -> None:
        """Write once, as a batch or as a stream; raise Spark's error."""
        options: dict[str, Any] = {
            "key": "key",
            "order_by": "id",
            "buckets": BUCKETS,
            "chunk_rows": 150,
            "check": False,
        }
        options |= (
            {"delivery": self.way}
            if self.way in WAYS[:2]
            else {"delivery": "atomic", "mode": self.way}
        )
        if self.streams:
            self._stream(spark, options)
            return
        named: dict[str, Any] = (
            {} if self.way == "at_least_once" else {"app_id": self.name, "version": 1}
        )
        df = spark.createDataFrame(self.new, "id long, key long, value long")
        write_dataframe(df, self.sink(), **options, **named)

    def _stream(self, spark: Any, options: dict[str, Any]) -> None:
        source, half = self.folder / "source", len(self.new) // 2
        if not source.exists():
            source.mkdir()
            for number, part in enumerate((self.new[:half], self.new[half:])):
                (source / f"{number}.csv").write_text(
                    "".join(f"{id_},{key},{value}\n" for id_, key, value in part)
                )
        read = (
            spark.readStream.schema("id long, key long, value long")
            .option("maxFilesPerTrigger", 1)
            .csv(str(source))
        )
        writing = read.writeStream.foreachBatch(foreach_batch(self.sink(), **options)).trigger(
            availableNow=True
        )
        writing.option(
            "checkpointLocation", str(self.folder / "checkpoint")
        ).start().awaitTermination()

    def finish(self, spark: Any, server: EmbeddedPostgres) -> None:
        """Write until it succeeds, and compare."""
        with kept_up(server):
            self._write_until_done(spark)
            if self.is_repeated:
                self._write_until_done(spark)
        rows = self._rows(server)
        self.check_seen()
        self.check(rows)
        assert self.kill.has_happened, f"{self}: the moment never came"

    def _write_until_done(self, spark: Any) -> None:
        for left in reversed(range(WRITES)):
            try:
                self.write(spark)
            except Exception as error:
                self.errors.append(error)
                if not left:
                    raise
            else:
                return

    def _rows(self, server: EmbeddedPostgres) -> list[tuple[Any, ...]]:
        sql = f"SELECT id, key, value FROM {self.name} ORDER BY serial"
        try:
            rows = query(self.dsn, sql)
        except (OSError, asyncpg.PostgresError):  # it is still starting
            server.restart()
            rows = query(self.dsn, sql)
        return rows


@contextmanager
def kept_up(server: EmbeddedPostgres) -> Iterator[None]:
    """Restart the server whenever its main process has ended."""
    over, leave = os.pipe()
    watching = threading.Thread(target=_keep_up, args=(server, over), name="keeps the server up")
    watching.start()
    try:
        yield
    finally:
        os.close(leave)
        watching.join()
        os.close(over)


def _keep_up(server: EmbeddedPostgres, over: int) -> None:
    while True:
        server.start()
        pid = server.pid
        if pid is None:
            continue
        end = os.pidfd_open(pid)
        try:
            ready = select.select([end, over], [], [])[0]
        finally:
            os.close(end)
        if end not in ready:
            return
