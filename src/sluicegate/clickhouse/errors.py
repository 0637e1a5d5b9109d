"""Errors of ClickHouse's HTTP interface, by the code of the exception.

1. The code is in a header or at the start of the text. It takes precedence over the status: an
   INSERT that failed with status 200 has failed.
2. An INSERT that failed in a materialized view may have been stored in the table itself: its
   outcome is unknown, whatever the code.
3. The server's text may quote a row, so it is in the message and not in `summary`, the text for
   logs.
4. If a *row* is at fault (`ROWS`), the INSERT was refused as a whole, and is sent again in parts.
5. A *refusal* (`REFUSALS`) lasts until an operator repairs its cause.
6. An interrupted INSERT (a time limit, a cancelled query, a Keeper session lost during the commit)
   may have been stored: its outcome is unknown.
7. A code that is not listed means that a row is at fault if the status is 400, and is transient
   otherwise.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING

from .._core.classify import caused
from .._core.errors import (
    ErrorClass,
    RefusedError,
    SinkError,
    ThrottledError,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
)
from ..http.errors import HttpStatusError, RecordRefused, shorten

if TYPE_CHECKING:
    from collections.abc import Mapping


CODE_HEADER = "x-clickhouse-exception-code"
_CODE = re.compile(r"(?:__exception__\s+)?Code: ([0-9]{1,5})[.,]")
_ROW = re.compile(r"\bat row ([0-9]{1,9})\b")
_NAME = re.compile(r"\(([A-Z][A-Z0-9_]{2,80})\)")
_PARTITIONS = "max_partitions_per_insert_block"
_OLD_ENUM = "Unknown element '"
"""Servers before 20.8 have no code of its own for it."""
_IN_VIEW = "while pushing to view"
_FULL_DISK = re.compile(r"errno: 28\b|No space left on device")
_MADE: dict[ErrorClass, type[SinkError]] = {
    ErrorClass.TRANSIENT: TransientError,
    ErrorClass.UNAVAILABLE: UnavailableError,
    ErrorClass.UNKNOWN: UnknownOutcomeError,
}
ROWS = {
    6: "CANNOT_PARSE_TEXT",
    20: "NUMBER_OF_COLUMNS_DOESNT_MATCH",
    25: "CANNOT_PARSE_ESCAPE_SEQUENCE",
    26: "CANNOT_PARSE_QUOTED_STRING",
    27: "CANNOT_PARSE_INPUT_ASSERTION_FAILED",
    36: "BAD_ARGUMENTS",
    38: "CANNOT_PARSE_DATE",
    41: "CANNOT_PARSE_DATETIME",
    53: "TYPE_MISMATCH",
    69: "ARGUMENT_OUT_OF_BOUND",
    70: "CANNOT_CONVERT_TYPE",
    72: "CANNOT_PARSE_NUMBER",
    117: "INCORRECT_DATA",
    128: "TOO_LARGE_ARRAY_SIZE",
    130: "CANNOT_READ_ARRAY_FROM_TEXT",
    131: "TOO_LARGE_STRING_SIZE",
    153: "ILLEGAL_DIVISION",
    190: "SIZES_OF_ARRAYS_DONT_MATCH",
    321: "VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE",
    349: "CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN",
    376: "CANNOT_PARSE_UUID",
    395: "FUNCTION_THROW_IF_VALUE_IS_NON_ZERO",
    407: "DECIMAL_OVERFLOW",
    441: "CANNOT_PARSE_DOMAIN_VALUE_FROM_STRING",
    467: "CANNOT_PARSE_BOOL",
    469: "VIOLATED_CONSTRAINT",
    675: "CANNOT_PARSE_IPV4",
    676: "CANNOT_PARSE_IPV6",
    691: "UNKNOWN_ELEMENT_OF_ENUM",
}
"""Codes of a row at fault, with their documented names."""
LOGICAL_ERROR = 49
TOO_MANY_PARTS = 252
"""Too many parts in the table, which is a throttle, or in the INSERT, which is then sent again in
parts.
"""
OTHERS: dict[int, tuple[str, ErrorClass]] = {
    TOO_MANY_PARTS: ("TOO_MANY_PARTS", ErrorClass.THROTTLE),
    201: ("QUOTA_EXCEEDED", ErrorClass.THROTTLE),
    202: ("TOO_MANY_SIMULTANEOUS_QUERIES", ErrorClass.THROTTLE),
    745: ("SERVER_OVERLOADED", ErrorClass.THROTTLE),
    3: ("UNEXPECTED_END_OF_FILE", ErrorClass.TRANSIENT),
    32: ("ATTEMPT_TO_READ_AFTER_EOF", ErrorClass.TRANSIENT),
    33: ("CANNOT_READ_ALL_DATA", ErrorClass.TRANSIENT),
    173: ("CANNOT_ALLOCATE_MEMORY", ErrorClass.TRANSIENT),
    241: ("MEMORY_LIMIT_EXCEEDED", ErrorClass.TRANSIENT),
    439: ("CANNOT_SCHEDULE_TASK", ErrorClass.TRANSIENT),
    225: ("NO_ZOOKEEPER", ErrorClass.UNAVAILABLE),
    242: ("TABLE_IS_READ_ONLY", ErrorClass.UNAVAILABLE),
    279: ("ALL_CONNECTION_TRIES_FAILED", ErrorClass.UNAVAILABLE),
    999: ("KEEPER_EXCEPTION", ErrorClass.UNAVAILABLE),
    159: ("TIMEOUT_EXCEEDED", ErrorClass.UNKNOWN),
    209: ("SOCKET_TIMEOUT", ErrorClass.UNKNOWN),
    210: ("NETWORK_ERROR", ErrorClass.UNKNOWN),
    236: ("ABORTED", ErrorClass.UNKNOWN),
    285: ("TOO_FEW_LIVE_REPLICAS", ErrorClass.UNKNOWN),
    286: ("UNSATISFIED_QUORUM_FOR_PREVIOUS_WRITE", ErrorClass.UNKNOWN),
    319: ("UNKNOWN_STATUS_OF_INSERT", ErrorClass.UNKNOWN),
    394: ("QUERY_WAS_CANCELLED", ErrorClass.UNKNOWN),
}
"""Codes with another class of their own."""
REFUSALS = {
    8: ("THERE_IS_NO_COLUMN", "give {table} the columns that are written, or change columns="),
    10: (
        "NOT_FOUND_COLUMN_IN_BLOCK",
        "give {table} the columns that are written, or change columns=",
    ),
    16: (
        "NO_SUCH_COLUMN_IN_TABLE",
        "give {table} the columns that are written, or change columns=",
    ),
    44: ("ILLEGAL_COLUMN", "write to columns of {table} that accept values"),
    47: ("UNKNOWN_IDENTIFIER", "correct {table}, its constraints or its materialized views"),
    48: ("NOT_IMPLEMENTED", "name a table that takes INSERTs instead of {table}"),
    60: ("UNKNOWN_TABLE", "create {table}, or correct table= or database="),
    62: ("SYNTAX_ERROR", "correct the names given as table=, database= and columns="),
    73: ("UNKNOWN_FORMAT", 'give format="json"; the server does not know ArrowStream'),
    81: ("UNKNOWN_DATABASE", "create the database of {table}, or correct database="),
    115: ("UNKNOWN_SETTING", "correct settings=: the server does not know one of them"),
    164: ("READONLY", "give the user a profile without readonly, so that it may write to {table}"),
    192: ("UNKNOWN_USER", "give credentials that the server knows, as auth="),
    193: ("WRONG_PASSWORD", "give credentials that the server accepts, as auth="),
    194: ("REQUIRED_PASSWORD", "give credentials, as auth=; none were sent"),
    195: ("IP_ADDRESS_NOT_ALLOWED", "allow the user to log in from this address"),
    218: ("TABLE_IS_DROPPED", "create {table}, or correct table= or database="),
    243: ("NOT_ENOUGH_SPACE", "free disk space on the server, or add some"),
    291: ("DATABASE_ACCESS_DENIED", "grant the user access to the database of {table}"),
    344: (
        "SUPPORT_IS_DISABLED",
        "correct format= or settings=: the server does not support one of them",
    ),
    452: (
        "SETTING_CONSTRAINT_VIOLATION",
        "allow the user to change the settings that the error names",
    ),
    497: ("ACCESS_DENIED", "grant the user INSERT and SHOW COLUMNS on {table}"),
    516: ("AUTHENTICATION_FAILED", "give credentials that the server accepts, as auth="),
}
"""The error's name and the repair, a format string with `{table}`."""
ALTERED = frozenset({8, 10, 16, 44, 47, 53, 60, 81, 218})
"""Codes after which the table is read again."""


