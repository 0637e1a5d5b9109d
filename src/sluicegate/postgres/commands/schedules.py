"""The commands of `sluicegate queue` for schedules, and their output."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from ...cli.console import OK, UseError, encodable, say
from ...letters.text import printable
from .output import plain, print_facts, print_json, print_table, span

if TYPE_CHECKING:
    import argparse
    from datetime import datetime

    from ..queues.admin import QueueAdmin
    from ..queues.schedules import Schedule

HEADS = ("schedule", "times", "state", "next", "last", "job")


async def list_schedules(options: argparse.Namespace, admin: QueueAdmin) -> int:
    """Print a line per schedule, or the facts of one."""
    schedules = await admin.schedules(options.queue)
    if options.name is not None:
        found = await schedules.show(options.name)
        if found is None:
            raise UseError(f"the queue {options.queue} has no schedule {options.name}")
        _print_one(found, in_json=options.json, payload=options.payload)
        return OK
    page = await schedules.list(limit=options.limit, after=options.after)
    if options.json:
        items = [_as_dict(each, payload=options.payload) for each in page.items]
        print_json({"schedules": items, "next": page.next})
        return OK
    print_table(HEADS, [_row(each) for each in page.items], ("job",))
    if page.next is not None:
        say(f"there may be more: --after {page.next}")
    return OK


async def put_schedule(options: argparse.Namespace, admin: QueueAdmin) -> int:
    """Create or replace a schedule, and print it."""
    schedules = await admin.schedules(options.queue)
    names = ("cron", "every", "timezone", "key", "priority", "catch_up")
    found = await schedules.put(
        options.name,
        payload=options.contents,
        headers=dict(options.headers),
        **{name: getattr(options, name) for name in names},
    )
    _print_one(found, in_json=options.json, payload=True)
    return OK


async def delete_schedule(options: argparse.Namespace, admin: QueueAdmin) -> int:
    """Delete a schedule."""
    await (await admin.schedules(options.queue)).delete(options.name)
    say(f"the schedule {options.name} is deleted; its jobs stay")
    return OK


async def ask_delete_schedule(options: argparse.Namespace, admin: QueueAdmin) -> str:
    """Return the confirmation, once the schedule was found."""
    found = await (await admin.schedules(options.queue)).show(options.name)
    if found is None:
        raise UseError(f"the queue {options.queue} has no schedule {options.name}")
    return f"delete the schedule {options.name}, {_times(found)}, of the queue {options.queue}?"


async def run_schedule(options: argparse.Namespace, admin: QueueAdmin) -> int:
    """Enqueue a job of a schedule now."""
    place = await (await admin.schedules(options.queue)).run_now(options.name)
    if options.json:
        print_json({"place": place})
    else:
        say(f"enqueued the job at {place}; `sluicegate queue show` prints it")
    return OK


async def pause_schedule(options: argparse.Namespace, admin: QueueAdmin) -> int:
    """Pause or resume a schedule, by the name of the command."""
    schedules = await admin.schedules(options.queue)
    if options.queue_command == "pause":
        await schedules.pause(options.schedule)
        say(f"the schedule {options.schedule} is paused; `resume` with --schedule continues it")
    else:
        await schedules.resume(options.schedule)
        say(f"the schedule {options.schedule} is resumed")
    return OK


def _times(schedule: Schedule) -> str:
    if schedule.every is not None:
        return f"every {span(schedule.every)}"
    return f"{schedule.cron} ({schedule.timezone})"


def _local(schedule: Schedule, time: datetime | None) -> str:
    return "" if time is None else time.astimezone(ZoneInfo(schedule.timezone)).isoformat()


def _row(schedule: Schedule) -> tuple[object, ...]:
    state, following = ("paused", None) if schedule.is_paused else ("", schedule.next_at)
    return (
        *(schedule.name, _times(schedule), state, _local(schedule, following)),
        *(_local(schedule, schedule.last_at), schedule.last_job or ""),
    )


def _as_dict(schedule: Schedule, *, payload: bool) -> dict[str, Any]:
    hidden = () if payload else ("payload", "headers")
    names = [each.name for each in fields(schedule) if each.name not in hidden]
    found: dict[str, Any] = plain({name: getattr(schedule, name) for name in names})
    return {**found, "ticks": [tick.isoformat() for tick in schedule.ticks()]}


def _print_one(schedule: Schedule, *, in_json: bool, payload: bool) -> None:
    """Print the facts of a schedule, with its next ticks in its time zone."""
    facts = _as_dict(schedule, payload=payload)
    if in_json:
        print_json(facts)
        return
    for name in ("next_at", "last_at"):
        facts[name] = _local(schedule, getattr(schedule, name)) or None
    facts["every"] = None if schedule.every is None else span(schedule.every)
    ticks = facts.pop("ticks")
    print_facts(facts)
    heads = ["ticks:", *[""] * (len(ticks) - 1)]
    for head, tick in zip(heads, schedule.ticks(), strict=False):
        print(encodable(printable(f"{head:14}{_local(schedule, tick)}")))
