"""The batchers and consumers that end inside a `run`, and the error with which it then ends.

1. A batcher is judged by its tally: no item may have ended rejected, unsent or unknown, except for
   the outcomes that `run(accept=)` names.
2. A consumer is judged by the `complete` of its report.
3. A batcher that a consumer feeds (a pipe, or `forward_to`) is no different: it fails the run only
   if its shutdown cut off a write. The source delivers the other failed items again, or the
   consumer has handled them.

It does not matter how `main` ends: a program may swallow errors, take the report of a shutdown, or
be cancelled by a signal. So each report is noted in the context that tasks, groups and threads
inherit.
"""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from .. import checks
from ..errors import DrainTimeout, ItemsFailed
from ..outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..tally import Tally

FAILURES = (Outcome.REJECTED, Outcome.UNSENT, Outcome.UNKNOWN)
MOST_REPORTS = 20
"""Maximum number of kept reports of each kind; the first ones."""


class EndReport(Protocol):
    """The report of a consumer, or of a batcher."""

    @property
    def complete(self) -> bool: ...


class BatcherReport(EndReport, Protocol):
    """The report of a batcher."""

    @property
    def name(self) -> str: ...
    @property
    def tally(self) -> Tally: ...
    @property
    def unknown(self) -> Collection[Any]: ...


class RunEnds:
    """The failed ends of one `run`. Raises `ConfigError` for a bad `accept`."""

    def __init__(self, accept: Collection[str]) -> None:
        names = tuple(outcome.value for outcome in FAILURES)
        is_several = isinstance(accept, (tuple, list, set, frozenset))
        if not is_several or any(name not in names for name in accept):
            raise checks.bad("accept", accept, f"must be a tuple of names among {names}")
        self._judged = tuple(outcome for outcome in FAILURES if outcome.value not in accept)
        self._incomplete: list[EndReport] = []
        self._failed: list[BatcherReport] = []
        self._fed: WeakSet[object] = WeakSet()

    def collect(self) -> None:
        """Note the ends in this context, and in its copies."""
        _current.set(self)

    def consumer_feeds(self, batcher: object) -> None:
        with suppress(TypeError):  # an object of the program that cannot be referenced weakly
            self._fed.add(batcher)

    def consumer_ended(self, report: EndReport) -> None:
        if not report.complete:
            self._keep(self._incomplete, report)

    def batcher_ended(self, batcher: object, report: BatcherReport, *, is_fed: bool) -> None:
        if is_fed or batcher in self._fed:
            if report.unknown:
                self._keep(self._incomplete, report)
        elif any(report.tally.of(outcome) for outcome in self._judged):
            if report.complete:
                self._keep(self._failed, report)
            else:
                self._keep(self._incomplete, report)

    @staticmethod
    def _keep(reports: list[Any], report: object) -> None:
        if len(reports) < MOST_REPORTS:
            reports.append(report)

    def error(self) -> DrainTimeout | ItemsFailed | None:
        """Return the error for these ends: the first incomplete report, or the failed items."""
        if self._incomplete:
            error = DrainTimeout(self._incomplete[0])
            for report in (*self._incomplete[1:], *self._failed):
                error.add_note(str(report))
            return error
        return ItemsFailed(self._failed, self._judged) if self._failed else None


_current: ContextVar[RunEnds | None] = ContextVar("sluicegate_run_ends", default=None)


def consumer_feeds(batcher: object) -> None:
    """Leave the failed items of this batcher to the consumer that feeds it."""
    if (ends := _current.get()) is not None:
        ends.consumer_feeds(batcher)


def consumer_ended(report: EndReport) -> None:
    """Note the end of a consumer."""
    if (ends := _current.get()) is not None:
        ends.consumer_ended(report)


def batcher_ended(batcher: object, report: BatcherReport, *, is_fed: bool = False) -> None:
    """Note the end of a batcher; `is_fed`: a consumer answers for its items."""
    if (ends := _current.get()) is not None:
        ends.batcher_ended(batcher, report, is_fed=is_fed)
