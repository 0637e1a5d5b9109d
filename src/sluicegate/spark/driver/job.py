"""One write of a DataFrame, with every setting checked."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from ..._core import checks
from ..._core.sink import check_single_store
from ..levels.atomic import write_atomically
from ..levels.runs import Ran, write_units
from ..progress_bar import watched
from ..task.dead_rows import DEAD_ROWS_MARGIN, DEAD_ROWS_SHOWN
from ..task.lines import LINES, read_content, read_histories, read_report, read_stages
from ..task.partition import Partition
from ..values.travel import description
from ..values.types import check_types
from ..values.zone import session_zone
from .columns import plainly_named, typed
from .keys import bucket_count, check_order, with_bucket
from .latest import check_replaced, latest_rows
from .trial import try_out

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from ..._core.sink import Sink
    from ..._core.staging import Epoch
    from ..levels.level import Level
    from ..levels.units import Units
    from ..report import SparkWriteReport
    from ..task.task import Cuts
    from .content import Content
    from .keys import KeySettings

DeadLetters = Literal["raise", "return"]
_RETURNED = 1000


@dataclass(frozen=True, slots=True)
class DeadRowLimits:
    """Limits for rows that fail for good and that no dead-letter sink takes."""

    policy: DeadLetters
    keep: int
    """Rows returned from a unit."""
    stop_at: float
    """Rows allowed in a unit; one more ends the unit."""
    most: float
    """Rows allowed in the whole write."""

    @classmethod
    def of(cls, dead_letters: DeadLetters, most: int | None, *, in_units: bool) -> DeadRowLimits:
        """Check the arguments; `in_units` limits each unit separately. Raises `ConfigError`."""
        raises = checks.choice("dead_letters", dead_letters, ("raise", "return")) == "raise"
        if most is None:
            most = 0 if raises else _RETURNED
        checks.count("max_dead_letters", most, least=0)
        if not raises:
            return cls(dead_letters, keep=most, stop_at=math.inf, most=math.inf)
        if in_units:
            return cls(dead_letters, keep=DEAD_ROWS_SHOWN, stop_at=most, most=math.inf)
        return cls(dead_letters, keep=DEAD_ROWS_SHOWN, stop_at=most + DEAD_ROWS_MARGIN, most=most)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteJob:
    """The checked settings of one write."""

    sink: Sink[Any]
    keys: KeySettings
    cuts: Cuts
    max_tasks: int | None
    level: Level
    dead_rows: DeadRowLimits
    content: Content
    unit_buffer_bytes: int

    def run(self, df: DataFrame, *, check: bool, progress: bool | None) -> SparkWriteReport:
        """Write every row of `df`; blocks. `check` opens the sink here first."""
        units = self.level.units(
            bucket_count(df, self.keys.buckets),
            types=typed(df, self.keys.columns),
            content_of=self.content.text,
            buffer_bytes=self.unit_buffer_bytes,
        )
        epoch, zone = self.level.epoch(), session_zone(df)
        schema = df.schema
        self._check(self.sink, schema)
        shipped = description(self.sink)
        if check:
            try_out(shipped, lambda opened: self._check(opened, schema))
        content, latest = self.content, self._latest(df)
        if latest is not df:
            content = replace(content, df=latest)
        rows = self._arranged(latest, has_units=units is not None)

        def run() -> Ran:
            with watched(df.sparkSession, progress) as write:
                done = None if write is None else write.done
                partition = self._partition(shipped, epoch or units, zone, rows.columns, done)
                lines = plainly_named(rows).mapInArrow(partition, LINES).collect()
            report = replace(read_report(lines), settings=self._shown())
            if report.failed > self.dead_rows.most:
                report.raise_for_dead_letters()
            return Ran(report, read_stages(lines), read_content(lines), read_histories(lines))

        if epoch is None:
            return write_units(run)
        return write_atomically(self.sink, epoch, content, run)

    def _check(self, sink: Sink[Any], schema: StructType) -> None:
        """Raise `ConfigError` if `sink`, open or not, cannot write the columns."""
        check_types(sink, schema)
        check_order(sink, self.keys.columns)
        if self.keys.on_key_failure == "park":
            check_single_store(sink)
        if self.keys.latest_only:
            check_replaced(sink, self.keys.columns)

    def _latest(self, df: DataFrame) -> DataFrame:
        keys, content = self.keys, self.content
        if not keys.latest_only:
            return df
        return latest_rows(content.beside(df), keys.columns, keys.order_by, tie=content.hashed)

    def _arranged(self, df: DataFrame, *, has_units: bool) -> DataFrame:
        rows = self.keys.arranged(df)
        rows = self.content.beside(with_bucket(rows) if has_units else rows)
        return rows if self.max_tasks is None else rows.coalesce(self.max_tasks)

    def _partition(
        self,
        shipped: bytes,
        units: Units | Epoch | None,
        zone: str,
        names: list[str],
        done: Any,
    ) -> Partition:
        return Partition(
            shipped,
            self.cuts,
            uuid4().hex,
            keep=self.dead_rows.keep,
            stop_at=self.dead_rows.stop_at,
            units=units,
            done=done,
            zone=zone,
            names=names,
        )

    def _shown(self) -> dict[str, str]:
        """The settings as text, without unset ones."""
        keys, cuts = self.keys, self.cuts
        found = {
            "sink": self.sink,
            "key": ", ".join(keys.columns) or None,
            "buckets": keys.buckets,
            "order_by": ", ".join(keys.order_by) or None,
            "latest_only": True if keys.latest_only else None,
            "max_tasks": self.max_tasks,
            "delivery": self.level.delivery,
            "mode": self.level.mode,
            "dead_letters": self.dead_rows.policy,
            "on_key_failure": keys.on_key_failure if keys.columns else None,
            "chunk_rows": cuts.chunk_rows,
            "chunk_bytes": cuts.chunk_bytes,
            "max_in_flight": cuts.window,
            "patience": cuts.patience,
        }
        return {name: str(value) for name, value in found.items() if value is not None}
