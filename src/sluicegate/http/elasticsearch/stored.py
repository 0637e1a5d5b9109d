"""Stored documents whose ids or versions conflict with items of an unknown attempt. Pure.

1. A conflict of an item that an earlier attempt may have stored is a duplicate only if the stored
   document is the item's: the same `_source`, and with external versions the same version. A
   deletion is the item's if the document does not exist.
2. An item is also a duplicate if a later item of the same batch with the same id and a higher
   version holds the document: the batch itself has replaced it.
3. All other conflicts are judged by `KeyConflicts`: a newer version of another writer may or may not
   have replaced the item's.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ..._core.classify import caused
from ..._core.errors import PermanentError, SinkError, UnverifiableError
from ..._core.values.rows import KeyConflicts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


MOST_BYTES = 4_000_000
"""Documents looked up in one request, in bytes of the items'."""
_NOT_READ = (
    "an earlier attempt may have stored this document, and the stored one cannot be compared"
)


class ConflictError(PermanentError):
    """A conflict of an item that an earlier attempt may have stored; never leaves the sink.

    `index` is the name of the stored document's index, if the server reports it.
    """

    def __init__(self, error: Mapping[str, object]) -> None:
        super().__init__("the id or a newer version is taken")
        index = error.get("index")
        self.index = index if isinstance(index, str) and index else None


class Action(NamedTuple):
    """One item of a bulk request."""

    operation: str
    key: tuple[str, str, str]
    """The index, the id and the routing."""
    version: int | None
    source: bytes

    @classmethod
    def of(cls, record: bytes) -> Action:
        """Parse the lines of an item."""
        head, _, source = record.partition(b"\n")
        ((operation, said),) = json.loads(head).items()
        key = said["_index"], said.get("_id", ""), said.get("routing", "")
        return cls(operation, key, said.get("version"), source)

    def is_stored_as(self, found: Mapping[str, Any]) -> bool:
        """Whether an entry of the response to a look-up is what this action leaves behind."""
        if self.operation == "delete":
            return found.get("found") is not True
        if found.get("found") is not True:
            return False
        if self.version is not None and found.get("_version") != self.version:
            return False
        try:
            return _canonical(json.loads(self.source)) == _canonical(found["_source"])
        except (ValueError, RecursionError):
            return False


def _canonical(document: object) -> str:
    """The text of a document; equal for equal values, but not for 1, 1.0 and true."""
    return json.dumps(document, sort_keys=True)


def lookups(
    actions: Mapping[int, Action], taken: Mapping[int, ConflictError]
) -> Iterator[tuple[Sequence[int], bytes]]:
    """The bodies of requests for the stored documents, and the indices of their items."""
    part: list[int] = []
    size = 0
    for index in sorted(taken):
        part.append(index)
        size += len(actions[index].source) + 1_000
        if size >= MOST_BYTES:
            yield part, _lookup(actions, taken, part)
            part, size = [], 0
    if part:
        yield part, _lookup(actions, taken, part)


def _lookup(
    actions: Mapping[int, Action], taken: Mapping[int, ConflictError], part: Iterable[int]
) -> bytes:
    docs: list[dict[str, str]] = []
    for index in part:
        name, id_, routing = actions[index].key
        docs.append({"_index": taken[index].index or name, "_id": id_})
        if routing:
            docs[-1]["routing"] = routing
    return json.dumps({"docs": docs}).encode()


def found_in(body: bytes, size: int) -> list[dict[str, Any] | UnverifiableError]:
    """The entry of each document in the response, or the reason why it cannot be compared."""
    try:
        docs: object = json.loads(body)["docs"]
        if not isinstance(docs, list) or len(cast("list[object]", docs)) != size:
            raise ValueError("the answer has not one entry for each document")
        return [_document(each) for each in cast("list[Any]", docs)]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        return [_unverifiable(f"the answer cannot be read ({type(error).__name__})")] * size


def _document(found: dict[str, Any]) -> dict[str, Any] | UnverifiableError:
    if (error := found.get("error")) is not None:
        kind = cast("dict[str, Any]", error).get("type") if isinstance(error, dict) else None
        return _unverifiable(f"the server cannot read it ({kind or 'no reason given'})")
    if found.get("found") is True and not isinstance(found.get("_source"), dict):
        return _unverifiable("its index does not keep _source")
    return found


def _unverifiable(why: str) -> UnverifiableError:
    return UnverifiableError(f"{_NOT_READ}: {why}")


def unread(error: SinkError) -> SinkError:
    """The error of items whose look-up is refused for good."""
    made = _unverifiable("the look-up is refused; grant the credentials the right to read")
    return caused(made, error)


def judge(
    place: str,
    actions: Mapping[int, Action],
    found: Mapping[int, dict[str, Any] | SinkError],
    stored: Iterable[int],
) -> dict[int, SinkError | None]:
    """The error of each conflicting item, by the entries `found`; `None` for a duplicate. `stored`
    are the items that this attempt has stored.
    """
    same = {
        index: not isinstance(entry, SinkError) and actions[index].is_stored_as(entry)
        for index, entry in found.items()
    }
    newest: dict[tuple[str, str, str], tuple[int, int]] = {}
    """The highest version of the batch that is stored under each key, and its item."""
    held = {*stored, *(index for index, is_same in same.items() if is_same)}
    for index in held:
        _, key, version, _ = actions[index]
        if version is not None:
            newest[key] = max(newest.get(key, (-1, -1)), (version, index))
    conflicts = KeyConflicts(place, ("_index", "_id"))
    judgement: dict[int, SinkError | None] = {}
    for index in sorted({*held, *found}):
        _, key, version, _ = actions[index]
        if index not in found:
            conflicts.note_stored(key)
            continue
        entry = found[index]
        newer, at = newest.get(key, (-1, -1))
        if version is not None and newer > version and at > index:
            judgement[index] = None
        elif isinstance(entry, SinkError):
            judgement[index] = entry
        else:
            judgement[index] = conflicts.verdict(key, is_same=same[index])
    return judgement
