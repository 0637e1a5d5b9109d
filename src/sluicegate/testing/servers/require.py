"""Skip tests whose server is not available, unless it is required."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator
    from contextlib import AbstractContextManager

T = TypeVar("T")


class EmbeddedUnavailable(RuntimeError):
    """An embedded server cannot be started. The message gives the reason and the remedy."""


def is_required(what: str) -> bool:
    """Whether `SLUICEGATE_REQUIRE` (names separated by commas, or `all`) requires `what`."""
    required = {name.strip() for name in os.environ.get("SLUICEGATE_REQUIRE", "").split(",")}
    return bool(required & {what, "all"})


def skip_or_fail(what: str, reason: str) -> NoReturn:
    """Skip the running test with `reason`; fail it if `SLUICEGATE_REQUIRE` names `what`."""
    import pytest

    if is_required(what):
        pytest.fail(f"{what} is required and not available: {reason}")
    pytest.skip(f"{what} is not available: {reason}")


@contextmanager
def there_or_skip(what: str, server: AbstractContextManager[T]) -> Generator[T]:
    """Run a server for a test or fixture; call `skip_or_fail` if it cannot start."""
    try:
        running = server.__enter__()
    except EmbeddedUnavailable as error:
        skip_or_fail(what, str(error))
    try:
        yield running
    finally:
        server.__exit__(None, None, None)
