"""How a URL says where PostgreSQL is, in the form of libpq and in that of JDBC. No error shows more
of it than names of parameters.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit

from ..._core.checks import bad

_JDBC = "jdbc:"
_SCHEMES = ("postgresql://", "postgres://")
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
"""Parameters of the JDBC driver that the other form has too, and their names there."""


def dsn_of(name: str, url: str) -> str:
    """The URL that the option `name` gives, in the form of libpq. Raises `ConfigError`."""
    plain = url.removeprefix(_JDBC)
    if not plain.startswith(_SCHEMES):
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
            name, "...", "what follows ? must be parameters, as in name=value&name=value"
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
    return parts._replace(
        query=urlencode({_RENAMED[parameter]: value for parameter, value in query.items()})
    ).geturl()


def table_name(name: str, value: str) -> tuple[str | None, str]:
    """`schema.table` or `table` as (schema, table); a part in double quotes is taken literally.
    Raises `ConfigError`.
    """
    parts: list[str] = []
    rest = value.strip()
    while rest:
        if rest.startswith('"'):
            part, closed, rest = _quoted(rest)
        else:
            part, dot, behind = rest.partition(".")
            closed, rest = '"' not in part, dot + behind
        parts.append(part)
        if not (closed and part) or (rest and not rest.startswith(".")) or rest == ".":
            parts.clear()
            break
        rest = rest[1:]
    if len(parts) not in {1, 2}:
        raise bad(
            name,
            value,
            'must be table or schema.table, where a part with a dot or a quote stands in "..."',
        )
    return (None, parts[0]) if len(parts) == 1 else (parts[0], parts[1])


def _quoted(text: str) -> tuple[str, bool, str]:
    """What is between the quotes, whether they are closed, and what comes behind."""
    taken: list[str] = []
    place = 1
    while (end := text.find('"', place)) != -1:
        taken.append(text[place:end])
        if text[end + 1 : end + 2] != '"':
            return '"'.join(taken), True, text[end + 1 :]
        place = end + 2
    return "", False, ""
