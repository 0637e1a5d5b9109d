"""Batches of rows into PostgreSQL by `PostgresSink` with its defaults, compared with the Python
client libraries.

Each uses one open connection, and commits do not wait for the disk.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ...destination import NO_WAIT, Destination, installed, postgres_server
from ...events import ALONG, EVENTS, QUICK_ROWS, ROWS, contender, our_sink, sizes
from ...harness import US_PER_ITEM, Case
from ...postgres import by_adbc, by_asyncpg, by_psycopg, by_sqlalchemy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ...destination import Opener
    from ...harness import Contender

OURS = "PostgresSink"
VALUES, UNNEST, COPY = "asyncpg, VALUES", "asyncpg, unnest", "asyncpg, COPY"
BEST_BY_HAND = "the best by hand"
PSYCOPG_COPY = "psycopg, binary COPY"


def peers() -> Mapping[str, Opener]:
    """Return the ways with installed libraries."""
    found: dict[str, Opener] = {
        VALUES: by_asyncpg.values,
        UNNEST: by_asyncpg.unnest,
        COPY: by_asyncpg.copy,
        "asyncpg, executemany": by_asyncpg.executemany,
    }
    if installed(*by_psycopg.REQUIRES):
        found[PSYCOPG_COPY] = by_psycopg.binary_copy
        found["psycopg, text COPY"] = by_psycopg.text_copy
        found["psycopg, executemany"] = by_psycopg.executemany
    if installed(*by_adbc.REQUIRES):
        found["ADBC, ingest"] = by_adbc.ingest
    if installed(*by_sqlalchemy.REQUIRES):
        found["SQLAlchemy, insert"] = by_sqlalchemy.executemany
        found["SQLAlchemy, insertmanyvalues"] = by_sqlalchemy.insertmanyvalues
    return found


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    with postgres_server() as dsn:
        to = Destination(dsn + NO_WAIT, EVENTS)
        contenders: list[Contender] = []
        for size in sizes(count):
            contenders.append(contender(OURS, size, our_sink(), to, count=count, ours=True))
            contenders += [
                contender(line, size, opener, to, count=count)
                for line, opener in peers().items()
                if line != VALUES or size <= EVENTS.most_rows
            ]
        yield contenders


CASE = Case(
    name="drivers",
    title="Rows into PostgreSQL, by client and batch",
    prepare=prepare,
    items=ROWS,
    quick_items=QUICK_ROWS,
    unit=US_PER_ITEM,
    peers=(BEST_BY_HAND, PSYCOPG_COPY),
    fastest={BEST_BY_HAND: (VALUES, UNNEST, COPY)},
    along=ALONG,
)
