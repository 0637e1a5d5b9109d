"""`sluicegate stream`: findings on standard output, messages on standard error.

1. `reset`, `skip` and `delete` ask for confirmation, outside the event loop, where Ctrl-C ends it.
2. The objects are looked up before the confirmation, so a wrong name is reported without one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...._core.errors import SluicegateError
from ...._core.text import text_of
from ....cli.confirm import confirmed
from ....cli.dlq.output import say
from ....cli.exits import BAD_USE, OK
from ....cli.named import UseError
from ....letters.text import printable, without_secrets
from ...streams.operating.admin import SubscriptionAdmin
from .messages import delete_messages
from .output import print_json, print_lag, print_lag_of_slots, print_report, report_as_dict
from .replay import replay

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Coroutine, Iterable
    from typing import Any

    from ...streams.operating.slot_stats import SubscriptionReport


def stream(options: argparse.Namespace) -> int:
    """Run a sub-command; return the exit code.

    0, 1 if a replay or a deletion is incomplete, 2 for bad use or a refusal. Raises
    `KeyboardInterrupt` after Ctrl-C; the server rolls the current statement back then.
    """
    simple: dict[str, Callable[[argparse.Namespace], Coroutine[Any, Any, int]]] = {
        "lag": _lag,
        "explain": _explain,
        "pause": _pause,
        "resume": _resume,
        "replay": replay,
    }
    asking: dict[str, Callable[[argparse.Namespace], int]] = {
        "reset": _reset,
        "skip": _skip,
        "delete": _delete,
    }
    try:
        if options.stream_command in asking:
            return asking[options.stream_command](options)
        return asyncio.run(simple[options.stream_command](options))
    except (UseError, SluicegateError, OSError) as error:
        text = text_of(error)
        say(without_secrets(text) if isinstance(error, OSError) else text)
        return BAD_USE


def _admin(options: argparse.Namespace) -> SubscriptionAdmin:
    return SubscriptionAdmin(options.dsn, schema=options.schema)


# -- looks -----------------------------------------------------------------------------------------


async def _lag(options: argparse.Namespace) -> int:
    most, in_json = options.count_to, options.json
    async with _admin(options) as admin:
        found = await admin.lag(options.subscription, count_to=most)
        if options.slots:
            slots = {name: await admin.slots(name, count_to=most) for name in found}
            print_lag_of_slots(slots, most, in_json=in_json)
        elif found or in_json:
            print_lag(found, most, in_json=in_json)
        else:
            say(f"the log {options.schema} has no subscription")
    return OK


async def _explain(options: argparse.Namespace) -> int:
    async with _admin(options) as admin:
        report = await admin.explain(options.subscription, count_to=options.count_to)
    if options.json:
        print_json(report_as_dict(report))
    else:
        print_report(report, options.count_to, all_slots=options.all)
    return OK


async def _report(options: argparse.Namespace) -> SubscriptionReport:
    async with _admin(options) as admin:
        return await admin.explain(options.subscription)


# -- changes ---------------------------------------------------------------------------------------


async def _pause(options: argparse.Namespace) -> int:
    async with _admin(options) as admin:
        await admin.pause(options.subscription, options.slots)
    say(f"{_which(options)} is paused; `sluicegate stream resume` continues it")
    return OK


async def _resume(options: argparse.Namespace) -> int:
    async with _admin(options) as admin:
        await admin.resume(options.subscription, options.slots)
        stats = (await admin.lag(options.subscription, count_to=1))[options.subscription]
    say(f"{_which(options)} is resumed")
    if stats.is_paused:
        say(f"{options.subscription} is paused as a whole: resume it without --slots")
    return OK


def _which(options: argparse.Namespace) -> str:
    if options.slots is None:
        return str(options.subscription)
    return f"{options.subscription}, slots {_shown(options.slots)},"


def _reset(options: argparse.Namespace) -> int:
    report = asyncio.run(_report(options))
    first = min((slot.position for slot in report.slots), default=0)
    last = max((slot.position for slot in report.slots), default=0)
    point = options.to if isinstance(options.to, str) else _point(options)
    question = (
        f"reset {options.subscription} to {point}? Its slots are at positions {first} to "
        f"{last}, which are stored nowhere else."
    )
    if not confirmed(printable(question), yes=options.yes):
        say("nothing was reset")
        return BAD_USE

    async def run() -> int:
        async with _admin(options) as admin:
            return await admin.reset(options.subscription, options.to, force=options.force)

    number = asyncio.run(run())
    say(f"{options.subscription} is reset: it continues at position {number}")
    return OK


def _point(options: argparse.Namespace) -> str:
    to = options.to
    return f"position {to}" if isinstance(to, int) else str(to.isoformat())


def _skip(options: argparse.Namespace) -> int:
    asyncio.run(_report(options))
    question = f"skip message {options.position} of {options.subscription} for good?"
    if not confirmed(printable(question), yes=options.yes):
        say("nothing was skipped")
        return BAD_USE

    async def run() -> None:
        async with _admin(options) as admin:
            found = await admin.skip(options.subscription, options.position, options.reason)
        say(
            f"{options.subscription} skips message {found.position}: {found.type}, version "
            f"{found.version} of the stream {found.stream}"
        )

    asyncio.run(run())
    return OK


def _delete(options: argparse.Namespace) -> int:
    wanted = (options.stream, options.older_than, options.before)
    has_messages = any(each is not None for each in wanted)
    if options.stream is not None and any(each is not None for each in wanted[1:]):
        raise UseError("--stream deletes a whole stream: omit --older-than and --before")
    if has_messages == (options.subscription is not None):
        raise UseError("name a subscription, or messages by --stream, --older-than or --before")
    if has_messages:
        return delete_messages(options)
    asyncio.run(_report(options))
    question = f"delete the subscription {options.subscription} and its positions for good?"
    if not confirmed(printable(question), yes=options.yes):
        say("nothing was deleted")
        return BAD_USE

    async def run() -> None:
        async with _admin(options) as admin:
            await admin.delete(options.subscription, force=options.force)

    asyncio.run(run())
    say(f"{options.subscription} is deleted; a process that serves it later starts it anew")
    return OK


def _shown(slots: Iterable[int]) -> str:
    return ", ".join(map(str, slots))
