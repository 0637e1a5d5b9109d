"""Avro, with fastavro.

1. fastavro's compiled reader ends the whole process, by a stack overflow, if a few kilobytes of a
   record are nested deeply. Only a recursive schema can nest them: its records are read by fastavro's
   reader in Python, which raises an exception.
2. A schema with an array of values that take no bytes, such as nulls, is refused: a record of ten bytes
   could have any number of them.
"""

from __future__ import annotations

import io
import json
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ..._core import checks
from ..._core.errors import PermanentError
from ..._core.extras import need
from .codec import Codec, Frame, Subjects, framed
from .registry import Schema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .registry import Reference, SchemaRegistry


class Avro(Codec):
    """Records in Avro whose schemas are in a registry; records are dictionaries.

    Logical types are Python values: `Decimal`, `date`, `time`, `UUID`, a `datetime` with a time
    zone for a timestamp, and one without for a local timestamp. An enum is a string, `fixed` is
    bytes, and a union is the value itself.

    Args:
        registry: the `SchemaRegistry` that has the schemas.
        schema: a schema of your own, as a dictionary or JSON text. Decoded values are converted
            from the writer's schema to this one, by Avro's rules: fields that it lacks are
            dropped, defaults are filled in. Encoded values have this schema, which has to be
            registered. Default: each record as it was written; and to encode, the latest version of
            the subject.
        subjects: the subject of an encoded record: `"topic"` (default) is `TOPIC-value` or
            `TOPIC-key`, `"record"` the full name of the record, `"topic-record"` is `TOPIC-NAME`.
            The last two need `schema`.
        auto_register: whether to register `schema` if the subject lacks it; default `False`, since
            in production schemas are usually deployed by a pipeline.

    If the schema has a time zone, a `datetime` without one is in the local time of the process.
    A field that is unknown to the schema, or missing without a default, is an error of its item.
    Raises `ConfigError` for a bad argument and `MissingExtra` without fastavro. Connects to
    nothing.
    """

    _kind = "AVRO"

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: str | Mapping[str, Any] | None = None,
        *,
        subjects: Subjects = "topic",
        auto_register: bool = False,
    ) -> None:
        need("fastavro", "avro", "Avro")
        import fastavro

        library: Any = fastavro  # its types are incomplete
        self._writer = library.schemaless_writer
        self._validate = library.validate
        super().__init__(registry, subjects=subjects, auto_register=auto_register)
        self._schema = self._own = None
        if schema is not None:
            self._schema, self._own = _own(schema)
            if subjects != "topic" and self._own["name"] == _WRAPPER:
                raise checks.bad("schema", schema, "must be a record for these subjects=")
        elif subjects != "topic" or auto_register:
            raise checks.bad("schema", None, "must be given for these subjects= and auto_register=")

    def _read(self, frame: Frame) -> Any:
        written, reader = self._parsed(frame.path)
        contents = io.BytesIO(frame.rest if frame.contents is None else frame.contents)
        value = reader(contents, written, self._own)
        if contents.read(1):
            raise ValueError("bytes are left")
        return value[_FIELD] if written["name"] == _WRAPPER else value

    def _write(self, subject: str, value: Any) -> bytes:
        if self._schema is None or self._own is None:
            schema_id = self._latest_id(subject)
            schema, _ = self._parsed(f"/schemas/ids/{schema_id}")
        else:
            schema_id, schema = self._id_of(subject, self._schema), self._own
        if schema["name"] == _WRAPPER:
            value = {_FIELD: value}
        contents = io.BytesIO()
        self._validate(value, schema)  # fastavro writes integers that are too large for their type
        self._writer(contents, schema, value, strict_allow_default=True)
        return framed(schema_id, contents.getvalue())

    def _record_name(self) -> str:
        assert self._own is not None
        return str(self._own["name"])

    def _parsed(self, path: str) -> _Parsed:
        return cast("_Parsed", self._registry.known(("avro", path), partial(self._load, path)))

    async def _load(self, path: str) -> _Parsed:
        schema = await self._registry.fetch(path, self._kind)
        try:
            parsed = _parse(json.loads(schema.text), schema.references)
            found = _Parsed(parsed, _reader_for(parsed))
        except Exception as error:
            told = f"the schema {path} of the registry cannot be read ({type(error).__name__})"
            raise PermanentError(told) from error
        known = parsed["__named_schemas"]
        if any(_has_boundless_array(each, known) for each in (parsed, *known.values())):
            raise PermanentError(
                f"the schema {path} has an array of values that take no bytes, so a short record could "
                "have any number of them"
            )
        return found


