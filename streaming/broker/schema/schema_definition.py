"""Whether a schema is well-formed (mirrors `SchemaDataValidator` and its classes, and what Avro's parser accepts).

AVRO, JSON and PROTOBUF schemas are defined in Avro. A definition of JSON may also be in the older JSON Schema.
"""

from typing import Any

import msgspec

from schemas.commands import SchemaData
from schemas.commands.nesting import is_deep
from streaming.broker.schema.protobuf_descriptors import ProtobufNativeSchemaData, check_root_message
from streaming.broker.schema.schema_compatibility import LONGEST_NAME, full_name, halves

CLIENT_SIDE = {"AutoConsume": "AUTO_CONSUME"}
"""Types that clients resolve themselves, by their names in the protocol → in the admin API."""

_IN_AVRO = {"Avro": "AVRO", "Json": "JSON", "Protobuf": "PROTOBUF"}
_ANY_BYTES = ("None", "KeyValue")
_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_JSON_SCHEMA_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null", "any")
_OF_HALVES = {
    "AVRO": "Avro", "JSON": "Json", "PROTOBUF": "Protobuf", "STRING": "String", "PROTOBUF_NATIVE": "ProtobufNative",
    "BYTES": "None", "NONE": "None",
}  # fmt: skip
"""The types of a key or value that are not primitive, by their names in a schema's properties."""


