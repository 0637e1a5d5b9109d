"""The list of the objects of one write, stored after them. A reader that reads only objects listed
in a manifest sees each write completely or not at all.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def manifest(objects: Iterable[tuple[str, str | None, int, int]]) -> bytes:
    """The manifest of objects, with the path, entity tag, number of items and size in bytes of
    each.
    """
    listed = [
        {"path": path, "e_tag": tag, "items": items, "bytes": size}
        for path, tag, items, size in sorted(objects)
    ]
    return json.dumps({"objects": listed}, indent=1).encode()
