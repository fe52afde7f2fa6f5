"""Whether a new schema is compatible with those of a topic (mirrors `SchemaCompatibilityCheck` and its classes).

Schemas that are defined in Avro (AVRO, JSON, PROTOBUF) are compared by Avro's schema resolution: what one writes, the other must be
able to read. A schema of PROTOBUF_NATIVE keeps its root message. Keys and values are compared on their own, and keep their types. Schemas
of other types only need to be of the same type.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from schemas.commands import SchemaData
from schemas.commands.nesting import is_deep
from streaming.broker.config import SchemaCompatibilityStrategy
from streaming.broker.schema.schema_types import type_name

_IN_AVRO = ("AVRO", "JSON", "PROTOBUF")
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
"""An Avro schema as JSON, whose objects and arrays are `_Type` and `_Union`."""


class _Type(dict[str, Any]):
    """A type. It equals itself alone: two types with the same words are two. `full_name`: empty if it has none."""

    full_name = ""
    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]


class _Union(list[Any]):
    """An array, such as the branches of a union. It equals itself alone."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]


def _definition(value: Any) -> Definition:
    if isinstance(value, dict):
        return _Type((name, _definition(each)) for name, each in value.items())
    return _Union(map(_definition, value)) if isinstance(value, list) else value


LONGEST_NAME = 1024
"""The characters of a type's name with its namespace. Each type inside a namespace has its name."""

MOST_PAIRS = 4_000
"""The pairs of types of two schemas that are compared at most. Branches of two unions are compared each with each, so the size of a
schema is no bound."""

MOST_IN_ALL = 50_000
"""The same for all schemas with which a new one is compared. Reading `_BYTES_PER_PAIR` of a schema counts as a pair."""

_BYTES_PER_PAIR = 128


class TooComplex(Exception):
    """There are too many types to compare. The text says how many are not."""


class _Budget:
    """How many pairs may still be compared."""

    def __init__(self) -> None:
        self.left = MOST_IN_ALL

    def spend(self, pairs: int) -> None:
        """Raises `TooComplex`."""
        self.left -= pairs
        if self.left < 0:
            raise TooComplex(f"more than {MOST_IN_ALL} pairs of types would have to be compared in all")


_OTHER_TYPES = (
    "Key schemas or Value schemas are different schema type, from key schema type is {} and to key schema is {}, "
    "from value schema is {} and to value schema is {}"
)
_OTHER_ROOT = "Protobuf root message change is not allowed under the '{}' strategy. Original message name: '{}', new message name: '{}'."


