"""The table, and the server's version and settings, as read from the server."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from .._core.errors import ConfigError, RefusedError
from .request import TOKEN_SETTING, VIEWS_SETTING, literal, own_settings, quoted
from .types import parsed

if TYPE_CHECKING:
    from .types import ColumnType

Ask = Callable[[str], Awaitable[bytes]]
ToldColumns = list[list[Any]]
"""The name, type and default kind of each column."""
_VERSION = re.compile(r"([0-9]+)\.([0-9]+)")
_WINDOW = re.compile(r"\bnon_replicated_deduplication_window = [1-9]")
_ARROW_SINCE = (20, 6)
_ARRAY_SINCE = (22, 2)
_VIEWS_SINCE = (24, 7)
_NOT_SENT = frozenset({"MATERIALIZED", "ALIAS"})


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
    return TableFacts(taken, usual, version, str(text), _sent(settings, version), columns)


def _sent(known: Sequence[str], version: tuple[int, int]) -> frozenset[str]:
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
    return {name: parsed(kind) for name, kind, default in columns if default not in _NOT_SENT}


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
