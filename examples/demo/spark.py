"""The demo's last scene: Spark upserts flights per aircraft, in order; an executor is killed.

1. The executors are separate processes, and each bucket of aircraft is one transaction that commits
   once. So a killed executor loses only its uncommitted work, which another executor repeats.
2. The table itself counts how often a flight replaced a later one.
3. The proof compares the table with the flights that the first scene has proven to be in the same
   database.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import psutil

from sluicegate.spark import Pipeline
from sluicegate.spark.java import cancel, has_java
from sluicegate.spark.pipeline import Destination, Layer, Source, SparkSettings, Step, Write

from .flights import FlightFile
from .proof import CONNECT_SECONDS, Finding

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate.spark import PipelineReport

EXECUTORS = 2
BUCKETS = 8
CARRIERS = ("B6", "MQ")
"""The carriers whose aircraft fly the most."""
CHUNK_ROWS = 250
"""Few, so that the flights of every second aircraft are several upserts, whose order then matters."""
LOOK_SECONDS = 0.05
VERSION = 1

_TYPES = {
    "carrier": "STRING",
    "tailnum": "STRING",
    "origin": "STRING",
    "dest": "STRING",
    "time_hour": "STRING",
}
_LEG = ("tailnum", "at", "carrier", "flight", "origin", "dest")
_ORDER = _LEG[1:]
_AT = "((({0}year * 100 + month) * 100 + day) * 100 + hour) * 100 + minute"
_CHOSEN = f"tailnum IS NOT NULL AND carrier IN {CARRIERS}"
_LEGS = (
    f"SELECT tailnum, {_AT.format('1L * ')} AS at, carrier, flight, origin, dest FROM "
    f"flights WHERE {_CHOSEN}"
)
_TABLE = """
CREATE TABLE {schema}.aircraft (tailnum text PRIMARY KEY, at bigint NOT NULL, carrier text, flight integer, origin text, dest text,
    upserts integer NOT NULL DEFAULT 1, older integer NOT NULL DEFAULT 0);
CREATE FUNCTION {schema}.count_order() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.upserts := OLD.upserts + 1;
    NEW.older := OLD.older + (NEW.at < OLD.at)::integer;
    RETURN NEW;
END $$;
CREATE TRIGGER count_order BEFORE UPDATE ON {schema}.aircraft FOR EACH ROW EXECUTE FUNCTION {schema}.count_order();
"""
_LATEST = """
SELECT DISTINCT ON (tailnum) tailnum, at, carrier, flight, origin, dest
FROM (SELECT tailnum, {at} AS at, carrier, flight, origin, dest FROM {schema}.flights WHERE {chosen}) AS legs
ORDER BY tailnum, at DESC, carrier COLLATE "C" DESC, flight DESC, origin COLLATE "C" DESC, dest COLLATE "C" DESC
"""
_SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that lives for a minute does not benefit from its second compiler, nor from a garbage
collector with its own threads.
"""
_QUIET = """
appender.none.type = Null
appender.none.name = none
rootLogger.level = off
rootLogger.appenderRef.none.ref = none
"""
"""Without an appender Spark uses its own configuration, which logs every block of the killed
executor.
"""


def unavailable_reason() -> str | None:
    """The reason why the scene cannot run; `None` if it can."""
    if importlib.util.find_spec("pyspark") is None:
        return "PySpark is not installed; `make demo-spark` installs it"
    return None if has_java() else "Spark needs Java: no `java` on the PATH, no JAVA_HOME"


