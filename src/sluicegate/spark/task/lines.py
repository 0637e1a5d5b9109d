"""The results of a task as lines of text: counts of its units, and its kept dead rows.

Text travels both as rows of a DataFrame (`mapInArrow`) and in the commit messages of a data source.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ..._core.staging import Stage
from ..levels.units import wrapped
from ..report import DeadLettersError, DeadRow, SparkWriteReport, UnitReport

if TYPE_CHECKING:
    from collections.abc import Iterable

Line = tuple[str, str]
"""A kind (`unit`, `history`, `stage`, `content`, `refused` or `dead`) and its JSON."""
LINES = "kind string, json string"
"""The schema of lines as rows of a DataFrame."""


def to_json(value: object) -> str:
    """Encode the value as JSON; objects without a JSON form become text."""
    return json.dumps(value, default=str, ensure_ascii=False)


def read_report(lines: Iterable[Line]) -> SparkWriteReport:
    """Build the report from the lines of all tasks; rows of `LINES` are also accepted.

    Raises `DeadLettersError` for refused units.
    """
    units: list[UnitReport] = []
    dead: list[DeadRow] = []
    refused: set[int] = set()
    for kind, text in lines:
        found = json.loads(text)
        if kind == "unit":
            units.append(UnitReport(**found))
        elif kind == "dead":
            dead.append(DeadRow(**found))
        elif kind == "refused":
            refused.add(found)
    if refused:
        raise _refusal(refused, dead, committed=len(units))
    return SparkWriteReport(tuple(units), tuple(dead))


def read_stages(lines: Iterable[Line]) -> list[Stage]:
    """Return the stages to publish."""
    return [Stage(**json.loads(text)) for kind, text in lines if kind == "stage"]


def read_content(lines: Iterable[Line]) -> int:
    """Return the sum of the hashes of all staged rows."""
    return wrapped(sum(json.loads(text) for kind, text in lines if kind == "content"))


def read_histories(lines: Iterable[Line]) -> frozenset[str]:
    """Return the histories of the destination on which units were committed.

    More than one means that a standby took over in between.
    """
    return frozenset(json.loads(text) for kind, text in lines if kind == "history") - {""}


def _refusal(refused: set[int], dead: Iterable[DeadRow], *, committed: int) -> DeadLettersError:
    first = next(row for row in dead if row.partition in refused)
    return DeadLettersError(
        f"more rows than max_dead_letters failed for good in each of {len(refused)} buckets, "
        f"which were rolled back ({committed} others are "
        f"committed); the first: {first.error_type}: {first.message}"
    )
