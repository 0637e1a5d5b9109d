"""Jobs that run again as a whole because the destination has lost the work of their tasks.

A bucket and its row in the ledger commit together, so a promoted standby has both or neither.
Each unit returns the *history* on which it was committed or found committed. If the units of one
job return two histories, units of the earlier one may be lost. The job then runs again: existing
units are skipped, and the others are written.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..._core.errors import UnknownOutcomeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..._core.staging import Stage
    from ..report import SparkWriteReport

logger = logging.getLogger("sluicegate.spark")

RUNS = 3
"""Maximum number of runs of a job."""


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of one run of a job."""

    report: SparkWriteReport
    stages: list[Stage]
    content: int
    """The sum of the hashes of the staged rows."""
    histories: frozenset[str] = frozenset()
    """The destination's histories on which the units were committed."""


def write_units(run: Callable[[], Ran]) -> SparkWriteReport:
    """Run the job until one history of the destination has all its units. Blocks.

    Raises the errors of `run`, and `UnknownOutcomeError` if a standby takes over in each of three
    runs.
    """
    for _ in range(RUNS - 1):
        ran = run()
        fault = _fault(ran)
        if fault is None:
            return ran.report
        logger.warning("the job runs again: %s", fault)
    ran = run()
    fault = _fault(ran)
    if fault is not None:
        raise UnknownOutcomeError(fault)
    return ran.report


def _fault(ran: Ran) -> str | None:
    if len(ran.histories) <= 1:
        return None
    histories = ", ".join(sorted(ran.histories))
    return (
        f"another server took over while units were committed ({histories}), and may lack "
        "those of the earlier server"
    )
