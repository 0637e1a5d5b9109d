"""Connections to PostgreSQL: where and how to connect, and how many; checked before opening, and
shown without secrets.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import quote

from ..._core import checks
from ..._core.addresses import UNSET, Options
from ..._core.checks import bad
from ..._core.errors import ConfigError, RefusedError, SinkError
from ..._core.extras import need
from ..._core.opening import check_picklable
from .answers import ANSWER_TIMEOUT
from .dsn import check_dsn, check_service, place_of
from .hosts import connector

if TYPE_CHECKING:
    from datetime import timedelta

    from asyncpg import Connection, Pool

PoolFactory = Callable[[], object]
"""Creates an asyncpg pool, plain or async; called at each opening."""
Password = Callable[[], str | Awaitable[str]]
Prepared = Literal["auto"] | bool
POOL_SIZE = 10
CLOSE_TIMEOUT = 5.0
"""Default of `close_timeout`, in seconds."""
STATEMENTS, LONGEST = 100, 15 * 1024
"""Defaults of asyncpg."""
LOANS = 100
_CHOOSING = ("PGSERVICE", "PGHOST", "PGDATABASE")
"""Variables that choose a server or a database."""
IDLE_SECONDS = 1.0


def need_asyncpg() -> None:
    """Raise `MissingExtra` unless asyncpg is installed, without loading it."""
    need("asyncpg", "postgres", "a connection to PostgreSQL")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementCache:
    """The maximum number of prepared statements per connection, and of characters in one."""

    size: int
    longest: float


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class PostgresAccess:
    """Where and how to connect to PostgreSQL; accepted wherever a class or function takes a DSN.

    Args:
        dsn: `postgresql://user:password@host:port/database`. The driver takes missing parts from
            libpq's environment variables, and finally its defaults. Never shown beyond host and
            database.
        password: the password, not percent-encoded, or a function, async or not, without
            arguments, that returns it: it is called for each new connection, for passwords that
            expire. Default: the DSN's.
        connect_options: options of `asyncpg.create_pool`, such as `ssl`, `server_settings` or
            `init`. `ssl` may also be a function that returns the `SSLContext`, which can be
            pickled. Never shown.
        pool: an asyncpg pool of the application, or a function, async or not, that returns one,
            instead of `dsn`. A pool cannot be pickled, a function can. A source listens for
            notifications on one of its connections, if there are three or more.
        close_pool: whether closing an object that connects also closes that pool; default: only if
            a function returned it. A pool that stays open is shared: only connections that are
            lent are closed.
        statement_timeout: time limit of one statement on the server, in seconds; default: the
            server's, and 5 for monitors. Exceeding it is transient. Not with `pool`.
        prepared_statements: `"auto"` (default): statements are prepared, unless the connections
            come from a pooler such as PgBouncer, which is tested on each new connection and logged
            once. `True`: always; only for a pooler in session mode, or one that supports prepared
            statements. `False`: never; statements then run in transaction blocks, which costs a
            small batch two round trips.
        close_timeout: seconds for closing, and for resetting a connection after a cancelled call,
            before it is terminated. Default 5.
        answer_timeout: timeout in seconds for the response to each statement of the library itself;
            then the connection is ended, which counts as an outage. Default 20; at most half of the
            lease of an object with leases.

    Raises `ConfigError` for a DSN that is empty or cannot be read strictly, for an option in it
    that belongs elsewhere, such as `?pool_size=5`, for `connect_options` that the classes set, and
    for any other bad argument.
    """

    dsn: str | None = None
    password: str | Password | None = field(default=None, kw_only=True)
    connect_options: Mapping[str, Any] = field(default_factory=Options, kw_only=True)
    pool: Pool[Any] | PoolFactory | None = field(default=None, kw_only=True)
    close_pool: bool | None = field(default=None, kw_only=True)
    statement_timeout: float | timedelta | None = field(default=None, kw_only=True)
    prepared_statements: Prepared = field(default="auto", kw_only=True)
    close_timeout: float | timedelta = field(default=CLOSE_TIMEOUT, kw_only=True)
    answer_timeout: float | timedelta = field(default=ANSWER_TIMEOUT, kw_only=True)

    def __post_init__(self) -> None:
        if self.pool is None:
            check_dsn(self.dsn)
        else:
            _check_pool(self)
        options = _check_options(self.connect_options)
        if self.password is not None:
            if "password" in options:
                raise bad("password", "...", "is also in connect_options; leave one of them out")
            if not callable(self.password) and not (
                isinstance(cast("object", self.password), str) and self.password
            ):
                rule = f"must be text that is not empty, or a function that returns it; {UNSET}"
                raise bad("password", "..." if self.password else self.password, rule)
        _check_close(self.pool, self.close_pool)
        _check_prepared(self.prepared_statements, options)
        found = {
            "connect_options": options,
            "statement_timeout": checks.optional_seconds(
                "statement_timeout", self.statement_timeout, usual=checks.LONG_TIMEOUT
            ),
            "close_timeout": checks.seconds(
                "close_timeout", self.close_timeout, usual=checks.LONG_TIMEOUT
            ),
            "answer_timeout": checks.seconds(
                "answer_timeout", self.answer_timeout, usual=checks.LONG_TIMEOUT
            ),
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_environment(
        cls,
        *,
        password: str | Password | None = None,
        connect_options: Mapping[str, Any] | None = None,
        statement_timeout: float | timedelta | None = None,
        prepared_statements: Prepared = "auto",
        close_timeout: float | timedelta = CLOSE_TIMEOUT,
        answer_timeout: float | timedelta = ANSWER_TIMEOUT,
    ) -> PostgresAccess:
        """Connect to where libpq's environment variables say.

        They are PGSERVICE (with PGSERVICEFILE), PGHOST, PGPORT, PGDATABASE, PGUSER, PGPASSWORD,
        PGPASSFILE, PGSSLMODE and the other `PGSSL...` variables, read for each new connection;
        PGSERVICE is read here. Arguments as of the class.

        Raises `ConfigError` if none of PGSERVICE, PGHOST and PGDATABASE is set, or if there is no
        such service: the driver would connect to the default server without a word.
        """
        if not any(os.environ.get(name) for name in _CHOOSING):
            raise ConfigError(
                f"none of the environment variables {', '.join(_CHOOSING)} is set: set the server "
                "and the database, or pass a DSN"
            )
        service = os.environ.get("PGSERVICE")  # asyncpg reads it too late
        return cls(
            f"postgresql://?service={quote(service, safe='')}" if service else "postgresql://",
            password=password,
            connect_options=connect_options or {},
            statement_timeout=statement_timeout,
            prepared_statements=prepared_statements,
            close_timeout=close_timeout,
            answer_timeout=answer_timeout,
        )

    @property
    def place(self) -> str:
        """Host and database, for messages."""
        return "a pool" if self.dsn is None else place_of(self.dsn, self.connect_options)

    def __reduce__(self) -> tuple[Any, ...]:
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        for name in ("pool", "connect_options"):
            check_picklable(self, name, given[name])
        return partial(type(self), **given), ()

    def __repr__(self) -> str:
        return f"PostgresAccess({self.place})"


def arguments_of(access: PostgresAccess) -> dict[str, Any]:
    """Return the arguments of `asyncpg.create_pool`.

    Raises `ConfigError` if the DSN names a service that does not exist.
    """
    check_service(cast("str", access.dsn))
    options = {"dsn": access.dsn, **access.connect_options}
    if callable(options.get("ssl")):
        options["ssl"] = cast("Callable[[], object]", options["ssl"])()
    if callable(access.password):
        options["password"] = partial(_ask_password, access.password, access.place)
    elif access.password is not None:
        options["password"] = access.password
    return options


async def connect(access: PostgresAccess) -> Connection[Any]:
    """Open one connection, which prepares no statements. Raises client errors."""
    import asyncpg  # an optional dependency

    known = inspect.signature(asyncpg.connect).parameters
    given = {name: value for name, value in arguments_of(access).items() if name in known}
    make = connector(given["dsn"], given, cast("float", access.answer_timeout))
    made: Connection[Any] = await make(**{**given, "statement_cache_size": 0})
    return made


async def _ask_password(password: Password, place: str) -> str:
    """Ask for the password of a new connection. No item is the cause of a failure."""
    try:
        given = password()
        found = await given if inspect.isawaitable(given) else given
    except (SinkError, OSError, TimeoutError):
        raise
    except Exception as error:
        repair = "repair the function given as password=, or the service that it calls"
        told = f"no password for {place}: password() failed with {type(error).__name__}"
        raise RefusedError(told, repair=repair) from error
    if not isinstance(cast("object", found), str):
        repair = "make the function given as password= return text"
        told = f"no password for {place}: password() returned {type(found).__name__}"
        raise RefusedError(told, repair=repair)
    return found


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Access:
    """What one object makes of a `PostgresAccess`: the number of its connections, and its limits."""

    given: PostgresAccess
    size: int
    statement_timeout: float | None
    answer_timeout: float

    @classmethod
    def of(
        cls,
        dsn: str | PostgresAccess,
        *,
        size: int | None = None,
        lease: float | timedelta | None = None,
        statement_timeout: float | None = None,
    ) -> Access:
        """Check the arguments. Raises `ConfigError`, which never shows the DSN.

        Half of a `lease` is the limit for a response, so that another connection can extend it. The
        `statement_timeout` is the default of connections that are not lent.
        """
        given = access_of(dsn)
        limit = cast("float | None", given.statement_timeout)
        return cls(
            given=given,
            size=_check_size(given.pool, size),
            statement_timeout=statement_timeout if limit is None and given.pool is None else limit,
            answer_timeout=_answer_timeout(given.answer_timeout, lease),
        )

    @property
    def pool(self) -> Pool[Any] | PoolFactory | None:
        """The pool that is lent, or a function that creates it."""
        return self.given.pool

    @property
    def closes_pool(self) -> bool:
        """Whether the pool is closed; by default not if it is an application's."""
        closes = self.given.close_pool
        return not is_pool(self.pool) if closes is None else closes

    @property
    def prepared(self) -> Prepared:
        """Whether statements are prepared."""
        caches = self.options.get("statement_cache_size") != 0
        return self.given.prepared_statements if caches else False

    @property
    def close_timeout(self) -> float:
        """Seconds for closing."""
        return cast("float", self.given.close_timeout)

    @property
    def place(self) -> str:
        """Host and database for messages."""
        return self.given.place

    @property
    def options(self) -> Mapping[str, Any]:
        """The asyncpg options."""
        return self.given.connect_options

    @property
    def keeps_codecs(self) -> bool:
        """Whether connections have asyncpg's own codecs, which no hook of the user can change."""
        return self.pool is None and not {"connect", "init", "setup"} & set(self.options)

    @property
    def statement_cache(self) -> StatementCache:
        """The limits of prepared statements of a connection. A given pool's options are unknown."""
        longest = self.options.get("max_cacheable_statement_size", LONGEST)
        size = self.options.get("statement_cache_size", STATEMENTS)
        return StatementCache(size=size or STATEMENTS, longest=longest or math.inf)

    @property
    def loans(self) -> int:
        """Number of loans of a connection before it returns to the pool.

        In a pool of the application it is one loan: other users of the pool must not wait for an
        idle connection, and `setup` or `reset` must run for each loan.
        """
        if self.pool is not None or {"setup", "reset"} & set(self.options):
            return 0
        return int(min(LOANS, self.options.get("max_queries", LOANS)))

    @property
    def idle_seconds(self) -> float:
        """Minimum idle time, in seconds, before a connection returns to the pool."""
        lifetime = self.options.get("max_inactive_connection_lifetime")
        return float(min(IDLE_SECONDS, lifetime or IDLE_SECONDS))

    def pool_options(self) -> dict[str, Any]:
        """Return the arguments of `asyncpg.create_pool`. Raises `ConfigError`."""
        return {"min_size": 0, "max_size": self.size, **arguments_of(self.given)}

    def __repr__(self) -> str:
        return f"Access({self.place})"


