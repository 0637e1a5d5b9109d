"""Access to the database: a URL, an engine, or a function that returns one; validated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._core.addresses import UNSET, Options, split, unreadable
from .._core.checks import bad
from .._core.errors import ConfigError, MissingExtra
from .._core.extras import need
from .databases import dialect_of
from .engine import AsyncSqlEngine, ThreadedSqlEngine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .engine import SqlEngine

POOL_SIZE = 10
_RULE = 'must be an SQLAlchemy URL, such as "postgresql+asyncpg://user@host/database"'
_OWNED = {
    "pool_size": "use pool_size=",
    "max_overflow": "use pool_size=",
    "isolation_level": "statements commit by themselves or in the sink's transactions",
}

_OTHERS = "an engine, or a function that returns one"
CONNECT_WITHIN = 10
"""Seconds for connecting and the login, unless the URL or `connect_args` say otherwise."""
LIMITS = {
    "asyncpg": ("timeout",),
    "asyncmy": ("connect_timeout",),
    "psycopg": ("connect_timeout",),
    "pymysql": ("connect_timeout",),
}
"""The options of drivers that limit this."""


@dataclass(frozen=True, slots=True, repr=False)
class EngineGiven:
    """The engine of a sink, created when the sink is opened."""

    given: Any
    place: str
    """The database's address in messages, without a password."""
    size: int
    options: Options
    close_timeout: float
    prepares: bool
    """Whether statements are prepared without a test for a pooler."""

    @classmethod
    def of(
        cls,
        given: Any,
        *,
        size: int | None,
        options: Mapping[str, Any] | None,
        close_timeout: float,
        prepared: object = "auto",
    ) -> EngineGiven:
        """Validate the arguments. Raises `ConfigError`, and `MissingExtra` without SQLAlchemy."""
        if prepared is not True and prepared != "auto":
            raise bad("prepared_statements", prepared, 'must be "auto" or True')
        prepares = prepared is True
        sqlalchemy = _sqlalchemy()
        for name in options or {}:
            if name in _OWNED:
                raise ConfigError(f"engine_options[{name!r}]: is set by Sluicegate: {_OWNED[name]}")
        if given is None or given == "":
            raise bad("url", given, f"{_RULE}, {_OTHERS}; {UNSET}")
        if isinstance(given, str):
            if "://" in given and not given.startswith("sqlite"):
                split("url", given, (given.partition("://")[0].lower(),), _RULE)
            try:
                given = sqlalchemy.make_url(given)
            except (sqlalchemy.exc.ArgumentError, ValueError):  # its text may show a password
                if "://" not in given:
                    raise ConfigError(f"url=...: {_RULE}") from None
                raise unreadable("url", given) from None
        if isinstance(given, sqlalchemy.URL):
            name = given.get_backend_name()
            is_single = dialect_of(name).is_single_writer
            if name == "sqlite" and given.database in {None, "", ":memory:"}:
                rule = "must name a file: each thread would have its own in-memory database"
                raise bad("url", "sqlite://", rule)
            place = _place(given)
            return cls(
                given,
                place,
                size or (1 if is_single else POOL_SIZE),
                Options(options or {}),
                close_timeout,
                prepares,
            )
        if options:
            raise bad("engine_options", [*options], "requires a URL: an engine has its own options")
        is_engine = isinstance(given, _engines())
        if not is_engine and not callable(given):
            raise bad("url", given, f"{_RULE}, {_OTHERS}")
        place = "an engine" if is_engine else "the engine of a function"
        return cls(given, place, size or POOL_SIZE, Options({}), close_timeout, prepares)

    def made(self) -> SqlEngine:
        """Create the engine. Raises `ConfigError` for options or a driver that SQLAlchemy refuses."""
        sqlalchemy = _sqlalchemy()
        from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

        given, closes = self.given, False
        if isinstance(given, sqlalchemy.URL):
            closes = True
            options = {"pool_size": self.size, "max_overflow": 0, **self.options}
            try:
                is_async = given.get_dialect().is_async
                make = create_async_engine if is_async else sqlalchemy.create_engine
                given = make(given, **options)
            except ImportError as error:
                raise MissingExtra(
                    f"the driver of {self.place} is not installed ({error})"
                ) from error
            except (TypeError, sqlalchemy.exc.ArgumentError) as error:
                raise ConfigError(f"engine_options: SQLAlchemy refuses them ({error})") from error
            self._set_up(given.sync_engine if is_async else given)
        elif not isinstance(given, _engines()):
            given = given()
        keeps = closes and not any(name.startswith("pool") for name in self.options)
        kind: Any = AsyncSqlEngine if isinstance(given, AsyncEngine) else ThreadedSqlEngine
        made: SqlEngine = kind(
            given, closes=closes, keeps=keeps, size=self.size, close_timeout=self.close_timeout
        )
        return made

    def _set_up(self, engine: Any) -> None:
        from sqlalchemy import event

        dialect = dialect_of(engine.dialect.name, prepares=self.prepares)

        def connecting(_: object, __: object, ___: object, given: dict[str, Any]) -> None:
            for name in LIMITS.get(engine.dialect.driver, ()):
                given.setdefault(name, CONNECT_WITHIN)

        def connected(dbapi: Any, _: object) -> None:
            dialect.set_up(dbapi)

        event.listen(engine, "do_connect", connecting)
        event.listen(engine, "connect", connected)

    def __repr__(self) -> str:
        return f"EngineGiven({self.place})"


def _place(url: Any) -> str:
    """Return driver, host, port and database."""
    port = "" if url.port is None else f":{url.port}"
    return f"{url.drivername}://{url.host or ''}{port}/{url.database or ''}"


def _sqlalchemy() -> Any:
    need("sqlalchemy", "sql", "SqlSink")
    import sqlalchemy

    return sqlalchemy


def _engines() -> tuple[type[Any], ...]:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    return Engine, AsyncEngine
