"""The single messages in the payload of a batch, and the batch without some of them (mirrors `RawBatchConverter`; docs/rules/compaction.md
§3). It is the only place where the core looks into a payload: the keys of a batch's messages are nowhere else."""

import zlib
from collections.abc import Callable
from typing import NamedTuple

import cramjam
from msgspec.structs import replace

from schemas.commands import MessageMetadata

_MOST = 32 << 20
"""The bytes of a largest batch that is uncompressed: a few kilobytes can become gigabytes."""

_KEY, _PAYLOAD_SIZE, _COMPACTED_OUT = 2, 3, 4
"""The numbers of fields of SingleMessageMetadata."""

_REMOVED = bytes.fromhex("0000000418002001")
"""A message that was compacted out: 4 bytes of metadata, with a payload of 0 bytes and compacted_out."""


def _deflated(data: bytes) -> bytes:
    """quirk: the stream has no end, as Pulsar's codec leaves it."""
    deflater = zlib.compressobj()
    return deflater.compress(data) + deflater.flush(zlib.Z_SYNC_FLUSH)


_INTO: dict[str, Callable[[bytes, bytearray], int]] = {
    "LZ4": cramjam.lz4.decompress_block_into,
    "ZSTD": cramjam.zstd.decompress_into,
    "SNAPPY": cramjam.snappy.decompress_raw_into,
}
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "LZ4": lambda data: bytes(cramjam.lz4.compress_block(data, store_size=False)),
    "ZSTD": lambda data: bytes(cramjam.zstd.compress(data)),
    "SNAPPY": lambda data: bytes(cramjam.snappy.compress_raw(data)),
    "ZLIB": _deflated,
}
"""How clients compress payloads, by codec."""


class Undecodable(ValueError):
    """A payload can't be uncompressed. Compaction keeps such a batch as it is."""


class Malformed(ValueError):
    """A payload is not the batch that its metadata says. Compaction fails."""


class Single(NamedTuple):
    """A message of a batch: its key, the size of its payload in bytes, and its bytes with those of its metadata."""

    key: str | None
    size: int
    is_removed: bool
    data: bytes


_REMOVED_SINGLE = Single(None, 0, True, _REMOVED)


def is_batch(metadata: MessageMetadata) -> bool:
    """Whether compaction looks at the single messages of an entry. An encrypted batch is one message to it."""
    return metadata.num_messages_in_batch is not None and not metadata.encryption_keys


def singles(metadata: MessageMetadata, payload: bytes) -> list[Single]:
    """The messages of a batch. Raises `Undecodable` and `Malformed`."""
    data, found, at = _uncompressed(metadata, payload), list[Single](), 0
    for _ in range(metadata.num_messages_in_batch or 0):
        if data.startswith(_REMOVED, at):  # most of a batch that was compacted
            found.append(_REMOVED_SINGLE)
            at += len(_REMOVED)
            continue
        start = at + 4
        end = start + int.from_bytes(data[at:start], "big")
        if start > len(data) or end > len(data):
            raise Malformed("a batch ends within a message")
        key, size, is_removed = _read(data[start:end])
        stop = end + size
        if size < 0 or stop > len(data):
            raise Malformed("a batch ends within the payload of a message")
        found.append(Single(key, size, is_removed, data[at:stop]))
        at = stop
    return found


def rebatched(
    metadata: MessageMetadata, messages: list[Single], keeps: list[bool], *, names: bool
) -> tuple[MessageMetadata, bytes]:
    """The batch with only those messages that `keeps` says. The others stay as markers without a key, so that each message has its
    place. `names`: the metadata names the messages that stay."""
    if names:
        metadata = replace(
            metadata, compacted_batch_indexes=[index for index, kept in enumerate(keeps) if kept]
        )
    data = b"".join(each.data if kept else _REMOVED for each, kept in zip(messages, keeps, strict=True))
    compress = COMPRESS.get(metadata.compression or "")
    return replace(metadata, uncompressed_size=len(data)), data if compress is None else compress(data)


def last_index(keeps: list[bool]) -> int:
    """The index of the last message of a batch that stays, as GET_LAST_MESSAGE_ID tells it. −1: of a batch of one, and if there is none."""
    if len(keeps) <= 1:
        return -1
    return max((index for index, kept in enumerate(keeps) if kept), default=-1)


def _uncompressed(metadata: MessageMetadata, payload: bytes) -> bytes:
    codec, size = metadata.compression, metadata.uncompressed_size or 0
    if size > _MOST:
        raise Malformed(f"a batch has {size} bytes uncompressed, at most {_MOST} are read")
    try:
        if codec == "ZLIB":
            return zlib.decompressobj().decompress(payload, size) if size else b""  # to zlib, 0 is no limit
        if codec in _INTO:
            found = bytearray(size)
            return bytes(found[: _INTO[codec](payload, found)])
    except (zlib.error, cramjam.DecompressionError, ValueError) as error:
        raise Undecodable(str(error)) from None
    return payload


def _read(data: bytes) -> tuple[str | None, int, bool]:
    """The key, the payload size and compacted_out of a SingleMessageMetadata in protobuf."""
    key: str | None = None
    size, is_removed, at = 0, False, 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            if number == _PAYLOAD_SIZE:
                size = value
            elif number == _COMPACTED_OUT:
                is_removed = value != 0
        elif wire == 2:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise Malformed("the metadata of a message in a batch is cut off")
            if number == _KEY:
                key = data[at : at + length].decode(errors="replace")
            at += length
        else:
            raise Malformed(f"the metadata of a message in a batch has a field of wire type {wire}")
    return key, size, is_removed


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise Malformed("the metadata of a message in a batch is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
