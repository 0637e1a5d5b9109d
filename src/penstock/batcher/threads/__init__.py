"""A batcher for programs with threads."""

from ..._core.public import publish
from .blocking import BlockingBatcher

__all__ = ["BlockingBatcher"]

publish("penstock", BlockingBatcher)
