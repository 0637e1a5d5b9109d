"""Metadata and creation of topics, with aiokafka's admin client."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiokafka import errors as kafka
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from ..._core.text import text_of
from .closing import closed
from .errors import opening_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from .producer_options import ProducerOptions

_NO_RIGHT = kafka.TopicAuthorizationFailedError.errno
_MISSING = kafka.UnknownTopicOrPartitionError.errno
_THERE = {0, kafka.TopicAlreadyExistsError.errno}


class TopicRefused(Exception):
    """A broker does not allow the description or creation of a topic."""


class TopicAdmin:
    """An open admin client."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @classmethod
    @asynccontextmanager
    async def of(cls, options: ProducerOptions) -> AsyncIterator[TopicAdmin]:
        """Open a client. Raises `ConfigError` for a refused login, and `UnavailableError`."""
        client: Any = AIOKafkaAdminClient(**options.arguments())
        try:
            try:
                await client.start()
            except Exception as error:
                raise opening_error(error, options.bootstrap) from error
            yield cls(client)
        finally:
            await closed(client.close(), options.close_timeout)

    async def brokers(self) -> int:
        """Return the number of brokers. Raises errors of aiokafka."""
        return len((await self._client.describe_cluster())["brokers"])

    async def settings(self, topic: str) -> dict[str, str] | None:
        """Return the settings of a topic; `None` if it does not exist. Does not create it.

        Raises `TopicRefused` without the right to describe it, and errors of aiokafka.
        """
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (answer,) = await self._client.describe_configs([resource])
        code, _, _, _, entries = answer.resources[0]
        if code == _MISSING:
            return None
        if code == _NO_RIGHT:
            raise TopicRefused(topic)
        if code:
            raise kafka.for_code(code)(topic)
        return {entry[0]: entry[1] or "" for entry in entries}

    async def partitions(self, topic: str) -> int:
        """Return a topic's number of partitions; 0 if it is missing. Raises errors of aiokafka."""
        (found,) = await self._client.describe_topics([topic])
        code = found["error_code"]
        if code and code != _MISSING:
            raise kafka.for_code(code)(topic)
        return len(found["partitions"])

    async def create(
        self, topic: str, partitions: int, replication_factor: int, settings: Mapping[str, str]
    ) -> None:
        """Create a topic, unless it exists. Raises `TopicRefused` with the reason."""
        made = NewTopic(topic, partitions, replication_factor, topic_configs=dict(settings))
        try:
            answer = await self._client.create_topics([made])
        except kafka.KafkaError as error:
            raise TopicRefused(text_of(error)) from error
        for _, code, *told in answer.topic_errors:
            if code not in _THERE:
                refused = kafka.for_code(code)(f"{topic}: {told[0] if told else ''}")
                raise TopicRefused(text_of(refused)) from refused
