"""The states of the brokers as text: JSON Lines that people can read, and that become the same states again.

::

    {"format": "magnetar-state", "version": 1, "encoding": 2, "ingress": "commands", "partitions": 2, …}
    {"partition": 0, "clock": 1700000000000, "config": {…}, "namespaces": {…}, …}
    {"topic": "persistent://public/default/orders", "backlog": 3, …, "state": {"ledger": {…}, "cursors": {…}, …}}
    …
    {"end": 5}

Each partition is followed by its topics. Structures have the names of their fields, bytes are in base64, and a map whose keys
are not texts is a list of pairs. Every line ends with ``crc32``, the checksum of the file up to there, so that a line that was
changed, added or removed is found. Memory is bounded by the state of one partition as text, and by what `LONGEST_LINE` and
`MOST_VALUES` allow for a line.

The texts name the fields of one version of the encoding (`codec.VERSION`), and only that version reads them.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, BinaryIO

import msgspec
from msgspec import inspect

from streaming.broker.dispatch.sorted_blocks import SortedBlocks
from streaming.broker.ledger.ack_holes import AckHoles
from streaming.broker.names import is_topic_name
from streaming.broker.non_persistent.topic import NonPersistentTopic, is_non_persistent
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.state.codec import (
    VERSION,
    PartitionState,
    TopicBlock,
    decode_non_persistent_topic,
    decode_state,
    decode_topic,
    encode_state,
    encode_topic,
)

FORMAT = "magnetar-state"
DUMP_VERSION = 1

LONGEST_LINE = 64 << 20
"""Bytes of the state of a topic, or of a partition without its topics."""
MOST_VALUES = 8 << 20
"""Values in a line: while it is read, each takes up to 100 bytes."""
_MOST_PARTITIONS = 100_000
_AGAIN = "Export the states again, or restore the file from a backup"

_decode = msgspec.msgpack.Decoder().decode
_encode = msgspec.msgpack.Encoder().encode
_END = b',"crc32":"%08x"}\n'
_END_LENGTH = len(_END % 0)


class BadDump(ValueError):
    """A dump can't be read or written. The text says where, why, and what to do."""


