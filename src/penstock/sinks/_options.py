"""Settings that may hold a password."""

from __future__ import annotations

from typing import Any


class Options(dict[str, Any]):
    """Options that may hold a password: only their names are shown."""

    def __repr__(self) -> str:
        return f"Options({', '.join(self)})"
