"""Items to streams and lists of Redis."""

from .._core.public import publish_all
from .sink import RedisSink

__all__ = ["RedisSink"]

publish_all(__name__, "sluicegate.redis")
