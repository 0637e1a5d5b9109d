"""Skip what cannot be had, unless somebody requires it."""

from __future__ import annotations

import os
from typing import NoReturn


class EmbeddedUnavailable(RuntimeError):
    """An embedded server cannot be started here. The message says why, and what would help."""


def is_required(what: str) -> bool:
    """Whether `PENSTOCK_REQUIRE` (names separated by commas, or `all`) says that `what` must be there."""
    required = {name.strip() for name in os.environ.get("PENSTOCK_REQUIRE", "").split(",")}
    return bool(required & {what, "all"})


def skip_or_fail(what: str, reason: str) -> NoReturn:
    """Skip the running test with `reason`; fail it where `PENSTOCK_REQUIRE` names `what`."""
    import pytest

    if is_required(what):
        pytest.fail(f"{what} is required and not available: {reason}")
    pytest.skip(f"{what} is not available: {reason}")
