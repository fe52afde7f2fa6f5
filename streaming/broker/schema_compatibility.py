"""Whether a new schema is compatible with those of a topic (mirrors `SchemaCompatibilityCheck` and its classes).

Schemas that are defined in Avro (AVRO, JSON, PROTOBUF) are compared by Avro's schema resolution: what one writes, the other must be
able to read. Keys and values are compared on their own. Schemas of other types only need to be of the same type.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from schemas.commands import SchemaData
from schemas.commands.nesting import is_deep
from streaming.broker.config import SchemaCompatibilityStrategy

_IN_AVRO = ("Avro", "Json", "Protobuf")
_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""Primitive type of the writer → the others as which it can be read."""

_NAMED = ("record", "error", "enum", "fixed")

Definition = Any
"""An Avro schema as JSON."""


def incompatibility(
    known: Sequence[SchemaData], new: SchemaData, strategy: SchemaCompatibilityStrategy
) -> str | None:
    """Why `new` may not follow the `known` schemas, oldest first. None: it may."""
    if strategy == "ALWAYS_COMPATIBLE" or not known:
        return None
    against = known if strategy.endswith("_TRANSITIVE") else known[-1:]
    for each in against:
        if each.type != new.type:
            return f"Incompatible schema: exists schema type {each.type.upper()}, new schema type {new.type.upper()}"
    if strategy == "ALWAYS_INCOMPATIBLE":
        return "Schema compatibility strategy is ALWAYS_INCOMPATIBLE"
    kind = strategy.removesuffix("_TRANSITIVE")
    for each in against:
        for old_half, new_half in zip(_definitions(each), _definitions(new), strict=False):
            if old_half is None or new_half is None:
                continue
            reads = kind == "FORWARD" or _can_read(new_half, old_half)
            is_read = kind == "BACKWARD" or _can_read(old_half, new_half)
            if not (reads and is_read):
                return (
                    f"Error during schema compatibility check with strategy {strategy}: unable to read schema"
                )
    return None


def for_consumers(strategy: SchemaCompatibilityStrategy) -> SchemaCompatibilityStrategy:
    """The strategy by which the schema of a consumer is checked: it only reads."""
    return "BACKWARD" if strategy in ("BACKWARD", "FORWARD", "FORWARD_TRANSITIVE", "FULL") else strategy


def halves(data: bytes) -> Iterator[bytes]:
    """The definitions of the key and of the value in that of a schema of both: each with its size in 4 bytes; −1 for none."""
    for _ in range(2):
        size = max(int.from_bytes(data[:4], "big", signed=True), 0)
        yield data[4 : 4 + size]
        data = data[4 + size :]


def _definitions(schema: SchemaData) -> list[Definition | None]:
    """The definitions in Avro of a schema, or of its key and its value. None: it is not in Avro."""
    if schema.type == "KeyValue":
        types = {pair.key: pair.value.upper() for pair in schema.properties}
        names = (types.get("key.schema.type"), types.get("value.schema.type"))
        return [
            _parsed(half) if name in ("AVRO", "JSON", "PROTOBUF", None) else None
            for name, half in zip(names, halves(schema.schema_data), strict=True)
        ]
    return [_parsed(schema.schema_data) if schema.type in _IN_AVRO else None]


def _parsed(data: bytes) -> Definition | None:
    try:
        return None if is_deep(data) else msgspec.json.decode(data)
    except ValueError:
        return None


def _can_read(reader: Definition, writer: Definition) -> bool:
    """Whether data written with one schema can be read with another, as Avro resolves schemas."""
    return _Resolution(_names(reader, "", {}), _names(writer, "", {})).matches(reader, writer, set())


def _names(schema: Definition, namespace: str, found: dict[str, Definition]) -> dict[str, Definition]:
    """The types that a schema defines, by name and by full name."""
    if isinstance(schema, list):
        for branch in schema:
            _names(branch, namespace, found)
    elif isinstance(schema, dict):
        inner = schema.get("namespace", namespace)
        if schema.get("type") in _NAMED:
            name = str(schema.get("name", ""))
            found[name] = schema
            found[f"{inner}.{name}"] = schema
        for field in _fields(schema).values():
            _names(field.get("type"), inner, found)
        for part in ("items", "values", "type"):
            if isinstance(schema.get(part), dict | list):
                _names(schema[part], inner, found)
    return found


def _fields(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    fields = record.get("fields")
    found = fields if isinstance(fields, list) else []
    return {str(field.get("name")): field for field in found if isinstance(field, dict)}


class _Resolution:
    """Types by name, of the reader and of the writer."""

    def __init__(self, of_reader: dict[str, Definition], of_writer: dict[str, Definition]) -> None:
        self._of_reader, self._of_writer = of_reader, of_writer

    def matches(self, reader: Definition, writer: Definition, seen: set[tuple[str, str]]) -> bool:
        """`seen`: the records that are being compared, by name, so that a recursive type ends."""
        reader, writer = _resolved(reader, self._of_reader), _resolved(writer, self._of_writer)
        if isinstance(writer, list):
            return all(self.matches(reader, branch, seen) for branch in writer)
        if isinstance(reader, list):
            return any(self.matches(branch, writer, seen) for branch in reader)
        read_type, written_type = _type(reader), _type(writer)
        if read_type != written_type:
            return read_type in _PROMOTIONS.get(written_type, ())
        if not isinstance(reader, dict) or not isinstance(writer, dict):
            return True
        if read_type == "record":
            pair = (str(reader.get("name")), str(writer.get("name")))
            if pair in seen:
                return True
            seen = seen | {pair}
        return self._same_type(read_type, reader, writer, seen)

    def _same_type(
        self, type_: str, reader: dict[str, Any], writer: dict[str, Any], seen: set[tuple[str, str]]
    ) -> bool:
        match type_:
            case "array":
                return self.matches(reader.get("items"), writer.get("items"), seen)
            case "map":
                return self.matches(reader.get("values"), writer.get("values"), seen)
            case "fixed":
                return (reader.get("name"), reader.get("size")) == (writer.get("name"), writer.get("size"))
            case "enum":
                known = reader.get("symbols", [])
                return reader.get("name") == writer.get("name") and (
                    "default" in reader or all(symbol in known for symbol in writer.get("symbols", []))
                )
            case "record" | "error":
                written = _fields(writer)
                return all(self._field(name, field, written, seen) for name, field in _fields(reader).items())
        return True

    def _field(
        self, name: str, field: dict[str, Any], written: dict[str, dict[str, Any]], seen: set[tuple[str, str]]
    ) -> bool:
        aliases = field.get("aliases", [])
        source = next((written[each] for each in (name, *aliases) if each in written), None)
        if source is None:
            return "default" in field
        return self.matches(field.get("type"), source.get("type"), seen)


def _resolved(schema: Definition, names: dict[str, Definition]) -> Definition:
    """A schema without the name by which it is known."""
    while isinstance(schema, dict) and isinstance(schema.get("type"), dict | list):
        schema = schema["type"]
    return names.get(schema, schema) if isinstance(schema, str) else schema


def _type(schema: Definition) -> str:
    return str(schema.get("type")) if isinstance(schema, dict) else str(schema)
