"""P-T24: Kafka, windows with late data, PostgreSQL; the driver is killed between two buckets, the
broker during the query.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from tests.spark.kafka.kafka_help import produce
from tests.spark.kafka.windows_driver import BUCKETS, Plan
from tests.spark.sql import query

from sluicegate.errors import MissingJars
from sluicegate.spark import connector_jars
from sluicegate.testing import EmbeddedUnavailable, embedded_kafka
from sluicegate.testing.servers.require import skip_or_fail

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sluicegate.testing import EmbeddedKafka, EmbeddedPostgres

DRIVER = Path(__file__).parent / "windows_driver.py"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
PARTITIONS = 3
SCHEMA = """
DROP TABLE IF EXISTS windows, written;
CREATE TABLE windows (key text, starts timestamptz, events bigint, amount bigint, PRIMARY KEY (key, starts));
CREATE TABLE written (key text, starts timestamptz);
CREATE OR REPLACE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO written VALUES (NEW.key, NEW.starts); RETURN NULL; END $$;
CREATE TRIGGER noted AFTER INSERT OR UPDATE ON windows FOR EACH ROW EXECUTE FUNCTION note();
"""
WRITES = (
    "SELECT writes, count(*) FROM (SELECT count(*) AS writes FROM written GROUP BY key, "
    "starts) AS w GROUP BY 1 ORDER BY 1"
)
"""The number of windows by the number of their writes."""


@dataclass(frozen=True, slots=True)
class Event:
    """A record of the producer."""

    key: str
    at: float
    """Seconds after the start."""
    amount: int

    def to_json(self) -> bytes:
        return json.dumps(
            {
                "key": self.key,
                "at": (BEGIN + timedelta(seconds=self.at)).isoformat(),
                "amount": self.amount,
            }
        ).encode()

    @property
    def window(self) -> tuple[str, datetime]:
        return self.key, BEGIN + timedelta(minutes=self.at // 60)


def events(
    count: int, *, keys: int, since: float, until: float, seed: int, late: float = 0.0
) -> list[Event]:
    """Events in the order of their times, up to `late` seconds behind."""
    random = Random(seed)
    made = [
        Event(
            f"key {random.randrange(keys)}",
            since + number * (until - since) / count,
            random.randrange(1_000),
        )
        for number in range(count)
    ]
    return [replace(event, at=max(since, event.at - random.uniform(0, late))) for event in made]


class Truth:
    """The expected content of the table: the sums of events sent in time."""

    def __init__(self) -> None:
        self.events: Counter[tuple[str, datetime]] = Counter()
        self.amount: Counter[tuple[str, datetime]] = Counter()

    def add(self, given: Sequence[Event]) -> None:
        for event in given:
            self.events[event.window] += 1
            self.amount[event.window] += event.amount

    def rows(self) -> list[tuple[str, datetime, int, int]]:
        return sorted(
            (*window, count, self.amount[window]) for window, count in self.events.items()
        )


class Driver:
    """A driver in its own process."""

    def __init__(self, plan: Plan) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(DRIVER), plan.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )

    def wait_for(self, word: str) -> None:
        """Read until it prints this."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(word):
                return
        raise AssertionError(
            f"the driver ended with {self.process.wait()} and did not say {word!r}"
        )

    def drain(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("drain\n")
        self.wait_for("drained")

    def die(self) -> int:
        """Read until it is dead."""
        assert self.process.stdout is not None
        for _ in self.process.stdout:
            pass
        return self.process.wait()

    def end(self) -> int:
        """Let it end in order."""
        self.process.communicate()
        return self.process.returncode


@contextmanager
def driver(plan: Plan) -> Iterator[Driver]:
    """A driver; it ends no later than the context."""
    started = Driver(plan)
    try:
        yield started
    finally:
        with started.process:
            if started.process.poll() is None:
                os.killpg(started.process.pid, signal.SIGKILL)


def send(plan: Plan, given: Sequence[Event]) -> None:
    produce(plan.bootstrap, plan.topic, [event.to_json() for event in given], partitions=PARTITIONS)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedKafka]:
    """A broker for this module, which tests kill."""
    try:
        connector_jars("kafka")
        context = embedded_kafka()
        server = context.__enter__()
    except (MissingJars, EmbeddedUnavailable) as error:
        skip_or_fail("kafka", str(error))
    if not server.is_ours:
        pytest.skip("a broker that is not ours is not killed")
    yield server
    context.__exit__(None, None, None)


