"""Requests about streams and consumers, as JSON, since the client's types lack priority groups.

A readable consumer is durable, pull-based, and has an acknowledgement for each message. In a new
consumer, one process at a time is *pinned*: only this process receives messages until it has sent
no request for the group's timeout, or is unpinned.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._core.errors import ConfigError
from ..client.answers import api_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from .options import ReadOptions

GROUP = "sluicegate"
"""The priority group of the consumers created here."""
NANOS = 1_000_000_000
PIN_SHARE = 0.5
"""Time without requests for which a process stays pinned, as a share of the `ack_wait`."""
NO_CONSUMER = 10_014
NO_STREAM = 10_059
CONSUMER_EXISTS = 10_148
GONE = frozenset({NO_CONSUMER, NO_STREAM})

_OTHER = "the consumer %r of the stream %r %s; give another name as durable=, or delete it"


class RequestRefused(Exception):
    """The server answered a request with an error."""

    def __init__(self, place: str, code: int, err_code: int, description: str) -> None:
        super().__init__(str(api_error(place, code, err_code, description)))
        self.code = err_code
        """The error code of JetStream."""


class ConsumerState(NamedTuple):
    """The state of a consumer, as reported by the server."""

    name: str
    created: str
    """Creation time: a different time means a different consumer."""
    delivered: int
    """The number of its last delivery."""
    floor: int
    """The sequence number up to which all messages are acknowledged."""
    pending: int
    """Messages that were delivered and not acknowledged."""
    unread: int
    """Messages that were not delivered yet."""
    read_through: int
    """The sequence number of the last delivered message."""
    pulls: int
    """Requests that wait for messages."""
    max_pending: int
    ack_wait: float
    """Seconds; the shortest wait if the consumer has several."""
    group: str | None
    """Its priority group, if it pins one process at a time."""
    pinned: str | None
    """The identity that is currently pinned."""
    pin_for: float
    """Seconds without a request after which it is no longer pinned."""

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> ConsumerState:
        """Build it from the server's response."""
        config = info["config"]
        waits = config.get("backoff") or [config.get("ack_wait", 30 * NANOS)]
        groups: list[str] = config.get("priority_groups") or []
        is_pinned = config.get("priority_policy") == "pinned_client"
        group = (GROUP if GROUP in groups else groups[0]) if is_pinned and groups else None
        states = {each.get("group"): each for each in info.get("priority_groups") or ()}
        return cls(
            info["name"],
            info["created"],
            info["delivered"]["consumer_seq"],
            info["ack_floor"]["stream_seq"],
            info["num_ack_pending"],
            info["num_pending"],
            info["delivered"]["stream_seq"],
            info["num_waiting"],
            config.get("max_ack_pending", 0),
            min(waits) / NANOS,
            group,
            states.get(group, {}).get("pinned_client_id") or None,
            config.get("priority_timeout", 0) / NANOS,
        )


class StreamApi:
    """Requests about one stream. They suspend until the response, and raise errors of the client,
    or `RequestRefused` if the server refuses.
    """

    def __init__(
        self, request: Callable[[str, bytes], Awaitable[bytes]], options: ReadOptions
    ) -> None:
        self._request = request
        self._options = options
        self._prefix = "$JS.API" if options.domain is None else f"$JS.{options.domain}.API"

    @property
    def prefix(self) -> str:
        """The prefix of request subjects."""
        return self._prefix

    async def stream(self) -> Mapping[str, Any]:
        """Return the server's description of the stream, with `config` and `created`."""
        return await self._ask(f"STREAM.INFO.{self._options.stream}")

    async def consumer(self, partition: int) -> ConsumerState:
        """Return the consumer of a partition. Raises `ConfigError` if it cannot be read."""
        options = self._options
        name = options.consumer(partition)
        info = await self._ask(f"CONSUMER.INFO.{options.stream}.{name}")
        if (reason := self._unfit(info["config"], partition)) is not None:
            raise ConfigError(_OTHER % (name, options.stream, reason))
        return ConsumerState.of(info)

    async def ensure(self, partition: int, first: int | None) -> ConsumerState:
        """Return the consumer of a partition. A missing one is created, if permitted, at `first`."""
        options = self._options
        try:
            return await self.consumer(partition)
        except RequestRefused as error:
            if error.code != NO_CONSUMER or not options.create:
                raise
        try:
            await self._create(partition, first)
        except RequestRefused as error:
            if error.code != CONSUMER_EXISTS:  # another member has created it first
                raise
        return await self.consumer(partition)

    async def _create(self, partition: int, first: int | None) -> None:
        options = self._options
        name, filters = options.consumer(partition), options.filters(partition)
        wait = round(options.ack_wait * NANOS)
        config: dict[str, object] = {
            "durable_name": name,
            "name": name,
            "ack_policy": "explicit",
            "ack_wait": wait,
            "max_ack_pending": options.max_pending,
            "max_deliver": -1,
            "replay_policy": "instant",
            "priority_groups": [GROUP],
            "priority_policy": "pinned_client",
            "priority_timeout": round(wait * PIN_SHARE),
            **options.where(partition, first),
        }
        if len(filters) == 1:
            config["filter_subject"] = filters[0]
        elif filters:
            config["filter_subjects"] = filters
        body = {"stream_name": options.stream, "config": config, "action": "create"}
        await self._ask(f"CONSUMER.CREATE.{options.stream}.{name}", body)

    async def unpin(self, name: str, group: str) -> None:
        """Unpin the process, so that another one can be pinned."""
        await self._ask(f"CONSUMER.UNPIN.{self._options.stream}.{name}", {"group": group})

    async def stored_at(self, first: int, subjects: list[str]) -> str | None:
        """Return the storage time of the first message from `first` on; `None` if there is none."""
        body: dict[str, object] = {"seq": first}
        if len(subjects) == 1:
            body["next_by_subj"] = subjects[0]
        try:
            answer = await self._ask(f"STREAM.MSG.GET.{self._options.stream}", body)
        except RequestRefused:
            return None
        told: str = answer["message"]["time"]
        return told

    async def _ask(self, what: str, body: Mapping[str, object] | None = None) -> Mapping[str, Any]:
        subject = f"{self._prefix}.{what}"
        payload = b"" if body is None else json.dumps(body).encode()
        answer: Mapping[str, Any] = json.loads(await self._request(subject, payload))
        if (error := answer.get("error")) is not None:
            place = f"the stream {self._options.stream!r}"
            code, err_code = error.get("code", 0), error.get("err_code", 0)
            raise RequestRefused(place, code, err_code, error.get("description", ""))
        return answer

    def _unfit(self, config: Mapping[str, Any], partition: int) -> str | None:
        """Return the reason why a consumer with these settings cannot be read; `None` if it can."""
        filters = config.get("filter_subjects") or [config.get("filter_subject") or ">"]
        wanted = self._options.filters(partition)
        if config.get("deliver_subject"):
            return "pushes its messages, but this source pulls"
        if config.get("ack_policy") != "explicit":
            return f"has the ack policy {config.get('ack_policy')!r}, not 'explicit'"
        if not config.get("durable_name"):
            return "is not durable"
        if wanted and sorted(wanted) != sorted(filters):
            return f"reads {', '.join(filters)}, not {', '.join(wanted)}"
        if config.get("headers_only"):
            return "delivers headers only"
        return None
