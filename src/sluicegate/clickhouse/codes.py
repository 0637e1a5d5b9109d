"""ClickHouse's error codes by their meaning for a write, with their documented names.

1. A *row* is at fault: the INSERT was refused as a whole, and is sent again in parts.
2. A *refusal* lasts until an operator repairs its cause.
3. An interrupted INSERT (a time limit, a cancelled query, a Keeper session lost during the commit)
   may have been stored: its outcome is unknown.
4. A code that is not listed means that a row is at fault if the status is 400, and is transient
   otherwise.
"""

from __future__ import annotations

from .._core.errors import ErrorClass

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
