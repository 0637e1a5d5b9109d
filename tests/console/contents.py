"""Contents of the stores that a console shows.

White box: the files of a spool are written directly, and the record of a park store.
"""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tests.cli.dlq_help import record
from tests.postgres.streams.served_help import subscribe

from sluicegate import RowBatch, send
from sluicegate._core.park_store import ParkedRecord
from sluicegate.files import FileSink
from sluicegate.flow.spooling.encoding import Codec
from sluicegate.flow.spooling.parked import ParkedItem
from sluicegate.flow.spooling.store import Store, Work
from sluicegate.postgres import PostgresParkStore

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.postgres.streams.log_help import Log

    from sluicegate.sinks import DeadLetterRecord

MARKUP = '"><img src=x onerror=alert(1)><script>alert(2)</script>'
KINDS = (
    ("permanent", "NotNullViolationError"),
    ("refused", "AccessError"),
    ("unknown", "ReadTimeout"),
)


def letters(number: int) -> list[DeadLetterRecord[Any]]:
    """Letters of three kinds of errors; each item and message has markup."""
    return [
        record(
            each,
            item={"n": each, "note": MARKUP},
            message=f"no {each} {MARKUP}",
            error_class=KINDS[each % 3][0],
            error_type=KINDS[each % 3][1],
            item_key=f"k{each}",
        )
        for each in range(number)
    ]


async def keep(path: Path, records: Iterable[DeadLetterRecord[Any]]) -> Path:
    """Keep letters in a file."""
    async with FileSink(path) as sink:
        assert await send(sink, RowBatch(records)) == {}
    return path


def fill_spool(folder: Path, *, parked: int = 3, left: int = 2) -> Path:
    """A closed spool with items that were parked, and items that were not sent yet."""
    folder.mkdir()
    encoded = Codec(None, None).encoded
    items = [{"n": number, "note": MARKUP} for number in range(parked + left)]
    store = Store(folder, writes=True, sends=True, durable=False, segment_bytes=1 << 16)
    with closing(store):
        store.open()
        store.apply([Work(puts=[encoded(item, 1_000_000_000) for item in items])])
        why = ("PermanentError", f"no such account {MARKUP}", 2, False)
        found = store.find([*range(parked)])
        store.parked.add([ParkedItem(each, 1_000_000_000, *why) for each in found])
        store.apply([Work(settles=[(0, parked)])])
    return folder


async def fill_streams(log: Log, con: Any) -> int:
    """Two subscriptions, one with unhandled messages, and parked keys of a consumer. Returns the
    position of the message at which a slot stands.
    """
    await log.append(con, "order-1", 0, 1, 2)
    (position, _) = await log.append(con, f"order-{MARKUP}", 0, 1)
    await subscribe(log, con, "billing", 1)
    await subscribe(log, con, "mails", 6)
    async with PostgresParkStore(log.dsn, schema=log.schema) as store:
        await store.park("ledger", "ann", [parked()])
    return position


def parked() -> ParkedRecord:
    """A parked record with markup."""
    return ParkedRecord(
        topic="orders",
        partition=3,
        offset=17,
        key=b"ann",
        value=MARKUP,
        reason=f"declined {MARKUP}",
        error_type="CardError",
        message=MARKUP,
        attempts=5,
        parked_at=datetime.now(UTC),
    )
