"""The parts of this process, one part in full, and their actions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from .._core.errors import ClosedError
from .._core.logs import for_log
from ..consumer.operated import Operated
from ..flow.pipe import PipeStats
from .door import Refused
from .format import counted
from .picture import picture_of, state_of
from .site import Done, Page, Plan, Section, action, needed

if TYPE_CHECKING:
    from starlette.responses import Response

    from .._core.source import TopicPartition
    from ..consumer.failures.poison import Unblocking
    from ..consumer.operating.report import BlockedMessage
    from ..consumer.operating.stats import ConsumerStats
    from .contents import Contents
    from .door import Form

PATIENCE = 10.0
"""Seconds that a replay of parked records may take before the page is answered."""


class Shown(NamedTuple):
    """A part with its statistics."""

    name: str
    part: Any
    stats: Any
    """`None` if it is not open."""

    @property
    def kind(self) -> str:
        """The name of its class."""
        return type(self.part).__name__

    @property
    def state(self) -> str:
        """A word for its state."""
        return state_of(self.stats)

    @property
    def line(self) -> str:
        """Its numbers in one line."""
        return "" if self.stats is None else str(self.stats)

    @property
    def consumer(self) -> ConsumerStats | None:
        """The statistics of its consumer, if it has one."""
        if not isinstance(self.part, Operated):
            return None
        found = self.stats.source if isinstance(self.stats, PipeStats) else self.stats
        return cast("ConsumerStats | None", found)


def shown_parts(console: Contents) -> list[Shown]:
    """Return the parts with their statistics."""
    return [Shown(name, part, _stats(part)) for name, part in console.parts.items()]


def _stats(part: Any) -> Any:
    try:
        return part.stats()
    except ClosedError:
        return None


def _find(page: Page, name: str) -> Shown:
    part = page.console.parts.get(name)
    if part is None:
        raise Refused(404, "No such part", f"This process has no part {name!r}; it may have ended.")
    return Shown(name, part, _stats(part))


async def _parts(page: Page) -> Response:
    return page.show("parts.html", title="Live parts", live=True, parts=shown_parts(page.console))


async def _part(page: Page) -> Response:
    found = _find(page, page.require("name"))
    explanation, blocked, parked = found.line, list[Any](), list[str]()
    if found.consumer is not None:
        explanation = str(found.part.explain())
        blocked = [(each, repr(each.key), for_log(each.error)) for each in found.part.blocked]
        parked = [repr(key) for key in found.part.parked]
    return page.show(
        "part.html",
        title=found.name,
        live=True,
        found=found,
        boxes=picture_of(found.stats),
        explanation=explanation,
        blocked=blocked,
        parked=parked,
    )


# -- actions ---------------------------------------------------------------------------------------


def _operated(page: Page, form: Form) -> tuple[Operated, ConsumerStats]:
    """Return the consumer that a form names. Raises `Refused` if it is not open."""
    found = _find(page, needed(form, "name"))
    if found.consumer is None:
        raise Refused(409, "Not open", f"{found.name} is not open.")
    return found.part, found.consumer


def _partitions(stats: ConsumerStats, form: Form, *, paused: bool) -> list[TopicPartition]:
    only = form.get("partition", "")
    return [
        partition
        for partition, each in stats.partitions.items()
        if only in {"", str(partition)} and each.is_paused == paused
    ]


async def _plan_pause(page: Page, form: Form, *, paused: bool) -> Plan:
    part, stats = _operated(page, form)
    count = len(_partitions(stats, form, paused=not paused))
    verb, only = "Pause" if paused else "Resume", form.get("partition", "")
    of = f"the partition {only}" if only else counted(count, "partition")
    return Plan(
        question=f"{verb} {of} of {part.name}?",
        count=count,
        fields={"name": needed(form, "name"), "partition": only},
        back=page.url("part", name=form["name"]),
        notes=["Messages inside are still handled. The pause lasts until it is resumed."]
        if paused
        else [],
    )


async def _pause(page: Page, form: Form, *, paused: bool) -> Done:
    part, stats = _operated(page, form)
    partitions = _partitions(stats, form, paused=not paused)
    named = partitions if form.get("partition") else []
    if named or not form.get("partition"):
        (part.pause if paused else part.resume)(*named)
    _, stats = _operated(page, form)
    count = len({*partitions} & {*_partitions(stats, form, paused=paused)})
    verb = "Paused" if paused else "Resumed"
    return Done(
        text=f"{verb} {counted(count, 'partition')} of {part.name}.",
        count=count,
        back=page.url("part", name=form["name"]),
        lines=["All of it is paused: resume all of it."] if count < len(partitions) else [],
    )


def _blocked(part: Operated, form: Form) -> list[BlockedMessage]:
    only = form.get("partition", "")
    return [
        each
        for each in part.blocked
        if repr(each.key) == form.get("key") and only in {"", str(each.partition)}
    ]


async def _plan_unblock(page: Page, form: Form, *, skip: bool) -> Plan:
    part, _ = _operated(page, form)
    count = len(_blocked(part, form))
    verb = "Give up" if skip else "Try again"
    key = needed(form, "key")
    return Plan(
        question=f"{verb} {counted(count, 'blocked message')} of the key {key} of {part.name}?",
        count=count,
        fields={"name": form["name"], "key": key, "partition": form.get("partition", "")},
        back=page.url("part", name=form["name"]),
        notes=["Messages behind them continue."],
    )


async def _unblock(page: Page, form: Form, *, skip: bool) -> Done:
    part, _ = _operated(page, form)
    found = _blocked(part, form)
    count = 0
    for partition in dict.fromkeys(each.partition for each in found):
        action: Unblocking = "skip" if skip else "retry"
        count += part.unblock(found[0].key, partition=partition, action=action)
    verb = "Given up" if skip else "Tried again"
    text = f"{verb}: {counted(count, 'message')} of the key {form.get('key')} of {part.name}."
    return Done(text=text, count=count, back=page.url("part", name=form["name"]))


def _parked(part: Operated, form: Form) -> list[object]:
    return [key for key in part.parked if repr(key) == form.get("key")]


async def _plan_unpark(page: Page, form: Form) -> Plan:
    part, _ = _operated(page, form)
    key = needed(form, "key")
    return Plan(
        question=f"Handle the parked records of the key {key} of {part.name}?",
        count=len(_parked(part, form)),
        fields={"name": form["name"], "key": key},
        back=page.url("part", name=form["name"]),
        notes=[
            f"This takes at most {PATIENCE:g} s. Records that are not handled by then stay parked."
        ],
    )


async def _unpark(page: Page, form: Form) -> Done:
    part, _ = _operated(page, form)
    found = _parked(part, form)
    text = "nothing is parked any more."
    if found:
        try:
            async with asyncio.timeout(PATIENCE):
                text = str(await part.unpark(found[0]))
        except TimeoutError:
            text = f"not finished after {PATIENCE:g} s; the remaining records stay parked."
    return Done(
        text=f"{part.name}, key {form.get('key')}: {text}",
        count=len(found),
        back=page.url("part", name=form["name"]),
    )


LIVE = Section(
    title="Live parts",
    pages={"parts": _parts, "part": _part},
    is_shown=lambda _: True,
    actions={
        "pause-part": action("Pause", _plan_pause, _pause, paused=True),
        "resume-part": action("Resume", _plan_pause, _pause, paused=False),
        "unblock-part": action("Try again", _plan_unblock, _unblock, skip=False),
        "skip-part": action("Give up", _plan_unblock, _unblock, skip=True, is_destructive=True),
        "unpark-part": action("Unpark", _plan_unpark, _unpark),
    },
)
