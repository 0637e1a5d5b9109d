"""What the page for users tells of the goals: a sentence with a figure, by the first column of its
table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .judging import figure_of

if TYPE_CHECKING:
    from .judging import Found, GoalTable

TOLD: dict[str, dict[str, str]] = {
    "batcher": {
        "`add`, batches of 500, against the skeleton": "**Accepting an item** in batches of 500 "
        "takes {figure} the processor time of the *skeleton*, a batcher of 150 lines written by "
        "hand, without receipts, outcomes and states.",
        "four decorators, added per item": "**Four decorators** around a sink (timeout, breaker, "
        "retry, dead letters) add {figure} of processor time per item in batches of 500.",
    },
    "consumer": {
        "no-op handlers, against a task per message and a lock per key": "**Handling a message in order "
        "per key** is {figure} as fast as by the usual recipe, a task per message and a lock per "
        "key, which has no timeout, no retry and no limit.",
    },
    "kafka": {
        "a record, against a bare `getmany` loop": "**A record from Kafka** takes {figure} the "
        "processor time of aiokafka's own loop, which has no order across keys, no retry and no "
        "exact position.",
    },
    "pipe": {
        "flow.pipe, against getmany, executemany, commit, by 500": "**A record from Kafka into "
        "PostgreSQL** by `flow.pipe` in batches of 500 is {figure} as fast as a loop of `getmany`, "
        "`executemany` and `commit` by hand.",
        "flow.pipe, against getmany, COPY, commit, by 500": "The same is {figure} as fast as that loop "
        "with `COPY`.",
    },
    "postgres": {
        "10 rows, against the best by hand": "**10 rows into PostgreSQL** are written {figure} as "
        "fast as by the best of asyncpg's `VALUES`, `unnest` and `COPY` by hand in the same round.",
        "1,000 rows, against asyncpg, COPY": "**1,000 rows** are written {figure} as fast as by asyncpg's "
        "`COPY` by hand.",
        "flights, against the COPY loop by hand": "**A file of flights** through a batcher is "
        "loaded {figure} as fast as by a loop with `COPY` by hand.",
    },
    "spark": {
        "write_dataframe, against JDBC, reWriteBatchedInserts, 10,000": "**A DataFrame into "
        "PostgreSQL**, of 2,000,000 rows in a session that runs, is written {figure} as fast as by "
        "Spark's JDBC writer with its best options.",
        'write_dataframe, delivery="bucket", by key, against JDBC, reWriteBatchedInserts, 10,000': (
            'With `delivery="bucket"`, where a repeated task writes no row twice, it is {figure} as '
            "fast as JDBC, which has no such guarantee."
        ),
    },
}
"""By the name of a table of goals and the work of a goal."""


def told(table: GoalTable, found: Found) -> dict[str, str]:
    """Return the measured sentences, by the names of their marks."""
    column, title = table.columns(found)[0]
    sentences: dict[str, str] = {}
    for goal in table.goals:
        sentence = TOLD.get(table.name, {}).get(goal.work)
        judged = goal.judged(found, column) if sentence else None
        if sentence and judged:
            figure = figure_of(goal, judged).replace(" x (", " times (")
            figure = f"{figure.removesuffix(')')}; {title})"
            sentences[marks_of(table.name, goal.work)] = f"- {sentence.format(figure=figure)}"
    return sentences


def marks_of(table: str, work: str) -> str:
    """Return the name of a sentence's marks on the page."""
    return f"told-{table}-{[*TOLD[table]].index(work) + 1}"