class Header(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The first line. `encoding`: the version of the state's encoding.

    `ingress`, `partitions`, `offsets`: the topic in Kafka, the number of its partitions, and by partition the first offset that
    was not folded. All are known, or, as those of a replay, none: None, 0 and empty.
    """

    format: str = FORMAT
    version: int = DUMP_VERSION
    encoding: int = VERSION
    ingress: str | None = None
    partitions: Annotated[int, msgspec.Meta(ge=0, le=_MOST_PARTITIONS)] = 0
    offsets: dict[
        Annotated[str, msgspec.Meta(pattern="^(0|[1-9][0-9]{0,5})$")],
        Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)],
    ] = {}


def write_dump(file: BinaryIO, header: Header, states: Iterable[bytes]) -> int:
    """Write `states` (as `Broker.encode` gives them). Returns the number of topics.

    Raises `StateVersionError` for a state that a newer Magnetar wrote, `BadDump` for one that is too large to be read again.
    """
    writer = _Writer(file)
    writer.write(msgspec.to_builtins(header))
    count = 0
    for encoded in states:
        state = decode_state(encoded)
        topics, state.topics = state.topics, {}
        shown = _named(_STATE, _decode(memoryview(encode_state(state))[1:]))
        del shown["topics"]
        writer.write(shown)
        for name, block in topics.items():
            count += 1
            writer.write(_topic_line(name, block))
    writer.write({"end": writer.lines + 1})
    return count


def read_header(file: BinaryIO) -> Header:
    """The header of a dump, of which nothing else is read. Raises `BadDump`."""
    return _header(_Reader(file))


def read_dump(file: BinaryIO) -> Iterator[bytes]:
    """The states, encoded, one after the other. Raises `BadDump`, at the latest after the last state."""
    reader = _Reader(file)
    header = _header(reader)
    line, partitions, topics = reader.read(), set[int](), set[str]()
    while "partition" in line:
        state = _partition(reader, line)
        if state.partition in partitions or not 0 <= state.partition < (
            header.partitions or _MOST_PARTITIONS
        ):
            raise reader.bad(
                f"partition {state.partition} occurs twice, or none of the {header.partitions} partitions"
            )
        partitions.add(state.partition)
        while "topic" in (line := reader.read()):
            name, block = _block(reader, line)
            if name in topics:
                raise reader.bad(f"topic {name} occurs twice")
            topics.add(name)
            state.topics[name] = block
        yield encode_state(state)
    if line.get("end") != reader.lines:
        raise reader.bad("expected a partition, a topic, or the end with the number of lines")
    if file.read(1):
        raise BadDump(f"line {reader.lines + 1}: nothing may follow the end. {_AGAIN}")


class _Writer:
    def __init__(self, file: BinaryIO) -> None:
        self._file, self._sum, self.lines = file, 0, 0

    def write(self, line: dict[str, Any]) -> None:
        text = json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode()[:-1]
        if why := _too_much(text):
            raise BadDump(
                f"the state of {line.get('topic', 'a partition')} can't be written as text: it has {why}. To give the states to "
                "another query, use magnetar state move, which needs no text"
            )
        self._sum = zlib.crc32(text, self._sum)
        self._file.write(text + _END % self._sum)
        self.lines += 1


class _Reader:
    def __init__(self, file: BinaryIO) -> None:
        self._file, self._sum, self.lines = file, 0, 0
        self.to_do = _AGAIN

    def read(self) -> dict[str, Any]:
        line = self._file.readline(LONGEST_LINE + _END_LENGTH + 1)
        self.lines += 1
        if why := _too_much(line[:-_END_LENGTH]):
            raise self.bad(f"no line of a dump has {why}")
        if not line.endswith(b"\n"):
            raise self.bad("the file ends here, before the end of the dump: it was truncated")
        text = line[:-_END_LENGTH]
        self._sum = zlib.crc32(text, self._sum)
        if not line.endswith(_END % self._sum):
            raise self.bad(
                "the checksum is wrong: this line was changed, or one before it was added or removed"
            )
        try:
            found = json.loads(text + b"}")
        except (ValueError, RecursionError) as error:
            raise self.bad(str(error)) from error
        return found if isinstance(found, dict) else {}

    def bad(self, why: str) -> BadDump:
        return BadDump(f"line {self.lines}: {why}. {self.to_do}")


def _too_much(text: bytes) -> str | None:
    """What of a line without its end exceeds its bound."""
    if len(text) > LONGEST_LINE:
        return f"more than {LONGEST_LINE >> 20} MiB"
    if text.count(b",") + text.count(b"[") + text.count(b"{") > MOST_VALUES:
        return f"more than {MOST_VALUES:,} values"
    return None


def _header(reader: _Reader) -> Header:
    reader.to_do = "Expected a dump of magnetar state export: name such a file"
    first = reader.read()
    if first.get("format") != FORMAT:
        raise reader.bad(f"the format is not {FORMAT!r}")
    reader.to_do = "Use the version that wrote it"
    version, encoding = first.get("version"), first.get("encoding")
    if version != DUMP_VERSION or encoding != VERSION:
        raise reader.bad(
            f"the dump has version {version} with states of version {encoding}, this Magnetar reads version {DUMP_VERSION} with "
            f"states of version {VERSION}"
        )
    reader.to_do = _AGAIN
    try:
        header = msgspec.convert(first, Header)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise reader.bad(str(error)) from error
    if header.ingress is not None and not header.partitions:
        raise reader.bad(f"expected the number of the partitions of topic {header.ingress}")
    known = header.ingress is not None or header.offsets
    if known and {int(each) for each in header.offsets} != set(range(header.partitions)):
        raise reader.bad(f"expected an offset for each of the {header.partitions} partitions")
    return header


def _topic_line(name: str, block: TopicBlock) -> dict[str, Any]:
    if is_non_persistent(name):
        shown = _named(_NON_PERSISTENT, _decode(encode_topic(decode_non_persistent_topic(block.data))))
    else:
        shown = _named(_PERSISTENT, _decode(encode_topic(decode_topic(block.data))))
    facts = _named(_BLOCK, _decode(_encode(msgspec.structs.replace(block, data=b""))))
    del facts["data"]
    return {"topic": name, **facts, "state": shown}


def _block(reader: _Reader, line: dict[str, Any]) -> tuple[str, TopicBlock]:
    name = line.pop("topic")
    if not (isinstance(name, str) and is_topic_name(name)):
        raise reader.bad(f"{str(name)[:80]!r} is not the name of a topic")
    root, decode = (
        (_NON_PERSISTENT, decode_non_persistent_topic)
        if is_non_persistent(name)
        else (_PERSISTENT, decode_topic)
    )

    def read() -> TopicBlock:
        data = encode_topic(decode(_encode(_plain(root, line.pop("state")))))
        plain = _plain(_BLOCK, {"data": "", **line})
        block: TopicBlock = msgspec.msgpack.decode(_encode(plain), type=TopicBlock)
        block.data = data
        return block

    return name, _checked(reader, read)


def _partition(reader: _Reader, line: dict[str, Any]) -> PartitionState:
    def read() -> PartitionState:
        named = {
            name: {} if name == "topics" else line.pop(name) for name in PartitionState.__struct_fields__
        }
        if line:
            raise ValueError(f"unknown fields: {', '.join(line)}")
        return decode_state(bytes([VERSION]) + _encode(_plain(_STATE, named)))

    state: PartitionState = _checked(reader, read)
    return state


def _checked(reader: _Reader, read: Callable[[], Any]) -> Any:
    """What `read` gives. The checksum was right, so whoever wrote the line did not know the format."""
    try:
        return read()
    except (
        msgspec.MsgspecError, AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError, binascii.Error
    ) as error:  # fmt: skip
        raise reader.bad(
            f"not the state of a partition or a topic ({type(error).__name__}: {error})"
        ) from error


# -- values: what MessagePack has, with names


def _named(type_: Any, value: Any) -> Any:
    """A value without names, as it is in the encoding, with the names that its type gives."""
    match type_:
        case _ if value is None:
            return None
        case inspect.Metadata(type=inner):
            return _named(inner, value)
        case inspect.UnionType():
            return _named(_member(type_, value), value)
        case inspect.StructType(array_like=True, tag=tag, fields=fields):
            values = value if tag is None else value[1:]
            names = {
                field.name: _named(field.type, each) for field, each in zip(fields, values, strict=False)
            }
            return names if tag is None else {"type": value[0], **names}
        case inspect.StructType(fields=fields):
            types = {field.encode_name: field.type for field in fields}
            return {name: _named(types[name], each) for name, each in value.items()}
        case inspect.NamedTupleType(fields=fields):
            return {field.name: _named(field.type, each) for field, each in zip(fields, value, strict=True)}
        case inspect.DictType(key_type=key, value_type=of):
            if _is_text(key):
                return {name: _named(of, each) for name, each in value.items()}
            return [[_named(key, name), _named(of, each)] for name, each in value.items()]
        case inspect.ListType(item_type=of) | inspect.VarTupleType(item_type=of):
            return [_named(of, each) for each in value]
        case inspect.TupleType(item_types=types):
            return [_named(of, each) for of, each in zip(types, value, strict=True)]
        case inspect.BytesType():
            return base64.b64encode(value).decode()
        case inspect.CustomType(cls=cls) if issubclass(cls, SortedBlocks):
            return {
                "length": value[0],
                "blocks": [{"last": last, "items": _decode(items)} for last, items in value[1]],
            }
        case inspect.CustomType(cls=cls):
            assert cls is AckHoles
            return [[ledger, base64.b64encode(bits).decode()] for ledger, bits in value.items()]
        case _:
            return value


def _plain(type_: Any, value: Any) -> Any:
    """The inverse of `_named`."""
    match type_:
        case _ if value is None:
            return None
        case inspect.Metadata(type=inner):
            return _plain(inner, value)
        case inspect.UnionType():
            return _plain(_member(type_, value), value)
        case inspect.StructType(array_like=True, tag=tag, fields=fields):
            given = value if tag is None else {name: each for name, each in value.items() if name != "type"}
            known = fields[: len(given)]
            if [field.name for field in known] != list(given):
                raise ValueError(f"unknown fields: {', '.join(given)}")
            values = [_plain(field.type, each) for field, each in zip(known, given.values(), strict=True)]
            return values if tag is None else [value["type"], *values]
        case inspect.StructType(fields=fields):
            types = {field.encode_name: field.type for field in fields}
            return {name: _plain(types[name], each) for name, each in value.items()}
        case inspect.NamedTupleType(fields=fields):
            return [_plain(field.type, value[field.name]) for field in fields]
        case inspect.DictType(key_type=key, value_type=of):
            if _is_text(key):
                return {name: _plain(of, each) for name, each in value.items()}
            return {_hashable(_plain(key, name)): _plain(of, each) for name, each in value}
        case inspect.ListType(item_type=of) | inspect.VarTupleType(item_type=of):
            return [_plain(of, each) for each in value]
        case inspect.TupleType(item_types=types):
            return [_plain(of, each) for of, each in zip(types, value, strict=True)]
        case inspect.BytesType():
            return base64.b64decode(value, validate=True)
        case inspect.CustomType(cls=cls) if issubclass(cls, SortedBlocks):
            return [value["length"], [[each["last"], _encode(each["items"])] for each in value["blocks"]]]
        case inspect.CustomType(cls=cls):
            assert cls is AckHoles
            return {ledger: base64.b64decode(bits, validate=True) for ledger, bits in value}
        case _:
            return value


def _member(union: inspect.UnionType, value: Any) -> Any:
    """The type of a value, named or not, among those of a union that are not None. Structures are told apart by their tags."""
    members = [each for each in union.types if not isinstance(each, inspect.NoneType)]
    if len(members) == 1:
        return members[0]
    structures = {each.tag: each for each in members if isinstance(each, inspect.StructType)}
    if structures:
        return structures[value["type"] if isinstance(value, dict) else value[0]]
    is_array = isinstance(value, list | tuple)
    return next(each for each in members if isinstance(each, inspect.TupleType) == is_array)


def _is_text(key: Any) -> bool:
    return isinstance(key, inspect.StrType | inspect.LiteralType)


def _hashable(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key


_STATE, _BLOCK, _PERSISTENT, _NON_PERSISTENT = inspect.multi_type_info(
    (PartitionState, TopicBlock, PersistentTopic, NonPersistentTopic)
)
