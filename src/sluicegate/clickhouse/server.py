"""The table, and the server's version and settings, as read from the server."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlencode

from .._core.checks import bad
from .._core.errors import ConfigError, RefusedError
from ..http.config import split_url
from .values import parse_type

if TYPE_CHECKING:
    from collections.abc import Collection

    from .values import ColumnType


Ask = Callable[[str], Awaitable[bytes]]
ToldColumns = list[list[Any]]
"""The name, type and default kind of each column."""
_VERSION = re.compile(r"([0-9]+)\.([0-9]+)")
_WINDOW = re.compile(r"\bnon_replicated_deduplication_window = [1-9]")
_ARROW_SINCE = (20, 6)
_ARRAY_SINCE = (22, 2)
_VIEWS_SINCE = (24, 7)
_NOT_SENT = frozenset({"MATERIALIZED", "ALIAS"})
TOKEN_SETTING = "insert_deduplication_token"  # noqa: S105  # not a secret
VIEWS_SETTING = "deduplicate_blocks_in_dependent_materialized_views"
"""Lets views recognize rows that are sent again. Servers before 24.7 would compare the rows that a
view makes, and drop those of another INSERT if they are equal. Many later ones refuse it together
with `async_insert`.
"""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BLOCK_ROWS = "100000000"
"""More rows than a body has."""
_STRICT = {
    "input_format_allow_errors_num": "0",
    "input_format_allow_errors_ratio": "0",
    "input_format_skip_unknown_fields": "0",
    "input_format_null_as_default": "0",
    "date_time_overflow_behavior": "throw",
}
"""No value is dropped or changed silently, whatever the user's profile."""
_WHOLE = {"input_format_parallel_parsing": "0", "max_insert_block_size": _BLOCK_ROWS}
"""One body is one block, which is stored or refused as a whole."""
_READING = {"date_time_input_format": "best_effort"}
_STORED = {"distributed_foreground_insert": "1", "insert_distributed_sync": "1"}
"""A success means that the shards have stored the rows; the setting's newer and older names."""
_OWN = {
    **dict.fromkeys(("query", "wait_end_of_query"), "is set by the sink"),
    **dict.fromkeys(_STRICT, "is set by the sink, so that no row is lost or changed silently"),
    **dict.fromkeys(_WHOLE, "is set by the sink, since a body must be one block"),
    **dict.fromkeys(
        (TOKEN_SETTING, "insert_deduplicate", "deduplicate_insert", "async_insert_deduplicate"),
        "is given by deduplicate=",
    ),
    **dict.fromkeys(("async_insert", "wait_for_async_insert"), "is given by async_insert="),
    **dict.fromkeys(("user", "password"), "is given by auth="),
    "database": "is given by database=",
}
"""Settings that the user cannot give, and the reason."""


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's name, and its database's name if given."""

    table: str
    database: str | None

    @property
    def quoted(self) -> str:
        """The name as an identifier."""
        if self.database is None:
            return quoted(self.table)
        return f"{quoted(self.database)}.{quoted(self.table)}"

    @property
    def database_literal(self) -> str:
        """The database, as an expression in a query."""
        return "currentDatabase()" if self.database is None else literal(self.database)

    @property
    def shown(self) -> str:
        """The name in messages."""
        return f"table {self.quoted}"


@dataclass(frozen=True, slots=True)
class TableFacts:
    """The server's information about the table and about itself."""

    columns: dict[str, ColumnType]
    """The columns that accept values, in order."""
    usual: tuple[str, ...]
    """The stored columns among them, without EPHEMERAL ones."""
    version: tuple[int, int]
    version_text: str
    settings: frozenset[str]
    """Those of the sink's settings that the server knows."""
    told: ToldColumns
    """The columns as the server describes them."""

    @property
    def takes_arrays(self) -> bool:
        """Whether a JSONEachRow body may be one array."""
        return self.version >= _ARRAY_SINCE


async def read_table(ask: Ask, name: TableName) -> TableFacts:
    """Read the table. Raises `RefusedError` if it does not exist, and the errors of `ask`."""
    known = [*own_settings(deduplicate=True, async_insert=False), TOKEN_SETTING]
    names = ", ".join(map(literal, known))
    ((text, settings),) = await _rows(
        ask,
        f"SELECT version(), groupArray(name) FROM system.settings WHERE name IN ({names})",  # noqa: S608  # of literals
    )
    columns = await read_columns(ask, name)
    found = _VERSION.match(str(text))
    version = (0, 0) if found is None else (int(found[1]), int(found[2]))
    taken = types_of(columns)
    usual = tuple(each for each, _, default in columns if each in taken and default != "EPHEMERAL")
    return TableFacts(
        taken, usual, version, str(text), _settings_to_send(settings, version), columns
    )


def _settings_to_send(known: Sequence[str], version: tuple[int, int]) -> frozenset[str]:
    """The settings to send, of those that the server knows."""
    return frozenset(known) - (set() if version >= _VIEWS_SINCE else {VIEWS_SETTING})