class InvalidSchema(Exception):
    """A schema is malformed. `reason` is what the admin API says, `detail` why, which clients are told as well."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason} caused by {detail}" if detail else reason)
        self.reason = reason


def validate(schema: SchemaData) -> None:
    """Raises `InvalidSchema`."""
    name = _IN_AVRO.get(schema.type)
    if name is not None:
        _validate_struct(schema, name)
    elif schema.type in CLIENT_SIDE:
        raise InvalidSchema(f"Schema {CLIENT_SIDE[schema.type]} is a client-side schema type")
    elif schema.type == "KeyValue":
        _validate_key_value(schema)
    elif schema.type == "ProtobufNative":
        _validate_protobuf_native(schema.schema_data)
    elif schema.type == "String":
        if schema.schema_data in (b"", b"null"):  # the Python client says that there is none
            return
        text = schema.schema_data.decode("utf-8", "replace")
        raise InvalidSchema(f"Invalid schema definition data for string schema : '{text}'")
    elif schema.type not in _ANY_BYTES and schema.schema_data:
        raise InvalidSchema(
            "Invalid schema definition data for primitive schemas :length of schema data should be zero, but "
            f"{len(schema.schema_data)} bytes is found"
        )


def _validate_key_value(schema: SchemaData) -> None:
    parts = list(halves(schema.schema_data))
    if len(schema.schema_data) < sum(4 + len(part) for part in parts):
        raise InvalidSchema("Invalid schema definition data for KEY_VALUE schema", "it is cut off")
    types = {pair.key: pair.value for pair in schema.properties}
    for part, role in zip(parts, ("key", "value"), strict=True):
        type_ = types.get(f"{role}.schema.type", "BYTES").upper()
        validate(SchemaData(schema_data=part, type=_OF_HALVES.get(type_, "Int8")))


def _validate_protobuf_native(data: bytes) -> None:
    reason = "deserialize ProtobufNative Schema failed"
    if is_deep(data):
        raise InvalidSchema(reason, "it nests too deep")
    try:
        check_root_message(msgspec.json.decode(data, type=ProtobufNativeSchemaData))
    except ValueError as error:
        raise InvalidSchema(reason, str(error)) from None


def _validate_struct(schema: SchemaData, name: str) -> None:
    reason = f"Invalid schema definition data for {name} schema"
    definition = _from_json(reason, schema.schema_data)
    try:
        _Avro().check(definition, "")
        if schema.type == "Avro" and isinstance(definition, list):
            raise _NotAvro("a union at the top")
    except _NotAvro as error:
        if schema.type != "Json" or not (definition is None or _is_json_schema(definition)):
            raise InvalidSchema(reason, f"org.apache.avro.SchemaParseException: {error}") from None


def _from_json(reason: str, data: bytes) -> Any:
    if is_deep(data):
        raise InvalidSchema(reason, "it nests too deep")
    try:
        return msgspec.json.decode(data)
    except ValueError as error:
        raise InvalidSchema(reason, f"it is not JSON: {error}") from None


def _is_json_schema(schema: Any) -> bool:
    """Whether a definition is in JSON Schema (draft 3), as Jackson reads it."""
    if not isinstance(schema, dict) or schema.get("type") not in _JSON_SCHEMA_TYPES:
        return False
    properties = schema.get("properties") or {}
    return (
        isinstance(schema.get("required", False), bool | None)
        and isinstance(properties, dict)
        and all(_is_json_schema(each) for each in properties.values())
    )


class _NotAvro(Exception):
    """A definition is not a schema of Avro. The text says why."""


class _Avro:
    """Avro's parser, as far as it refuses definitions."""

    def __init__(self) -> None:
        self._named: set[str] = set()

    def check(self, schema: Any, namespace: str) -> str:
        """The name of a schema's type, which is unique in a union. Raises `_NotAvro`."""
        if isinstance(schema, str):
            return self._reference(schema, namespace)
        if isinstance(schema, list):
            return self._union(schema, namespace)
        if not isinstance(schema, dict):
            raise _NotAvro("Schema not yet supported")
        type_ = schema.get("type")
        if not isinstance(type_, str):
            raise _NotAvro("No type")
        match type_:
            case "record" | "error":
                return self._record(schema, namespace)
            case "enum" | "fixed":
                name, _ = self._define(schema, namespace)
                if type_ == "enum":
                    _check_enum(schema)
                elif type(schema.get("size")) is not int or schema["size"] < 0:
                    raise _NotAvro("Invalid or no size")
                return name
            case "array" | "map":
                part = "items" if type_ == "array" else "values"
                if part not in schema:
                    raise _NotAvro(f"{type_.capitalize()} has no {part} type")
                self.check(schema[part], namespace)
                return type_
        if type_ not in _PRIMITIVES and (type_ := full_name(type_, namespace)) not in self._named:
            raise _NotAvro(f"Type not supported: {schema['type']}")
        return type_

    def _reference(self, name: str, namespace: str) -> str:
        if name in _PRIMITIVES:
            return name
        for each in (full_name(name, namespace), name):
            if each in self._named:
                return each
        raise _NotAvro(f'"{name}" is not a defined name')

    def _union(self, branches: list[Any], namespace: str) -> str:
        seen = set()
        for branch in branches:
            name = "union" if isinstance(branch, list) else self.check(branch, namespace)
            if name in seen or name == "union":
                raise _NotAvro(f"Duplicate in union or nested union: {name}")
            seen.add(name)
        return "union"

    def _record(self, schema: dict[str, Any], namespace: str) -> str:
        name, namespace = self._define(schema, namespace)
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise _NotAvro("Record has no fields")
        seen = set()
        for field in fields:
            if not isinstance(field, dict) or not isinstance(field.get("name"), str):
                raise _NotAvro("No field name")
            if "type" not in field:
                raise _NotAvro("No field type")
            _check_name(field["name"])
            self.check(field["type"], namespace)
            _check_aliases(field)
            order = field.get("order")
            if order is not None and str(order).lower() not in ("ascending", "descending", "ignore"):
                raise _NotAvro("No such order")
            if field["name"] in seen:
                raise _NotAvro(f"Duplicate field {field['name']} in record {name}")
            seen.add(field["name"])
        return name

    def _define(self, schema: dict[str, Any], namespace: str) -> tuple[str, str]:
        """Note the name of a type. Returns it, with the namespace of what is inside."""
        name = schema.get("name")
        if not isinstance(name, str):
            raise _NotAvro("No name in schema")
        own = schema.get("namespace")
        space = own if isinstance(own, str) else namespace
        if len(name) + len(space) >= LONGEST_NAME:
            raise _NotAvro(f"Names of more than {LONGEST_NAME} characters")
        full = full_name(name, space)
        space, _, simple = full.rpartition(".")
        _check_name(simple)
        _check_aliases(schema)
        if full in _PRIMITIVES:
            raise _NotAvro(f"Schemas may not be named after primitive types: {full}")
        if full in self._named:
            raise _NotAvro(f"Can't redefine: {full}")
        self._named.add(full)
        return full, space


def _check_enum(schema: dict[str, Any]) -> None:
    symbols = schema.get("symbols")
    if not isinstance(symbols, list) or not all(isinstance(each, str) for each in symbols):
        raise _NotAvro("Enum has no symbols")
    for symbol in symbols:
        _check_name(symbol)
    if len(set(symbols)) < len(symbols):
        raise _NotAvro("Duplicate enum symbol")
    if "default" in schema and schema["default"] not in symbols:
        raise _NotAvro("The default is not in the enum symbol set")


def _check_aliases(schema: dict[str, Any]) -> None:
    aliases = schema.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(each, str) for each in aliases):
        raise _NotAvro("aliases not an array of strings")


def _check_name(name: str) -> None:
    if not name or not (name[0].isalpha() or name[0] == "_"):
        raise _NotAvro(f"Illegal initial character: {name}")
    if not all(each.isalnum() or each == "_" for each in name):
        raise _NotAvro(f"Illegal character in: {name}")
