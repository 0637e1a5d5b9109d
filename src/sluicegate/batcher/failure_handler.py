"""The program's own handling of failed items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FailureHandler = Callable[[list[Any], BaseException], object]
"""Called with items that have failed together, and their error."""
