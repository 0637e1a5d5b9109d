"""Values for json and jsonb columns as JSON text. Pure.

1. `None` is NULL, and text is already JSON text. Any other value is encoded, as in a file.
2. In an array column every list or tuple is a dimension, as in any other array; the elements are
   encoded by (1).
3. A value without a JSON form fails its row alone.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ...._core.values.encoding import item_error, json_texts, to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ...._core.errors import PermanentError
    from .lazy import Row

_Made: TypeAlias = tuple[list[Any], dict[int, Exception]]
"""The values, and the error of each value that has no JSON form."""
_READY = frozenset({str, type(None)})


def documents(
    rows: Sequence[Row], places: Mapping[int, bool], names: Sequence[str]
) -> tuple[Sequence[Row], dict[int, PermanentError]]:
    """The rows with JSON text at these places, and an error for each row that has none.

    The values of `places` tell whether the column contains arrays. Rows of text and NULL are
    unchanged.
    """
    refused: dict[int, PermanentError] = {}
    for place, is_array in places.items():
        values: list[Any] = list(map(itemgetter(place), rows))
        if _READY.issuperset(map(type, values)):
            continue
        made, faults = _one_by_one(values, _array) if is_array else _texts(values)
        for index, fault in faults.items():
            what = f"cannot be stored: column {names[place]!r} cannot be encoded"
            refused.setdefault(index, item_error(what, fault))
        columns: list[Sequence[Any]] = [*zip(*rows, strict=True)]
        columns[place] = made
        rows = [*zip(*columns, strict=True)]
    return rows, refused


def _texts(values: list[Any]) -> _Made:
    """Encode the values of a column in one call, or one by one if that fails."""
    indices = [index for index, value in enumerate(values) if not _is_ready(value)]
    try:
        texts = json_texts([values[index] for index in indices])
    except Exception:  # an item is at fault
        return _one_by_one(values, _text)
    made = values.copy()
    for index, text in zip(indices, texts, strict=True):
        made[index] = text
    return made, {}


def _one_by_one(values: list[Any], encode: Callable[[Any], Any]) -> _Made:
    made, faults = values.copy(), dict[int, Exception]()
    for index, value in enumerate(values):
        try:
            made[index] = encode(value)
        except Exception as error:
            faults[index] = error
    return made, faults


def _text(value: Any) -> Any:
    return value if _is_ready(value) else to_json(value).decode()


def _array(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return list(map(_array, cast("Sequence[Any]", value)))
    return _text(value)


def _is_ready(value: object) -> bool:
    return value is None or isinstance(value, str)
