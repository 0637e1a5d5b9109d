"""The sections of the console, and the first page: the parts of this process, and the queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._core.errors import SluicegateError
from .._core.text import text_of
from .letters import LETTERS
from .live import LIVE, shown_parts
from .parked import PARKED
from .queues import QUEUES, read_queues
from .site import Page, Section
from .spools import SPOOLS
from .streams import STREAMS

if TYPE_CHECKING:
    from starlette.responses import Response


async def _overview(page: Page) -> Response:
    found: dict[str, Any] = {"queues": None, "stats": {}, "most": 0, "failed": None}
    if page.console.database is not None:
        try:
            found |= await read_queues(page)
        except SluicegateError as error:  # the parts are shown all the same
            found["failed"] = text_of(error)
            page.miss_database()
    parts = shown_parts(page.console)
    return page.show("overview.html", title="Overview", live=True, parts=parts, **found)


OVERVIEW = Section(title="Overview", pages={"": _overview}, is_shown=lambda _: True)
SECTIONS = (OVERVIEW, LIVE, QUEUES, STREAMS, PARKED, LETTERS, SPOOLS)
"""In the order of the navigation."""
