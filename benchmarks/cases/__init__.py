"""The cases, in the order in which they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import accept, http, postgres, shutdown

if TYPE_CHECKING:
    from ..harness import Case

CASES: tuple[Case, ...] = (accept.CASE, shutdown.CASE, postgres.CASE, *http.CASES)
