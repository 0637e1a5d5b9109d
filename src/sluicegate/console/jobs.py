"""The jobs of a queue: lists in pages, one job, dead letters by class, and the actions on jobs.

1. A filter is a state, a key, an error class and an age, as `JobAdmin.list` takes them.
2. An action on all jobs of a filter takes at most `MOST` at a time. It carries the last place, or
   the time of the last dead letter, so that it spares the jobs that came after the question.
"""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ..letters.letter import moment
from ..postgres.queues.admin import QueueAdmin
from ..postgres.queues.jobs import FINISHED, JOB_STATES
from .door import Refused
from .format import counted
from .site import Done, Page, Plan, action, needed, number_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.responses import Response

    from ..postgres.queues.contents import JobAdmin, Purged
    from ..postgres.queues.jobs import Job, JobState
    from .door import Form

SIZE = 50
"""Jobs in a page."""
CHUNK = 1_000
MOST = 10_000
NO_ERROR = "(none)"
"""The error class of dead letters without one, in addresses."""
RETRIED = frozenset({"delayed", "blocked", "parked", "dead", "cancelled"})
"""States whose jobs can be retried together."""
_AGE = re.compile(r"(\d{1,9})\s*([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Filter(NamedTuple):
    """Which jobs of a queue."""

    queue: str
    state: JobState | None
    key: str | None
    error: str | None
    """`NO_ERROR` for those without a class."""
    older_than: str | None
    """An age such as `7d`, or a time."""

    @property
    def has_left(self) -> bool:
        """Whether these jobs have left the queue."""
        return self.state in FINISHED

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `JobAdmin.list`. Raises `Refused` for an age that cannot be read."""
        error = "" if self.error == NO_ERROR else self.error
        found = {"state": self.state, "key": self.key, "error": error}
        return {**found, "older_than": _before(self.older_than)}

    @property
    def text(self) -> str:
        """The filter in words, after `jobs`."""
        key = "" if self.key is None else f" with the key {self.key}"
        error = "" if self.error is None else f" with the error class {self.error}"
        age = "" if self.older_than is None else f" from before {self.older_than}"
        return f"of the queue {self.queue}{key}{error}{age}"


def _filter_of(form: Form, queue: str) -> Filter:
    state = form.get("state") or None
    if state is not None and state not in JOB_STATES:
        raise Refused(400, "Unknown state", f"A job is {', '.join(JOB_STATES)}.")
    names = ("key", "error", "older_than")
    return Filter(queue, state, *(form.get(each) or None for each in names))


def _before(text: str | None) -> datetime | timedelta | None:
    if text is None:
        return None
    if (age := _AGE.fullmatch(text.strip())) is not None:
        return timedelta(**{_UNITS[age[2]]: int(age[1])})
    try:
        return moment(text)
    except ValueError:
        rule = (
            f"{text!r} must be an age such as 90m, 12h or 7d, or a time such as 2026-01-31T12:00."
        )
        raise Refused(400, "Unreadable age", rule) from None


# -- pages -----------------------------------------------------------------------------------------


async def _jobs(page: Page) -> Response:
    queue = page.require("queue")
    wanted = _filter_of(page.request.query_params, queue)
    jobs = await (await page.admin(QueueAdmin)).jobs(queue)
    found = await jobs.list(**wanted.arguments, limit=SIZE, after=page.get("after"))
    return page.show(
        "jobs.html",
        title=f"Jobs of {queue}",
        queue=queue,
        wanted=wanted,
        found=found,
        states=JOB_STATES,
        can_retry=wanted.state in RETRIED,
        size=SIZE,
    )


async def _dead(page: Page) -> Response:
    queue = page.require("queue")
    jobs = await (await page.admin(QueueAdmin)).jobs(queue)
    errors = await jobs.errors(count_to=MOST)
    classes = {name or NO_ERROR: count for name, count in errors.items()}
    return page.show(
        "dead.html",
        title=f"Dead letters of {queue}",
        live=True,
        queue=queue,
        classes=dict(sorted(classes.items(), key=lambda each: -each[1])),
        most=MOST,
    )


async def _job(page: Page) -> Response:
    queue, place = page.require("queue"), number_of(page.request.query_params, "place")
    jobs = await (await page.admin(QueueAdmin)).jobs(queue)
    detail = await jobs.show(place)
    if detail is None:
        raise Refused(
            404, "No such job", f"The queue {queue} neither has nor keeps a job at {place}."
        )
    return page.show(
        "job.html",
        title=f"Job {place:,} of {queue}",
        queue=queue,
        job=detail.job,
        lane=detail.lane,
        waits_for=detail.waits_for,
        has_left=detail.job.finished_at is not None,
    )


# -- actions ---------------------------------------------------------------------------------------


class Selection(NamedTuple):
    """The jobs of an action."""

    places: list[int]
    fields: dict[str, str]
    """The fields that select them again, and no others."""
    text: str

    @property
    def number(self) -> str:
        """Their number in words."""
        return counted(len(self.places), "job")

    @property
    def is_cut(self) -> bool:
        """Whether there may be more."""
        return len(self.places) >= MOST


def _places(text: str) -> list[int]:
    numbers = text.split(",")
    if not all(each.isascii() and each.isdecimal() and len(each) < 19 for each in numbers):
        raise Refused(400, "Unreadable place", "The place of a job is a number.")
    return [int(each) for each in numbers]


async def _select(form: Form, jobs: JobAdmin) -> Selection:
    """Return the jobs that a form names, or those of its filter, with the limit to carry."""
    queue = needed(form, "queue")
    given = form.getlist("place") or [each for each in [form.get("places")] if each]
    if given:
        places = _places(",".join(given))
        fields = {"queue": queue, "places": ",".join(map(str, places))}
        there = [job.place for job in await jobs.find(places)]
        return Selection(there, fields, f"of the queue {queue}")
    wanted = _filter_of(form, queue)
    found = await _matching(jobs, wanted)
    fields = {"queue": queue, "state": wanted.state or "", "key": wanted.key or ""}
    fields["error"] = wanted.error or ""
    if wanted.has_left:
        # later jobs have left later; times have milliseconds
        times = [job.finished_at for job in found if job.finished_at is not None]
        until = max(times) + timedelta(milliseconds=1) if times else None
        fields["older_than"] = until.isoformat() if until else wanted.older_than or ""
    else:
        last = max((job.place for job in found), default=0)
        if form.get("last"):
            last = number_of(form, "last")
        fields["last"] = str(last)
        found = [job for job in found if job.place <= last]
    return Selection([job.place for job in found], fields, wanted.text)


async def _matching(jobs: JobAdmin, wanted: Filter) -> list[Job]:
    found: list[Job] = []
    after: str | None = None
    while len(found) < MOST:
        listed = await jobs.list(**wanted.arguments, limit=CHUNK, after=after)
        found += listed.items
        if listed.next is None:
            break
        after = listed.next
    return found[:MOST]


async def _admin(page: Page, form: Form, *, changes: bool) -> JobAdmin:
    return await (await page.admin(QueueAdmin, changes=changes)).jobs(needed(form, "queue"))


def _back(page: Page, form: Form) -> str:
    names = ("queue", "state", "key", "error")
    return page.url("jobs", **{name: form.get(name) for name in names})


async def _plan(page: Page, form: Form, *, verb: str, note: str) -> Plan:
    selected = await _select(form, await _admin(page, form, changes=False))
    state = f" {form['state']}" if form.get("state") else ""
    count = selected.number.replace(" ", f"{state} ", 1) if state else selected.number
    cut = [f"These are the first {MOST:,}; repeat it for the others."] if selected.is_cut else []
    return Plan(
        question=f"{verb} {count} {selected.text}?",
        count=len(selected.places),
        fields=selected.fields,
        back=_back(page, form),
        notes=[note, *cut],
    )


async def _retry(page: Page, form: Form) -> Done:
    jobs = await _admin(page, form, changes=True)
    selected = await _select(form, jobs)
    fates = Counter[str]()
    for chunk in _chunks(selected.places):
        left = [job.place for job in await jobs.find(chunk) if job.finished_at is not None]
        if left:
            fates["enqueued"] += await jobs.redrive(places=left)
        if staying := sorted({*chunk} - {*left}):
            fates.update((await jobs.retry(staying)).values())
    count = fates["enqueued"] + fates["ready"]
    text = f"{counted(count, 'job')} {selected.text} retried."
    return Done(text=text, count=count, back=_back(page, form), lines=_lines(fates))


async def _cancel(page: Page, form: Form) -> Done:
    jobs = await _admin(page, form, changes=True)
    selected = await _select(form, jobs)
    fates = Counter[str]()
    for chunk in _chunks(selected.places):
        fates.update((await jobs.cancel(chunk)).values())
    count = fates["cancelled"] + fates["cancelling"]
    text = f"{counted(count, 'job')} {selected.text} cancelled."
    return Done(text=text, count=count, back=_back(page, form), lines=_lines(fates))


_FATES = {
    "enqueued": "enqueued again behind the waiting jobs",
    "ready": "ready now",
    "leased": "unchanged: leased by a consumer",
    "behind": "unchanged: behind another job of their key",
    "missing": "not there any more",
    "cancelled": "cancelled",
    "cancelling": "leased: the handler is cancelled, unless it ends before",
}


def _lines(fates: Mapping[str, int]) -> list[str]:
    return [f"{count:,} {_FATES[fate]}" for fate, count in fates.items() if count]


def _chunks(places: list[int]) -> list[list[int]]:
    return [places[start : start + CHUNK] for start in range(0, len(places), CHUNK)]


async def _plan_purge(page: Page, form: Form) -> Plan:
    """Count what `JobAdmin.purge` would delete: of the existing ones, all without a lease."""
    _purged(form)
    jobs = await _admin(page, form, changes=False)
    wanted = _filter_of(form, needed(form, "queue"))
    listed = wanted if wanted.has_left else wanted._replace(state=None)
    found = [job for job in await _matching(jobs, listed) if job.state != "leased"]
    until = max((job.finished_at or job.at for job in found), default=None)
    notes = ["They are deleted for good."]
    if not wanted.has_left:
        notes.append("Delayed, blocked and parked jobs are among them; leased ones are not.")
    if len(found) == MOST:
        notes.append(f"{MOST:,} were counted. There may be more, which are deleted too.")
    state = f"{wanted.state} " if wanted.has_left else ""
    return Plan(
        question=f"Delete {counted(len(found), f'{state}job')} {wanted.text}?",
        count=len(found),
        fields={
            "queue": wanted.queue,
            "state": form["state"],
            "key": wanted.key or "",
            "older_than": (until + timedelta(milliseconds=1)).isoformat() if until else "",
        },
        back=_back(page, form),
        notes=notes,
    )


def _purged(form: Form) -> Purged:
    """Return the deleted jobs. Raises `Refused` for a state that cannot be deleted."""
    state = form.get("state")
    if state not in {*FINISHED, "waiting"} or form.get("error"):
        rule = "All jobs that have left, or wait, can be deleted; not those of an error class."
        raise Refused(400, "Not possible", rule)
    return cast("Purged", state)


async def _purge(page: Page, form: Form) -> Done:
    jobs = await _admin(page, form, changes=True)
    wanted = _filter_of(form, needed(form, "queue"))
    older_than = wanted.arguments["older_than"]
    count = await jobs.purge(_purged(form), key=wanted.key, older_than=older_than)
    text = f"{counted(count, 'job')} {wanted._replace(older_than=None).text} deleted."
    return Done(text=text, count=count, back=_back(page, form))


PAGES = {"jobs": _jobs, "job": _job, "dead": _dead}
ACTIONS = {
    "retry-jobs": action(
        "Retry", partial(_plan, verb="Retry", note="Their attempts are counted from 0."), _retry
    ),
    "cancel-jobs": action(
        "Cancel jobs",
        partial(_plan, verb="Cancel", note="They are kept as long as dead letters."),
        _cancel,
        is_destructive=True,
    ),
    "purge-jobs": action("Delete", _plan_purge, _purge, is_destructive=True),
}
