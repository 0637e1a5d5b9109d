"""Reports of incomplete shutdowns, for a `run` that is ended by a signal.

The error that leaves an `async with` gets the report as a note, but a task group may swallow that
error, and the cancellation after a signal ends in `run`. So each report is also stored for the
enclosing `run`, in the context that tasks, threads and groups inherit.
"""

from __future__ import annotations

from contextvars import ContextVar

_reports: ContextVar[list[object] | None] = ContextVar("penstock_incomplete", default=None)


def collect_reports() -> list[object]:
    """Start collecting the reports of this context and its copies."""
    reports: list[object] = []
    _reports.set(reports)
    return reports


def note_incomplete(error: BaseException, report: object) -> None:
    """Add the report to the error that ended the block, and to those of the enclosing `run`."""
    error.add_note(str(report))
    reports = _reports.get()
    if reports is not None and not any(each is report for each in reports):
        reports.append(report)
