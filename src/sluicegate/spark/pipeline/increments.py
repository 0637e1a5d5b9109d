"""The new rows of incremental sources: which rows a run reads, and its position afterwards.

1. The upper bound of a column is read first, by its own query. Taken from the rows while they are
   read, it could pass rows that another partition of the same reading did not yet see.
2. Each write has its own position, stored in its destination. Writes at the same position share one
   reading; after a run that ended between two writes, the later ones first catch up in another.
3. Both readings end at the same bound, so that they share the next one.
4. A position is text: a value of the column cast to text, timestamps with their offset from UTC, so
   that the session's time zone does not matter; or the path of a file.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812  # its usual name

from ..._core.checks import bad
from ..._core.errors import ConfigError
from ..._core.staging import Progress
from ..levels import read_progress
from .declaration import Destination

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import Column, DataFrame

    from ..._core.sink import Sink
    from .declaration import Declared, Incremental, Path

logger = logging.getLogger("sluicegate.spark")

_OFFSET = "yyyy-MM-dd HH:mm:ss.SSSSSSXXX"


@dataclass(frozen=True, slots=True)
class Run:
    """One reading of the sources, and the writes that it is for."""

    progress: dict[Path, Progress | None]
    """The progress of each write after it; `None` if no source is incremental."""
    conditions: dict[str, Column] = field(default_factory=dict[str, "Column"])
    """The new rows of each incremental source."""
    told: dict[str, str] = field(default_factory=dict[str, str])
    """The new rows of each incremental source in words."""
    has_rows: bool = True

    @classmethod
    def whole(cls, pipeline: Declared) -> Run:
        """The run of a pipeline without incremental sources."""
        return cls(dict.fromkeys(pipeline.writes))


def find_runs(
    pipeline: Declared,
    made: Mapping[str, DataFrame],
    sinks: Mapping[Path, Sink[Any]],
    since: str | None,
    *,
    is_dry: bool = False,
) -> list[Run]:
    """Compare the sources with the stored positions. Blocks; reads the columns of the positions.

    Raises `ConfigError` for a `since` that is no value of the column, and the errors of the
    destinations; in a dry run, a table that the run would create has no position.
    """
    before: dict[Path, Progress] = {}
    for path, write in pipeline.writes.items():
        application = pipeline.application_of(write)
        try:
            before[path] = read_progress(sinks[path], application)
        except ConfigError as error:
            if not (
                is_dry and _creates(pipeline.sinks[write.sink]) and str(error).startswith("table=")
            ):
                raise
            before[path] = Progress(application=application)
    groups: dict[tuple[tuple[str, ...], ...], list[Path]] = {}
    for path, progress in before.items():
        at = tuple(progress.positions.get(name, ()) for name in pipeline.incremental)
        groups.setdefault(at, []).append(path)
    ends: dict[str, tuple[str, ...]] = {}
    runs: list[Run] = []
    for at, paths in groups.items():
        conditions: dict[str, Column] = {}
        positions: dict[str, tuple[str, ...]] = {}
        told: dict[str, str] = {}
        new: list[bool] = []
        for (name, given), position in zip(pipeline.incremental.items(), at, strict=True):
            find = _new_files if given.files else _above
            found = find(made[name], given, position, ends.get(name, ()), since)
            conditions[name], positions[name], told[name], has_rows = found
            ends[name] = positions[name]
            new.append(has_rows)
        moved: dict[Path, Progress | None] = {
            path: Progress(
                application=before[path].application,
                version=before[path].version + 1,
                positions=positions,
            )
            for path in paths
        }
        runs.append(Run(moved, conditions, told, has_rows=any(new)))
    return runs


def _creates(sink: object) -> bool:
    """Whether a run creates the table."""
    return isinstance(sink, Destination) and "create_table" in sink.arguments


_Found = tuple["Column", tuple[str, ...], str, bool]
"""The condition for the new rows, the position after them, both in words, whether there are any."""


def _above(
    df: DataFrame,
    given: Incremental,
    position: tuple[str, ...],
    end: tuple[str, ...],
    since: str | None,
) -> _Found:
    name = given.column or ""
    column = F.col(f"`{name.replace('`', '``')}`")
    kind = df.select(column).schema[0].dataType.simpleString()
    if since is not None and not _is_value(df, since, kind):
        raise bad("since", since, f"must be a value of {name}, which is a {kind}")
    low = since if since is not None else next(iter(position), None)
    inside = F.lit(True) if low is None else column > F.lit(low).cast(kind)
    if end:
        inside &= column <= F.lit(end[0]).cast(kind)
    elif given.until is not None:
        inside &= column <= F.expr(given.until)
    newest = F.max(F.when(inside, column))
    text = F.date_format(newest, _OFFSET) if kind == "timestamp" else newest.cast("string")
    is_empty = column.isNull()
    ((high, empty),) = df.where(inside | is_empty).select(text, F.count_if(is_empty)).collect()
    if empty and not end:
        logger.warning("%d rows without a value of %s: they are never read", empty, name)
    beginning = "the beginning" if low is None else low
    if high is None:
        return F.lit(False), position, f"none with {name} above {beginning}", False
    told = f"{name} above {beginning} up to {high}"
    return inside & (column <= F.lit(high).cast(kind)), (high,), told, True


def _is_value(df: DataFrame, text: str, kind: str) -> bool:
    known = df.sparkSession.sql(f"SELECT try_cast(:given AS {kind})", args={"given": text})
    return known.collect()[0][0] is not None


def _new_files(
    df: DataFrame,
    given: Incremental,  # noqa: ARG001  # as for a column
    position: tuple[str, ...],
    end: tuple[str, ...],
    since: str | None,
) -> _Found:
    if since is not None and not _is_value(df, since, "timestamp"):
        raise bad("since", since, "must be a time, to compare with the times of the files")
    there = end or tuple(sorted(df.inputFiles()))
    known = () if since is not None else position
    new = [*_without(there, known)]
    # inputFiles has file:///a, and the rows file:/a. Known files are left out, instead of new ones
    # taken: a path in a third form would be read again, and not lost.
    paths = {*known, *(name.replace(":///", ":/", 1) for name in known)}
    condition = ~F.col("_metadata.file_path").isin(sorted(paths)) if paths else F.lit(True)
    if since is not None:
        condition &= F.col("_metadata.file_modification_time") > F.lit(since).cast("timestamp")
    told = f"new files: {len(new):,}" if since is None else f"files changed after {since}"
    return condition, there if new else position, told, bool(new)


def _without(names: Iterable[str], known: Iterable[str]) -> Iterable[str]:
    seen = set(known)
    return (name for name in names if name not in seen)
