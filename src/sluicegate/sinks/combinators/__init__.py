"""Sinks that combine several sinks."""

from ..._core.public import publish_all
from .fan_out import FanOut
from .router import Router

__all__ = ["FanOut", "Router"]

publish_all(__name__, "sluicegate")
