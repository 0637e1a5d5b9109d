"""Items to streams and lists of Redis."""

from ..._core.public import publish
from .sink import RedisSink

__all__ = ["RedisSink"]

publish("penstock.sinks", *(globals()[name] for name in __all__))
