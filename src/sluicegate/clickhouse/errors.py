"""Errors of ClickHouse's HTTP interface, by the code of the exception.

1. The code is in a header or at the start of the text. It takes precedence over the status: an
   INSERT that failed with status 200 has failed.
2. An INSERT that failed in a materialized view may have been stored in the table itself: its
   outcome is unknown, whatever the code.
3. The server's text may quote a row, so it is in the message and not in `summary`, the text for
   logs.
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
from ..http.errors import HttpStatusError, RecordRefused, cut
from .codes import LOGICAL_ERROR, OTHERS, REFUSALS, ROWS, TOO_MANY_PARTS

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
    cause = ClickHouseError(code, name, status, place, cut(text))
    message = f"ClickHouse at {place}: {cut(text) or f'error {code}'}"
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
