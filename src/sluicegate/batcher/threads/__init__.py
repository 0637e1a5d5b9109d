"""A batcher for programs with threads."""

from ..._core.public import publish_all
from .blocking import BlockingBatcher

__all__ = ["BlockingBatcher"]

publish_all(__name__, "sluicegate")