def access_of(dsn: object, *, lends: bool = True) -> PostgresAccess:
    """Return the access of an argument that is a DSN or an access. Raises `ConfigError`.

    Without `lends`, an access with a pool is refused.
    """
    found = dsn if isinstance(dsn, PostgresAccess) else PostgresAccess(cast("str", dsn))
    if found.dsn is None and not lends:
        rule = "has only a pool; give the DSN, since this needs a connection of its own"
        raise bad("dsn", "PostgresAccess", rule)
    return found


def is_pool(pool: object) -> bool:
    """Return whether this is an asyncpg pool; does not load asyncpg."""
    asyncpg = sys.modules.get("asyncpg")
    return asyncpg is not None and isinstance(pool, asyncpg.Pool)


def _check_pool(access: PostgresAccess) -> None:
    if not (callable(access.pool) or is_pool(access.pool)):
        rule = "must be an asyncpg pool, or a function (async or not) that makes one"
        raise bad("pool", type(access.pool).__name__, rule)
    for name in ("dsn", "password", "connect_options", "statement_timeout"):
        if getattr(access, name):
            raise bad(
                name, "...", "must not be given beside pool=, whose function decides how to connect"
            )


def _check_close(pool: object, close_pool: object) -> None:
    if close_pool is None:
        return
    checks.flag("close_pool", close_pool)
    if pool is None:
        raise bad("close_pool", close_pool, "needs pool=; a pool of the library's own is closed")


