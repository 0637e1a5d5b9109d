"""Items encoded as lines of a bulk request: an action and its document."""

from __future__ import annotations

from functools import lru_cache
from itertools import repeat
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, cast

from ..._core.checks import bad
from ..._core.values.encoding import json_texts, to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..._core.values.encoding import Getter

OPERATIONS = ("index", "create", "update", "upsert", "delete")
VERSION_TYPES = ("external", "external_gte")
_AROUND = {"update": ('{"doc":', "}"), "upsert": ('{"doc":', ',"doc_as_upsert":true}')}
"""The text before and after the document."""
_NEEDS_ID = frozenset({"update", "upsert", "delete"})
_TAKES_VERSION = frozenset({"index", "delete"})
_LONGEST_ID = 512


class ActionMaker:
    """Encoder of an item's lines in the body.

    A server refuses a whole request for one malformed action, so known mistakes are detected here
    and fail only their own item.
    """

    def __init__(
        self,
        *,
        index: str | Getter,
        operation: str | Getter,
        id_of: Getter | None,
        document: Getter | None,
        routing: Getter | None,
        pipeline: str | Getter | None,
        version: Getter | None,
        version_type: str,
        retry_on_conflict: int,
    ) -> None:
        self._index = index
        self._operation = operation
        self._id = id_of
        self._document = document
        self._routing = routing
        self._pipeline = pipeline
        self._version = version
        self._version_type = version_type
        self._retries = retry_on_conflict

    @property
    def wants_keys(self) -> bool:
        """Whether ids are derived from the batch's keys."""
        return self._id is None

    def records(self, items: Sequence[Any], keys: Sequence[str | None]) -> list[bytes]:
        """The lines for each item; `keys` are the ids if no function returns one. Raises if any
        item cannot be encoded.
        """
        if self._operation == "delete" or not isinstance(self._operation, str):
            return list(map(self.record, items, keys))
        before, after = _AROUND.get(self._operation, ("", ""))
        documents = items if self._document is None else list(map(self._document, items))
        sources = json_texts(documents)
        if not all(source.startswith("{") for source in sources):
            raise TypeError("a document is not a JSON object")
        actions = map(self._action, repeat(self._operation), items, keys)
        return [
            f"{action}\n{before}{source}{after}\n".encode()
            for action, source in zip(actions, sources, strict=True)
        ]

    def record(self, item: Any, key: str | None = None) -> bytes:
        """The lines for one item. Raises if it cannot be encoded."""
        operation = self._operation if isinstance(self._operation, str) else self._operation(item)
        action = self._action(operation, item, key)
        if operation == "delete":
            return f"{action}\n".encode()
        before, after = _AROUND.get(operation, ("", ""))
        return b"".join((f"{action}\n{before}".encode(), self._source(item), f"{after}\n".encode()))

    def _action(self, operation: str, item: Any, key: str | None) -> str:
        index = self._index if isinstance(self._index, str) else self._index(item)
        pipeline = (
            self._pipeline
            if self._pipeline is None or isinstance(self._pipeline, str)
            else self._pipeline(item)
        )
        action = _head(operation, index, pipeline, self._retries)
        document_id = key if self._id is None else self._id(item)
        if document_id is not None:
            action += f',"_id":{_id(document_id)}'
        elif operation in _NEEDS_ID:
            raise ValueError(f"{operation!r} requires an id, and the item has none")
        if self._routing is not None and (routing := self._routing(item)) is not None:
            action += f',"routing":{encode_basestring(str(routing))}'
        if self._version is not None and (version := self._version(item)) is not None:
            action += _versioned(operation, version, self._version_type)
        return action + "}}"

    def _source(self, item: Any) -> bytes:
        document = item if self._document is None else self._document(item)
        source = document if isinstance(document, bytes) else to_json(document)
        if not source.startswith(b"{"):
            raise TypeError(
                f"a document is a JSON object; got {type(document).__name__}; pass document=, a "
                "function that returns one"
            )
        if b"\n" in source:
            raise ValueError("a document given as bytes must not contain a newline")
        return source


def join(records: Sequence[bytes]) -> bytes:
    """JoinBodies records to a bulk body; each record already ends in a newline."""
    return b"".join(records)


@lru_cache(maxsize=1024)
def _head(operation: str, index: str, pipeline: str | None, retries: int) -> str:
    """The beginning of an action's line; most items share it."""
    if operation not in OPERATIONS:
        raise ValueError(f"operation {operation!r}: must be one of {', '.join(OPERATIONS)}")
    if not isinstance(cast("object", index), str) or not index:
        raise ValueError(f"index {index!r}: must be a name")
    name = "update" if operation == "upsert" else operation
    head = f'{{"{name}":{{"_index":{encode_basestring(index)}'
    if name == "update" and retries:
        head += f',"retry_on_conflict":{retries}'
    if pipeline is not None and operation != "delete":
        head += f',"pipeline":{encode_basestring(pipeline)}'
    return head


def _id(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise TypeError(f"an id is text or a whole number, not {type(value).__name__}")
    text = str(value)
    if not 1 <= len(text.encode()) <= _LONGEST_ID:
        raise ValueError(f"an id has 1 to {_LONGEST_ID} bytes, not {len(text.encode())}")
    return encode_basestring(text)


def _versioned(operation: str, version: object, version_type: str) -> str:
    if operation not in _TAKES_VERSION:
        raise ValueError(f"{operation!r} takes no version")
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < 2**63:
        raise ValueError(f"a version is a whole number from 0 to 2**63 - 1, not {version!r}")
    return f',"version":{version},"version_type":"{version_type}"'


def check_needs(operation: object, *, has_id: bool, has_version: bool) -> None:
    """Raise `ConfigError` if every item would fail."""
    if not isinstance(operation, str):
        return
    if operation in _NEEDS_ID and not has_id:
        raise bad(
            "id", None, f"operation={operation!r} needs a field's name or a function of an item"
        )
    if has_version and operation not in _TAKES_VERSION:
        raise bad(
            "version", "...", f"operation={operation!r} takes no version; 'index' and 'delete' do"
        )
