"""Skip what cannot be had, unless it is required."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator
    from contextlib import AbstractContextManager

T = TypeVar("T")


class EmbeddedUnavailable(RuntimeError):
    """An embedded server cannot be started here. The message says why, and what would help."""


def is_required(what: str) -> bool:
    """Whether `PENSTOCK_REQUIRE` (names separated by commas, or `all`) says that `what` must be
    there.
    """
    required = {name.strip() for name in os.environ.get("PENSTOCK_REQUIRE", "").split(",")}
    return bool(required & {what, "all"})


def skip_or_fail(what: str, reason: str) -> NoReturn:
    """Skip the running test with `reason`; fail it where `PENSTOCK_REQUIRE` names `what`."""
    import pytest

    if is_required(what):
        pytest.fail(f"{what} is required and not available: {reason}")
    pytest.skip(f"{what} is not available: {reason}")


@contextmanager
def there_or_skip(what: str, server: AbstractContextManager[T]) -> Generator[T]:
    """The server of this context, for as long as the test or fixture lasts; `skip_or_fail` where it
    cannot be started.
    """
    try:
        running = server.__enter__()
    except EmbeddedUnavailable as error:
        skip_or_fail(what, str(error))
    try:
        yield running
    finally:
        server.__exit__(None, None, None)
