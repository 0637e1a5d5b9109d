"""The class of the appenders' advisory locks, one for each log of a database.

The text of `next_position` names it, which every role can read, and which a restored dump brings
along. Two logs of one class would take each other's marks for their own.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .opened import AnyConnection

CLASSES = range(1024, 32768)
"""Applications lock small numbers, whose class is 0, and negative ones, whose class is 65535."""
_TAKEN = r"""
SELECT n.nspname::text AS schema, substring(p.prosrc FROM 'penstock\.mark_(\d+)')::int AS mark_class
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE p.proname = 'next_position' AND p.prosrc LIKE '%penstock.mark\_%'
"""


async def taken_classes(con: AnyConnection) -> dict[str, int]:
    """The class of each log in the database, by its schema."""
    return {row["schema"]: row["mark_class"] for row in await con.fetch(_TAKEN)}


async def free_class(con: AnyConnection, schema: str) -> int:
    """A class that no other log has: by the schema's name, so that it is the same everywhere."""
    taken = {found for name, found in (await taken_classes(con)).items() if name != schema}
    first = int.from_bytes(hashlib.sha256(schema.encode()).digest()[:8], "big") % len(CLASSES)
    order = (CLASSES[(first + step) % len(CLASSES)] for step in range(len(CLASSES)))
    return next(each for each in order if each not in taken)
