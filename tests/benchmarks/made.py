"""A case whose turns are controlled by a test."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from benchmarks.harness import NS_PER_ITEM, Case, CaseUnavailableError, Contender

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.harness import Aim


def a_case(*contenders: Contender, targets: Sequence[Aim] = (), unavailable: str = "") -> Case:
    @contextlib.contextmanager
    def prepare(_: int) -> Iterator[Sequence[Contender]]:
        if unavailable:
            raise CaseUnavailableError(unavailable)
        yield contenders

    return Case("made", "A made-up case", prepare, 10, 10, NS_PER_ITEM, ("peer",), targets)
