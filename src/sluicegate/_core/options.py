"""Options that may hold a password."""

from __future__ import annotations

from typing import Any


class Options(dict[str, Any]):
    """A mapping of options whose `repr` shows only their names."""

    def __repr__(self) -> str:
        return f"Options({', '.join(self)})"
