"""Change capture: every change of a table's rows goes to a Kafka topic, in order per row, even if the
relay is killed. A consumer of the topic verifies it.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from typing import TYPE_CHECKING, Any

import asyncpg
from aiokafka import AIOKafkaConsumer

import sluicegate
from sluicegate import Batcher, Limits, Retry, flow, stack
from sluicegate.kafka import KafkaSink
from sluicegate.postgres import PostgresStreamSource, install_streams
from sluicegate.testing import embedded_kafka, embedded_postgres

if TYPE_CHECKING:
    from sluicegate import Message

ACCOUNTS, WRITERS, TRANSFERS = 50, 4, 100

TABLE = """
CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL CHECK (balance >= 0));

CREATE FUNCTION capture() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  change jsonb := jsonb_build_object(
    'type', lower(TG_OP), 'data', jsonb_build_object('before', OLD, 'after', NEW));
BEGIN
  PERFORM sluicegate.append('account-' || coalesce(NEW.id, OLD.id), jsonb_build_array(change));
  RETURN NULL;
END $$;

CREATE TRIGGER capture AFTER INSERT OR UPDATE OR DELETE ON accounts
  FOR EACH ROW EXECUTE FUNCTION capture();
"""


def to_record(message: Message) -> dict[str, Any]:
    row = json.loads(message.value)["after"]
    return {
        "key": message.key,
        "value": None if row is None else json.dumps(row),  # a tombstone for a deleted row
        "headers": message.headers,  # id, version and type
    }


def make_relay(
    bootstrap: str, dsn: str, topic: str = "accounts", *, ends: bool = False
) -> flow.Pipe:
    source = PostgresStreamSource(
        dsn, subscription="to-kafka", category="account", lease=2.0, ends=ends
    )
    records = KafkaSink(topic, bootstrap=bootstrap, value="value", headers="headers")
    batcher = Batcher(
        stack(records, Retry(attempts=5)),
        key=lambda record: record["key"],
        limits=Limits(max_items=5_000, max_delay=0.1, max_pending_items=16_384, workers=1),
    )
    return flow.pipe(source, batcher, to_record, name="to-kafka")


async def write(dsn: str, chance: random.Random) -> None:
    """Make transfers; some are refused, since the balance of an account is too low."""
    connection = await asyncpg.connect(dsn)
    for _ in range(TRANSFERS):
        one, other = sorted(chance.sample(range(ACCOUNTS), 2))
        amount = chance.randrange(-80, 80)
        try:
            async with connection.transaction():
                change = "UPDATE accounts SET balance = balance + $2 WHERE id = $1"
                await connection.execute(change, one, amount)
                await connection.execute(change, other, -amount)
        except asyncpg.CheckViolationError:
            pass
    await connection.close()


async def main(bootstrap: str, dsn: str) -> None:
    await install_streams(dsn)
    connection = await asyncpg.connect(dsn)
    await connection.execute(TABLE)
    await connection.execute(
        "INSERT INTO accounts SELECT id, 100 FROM generate_series(0, $1) AS id", ACCOUNTS - 1
    )
    topic: Any = AIOKafkaConsumer(
        "accounts", bootstrap_servers=bootstrap, auto_offset_reset="earliest"
    )
    await topic.start()

    relay = await asyncio.create_subprocess_exec(sys.executable, __file__, bootstrap, dsn)
    first = await topic.getone()
    writers = [write(dsn, random.Random(seed)) for seed in range(WRITERS)]
    written = asyncio.gather(*writers)
    records = [first, *[await topic.getone() for _ in range(ACCOUNTS + TRANSFERS)]]
    relay.kill()
    await relay.wait()
    await written
    await connection.execute("DELETE FROM accounts WHERE id % 10 = 0")
    report = await make_relay(bootstrap, dsn, ends=True).run()

    ends = await topic.end_offsets(topic.assignment())
    while any([await topic.position(partition) < end for partition, end in ends.items()]):
        records.append(await topic.getone())
    await topic.stop()
    print("complete:", report.complete)
    await compare(connection, records)
    await connection.close()


async def compare(connection: asyncpg.Connection, records: list[Any]) -> None:
    """Compare the topic with the database; repeated records count once."""
    last: dict[bytes, bytes | None] = {}
    changes: dict[bytes, bytes] = {}
    versions: dict[bytes, list[int]] = {}
    for record in records:
        last[record.key] = record.value
        headers = dict(record.headers)
        if headers["id"] not in changes:
            changes[headers["id"]] = record.key
            versions.setdefault(record.key, []).append(int(headers["version"]))

    ids = await connection.fetch("SELECT id::text FROM sluicegate.message")
    print("every change is there:", changes.keys() == {row["id"].encode() for row in ids})
    in_order = all(each == list(range(len(each))) for each in versions.values())
    print("in order per row:", in_order)
    there = [json.loads(value) for value in last.values() if value is not None]
    rows = [dict(row) for row in await connection.fetch("SELECT * FROM accounts ORDER BY id")]
    print("the last records are the table:", sorted(there, key=lambda row: row["id"]) == rows)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sluicegate.run(make_relay(*sys.argv[1:]).run())
    else:
        with embedded_kafka() as broker, embedded_postgres() as server:
            broker.create_topic("accounts", partitions=4)
            asyncio.run(main(broker.bootstrap, server.dsn))
