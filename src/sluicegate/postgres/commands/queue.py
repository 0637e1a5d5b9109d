"""`sluicegate queue`: findings on standard output, messages on standard error.

1. A command that loses data asks for confirmation first, outside the event loop, where Ctrl-C ends
   it.
2. The objects are looked up before the confirmation, so a wrong name is reported without one.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ...cli.console import OK, UseError, say
from ...cli.parser import DSN, Group
from ..queues.admin import QueueAdmin
from ..queues.settings import QueueSettings
from .output import (
    Progress,
    answer,
    print_fates,
    print_job,
    print_jobs,
    print_json,
    print_queues,
    run_command,
)
from .output import print_queue_lag as print_lag
from .output import print_queue_report as print_report
from .output import queue_report_as_dict as report_as_dict
from .queue_arguments import queue_options
from .schedules import (
    ask_delete_schedule,
    delete_schedule,
    list_schedules,
    pause_schedule,
    put_schedule,
    run_schedule,
)

if TYPE_CHECKING:
    import argparse

    from .output import Command, Question


def queue(options: argparse.Namespace) -> int:
    """Run a sub-command; return the exit code: 0, or 2 for bad use or a refusal.

    Raises `KeyboardInterrupt` after Ctrl-C; the server rolls the current statement back then.
    """
    commands = {**REPORTS, **CHANGES}
    return answer(
        lambda: run_command(options, options.queue_command, QueueAdmin, commands, QUESTIONS)
    )


async def _list(options: argparse.Namespace, admin: QueueAdmin) -> int:
    found = await admin.queues()
    if found or options.json:
        print_queues(found, in_json=options.json)
    else:
        _say_none(options)
    return OK


async def _lag(options: argparse.Namespace, admin: QueueAdmin) -> int:
    found = await admin.lag(options.queue, count_to=options.count_to)
    if found or options.json:
        print_lag(found, options.count_to, in_json=options.json)
    else:
        _say_none(options)
    return OK


async def _explain(options: argparse.Namespace, admin: QueueAdmin) -> int:
    report = await admin.explain(options.queue, key=options.key, limit=options.limit)
    if options.json:
        print_json(report_as_dict(report))
    else:
        print_report(report)
    return OK


def _say_none(options: argparse.Namespace) -> None:
    say(f"the schema {options.schema} has no queue; `sluicegate queue create` makes one")


# -- settings --------------------------------------------------------------------------------------


def _settings_of(options: argparse.Namespace) -> dict[str, Any]:
    names = [field.name for field in fields(QueueSettings)]
    return {name: getattr(options, name) for name in names if hasattr(options, name)}


async def _create(options: argparse.Namespace, admin: QueueAdmin) -> int:
    stored = await admin.create(options.queue, **_settings_of(options))
    if stored.is_new:
        say(f"created the queue {options.queue}")
    else:
        say(f"the queue {options.queue} exists already, with these settings")
    return OK


async def _alter(options: argparse.Namespace, admin: QueueAdmin) -> int:
    await admin.alter(options.queue, **_settings_of(options))
    say(f"the queue {options.queue} is changed; `sluicegate queue list` shows its settings")
    return OK


async def _pause(options: argparse.Namespace, admin: QueueAdmin) -> int:
    if options.schedule is not None:
        return await pause_schedule(options, admin)
    await admin.pause(options.queue)
    say(f"{options.queue} is paused; `sluicegate queue resume` continues it")
    return OK


async def _resume(options: argparse.Namespace, admin: QueueAdmin) -> int:
    if options.schedule is not None:
        return await pause_schedule(options, admin)
    await admin.resume(options.queue)
    say(f"{options.queue} is resumed")
    return OK


async def _drop(options: argparse.Namespace, admin: QueueAdmin) -> int:
    progress = Progress("jobs", "deleted")
    with progress.interruptions():
        await admin.drop(options.queue, force=options.force, on_batch=progress.note)
    say(f"the queue {options.queue} is dropped")
    return OK


async def _ask_drop(options: argparse.Namespace, admin: QueueAdmin) -> str:
    (stats,) = (await admin.lag(options.queue)).values()
    force = f" with {stats.jobs} jobs and {stats.dead} dead letters" if options.force else ""
    return f"drop the queue {options.queue}{force} for good?"


# -- keys ------------------------------------------------------------------------------------------


async def _unblock(options: argparse.Namespace, admin: QueueAdmin) -> int:
    keys = await admin.keys(options.queue)
    await keys.unblock(options.key, skip=options.skip)
    skipped = ", and its first job is a dead letter" if options.skip else ""
    say(f"{_which(options)} continues{skipped}")
    return OK


async def _ask_unblock(options: argparse.Namespace, admin: QueueAdmin) -> str | None:
    await admin.keys(options.queue)
    if not options.skip:
        return None
    return f"move the first job of {_which(options)} to the dead letters?"


async def _park(options: argparse.Namespace, admin: QueueAdmin) -> int:
    keys = await admin.keys(options.queue)
    is_leased = await keys.park(options.key, options.reason)
    still = "; a consumer still has a lease of it" if is_leased else ""
    say(f"{_which(options)} is parked{still}; `sluicegate queue unpark` continues it")
    return OK


async def _unpark(options: argparse.Namespace, admin: QueueAdmin) -> int:
    keys = await admin.keys(options.queue)
    await keys.unpark(options.key)
    say(f"{_which(options)} continues")
    return OK


def _which(options: argparse.Namespace) -> str:
    return f"the key {options.key}" if options.key else f"the queue {options.queue}"


async def _move(options: argparse.Namespace, admin: QueueAdmin) -> int:
    routing = await admin.routing(options.queue, options.group)
    if options.automatic:
        if options.slots is not None:
            raise UseError("--automatic takes no slots: it applies to the whole group")
        await routing.balance()
        say(f"the ranges of the group {options.group} follow its live consumers")
        return OK
    if options.slots is None or options.consumer is None:
        raise UseError("name the slots and their consumer, or add --automatic")
    lo, hi = options.slots
    await routing.move(lo, hi, options.consumer)
    say(
        f"{options.consumer} owns the slots {lo}-{hi}; the ranges of the group {options.group} do "
        "not change until the next move or --automatic"
    )
    return OK


# -- jobs ------------------------------------------------------------------------------------------


async def _jobs(options: argparse.Namespace, admin: QueueAdmin) -> int:
    jobs = await admin.jobs(options.queue)
    names = ("key", "error", "older_than", "limit", "after", "payload")
    page = await jobs.list(options.state, **{name: getattr(options, name) for name in names})
    errors = await jobs.errors() if options.state == "dead" else None
    print_jobs(page, errors, in_json=options.json, payload=options.payload)
    return OK


async def _show(options: argparse.Namespace, admin: QueueAdmin) -> int:
    jobs = await admin.jobs(options.queue)
    detail = await jobs.show(options.place)
    if detail is None:
        raise UseError(f"the queue {options.queue} neither has nor keeps a job at {options.place}")
    print_job(detail, in_json=options.json, payload=options.payload)
    return OK


async def _cancel(options: argparse.Namespace, admin: QueueAdmin) -> int:
    jobs = await admin.jobs(options.queue)
    fates = await jobs.cancel(options.places)
    print_fates(fates, in_json=options.json)
    if "cancelling" in fates.values() and not options.json:
        say(
            "cancelling: its consumer learns of it within a third of the lease, and cancels an async "
            "handler; a thread, a row in a pipe's batcher and the work of an event run to their end"
        )
    return OK


async def _ask_cancel(options: argparse.Namespace, admin: QueueAdmin) -> str:
    jobs = await admin.jobs(options.queue)
    found = [job for job in await jobs.find(options.places) if job.finished_at is None]
    leased = sum(job.state == "leased" for job in found)
    running = f", {leased} of them leased," if leased else ""
    return f"cancel {len(found)} jobs{running} of the queue {options.queue}?"


async def _retry(options: argparse.Namespace, admin: QueueAdmin) -> int:
    jobs = await admin.jobs(options.queue)
    print_fates(await jobs.retry(options.places), in_json=options.json)
    return OK


async def _redrive(options: argparse.Namespace, admin: QueueAdmin) -> int:
    jobs, progress = await admin.jobs(options.queue), Progress("jobs", "enqueued again")
    with progress.interruptions():
        await jobs.redrive(key=options.key, limit=options.limit, on_batch=progress.note)
    say(str(progress))
    return OK


async def _purge(options: argparse.Namespace, admin: QueueAdmin) -> int:
    jobs, progress = await admin.jobs(options.queue), Progress("jobs", "deleted")
    with progress.interruptions():
        await jobs.purge(
            options.what, key=options.key, older_than=options.older_than, on_batch=progress.note
        )
    say(str(progress))
    return OK


async def _ask_purge(options: argparse.Namespace, admin: QueueAdmin) -> str:
    await admin.jobs(options.queue)
    names = {"done": "handled jobs", "dead": "dead letters"}
    name = names.get(options.what, f"{options.what} jobs")
    key = "" if options.key is None else f" of the key {options.key}"
    age = "" if options.older_than is None else f" from before {options.older_than.isoformat()}"
    return f"delete the {name}{key}{age} of the queue {options.queue} for good?"


async def _retain(options: argparse.Namespace, admin: QueueAdmin) -> int:
    names = [*await admin.queues()] if options.queue is None else [options.queue]
    for name in names:
        jobs = await admin.jobs(name)
        gone = await jobs.apply_retention(
            keep_ids=options.keep_ids, keep_clients=options.keep_clients
        )
        say(
            f"{name}: {gone.done} handled jobs, {gone.dead} dead letters, {gone.cancelled} cancelled "
            f"jobs, {gone.ids} ids and {gone.clients} clients were deleted"
        )
    return OK


REPORTS: dict[str, Command[QueueAdmin]] = {
    "list": _list,
    "lag": _lag,
    "explain": _explain,
    "jobs": _jobs,
    "show": _show,
    "schedules": list_schedules,
}
CHANGES: dict[str, Command[QueueAdmin]] = {
    "create": _create,
    "alter": _alter,
    "pause": _pause,
    "resume": _resume,
    "drop": _drop,
    "unblock": _unblock,
    "park": _park,
    "unpark": _unpark,
    "move": _move,
    "cancel": _cancel,
    "retry": _retry,
    "redrive": _redrive,
    "purge": _purge,
    "retain": _retain,
    "schedule": put_schedule,
    "unschedule": delete_schedule,
    "run": run_schedule,
}
QUESTIONS: dict[str, Question[QueueAdmin]] = {
    "drop": _ask_drop,
    "unblock": _ask_unblock,
    "cancel": _ask_cancel,
    "purge": _ask_purge,
    "unschedule": ask_delete_schedule,
}
"""The confirmation of each command; `None` if nothing is lost."""


GROUP = Group(
    description=(
        "Create and change queues in PostgreSQL; show jobs and why they wait; cancel them or try them "
        "again; continue, park or skip keys, move slots between consumers, enqueue dead letters again, "
        "delete jobs; schedule periodic jobs."
    ),
    example=f"sluicegate queue lag {DSN}",
    options=queue_options,
    run=queue,
    extras={"asyncpg": "postgres"},
)