async def read_columns(ask: Ask, name: TableName) -> ToldColumns:
    """Read the table's columns. Raises `RefusedError` if it does not exist, and the errors of
    `ask`.
    """
    columns = await _rows(
        ask,
        f"SELECT name, type, default_kind FROM system.columns WHERE database = {name.database_literal} "  # noqa: S608  # of literals
        f"AND table = {literal(name.table)}",
    )
    if not columns:
        repair = f"create {name.shown}, or grant the user INSERT on it"
        raise RefusedError(f"{name.shown} does not exist, or is not visible", repair=repair)
    return columns


def types_of(columns: ToldColumns) -> dict[str, ColumnType]:
    """The types of the columns that accept values."""
    return {name: parse_type(kind) for name, kind, default in columns if default not in _NOT_SENT}


async def keeps_tokens(ask: Ask, name: TableName) -> bool | None:
    """Whether the table keeps deduplication tokens, by its engine and definition; `None` for
    engines that pass rows on. Raises the errors of `ask`.
    """
    found = await _rows(
        ask,
        f"SELECT engine, engine_full FROM system.tables WHERE database = {name.database_literal} "  # noqa: S608  # of literals
        f"AND name = {literal(name.table)}",
    )
    for engine, definition in found:
        if engine.endswith("MergeTree"):
            return bool(re.match("Replicated|Shared", engine) or _WINDOW.search(definition))
    return None


async def _rows(ask: Ask, query: str) -> list[list[Any]]:
    answer = await ask(f"{query} FORMAT JSONCompact")
    try:
        return cast("list[list[Any]]", json.loads(answer)["data"])
    except (ValueError, KeyError, TypeError) as error:
        text = "the response is not from ClickHouse"
        raise RefusedError(text, repair="correct the URL") from error


def check_server(facts: TableFacts, *, deduplicate: bool, is_arrow: bool) -> None:
    """Raise `ConfigError` for a server that is too old for the arguments."""
    if deduplicate and TOKEN_SETTING not in facts.settings:
        raise ConfigError(
            f"deduplicate=True: ClickHouse {facts.version_text} has no deduplication tokens (22.2 has "
            "them); give deduplicate=False"
        )
    if is_arrow and facts.version < _ARROW_SINCE:
        raise ConfigError(
            f"format='arrow': ClickHouse {facts.version_text} does not read ArrowStream (20.6 does); "
            'give format="json"'
        )


# -- requests --------------------------------------------------------------------------------------


def own_settings(*, deduplicate: bool, async_insert: bool) -> dict[str, str]:
    """The settings that the sink sends if the server knows them."""
    once, later = "1" if deduplicate else "0", "1" if async_insert else "0"
    return {
        **_STRICT,
        **_WHOLE,
        **_READING,
        **_STORED,
        "insert_deduplicate": once,
        "deduplicate_insert": "enable" if deduplicate else "disable",
        "async_insert": later,
        "wait_for_async_insert": "1",
        "async_insert_deduplicate": once if async_insert else "0",
        **({VIEWS_SETTING: "1"} if deduplicate and not async_insert else {}),
    }


def check_settings(settings: object) -> dict[str, str]:
    """The user's settings as strings. Raises `ConfigError`."""
    rule = "must be a mapping of names of settings to numbers, bools or strings"
    if settings is None:
        return {}
    if not isinstance(settings, Mapping):
        raise bad("settings", type(settings).__name__, rule)
    found: dict[str, str] = {}
    for name, value in cast("Mapping[object, object]", settings).items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise bad("settings", name, rule)
        if name in _OWN:
            raise bad("settings", name, _OWN[name])
        if not isinstance(value, (str, int, float)):
            raise bad(f"settings[{name!r}]", type(value).__name__, rule)
        found[name] = str(int(value)) if isinstance(value, bool) else str(value)
    return found


def base_url(url: object) -> str:
    """Check the server's URL; `endpoint` checks the rest of it. Raises `ConfigError`."""
    parts = split_url(url)
    if parts.query:
        raise bad("url", "...", "must have no query; see settings=, database= and auth=")
    return parts._replace(path=parts.path or "/").geturl()


def quoted(name: str) -> str:
    """Quote a name as an identifier."""
    escaped = name.replace("\\", "\\\\").replace("`", "\\`")
    return f"`{escaped}`"


def literal(text: str) -> str:
    """Quote a string as a literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def insert_url(
    url: str,
    table: str,
    columns: Sequence[str],
    format_name: str,
    settings: Mapping[str, str],
) -> str:
    """The URL of an INSERT, without a token. `table` is quoted."""
    names = ", ".join(map(quoted, columns))
    statement = f"INSERT INTO {table} ({names}) FORMAT {format_name}"
    query = urlencode({"query": statement, "wait_end_of_query": "1", **settings}, quote_via=quote)
    return f"{url}?{query}"


def known_only(settings: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    """The settings that a server knows."""
    return {name: value for name, value in settings.items() if name in known}
