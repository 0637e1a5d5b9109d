"""Readiness and liveness of consumers over HTTP, as an ASGI application without dependencies.

| path | 200 | 503 |
|---|---|---|
| `/ready` | all consumers are ready | one is not |
| `/live` | all consumers are alive | one is not |

The body states the reason, as text, or as JSON if the request accepts it. `?verbose` adds
`explain()`, which contains keys of records.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import parse_qs

from .._core.checks import bad, flag
from .._core.errors import ClosedError
from .operated import Operated

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Scope: TypeAlias = MutableMapping[str, Any]
    Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
    Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

READY, LIVE = "/ready", "/live"

Verdict: TypeAlias = "tuple[str, str | None]"
"""A consumer's name, and why it fails a probe; `None` if it passes."""


def probes(*consumers: Operated, restart_when_stalled: bool = False) -> Probes:
    """Return an ASGI application that answers `GET /ready` and `GET /live` with 200 or 503.

    Args:
        consumers: at least one; the answer is 200 only if all of them pass.
        restart_when_stalled: whether a stalled consumer counts as not alive.

    Serve it on the event loop of the consumers: a blocked loop then does not answer, which fails
    the probe. Raises `ConfigError` for bad arguments.
    """
    if not consumers:
        raise bad("consumers", consumers, "must be at least one consumer")
    for consumer in consumers:
        if not isinstance(consumer, Operated):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise bad("consumers", consumer, "must be consumers")
    restart = flag("restart_when_stalled", restart_when_stalled)
    return Probes(consumers, restart_when_stalled=restart)


class Answer(NamedTuple):
    """A response."""

    status: int
    kind: str
    """The content type."""
    body: str


class Probes:
    """The ASGI application of `probes`."""

    def __init__(self, consumers: tuple[Operated, ...], *, restart_when_stalled: bool) -> None:
        self._consumers = consumers
        self._restart_when_stalled = restart_when_stalled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or an event of the server's lifespan."""
        if scope["type"] == "lifespan":
            await _take_part(receive, send)
        elif scope["type"] == "http":
            await _respond(send, self._answer(scope), has_body=scope["method"] != "HEAD")
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})

    def _answer(self, scope: Scope) -> Answer:
        path = _path_of(scope)
        if path not in {READY, LIVE}:
            return Answer(404, "text/plain", "not found: try /ready or /live\n")
        if scope["method"] not in {"GET", "HEAD"}:
            return Answer(405, "text/plain", "method not allowed: use GET\n")
        verdicts = [self._verdict(consumer, path) for consumer in self._consumers]
        told = [_explained(consumer) for consumer in self._consumers if _is_verbose(scope)]
        status = 200 if all(reason is None for _, reason in verdicts) else 503
        write = _json if _accepts_json(scope) else _text
        return write(status, path[1:], verdicts, told)

    def _verdict(self, consumer: Operated, path: str) -> Verdict:
        health = consumer.health()
        if path == READY:
            return consumer.name, health.not_ready
        stalled = health.stalled if self._restart_when_stalled else None
        return consumer.name, health.not_alive or stalled


def _explained(consumer: Operated) -> str:
    try:
        return str(consumer.explain())
    except ClosedError as error:
        return str(error)


def _text(status: int, probe: str, verdicts: list[Verdict], told: list[str]) -> Answer:
    lines = [f"{name}: {probe if why is None else f'not {probe}: {why}'}" for name, why in verdicts]
    return Answer(status, "text/plain; charset=utf-8", "\n".join([*lines, *told]) + "\n")


def _json(status: int, probe: str, verdicts: list[Verdict], told: list[str]) -> Answer:
    consumers: list[dict[str, object]] = [
        {"name": name, probe: why is None, "reason": why} for name, why in verdicts
    ]
    for consumer, explanation in zip(consumers, told, strict=False):
        consumer["explanation"] = explanation.splitlines()
    body = {probe: status == 200, "consumers": consumers}
    return Answer(status, "application/json", json.dumps(body) + "\n")


# -- ASGI ------------------------------------------------------------------------------------------


def _path_of(scope: Scope) -> str:
    """Return the path below the mount point; some servers keep the mount point as a prefix."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _is_verbose(scope: Scope) -> bool:
    return "verbose" in parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _accepts_json(scope: Scope) -> bool:
    accepts = [value for name, value in scope["headers"] if name.lower() == b"accept"]
    return any(b"application/json" in value for value in accepts)


async def _respond(send: Send, answer: Answer, *, has_body: bool) -> None:
    body = answer.body.encode(errors="backslashreplace")
    headers = [
        (b"content-type", answer.kind.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body if has_body else b""})


async def _take_part(receive: Receive, send: Send) -> None:
    """Answer the server's startup and shutdown; there is nothing to do."""
    while (event := (await receive())["type"]) != "lifespan.shutdown":
        await send({"type": f"{event}.complete"})
    await send({"type": "lifespan.shutdown.complete"})
