"""The names of schema types in the admin API and in the binary protocol."""

from schemas.commands import SchemaData

TYPES = {
    "NONE": "None", "STRING": "String", "JSON": "Json", "PROTOBUF": "Protobuf", "AVRO": "Avro", "BOOLEAN": "Bool",
    "INT8": "Int8", "INT16": "Int16", "INT32": "Int32", "INT64": "Int64", "FLOAT": "Float", "DOUBLE": "Double",
    "DATE": "Date", "TIME": "Time", "TIMESTAMP": "Timestamp", "KEY_VALUE": "KeyValue", "INSTANT": "Instant",
    "LOCAL_DATE": "LocalDate", "LOCAL_TIME": "LocalTime", "LOCAL_DATE_TIME": "LocalDateTime",
    "PROTOBUF_NATIVE": "ProtobufNative", "AUTO_CONSUME": "AutoConsume", "EXTERNAL": "External", "BYTES": "None",
}  # fmt: skip
"""A type's name in the admin API → in the binary protocol."""

_NAMES = {protocol: name for name, protocol in TYPES.items() if name != "BYTES"}


def type_name(schema: SchemaData) -> str:
    """The name of a schema's type in the admin API."""
    return _NAMES.get(schema.type, schema.type.upper())
