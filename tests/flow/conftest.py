"""The brokers of `tests/sources/kafka`, for pipes from them."""

from tests.sources.kafka.conftest import broker, own_broker

__all__ = ["broker", "own_broker"]
