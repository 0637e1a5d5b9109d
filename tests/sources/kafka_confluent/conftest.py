"""One Kafka for all tests of this folder."""

from __future__ import annotations

from tests.sources.kafka.conftest import broker, own_broker

__all__ = ["broker", "own_broker"]
