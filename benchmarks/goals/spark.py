"""The goals for `write_dataframe` into PostgreSQL."""

from __future__ import annotations

from ..cases.spark import partitions, upserts, writes
from ..cases.spark.upserts import LATEST, MERGE, VERSIONS
from ..cases.spark.writes import BUCKET, JDBC, JDBC_BEST, OURS, PSQL
from ..harness import name_of
from .judging import Goal, GoalTable
from .ratios import as_fast, clocks

TABLE = GoalTable(
    "spark",
    frozenset({writes.CASE.name, upserts.CASE.name, partitions.CASE.name}),
    (
        Goal(f"{OURS}, against {JDBC}", as_fast(writes.CASE, OURS, JDBC), 2.5, at_least=True),
        *(
            Goal(f"{name}, against {peer}", as_fast(writes.CASE, name, peer), goal, at_least=True)
            for name in (OURS, BUCKET)
            for peer, goal in ((JDBC_BEST, 2.0), (PSQL, 0.4))
        ),
        Goal(
            f"upserts of {VERSIONS[-1]} versions a key by `latest_only`, against JDBC and a merge",
            as_fast(upserts.CASE, name_of(LATEST, VERSIONS[-1]), name_of(MERGE, VERSIONS[-1])),
            2.5,
            at_least=True,
        ),
        Goal(
            "partitions of ten rows, against an empty `mapInArrow`",
            as_fast(partitions.CASE, partitions.OURS, partitions.EMPTY),
            0.9,
            at_least=True,
        ),
    ),
    clocks,
)
