"""A stack of sinks from the options of `format("sluicegate")`.

1. Everything is checked on the driver, before a row is read.
2. The options are sent to the executors, and the stack is built there. The same options give the
   same description, so that a worker process can reuse its open sink.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ... import sinks as destinations
from ..._core import checks
from ..._core.checks import bad
from ..._core.stacking import stack
from ...retry import Backoff, Retry
from ...sinks import (
    DeadLetter,
    DeadLetterRecord,
    ElasticsearchSink,
    FileSink,
    HttpSink,
    PostgresSink,
    Timeout,
)
from ..task.task import CHUNK_BYTES, CHUNK_ROWS, WINDOW, Cuts
from ..tls import TlsFiles
from . import PostgresAccess, dsn_of, table_name
from .table import (
    ELASTICSEARCH,
    FILE,
    HTTP,
    KAFKA,
    NATS,
    OPTIONS,
    POSTGRES,
    RAISE,
    check_sinks,
    read_options,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..._core.sink import Sink

WHOSE = 'format("sluicegate")'

_MODES: Mapping[str, Literal["error", "update", "ignore"]] = {
    "append": "error",
    "upsert": "update",
    "ignore": "ignore",
}
_PREPARED: Mapping[str, Literal["auto"] | bool] = {"auto": "auto", "true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSettings:
    """How rows are written by a format."""

    cuts: Cuts
    max_dead_letters: int = 0
    """Number of rows that may fail for good without a dead-letter sink."""
    check: bool = True
    """Whether the sink is first opened once on the driver."""

    def changed(self, found: Mapping[str, Any]) -> WriteSettings:
        """Replace the settings that the options name."""
        cuts = replace(
            self.cuts,
            chunk_rows=found.get("batchSize", self.cuts.chunk_rows),
            chunk_bytes=found.get("batchBytes", self.cuts.chunk_bytes),
            window=found.get("maxInFlight", self.cuts.window),
        )
        return WriteSettings(
            cuts=cuts,
            max_dead_letters=found.get("maxDeadLetters", self.max_dead_letters),
            check=found.get("check", self.check),
        )


@dataclass(frozen=True, slots=True)
class Recipe:
    """Options for one set of columns; pickled as the options, and unpickled as the stack of sinks."""

    options: tuple[tuple[str, str], ...] = field(repr=False)
    columns: tuple[str, ...]

    def sink(self) -> Sink[Any]:
        """Build the stack."""
        return _build(self.options, self.columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return _build, (self.options, self.columns)


def prepared(given: Mapping[str, str], columns: Sequence[str]) -> tuple[Recipe, WriteSettings]:
    """Return the checked sink and write settings. Raises `ConfigError`, and `MissingExtra` for a
    missing client library.
    """
    found = read_options(given, OPTIONS, WHOSE)
    recipe = Recipe(tuple(sorted(given.items())), tuple(columns))
    recipe.sink()
    upserts = found.get("writeMode") == "upsert" and "versionColumn" not in found
    in_order = upserts or found.get("sink") in {KAFKA, NATS}
    usual = WriteSettings(
        cuts=Cuts(chunk_rows=CHUNK_ROWS, chunk_bytes=CHUNK_BYTES, window=1 if in_order else WINDOW)
    )
    return recipe, usual.changed(found)


def _build(options: Sequence[tuple[str, str]], columns: Sequence[str]) -> Sink[Any]:
    parsed = _Options(read_options(dict(options), OPTIONS, WHOSE), tuple(columns))
    check_sinks(parsed.found, parsed.kind)
    return _with_dead_letters(_guarded(_TERMINALS[parsed.kind](parsed), parsed), parsed)


@dataclass(frozen=True, slots=True)
class _Options:
    """Parsed options, and the columns of the DataFrame."""

    found: Mapping[str, Any] = field(repr=False)
    columns: tuple[str, ...]

    @property
    def kind(self) -> str:
        return str(self.found.get("sink", POSTGRES))

    @property
    def connections(self) -> int:
        return int(self.found.get("maxInFlight", WINDOW))

    def needed(self, name: str) -> str:
        if name not in self.found:
            raise bad(name, None, f"must be given for sink={self.kind!r}")
        return str(self.found[name])

    def within(self, name: str) -> tuple[str, ...] | None:
        """Return the columns named by an option, if it is given."""
        if name not in self.found:
            return None
        value = self.found[name]
        chosen: tuple[str, ...] = (value,) if isinstance(value, str) else value
        if not set(chosen) <= set(self.columns):
            raise bad(
                name,
                ",".join(chosen),
                f"must name columns of the DataFrame, which has {', '.join(self.columns)}",
            )
        return chosen

    def postgres(self) -> dict[str, Any]:
        """The arguments for the database: its address, the login, and prepared statements."""
        name = "dsn" if "dsn" in self.found else "url"
        if "dsn" in self.found and "url" in self.found:
            raise bad("dsn", "...", "is another name for url; give one of them")
        login = {
            option: self.found[option] for option in ("user", "password") if option in self.found
        }
        prepared = _PREPARED[self.found.get("preparedStatements", "auto")]
        return {
            "dsn": PostgresAccess(dsn_of(name, self.needed(name)), connect_options=login),
            "prepared_statements": prepared,
        }

    def kafka(self) -> dict[str, Any]:
        """The arguments for the brokers: their addresses and the login."""
        protocol = self.found.get("securityProtocol", "plaintext")
        given: dict[str, Any] = {"bootstrap": self.needed("bootstrapServers")}
        for option, needs in (("user", "sasl"), ("saslMechanism", "sasl"), ("caFile", "ssl")):
            if option in self.found and needs not in protocol.split("_"):
                rule = f"needs a securityProtocol with {needs}"
                raise bad(option, self.found[option], rule)
        login = self.basic()
        if "sasl" in protocol:
            if login is None:
                rule = "needs user and password"
                raise bad("securityProtocol", protocol, rule)
            given["sasl_mechanism"] = self.found.get("saslMechanism", "plain").upper()
            given["sasl_plain_username"], given["sasl_plain_password"] = login
        if protocol.endswith("ssl"):
            given["ssl_context"] = TlsFiles(cafile=self.found.get("caFile"))
        return {**given, "security_protocol": protocol.upper()}

    def nats(self) -> dict[str, Any]:
        """The arguments for the servers: their addresses and the login."""
        login = self.basic()
        user, password = login or (None, None)
        given = {} if login is None else {"user": user, "password": password}
        return {"servers": self.needed("url"), **given}

    def basic(self) -> tuple[str, str] | None:
        """User and password, if given."""
        if ("user" in self.found) != ("password" in self.found):
            given, missing = ("user", "password") if "user" in self.found else ("password", "user")
            raise bad(given, "...", f"also needs {missing}")
        return (self.found["user"], self.found["password"]) if "user" in self.found else None


def _postgres(options: _Options) -> Sink[Any]:
    schema, table = table_name("dbtable", options.needed("dbtable"))
    mode = options.found.get("writeMode", "append")
    keys, version = options.within("mergeKeys"), options.within("versionColumn")
    if keys and mode == "append":
        raise bad("mergeKeys", ",".join(keys), "needs writeMode=upsert or ignore")
    if version and mode != "upsert":
        raise bad("versionColumn", version[0], "needs writeMode=upsert")
    return PostgresSink(
        schema=schema,
        table=table,
        columns=options.columns,
        on_conflict=_MODES[mode],
        conflict_columns=keys,
        version_column=version[0] if version else None,
        pool_size=options.connections,
        **options.postgres(),
    )


def _http(options: _Options) -> Sink[Any]:
    return HttpSink(options.needed("url"), auth=options.basic(), pool_size=options.connections)


def _elasticsearch(options: _Options) -> Sink[Any]:
    mode, keys = options.found.get("writeMode", "append"), options.within("mergeKeys") or ()
    checks.choice("writeMode", mode, ("append", "upsert"))
    if len(keys) != (mode == "upsert"):
        rule = (
            f"must be the id column, if sink={ELASTICSEARCH!r} and writeMode=upsert, and "
            "omitted for writeMode=append"
        )
        raise bad("mergeKeys", ",".join(keys), rule)
    return ElasticsearchSink(
        options.needed("url"),
        index=options.needed("index"),
        operation="upsert" if keys else "index",
        id=keys[0] if keys else None,
        auth=options.basic(),
        pool_size=options.connections,
    )


def _kafka(options: _Options) -> Sink[Any]:
    if ("topic" in options.found) == ("topicColumn" in options.found):
        raise bad(
            "topic", options.found.get("topic"), "must be given, or topicColumn, but not both"
        )
    given = _columns(options, _KAFKA_PARTS)
    compression = options.found.get("compression", "none")
    return destinations.KafkaSink(
        options.found.get("topic"),
        compression=None if compression == "none" else compression,
        **given,
        **options.kafka(),
    )


def _nats(options: _Options) -> Sink[Any]:
    if ("subject" in options.found) == ("subjectColumn" in options.found):
        rule = "must be given, or subjectColumn, but not both"
        raise bad("subject", options.found.get("subject"), rule)
    return destinations.NatsSink(
        options.found.get("subject"), **_columns(options, _NATS_PARTS), **options.nats()
    )


def _columns(options: _Options, parts: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments that name columns, for the options that are given."""
    chosen = {name: options.within(option) for name, option in parts.items()}
    return {name: columns[0] for name, columns in chosen.items() if columns}


