"""PostgreSQL URLs in the form of libpq. Errors show parameter names, not values."""

from __future__ import annotations

import os
import re
from configparser import ConfigParser
from configparser import Error as ParserError
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ..._core import addresses
from ..._core.checks import bad
from ..._core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMES = ("postgresql://", "postgres://")
_RULE = (
    'must be "postgresql://user:password@host:port/database", or '
    "PostgresAccess.from_environment() for the variables PGHOST, PGDATABASE and others"
)
_SECRETS = frozenset({"password", "sslpassword"})
_KNOWN = frozenset(
    [
        "user",
        "password",
        "passfile",
        "host",
        "port",
        "dbname",
        "database",
        "service",
        "sslmode",
        "sslcert",
        "sslkey",
        "sslrootcert",
        "sslcrl",
        "sslpassword",
        "sslnegotiation",
        "ssl_min_protocol_version",
        "ssl_max_protocol_version",
        "target_session_attrs",
        "krbsrvname",
        "gsslib",
        "application_name",
        "search_path",
        "options",
        "timezone",
        "statement_timeout",
        "lock_timeout",
        "idle_in_transaction_session_timeout",
        "client_encoding",
    ]
)
"""Options that may follow a password. Another one is rather the rest of a password with `&`."""
_POOL = "give it to the class as pool_size="
_CLIENT = "give it in connect_options= of PostgresAccess, as "
_NOT_READ = "leave it out, since asyncpg does not read it"
_ELSEWHERE = {
    **dict.fromkeys(("pool_size", "max_size", "max_overflow", "connection_limit"), _POOL),
    **dict.fromkeys(("connect_timeout", "timeout", "pool_timeout"), f"{_CLIENT}'timeout'"),
    "min_size": f"{_CLIENT}'min_size'",
    "command_timeout": f"{_CLIENT}'command_timeout'",
    "statement_cache_size": f"{_CLIENT}'statement_cache_size'",
    "prepared_statements": "give it to PostgresAccess as prepared_statements=",
    "schema": "give it to the class as schema=",
    "ssl": "write sslmode=require",
    "pgbouncer": "leave it out, since poolers are recognized",
    "hostaddr": "write the address as the host",
    **dict.fromkeys(("channel_binding", "gssencmode", "require_auth"), _NOT_READ),
}
"""Options of pools, drivers and libpq that neither asyncpg nor a server knows."""


def check_dsn(dsn: object, name: str = "dsn") -> None:
    """Raise `ConfigError` unless `dsn` is a DSN of libpq's form; the error does not show it."""
    if isinstance(dsn, str):
        driver = re.match(r"(?:postgresql|postgres)\+(asyncpg|psycopg2?|pg8000)://", dsn)
        if driver is not None:
            rule = f"{driver[0]} is SQLAlchemy's form; write postgresql://"
            raise bad(name, "...", rule)
    parts = addresses.split(name, dsn, ("postgresql", "postgres"), _RULE, several=True)
    text = str(dsn)
    if not text.startswith(SCHEMES) or parts.fragment or text.endswith("#"):
        raise addresses.unreadable(name, text)
    after_secret = False
    for option, _ in _query_of(name, parts.query):
        if after_secret and option not in _KNOWN:
            raise addresses.unreadable(name, text)
        if option in _ELSEWHERE:
            raise ConfigError(
                f"{name}='{parts.scheme}://...?{option}=...': {option!r} is no option of a "
                f"connection to PostgreSQL; {_ELSEWHERE[option]}"
            )
        after_secret = after_secret or option in _SECRETS


def _query_of(name: str, query: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        rule = "the part after ? must be parameters, such as name=value&name=value"
        raise bad(name, "...", rule) from None


def place_of(dsn: str, options: Mapping[str, Any]) -> str:
    """Return host and database of a checked DSN for messages, and no other part."""
    parts = addresses.split("dsn", dsn, ("postgresql", "postgres"), _RULE, several=True)
    query = dict(parse_qsl(parts.query))
    host = (
        options.get("host")
        or addresses.hosts(parts)
        or query.get("host")
        or (f"service {query['service']}" if "service" in query else os.environ.get("PGHOST"))
        or "default host"
    )
    database = (
        options.get("database")
        or unquote(parts.path.lstrip("/"))
        or query.get("dbname")
        or query.get("database")
        or ("" if "service" in query else os.environ.get("PGDATABASE"))
        or "default database"
    )
    return f"{host}/{database}"


def check_service(dsn: str) -> None:
    """Raise `ConfigError` for a service that is not in libpq's file; asyncpg would ignore it."""
    query = dict(parse_qsl(urlsplit(dsn).query))
    if (name := query.get("service")) is None:
        return
    file = Path(os.environ.get("PGSERVICEFILE") or Path.home() / ".pg_service.conf")
    services = ConfigParser()
    try:
        services.read(file)
    except (OSError, ParserError, UnicodeDecodeError) as error:
        told = f"the file of services, {file}, cannot be read ({type(error).__name__})"
        raise ConfigError(f"dsn with service={name!r}: {told}") from None
    if name not in services:
        rule = f"there is no such service in {file}; PGSERVICEFILE names another file"
        raise ConfigError(f"dsn with service={name!r}: {rule}")
