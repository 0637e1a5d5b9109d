"""`sluicegate tune`: measure a sink at several batch sizes, and recommend limits.

1. Every write goes through `send`, as a batcher's does; a batcher adds microseconds.
2. The first write of each size is not counted: it opens connections and fills caches.
3. Every item is new: the numbers passed to the user's function never repeat within a run.
4. A failed write ends the measurement: the duration of a failure is meaningless.
5. Results go to standard output, so they can be saved; warnings and errors go to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import itertools
import re
from typing import TYPE_CHECKING, Any

from .._core.batch import RowBatch
from .._core.clock import LOOP_CLOCK
from .._core.errors import SluicegateError
from .._core.opening import opened
from .._core.send import send
from .console import BAD_USE, FAILED, OK, TERMINATED, Termination, UseError, confirmed, say
from .named import named, named_sink
from .parser import Group, count
from .sizing import Measured, as_code, headline, nearly_best, worksheet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .._core.sink import Sink
    from .parser import Parser

SIZES = (1, 10, 100, 1000, 10_000)
REPEATS = 7
"""Writes of each size, after a first one that is not counted."""
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)")


class WriteFailed(Exception):
    """A write has failed, which ends the measurement."""

    def __init__(self, size: int, error: BaseException) -> None:
        items = f"{size:,} {'item' if size == 1 else 'items'}"
        super().__init__(f"a write of {items} failed: {type(error).__name__}: {error}")


def _options(parser: Parser) -> None:
    """Declare the arguments."""
    parser.argument(
        "sink",
        "MODULE:SINK",
        "a sink, a stack, a function of a batch, or a function that returns one of these",
    )
    parser.argument(
        "--items",
        "MODULE:FUNCTION",
        "a function that returns an item for a number; the numbers do not repeat",
        required=True,
    )
    parser.argument("--rate", "N", "peak items per second (default: unknown)", type=_rate)
    parser.argument(
        "--latency",
        "TIME",
        "longest time that an item may wait in the open batch (default: 200ms)",
        type=_duration,
    )
    parser.argument(
        "--sizes",
        "N,N,...",
        "batch sizes to measure (default: 1,10,100,1000,10000)",
        type=_counts,
        default=SIZES,
    )
    parser.flag("--yes", "do not ask before writing to the destination; needed without a terminal")


def _rate(text: str) -> float:
    try:
        value = float(text.replace(",", "").replace("_", ""))
    except ValueError:
        value = 0.0
    if not 0 < value < 1e12:
        message = f"{text!r} must be a number of items per second, more than 0"
        raise argparse.ArgumentTypeError(message)
    return value


def _duration(text: str) -> float:
    found = _DURATION.fullmatch(text)
    value = 0.0 if found is None else float(found[1]) * _SECONDS[found[2]]
    if not 0 < value < 1e9:
        message = f"{text!r} must be a time with its unit such as 50ms, 2s or 1m, more than 0"
        raise argparse.ArgumentTypeError(message)
    return value


def _counts(text: str) -> tuple[int, ...]:
    return tuple(sorted({count(part.strip()) for part in text.split(",")}))


def tune(options: argparse.Namespace) -> int:
    """Measure and print limits; return the exit code: 0, 1 if writing failed, 2 for bad use.

    Raises `KeyboardInterrupt` after Ctrl-C.
    """
    try:
        measurement = Measurement(named_sink(options.sink), _item_of(options.items))
        items = (REPEATS + 1) * sum(options.sizes)
        say(
            f"WARNING: this writes about {items:,} made-up items to the real destination of "
            f"{options.sink}, and removes none"
        )
        if not confirmed("Write them?", yes=options.yes):
            say("nothing was written")
            return BAD_USE
        code = asyncio.run(measurement.run(options.sizes))
    except (UseError, SluicegateError) as error:
        say(str(error))
        return BAD_USE
    except (WriteFailed, OSError) as error:
        say(str(error))
        return FAILED
    if code == OK:
        at = nearly_best(measurement.measured)
        limits = worksheet(at, rate=options.rate, latency=options.latency)
        print(f"{headline(measurement.measured, at, measurement.refused)}\n\n{as_code(limits)}")
        if limits.workers > 1:
            print("\n- more than one worker gives up order, unless the batcher has a key")
    return code


def _item_of(name: str) -> Callable[[int], Any]:
    item: Callable[[int], Any] = named(name)
    if not callable(item):
        raise UseError(
            f"{name!r} must be a function that makes an item from a number, not {item!r}"
        )

    def make(number: int) -> Any:
        try:
            return item(number)
        except Exception as error:
            raise UseError(
                f"{name!r} could not make an item from the number {number:,}: "
                f"{type(error).__name__}: {error}"
            ) from error

    first = make(0)
    if inspect.iscoroutine(first):
        first.close()
        raise UseError(f"{name!r} must be a plain function, not an async one")
    if inspect.isgenerator(first):
        raise UseError(f"{name!r} must return one item, not yield them")
    return make


class Measurement:
    """One run: writes of several sizes, one after another. `item` makes an item from a number."""

    def __init__(self, sink: Sink[Any], item: Callable[[int], Any]) -> None:
        self._sink = sink
        self._item = item
        self._numbers = itertools.count()
        self._items = 0
        """Items written."""
        self.measured: list[Measured] = []
        self.refused: int | None = None
        """The batch size whose write failed, which ended the sizes."""

    async def run(self, sizes: Sequence[int]) -> int:
        """Measure and print; return the exit code. Ctrl-C and SIGTERM close the sink.

        Raises `WriteFailed` if no size was accepted.
        """
        termination = Termination()
        is_complete = False
        try:
            async with opened(self._sink):
                await self._measure(sizes)
            is_complete = True
        except asyncio.CancelledError:
            if termination.has_come:
                return TERMINATED
            raise
        finally:
            if not is_complete:
                say(f"ended early; about {self._items:,} items were written")
        return OK

    async def _measure(self, sizes: Sequence[int]) -> None:
        print(f"{'items':>8} {'ms a write':>12} {'items/s':>12}", flush=True)
        for size in sizes:
            try:
                seconds = [await self._write(size) for _ in range(REPEATS + 1)]
            except WriteFailed as error:
                if not self.measured:
                    raise
                say(f"{error}; larger sizes are skipped")
                self.refused = size
                return
            one = Measured(size, seconds[1:])
            self.measured.append(one)
            print(f"{size:>8,} {one.write * 1000:>12,.2f} {one.per_second:>12,.0f}", flush=True)

    async def _write(self, size: int) -> float:
        batch = RowBatch(map(self._item, itertools.islice(self._numbers, size)))
        began = LOOP_CLOCK.now()
        errors = await send(self._sink, batch)
        if errors:
            raise WriteFailed(size, next(iter(errors.values())))
        self._items += size
        return LOOP_CLOCK.now() - began


GROUP = Group(
    description=(
        "Write made-up items to your sink in batches of several sizes, find the knee of its "
        "throughput if there is one, and recommend limits."
    ),
    example="sluicegate tune app:sink --items app:make_item --rate 5000 --latency 50ms --yes",
    options=_options,
    run=tune,
    extras={},
)