class ClickHouseError(HttpStatusError):
    """An exception of the server; the `__cause__` of the error that the sink raises.

    `code` is the exception's number, and `name` its name in ClickHouse's documentation.
    """

    def __init__(self, code: int, name: str, status: int, place: str, body: str) -> None:
        super().__init__(status, place, body)
        self.code = code
        self.name = name


def code_of(headers: Mapping[str, str], text: str) -> int | None:
    """The code of the exception in a response; `None` if there is none."""
    told = headers.get(CODE_HEADER, "")
    if told.isdecimal():
        return int(told)
    found = _CODE.match(text)
    return None if found is None else int(found[1])


def for_code(
    code: int, text: str, *, status: int, place: str, table: str, retry_after: float | None
) -> SinkError:
    """The error that the sink raises for an exception of the server."""
    name, kind, repair = _meaning(code, status, text)
    cause = ClickHouseError(code, name, status, place, shorten(text))
    message = f"ClickHouse at {place}: {shorten(text) or f'error {code}'}"
    summary = f"ClickHouse at {place}: error {code}" + (f" {name}" if name else "")
    if kind is ErrorClass.REFUSED:
        repair = repair.format(table=table)
        summary = f"{summary}; to repair: {repair}"
        return caused(RefusedError(message, repair=repair), cause, summary=summary)
    if kind is ErrorClass.THROTTLE:
        return caused(ThrottledError(message, retry_after=retry_after), cause, summary=summary)
    if kind is ErrorClass.PERMANENT:
        found = _ROW.search(text)
        at = None if found is None else int(found[1]) - 1
        return caused(RecordRefused(message, at=at), cause, summary=summary)
    return caused(_MADE[kind](message), cause, summary=summary, retry_after=retry_after)