def incompatibility(
    known: Sequence[SchemaData], new: SchemaData, strategy: SchemaCompatibilityStrategy
) -> str | None:
    """Why `new` may not follow the `known` schemas, oldest first. None: it may."""
    if strategy == "ALWAYS_COMPATIBLE" or not known:
        return None
    against = known if strategy.endswith("_TRANSITIVE") else known[-1:]
    for each in against:
        if each.type != new.type:
            return (
                f"Incompatible schema: exists schema type {type_name(each)}, new schema type {type_name(new)}"
            )
    kind = strategy.removesuffix("_TRANSITIVE")
    error = f"Error during schema compatibility check with strategy {strategy}"
    new_parts, budget = _parts_of(new), _Budget()
    try:
        for each in reversed(against):
            same = each.schema_data == new.schema_data
            if same and kind == strategy != "ALWAYS_INCOMPATIBLE":
                continue  # quirk: types of keys and values that have no definition may change, unless the strategy is transitive
            budget.spend(1 + len(each.schema_data) // _BYTES_PER_PAIR)
            old_parts = _parts_of(each)
            pairs = list(zip(old_parts, new_parts, strict=True))
            if any(old.type != part.type for old, part in pairs):
                return _OTHER_TYPES.format(*(part.type for pair in pairs for part in pair))
            if strategy == "ALWAYS_INCOMPATIBLE":
                return _never_follows(old_parts[0])
            for old, part in pairs:
                if old.root_message != part.root_message:
                    return _OTHER_ROOT.format(strategy, old.root_message, part.root_message)
                if same or old.definition is None or part.definition is None:
                    continue
                reads = kind == "FORWARD" or _can_read(part.definition, old.definition, budget)
                is_read = kind == "BACKWARD" or _can_read(old.definition, part.definition, budget)
                if not (reads and is_read):
                    return f"{error}: unable to read schema"
    except TooComplex as why:
        return f"{error}: {why}"
    return None


def _never_follows(part: "_Part") -> str:
    """Why no other schema follows one under ALWAYS_INCOMPATIBLE. Each kind of schema says it in other words."""
    if part.root_message is not None:
        return "Unknown SchemaCompatibilityStrategy."
    if part.definition is not None:
        return (
            "Error during schema compatibility check with strategy ALWAYS_INCOMPATIBLE: unable to read schema"
        )
    return "Schema compatibility strategy is ALWAYS_INCOMPATIBLE"


def for_consumers(strategy: SchemaCompatibilityStrategy) -> SchemaCompatibilityStrategy:
    """The strategy by which the schema of a consumer is checked. It only reads; but the other transitive strategies hold as they are."""
    return "BACKWARD" if strategy in ("BACKWARD", "FORWARD", "FORWARD_TRANSITIVE", "FULL") else strategy


def halves(data: bytes) -> Iterator[bytes]:
    """The definitions of the key and of the value in that of a schema of both: each with its size in 4 bytes; −1 for none."""
    for _ in range(2):
        size = max(int.from_bytes(data[:4], "big", signed=True), 0)
        yield data[4 : 4 + size]
        data = data[4 + size :]


class _Part(NamedTuple):
    """A schema, or its key or value. `type`: its name in the admin API. `definition`: None if it is not in Avro. `root_message`: the name of
    that of PROTOBUF_NATIVE."""

    type: str
    definition: Definition | None = None
    root_message: str | None = None


def _parts_of(schema: SchemaData) -> list[_Part]:
    """The key and the value of a schema, or the schema itself."""
    if schema.type != "KeyValue":
        return [_part(type_name(schema), schema.schema_data)]
    types = {pair.key: pair.value.upper() for pair in schema.properties}
    return [
        _part(types.get(f"{role}.schema.type", "BYTES"), half)
        for role, half in zip(("key", "value"), halves(schema.schema_data), strict=True)
    ]


def _part(type_: str, data: bytes) -> _Part:
    if type_ == "PROTOBUF_NATIVE":
        found = _parsed(data)
        return _Part(
            type_, root_message=str(found.get("rootMessageTypeName")) if isinstance(found, dict) else None
        )
    return _Part(type_, _parsed(data) if type_ in _IN_AVRO else None)


def _parsed(data: bytes) -> Definition | None:
    try:
        return None if is_deep(data) else _definition(msgspec.json.decode(data))
    except ValueError:
        return None


def _can_read(reader: Definition, writer: Definition, budget: _Budget) -> bool:
    """Whether data written with one schema can be read with another, as Avro resolves schemas.

    Raises `TooComplex`.
    """
    return _Resolution(_names(reader, "", {}), _names(writer, "", {})).can_read(reader, writer, budget)


def _names(schema: Definition, namespace: str, found: dict[str, Definition]) -> dict[str, Definition]:
    """The types that a schema defines, by name and by full name."""
    if isinstance(schema, list):
        for branch in schema:
            _names(branch, namespace, found)
    elif isinstance(schema, _Type):
        own = schema.get("namespace", namespace)
        inner = own if isinstance(own, str) else str(own)[:LONGEST_NAME]
        if schema.get("type") in _NAMED:
            name = str(schema.get("name", ""))
            found[_simple_name(schema)] = schema
            if len(inner) + len(name) < LONGEST_NAME:
                schema.full_name = full_name(name, inner)
                found[schema.full_name] = schema
                inner = schema.full_name.rpartition(".")[0]
        for field in _fields(schema).values():
            _names(field.get("type"), inner, found)
        for part in ("items", "values", "type"):
            if isinstance(schema.get(part), dict | list):
                _names(schema[part], inner, found)
    return found


def full_name(name: str, namespace: str) -> str:
    """The name of a type with its namespace."""
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _fields(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {str(field.get("name")): field for field in _list(record.get("fields")) if isinstance(field, dict)}


def _list(value: Any) -> list[Any]:
    """A part of a schema that nobody has validated."""
    return value if isinstance(value, list) else []


_Pair = tuple[Definition, Definition]
"""What reads, and what was written."""

_LOOKED_AT = 8
"""So many parts of types that are looked at take the time of comparing a pair."""


def _size(schema: Definition) -> int:
    """The parts that a type has of its own."""
    if isinstance(schema, list):
        return len(schema)
    return len(_list(schema.get("fields"))) if isinstance(schema, dict) else 0


def _is_alike(pair: _Pair) -> bool:
    """Whether two types are probably versions of one, so that it pays to compare them first."""
    reader, writer = pair
    if isinstance(reader, dict) and isinstance(writer, dict):
        return (reader.get("type"), reader.get("name")) == (writer.get("type"), writer.get("name"))
    return _type(reader) == _type(writer)


class _Resolution:
    """Compares the types of a reader and of a writer, which refer to each other by name.

    Types may be recursive, and a type may be named in many places. So what must hold of a pair is noted once: that all of some other pairs
    match, or one of several alternatives. A pair that does not match takes those with it that need it, unless they have another
    alternative. What is left matches, which is how Avro compares recursive types.
    """

    def __init__(self, of_reader: dict[str, Definition], of_writer: dict[str, Definition]) -> None:
        self._of_reader, self._of_writer = of_reader, of_writer
        self._fields_of: dict[Definition, dict[str, dict[str, Any]]] = {}
        self._records_of: dict[Definition, dict[str, _Type]] = {}

    def can_read(self, reader: Definition, writer: Definition, budget: _Budget) -> bool:
        """See `_can_read`."""
        root = self._resolved(reader, writer)
        seen: set[_Pair] = set()
        failed: set[_Pair] = set()
        needed_by: dict[_Pair, list[_Pair]] = {}
        alternatives: dict[_Pair, Iterator[_Pair]] = {}
        waiting, wrong, left = [root], list[_Pair](), MOST_PAIRS

        def require(key: _Pair, pair: _Pair) -> None:
            needed_by.setdefault(pair, []).append(key)
            if pair in failed:
                lacking.append(key)
            elif pair not in seen:
                waiting.append(pair)

        lacking: list[_Pair] = []  # those that need a pair that does not match
        while waiting or wrong or lacking:
            if lacking:
                key = lacking.pop()
                alternative = next(alternatives.get(key, iter(())), None)
                if alternative is None:
                    wrong.append(key)
                else:
                    left -= 1
                    budget.spend(1)
                    require(key, alternative)
            elif wrong:
                key = wrong.pop()
                if key not in failed:
                    failed.add(key)
                    lacking += needed_by.pop(key, ())
            else:
                key = waiting.pop()
                if key in seen:
                    continue
                seen.add(key)
                pairs, any_will_do = self._needs(*key)
                cost = 1 + (0 if any_will_do else len(pairs)) + sum(map(_size, key)) // _LOOKED_AT
                left -= cost
                budget.spend(cost)
                if any_will_do:
                    alternatives[key] = iter(pairs)
                    lacking.append(key)
                else:
                    for each in pairs:
                        require(key, each)
            if left < 0:
                raise TooComplex(f"more than {MOST_PAIRS} pairs of types would have to be compared")
        return root not in failed

    def _needs(self, reader: Definition, writer: Definition) -> tuple[list[_Pair], bool]:
        """The pairs that must match, and whether one of them is enough. Any of none: these two don't match."""
        if isinstance(writer, list):
            return [self._resolved(reader, branch) for branch in writer], False
        if isinstance(reader, list):
            if (record := self._records(reader).get(_full_name_of_record(writer))) is not None:
                return [(record, writer)], True  # no other branch will do
            alike = sorted(reader, key=lambda branch: not _is_alike(self._resolved(branch, writer)))
            return [self._resolved(branch, writer) for branch in alike], True
        type_, written = _type(reader), _type(writer)
        if type_ != written:
            return [], type_ not in _PROMOTIONS.get(written, ())
        if not isinstance(reader, dict) or not isinstance(writer, dict):
            return [], False
        match type_:
            case "array" | "map":
                part = "items" if type_ == "array" else "values"
                return [self._resolved(reader.get(part), writer.get(part))], False
            case "enum" | "fixed":
                # quirk: an enum's symbols may differ. One that the reader does not have is an error only once it is read.
                same_size = type_ == "enum" or reader.get("size") == writer.get("size")
                return [], not (same_size and _simple_name(reader) == _simple_name(writer))
            case "record" | "error":
                return self._needs_of_fields(self._fields(reader), self._fields(writer))
        return [], False

    def _fields(self, record: dict[str, Any]) -> dict[str, dict[str, Any]]:
        found = self._fields_of.get(record)
        if found is None:
            found = self._fields_of[record] = _fields(record)
        return found

    def _records(self, union: list[Any]) -> dict[str, _Type]:
        """The records among a reader's branches, by full name."""
        found = self._records_of.get(union)
        if found is None:
            branches = (_by_name(each, self._of_reader) for each in union)
            found = self._records_of[union] = {
                each.full_name: each for each in branches if _full_name_of_record(each)
            }
        return found

    def _needs_of_fields(
        self, fields: dict[str, dict[str, Any]], written: dict[str, dict[str, Any]]
    ) -> tuple[list[_Pair], bool]:
        pairs = []
        for name, field in fields.items():
            names = (name, *map(str, _list(field.get("aliases"))))
            source = next((written[each] for each in names if each in written), None)
            if source is not None:
                pairs.append(self._resolved(field.get("type"), source.get("type")))
            elif "default" not in field:
                return [], True
        return pairs, False

    def _resolved(self, reader: Definition, writer: Definition) -> _Pair:
        return _by_name(reader, self._of_reader), _by_name(writer, self._of_writer)


def _by_name(schema: Definition, names: dict[str, Definition]) -> Definition:
    """A schema without the name by which it is known."""
    while isinstance(schema, dict) and isinstance(schema.get("type"), dict | list):
        schema = schema["type"]
    return names.get(schema, schema) if isinstance(schema, str) else schema


def _full_name_of_record(schema: Definition) -> str:
    return schema.full_name if isinstance(schema, _Type) and schema.get("type") == "record" else ""


def _simple_name(schema: dict[str, Any]) -> str:
    """A type's name without its namespace."""
    return str(schema.get("name")).rpartition(".")[2]


def _type(schema: Definition) -> str:
    return str(schema.get("type")) if isinstance(schema, dict) else str(schema)
