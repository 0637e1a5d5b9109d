"""JSON with the id of its schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from ..._core import checks
from ..._core.values.encoding import to_json
from .codec import Codec, Frame, Subjects, framed
from .registry import Schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .registry import SchemaRegistry


class Json(Codec):
    """Records in JSON that begin with the id of a schema in a registry.

    The framing only: nothing is validated against the schema. Validate decoded values with a step:
    `check(validator)`. Decoding makes no request to the registry.

    Args:
        registry: the `SchemaRegistry` that has the schemas.
        schema: the JSON Schema of encoded values, as a dictionary or text. Default: the latest
            version of the subject.
        subjects: as in `Avro`; the record's name is the `title` of the schema.
        auto_register: whether to register `schema` if the subject lacks it; default `False`.

    Raises `ConfigError` for a bad argument. Connects to nothing.
    """

    _kind = "JSON"

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: str | Mapping[str, Any] | None = None,
        *,
        subjects: Subjects = "topic",
        auto_register: bool = False,
    ) -> None:
        super().__init__(registry, subjects=subjects, auto_register=auto_register)
        if schema is None and (subjects != "topic" or auto_register):
            raise checks.bad("schema", None, "must be given for these subjects= and auto_register=")
        self._schema = None if schema is None else Schema("JSON", _text(schema))
        title = None if self._schema is None else json.loads(self._schema.text).get("title")
        if subjects != "topic" and not isinstance(title, str):
            raise checks.bad("schema", schema, "must have a title for these subjects=")
        self._title = cast("str", title)

    def _read(self, frame: Frame) -> Any:
        return json.loads(frame.rest if frame.contents is None else frame.contents)

    def _write(self, subject: str, value: Any) -> bytes:
        schema = self._schema
        found = self._latest_id(subject) if schema is None else self._id_of(subject, schema)
        return framed(found, to_json(value))

    def _record_name(self) -> str:
        return self._title


def _text(schema: object) -> str:
    try:
        found = json.loads(schema) if isinstance(schema, str) else schema
        if isinstance(found, dict):
            return json.dumps(found)
    except (TypeError, ValueError) as error:
        raise checks.bad("schema", schema, "must be a JSON Schema") from error
    raise checks.bad("schema", schema, "must be a JSON Schema: a dictionary, or its text")
