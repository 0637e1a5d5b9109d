"""The goals for `PostgresSink` compared with hand-written code for the client libraries."""

from __future__ import annotations

from ..cases.postgres import drivers, flights
from ..cases.postgres.drivers import BEST_BY_HAND, COPY, OURS, PSYCOPG_COPY
from ..harness import name_of
from .judging import Goal, GoalTable
from .ratios import as_fast, clocks

SMALL = {1: 0.92, 10: 0.92, 30: 0.95, 100: 0.95}
LARGE = (300, 1_000, 3_000, 10_000)


def _rows(size: int, peer: str, goal: float, ambitious: float) -> Goal:
    return Goal(
        f"{size:,} row{'s' if size > 1 else ''}, against {peer}",
        as_fast(drivers.CASE, name_of(OURS, size), name_of(peer, size)),
        goal,
        ambitious,
        at_least=True,
    )


TABLE = GoalTable(
    "postgres",
    frozenset({drivers.CASE.name, flights.CASE.name}),
    (
        *(_rows(size, BEST_BY_HAND, goal, 1.0) for size, goal in SMALL.items()),
        *(_rows(size, COPY, 1.0, 1.4) for size in LARGE),
        *(_rows(size, PSYCOPG_COPY, 0.6, 0.8) for size in LARGE),
        Goal(
            "flights, against the COPY loop by hand",
            as_fast(flights.CASE, flights.OURS, flights.BY_HAND),
            0.95,
            1.3,
            at_least=True,
        ),
    ),
    clocks,
)
