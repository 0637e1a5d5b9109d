"""Connection options for PostgreSQL, checked before opening, and shown without secrets."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from ..._core import checks
from ..._core.checks import bad
from ..._core.extras import need
from ..._core.options import Options
from .answers import ANSWER_TIMEOUT
from .dsn import check_dsn, place_of

if TYPE_CHECKING:
    from datetime import timedelta

    from asyncpg import Pool

PoolFactory = Callable[[], object]
"""Creates an asyncpg pool, plain or async; called at each opening."""
Prepared = Literal["auto"] | bool
POOL_SIZE = 10
STATEMENTS, LONGEST = 100, 15 * 1024
"""Defaults of asyncpg."""
LOANS = 100
IDLE_SECONDS = 1.0


def need_asyncpg() -> None:
    """Raise `MissingExtra` unless asyncpg is installed, without loading it."""
    need("asyncpg", "postgres", "a connection to PostgreSQL")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementCache:
    """The maximum number of prepared statements per connection, and of characters in one."""

    size: int
    longest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How connections are created, and their number."""

    dsn: str | None
    pool: Pool[Any] | PoolFactory | None
    closes_pool: bool
    size: int
    options: Options
    statement_timeout: float | None
    answer_timeout: float
    prepared: Prepared

    @classmethod
    def of(
        cls,
        dsn: str | None,
        *,
        pool: Pool[Any] | PoolFactory | None,
        close_pool: bool | None,
        size: int | None,
        options: Mapping[str, Any] | None,
        timeout: float | timedelta | None,
        prepared: Prepared,
        answer_timeout: float | timedelta = ANSWER_TIMEOUT,
        lease: float | timedelta | None = None,
    ) -> Access:
        """Check the arguments. Raises `ConfigError`, which never shows the DSN.

        Half of a `lease` is the most for an answer, so that another connection can extend it.
        """
        if pool is not None:
            _check_pool(pool, dsn, options, timeout)
        if dsn is not None:
            check_dsn(dsn)
        given = _checked(options)
        return cls(
            dsn=dsn,
            pool=pool,
            closes_pool=_closes(pool, close_pool),
            size=_size(pool, size),
            options=given,
            statement_timeout=checks.optional_seconds(
                "statement_timeout", timeout, usual=checks.LONG_TIMEOUT
            ),
            answer_timeout=_answer_timeout(answer_timeout, lease),
            prepared=_prepared(prepared, given),
        )

    @property
    def place(self) -> str:
        """Host and database for messages."""
        return "a pool" if self.pool is not None else place_of(self.dsn, self.options)

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
        """Return the arguments of `asyncpg.create_pool` except the DSN."""
        options: dict[str, Any] = {"min_size": 0, "max_size": self.size, **self.options}
        if callable(options.get("ssl")):
            options["ssl"] = options["ssl"]()
        return options

    def __repr__(self) -> str:
        return f"Access({self.place})"


def is_pool(pool: object) -> bool:
    """Return whether this is an asyncpg pool; does not load asyncpg."""
    asyncpg = sys.modules.get("asyncpg")
    return asyncpg is not None and isinstance(pool, asyncpg.Pool)


def _check_pool(pool: object, dsn: str | None, options: object, timeout: object) -> None:
    if not (callable(pool) or is_pool(pool)):
        rule = "must be an asyncpg pool, or a function (async or not) that makes one"
        raise bad("pool", type(pool).__name__, rule)
    for name, value in (("dsn", dsn), ("connect_options", options), ("statement_timeout", timeout)):
        if value is not None:
            raise bad(
                name, "...", "must not be given beside pool=, whose function decides how to connect"
            )


def _closes(pool: object, close_pool: object) -> bool:
    """Return whether to close the pool with the sink; for a user's pool only on request."""
    if close_pool is None:
        return not is_pool(pool)
    closes = checks.flag("close_pool", close_pool)
    if pool is None:
        raise bad("close_pool", close_pool, "needs pool=; the sink closes a pool of its own")
    return closes


def _size(pool: Any, size: int | None) -> int:
    most = pool.get_max_size() if is_pool(pool) else None
    if size is None:
        return POOL_SIZE if most is None else min(POOL_SIZE, most)
    checks.count("pool_size", size)
    if most is not None and size > most:
        raise bad("pool_size", size, f"the pool has {most} connections at most")
    return size


def _answer_timeout(given: float | timedelta, lease: float | timedelta | None) -> float:
    seconds = checks.seconds("answer_timeout", given, usual=checks.LONG_TIMEOUT)
    if lease is None:
        return seconds
    # its own check warns of milliseconds
    return min(seconds, checks.seconds("lease", lease, usual=checks.ANY_LENGTH) / 2)


def _prepared(prepared: object, options: Mapping[str, Any]) -> Prepared:
    if not (isinstance(prepared, bool) or prepared == "auto"):
        raise bad("prepared_statements", prepared, 'must be "auto", True or False')
    if options.get("statement_cache_size") != 0:
        return cast("Prepared", prepared)
    if prepared is True:
        rule = "contradicts connect_options={'statement_cache_size': 0}; leave one of them out"
        raise bad("prepared_statements", prepared, rule)
    return False


def _checked(options: Mapping[str, Any] | None) -> Options:
    if options is not None and not isinstance(cast("object", options), Mapping):
        raise bad(
            "connect_options", type(options).__name__, "must be a mapping of asyncpg's options"
        )
    for name, instead in (("dsn", "dsn"), ("max_size", "pool_size"), ("loop", None)):
        if name in (options or {}):
            raise bad(
                "connect_options",
                name,
                f"is given by {instead}=" if instead else "is the loop that opens the sink",
            )
    return Options(options or {})
