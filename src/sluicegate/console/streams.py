"""Streams in PostgreSQL: how far the log can be read, subscriptions, their slots, one message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..postgres.streams.admin import SubscriptionAdmin
from .door import Refused
from .format import counted
from .site import Choice, Done, Page, Plan, Section, action, needed, number_of

if TYPE_CHECKING:
    from starlette.responses import Response

    from ..postgres.streams.stats import SlotStats, SubscriptionReport
    from .door import Form

COUNT_TO = 100_000
"""Maximum number of unhandled messages that are counted of a subscription, or of a slot."""


# -- pages -----------------------------------------------------------------------------------------


async def _streams(page: Page) -> Response:
    admin = await page.admin(SubscriptionAdmin)
    return page.show(
        "streams.html",
        title="Streams",
        live=True,
        horizon=await admin.horizon(),
        found=await admin.lag(count_to=COUNT_TO),
        count_to=COUNT_TO,
    )


async def _subscription(page: Page) -> Response:
    report = await _report(page, page.request.query_params)
    rows = [(slot, report.reason(slot)) for slot in report.slots]
    return page.show(
        "subscription.html",
        title=report.name,
        live=True,
        report=report,
        rows=rows if page.get("all") else [each for each in rows if each[1]],
        idle=sum(why is None for _, why in rows),
        count_to=COUNT_TO,
    )


async def _report(page: Page, form: Form, *, changes: bool = False) -> SubscriptionReport:
    admin = await page.admin(SubscriptionAdmin, changes=changes)
    return await admin.explain(needed(form, "name"), count_to=COUNT_TO)


async def _message(page: Page) -> Response:
    position = number_of(page.request.query_params, "position")
    found = await (await page.admin(SubscriptionAdmin)).message(position)
    if found is None:
        raise Refused(404, "No such message", f"The log has no message at {position}.")
    return page.show("message.html", title=f"Message {position:,}", found=found)


# -- actions ---------------------------------------------------------------------------------------


def _back(page: Page, form: Form) -> str:
    return page.url("subscription", name=form.get("name"))


def _slot(report: SubscriptionReport, form: Form) -> list[SlotStats]:
    """Return the slot of a form, if it names one. Raises `Refused` if there is no such slot."""
    number = form.get("slot")
    found = [each for each in report.slots if number == str(each.slot)]
    if number and not found:
        raise Refused(404, "No such slot", f"{report.name} has no slot {number}.")
    return found


async def _plan_pause(page: Page, form: Form, *, paused: bool) -> Plan:
    report = await _report(page, form)
    slots = _slot(report, form)
    chosen = [each for each in slots or report.slots if each.is_paused != paused]
    waiting = sum(each.messages for each in chosen)
    verb = "Pause" if paused else "Resume"
    of = f"slot {slots[0].slot}" if slots else f"{len(chosen)} slots"
    notes = [f"{waiting:,} messages wait in them."]
    if paused:
        notes.append("Processes still handle the messages that they have read.")
    return Plan(
        question=f"{verb} {of} of the subscription {report.name}?",
        count=len(chosen),
        fields={"name": report.name, "slot": form.get("slot", "")},
        back=_back(page, form),
        notes=notes,
    )


async def _pause(page: Page, form: Form, *, paused: bool) -> Done:
    report = await _report(page, form, changes=True)
    slots = _slot(report, form)
    count = sum(each.is_paused != paused for each in slots or report.slots)
    admin = await page.admin(SubscriptionAdmin, changes=True)
    only = [each.slot for each in slots] or None
    await (admin.pause if paused else admin.resume)(report.name, only)
    verb = "paused" if paused else "resumed"
    text = f"{count} slots of the subscription {report.name} are {verb}."
    return Done(text=text, count=count, back=_back(page, form))


async def _plan_skip(page: Page, form: Form) -> Plan:
    report, position = await _report(page, form), number_of(form, "position")
    found = [each for each in report.slots if each.oldest == position]
    notes = [
        f"It is {each.message}, in slot {each.slot}, {each.seconds:,.0f} s old. "
        f"{counted(each.messages - 1, 'message')} of its slot wait behind it."
        for each in found
    ]
    return Plan(
        question=f"Skip the message {position:,} of the subscription {report.name} for good?",
        count=len(found),
        fields={"name": report.name, "position": str(position)},
        back=_back(page, form),
        notes=notes or ["No slot stands at this message any more."],
        choices=[Choice("reason", "Reason, for the record")],
    )


async def _skip(page: Page, form: Form) -> Done:
    admin = await page.admin(SubscriptionAdmin, changes=True)
    name, position = needed(form, "name"), number_of(form, "position")
    found = await admin.skip(name, position, form.get("reason", ""))
    text = (
        f"1 message is skipped by {name}: {found.position}, {found.type}, version {found.version} "
        f"of the stream {found.stream}."
    )
    return Done(text=text, count=1, back=_back(page, form))


STREAMS = Section(
    title="Streams",
    pages={"streams": _streams, "subscription": _subscription, "message": _message},
    is_shown=lambda console: console.database is not None,
    actions={
        "pause-subscription": action("Pause", _plan_pause, _pause, paused=True),
        "resume-subscription": action("Resume", _plan_pause, _pause, paused=False),
        "skip-message": action("Skip", _plan_skip, _skip, is_destructive=True),
    },
)
