"""The brokers of the source's tests."""

from tests.sources.kafka.conftest import broker, own_broker

__all__ = ["broker", "own_broker"]
