"""What it costs to hand in an item, with everything drained at the end, into a sink that does
nothing.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ..feeds import (
    DEPTH,
    LINGER,
    SIZE,
    add,
    add_many,
    check,
    ours,
    recipe,
    submit,
    submit_each,
    try_add,
)
from ..harness import NS_PER_ITEM, Case, Contender, Target
from ..peers import opentelemetry_batch
from ..stopwatch import Stopwatch, Took

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..harness import Turn

RECIPE = "asyncio.Queue + wait_for"
EAGER = "asyncio.Queue, get_nowait first"
EMIT = "OpenTelemetry, inner emit"
ON_EMIT = "OpenTelemetry, on_emit"


def _emit(items: Sequence[int]) -> Turn:
    """The processor without the copy that `on_emit` makes of each record: the part that corresponds
    to `try_add`.
    """

    def turn() -> Took:
        exporter = opentelemetry_batch.CountingExporter()
        watch = Stopwatch()
        processor = opentelemetry_batch.processor(
            exporter, size=SIZE, linger=LINGER, depth=len(items) + SIZE
        )
        batches = processor._batch_processor
        for item in items:
            batches.emit(item)  # type: ignore[arg-type]  # it never looks at what it is given
        processor.force_flush()
        processor.shutdown()  # type: ignore[no-untyped-call]  # published without annotation
        took = watch.read()
        check(exporter.count, items)
        return took

    return turn


def _on_emit(items: Sequence[int]) -> Turn:
    def turn() -> Took:
        exporter = opentelemetry_batch.CountingExporter()
        record = opentelemetry_batch.record()
        watch = Stopwatch()
        processor = opentelemetry_batch.processor(
            exporter, size=SIZE, linger=LINGER, depth=len(items) + SIZE
        )
        for _ in items:
            processor.on_emit(record)
        processor.force_flush()
        processor.shutdown()  # type: ignore[no-untyped-call]  # published without annotation
        took = watch.read()
        check(exporter.count, items)
        return took

    return turn


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    items = list(range(count))
    yield (
        Contender("add", ours(add, items), ours=True),
        Contender("try_add", ours(try_add, items, depth=max(DEPTH, count)), ours=True),
        Contender("add_many, lists of 500", add_many(items), ours=True),
        Contender("submit, then gather", ours(submit, items), ours=True),
        Contender("submit, then await each", ours(submit_each, items), ours=True),
        Contender(EMIT, _emit(items)),
        Contender(ON_EMIT, _on_emit(items)),
        Contender(EAGER, recipe(items, eager=True)),
        Contender(RECIPE, recipe(items, eager=False)),
    )


CASE = Case(
    name="accept",
    title="Accept items one at a time and drain them in batches of 500",
    prepare=prepare,
    items=200_000,
    quick_items=2_000,
    unit=NS_PER_ITEM,
    peers=(RECIPE, EMIT),
    targets=(
        Target("add", RECIPE, 20),
        Target("try_add", EMIT, 1),
        Target("submit, then gather", RECIPE, 8),
        Target("submit, then await each", RECIPE, 8),
    ),
)
