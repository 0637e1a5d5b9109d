"""The class of the appenders' advisory locks, one for each log of a database.

It is part of the text of `next_position`, which every role can read and which a dump contains. Two
logs of one class would mistake each other's marks for their own.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .opened import AnyConnection

CLASSES = range(1024, 32768)
"""Applications often lock small numbers (class 0) and negative ones (class 65535)."""
_TAKEN = r"""
SELECT n.nspname::text AS schema, substring(p.prosrc FROM 'sluicegate\.mark_(\d+)')::int AS mark_class
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE p.proname = 'next_position' AND p.prosrc LIKE '%sluicegate.mark\_%'
"""


async def taken_classes(con: AnyConnection) -> dict[str, int]:
    """Return the class of each log in the database, by schema."""
    return {row["schema"]: row["mark_class"] for row in await con.fetch(_TAKEN)}


async def free_class(con: AnyConnection, schema: str) -> int:
    """Return a class that no other log has; the schema's name determines it, where possible."""
    taken = {found for name, found in (await taken_classes(con)).items() if name != schema}
    first = int.from_bytes(hashlib.sha256(schema.encode()).digest()[:8], "big") % len(CLASSES)
    order = (CLASSES[(first + step) % len(CLASSES)] for step in range(len(CLASSES)))
    return next(each for each in order if each not in taken)
