"""A source in memory: a log that outlives its consumers, and control of it by a test."""

from ..._core.public import publish_all
from ..._core.source import Record, TopicPartition
from .log import MemoryLog
from .script import Crashed
from .source import MemorySource

__all__ = ["Crashed", "MemoryLog", "MemorySource", "Record", "TopicPartition"]

publish_all(__name__)
