"""What a pipeline is made of: the tables of its file, and the same as dataclasses.

Every text may refer to the environment, as `${NAME}` anywhere in it, or as a whole by `env:NAME`;
`$$` is one dollar sign. SQL is left as it is. References are followed when the pipeline is checked
or run; what is declared, and so shown, keeps the reference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .mistakes import Path

Scalar = bool | int | float | str
Names = str | Sequence[str]


def names(given: Names) -> tuple[str, ...]:
    """One name or several, as a tuple."""
    return (given,) if isinstance(given, str) else tuple(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """The session that a run makes for itself."""

    master: str | None = None
    """Where Spark runs; default: what `spark-submit` or Spark's own configuration says, else
    `local[*]`.
    """
    connectors: Sequence[Literal["kafka", "postgresql"]] = ()
    """Connectors whose jars `connector_jars` fetches."""
    packages: Sequence[str] = ()
    """Maven coordinates that Spark fetches, with what they need."""
    jars: Sequence[str] = ()
    """Files that Spark puts on its class path."""
    conf: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar])
    """Any setting of Spark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """How late rows may come."""

    column: str
    """The column that says when a row happened; a timestamp."""
    delay: str
    """How much older than the newest row a row may be, as Spark writes it: `"10 minutes"`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Rows to read, as a view by its name."""

    format: str
    """`csv`, `json`, `parquet`, `orc`, `kafka`, `table` (its name is the path), or any other format
    that Spark knows.
    """
    path: Names = ()
    """The file or folder, or several of them."""
    schema: str | None = None
    """The columns as Spark writes them: `"id BIGINT, name STRING"`. CSV and JSON need it, and every
    file that is streamed.
    """
    options: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar])
    """The options of the format."""
    static: bool = False
    """In a stream: read once as a table instead of being streamed."""
    watermark: Watermark | None = None
    """How late rows may come."""
    dedupe: Names = ()
    """Columns of which every combination is kept once; in a stream within the watermark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One SELECT over the sources and the steps before it, as a view by its name."""

    sql: str
    """The SELECT, in Spark's SQL."""
    watermark: Watermark | None = None
    """How late the rows that come out may be."""
    dedupe: Names = ()
    """Columns of which every combination is kept once; in a stream within the watermark."""
    unchecked: bool = False
    """Leave it to Spark to read the SQL, where the check before it does not know what Spark
    does.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A decorator around a sink."""

    kind: str
    """`timeout`, `retry`, `dead_letter`, `circuit_breaker`, `rate_limit`, `isolate`, `split` or
    `metrics`.
    """
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any], metadata={"rest": True})
    """The decorator's arguments by name, as its class takes them. `dead_letter` has `target`, the
    name of another sink.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A sink, and what stands around it."""

    kind: str
    """`postgres`, `http`, `elasticsearch`, `file`, `fan_out` (to several others), or `python` (a
    function of yours that makes a sink).
    """
    stack: Sequence[Layer] = ()
    """The decorators, the innermost first."""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any], metadata={"rest": True})
    """The sink's arguments by name, as its class takes them. `fan_out` has `sinks`, their names;
    `python` has `factory`, `"module:function"`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Which rows go where, and how. What is not given is as `write_dataframe` has it."""

    view: str
    """The source or step whose rows are written."""
    sink: str
    """The sink that takes them."""
    key: Names = ()
    """The columns by which rows are in order."""
    order_by: Names = ()
    """The columns that order the rows of a key."""
    buckets: int | None = None
    """Partitions to spread the keys over."""
    delivery: Literal["at_least_once", "bucket", "atomic"] = "at_least_once"
    """What a repeated attempt may leave behind."""
    mode: Literal["append", "overwrite"] = "append"
    """Whether the rows come to what is there, or take its place."""
    app_id: str | None = None
    """The name under which writes are committed; default: the pipeline's, and in a stream the
    query's id, which its checkpoint keeps.
    """
    version: int | str | None = None
    """Which of its writes this is: a whole number, also as text, so that it can come from the
    environment. Not in a stream, which counts.
    """
    content: Names | None = None
    """The columns that a repeated write must repeat; an empty list compares only numbers of
    rows.
    """
    chunk_rows: int | None = None
    """Rows in a batch, at most."""
    chunk_bytes: int | None = None
    """Bytes in a batch, about."""
    max_in_flight: int | None = None
    """Batches that a task writes at the same time."""
    max_tasks: int | None = None
    """Tasks that write at the same time."""
    dead_letters: Literal["raise", "return"] = "raise"
    """What is done with rows that fail for good and that no `dead_letter` takes."""
    max_dead_letters: int | None = None
    """How many of those there may be."""
    patience: float | None = None
    """Seconds for which a batch backs off before its last try."""
    on_key_failure: Literal["skip", "stop", "park"] = "skip"
    """What becomes of the later rows of a key after one that failed for good."""
    unit_buffer_bytes: int | None = None
    """How much of a bucket is kept in memory, to be written again when its transaction is lost."""
    check: bool = True
    """Whether the sink is opened once on the driver, before a row is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Makes the pipeline a stream."""

    checkpoint: str
    """The folder in which Spark keeps how far it is; on a cluster one that all machines see."""
    trigger: str = "0 seconds"
    """How often a micro-batch begins, as `"10 seconds"`; or `"available_now"`: what is there, and
    then end.
    """
    output_mode: Literal["append", "update", "complete"] = "append"
    """Which rows of an aggregation a micro-batch has: those that are final, those that changed,
    all.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A whole pipeline."""

    name: str
    """What it is called: Spark's application, and the name under which a ledger knows its
    writes.
    """
    sources: Mapping[str, Source]
    """What is read, each a view by its name."""
    sinks: Mapping[str, Destination | Any]
    """Where rows can go, by name. In Python also a sink or a stack of sinks."""
    write: Write
    """Which rows go where, and how."""
    steps: Mapping[str, Step] = field(default_factory=dict[str, Step])
    """SELECTs, in order, each a view by its name."""
    spark: SparkSettings = field(default_factory=SparkSettings)
    """The session that a run makes for itself."""
    stream: Stream | None = None
    """Makes it a stream; default: what is there is read once."""
    _lines: Mapping[Path, int] = field(default_factory=dict[Path, int], repr=False, compare=False)
    _file: str = field(default="", repr=False, compare=False)
