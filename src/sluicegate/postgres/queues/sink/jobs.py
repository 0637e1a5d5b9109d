"""Items as jobs: the parts of each job, and an error for an item that cannot become one. Pure.

A job without its own id gets one derived from its item's deduplication token. It is the same in
every retry of the write, so jobs that an attempt without a response has enqueued are recognized.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID, uuid5

from ...._core.checks import bad
from ...._core.values.encoding import getter, item_error
from ...streams.messages.message import json_texts_of, message_id
from ..jobs.job import (
    LONGEST_PAYLOAD,
    JobColumns,
    due_text,
    headers_text,
    job_key,
    job_priority,
    queueing_lock,
)
from ..jobs.slots import ring_slot

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from ...._core.values.encoding import Getter
    from ..jobs.slots import SlotFunction

_NAMESPACE = UUID("3f8f3c0e-55b7-4c0c-9c69-0f5a6f6b7f0d")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobParts:
    """The functions that get the parts of a job from an item; `None` for a part that no job has."""

    key: Getter | None
    payload: Getter | None
    headers: Getter | None
    due: Getter | None
    priority: Getter | None
    id: Getter | None
    queueing_lock: Getter | None

    @classmethod
    def of(cls, **given: object) -> Self:
        """Validate the arguments. Raises `ConfigError`."""
        return cls(**cast("Any", {name: getter(name, value) for name, value in given.items()}))


class GivenJobs:
    """The jobs of a batch, the index of each job's item, and the errors of the other items."""

    def __init__(
        self, parts: JobParts, function: SlotFunction, items: Sequence[Any], tokens: Sequence[str]
    ) -> None:
        self.indices: list[int] = []
        self.columns = JobColumns()
        self.errors: dict[int, BaseException] = {}
        self._parts = parts
        self._function: SlotFunction = function
        payloads: list[Any] = []
        for index, item in enumerate(items):
            try:
                payloads.append(self._enter(index, item, tokens[index]))
            except Exception as error:
                self._cut(len(payloads))
                self.errors[index] = item_error("cannot become a job", error)
        self._encode(payloads)

    def _enter(self, index: int, item: Any, token: str) -> Any:
        """Add all parts except the payload, and return the payload."""
        parts, columns = self._parts, self.columns
        key = None if parts.key is None else parts.key(item)
        columns.keys.append(job_key(key))
        columns.slots.append(None if key is None else self._slot(key))
        columns.headers.append(None if parts.headers is None else headers_text(parts.headers(item)))
        columns.due.append(None if parts.due is None else due_text(parts.due(item)))
        priority = None if parts.priority is None else job_priority(parts.priority(item))
        columns.priorities.append(priority)
        found = None if parts.id is None else message_id(parts.id(item))
        columns.ids.append(str(uuid5(_NAMESPACE, token) if found is None else found))
        lock = parts.queueing_lock
        columns.locks.append(None if lock is None else queueing_lock(lock(item)))
        payload = item if parts.payload is None else parts.payload(item)
        self.indices.append(index)
        return payload

    def _slot(self, key: str | int) -> int | None:
        """The slot to send; the server itself computes SHA-256 from the key's text."""
        return None if self._function == "sha256" else ring_slot(key, self._function)

    def _cut(self, length: int) -> None:
        """Drop the parts of an item that has failed."""
        for each in fields(self.columns):
            del getattr(self.columns, each.name)[length:]
        del self.indices[length:]

    def _encode(self, payloads: list[Any]) -> None:
        texts, faults = json_texts_of("payload", payloads)
        self.columns.payloads.extend(texts)
        for place, text in enumerate(texts):
            if len(text) > LONGEST_PAYLOAD:
                rule = f"must be at most {LONGEST_PAYLOAD} characters of JSON long"
                faults[place] = bad("payload", f"{len(text)} characters", rule)
        if faults:
            for place, error in faults.items():
                self.errors[self.indices[place]] = item_error("cannot become a job", error)
            self.keep([place for place in range(len(texts)) if place not in faults])

    def keep(self, places: Sequence[int]) -> None:
        """Keep only the jobs at these places."""
        self.columns = self.columns.kept(places)
        self.indices = [self.indices[place] for place in places]
