"""Probes and metrics of all processes at one address.

| request | 200 |
|---|---|
| `GET /ready`, `/readyz` | every process is ready, but for those that have finished |
| `GET /live`, `/healthz` | every process is alive or being started; not while one waits for a restart |
| `GET /metrics` | always; each sample has a label `process`, which is its number |

A process that does not answer within 5 s is neither ready nor alive.
"""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from ...consumer.operating.probes import (
    LIVE,
    METRICS,
    NO_CLIENT,
    READY,
    Answer,
    respond,
    text_answer,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from prometheus_client import CollectorRegistry, Metric

    from ...consumer.operating.probes import Receive, Scope, Send
    from .supervise import Member

PATHS = {READY: READY, "/readyz": READY, LIVE: LIVE, "/healthz": LIVE, METRICS: METRICS}
PATIENCE = 5.0
"""Timeout in seconds for the response of a process."""


class GatheredProbes:
    """The ASGI application of the parent."""

    def __init__(self, members: list[Member]) -> None:
        self._members = members

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        answer = await self._answer(PATHS.get(scope["path"]))
        await respond(send, answer, has_body=scope["method"] != "HEAD")

    async def _answer(self, path: str | None) -> Answer:
        if path is None:
            return text_answer(404, "not found: try /ready, /live or /metrics")
        if path == METRICS and find_spec("prometheus_client") is None:
            return text_answer(501, NO_CLIENT)
        working = [member for member in self._members if not member.has_finished]
        answers = await asyncio.gather(*[_ask(member, path) for member in working])
        heard = {member.number: each for member, each in zip(working, answers, strict=True)}
        if path == METRICS:
            good = {number: text for number, (is_good, text) in heard.items() if is_good}
            return _merged(self._members, good)
        lines = [
            f"process {number}: {line}"
            for number, (_, text) in heard.items()
            for line in text.splitlines() or [path[1:]]
        ]
        return text_answer(
            200 if answers and all(is_good for is_good, _ in answers) else 503, *lines
        )


async def _ask(member: Member, path: str) -> tuple[bool, str]:
    """Return whether the process passes, and its response."""
    if not member.is_running:
        return False, f"not {path[1:]}: it is down, after {member.restarts.total} crashes"
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_unix_connection(str(member.socket))
            try:
                writer.write(f"GET {path} HTTP/1.0\r\nhost: member\r\n\r\n".encode())
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            finally:
                writer.close()
    except (FileNotFoundError, ConnectionRefusedError):
        return path == LIVE, "it is being started, or ends"
    except (TimeoutError, OSError) as error:
        return False, f"not {path[1:]}: no answer ({type(error).__name__})"
    return head.split(b" ", 2)[1:2] == [b"200"], body.decode(errors="replace")


def _merged(members: list[Member], texts: Mapping[int, str]) -> Answer:
    """Merge expositions: one family of each name, with the samples of all processes."""
    from prometheus_client import Metric, exposition
    from prometheus_client.parser import text_string_to_metric_families

    up = Metric("serve_process_up", "Whether the process runs", "gauge")
    restarts = Metric("serve_process_restarts", "Restarts after a crash", "counter")
    families = {up.name: up, restarts.name: restarts}
    for member in members:
        label = {"process": str(member.number)}
        up.add_sample(up.name, label, float(member.is_running))
        restarts.add_sample(f"{restarts.name}_total", label, float(member.restarts.total))
    for number, text in texts.items():
        for read in text_string_to_metric_families(text):
            new = Metric(read.name, read.documentation, read.type)
            family: Metric = families.setdefault(read.name, new)
            for sample in read.samples:
                labels = {**sample.labels, "process": str(number)}
                family.samples.append(sample._replace(labels=labels))
    merged = cast("CollectorRegistry", SimpleNamespace(collect=families.values))
    return Answer(200, exposition.CONTENT_TYPE_LATEST, exposition.generate_latest(merged))
