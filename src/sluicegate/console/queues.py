"""The queues of a schema: all, one with its keys, and the actions on queues and keys."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, get_args

from ..postgres.queues.admin import QueueAdmin
from ..postgres.queues.settings import QueueSettings
from ..postgres.queues.stats import LaneState
from .door import Refused
from .format import counted
from .jobs import ACTIONS as JOB_ACTIONS
from .jobs import PAGES as JOB_PAGES
from .schedules import ACTIONS as SCHEDULE_ACTIONS
from .schedules import PAGES as SCHEDULE_PAGES
from .site import Choice, Done, Page, Plan, Section, action, needed

if TYPE_CHECKING:
    from starlette.responses import Response

    from ..postgres.queues.contents import LaneAdmin
    from ..postgres.queues.report import QueueReport
    from .door import Form

COUNT_TO = 10_000
"""The limit of each count."""
MOST_LANES = 100
LANE_STATES: tuple[LaneState, ...] = get_args(LaneState)


async def read_queues(page: Page) -> dict[str, Any]:
    """Return the values of `queues_table.html`."""
    admin = await page.admin(QueueAdmin)
    stats = await admin.lag(count_to=COUNT_TO)
    return {"queues": await admin.queues(), "stats": stats, "most": COUNT_TO}


async def _queues(page: Page) -> Response:
    return page.show("queues.html", title="Queues", live=True, **await read_queues(page))


async def _queue(page: Page) -> Response:
    name, state, key = page.require("name"), page.get("state"), page.get("key")
    if state is not None and state not in LANE_STATES:
        raise Refused(400, "Unknown state", f"A key is {', '.join(LANE_STATES)}.")
    admin = await page.admin(QueueAdmin)
    report = await admin.explain(name, key=key, limit=MOST_LANES, count_to=COUNT_TO)
    lanes = list(report.lanes)
    if state is not None:
        keys = await admin.keys(name)
        lanes = await keys.lanes(state, limit=MOST_LANES)
    settings = report.queue.settings
    return page.show(
        "queue.html",
        title=name,
        live=True,
        report=report,
        stats=report.stats,
        lanes=[(lane, report.reason(lane)) for lane in lanes],
        settings=[(each.name, getattr(settings, each.name)) for each in fields(QueueSettings)],
        state=state,
        key=key,
        states=LANE_STATES,
        most=COUNT_TO,
        most_lanes=MOST_LANES,
    )


# -- actions on queues -----------------------------------------------------------------------------


async def _report(page: Page, form: Form, key: str | None = None) -> QueueReport:
    admin = await page.admin(QueueAdmin)
    return await admin.explain(needed(form, "queue"), key=key, limit=1, count_to=COUNT_TO)


def _back(page: Page, form: Form) -> str:
    return page.url("queue", name=form["queue"])


async def _plan_pause(page: Page, form: Form, *, paused: bool) -> Plan:
    report = await _report(page, form)
    name, stats = report.queue.name, report.stats
    verb = "Pause" if paused else "Resume"
    return Plan(
        question=f"{verb} the queue {name}, with {counted(stats.jobs, 'job')}?",
        count=int(stats.is_paused != paused),
        fields={"queue": name},
        back=_back(page, form),
        notes=[f"Consumers finish the {counted(stats.leased, 'leased job')}."] if paused else [],
    )


async def _pause(page: Page, form: Form, *, paused: bool) -> Done:
    name = needed(form, "queue")
    admin = await page.admin(QueueAdmin, changes=True)
    was = (await admin.lag(name, count_to=1))[name].is_paused
    await (admin.pause(name) if paused else admin.resume(name))
    text = f"The queue {name} is {'paused' if paused else 'resumed'}."
    return Done(text=text, count=int(was != paused), back=_back(page, form))


# -- actions on keys -------------------------------------------------------------------------------


def _named(key: str) -> str:
    return f"the key {key}" if key else "the only lane"


async def _plan_park(page: Page, form: Form) -> Plan:
    key = form.get("key", "")
    report = await _report(page, form, key)
    jobs = sum(lane.jobs for lane in report.lanes)
    name = report.queue.name
    if not key and not report.queue.settings.ordering_required:
        raise Refused(400, "Something is missing", "Name the key to park.")
    return Plan(
        question=f"Park {_named(key)} of the queue {name}, with {counted(jobs, 'job')}?",
        count=1,
        fields={"queue": name, "key": key},
        back=_back(page, form),
        notes=["Jobs that are enqueued in the meantime wait in order, until it is unparked."],
        choices=[Choice("reason", "Reason", "parked by an operator")],
    )


async def _park(page: Page, form: Form) -> Done:
    key, reason = form.get("key", ""), form.get("reason") or "parked by an operator"
    is_leased = await (await _keys(page, form)).park(key, reason)
    still = " A consumer still has a lease of it." if is_leased else ""
    text = f"{_named(key).capitalize()} of the queue {form['queue']} is parked.{still}"
    return Done(text=text, count=1, back=_back(page, form))


async def _keys(page: Page, form: Form) -> LaneAdmin:
    admin = await page.admin(QueueAdmin, changes=True)
    return await admin.keys(needed(form, "queue"))


_RELEASES = {
    "unpark-key": ("Unpark", "continues, with attempts from 0"),
    "unblock-key": ("Try again", "continues, with its attempts kept"),
    "skip-key": ("Skip", "continues behind its first job, which is a dead letter"),
}
"""Labels, and results, of the actions that continue a key."""


async def _plan_release(page: Page, form: Form, *, how: str) -> Plan:
    key = form.get("key", "")
    report = await _report(page, form, key)
    stopped = [lane for lane in report.lanes if lane.state in {"blocked", "parked"}]
    jobs = sum(lane.jobs for lane in stopped)
    label, result = _RELEASES[how]
    return Plan(
        question=(
            f"{label}: {_named(key)} of the queue {report.queue.name}, with {counted(jobs, 'job')}?"
        ),
        count=len(stopped),
        fields={"queue": report.queue.name, "key": key},
        back=_back(page, form),
        notes=[f"It {result}."],
    )


async def _release(page: Page, form: Form, *, how: str) -> Done:
    keys, key = await _keys(page, form), form.get("key", "")
    if how == "unpark-key":
        await keys.unpark(key)
    else:
        await keys.unblock(key, skip=how == "skip-key")
    text = f"{_named(key).capitalize()} of the queue {form['queue']} {_RELEASES[how][1]}."
    return Done(text=text, count=1, back=_back(page, form))


QUEUES = Section(
    title="Queues",
    pages={"queues": _queues, "queue": _queue, **JOB_PAGES, **SCHEDULE_PAGES},
    is_shown=lambda console: console.database is not None,
    actions={
        "pause-queue": action("Pause", _plan_pause, _pause, paused=True),
        "resume-queue": action("Resume", _plan_pause, _pause, paused=False),
        "park-key": action("Park", _plan_park, _park),
        **{
            how: action(label, _plan_release, _release, is_destructive=how == "skip-key", how=how)
            for how, (label, _) in _RELEASES.items()
        },
        **JOB_ACTIONS,
        **SCHEDULE_ACTIONS,
    },
)