def _meaning(code: int, status: int, text: str) -> tuple[str, ErrorClass, str]:
    """The name of an exception, its class, and the repair of a refusal."""
    name, kind, repair = _by_code(code, status, text)
    return (name, ErrorClass.UNKNOWN, "") if _IN_VIEW in text else (name, kind, repair)


def _by_code(code: int, status: int, text: str) -> tuple[str, ErrorClass, str]:
    if code == TOO_MANY_PARTS and _PARTITIONS in text:
        return "TOO_MANY_PARTS", ErrorClass.PERMANENT, ""
    if code == LOGICAL_ERROR and _OLD_ENUM in text:
        return "LOGICAL_ERROR", ErrorClass.PERMANENT, ""
    if code in ROWS:
        return ROWS[code], ErrorClass.PERMANENT, ""
    if code in REFUSALS:
        name, repair = REFUSALS[code]
        return name, ErrorClass.REFUSED, repair
    found = _NAME.findall(text)
    name = found[-1] if found else ""
    if code in OTHERS:
        return *OTHERS[code], ""
    if _FULL_DISK.search(text):
        return name, ErrorClass.REFUSED, REFUSALS[243][1]
    is_bad = status == HTTPStatus.BAD_REQUEST
    return name, ErrorClass.PERMANENT if is_bad else ErrorClass.TRANSIENT, ""
