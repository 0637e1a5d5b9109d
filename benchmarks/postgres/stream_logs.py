"""Two peers with streams in PostgreSQL: eventsourcing and depeche_db. Both are synchronous."""

from __future__ import annotations

import hashlib
import uuid
from datetime import UTC, datetime
from typing import Any

from ..stopwatch import Stopwatch, Took

BATCH = 100
DATA = {"amount": 30, "currency": "EUR"}
JSON = '{"amount": 30, "currency": "EUR"}'
CONNECTIONS = 32


def eventsourcing_recorder(dsn: str, table: str, pool_size: int) -> Any:
    """Make a recorder of eventsourcing, and create its table."""
    from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore

    store = PostgresDatastore(**_address(dsn), pool_size=pool_size)
    recorder = PostgresApplicationRecorder(store, events_table_name=table)
    recorder.create_table()
    return recorder


def _address(dsn: str) -> dict[str, Any]:
    from psycopg.conninfo import conninfo_to_dict

    told = conninfo_to_dict(dsn)
    return {
        "dbname": told["dbname"],
        "host": told["host"],
        "port": told.get("port", 5432),
        "user": told["user"],
        "password": told.get("password", ""),
    }


def stored_event(stream: uuid.UUID, version: int) -> Any:
    from eventsourcing.persistence import StoredEvent

    return StoredEvent(stream, version, "orders:Placed", JSON.encode())


def depeche_store(dsn: str, name: str) -> tuple[Any, Any]:
    """Return a store of depeche_db, and a function that makes a message."""
    import sqlalchemy
    from depeche_db import MessageStore
    from depeche_db.tools import PydanticMessageSerializer
    from pydantic import BaseModel, Field

    class Placed(BaseModel):
        message_id: uuid.UUID = Field(default_factory=uuid.uuid4)
        at: datetime = Field(default_factory=lambda: datetime.now(UTC))
        amount: int = 30
        currency: str = "EUR"

        def get_message_id(self) -> uuid.UUID:
            return self.message_id

        def get_message_time(self) -> datetime:
            return self.at

    url = dsn.replace("postgresql://", "postgresql+psycopg://", 1)
    engine = sqlalchemy.create_engine(url, pool_size=CONNECTIONS, max_overflow=8)
    return MessageStore(name, engine, PydanticMessageSerializer(Placed)), Placed


def read_depeche(store: Any, message: type[Any], count: int, *, whole: bool) -> Took:
    from depeche_db import AckStrategy, MessageHandlerRegister

    class BySlot:
        def get_partition(self, message: Any) -> int:
            return hashlib.sha256(message.stream.encode()).digest()[0]

    seen = 0
    handlers: Any = MessageHandlerRegister()

    def handle(event: Any) -> None:
        nonlocal seen
        seen += 1

    handle.__annotations__["event"] = message
    handlers.register(handle)
    name = f"s{uuid.uuid4().hex[:12]}"
    stream = store.aggregated_stream(name=name, partitioner=BySlot(), stream_wildcards=["order-%"])
    subscription = stream.subscription(
        name=f"x{uuid.uuid4().hex[:12]}",
        handlers=handlers,
        batch_size=BATCH,
        ack_strategy=AckStrategy.BATCHED,
    )
    projecting = Stopwatch()
    stream.projector.run()
    projected = projecting.read()
    watch = Stopwatch()
    subscription.runner.run()
    took = watch.read()
    assert seen == count, f"{seen} of {count}"
    return took + projected if whole else took


def read_eventsourcing(recorder: Any, tracking: Any, count: int) -> Took:
    from eventsourcing.persistence import Tracking

    seen, last, name = 0, None, uuid.uuid4().hex
    watch = Stopwatch()
    while True:
        found = recorder.select_notifications(start=last, limit=BATCH, inclusive_of_start=False)
        if not found:
            break
        for notification in found:
            last = int(notification.id)
            tracking.insert_tracking(Tracking(name, last))
            seen += 1
    took = watch.read()
    assert seen == count, f"{seen} of {count}"
    return took
