"""The binary format of `COPY`: the parts around the fields, and the epochs of dates and times.

The format: https://www.postgresql.org/docs/current/sql-copy.html#id-1.9.3.55.9.4, and the `*_recv`
functions of each type.
"""

from __future__ import annotations

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""The signature, no flags, and no extension."""
TRAILER = b"\xff\xff"
NULL = b"\xff\xff\xff\xff"
"""The length of a field that is NULL."""
EPOCH_DAYS = 10_957
"""Days from 1970-01-01 to 2000-01-01, the epoch of PostgreSQL."""
EPOCH_MICROSECONDS = EPOCH_DAYS * 86_400_000_000
JSONB_VERSION = b"\1"
"""The byte before the text of a jsonb value."""
ELEMENT_OIDS = {
    "smallint": 21,
    "integer": 23,
    "bigint": 20,
    "real": 700,
    "double precision": 701,
    "boolean": 16,
    "date": 1082,
    "numeric": 1700,
    "timestamp without time zone": 1114,
    "timestamp with time zone": 1184,
    "text": 25,
    "character varying": 1043,
    "uuid": 2950,
}
"""The OIDs of types of array elements; the same on every server."""
