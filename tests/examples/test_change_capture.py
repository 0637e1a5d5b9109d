"""The page on change capture: its program runs on a broker and a database, and its relay is killed.

`SLUICEGATE_KILLS=100 pytest -m soak tests/examples/test_change_capture.py` kills 100 times.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from aiokafka import AIOKafkaConsumer
from table_help import covered
from tests.children import child
from tests.examples.example import EXAMPLES, load, printed_on
from tests.kafka.source.kafka_help import new_topic

from sluicegate.consumer import Position
from sluicegate.postgres import install_streams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedKafka

KILLS = int(os.environ.get("SLUICEGATE_KILLS", "20"))
PROGRAM = EXAMPLES / "change_capture.py"
UPSERT = """
INSERT INTO accounts SELECT n, 100 FROM generate_series(0, $1 - 1) AS n
ON CONFLICT (id) DO UPDATE SET balance = 100
"""
TELL_OF_STORES = """
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_notify('stored', ''); RETURN NULL; END $$;
CREATE TRIGGER tell AFTER UPDATE OF position ON sluicegate.subscription_slot EXECUTE FUNCTION tell();
"""
END_SESSIONS = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest.mark.long
def test_changes_of_rows_reach_a_topic_though_the_relay_is_killed(
    embedded_kafka: EmbeddedKafka, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program's own consumer of the topic finds each change, in order per row."""
    embedded_kafka.create_topic("accounts", partitions=4)
    asyncio.run(load("change_capture").main(embedded_kafka.bootstrap, database))
    assert capsys.readouterr().out == printed_on("how-to/keep-an-outbox.md")[1]


@pytest.mark.long
async def test_a_relay_that_is_killed_repeats_only_changes_that_were_not_stored(
    embedded_kafka: EmbeddedKafka, database: str, real_clock: LoopClock
) -> None:
    """S-T2: no change is lost, according to a separate consumer."""
    await killed(embedded_kafka, database, 2)


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_a_relay_that_is_killed_many_times(
    embedded_kafka: EmbeddedKafka, database: str, real_clock: LoopClock
) -> None:
    """S-T2: `SLUICEGATE_KILLS` times."""
    await killed(embedded_kafka, database, KILLS)


class Topic:
    """The records that a separate consumer has read."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._forbidden: set[str] = set()
        self.ids: set[str] = set()
        self.versions: dict[str, list[int]] = {}
        """By stream, in the order of their first arrival."""

    async def read(self, count: int) -> None:
        """Read this many more records."""
        for _ in range(count):
            record = await self._client.getone()
            headers = dict(record.headers)
            ident = headers["id"].decode()
            assert ident not in self._forbidden, "a change came again that was stored"
            if ident not in self.ids:
                self.ids.add(ident)
                versions = self.versions.setdefault(record.key.decode(), [])
                versions.append(int(headers["version"]))

    async def read_all(self) -> None:
        """Read all present records."""
        ends = await self._client.end_offsets(self._client.assignment())
        while any([await self._client.position(part) < end for part, end in ends.items()]):
            await self.read(1)

    def forbid(self, ids: set[str]) -> None:
        """None of these may arrive from now on."""
        assert ids, "nothing was stored when the relay was killed"
        assert ids <= self.ids, "a change was stored that is not in the topic"
        self._forbidden = ids


@asynccontextmanager
async def reading(broker: EmbeddedKafka, topic: str) -> AsyncIterator[Topic]:
    client: Any = AIOKafkaConsumer(
        topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest"
    )
    async with client:
        yield Topic(client)


async def killed(broker: EmbeddedKafka, dsn: str, times: int) -> None:
    """Kill the relay while rows are written; afterwards only changes that were not stored may be
    repeated.
    """
    module, chance, name = load("change_capture"), random.Random(0), await new_topic(broker, 4)
    await install_streams(dsn)
    con = await asyncpg.connect(dsn)
    await con.execute(module.TABLE)
    await con.execute(TELL_OF_STORES)
    is_stored = asyncio.Event()
    await con.add_listener("stored", lambda *_: is_stored.set())
    async with reading(broker, name) as topic:
        for _ in range(times):
            is_stored.clear()
            await con.execute(UPSERT, module.ACCOUNTS)
            async with child(sys.executable, str(PROGRAM), broker.bootstrap, dsn, name):
                await is_stored.wait()
                await topic.read_all()
                writers = [module.write(dsn, chance) for _ in range(module.WRITERS)]
                written = asyncio.gather(*writers)
                await topic.read(chance.randrange(module.TRANSFERS))
            await written
            await con.execute(END_SESSIONS)
            await topic.read_all()
            topic.forbid(await stored(con))
        report = await module.make_relay(broker.bootstrap, dsn, name, ends=True).run()
        await topic.read_all()
    assert report.complete
    appended = await con.fetch("SELECT id::text, stream, version FROM sluicegate.message")
    assert topic.versions.keys() == {row["stream"] for row in appended}
    assert topic.ids == {row["id"] for row in appended}
    for versions in topic.versions.values():
        assert versions == list(range(len(versions))), "in order per row, without a gap"
    await con.close()


async def stored(con: Any) -> set[str]:
    """The ids of the messages that the subscription has stored as delivered."""
    slots = await con.fetch("SELECT slot, position, metadata FROM sluicegate.subscription_slot")
    settled = {slot: Position(position, metadata) for slot, position, metadata in slots}
    messages = await con.fetch("SELECT id::text, slot, position FROM sluicegate.message")
    behind = {slot: covered(position) for slot, position in settled.items()}
    return {row["id"] for row in messages if row["position"] in behind[row["slot"]]}
