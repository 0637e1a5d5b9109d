"""What a `PostgresSink` is told, checked before anything is started; and how it is shown without
its secrets.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

from ..._core import checks
from ..._core.checks import bad
from ..._core.errors import MissingExtra
from .._options import Options
from .sql import Plan

if TYPE_CHECKING:
    from datetime import timedelta

    from .rows import RowFunction
    from .strategy import Ways
    from .table import Table

PoolFactory = Callable[[], object]
MODES = ("error", "ignore", "update")
POOL_SIZE = 10


def need_asyncpg() -> None:
    """Raise `MissingExtra` unless asyncpg is installed. Does not load it."""
    if importlib.util.find_spec("asyncpg") is None:
        raise MissingExtra('pip install "penstock[postgres]"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the rows go and what happens to conflicts, as the user said it."""

    table: str
    schema: str | None
    columns: tuple[str, ...]
    mode: str
    conflict: tuple[str, ...] | None
    update: tuple[str, ...] | None
    version: str | None
    returning: tuple[str, ...]
    ways: Ways

    def __post_init__(self) -> None:
        _name("table", self.table)
        if self.schema is not None:
            _name("schema", self.schema)
        checks.choice("on_conflict", self.mode, MODES)
        if self.mode == "error" and self.conflict is not None:
            raise bad("conflict_columns", self.conflict, 'needs on_conflict="ignore" or "update"')
        if self.mode != "update":
            for name, value in (("update_columns", self.update), ("version_column", self.version)):
                if value is not None:
                    raise bad(name, value, 'needs on_conflict="update"')
        if self.returning and self.mode == "error" and self.ways.statement == "copy":
            raise bad(
                "returning",
                self.returning,
                'COPY answers nothing; use statement="auto", "insert" or "unnest"',
            )
        self._check_within()

    def _check_within(self) -> None:
        version = None if self.version is None else (self.version,)
        for name, value in (
            ("conflict_columns", self.conflict),
            ("update_columns", self.update),
            ("version_column", version),
        ):
            stray = [column for column in value or () if column not in self.columns]
            if stray:
                raise bad(name, stray, f"must be among columns={self.columns!r}")
        both = sorted(set(self.conflict or ()) & set(self.update or ()))
        if both:
            raise bad("update_columns", both, "must not repeat conflict_columns")

    def plan(self, table: Table, *, reads_text: bool) -> Plan:
        """Complete what was left open by what is known of the table. Raises `ConfigError` where
        they do not fit.
        """
        target, key = self.conflict, self.conflict or table.key_within(self.columns)
        shown = "; ".join(", ".join(each) for each in table.keys) or "none"
        if self.conflict is not None and set(self.conflict) not in map(set, table.keys):
            rule = (
                f"{table.qualified} has no unique index on exactly these columns; its "
                f"unique keys: {shown}"
            )
            raise bad("conflict_columns", self.conflict, rule)
        if self.mode != "error" and key is None:
            rule = (
                f"needs a unique index of {table.qualified} over columns that this sink "
                f"writes; its unique keys: {shown}"
            )
            raise bad("on_conflict", self.mode, rule)
        if self.mode == "update" or (self.mode == "ignore" and self.returning):
            target = key  # what is returned is led back to its item by one key
        strange = [
            name for name in self.returning if name not in {column.name for column in table.columns}
        ]
        if strange:
            raise bad("returning", strange, f"{table.qualified} has no such column")
        update = self.update
        if update is None:
            update = tuple(column for column in self.columns if column not in (target or ()))
        return Plan(
            table=table,
            columns=self.columns,
            mode=self.mode,
            target=target,
            key=key,
            update_columns=update,
            version=self.version,
            reads_text=reads_text,
            returning=self.returning,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How connections are made."""

    dsn: str | None
    pool: PoolFactory | None
    size: int
    options: Options
    statement_timeout: float | None

    @property
    def place(self) -> str:
        """The host and the database, and nothing else of how to connect."""
        if self.pool is not None:
            return "a pool"
        parts = urlsplit(self.dsn or "")
        query = parse_qs(parts.query)
        host = (
            self.options.get("host")
            or parts.netloc.rpartition("@")[2]
            or (query.get("host") or ["default host"])[0]
        )
        database = (
            self.options.get("database")
            or unquote(parts.path.lstrip("/"))
            or (query.get("dbname") or ["default database"])[0]
        )
        return f"{host}/{database}"

    def pool_options(self) -> dict[str, Any]:
        """The arguments of `asyncpg.create_pool` beside the DSN."""
        options: dict[str, Any] = {"min_size": 0, "max_size": self.size, **self.options}
        if callable(options.get("ssl")):
            options["ssl"] = options["ssl"]()
        if self.statement_timeout is not None:
            settings = dict(options.get("server_settings") or {})
            options["server_settings"] = {
                "statement_timeout": str(round(self.statement_timeout * 1000)),
                **settings,
            }
        return options

    def __repr__(self) -> str:
        return f"Access({self.place})"


def names(name: str, value: object) -> tuple[str, ...]:
    """A sequence of distinct column names. Raises `ConfigError`."""
    rule = "must be a sequence of at least one column name, each once"
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise bad(name, value, rule)
    named = cast("Sequence[str]", value)
    found = tuple(named)
    if not found or len(set(found)) != len(found):
        raise bad(name, named, rule)
    for each in found:
        _name(name, each)
    return found


def row_function(value: RowFunction | None) -> RowFunction | None:
    """A function of an item, or `None`. Raises `ConfigError`."""
    if value is not None and not callable(value):
        raise bad("row", value, "must be a function of an item that returns a sequence of values")
    return value


def access(
    dsn: str | None,
    pool: PoolFactory | None,
    size: int | None,
    options: Mapping[str, Any] | None,
    timeout: float | timedelta | None,
) -> Access:
    """How to connect, checked. No error shows the DSN."""
    if pool is not None:
        _check_pool(pool, dsn, options, timeout)
    if dsn is not None:
        _check_dsn(dsn)
    if options is not None and not isinstance(cast("object", options), Mapping):
        raise bad(
            "connect_options", type(options).__name__, "must be a mapping of asyncpg's options"
        )
    return Access(
        dsn=dsn,
        pool=pool,
        size=POOL_SIZE if size is None else checks.count("pool_size", size),
        options=_own_options(options or {}),
        statement_timeout=checks.optional_seconds("statement_timeout", timeout),
    )


def _check_pool(pool: object, dsn: str | None, options: object, timeout: object) -> None:
    if not callable(pool):
        rule = (
            "must be a function that makes a pool (async or not), since a live pool belongs "
            "to one event loop and cannot be pickled"
        )
        raise bad("pool", type(pool).__name__, rule)
    for name, value in (("dsn", dsn), ("connect_options", options), ("statement_timeout", timeout)):
        if value is not None:
            raise bad(
                name, "...", "must not be given beside pool=, whose function decides how to connect"
            )


def _check_dsn(dsn: object) -> None:
    rule = "must begin with postgresql:// or postgres://"
    if not isinstance(dsn, str):
        raise bad("dsn", type(dsn).__name__, rule)
    if not dsn.startswith(("postgresql://", "postgres://")):
        raise bad("dsn", "...", rule)
    try:
        urlsplit(dsn).port  # noqa: B018  # asked only to be checked
    except ValueError:
        if "," not in dsn:  # several hosts are asyncpg's to read
            raise bad("dsn", "...", "its port must be a number") from None


def _own_options(options: Mapping[str, Any]) -> Options:
    for name, instead in (("dsn", "dsn"), ("max_size", "pool_size"), ("loop", None)):
        if name in options:
            raise bad(
                "connect_options",
                name,
                f"is given by {instead}=" if instead else "is the loop that opens the sink",
            )
    return Options(options)


def _name(name: str, value: object) -> None:
    if not isinstance(value, str) or not value or "\0" in value:
        raise bad(name, value, "must be a name: text that is not empty, without NUL")
