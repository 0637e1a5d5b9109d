"""`sluicegate tune`: measure a sink at several batch sizes, and recommend limits.

Results go to standard output, so they can be saved; warnings, progress and errors go to standard
error.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._core.errors import SluicegateError
from ..._core.extras import missing
from ..._core.opening import opened
from ..._core.sink import capabilities_of
from ..console import BAD_USE, FAILED, OK, TERMINATED, Termination, UseError, confirmed
from ..named import named, named_sink
from ..parser import count
from .findings import Findings, draw
from .measure import Measurement, NoItem, WriteFailed, item_bytes
from .worksheet import Needs, fewest_workers, with_margin

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..._core.sink import Sink
    from ..parser import Parser

SIZES = (1, 10, 100, 1000, 10_000)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)")


def tune_options(parser: Parser) -> None:
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
    parser.argument("--rate", "N", "usual items per second (default: unknown)", type=_rate)
    parser.argument("--peak", "N", "peak items per second (default: the rate)", type=_rate)
    parser.argument(
        "--latency",
        "TIME",
        "longest time that an item may wait in the open batch (default: 200ms)",
        type=_duration,
    )
    parser.argument(
        "--absorb",
        "TIME",
        "longest pause of the destination to absorb (default: 2s)",
        type=_duration,
        default=2.0,
    )
    _measuring_options(parser)


def _measuring_options(parser: Parser) -> None:
    parser.argument(
        "--sizes",
        "N,N,...",
        "batch sizes to measure (default: 1,10,100,1000,10000)",
        type=_counts,
        default=SIZES,
    )
    parser.argument(
        "--workers",
        "N,N,...",
        "afterwards measure these numbers of concurrent writes too",
        type=_counts,
        default=(),
    )
    parser.argument(
        "--repeats",
        "N",
        "writes of each size, after a first one that is not counted (default: 7)",
        type=count,
        default=7,
    )
    parser.argument(
        "--item-bytes", "N", "memory of an item (default: measured on some items)", type=count
    )
    parser.argument(
        "--plot", "FILE", "draw throughput and write time by batch size, as SVG or PNG", type=Path
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
        tuning = _prepare(options)
        if tuning is None:
            _print_error("nothing was written")
            return BAD_USE
        try:
            return asyncio.run(tuning.main())
        finally:
            _report(tuning.findings, options)
    except (UseError, SluicegateError) as error:
        _print_error(str(error))
        return BAD_USE
    except (WriteFailed, NoItem, OSError) as error:
        _print_error(str(error))
        return FAILED


def _prepare(options: argparse.Namespace) -> _Tuning | None:
    """Check the arguments and ask; `None` if the answer is no. Raises `UseError`, `NoItem`."""
    if options.plot is not None:
        _check_plot(options.plot)
    if options.rate is not None and options.peak is not None and options.peak < options.rate:
        raise UseError(
            f"--peak {options.peak:g}: must be at least --rate {options.rate:g}; it is the "
            "highest rate"
        )
    sink, item = named_sink(options.sink), _item_of(options.items)
    size = options.item_bytes or item_bytes(item)
    _check_workers(sink, options.workers)
    return _Tuning(options, sink, item, size) if _may_write(options) else None


def _report(findings: Findings, options: argparse.Namespace) -> None:
    """Print the findings, also those of a run that ended early."""
    if not findings.is_complete:
        _print_error(f"ended early; {findings.as_partial_text()}")
        return
    print(findings.as_text(), flush=True)
    if options.plot is not None:
        draw(findings.sizes, findings.knee, options.sink, options.plot)
        _print_error(f"drawn to {options.plot}")


def _item_of(name: str) -> Callable[[int], Any]:
    item: Callable[[int], Any] = named(name)
    if not callable(item):
        raise UseError(
            f"{name!r} must be a function that makes an item from a number, not {item!r}"
        )
    try:
        first: object = item(0)
    except Exception as error:
        raise UseError(
            f"{name!r} could not make an item from the number 0: {type(error).__name__}: {error}"
        ) from error
    if inspect.iscoroutine(first):
        first.close()
        raise UseError(f"{name!r} must be a plain function, not an async one")
    if inspect.isgenerator(first):
        raise UseError(f"{name!r} must return one item, not yield them")
    return item


def _check_plot(target: Path) -> None:
    if target.suffix not in {".svg", ".png"}:
        raise UseError(f"--plot {str(target)!r}: the name must end in .svg or .png")
    if not target.parent.is_dir():
        raise UseError(f"--plot {str(target)!r}: there is no folder {str(target.parent)!r}")
    if importlib.util.find_spec("matplotlib") is None:
        raise UseError(str(missing("matplotlib", "tune", "--plot")))


def _check_workers(sink: Sink[Any], workers: Sequence[int]) -> None:
    most = capabilities_of(sink).max_concurrency
    if most is not None and workers and max(workers) > most:
        raise UseError(f"--workers {max(workers)}: the sink takes at most {most} writes at once")


def _may_write(options: argparse.Namespace) -> bool:
    """Warn, and ask for confirmation. Raises `UseError` if there is no terminal to ask on."""
    _print_error(
        f"WARNING: this writes about {_items_to_write(options):,} made-up items to the real "
        f"destination of {options.sink}, and removes none"
    )
    return confirmed("Write them?", yes=options.yes)


def _items_to_write(options: argparse.Namespace) -> int:
    writes: int = options.repeats + 1
    sizes: tuple[int, ...] = options.sizes
    workers: tuple[int, ...] = options.workers
    return writes * (sum(sizes) + sum(workers) * with_margin(max(sizes)))


class _Tuning:
    """One run."""

    def __init__(
        self,
        options: argparse.Namespace,
        sink: Sink[Any],
        item: Callable[[int], Any],
        item_size: int,
    ) -> None:
        self._options = options
        self._sink = sink
        needs = Needs(
            rate=options.rate, peak=options.peak, latency=options.latency, absorb=options.absorb
        )
        self.findings = Findings(sink=options.sink, needs=needs, item_bytes=item_size)
        self._measurement = Measurement(sink, item, repeats=options.repeats, tell=self._progress)
        self._live = sys.stderr.isatty()

    async def main(self) -> int:
        """Measure; Ctrl-C and SIGTERM close the sink and leave partial findings."""
        termination = Termination()
        is_complete = False
        try:
            async with opened(self._sink):
                await self._sizes()
                await self._workers(with_margin(self.findings.at.size))
            is_complete = True
        except asyncio.CancelledError:
            if termination.has_come:
                return TERMINATED
            raise
        finally:
            self._clear()
            self.findings.end(self._measurement.items, is_complete=is_complete)
        return OK

    async def _sizes(self) -> None:
        measured = self.findings.sizes
        print(f"{'items':>8} {'ms a write':>12} {'items/s':>12}")
        for size in self._options.sizes:
            try:
                one = await self._measurement.size(size)
            except WriteFailed as error:
                if not measured:
                    raise
                self._clear()
                _print_error(f"{error}; larger sizes are skipped")
                self.findings.refuse(size)
                return
            measured.append(one)
            self._row(f"{one.size:>8,} {one.write * 1000:>12,.2f} {one.per_second:>12,.0f}")

    async def _workers(self, size: int) -> None:
        if not self._options.workers:
            return
        measured, worst = self.findings.workers, self.findings.needs.worst
        print(f"with {size:,} items in a batch\n{'workers':>8} {'ms a write':>12} {'items/s':>12}")
        for workers in self._options.workers:
            one = await self._measurement.workers(size, workers)
            measured.append(one)
            self._row(f"{one.workers:>8} {one.write * 1000:>12,.2f} {one.per_second:>12,.0f}")
        found = fewest_workers(measured, worst)
        self.findings.choose(found.workers)
        if worst is not None and found.per_second < worst:
            _print_error(
                f"no measured number of workers handles {worst:,.0f} "
                f"items a second; {found.workers} is nearly the best"
            )

    def _row(self, text: str) -> None:
        self._clear()
        print(text, flush=True)

    def _progress(self, size: int, done: int, everything: int) -> None:
        if self._live:
            print(
                f"\r{size:,} items: {done} of {everything} writes done\033[K",
                end="",
                file=sys.stderr,
                flush=True,
            )

    def _clear(self) -> None:
        if self._live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _print_error(text: str) -> None:
    print(text, file=sys.stderr)
