"""The INSERT and the settings of a sink, as the URL of its requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast
from urllib.parse import quote, urlencode

from .._core.checks import bad
from ..http.config import split_url

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

TOKEN_SETTING = "insert_deduplication_token"  # noqa: S105  # not a secret
VIEWS_SETTING = "deduplicate_blocks_in_dependent_materialized_views"
"""Lets views recognize rows that are sent again. Servers before 24.7 would compare the rows that a
view makes, and drop those of another INSERT if they are equal. Many later ones refuse it together
with `async_insert`.
"""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BLOCK_ROWS = "100000000"
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


def checked_settings(settings: object) -> dict[str, str]:
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
