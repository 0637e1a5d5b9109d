from collections.abc import Sequence
from typing import Any

codes: dict[str, int]

def encode(
    types: bytes, rows: Sequence[Sequence[Any]], start: int, stop: int, size: int, /
) -> tuple[bytes, int]: ...
