"""`sluicegate queue list`, `lag`, `lanes` and `explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....cli.dlq.output import say
from ....cli.exits import OK
from ..stream.output import print_json
from .output import print_lag, print_lanes, print_queues, print_report, report_as_dict

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable

    from ...queues.operating.admin import QueueAdmin



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


async def _lanes(options: argparse.Namespace, admin: QueueAdmin) -> int:
    keys, jobs = await admin.keys(options.queue), await admin.jobs(options.queue)
    stopped = await jobs.stopped(limit=options.limit)
    wanted = [each for each in stopped if options.state in {None, each.state}]
    lanes = await keys.lanes(options.state, limit=options.limit)
    print_lanes(lanes, wanted, in_json=options.json)
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


LOOKS: dict[str, Look] = {"list": _list, "lag": _lag, "lanes": _lanes, "explain": _explain}
