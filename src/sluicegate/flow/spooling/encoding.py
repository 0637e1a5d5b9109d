"""Items as bytes, and back.

Without `encode`, bytes are stored as they are. Other items are stored as JSON, in the form that they
have in a dead letter: an object of pydantic, msgspec, attrs or a dataclass as its fields, so that it
returns as a dictionary. `decode` turns that back into an object. A traced item is stored without
the context of its span.
"""

from __future__ import annotations

import json
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from ..._core.classify import caused
from ..._core.errors import PermanentError, SinkError
from ..._core.text import text_of
from ..._core.trace_context import Carried
from ...letters.items import MARKED, PLAIN, restored, stored
from .segment import Encoded

if TYPE_CHECKING:
    from collections.abc import Callable

    from .segment import Item

BYTES, JSON, JSON_MARKED, OWN = range(4)
"""The forms of a value: bytes, JSON, JSON with marks of exact values, the result of `encode`."""
_FORMS = {PLAIN: JSON, MARKED: JSON_MARKED}
_PLAIN = frozenset({str, int, bool, type(None)})
_TEXT = frozenset({str})
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class Codec:
    """Encodes and decodes the items of one spool."""

    def __init__(
        self,
        encode: Callable[[Any], bytes] | None,
        decode: Callable[[Any], Any] | None,
    ) -> None:
        self._encode = encode
        self._decode = decode

    def encoded(self, item: object, at: float) -> Encoded:
        """Encode an item that is stored `at` this time, in seconds since the epoch. Raises
        `PermanentError` for one that cannot be stored.
        """
        form, value = self._form_of(item.item if isinstance(item, Carried) else item)
        return Encoded(int(at * 1000), form, value, zlib.crc32(value))

    def _form_of(self, item: Any) -> tuple[int, bytes]:
        if self._encode is not None:
            return OWN, self._by_user(item)
        if isinstance(item, (bytes, bytearray)):
            return BYTES, bytes(item)
        kind = cast("type[Any]", type(item))
        if kind is dict:
            plain = cast("dict[Any, Any]", item)
            if _PLAIN.issuperset(map(type, plain.values())) and _TEXT.issuperset(map(type, plain)):
                with suppress(ValueError):  # half of a surrogate pair or a long integer is marked
                    return JSON, _to_json(plain).encode()
        value, form = stored(item)
        if form not in _FORMS:
            raise PermanentError(
                f"an item of type {kind.__name__} cannot be stored in a spool, since a part of "
                "it has no form in JSON; give Spool(encode=, decode=)"
            )
        return _FORMS[form], _to_json(value).encode()

    def _by_user(self, item: object) -> bytes:
        assert self._encode is not None
        try:
            value = self._encode(item)
        except SinkError:
            raise
        except Exception as error:
            raise caused(PermanentError(f"encode= raised {text_of(error)}"), error) from error
        if not isinstance(cast("object", value), (bytes, bytearray)):
            raise PermanentError(f"encode= returned {type(value).__name__}; it must return bytes")
        return bytes(value)

    def decoded(self, item: Item) -> Any:
        """Decode a stored item. Raises `PermanentError` for a damaged value; errors of `decode`."""
        if not item.is_intact:
            raise PermanentError(
                f"the value of item {item.offset} is damaged: its checksum differs"
            )
        value: Any = item.value
        if item.form in {JSON, JSON_MARKED}:
            value = json.loads(value)
        if item.form == JSON_MARKED:
            value = restored(value)
        return value if self._decode is None else self._decode(value)
