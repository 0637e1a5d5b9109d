"""The parts of a pipeline: the tables of its file as dataclasses.

A text may refer to an environment variable by `${NAME}` anywhere in it, or as a whole by
`env:NAME`; to the content of a file by `${file:/PATH}`, and to a setting of Spark by
`${conf:spark.NAME}`; `$$` is one dollar sign. SQL is not changed. References are resolved when the pipeline
is checked or run; the declaration, and its output, keep the reference.

A mistake has the path to its value, and the file if the pipeline was read from one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal

from ..._core.errors import ConfigError

Scalar = bool | int | float | str
Names = str | Sequence[str]
Path = tuple[str | int, ...]
"""The path to a value: the names of tables and keys, and indices of arrays from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """The Spark session of a run without a given session.

    Under `spark-submit`, only `conf` applies: the others are its own options.
    """

    master: str | None = None
    """The Spark master; default: that of Spark's configuration, else `local[*]`."""
    connectors: Sequence[Literal["kafka", "postgresql"]] = ()
    """Connectors whose jars `connector_jars` fetches."""
    packages: Sequence[str] = ()
    """Maven coordinates that Spark downloads, with their dependencies."""
    jars: Sequence[str] = ()
    """Files that Spark puts on its class path."""
    conf: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar])
    """Any setting of Spark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """How late rows may arrive."""

    column: str
    """The event time of a row; a timestamp column."""
    delay: str
    """The greatest delay behind the newest row, in Spark's notation: `"10 minutes"`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incremental:
    """How a run finds the rows that earlier runs have not read; has one of the two.

    The position is stored in the destination of each write, at `atomic` in the transaction of its
    rows.
    """

    column: str | None = None
    """A column that grows with every change: a run reads the rows above the last run's greatest
    value. Rows without a value are never read; a warning in the log has their number.
    """
    files: bool = False
    """Whether a run reads the files that no earlier run has read. Files must not change."""
    until: str | None = None
    """With `column`, an SQL expression: greater values are left to the next run. For columns whose
    rows may become visible late, such as `"current_timestamp() - INTERVAL 10 MINUTES"`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """An input, available as a view under its name."""

    format: str
    """`csv`, `json`, `parquet`, `orc`, `kafka`, `table` (its name is the path), or another format
    of Spark.
    """
    path: Names = ()
    """One or more files or folders."""
    schema: str | None = None
    """The columns in Spark's notation: `"id BIGINT, name STRING"`. Required for CSV and JSON, and
    for streamed files. With `value`, the columns of the values.
    """
    value: Literal["json", "avro"] | None = None
    """What the values of Kafka are: the view has a struct of the columns of `schema` in their
    place, and `undecodable`, which is NULL unless a value cannot be decoded. Avro is decoded by
    `registry`. Default: the bytes.
    """
    debezium: bool = False
    """Whether the values are Debezium's events, and `schema` the columns of its table. The struct
    then has `op` and `present`, the list of columns that an event has, too.
    """
    options: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar])
    """The options of the format."""
    static: bool = False
    """Whether a stream reads it once, as a table."""
    incremental: Incremental | None = None
    """How a run reads only new rows; not in a stream, whose checkpoint has its position."""
    watermark: Watermark | None = None
    """How late rows may arrive."""
    dedupe: Names = ()
    """Columns by which duplicates are removed; in a stream, within the watermark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One SELECT from sources and earlier steps, available as a view under its name."""

    sql: str
    """The SELECT, in Spark's SQL."""
    watermark: Watermark | None = None
    """How late rows of the result may arrive."""
    dedupe: Names = ()
    """Columns by which duplicates are removed; in a stream, within the watermark."""
    unchecked: bool = False
    """Skip the check of the SQL before Spark runs, for SQL that only Spark can read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A decorator around a sink."""

    kind: str
    """`timeout`, `retry`, `dead_letter`, `circuit_breaker`, `rate_limit`, `isolate`, `split` or
    `metrics`.
    """
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any], metadata={"rest": True})
    """The arguments of the decorator's class, by name. For `dead_letter`, `target` is the name of
    another sink.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A sink and the decorators around it."""

    kind: str
    """`postgres`, `kafka`, `http` or another sink of Sluicegate, `fan_out` (to several others), or
    `python` (a sink made by your own function).
    """
    stack: Sequence[Layer] = ()
    """The decorators, innermost first."""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any], metadata={"rest": True})
    """The arguments of the sink's class, by name. For `fan_out`, `sinks` are the names of the
    others; for `python`, `factory` is `"module:function"`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """The written rows, their sink and the settings. Defaults are those of `write_dataframe`."""

    view: str
    """The source or step whose rows are written."""
    sink: str
    """The sink for the rows."""
    key: Names = ()
    """The columns that define order."""
    order_by: Names = ()
    """The columns that order the rows of a key."""
    buckets: int | None = None
    """Number of partitions to spread the keys over."""
    latest_only: bool = False
    """Whether only the last row of each key is written."""
    delivery: Literal["at_least_once", "bucket", "atomic"] = "at_least_once"
    """The guarantee across repeated attempts."""
    mode: Literal["append", "overwrite"] = "append"
    """Whether rows are added to existing ones, or replace them."""
    partition: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar])
    """Columns and their values: only the rows that have them are replaced. A date is text."""
    app_id: str | None = None
    """The name under which writes are committed; default: the pipeline's name, with the view's if
    there are several writes or incremental sources, or in a stream the query's id, which its
    checkpoint keeps.
    """
    version: int | str | None = None
    """The number of the write: a whole number, also as text, so that it can come from the
    environment. Not in a stream, which numbers its micro-batches, nor with incremental sources,
    whose runs are numbered.
    """
    content: Names | None = None
    """The columns that a repeated write must repeat; an empty list compares only row counts."""
    chunk_rows: int | None = None
    """Maximum number of rows in a batch."""
    chunk_bytes: int | None = None
    """Approximate maximum size of a batch in bytes."""
    max_in_flight: int | None = None
    """Number of batches that a task writes concurrently."""
    max_tasks: int | None = None
    """Number of tasks that write concurrently."""
    dead_letters: Literal["raise", "return"] = "raise"
    """The treatment of rows that fail for good, if no `dead_letter` takes them."""
    max_dead_letters: int | None = None
    """Number of such rows allowed."""
    patience: float | None = None
    """Seconds for which a batch backs off before its last attempt."""
    on_key_failure: Literal["skip", "stop", "park"] = "skip"
    """The treatment of later rows of a key after one has failed for good."""
    unit_buffer_bytes: int | None = None
    """Bytes of a bucket kept in memory, to repeat the write if its transaction is lost."""
    check: bool = True
    """Whether the sink is opened once on the driver, before a row is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The streaming settings of a pipeline."""

    checkpoint: str
    """The folder of Spark's checkpoint; on a cluster one that all machines can reach."""
    trigger: str = "0 seconds"
    """The interval of micro-batches, as `"10 seconds"`; or `"available_now"`: process the available
    rows, then end.
    """
    output_mode: Literal["append", "update", "complete"] = "append"
    """The rows of an aggregation in a micro-batch: final rows, changed rows, or all."""
    metrics: str | None = None
    """`HOST:PORT` at which Prometheus reads the metrics of the query while it runs."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake, with the path to its value."""

    path: Path
    text: str
    place: str = ""
    """The file, if the pipeline was read from one."""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.place, format_path(self.path), self.text) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A whole pipeline."""

    name: str
    """The name of Spark's application, and of the pipeline's writes in a ledger."""
    sources: Mapping[str, Source]
    """The inputs, each a view under its name."""
    sinks: Mapping[str, Destination | Any]
    """The destinations by name. In Python also a sink or a stack of sinks."""
    write: Write | Sequence[Write]
    """The written rows, their sink and the settings; or several, for one reading of the sources."""
    steps: Mapping[str, Step] = field(default_factory=dict[str, Step])
    """SELECTs, in order, each a view under its name."""
    spark: SparkSettings = field(default_factory=SparkSettings)
    """The Spark session of a run without a given session."""
    stream: Stream | None = None
    """Makes the pipeline a stream; default: available rows are read once."""
    registry: str | None = None
    """The URL of a schema registry, for `avro_to_json` and `try_avro_to_json` in steps."""
    _file: str = field(default="", repr=False, compare=False)

    @property
    def writes(self) -> dict[Path, Write]:
        """The writes by their paths."""
        if isinstance(self.write, Write):
            return {("write",): self.write}
        return {("write", place): write for place, write in enumerate(self.write)}

    @property
    def incremental(self) -> dict[str, Incremental]:
        """The incremental sources by name."""
        found = {name: source.incremental for name, source in self.sources.items()}
        return {name: each for name, each in found.items() if each is not None}

    def application_of(self, write: Write) -> str:
        """Return the name under which a write of a batch is committed."""
        is_one = isinstance(self.write, Write) and not self.incremental
        return write.app_id or (self.name if is_one else f"{self.name}/{write.view}")

    def with_file(self, mistakes: Sequence[Mistake]) -> tuple[Mistake, ...]:
        """Add the file to each mistake."""
        return tuple(Mistake(each.path, each.text, self._file) for each in mistakes)


class PipelineError(ConfigError):
    """A pipeline cannot run as declared: `mistakes` has all findings. Nothing was started."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


def names(given: Names) -> tuple[str, ...]:
    """Return one name or several as a tuple."""
    return (given,) if isinstance(given, str) else tuple(given)


def format_path(path: Path) -> str:
    """Format the path: `sinks.orders.stack[0].attempts`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def one_of(names: Iterable[str]) -> str:
    """Join the names for a sentence."""
    known = sorted(names)
    return ", ".join(known) if known else "none"


def suggest(name: str, names: Iterable[str]) -> str:
    """Suggest the known name closest to `name`, or list all."""
    known = list(names)
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {one_of(known)}"
