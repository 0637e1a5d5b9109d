"""Errors of Elasticsearch and OpenSearch that persist until an operator repairs the cause.

1. Errors of a missing, closed or blocked index and of a missing privilege are not caused by an
   item: `RefusedError`, with the index and the setting.
2. Some of them have status 400 and a type that faulty documents have, too, so their text decides: a
   missing pipeline, an alias without a write index, a data stream that accepts only `create`, too
   many shards for another index.
3. So has an index whose primary shard is on no node: status 503, after the server has waited for it.
4. A full disk is one of these errors: from the flood-stage watermark on, the server blocks the
   index (status 403 or 429).
5. A missing document, a version conflict and a field that does not fit the mapping concern only
   their items.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_BLOCKED = frozenset({"cluster_block_exception", "index_create_block_exception"})
_TYPE = re.compile(r'"type"\s*:\s*"([a-z_]{1,80})"')
_NAMED = re.compile(r"index \[([^\[\]]{1,255})\]|\[([^\[\]]{1,255})\] (?:index|blocked)")
_BLOCK = re.compile(r"\b[A-Z_]+/([0-9]{1,3})/")
_NO_HANDLER = re.compile(r'\{\s*"error"\s*:\s*"no handler found for uri')
_PARAMETER = re.compile(r'"reason"\s*:\s*"request \[[^\]]*\] contains unrecognized parameter')
_SETTINGS = {
    "4": "open {index}",
    "5": "set index.blocks.read_only of {index} to false",
    "6": "set cluster.blocks.read_only to false",
    "8": "set index.blocks.write of {index} to false",
    "9": "set index.blocks.metadata of {index} to false",
    "10": "set cluster.blocks.create_index to false, after freeing disk space if a full disk "
    "has set it",
    "12": "free disk space (or add some), then set index.blocks.read_only_allow_delete of "
    "{index} to null",
    "13": "set cluster.blocks.read_only_allow_delete to false",
}
"""The repair for each block, by the server's number for it."""
_BY_TEXT = (
    (
        "illegal_argument_exception",
        re.compile(r"pipeline with id \[([^\[\]]{1,255})\] does not exist"),
        'create the ingest pipeline "{0}", or correct pipeline= or default_pipeline of {index}',
    ),
    (
        "illegal_argument_exception",
        re.compile(r"no write index is defined for alias \[([^\[\]]{1,255})\]"),
        'make an index of the alias "{0}" its write index (is_write_index)',
    ),
    (
        "illegal_argument_exception",
        re.compile(r"only write ops with an op_type of create are allowed in data streams"),
        'pass operation="create": {index} is a data stream',
    ),
    (
        "validation_exception",
        re.compile(r"Validation Failed: .{1,300} maximum (?:\w+ )?shards open"),
        "remove indices, or raise cluster.max_shards_per_node, to let the cluster create {index}",
    ),
)
"""The type, the text and the repair of errors with status 400 for which no document is at fault."""


def repair_of_item(status: int, error: Mapping[str, Any], index: str | None) -> str | None:
    """The repair for an item's error, in one sentence; `None` if the item is at fault.

    `index` is the name in the item's action, if known; a name in the error takes precedence.
    """
    kind, reason = error.get("type"), error.get("reason")
    named = _index_of(error, reason) or index
    where = f'the index "{named}"' if named else "the index"
    if kind == "index_not_found_exception":
        return f"create {where}, or let action.auto_create_index create it"
    if kind == "index_closed_exception":
        return f"open {where}"
    if kind in _BLOCKED and status in {403, 429}:
        return _of_block(reason, where)
    if kind == "security_exception" and status in {401, 403}:
        return f"grant the credentials that were sent the right to write to {where}"
    if kind == "unavailable_shards_exception" and status == 503:
        return f"restore the shards of {where}; its cluster health names the missing ones"
    return _by_text(kind, reason, where) if status == 400 else None


def refusal_of_request(status: int, text: str) -> tuple[str, str | None]:
    """The error type in the response to a whole request, and the repair if the text is more
    specific than the status.
    """
    found = _TYPE.search(text)
    kind = "" if found is None else found[1]
    if kind in _BLOCKED and status in {403, 429}:
        return kind, _of_block(text, "the index")
    if status == 400 and _NO_HANDLER.match(text):
        return kind, "correct the path of the URL: the server has no _bulk there"
    if status == 400 and kind == "illegal_argument_exception" and _PARAMETER.search(text):
        return kind, "correct params=: the server does not know one of them"
    return kind, None


def _by_text(kind: object, reason: object, where: str) -> str | None:
    for known, pattern, repair in _BY_TEXT:
        if kind == known and isinstance(reason, str) and (found := pattern.match(reason)):
            return repair.format(*found.groups(), index=where)
    return None


def _of_block(reason: object, where: str) -> str:
    found = _BLOCK.search(reason) if isinstance(reason, str) else None
    return _SETTINGS.get(found[1] if found else "", "lift the block on {index}").format(index=where)


def _index_of(error: Mapping[str, Any], reason: object) -> str | None:
    index = error.get("index")
    if isinstance(index, str) and index:
        return index
    found = _NAMED.search(reason) if isinstance(reason, str) else None
    return None if found is None else found[1] or found[2]


def reasons(error: object, redact: Callable[[str], str], most: int) -> tuple[str, str]:
    """The server's reasons, outermost first: in full, and as types only, without values of items."""
    told: list[str] = []
    kinds: list[str] = []
    length = 0
    while isinstance(error, dict) and length <= most:
        named = cast("dict[str, Any]", error)
        said = [
            value
            for name in ("type", "reason")
            if isinstance(value := named.get(name), str) and value
        ]
        told.append(": ".join(said))
        kinds.extend(kind for kind in said[:1] if re.fullmatch(r"[a-z_]{1,80}", kind))
        length += len(told[-1])
        error = named.get("caused_by")
    if not told and isinstance(error, str):
        told.append(error)
    joined = redact("; caused by ".join(told))
    return joined if len(joined) <= most else f"{joined[:most]}...", "; caused by ".join(kinds)
