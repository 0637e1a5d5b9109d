"""Tables for tests of `ClickHouseSink`, read by a separate connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.http.access_help import access_from

from sluicegate import RowBatch, send
from sluicegate.clickhouse import ClickHouseSink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.clickhouse.servers import ClickHouseServer

TOKENS = " SETTINGS non_replicated_deduplication_window = 1000"

PLAIN = {"verify": False}
"""Without TLS, so no certificates are read for each client."""


class Words:
    """The table `words` of a server."""

    def __init__(self, server: ClickHouseServer, **options: Any) -> None:
        self.server = server
        self.options = options
        self.make()

    def make(
        self,
        columns: str = "id UInt32, word String",
        *,
        order: str = "id",
        partition: str = "tuple()",
        after: str = "",
    ) -> None:
        """Recreate the table; it keeps tokens if the server supports them."""
        self.server.run("DROP TABLE IF EXISTS words")
        tokens = after or (TOKENS if self.options.get("deduplicate", True) else "")
        self.server.run(
            f"CREATE TABLE words ({columns}) ENGINE = MergeTree PARTITION BY {partition} "
            f"ORDER BY {order}{tokens}"
        )

    def rows(self, columns: str = "id, word", order: str = "id") -> list[tuple[str, ...]]:
        """The contents of the table."""
        return self.server.rows(f"SELECT {columns} FROM words ORDER BY {order}")

    async def looked(self, columns: str = "id, word", order: str = "id") -> list[tuple[str, ...]]:
        """Like `rows`, for use outside the event loop."""
        return await asyncio.to_thread(self.rows, columns, order)

    def sink(self, **options: Any) -> ClickHouseSink:
        """A sink of the table."""
        given: dict[str, Any] = {
            "table": "words",
            "client_options": PLAIN,
            **self.options,
            **options,
        }
        return ClickHouseSink(access_from(given.pop("url", self.server.url), given), **given)


async def written(
    sink: ClickHouseSink, items: Sequence[Any], **options: Any
) -> dict[int, BaseException]:
    """Write items in one batch; return the errors."""
    return await send(sink, RowBatch(items, **options))


def told(rows: Sequence[tuple[object, ...]]) -> list[tuple[str, ...]]:
    """Rows in the form of a query result."""
    return [tuple(map(str, row)) for row in rows]


def bad(errors: dict[int, BaseException]) -> list[int]:
    """The indices of the errors, each of which refuses its item permanently."""
    from sluicegate import PermanentError

    assert all(isinstance(error, PermanentError) for error in errors.values()), errors
    return sorted(errors)
