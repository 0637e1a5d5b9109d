"""Sinks built from their declarations, by the constructors of the classes and their rules.

1. Arguments have the names of the constructor's parameters. After a refused argument the
   constructor is called again without it, so that each bad argument is found.
2. A sink that another one names, for dead letters or as a branch, is built separately for it. Sinks
   that name each other are a mistake.
3. Some defaults differ for executors: a file per process, and the columns of the written rows.
4. A pipeline and the options of `format("sluicegate")` both declare their sinks for this maker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any

from ... import sinks as destinations
from ..._core.errors import ConfigError, MissingExtra
from ..._core.retry_policy import Backoff
from ..._core.stacking import as_sink
from ..._core.tls import TlsFiles
from ...retry import RetryBudget
from ...retry.breaker import CircuitBreaker
from ...retry.retry import Retry
from ...sinks import DeadLetterRecord, Isolate, RateLimit, Split
from ...sinks.dead_letter import DeadLetter
from ...sinks.fan_out import FanOut
from ...sinks.timeout import Timeout
from ...telemetry import Metrics
from .declaration import Destination, Mistake, suggest
from .refusal import UNDECODABLE, RefuseUndecodable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql.types import StructType

    from ..._core.sink import Sink
    from .declaration import Layer, Path

TERMINALS: Mapping[str, str] = {
    "clickhouse": "ClickHouseSink",
    "elasticsearch": "ElasticsearchSink",
    "file": "FileSink",
    "http": "HttpSink",
    "kafka": "KafkaSink",
    "nats": "NatsSink",
    "object": "ObjectSink",
    "parquet": "ParquetSink",
    "postgres": "PostgresSink",
    "redis": "RedisSink",
    "sql": "SqlSink",
    "udp": "UdpSink",
}
"""The classes in `sluicegate.sinks`; a technology is loaded when its sink is built."""
LAYERS: Mapping[str, Callable[..., Any]] = {
    "circuit_breaker": CircuitBreaker,
    "dead_letter": DeadLetter,
    "isolate": Isolate,
    "metrics": Metrics,
    "rate_limit": RateLimit,
    "retry": Retry,
    "split": Split,
    "timeout": Timeout,
}
KINDS = frozenset({*TERMINALS, "fan_out", "python"})


_TABLES: Mapping[tuple[str, str], Callable[..., Any] | tuple[str, str]] = {
    ("retry", "backoff"): Backoff,
    ("retry", "budget"): RetryBudget,
    ("nats", "tls"): TlsFiles,
    ("postgres", "changes"): ("...postgres", "Changes"),
}
"""Arguments that are objects, declared as tables; as names of a technology, loaded when used."""
_ACCESS: Mapping[str, tuple[str, str]] = {
    "clickhouse": ("...http", "HttpAccess"),
    "elasticsearch": ("...http", "HttpAccess"),
    "http": ("...http", "HttpAccess"),
    "kafka": ("...kafka", "KafkaAccess"),
    "postgres": ("...postgres", "PostgresAccess"),
}
"""The values that are the first argument of a class, and whose arguments are declared
next to its.
"""
_LENT = frozenset({"pool", "close_pool", "ssl_context"})
"""Arguments of an access that only Python has."""
_NEEDED = {"postgres": ("dsn", "table"), "sql": ("url", "table")}
"""Arguments with a default in code that are required here."""
_FIELDS: Mapping[str, Sequence[str]] = {
    "elasticsearch": ("id", "routing", "version"),
    "kafka": ("topic_field", "key", "value", "headers", "timestamp", "partition"),
    "nats": (
        "subject_field",
        "value",
        "headers",
        "message_id",
    ),
    "redis": ("stream_field", "id"),
}
"""Arguments that may name columns."""
_ANY: Mapping[str, object] = {"dsn": "postgresql://", "table": "?", "columns": ("?",)}
"""Valid values in place of refused arguments that are needed."""
_ARGUMENT = re.compile(r"\w+")


class SinkMaker:
    """Builds the sinks of one pipeline and adds to `mistakes`.

    `columns` are the written columns, if known; `schema` also has their types, from which tables
    are created. `key` is the key of the write, the default for the primary key of such a table.
    With `refuses`, a column of the rows has the reasons why values could not be decoded.
    """

    def __init__(
        self,
        declared: Mapping[str, object],
        columns: Sequence[str] | None,
        mistakes: list[Mistake],
        *,
        schema: StructType | None = None,
        key: Sequence[str] = (),
        refuses: bool = False,
    ) -> None:
        self._declared = declared
        if refuses and columns is not None:
            columns = [name for name in columns if name != UNDECODABLE]
        self._columns = columns
        self._refuses = refuses
        self._schema = schema
        self._key = tuple(key)
        self._mistakes = mistakes
        self._making: list[str] = []

    def make(self, name: str, *, is_for_letters: bool = False) -> Sink[Any] | None:
        """Build the sink of this name with its stack; `None` if that is impossible."""
        declared, path = self._declared[name], ("sinks", name)
        refuses = self._refuses and not is_for_letters
        if not isinstance(declared, Destination):
            made = self._as_sink(declared, path)
            return RefuseUndecodable(made) if refuses and made is not None else made
        self._making.append(name)
        try:
            sink = self._base(declared, path, is_for_letters=is_for_letters)
            if refuses and sink is not None and declared.kind != "fan_out":
                sink = RefuseUndecodable(sink)
            for place, layer in enumerate(declared.stack):
                decorator = self._decorator(layer, (*path, "stack", place))
                if decorator is not None and sink is not None:
                    sink = self._wrap(decorator, sink, (*path, "stack", place))
            return sink
        finally:
            self._making.pop()

    def _as_sink(self, value: Any, path: Path) -> Sink[Any] | None:
        try:
            return as_sink(value)
        except ConfigError:
            self._report(path, "must be a table, or in Python a sink")
            return None

    def _base(self, declared: Destination, path: Path, *, is_for_letters: bool) -> Sink[Any] | None:
        kind, arguments = declared.kind, dict(declared.arguments)
        if kind not in KINDS:
            self._report((*path, "kind"), f"{kind!r} is not a sink; {suggest(kind, KINDS)}")
            return None
        if kind == "fan_out":
            return self._fan_out(arguments, path)
        if kind == "python":
            return self._from_factory(arguments, path)
        if not is_for_letters:
            self._check_fields(kind, arguments, path)
        sink: Sink[Any] | None = self._construct(
            class_of(kind),
            kind,
            {**self._defaults(kind, arguments, is_for_letters=is_for_letters), **arguments},
            path,
        )
        return sink

    def _defaults(
        self, kind: str, arguments: Mapping[str, Any], *, is_for_letters: bool
    ) -> dict[str, Any]:
        if kind == "file":
            return {"per_process": True}
        if kind == "parquet":
            return {"schema": None}  # the rows arrive as columns
        if is_for_letters and kind in {"clickhouse", "postgres", "sql"}:
            rows = {"columns": DeadLetterRecord.COLUMNS, "row": DeadLetterRecord.as_row}
            ignores = {} if kind == "clickhouse" else {"on_conflict": "ignore"}
            return {**ignores, **({} if "columns" in arguments else rows)}
        if kind not in {"postgres", "sql"}:
            return {}
        creates = arguments.get("create_table", "never") != "never"
        updates = arguments.get("on_conflict", "error") != "error"
        by_key = {"conflict_columns": self._key} if creates and updates and self._key else {}
        found = self._with_columns({**by_key, **arguments})
        grows = creates or arguments.get("on_new_column") == "add"
        if grows and "columns" not in arguments:
            types = dict.fromkeys(found["columns"], "text")  # until Spark has analysed the view
            if self._schema is not None:
                postgres = import_module("...postgres", __package__)
                known = postgres.postgres_columns(self._schema)
                types = {name: known[name] for name in types}
            found = {"columns": types}
        return {**by_key, **found}

    def _check_fields(self, kind: str, arguments: Mapping[str, Any], path: Path) -> None:
        for name in _FIELDS.get(kind, ()) if self._columns is not None else ():
            field = arguments.get(name)
            if isinstance(field, str) and field not in (self._columns or ()):
                known = suggest(field, self._columns or ())
                self._report((*path, name), f"there is no column {field!r}; {known}")

    def _with_columns(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if self._columns is not None:
            changes = arguments.get("changes")
            apart = changes.values() if isinstance(changes, Mapping) else ()
            return {"columns": tuple(name for name in self._columns if name not in apart)}
        named = [arguments.get(name, ()) for name in ("conflict_columns", "update_columns")]
        version = arguments.get("version_column")
        found = [
            column for names in named if isinstance(names, (list, tuple)) for column in names
        ] + ([version] if version else [])
        return {"columns": tuple(dict.fromkeys(found)) or ("?",)}

    def _decorator(self, layer: Layer, path: Path) -> Any:
        if layer.kind not in LAYERS:
            self._report(
                (*path, "kind"), f"{layer.kind!r} is not a decorator; {suggest(layer.kind, LAYERS)}"
            )
            return None
        arguments = dict(layer.arguments)
        if layer.kind == "dead_letter" and "target" in arguments:
            target = self._make_named(arguments["target"], (*path, "target"), is_for_letters=True)
            if target is None:
                return None
            arguments["target"] = target
        return self._construct(LAYERS[layer.kind], layer.kind, arguments, path)

    def _wrap(self, decorator: Any, sink: Sink[Any], path: Path) -> Sink[Any]:
        try:
            made: Sink[Any] = decorator(sink)
        except ConfigError as error:
            self._report(path, str(error))
            return sink
        return made

    def _fan_out(self, arguments: dict[str, Any], path: Path) -> Sink[Any] | None:
        branches = {
            name: self._branches(arguments.pop(name, ()), (*path, name))
            for name in ("sinks", "best_effort")
        }
        made = [branch for branch in branches["sinks"] if branch is not None]
        if not branches["sinks"]:
            self._report((*path, "sinks"), "must name at least one sink")
        if not made or None in branches["best_effort"]:
            return None

        def fan_out(mode: Any = "all") -> FanOut[Any]:
            return FanOut(*made, best_effort=branches["best_effort"], mode=mode)

        spread: Sink[Any] | None = self._construct(fan_out, "fan_out", arguments, path)
        return spread

    def _branches(self, names: Any, path: Path) -> list[Any]:
        if not isinstance(names, (list, tuple)):
            self._report(path, "must be a list of names of sinks")
            return [None]
        return [self._make_named(name, (*path, place)) for place, name in enumerate(names)]

    def _make_named(
        self, name: Any, path: Path, *, is_for_letters: bool = False
    ) -> Sink[Any] | None:
        if not isinstance(name, str) or name not in self._declared:
            self._report(path, f"there is no sink {name!r}; {suggest(str(name), self._declared)}")
            return None
        if name in self._making:
            circle = [*self._making[self._making.index(name) :], name]
            self._report(path, f"a cycle of sinks: {' -> '.join(circle)}")
            return None
        return self.make(name, is_for_letters=is_for_letters)

    def _from_factory(self, arguments: dict[str, Any], path: Path) -> Sink[Any] | None:
        text = arguments.pop("factory", None)
        path_of_it = (*path, "factory")
        if not isinstance(text, str) or not re.fullmatch(r"[\w.]+:\w+", text):
            self._report(path_of_it, 'must be "module:function"')
            return None
        module, _, name = text.partition(":")
        try:
            factory = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            self._report(path_of_it, f"cannot be imported: {error}")
            return None
        made = self._construct(factory, "python", arguments, path)
        return None if made is None else self._as_sink(made, path_of_it)

    def _construct(
        self, make: Callable[..., Any], kind: str, arguments: Mapping[str, Any], path: Path
    ) -> Any:
        parameters = signature(make).parameters
        given = {
            name: value
            for name, value in arguments.items()
            if self._is_known(name, kind, parameters, path)
        }
        needed = [
            name
            for name, each in parameters.items()
            if each.default is Parameter.empty and each.kind is not Parameter.VAR_KEYWORD
        ]
        missing = [
            name for name in dict.fromkeys([*needed, *_NEEDED.get(kind, ())]) if name not in given
        ]
        for name in missing:
            self._report((*path, name), "is missing")
        for name, value in given.items():
            inner = _TABLES.get((kind, name))
            if isinstance(inner, tuple):
                inner = getattr(import_module(inner[0], __package__), inner[1])
            if inner is not None and isinstance(value, Mapping):
                given[name] = self._construct(inner, name, value, (*path, name))
        return None if missing else self._call(make, given, path)

    def _is_known(
        self, name: str, kind: str, parameters: Mapping[str, Parameter], path: Path
    ) -> bool:
        if name in parameters or any(
            each.kind is Parameter.VAR_KEYWORD for each in parameters.values()
        ):
            return True
        self._report((*path, name), f"is unknown to {kind}; {suggest(name, parameters)}")
        return False

    def _call(self, make: Callable[..., Any], given: dict[str, Any], path: Path) -> Any:
        """Call `make`, again without each argument that it refuses; `None` if it cannot succeed."""
        while True:
            try:
                return make(**given)
            except MissingExtra as error:
                self._report(path, str(error))
                return None
            except ConfigError as error:
                match = _ARGUMENT.match(str(error))
                name = match[0] if match else ""
                self._report((*path, name) if name in given else path, str(error))
            except Exception as error:
                self._report(path, f"{type(error).__name__}: {error}")
                return None
            if name not in given or given[name] is _ANY.get(name):
                return None
            parameter = signature(make).parameters.get(name)
            if name in _ANY:
                given[name] = _ANY[name]
            elif parameter is None or parameter.default is not Parameter.empty:
                del given[name]
            else:
                return None

    def _report(self, path: Path, text: str) -> None:
        mistake = Mistake(path, text)
        if mistake not in self._mistakes:
            self._mistakes.append(mistake)


def class_of(kind: str) -> Callable[..., Any]:
    """Return what builds a kind of sink: its class, or one that also takes the access's arguments."""
    made_by: Callable[..., Any] = getattr(destinations, TERMINALS[kind])
    if kind not in _ACCESS:
        return made_by
    module, name = _ACCESS[kind]
    return _WithAccess(made_by, getattr(import_module(module, __package__), name))


class _WithAccess:
    """Builds a sink and the access that is its first argument, from the arguments of both."""

    def __init__(self, sink: Callable[..., Any], access: Callable[..., Any]) -> None:
        self._sink = sink
        self._access = access
        shown = {name: each for name, each in _own(access).items() if name not in _LENT}
        self._of_access = frozenset(shown)
        self._taken_as = next(
            name for name, each in _own(sink).items() if access.__name__ in str(each.annotation)
        )
        others = [each for each in _own(sink).items() if each[0] not in {*shown, self._taken_as}]
        self.__signature__ = Signature(
            [
                each.replace(kind=Parameter.KEYWORD_ONLY)
                if each.kind is Parameter.POSITIONAL_OR_KEYWORD
                else each
                for _, each in (*shown.items(), *others)
            ]
        )

    def __call__(self, **given: Any) -> Any:
        own = {name: given.pop(name) for name in self._of_access & given.keys()}
        return self._sink(**{self._taken_as: self._access(**own)}, **given)


def _own(made: Callable[..., Any]) -> Mapping[str, Parameter]:
    return signature(made).parameters
