"""Jobs that run again as a whole, since the destination has lost what their tasks had done.

A bucket and its row in the ledger commit together, so a standby that takes over lacks both or none
of them. It shows by the *history* that each unit was committed on, or was found committed on: where
units of one job tell of two, those of the earlier one may be gone. The job runs again then: units
that are there are skipped, and the others are written.
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

logger = logging.getLogger("penstock.spark")

RUNS = 3
"""How often a job runs in all."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a job has left."""

    report: SparkWriteReport
    stages: list[Stage]
    content: int
    """The sum of the hashes of their rows."""
    histories: frozenset[str] = frozenset()
    """Those of the destination that its units were committed on."""


def write_units(run: Callable[[], Ran]) -> SparkWriteReport:
    """Run the job until one history of the destination has all of its units. Blocks.

    Raises what `run` raises, and `UnknownOutcomeError` where a standby takes over in each of three
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
        "those of the server before"
    )
