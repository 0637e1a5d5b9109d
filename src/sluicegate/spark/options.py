"""The options of `format("sluicegate")`: a sink declared in Spark's way.

1. Options declare one sink as `[sinks.NAME]` does in a pipeline's file: `sink` is its kind, and any
   other option an argument of its class. `SinkMaker` builds both. `OPTIONS` has the names that are
   customary in Spark, most of them for tables, and the arguments that they set.
2. Names are compared without case and underscores, since Spark lowers them. Values are those of
   TOML, and text needs no quotes.
3. Everything is checked on the driver, before a row is read. One error lists all mistakes; it never
   shows a value that may be secret.
4. The options are sent to the executors, and the stack is built there. The same options give the
   same description, so that a worker process can reuse its open sink.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field, replace
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from .._core.checks import bad, count
from .._core.errors import ConfigError
from .pipeline.declaration import Destination, Layer, Mistake, format_path, suggest
from .pipeline.sinks import TERMINALS, SinkMaker, class_of
from .task.task import CHUNK_BYTES, CHUNK_ROWS, WINDOW, Cuts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql.types import StructType

    from .._core.sink import Sink

_ADDED_BY_SPARK = frozenset({"checkpointlocation", "queryname"})
_ADDRESS = {"kafka": "bootstrap", "nats": "servers", "postgres": "dsn"}
"""The argument that `url` sets, where it has another name."""
_TABULAR = frozenset({"postgres", "sql"})
_HTTP = frozenset({"clickhouse", "elasticsearch", "http"})
_WRITE_MODES = {"append": "error", "upsert": "update", "ignore": "ignore"}
_OF_CONNECTION = re.compile(r"(dsn|password|connect_options|prepared_statements|\w+_timeout)$")
"""The arguments of `postgres` that its sink for dead letters shares."""
_SECRET = re.compile(r"url|dsn|servers|password|secret|token|auth", re.IGNORECASE)
_JDBC = "jdbc:postgresql:"
_OF_JDBC = {
    "user": "user",
    "password": "password",
    "sslmode": "sslmode",
    "sslrootcert": "sslrootcert",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "ApplicationName": "application_name",
    "currentSchema": "search_path",
}
"""Parameters of the JDBC driver, and their names in libpq's form."""
_TOML = re.compile(r"true|false|[+-]?\d+(\.\d+)?|[\[{\"'].*", re.DOTALL)
"""Values that are not plain text."""
_PART = r'"(?:[^"]|"")+"|[^."]+'
_TABLE = re.compile(rf"(?:(?P<schema>{_PART})\.)?(?P<table>{_PART})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option that is not simply an argument: its entry in the documentation, and its reader."""

    name: str
    meaning: str
    default: str = ""
    kind: Literal["text", "names", "flag"] | int = "text"
    """The form of the value; a number is the least one allowed."""

    def read(self, value: str) -> Any:
        """Read the value. Raises `ConfigError`."""
        if self.kind == "names":
            names = tuple(part.strip() for part in value.split(","))
            if not all(names) or len(set(names)) != len(names):
                raise bad(self.name, value, "must be comma-separated names without duplicates")
            return names
        if self.kind == "flag":
            if value.lower() not in {"true", "false"}:
                raise bad(self.name, value, "must be true or false")
            return value.lower() == "true"
        if isinstance(self.kind, int):
            number: Any = _value(self.name, value)
            return count(self.name, number, least=self.kind)
        if not value.strip() or "\0" in value:
            raise bad(self.name, value, "must not be empty")
        return value


WRITING = (
    Option(name="batchSize", kind=1, default="50000", meaning="maximum number of rows in one write"),
    Option(name="batchBytes", kind=1, default="8388608", meaning="approximate maximum size of one write in bytes"),
    Option(name="maxInFlight", kind=1, default="4; 1 for an upsert without `versionColumn`, for `kafka` and for `nats`", meaning="concurrent writes of one task"),
    Option(name="maxDeadLetters", kind=0, default="0", meaning="rows that may fail for good without a dead-letter sink before the write fails"),
    Option(
        name="check",
        kind="flag",
        default="true",
        meaning="open the sink once on the driver before a batch is written, so that a wrong address or table fails early; `false` if only "
        "the executors can reach it",
    ),
)  # fmt: skip
"""Options that also apply to formats made by `register`."""
LOGIN = (
    Option(name="user", meaning="the user; overrides the one in `url`. For `kafka`, `saslUsername`"),
    Option(name="password", meaning="the password; overrides the one in `url`. Never shown. For `kafka`, `saslPassword`"),
)  # fmt: skip
OF_TABLES = (
    Option(name="dbtable", meaning='`table` or `schema.table`; names with a dot or a quote in `"..."` (`postgres`, `sql`)'),
    Option(
        name="writeMode",
        default="append",
        meaning="what happens to a row whose key exists: `append` refuses it, `upsert` replaces the existing row, `ignore` keeps it "
        "(`postgres`, `sql`)",
    ),
    Option(name="mergeKeys", kind="names", default="the primary key", meaning="the key columns for `upsert` and `ignore`, comma-separated (`postgres`, `sql`)"),
)  # fmt: skip
OPTIONS = (
    Option(name="sink", default="postgres", meaning=", ".join(f"`{kind}`" for kind in (*sorted(TERMINALS), "python"))),
    Option(name="url", meaning="the address: `postgresql://...` or `jdbc:postgresql://...`; for `kafka` and `nats` one or several, comma-separated. Never shown"),
    *LOGIN,
    *OF_TABLES,
    *WRITING,
    Option(name="maxRetries", kind=0, default="3", meaning="retries of a row after its first attempt; outages do not count"),
    Option(name="timeoutMs", kind=1, default="60000", meaning="the timeout of one attempt in ms"),
    Option(
        name="deadLetters",
        default="raise",
        meaning="the destination of rows that fail for good: `raise` (the write fails), a file (a path with a `/`; each worker process writes "
        "its own), for `postgres` also a table (`sluicegate dlq init` creates one)",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSettings:
    """How rows are written by a format."""

    cuts: Cuts
    max_dead_letters: int = 0
    """Number of rows that may fail for good without a dead-letter sink."""
    check: bool = True
    """Whether the sink is first opened once on the driver."""

    def with_options(self, given: Mapping[str, str], whose: str) -> WriteSettings:
        """Replace the settings that the options name. Raises `ConfigError`; `whose` is the format."""
        known = {option.name.lower(): option for option in WRITING}
        found: dict[str, Any] = {}
        for name, value in _lower_names(given).items():
            if name not in known:
                near = suggest(name, _names(WRITING))
                raise bad("option", name, f"{whose} has no such option; {near}")
            found[known[name].name] = known[name].read(value)
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
    """Options for one schema; pickled as the options, and unpickled as the stack of sinks."""

    options: tuple[tuple[str, str], ...] = field(repr=False)
    schema: StructType

    def sink(self) -> Sink[Any]:
        """Build the stack. Raises `ConfigError`."""
        return _build(self.options, self.schema)

    def __reduce__(self) -> tuple[Any, ...]:
        return _build, (self.options, self.schema)


def prepare(given: Mapping[str, str], schema: StructType) -> tuple[Recipe, WriteSettings]:
    """Return the checked sink and write settings. Raises `ConfigError` with all mistakes."""
    recipe = Recipe(tuple(sorted(given.items())), schema)
    recipe.sink()
    reading = _Reading(given)
    usual = Cuts(
        chunk_rows=CHUNK_ROWS, chunk_bytes=CHUNK_BYTES, window=1 if reading.is_in_order else WINDOW
    )
    writing = {name: value for name, value in reading.given.items() if name in _WRITING}
    return recipe, WriteSettings(cuts=usual).with_options(writing, 'format("sluicegate")')


def _build(options: Sequence[tuple[str, str]], schema: StructType) -> Sink[Any]:
    reading = _Reading(dict(options))
    found = [f"{reading.option_of(each)}: {each.text}" for each in reading.mistakes]
    known = {reading.option_of(each) for each in reading.mistakes}
    more: list[Mistake] = []
    maker = SinkMaker(reading.sinks, schema.names, more, schema=schema)
    sink = maker.make("sink") if reading.sinks else None
    found += [
        f"{option}: {each.text}"
        for each in more
        if (option := reading.option_of(each)) not in known
    ]
    if found or sink is None:
        raise ConfigError(reading.hide(f'format("sluicegate"): {"; ".join(dict.fromkeys(found))}'))
    return sink


class _Reading:
    """The declaration that options describe, and the mistakes in them."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = _lower_names(given)
        self.mistakes: list[Mistake] = []
        self._origins: dict[str, str] = {}
        """The option that an argument comes from."""
        self._kind = self.given.get("sink", "postgres").lower()
        others: tuple[Option, ...] = () if self._kind in _TABULAR else OF_TABLES
        if self._kind not in _TABULAR | _HTTP:
            others += LOGIN
        self._options = {option.name.lower(): option for option in OPTIONS if option not in others}
        self._found = {
            option.name: self._read(option)
            for name, option in self._options.items()
            if name in self.given
        }
        self._arguments: dict[str, Any] = {}
        self.sinks: dict[str, Destination] = {}
        if self._kind not in {*TERMINALS, "python"}:
            self._report("sink", f"{self._kind!r} is not a sink; {suggest(self._kind, TERMINALS)}")
            return
        self._origins[_ADDRESS.get(self._kind, "url")] = "url"
        self._read_arguments()
        self._read_address()
        if self._kind in _TABULAR:
            self._read_table()
        self.sinks["sink"] = Destination(
            kind=self._kind, arguments=self._arguments, stack=[*self._guards(), *self._letters()]
        )

    @property
    def is_in_order(self) -> bool:
        """Whether two writes of a task may not overlap."""
        updates = self._arguments.get("on_conflict") == "update"
        return self._kind in {"kafka", "nats"} or (
            updates and "version_column" not in self._arguments
        )

    def option_of(self, mistake: Mistake) -> str:
        """Return the option that the mistake is about."""
        _, sink, *path = mistake.path if len(mistake.path) > 1 else ("", "sink", *mistake.path)
        if sink == "letters" or "stack" in path:
            return "deadLetters"
        if not path:
            return "sink"
        name = str(path[0])
        return format_path((self._origins.get(name, name), *path[1:]))

    def hide(self, text: str) -> str:
        """Replace values that may be secret."""
        for name, value in self.given.items():
            if _SECRET.search(name) and len(value) > 3:
                text = text.replace(value, "...").replace(quote(value, safe=""), "...")
        return text

    def _report(self, option: str, text: str) -> None:
        self.mistakes.append(Mistake((option,), text))

    def _read(self, option: Option) -> Any:
        try:
            return option.read(self.given[option.name.lower()])
        except ConfigError as error:
            self._report(option.name, str(error))
            return None

    def _put(self, option: str, argument: str, value: object) -> None:
        if argument in self._arguments:
            self._report(option, f"is another name for {argument}; give one of them")
        self._origins[argument] = option
        self._arguments[argument] = value

    def _read_arguments(self) -> None:
        parameters: Mapping[str, Parameter] = (
            {} if self._kind == "python" else signature(class_of(self._kind)).parameters
        )
        folded = {name.replace("_", ""): name for name in parameters}
        takes_more = self._kind == "python" or any(
            each.kind is Parameter.VAR_KEYWORD for each in parameters.values()
        )
        for name, value in self.given.items():
            argument = folded.get(name.replace("_", ""))
            if name in self._options:
                continue
            if argument is None and not takes_more:
                near = suggest(name, [*_names(self._options.values()), *parameters])
                self._report(name, f"is unknown to {self._kind}; {near}")
            else:
                self._put(name, argument or name, _value(name, value))
        if "pool_size" in parameters and "pool_size" not in self._arguments:
            self._arguments["pool_size"] = self._found.get("maxInFlight") or WINDOW

    def _read_address(self) -> None:
        found = self._found
        user, password = found.get("user"), found.get("password")
        url = found.get("url")
        if url is None:
            if user is not None or password is not None:
                self._report("user" if user is not None else "password", "needs url")
            return
        if self._kind == "postgres":
            url = self._from_jdbc(url)
        if self._kind in _HTTP and (user is None) != (password is None):
            self._report("user", "must be given together with password")
        elif self._kind in _HTTP and user is not None:
            self._put("user", "auth", (user, password))
        elif user is not None or password is not None:
            url = _with_login(url, user, password)
        self._put("url", _ADDRESS.get(self._kind, "url"), url)

    def _from_jdbc(self, url: str) -> str:
        """Return a URL of the JDBC driver in libpq's form, and others as they are."""
        if not url.startswith(_JDBC):
            return url
        parts = urlsplit(url.removeprefix("jdbc:"))
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        if strange := [name for name in query if name not in _OF_JDBC]:
            self._report(
                "url",
                f"has parameters that only the JDBC driver knows ({', '.join(strange)}); leave them "
                f"out. Known here: {', '.join(_OF_JDBC)}",
            )
        renamed = urlencode({_OF_JDBC.get(name, name): value for name, value in query.items()})
        return urlunsplit((*parts[:3], renamed, parts.fragment))

    def _read_table(self) -> None:
        found = self._found
        for argument, name in self._table_of("dbtable", found.get("dbtable")).items():
            self._put("dbtable", argument, name)
        mode, keys = found.get("writeMode"), found.get("mergeKeys")
        if mode is not None and mode.lower() not in _WRITE_MODES:
            self._report("writeMode", f"{mode!r} must be one of {', '.join(_WRITE_MODES)}")
        elif mode is not None:
            self._put("writeMode", "on_conflict", _WRITE_MODES[mode.lower()])
        if keys is not None and (mode or "append").lower() == "append":
            self._report("mergeKeys", "needs writeMode=upsert or ignore")
        elif keys is not None:
            self._put("mergeKeys", "conflict_columns", keys)

    def _table_of(self, option: str, text: str | None) -> dict[str, str]:
        if text is None:
            return {}
        found = _TABLE.fullmatch(text.strip())
        if found is None:
            rule = (
                'must be table or schema.table, where a part with a dot or a quote stands in "..."'
            )
            self._report(option, f"{text!r} {rule}")
            return {}
        return {
            argument: part[1:-1].replace('""', '"') if part.startswith('"') else part
            for argument, part in found.groupdict().items()
            if part is not None
        }

    def _guards(self) -> list[Layer]:
        seconds = (self._found.get("timeoutMs") or 60_000) / 1000
        retries = self._found.get("maxRetries")
        return [
            Layer(kind="timeout", arguments={"seconds": seconds}),
            Layer(kind="retry", arguments={"attempts": 4 if retries is None else retries + 1}),
        ]

    def _letters(self) -> list[Layer]:
        """The layer for dead letters, whose sink is declared next to the other one."""
        target = self._found.get("deadLetters") or "raise"
        if target == "raise":
            return []
        if "/" in target:
            letters = Destination(kind="file", arguments={"path": target})
        elif self._kind == "postgres":
            shared = {
                name: value for name, value in self._arguments.items() if _OF_CONNECTION.match(name)
            }
            shared |= {"pool_size": 1, **self._table_of("deadLetters", target)}
            letters = Destination(kind="postgres", arguments=shared, stack=self._guards())
        else:
            rule = "must be raise, or a path with a / in it; a table is for postgres only"
            self._report("deadLetters", f"{target!r} {rule}")
            return []
        self.sinks["letters"] = letters
        return [Layer(kind="dead_letter", arguments={"target": "letters"})]


_WRITING = frozenset(option.name.lower() for option in WRITING)


def _lower_names(given: Mapping[str, str]) -> dict[str, str]:
    """The options without those that Spark itself adds."""
    lowered = {name.lower(): value for name, value in given.items()}
    return {name: value for name, value in lowered.items() if name not in _ADDED_BY_SPARK}


def _names(options: Iterable[Option]) -> list[str]:
    return [option.name for option in options]


def _value(name: str, text: str) -> object:
    """Read a value of TOML; anything else is text, and so is a password."""
    if "password" in name or not _TOML.fullmatch(text):
        return text
    try:
        value: object = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value


def _with_login(url: str, user: str | None, password: str | None) -> str:
    parts = urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    old_user, _, old_password = login.partition(":")
    name = unquote(old_user) if user is None else user
    secret = unquote(old_password) if password is None else password
    login = quote(name, safe="") + (f":{quote(secret, safe='')}" if secret else "")
    return urlunsplit((parts.scheme, f"{login}@{host}", *parts[2:]))


def options_as_markdown() -> str:
    """Return the table of options for the documentation."""
    lines = ["| option | default | |", "|---|---|---|"]
    lines += [f"| `{option.name}` | {option.default} | {option.meaning} |" for option in OPTIONS]
    return "\n".join(lines)
