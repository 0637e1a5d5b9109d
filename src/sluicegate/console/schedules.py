"""The schedules of a queue: a list, one with its next ticks, and their actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..postgres.queues.admin import QueueAdmin
from .door import Refused
from .site import Done, Page, Plan, action, needed

if TYPE_CHECKING:
    from starlette.responses import Response

    from ..postgres.queues.schedules import ScheduleAdmin
    from .door import Form

SIZE = 50
"""Schedules in a page."""
TICKS = 5


async def _schedules(page: Page) -> Response:
    queue = page.require("queue")
    schedules = await (await page.admin(QueueAdmin)).schedules(queue)
    found = await schedules.list(limit=SIZE, after=page.get("after"))
    title = f"Schedules of {queue}"
    return page.show("schedules.html", title=title, live=True, queue=queue, found=found)


async def _schedule(page: Page) -> Response:
    queue, name = page.require("queue"), page.require("name")
    schedules = await (await page.admin(QueueAdmin)).schedules(queue)
    found = await schedules.show(name)
    if found is None:
        raise Refused(404, "No such schedule", f"The queue {queue} has no schedule {name!r}.")
    return page.show(
        "schedule.html",
        title=f"Schedule {name} of {queue}",
        queue=queue,
        found=found,
        ticks=found.ticks(TICKS),
    )


_VERBS = {
    "pause-schedule": ("Pause", "is paused", "It does not fire until it is resumed."),
    "resume-schedule": ("Resume", "is resumed", "Ticks during the pause are dropped."),
    "run-schedule": ("Run now", "", "One job is enqueued. The ticks do not change."),
    "delete-schedule": ("Delete", "is deleted", "Its jobs stay."),
}
"""Labels, results and notes of the actions."""


async def _admin(page: Page, form: Form, *, changes: bool) -> ScheduleAdmin:
    admin = await page.admin(QueueAdmin, changes=changes)
    return await admin.schedules(needed(form, "queue"))


async def _plan(page: Page, form: Form, *, how: str) -> Plan:
    found = await (await _admin(page, form, changes=False)).show(needed(form, "name"))
    label, _, note = _VERBS[how]
    count = int(found is not None)
    if found is not None and how in {"pause-schedule", "resume-schedule"}:
        count = int(found.is_paused == (how == "resume-schedule"))
    return Plan(
        question=f"{label}: the schedule {form['name']} of the queue {form['queue']}?",
        count=count,
        fields={"queue": form["queue"], "name": form["name"]},
        back=page.url("schedules", queue=form["queue"]),
        notes=[note],
    )


async def _run(page: Page, form: Form, *, how: str) -> Done:
    schedules, name = await _admin(page, form, changes=True), needed(form, "name")
    result = _VERBS[how][1]
    if how == "run-schedule":
        result = f"has enqueued the job {await schedules.run_now(name)}"
    elif how == "delete-schedule":
        await schedules.delete(name)
    else:
        await (schedules.pause(name) if how == "pause-schedule" else schedules.resume(name))
    text = f"The schedule {name} of the queue {form['queue']} {result}."
    return Done(text=text, count=1, back=page.url("schedules", queue=form["queue"]))


PAGES = {"schedules": _schedules, "schedule": _schedule}
ACTIONS = {
    how: action(label, _plan, _run, how=how, is_destructive=how == "delete-schedule")
    for how, (label, _, _) in _VERBS.items()
}
