"""The list of objects of one write, stored after them: who reads only what a manifest lists sees
each write whole.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def manifest(objects: Iterable[tuple[str, str | None, int, int]]) -> bytes:
    """The manifest of objects by path, entity tag, number of items and size in bytes."""
    listed = [
        {"path": path, "e_tag": tag, "items": items, "bytes": size}
        for path, tag, items, size in sorted(objects)
    ]
    return json.dumps({"objects": listed}, indent=1).encode()
