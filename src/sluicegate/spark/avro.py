"""Avro values with a schema registry, as functions of Spark's SQL.

1. The functions decode in Spark's Python workers, by the codec that consumers use: each record has the
   schema that it names, so a topic may have any number of them.
2. A worker keeps the schemas that it has loaded, for all its tasks. The codec is loaded when it is
   used: every worker imports this module.
3. A record that cannot be decoded fails the query, or with `try_` is NULL. A registry that does not
   answer fails the query with both, and Spark's next attempt asks it again.
"""

from __future__ import annotations

import json
from base64 import b64encode
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions
from pyspark.sql.types import StringType

from .._core.errors import PermanentError
from .._core.values.encoding import json_form

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

    from ..kafka import Avro


def register_avro(spark: SparkSession, registry: str) -> None:
    """Add the SQL functions `avro_to_json` and `try_avro_to_json` to a session.

    Both return the JSON text of a binary column whose values are Avro with the id of a schema in a
    registry, as in most topics, and NULL for NULL: `from_json(avro_to_json(value), 'id BIGINT')`.
    Decimals are text, times are in ISO 8601, bytes in base64. A value that cannot be decoded fails the
    query, and is NULL with `try_avro_to_json`.

    Args:
        spark: the session.
        registry: the URL of the registry, which executors must reach, with its user and password.

    Needs the extra `avro`, also in the executors. Raises `ConfigError` for a bad URL. Connects to nothing.
    """
    _codec(registry)  # reports a bad URL here
    for name, is_tried in (("avro_to_json", False), ("try_avro_to_json", True)):
        spark.udf.register(name, partial(_as_json, registry, is_tried), StringType())


def decoded_avro(value: Column, registry: str) -> Column:
    """The `json` of Avro values, or the `reason` why one cannot be decoded, as a struct."""
    function, kind = partial(_as_json_or_reason, registry), "json STRING, reason STRING"
    return functions.udf(function, kind, useArrow=False)(value)


def _json_form(value: object) -> Any:
    return b64encode(value).decode() if isinstance(value, bytes) else json_form(value)


_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_json_form)
"""NaN and infinities are as Spark reads them."""


@lru_cache(maxsize=8)
def _codec(registry: str) -> Avro:
    from ..kafka import Avro, SchemaRegistry

    return Avro(SchemaRegistry(registry))


def _as_json(registry: str, is_tried: bool, value: bytes | bytearray | None) -> str | None:
    if value is None:
        return None
    try:
        return _JSON.encode(_codec(registry).decode(bytes(value)))
    except PermanentError:
        if is_tried:
            return None
        raise


def _as_json_or_reason(registry: str, value: bytes | bytearray | None) -> tuple[str | None, ...]:
    try:
        return _as_json(registry, False, value), None
    except PermanentError as error:
        return None, str(error)
