"""Spools: their numbers and files, and their items in pages.

A spool is read as by `sluicegate spool`: the owner of an open one answers, even if it is this
process. It blocks, so a thread does it. Parked items can only be moved while no process has the
spool open, so a command does that.
"""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from .._core.clock import LOOP_CLOCK
from .._core.errors import ConfigError
from .._core.logs import for_log
from .._core.text import text_of
from ..cli.console import UseError
from ..cli.spool.view import viewed
from ..letters.text import without_secrets
from .door import Refused
from .site import Page, Section, needed, number_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from starlette.responses import Response

    from .door import Form

    T = TypeVar("T")

PER_PAGE = 50


def _numbers(path: Path) -> dict[str, Any]:
    with viewed(path) as view:
        found = view.numbers()
    oldest = found["oldest_at"]
    found["age"] = max(0.0, LOOP_CLOCK.wall_time() - oldest / 1000) if found["items"] else None
    found["processes"] = {role: owner for role, owner in found["owner"].items() if owner}
    return found


def _items(path: Path, first: int, *, parked: bool, show: str) -> list[dict[str, Any]]:
    """Return the items of a page, and the first one of the next."""
    with viewed(path) as view:
        found = [*islice(view.items(parked=parked, first=first, show=show), PER_PAGE + 1)]
    for item in found:
        for name in {"at", "parked_at"} & {*item}:
            item[name] = datetime.fromtimestamp(item[name] / 1000, UTC)
    return found


async def _in_thread(function: Callable[..., T], *args: Any, **options: Any) -> T:
    """Call a function that blocks. Raises `Refused` with the text of its errors."""
    try:
        return await asyncio.to_thread(function, *args, **options)
    except sqlite3.DatabaseError as error:
        text = f"{for_log(error)}; `sluicegate spool check` names the damaged files."
        raise Refused(409, "Damaged", text) from error
    except (UseError, ConfigError, OSError) as error:
        raise Refused(409, "Not possible", without_secrets(text_of(error))) from error


def _find(page: Page, form: Form) -> tuple[str, Path]:
    name = needed(form, "spool")
    if name not in page.console.spools:
        raise Refused(404, "No such spool", f"The console has no spool {name!r}.")
    return name, page.console.spools[name]


# -- pages -----------------------------------------------------------------------------------------


async def _spools(page: Page) -> Response:
    rows: list[tuple[str, dict[str, Any] | None, str]] = []
    for name, path in page.console.spools.items():
        try:
            rows.append((name, await _in_thread(_numbers, path), ""))
        except Refused as error:  # the others are shown nevertheless
            rows.append((name, None, error.text))
    return page.show("spools.html", title="Spools", live=True, rows=rows)


async def _spool(page: Page) -> Response:
    name, path = _find(page, page.request.query_params)
    return page.show(
        "spool.html",
        title=f"Spool {name}",
        live=True,
        name=name,
        found=await _in_thread(_numbers, path),
    )


async def _items_page(page: Page) -> Response:
    name, path = _find(page, page.request.query_params)
    is_parked = page.get("parked") is not None
    first = number_of(page.request.query_params, "first") if page.get("first") else 0
    show = "start" if page.has_payload else "none"
    found = await _in_thread(_items, path, first, parked=is_parked, show=show)
    return page.show(
        "spool_items.html",
        title=f"{'Parked items' if is_parked else 'Items'} of {name}",
        name=name,
        is_parked=is_parked,
        items=found[:PER_PAGE],
        next=found[PER_PAGE]["offset"] if len(found) > PER_PAGE else None,
    )


async def _item(page: Page) -> Response:
    name, path = _find(page, page.request.query_params)
    offset, is_parked = (
        number_of(page.request.query_params, "offset"),
        page.get("parked") is not None,
    )
    found = await _in_thread(_items, path, offset, parked=is_parked, show="all")
    if not found or found[0]["offset"] != offset:
        raise Refused(404, "No such item", f"The spool {name} has no such item any more.")
    facts = found[0]
    value = facts.pop("base64") if "base64" in facts else facts.pop("value", None)
    return page.show(
        "spool_item.html",
        title=f"Item {offset} of {name}",
        name=name,
        is_parked=is_parked,
        facts=facts,
        value=value,
    )


SPOOLS = Section(
    title="Spools",
    pages={"spools": _spools, "spool": _spool, "spool-items": _items_page, "spool-item": _item},
    is_shown=lambda console: bool(console.spools),
)