_KAFKA_PARTS = {
    "topic_field": "topicColumn",
    "key": "keyColumn",
    "value": "valueColumn",
    "headers": "headersColumn",
    "timestamp": "timestampColumn",
    "partition": "partitionColumn",
}

_NATS_PARTS = {
    "subject_field": "subjectColumn",
    "value": "valueColumn",
    "headers": "headersColumn",
    "message_id": "messageIdColumn",
}


def _file(options: _Options) -> Sink[Any]:
    return FileSink(options.needed("path"), per_process=True)


_TERMINALS: Mapping[str, Callable[[_Options], Sink[Any]]] = {
    POSTGRES: _postgres,
    HTTP: _http,
    ELASTICSEARCH: _elasticsearch,
    KAFKA: _kafka,
    NATS: _nats,
    FILE: _file,
}


def _guarded(sink: Sink[Any], options: _Options) -> Sink[Any]:
    """Add a timeout per attempt, and retries."""
    found = options.found
    backoff = Backoff(base=found.get("retryBackoffMs", 100) / 1000)
    return stack(
        sink,
        Timeout(found.get("timeoutMs", 60_000) / 1000),
        Retry(attempts=found.get("maxRetries", 3) + 1, backoff=backoff),
    )


def _with_dead_letters(sink: Sink[Any], options: _Options) -> Sink[Any]:
    target = options.found.get("deadLetters", RAISE)
    if target == RAISE:
        return sink
    if "/" in target:
        return stack(sink, DeadLetter(FileSink(target, per_process=True)))
    if options.kind == KAFKA:
        letters: Sink[Any] = destinations.KafkaSink(target, **options.kafka())
        return stack(sink, DeadLetter(_guarded(letters, options)))
    if options.kind == NATS:
        letters = destinations.NatsSink(target, **options.nats())
        return stack(sink, DeadLetter(_guarded(letters, options)))
    if options.kind != POSTGRES:
        raise bad(
            "deadLetters",
            target,
            f"must be raise, or a path with a / in it; a table is for sink={POSTGRES!r}, a topic "
            f"for sink={KAFKA!r}, a subject for sink={NATS!r}",
        )
    schema, table = table_name("deadLetters", target)
    letters = PostgresSink(
        schema=schema,
        table=table,
        columns=DeadLetterRecord.COLUMNS,
        row=DeadLetterRecord.as_row,
        on_conflict="ignore",
        pool_size=1,
        **options.postgres(),
    )
    return stack(sink, DeadLetter(_guarded(letters, options)))
