"""A source in memory: a log that outlives its consumers, and what a test does to it."""

from .log import MemoryLog
from .source import MemorySource

__all__ = ["MemoryLog", "MemorySource"]
