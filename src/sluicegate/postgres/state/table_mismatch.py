"""Refusal of a state in PostgreSQL that does not belong to the position, with the statements that
put it right.
"""

# ruff: noqa: S608  # statements for the operator, with quoted names and literals; none is executed

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._core.checks import bad
from ...flow.state.mark import mismatch
from ..client.names import literal
from .table import MARK_KEY, marked

if TYPE_CHECKING:
    from ...flow.state.mark import StateMark
    from ..sink.positions import OwnedPosition, PositionTable
    from .table import StateTable


def check_mark(
    mark: StateMark | None, owned: OwnedPosition, table: StateTable, positions: PositionTable
) -> None:
    """Raise `ConfigError` unless the state with this mark is that of the owned position."""
    found = mismatch(mark, owned.position)
    if found is None:
        return
    partition, position = owned.partition, owned.position
    at = "no position" if position is None else f"the position {position.offset}"
    source = f"consumer_group = {literal(owned.group)} AND topic = {literal(partition.topic)}"
    row = f"{source} AND partition = {partition.partition}"
    both = f"partition IN ({partition.partition}, {marked(partition).partition})"
    accept = f"UPDATE {positions.qualified} SET metadata = '' WHERE {row};"
    if mark is None:
        why = (
            f"has no state of {partition}, but the group {owned.group!r} has {at}, which was stored with "
            f"one: rows were deleted. Restore them; or to continue with the remaining rows: {accept}"
        )
    else:
        why = (
            f"has the state of {partition} at {mark.position}, but the group {owned.group!r} has {at}"
            f"{': it was moved without the state' if found == 'moved' else ' of a later transaction'}. "
            "To continue with this state: "
            f"UPDATE {positions.qualified} SET position = {mark.position}, metadata = '' WHERE {row}; "
            "or to continue from the group's position with this state nevertheless: "
            f"DELETE FROM {table.qualified} WHERE {source} AND partition = {marked(partition).partition} "
            f"AND key = {literal(MARK_KEY)}; {accept} "
            "or to continue from there with an empty state: "
            f"DELETE FROM {table.qualified} WHERE {source} AND {both}; {accept}"
        )
    raise bad("table", table.qualified, why)