def run(
    broker: EmbeddedKafka,
    plan: Plan,
    *,
    count: int,
    keys: int,
    deaths: Sequence[int] = (BUCKETS + 2,),
) -> Truth:
    """Run all phases, with a death of the driver before each of these writes; return the expected
    content of the table.
    """
    truth = Truth()
    query(plan.dsn, SCHEMA)
    broker.create_topic(plan.topic, partitions=PARTITIONS)
    first = events(count, keys=keys, since=0, until=600, late=20, seed=1)
    send(plan, first)
    truth.add(first)

    fewest: list[int] = []  # the minimum number of keys in a window, after each death
    for write in deaths:
        with driver(replace(plan, dies_at=write)) as dies:
            assert dies.die() == -signal.SIGKILL
        fewest += query(
            plan.dsn, "SELECT count(*) FROM windows GROUP BY starts ORDER BY 1 LIMIT 1"
        )[0]
    assert min(fewest) < keys, "killed between two buckets of a micro-batch"

    with driver(plan) as goes_on:
        goes_on.drain()
        broker.kill()
        broker.start()
        second = events(count // 3, keys=keys, since=600, until=900, late=20, seed=2)
        truth.add(second)
        too_late = events(count // 3, keys=keys, since=0, until=300, seed=3)
        send(plan, [event for pair in zip(second, too_late, strict=True) for event in pair])
        goes_on.drain()
        send(plan, [Event("last", 3600, 0)] * PARTITIONS)  # closes every window but its own
        goes_on.drain()
        assert goes_on.end() == 0
    return truth


def plan_for(
    broker: EmbeddedKafka, postgres: EmbeddedPostgres, folder: Path, delivery: Any, **settings: int
) -> Plan:
    return Plan(
        bootstrap=broker.bootstrap,
        topic=f"events-{delivery}-{settings['records_per_batch']}",
        dsn=postgres.dsn,
        checkpoint=str(folder / "checkpoint"),
        delivery=delivery,
        **settings,
    )


@pytest.mark.parametrize(
    ("count", "keys", "records_per_batch", "deaths"),
    [
        pytest.param(1_800, 20, 600, (BUCKETS + 2,), marks=pytest.mark.long),
        pytest.param(300_000, 500, 20_000, (BUCKETS + 2, 1, 7, 3, 6), marks=pytest.mark.soak),
    ],
)
@pytest.mark.timeout(1500)
def test_each_window_is_written_exactly_once_though_driver_and_broker_are_killed(
    broker: EmbeddedKafka,
    embedded_postgres: EmbeddedPostgres,
    tmp_path: Path,
    count: int,
    keys: int,
    records_per_batch: int,
    deaths: Sequence[int],
) -> None:
    """P-T24: the driver is killed between two buckets of a micro-batch and restarted from the
    checkpoint; the broker is killed meanwhile.
    """
    plan = plan_for(
        broker, embedded_postgres, tmp_path, "bucket", records_per_batch=records_per_batch
    )
    truth = run(broker, plan, count=count, keys=keys, deaths=deaths)
    assert (
        query(plan.dsn, "SELECT key, starts, events, amount FROM windows ORDER BY 1, 2")
        == truth.rows()
    )
    assert query(plan.dsn, WRITES) == [(1, len(truth.events))]


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_upserts_at_least_once_come_to_the_same_table_and_write_again(
    broker: EmbeddedKafka, embedded_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """P-T24: a table with a unique key hides repeated writes, but its write log shows them."""
    plan = plan_for(
        broker, embedded_postgres, tmp_path, "at_least_once", records_per_batch=601, chunk_rows=10
    )
    truth = run(broker, plan, count=1_800, keys=20, deaths=(2 * BUCKETS,))
    assert (
        query(plan.dsn, "SELECT key, starts, events, amount FROM windows ORDER BY 1, 2")
        == truth.rows()
    )
    assert [writes for writes, _ in query(plan.dsn, WRITES)] == [1, 2]