class SparkScene:
    """One run of the scene, in a schema that has the flights; reports through `say`."""

    def __init__(self, dsn: str, schema: str, file: FlightFile, say: Callable[[str], None]) -> None:
        self._dsn = dsn
        self._schema = schema
        self._file = file
        self._say = say
        self.killed = 0
        """Number of killed executors; 0 if the write ended before the kill."""

    async def play(self) -> list[Finding]:
        """Write, and prove the result; cancellation ends Spark's jobs and cleans up."""
        folder = Path(tempfile.mkdtemp(prefix="sluicegate-demo-spark-"))
        before = _work_folders()
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        try:
            await self._execute(_TABLE.format(schema=self._schema))
            with self._file:
                self._file.copy_to(folder / "flights.csv")
            report = await self._write(self._pipeline(folder))
            return await self._prove(report)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            _remove_work(before)

    def _pipeline(self, folder: Path) -> Pipeline:
        (folder / "log4j2.properties").write_text(_QUIET, encoding="utf-8")
        schema = ", ".join(f"{name} {_TYPES.get(name, 'INT')}" for name in FlightFile.COLUMNS)
        return Pipeline(
            name="demo",
            spark=SparkSettings(
                master=f"local-cluster[{EXECUTORS},1,1024]",
                conf={
                    "spark.ui.enabled": False,
                    "spark.driver.host": "127.0.0.1",
                    "spark.driver.bindAddress": "127.0.0.1",
                    # blocks of a killed executor are lost
                    "spark.shuffle.io.retryWait": "100ms",
                    "spark.driver.extraJavaOptions": f"{_SHORT} "
                    f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}",
                    "spark.executor.extraJavaOptions": _SHORT,
                    # they import PySpark like this process, not from Spark's zip, which has no
                    # bytecode
                    "spark.executorEnv.SPARK_HOME": str(folder),
                },
            ),
            sources={
                "flights": Source(
                    format="csv",
                    path=str(folder / "flights.csv"),
                    schema=schema,
                    options={"header": True, "nullValue": "NA"},
                )
            },
            steps={"legs": Step(sql=_LEGS)},
            sinks={
                "aircraft": Destination(
                    kind="postgres",
                    arguments={
                        "dsn": self._dsn,
                        "table": "aircraft",
                        "schema": self._schema,
                        "on_conflict": "update",
                        "conflict_columns": ["tailnum"],
                    },
                    stack=[Layer(kind="timeout", arguments={"seconds": 20.0})],
                )
            },
            write=Write(
                view="legs",
                sink="aircraft",
                key="tailnum",
                order_by=_ORDER,
                buckets=BUCKETS,
                chunk_rows=CHUNK_ROWS,
                delivery="bucket",
                version=VERSION,
            ),
        )

    async def _write(self, pipeline: Pipeline) -> PipelineReport:
        self._say(
            f"the flights of {' and '.join(CARRIERS)} through Spark: {EXECUTORS} executors upsert "
            "the latest flight of each aircraft, in order"
        )
        killing = asyncio.create_task(self._kill_one())
        thread = ThreadPoolExecutor(1, thread_name_prefix="demo spark")
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, pipeline.run)
        except asyncio.CancelledError:
            cancel()
            raise
        finally:
            killing.cancel()
            thread.shutdown(wait=True)

    async def _kill_one(self) -> None:
        """Kill an executor once the first bucket has been committed."""
        connection = await asyncpg.connect(self._dsn, timeout=CONNECT_SECONDS)
        try:
            while not await connection.fetchval(  # noqa: ASYNC110  # Spark's processes write them
                f"SELECT EXISTS (SELECT FROM {self._schema}.aircraft)"
            ):
                await asyncio.sleep(LOOK_SECONDS)
            executor = next(filter(_is_executor, psutil.Process().children(recursive=True)), None)
            if executor is not None:
                self._say("killing an executor with SIGKILL")
                executor.kill()
                self.killed += 1
        finally:
            connection.terminate()

    async def _execute(self, sql: str) -> None:
        connection = await asyncpg.connect(self._dsn, timeout=CONNECT_SECONDS)
        try:
            await connection.execute(sql)
        finally:
            connection.terminate()

    async def _prove(self, report: PipelineReport) -> list[Finding]:
        at = _AT.format("1::bigint * ")
        latest = _LATEST.format(schema=self._schema, at=at, chosen=_CHOSEN)
        stored = f"SELECT tailnum, at, carrier, flight, origin, dest FROM {self._schema}.aircraft"
        differences = (
            f"SELECT count(*) FROM (({latest}) EXCEPT ({stored}) UNION ALL "
            f"(({stored}) EXCEPT ({latest}))) AS rows"
        )
        connection = await asyncpg.connect(self._dsn, timeout=CONNECT_SECONDS)
        try:
            legs, aircraft = await connection.fetchrow(
                f"SELECT count(*), count(DISTINCT tailnum) FROM {self._schema}.flights WHERE {_CHOSEN}"
            ) or (
                0,
                0,
            )
            rows, older = await connection.fetchrow(
                f"SELECT count(*), sum(older) FROM {self._schema}.aircraft"
            ) or (0, 0)
            different = await connection.fetchval(differences)
        finally:
            connection.terminate()
        return [
            Finding(
                "flights, counted by Spark's report", legs, report.delivered + report.duplicate
            ),
            Finding("aircraft in the table", aircraft, rows),
            Finding("aircraft whose row is not their latest flight", 0, different),
            Finding("times that an older flight replaced a later one", 0, older),
        ]


def _is_executor(process: psutil.Process) -> bool:
    try:
        return any("CoarseGrainedExecutorBackend" in part for part in process.cmdline())
    except psutil.Error:
        return False


def _work() -> Path:
    """The folder in which workers of a local cluster keep the logs of their executors."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "work"


def _work_folders() -> set[Path]:
    return set(_work().glob("app-*"))


def _remove_work(before: set[Path]) -> None:
    """Remove the new folders, and their parent if it is empty afterwards."""
    for folder in _work_folders() - before:
        shutil.rmtree(folder, ignore_errors=True)
    try:
        _work().rmdir()
    except OSError:
        pass  # in use, or never created
