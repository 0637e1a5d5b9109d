"""A backfill from files: the orders of two months, in order per customer. The first run is stopped in
the middle, and the next one continues there.
"""

from __future__ import annotations

import asyncio
import gzip
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from sluicegate import Consumer
from sluicegate.files import FileSource

if TYPE_CHECKING:
    from sluicegate import Message

MONTHS = {
    "2026-01.csv": 'customer,cents,note\nann,1250,"leave it\nat the door"\nbob,300,\n',
    "2026-02.csv.gz": "customer,cents,note\nann,999,\ncid,475,\nann,50,\n",
}


def export(folder: Path) -> None:
    for name, rows in MONTHS.items():
        content = rows.encode()
        folder.joinpath(name).write_bytes(
            gzip.compress(content) if name.endswith(".gz") else content
        )


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        export(Path(folder))

        async def book(message: Message) -> None:
            row = message.value
            print(
                f"{message.header('file')} row {message.offset}: {row['customer']} {row['cents']}"
            )
            if row["customer"] == "bob":
                first.stop()

        first = Consumer(FileSource(folder, key="customer"), name="first", concurrency=1)
        print(await first.run(book))
        second = Consumer(FileSource(folder, key="customer"), name="second", concurrency=1)
        print(await second.run(book))


if __name__ == "__main__":
    asyncio.run(main())
