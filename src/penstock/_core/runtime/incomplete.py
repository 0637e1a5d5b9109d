"""Reports of incomplete shutdowns, for the `run` whose program was ended by a signal.

The error that passes through an `async with` gets its report as a note, but a task group may
swallow that error, and a signal's cancellation ends in `run`. So each report is also kept for the
`run` around: tasks, threads and groups inherit the context.
"""

from __future__ import annotations

from contextvars import ContextVar

_reports: ContextVar[list[object] | None] = ContextVar("penstock_incomplete", default=None)


def collect_reports() -> list[object]:
    """Begin to collect the reports of this context and of those copied from it."""
    reports: list[object] = []
    _reports.set(reports)
    return reports


def note_incomplete(error: BaseException, report: object) -> None:
    """Add the report to the error that ended the block, and to those of the `run` around."""
    error.add_note(str(report))
    reports = _reports.get()
    if reports is not None and not any(each is report for each in reports):
        reports.append(report)
