"""Log lines that never raise, and exceptions as text for readers and logs.

1. `str()` and `repr()` of a foreign exception may raise, may contain newlines or control
   characters, and may be long. The functions here never raise.
2. Log lines contain no item values. The message of a database error may quote the refused row
   (SQLSTATE classes 21, 22, 23, 44, 54, P0, and any error raised by a trigger): such an error is
   shown by type, SQLSTATE and the names in its fields. For other database errors, only the DETAIL
   quotes it, and is omitted. A client's error about an argument quotes the argument, so only its
   type is shown. The `summary` of our errors replaces their message in logs.
3. Python's `KeyError('...')`, `ValueError` and `AssertionError`, and classes derived from them,
   often quote values: they are shown by type and place.
4. An error in the program's filter or handler is printed: it must not end a batcher.
"""

from __future__ import annotations

import logging
import sys
from itertools import islice
from os.path import basename
from typing import TYPE_CHECKING

from .errors import SinkError, SluicegateError
from .text import repr_of, text_of

if TYPE_CHECKING:
    from collections.abc import Collection
    from logging import Logger


LONGEST = 500
"""Maximum length of a message in a log line, in characters."""

MOST_NAMED = 10
"""Maximum number of partitions or slots named in a log line."""

_QUOTES_ROWS = frozenset({"21", "22", "23", "44", "54", "P0"})
_RAISED = "exec_stmt_raise"
"""The server routine that executes RAISE of a procedure, with any SQLSTATE."""
_QUOTING = (LookupError, ValueError, AssertionError)
_NAMES = ("table_name", "column_name", "constraint_name", "data_type_name")


def named(things: Collection[object]) -> str:
    """Return the names of the first things, and the number of the others."""
    names = ", ".join(map(str, islice(things, MOST_NAMED)))
    more = len(things) - MOST_NAMED
    return f"{names} and {more} more" if more > 0 else names


def storable(text: str) -> str:
    """Escape lone surrogates in `text`, which UTF-8 cannot encode and stores would refuse."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def for_log(error: BaseException) -> str:
    """Format an error's type and message, without values, on one line of limited length."""
    name = type(error).__name__
    try:
        told = error.summary if isinstance(error, SinkError) else None
        if told is None and _quotes_values(error):
            return f"{name}{_place(error)}"
        told = _without_values(error) if told is None else told
        return f"{name}: {_on_one_line(told)}" if told else name
    except Exception as broken:  # for example, raised by a property of a foreign exception
        return f"{name}, which cannot be shown: formatting it raised {type(broken).__name__}"


def _quotes_values(error: BaseException) -> bool:
    own = isinstance(error, SluicegateError) or _is_about_argument(error)
    return isinstance(error, _QUOTING) and not own


def _place(error: BaseException) -> str:
    """Return where the error was raised; empty if it was never raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    code = trace.tb_frame.f_code
    file = basename(code.co_filename)  # noqa: PTH119  # pathlib is slow to import
    return _on_one_line(f" at {file}:{trace.tb_lineno} in {code.co_name}")


def _without_values(error: BaseException) -> str:
    state = getattr(error, "sqlstate", None)
    if not isinstance(state, str):
        return "" if _is_about_argument(error) else text_of(error)
    if state[:2] in _QUOTES_ROWS or getattr(error, "server_source_function", None) == _RAISED:
        given = ((field, getattr(error, field, None)) for field in _NAMES)
        names = [f"{f.removesuffix('_name')} {name}" for f, name in given if isinstance(name, str)]
        return ", ".join([f"SQLSTATE {state}", *names])
    return text_of(error).partition("\nDETAIL:")[0]


def _is_about_argument(error: BaseException) -> bool:
    """Return whether the client refused a value before sending: asyncpg's own `DataError`."""
    kind = type(error)
    return kind.__name__ == "DataError" and kind.__module__.partition(".")[0] == "asyncpg"


def _on_one_line(text: str) -> str:
    shown = "".join(char if char.isprintable() else " " for char in text[: LONGEST + 1])
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 3]}..."


def log_safely(
    logger: Logger, level: int, message: str, *args: object, error: BaseException | None = None
) -> None:
    """Log a line, with the traceback of `error`. An error during logging is printed to stderr."""
    try:
        logger.log(level, message, *args, exc_info=error, stacklevel=3)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as broken:
        if logging.raiseExceptions and sys.stderr is not None:
            line = f"{message} {repr_of(args)}"
            sys.stderr.write(
                f"sluicegate: logging raised {repr_of(broken)}; the line was: {line}\n"
            )
