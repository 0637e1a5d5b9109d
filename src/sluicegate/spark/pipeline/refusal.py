"""Rows whose value could not be decoded, refused in front of their destination."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from ..._core.arrow import ArrowBatch
from ..._core.decorator import WrappingSink
from ..._core.errors import PermanentError
from ..._core.send import send
from ..._core.sink import WriteResult
from ..destination import refused_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..._core.batch import Batch
    from ..._core.sink import Capabilities

UNDECODABLE = "undecodable"
"""The column for the reason, the place and the bytes of such a value, as JSON; NULL in others."""


class RefuseUndecodable(WrappingSink[Any]):
    """Fails the rows that have a reason, and writes the others without its column."""

    @property
    def capabilities(self) -> Capabilities:
        """The wrapped sink's, except that a failed row does not stop a later one of its key."""
        return replace(super().capabilities, key_prefix_safe=False)

    def refused_columns(self, schema: Any) -> Mapping[str, str]:
        """Those of the wrapped sink, which does not get the column."""
        return refused_columns(self.inner, schema.remove(schema.names.index(UNDECODABLE)))

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Write the rows without a reason."""
        record_batch = cast("ArrowBatch", batch).record_batch
        reasons = record_batch.column(UNDECODABLE).to_pylist()
        errors: dict[int, BaseException] = {
            index: _error(text) for index, text in enumerate(reasons) if text is not None
        }
        good = [index for index in range(len(batch)) if index not in errors]
        rest = cast("ArrowBatch", batch.pick(good))
        without = ArrowBatch(
            rest.record_batch.drop_columns(UNDECODABLE),
            lineage=rest.lineage,
            delivery=rest.delivery,
            origins=rest.roots(),
            attempt=rest.attempt,
            keys=rest.keys,
        )
        sent = await send(self.inner, without)
        errors.update((good[index], error) for index, error in sent.items())
        return WriteResult.failed(batch, errors) if errors else None


def _error(text: str) -> PermanentError:
    found = json.loads(text)
    place = f"{found['topic']}/{found['partition']}@{found['offset']}"
    return PermanentError(f"the value of {place} cannot be decoded: {found['reason']}")
