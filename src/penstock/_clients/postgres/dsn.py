"""PostgreSQL URLs in the form of libpq and of JDBC. Errors show parameter names, not values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from ..._core.checks import bad

if TYPE_CHECKING:
    from collections.abc import Mapping

_JDBC = "jdbc:"
SCHEMES = ("postgresql://", "postgres://")
_RENAMED = {
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


def dsn_of(name: str, url: str) -> str:
    """Return the URL given for the option `name`, in libpq's form. Raises `ConfigError`."""
    plain = url.removeprefix(_JDBC)
    if not plain.startswith(SCHEMES):
        raise bad(name, "...", "must begin with postgresql://, postgres:// or jdbc:postgresql://")
    parts = urlsplit(plain)
    try:
        query = (
            dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True))
            if parts.query
            else {}
        )
    except ValueError:
        raise bad(
            name, "...", "the part after ? must be parameters, such as name=value&name=value"
        ) from None
    if not url.startswith(_JDBC):
        return plain
    strange = [parameter for parameter in query if parameter not in _RENAMED]
    if strange:
        rule = (
            f"has parameters that only the JDBC driver knows ({', '.join(strange)}); leave "
            f"them out. Known here: {', '.join(_RENAMED)}"
        )
        raise bad(name, "...", rule)
    renamed = urlencode({_RENAMED[parameter]: value for parameter, value in query.items()})
    return urlunsplit((*parts[:3], renamed, parts.fragment))


def check_dsn(dsn: object) -> None:
    """Raise `ConfigError` unless `dsn` can be a DSN of libpq's form; the error does not show it."""
    rule = "must begin with postgresql:// or postgres://"
    if not isinstance(dsn, str):
        raise bad("dsn", type(dsn).__name__, rule)
    if not dsn.startswith(SCHEMES):
        scheme, is_url, _ = dsn.partition("://")
        if is_url and scheme.partition("+")[0] in {"postgresql", "postgres"}:
            rule = f"{scheme}:// is SQLAlchemy's form; write postgresql://"
        raise bad("dsn", "...", rule)
    try:
        urlsplit(dsn).port  # noqa: B018  # accessed only for its check
    except ValueError:
        if "," not in dsn:  # asyncpg parses lists of hosts
            raise bad("dsn", "...", "its port must be a number") from None


def place_of(dsn: str | None, options: Mapping[str, Any]) -> str:
    """Return host and database for messages, and no other part of the DSN or the options."""
    parts = urlsplit(dsn or "")
    query = parse_qs(parts.query)
    host = (
        options.get("host")
        or parts.netloc.rpartition("@")[2]
        or (query.get("host") or ["default host"])[0]
    )
    database = (
        options.get("database")
        or unquote(parts.path.lstrip("/"))
        or (query.get("dbname") or ["default database"])[0]
    )
    return f"{host}/{database}"