def _check_size(pool: Any, size: int | None) -> int:
    most = pool.get_max_size() if is_pool(pool) else None
    if size is None:
        return POOL_SIZE if most is None else min(POOL_SIZE, most)
    checks.count("pool_size", size)
    if most is not None and size > most:
        raise bad("pool_size", size, f"the pool has {most} connections at most")
    return size


def _answer_timeout(given: float | timedelta, lease: float | timedelta | None) -> float:
    seconds = cast("float", given)
    if lease is None:
        return seconds
    # its own check warns of milliseconds
    return min(seconds, checks.seconds("lease", lease, usual=checks.ANY_LENGTH) / 2)


def _check_prepared(prepared: object, options: Mapping[str, Any]) -> None:
    if not (isinstance(prepared, bool) or prepared == "auto"):
        raise bad("prepared_statements", prepared, 'must be "auto", True or False')
    if prepared is True and options.get("statement_cache_size") == 0:
        rule = "contradicts connect_options={'statement_cache_size': 0}; leave one of them out"
        raise bad("prepared_statements", prepared, rule)


def _check_options(options: Mapping[str, Any]) -> Options:
    if not isinstance(cast("object", options), Mapping):
        raise bad(
            "connect_options", type(options).__name__, "must be a mapping of asyncpg's options"
        )
    for name, instead in (("dsn", "dsn"), ("max_size", "pool_size"), ("loop", None)):
        if name in options:
            raise bad(
                "connect_options",
                name,
                f"is given by {instead}=" if instead else "is the loop that opens the sink",
            )
    return Options(options)
