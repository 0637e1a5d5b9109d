"""Destinations in PostgreSQL: tables, and the effects of handlers.

`sink` is `PostgresSink`, and `write` one write of it: `plan` and `facts` say what the table and the
options ask for, `strategy` chooses the statement, `encoding` and `rows` make its arguments, `sender`
sends it (also the COPY), in a `scope`. After an error `diagnosis`, `sifting` and `repair` find the
rows to blame, and `remaining` has the others. `open_table` and `table` read the table, `growth` creates it and its columns by `column_types`;
`changes` are items that delete rows or update parts of them;
`transaction`, `ledger` and `positions` commit rows with a position; `stages` and `swap` serve Spark;
`effects` is `PostgresEffects`.
"""

from ..._core.public import publish_all
from .changes import Changes
from .column_types import postgres_columns
from .effects import PostgresEffects
from .sink import PostgresSink

__all__ = [
    "Changes",
    "PostgresEffects",
    "PostgresSink",
    "postgres_columns",
]

publish_all(__name__, "sluicegate.postgres")
