"""Parked keys of consumers that have a park store in PostgreSQL: a list, and one key in full.

A request to unpark a key is for the consumer that owns it, in whichever process that runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from ..letters.items import stored
from ..postgres.subscriptions.park_admin import COUNT_TO, ParkAdmin
from .door import Refused
from .site import Done, Page, Plan, Section, action, needed

if TYPE_CHECKING:
    from starlette.responses import Response

    from ..postgres.subscriptions.park_admin import ParkedDetail
    from .door import Form

SIZE = 50
"""Keys, or records of a key, in a page."""
LONGEST = 16_000
"""Maximum length of a key in an address. Servers refuse addresses of 64 kB."""


async def _keys(page: Page) -> Response:
    group = page.get("group")
    admin = await page.admin(ParkAdmin)
    found = await admin.list(group, after=page.get("after"), limit=SIZE)
    return page.show(
        "parked_keys.html",
        title=f"Parked keys of {group}" if group else "Parked keys",
        group=group,
        rows=[(each, len(quote(each.key, errors="replace")) < LONGEST) for each in found.items],
        next=found.next,
        most=COUNT_TO,
    )


async def _key(page: Page) -> Response:
    form = page.request.query_params
    found = await _find(page, form, after=page.get("after"), payload=page.has_payload)
    payloads = [stored({"value": each.value, "headers": each.headers}) for each in found.records]
    return page.show(
        "parked_key.html",
        title=f"Parked key {found.key.key[:200]}",
        key=found.key,
        records=[*zip(found.records, payloads, strict=True)],
        next=found.next,
        most=COUNT_TO,
    )


async def _find(
    page: Page, form: Form, *, after: str | None = None, payload: bool = False
) -> ParkedDetail:
    group, key = needed(form, "group"), needed(form, "key")
    admin = await page.admin(ParkAdmin)
    found = await admin.show(group, key, after=after, limit=SIZE, payload=payload)
    if found is None:
        raise Refused(404, "Not parked", f"{group} has no parked key {key!r}; it may be unparked.")
    return found


async def _plan_unpark(page: Page, form: Form) -> Plan:
    key = (await _find(page, form)).key
    count = f"{key.records:,}{' or more' if key.records >= COUNT_TO else ''}"
    return Plan(
        question=f"Unpark the key {key.key} of {key.group}, with {count} parked records?",
        count=key.records,
        fields={"group": key.group, "key": key.key},
        back=page.url("parked-key", group=key.group, key=key.key),
        notes=[
            "The consumer that owns the key is asked to handle its records: within a few seconds.",
            "If none runs, they are handled when one does.",
            "If a record fails for good, it stays parked with those behind it.",
        ],
    )


async def _unpark(page: Page, form: Form) -> Done:
    group, key = needed(form, "group"), needed(form, "key")
    count = (await _find(page, form)).key.records
    if not await (await page.admin(ParkAdmin, changes=True)).unpark(group, key):
        count = 0
    text = f"{group} is asked to handle {count:,} parked records of the key {key}."
    lines = ["The key is in the list of parked keys as long as a record is left."]
    return Done(text=text, count=count, back=page.url("parked-keys"), lines=lines)


PARKED = Section(
    title="Parked keys",
    pages={"parked-keys": _keys, "parked-key": _key},
    is_shown=lambda console: console.database is not None,
    actions={"unpark-records": action("Unpark", _plan_unpark, _unpark)},
)
