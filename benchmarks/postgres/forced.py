"""A `PostgresSink` that writes every batch by one of its statements, whatever the number of rows.

White box: the sink has no option for it; it chooses by the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluicegate.postgres.sink import write
from sluicegate.postgres.sink.strategy import Chooser, WriteStrategy

if TYPE_CHECKING:
    from sluicegate.postgres import PostgresSink
    from sluicegate.postgres.sink.plan import TablePlan
    from sluicegate.postgres.sink.strategy import Target

MOST_PARAMETERS = 32_767
"""Maximum parameters of any statement: their number has 15 bits."""


@dataclass(frozen=True, slots=True)
class Forced(WriteStrategy):
    """A forced statement: `values`, `unnest` or `copy`."""

    statement: str = "auto"


class ForcedChooser(Chooser):
    """Chooses the forced statement, if there is one."""

    def choose(self, plan: TablePlan, rows: int) -> str:
        """Choose a statement for a batch."""
        strategy = self._strategy
        if not isinstance(strategy, Forced):
            return Chooser.choose(self, plan, rows)
        if strategy.statement == "copy":
            return "staging" if plan.needs_staging else "copy"
        if strategy.statement == "values" and rows * len(plan.columns) > MOST_PARAMETERS:
            return "unnest"
        return strategy.statement


write.Chooser = ForcedChooser  # type: ignore[attr-defined]  # where sinks find it


def forced(sink: PostgresSink, statement: str) -> PostgresSink:
    """Make a sink, not yet open, write by this statement; by its own choice with `auto`."""
    target: Target = vars(sink)["_settings"].target
    usual = target.strategy
    if statement != "auto":
        made = Forced(usual.values_below, usual.copy_from, usual.staging_from, statement)
        object.__setattr__(target, "strategy", made)
    return sink
