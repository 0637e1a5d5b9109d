"""Where a write with `delivery="bucket"` spends: the steps of its plan, each run without a
destination. The sinks of Spark (`noop`) and of Python (an empty `mapInArrow`) take the rows.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from ...harness import NS_PER_ITEM, Case, Contender
from ...processes import FamilyStopwatch
from ...spark.sessions import TASKS
from .facts import facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ...stopwatch import Took

SCAN = "cached rows, read"
HASH = "and hashed"
SHUFFLE = "and shuffled by key"
SORT = "and shuffled, sorted by key"
ALL = "and shuffled, sorted, hashed"
ARROW = "cached rows, to Python"
ARROW_ALL = "shuffled, sorted, hashed, to Python"


def _consume(batches: Iterable[Any]) -> Iterator[Any]:
    for _ in batches:
        pass
    yield from ()


def _to_nothing(rows: Any) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _to_python(rows: Any) -> None:
    rows.mapInArrow(_consume, "id long").collect()


def _timed(work: Callable[[], object]) -> Took:
    watch = FamilyStopwatch()
    work()
    return watch.read()


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    with facts(count) as table:
        from pyspark.sql import functions

        from sluicegate.spark.content import Content
        from sluicegate.spark.keys import keyed, with_bucket

        rows = table.rows()
        hashed = Content.of(rows, None, is_named=True).beside
        arranged = keyed(rows, "id", buckets=TASKS)
        steps = {
            SCAN: partial(_to_nothing, rows),
            HASH: partial(_to_nothing, hashed(rows)),
            SHUFFLE: partial(
                _to_nothing, rows.repartition(TASKS, functions.col("id"), functions.lit(0))
            ),
            SORT: partial(_to_nothing, arranged),
            ALL: partial(_to_nothing, hashed(with_bucket(arranged))),
            ARROW: partial(_to_python, rows),
            ARROW_ALL: partial(_to_python, hashed(with_bucket(arranged))),
        }
        yield [Contender(name, partial(_timed, step), ours=True) for name, step in steps.items()]


CASE = Case(
    name="spark-parts",
    title="The steps of a write by key, without a destination",
    prepare=prepare,
    items=2_000_000,
    quick_items=2_000,
    unit=NS_PER_ITEM,
    peers=(SCAN,),
)
