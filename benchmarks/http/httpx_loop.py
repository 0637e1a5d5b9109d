"""Batches of items to an HTTP endpoint by hand: collect, encode, post."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import httpx

HEADERS = {"Content-Type": "application/x-ndjson"}


async def post_lines(client: httpx.AsyncClient, url: str, items: Iterable[Any], size: int) -> None:
    """POST `items` as NDJSON in batches of `size`, one after the other; without retries, size
    limits or counts.
    """
    batch: list[Any] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            await _post(client, url, batch)
            batch = []
    if batch:
        await _post(client, url, batch)


async def _post(client: httpx.AsyncClient, url: str, batch: list[Any]) -> None:
    body = "".join([json.dumps(item) + "\n" for item in batch]).encode()
    (await client.post(url, content=body, headers=HEADERS)).raise_for_status()