class _Parsed(NamedTuple):
    """A schema, and fastavro's function that reads values written with it."""

    schema: dict[str, Any]
    reader: Callable[..., Any]


def _reader_for(schema: dict[str, Any]) -> Callable[..., Any]:
    import fastavro
    from fastavro import _read_py  # not public; in fastavro 1.10 to 1.13

    library: Any = _read_py if _is_recursive([*schema["__named_schemas"].values()]) else fastavro
    return cast("Callable[..., Any]", library.schemaless_reader)


def _is_recursive(schema: Any, inside: frozenset[str] = frozenset()) -> bool:
    """Whether a part of a schema refers to a record that it is inside of."""
    if isinstance(schema, str):
        return schema in inside
    if isinstance(schema, list):
        return any(_is_recursive(each, inside) for each in cast("list[Any]", schema))
    inside |= {schema.get("name")}
    parts = [field["type"] for field in schema.get("fields", ())]
    parts += [schema[name] for name in ("type", "items", "values") if name in schema]
    return _is_recursive(parts, inside)


def _has_boundless_array(schema: Any, known: Mapping[str, Any]) -> bool:
    """Whether an array in a schema, apart from the names that it refers to, has items of no bytes."""
    if isinstance(schema, str):
        return False
    if isinstance(schema, list):
        return any(_has_boundless_array(each, known) for each in cast("list[Any]", schema))
    if schema["type"] == "array" and _takes_no_bytes(schema["items"], known):
        return True
    parts = [field["type"] for field in schema.get("fields", ())]
    parts += [schema[name] for name in ("type", "items", "values") if name in schema]
    return any(_has_boundless_array(each, known) for each in parts)


def _takes_no_bytes(
    schema: Any, known: Mapping[str, Any], inside: frozenset[str] = frozenset()
) -> bool:
    if isinstance(schema, str):
        if schema not in known:
            return schema == "null"
        return schema in inside or _takes_no_bytes(known[schema], known, inside | {schema})
    if isinstance(schema, list):
        return False  # a union has the number of its branch
    kind = schema["type"]
    if kind == "record":
        return all(_takes_no_bytes(each["type"], known, inside) for each in schema["fields"])
    return bool(schema["size"] == 0 if kind == "fixed" else kind == "null")


_WRAPPER, _FIELD = "SluicegateValue", "value"  # a namespace would apply to the names inside


def _own(schema: object) -> tuple[Schema, dict[str, Any]]:
    try:
        found = json.loads(schema) if isinstance(schema, str) else schema
        text = json.dumps(found)
        return Schema("AVRO", text), _parse(json.loads(text), ())
    except Exception as error:
        rule = f"must be an Avro schema, as a dictionary or JSON ({type(error).__name__}: {error})"
        raise checks.bad("schema", schema, rule) from error


def _parse(schema: Any, references: Sequence[Reference]) -> dict[str, Any]:
    """Parse a schema after those that it refers to.

    fastavro keeps the names that a schema refers to only in a record. So a schema that is no
    record, such as a union of them, becomes the only field of one, which has the same bytes.
    """
    import fastavro

    known: dict[str, Any] = {}
    _name(references, known)
    if not (isinstance(schema, dict) and cast("Any", schema).get("type") == "record"):
        fields: Any = [{"name": _FIELD, "type": schema}]
        schema = {"type": "record", "name": _WRAPPER, "fields": fields}
    return cast("dict[str, Any]", fastavro.parse_schema(cast("Any", schema), named_schemas=known))


def _name(references: Sequence[Reference], known: dict[str, Any]) -> None:
    import fastavro

    for reference in references:
        _name(reference.schema.references, known)
        if reference.name not in known and reference.schema.text:
            fastavro.parse_schema(json.loads(reference.schema.text), named_schemas=known)
