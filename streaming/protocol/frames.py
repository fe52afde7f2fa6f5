"""Effects as the frames that a client receives, with the names and the presence of fields as on the wire."""

import base64
import math
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import cramjam
import msgspec
import re2
from crc32c import crc32c

from schemas import effects as e
from schemas.commands import MessageMetadata
from streaming.broker.config import PROTOCOL_VERSION
from streaming.broker.names import partition_index
from streaming.broker.producer.message_size import HEADER, metadata_size
from streaming.protocol.codec import MAX_MESSAGE_SIZE, Frame

PARTITION = re.compile(r"-partition-\d+$")

HAS_FEATURES = 20
"""From this protocol version on, brokers say which features they have."""

KNOWS_BATCHES, KNOWS_CHECKSUMS = 4, 11
"""The first protocol version of clients that take a batch, and of those that take a message with its checksum."""

CLOSES_OTHERS = {"CLOSE_PRODUCER": 5, "CLOSE_CONSUMER": 5}
"""Frames of the broker that close a client's connection instead if its protocol version is lower."""

KNOWN_SINCE = {"REACHED_END_OF_TOPIC": 9, "ACTIVE_CONSUMER_CHANGE": 12}
"""The first protocol version of clients that are sent a frame."""

MINUS_ONE = 2**64 - 1
"""−1 in an unsigned field."""


FindStored = Callable[[str, int, int], tuple[MessageMetadata, bytes]]
"""(topic, ledger id, entry id) → metadata and payload."""


def unsigned(value: int) -> int:
    """A number as an unsigned 64-bit field has it."""
    return value % 2**64


def position(ledger: int, entry: int, **more: Any) -> dict[str, Any]:
    """A MessageIdData."""
    return {"ledgerId": unsigned(ledger), "entryId": unsigned(entry), **more}


def metadata_fields(metadata: MessageMetadata) -> dict[str, Any]:
    """The fields of MessageMetadata that are on the wire."""
    fields: dict[str, Any] = msgspec.to_builtins(metadata)
    if metadata.event_time is not None and metadata.event_time < 0:
        fields["event_time"] = unsigned(metadata.event_time)
    return fields


def frame(effect: e.Effect, stored: FindStored) -> Frame | None:
    """The frame of an effect; None if the effect goes to no client."""
    fields: dict[str, Any]
    match effect:
        case e.SendReceipt(producer_id=int()):
            fields = {"producer_id": effect.producer_id, "sequence_id": unsigned(effect.sequence_id),
                      "message_id": position(effect.ledger_id, effect.entry_id),
                      "highest_sequence_id": MINUS_ONE if effect.highest_sequence_id is None else effect.highest_sequence_id}  # fmt: skip
            return Frame(effect.connection, "SEND_RECEIPT", fields)
        case e.SendError(producer_id=int()):
            fields = {"producer_id": effect.producer_id, "sequence_id": unsigned(effect.sequence_id),
                      "error": effect.error, "message": effect.cause}  # fmt: skip
            return Frame(effect.connection, "SEND_ERROR", fields)
        case e.Message():
            return _message(effect, stored)
        case e.ProducerSuccess():
            fields = {"request_id": effect.request_id, "producer_name": effect.producer_name,
                      **msgspec.to_builtins(effect.fields)}  # fmt: skip
            fields.setdefault("schema_version", "")
            return Frame(effect.connection, "PRODUCER_SUCCESS", fields)
        case e.Success():
            return Frame(effect.connection, "SUCCESS", {"request_id": effect.request_id})
        case e.Error():
            fields = {"request_id": effect.request_id, "error": effect.error, "message": effect.cause}
            return Frame(effect.connection, "ERROR", fields)
        case e.CloseProducer(producer_id=int()):
            fields = {"producer_id": effect.producer_id, "request_id": MINUS_ONE}
            return Frame(effect.connection, "CLOSE_PRODUCER", fields)
        case e.CloseConsumer():
            fields = {"consumer_id": effect.consumer_id, "request_id": MINUS_ONE}
            return Frame(effect.connection, "CLOSE_CONSUMER", fields)
        case e.CloseConnection():
            return Frame(effect.connection, "_TCP_CLOSE", {})
        case e.AckResponse():
            fields = {"consumer_id": effect.consumer_id, "request_id": effect.request_id}
            if effect.error is not None:
                fields |= {"error": effect.error, "message": effect.cause}
            return Frame(effect.connection, "ACK_RESPONSE", fields)
        case e.ActiveConsumerChange():
            return Frame(
                effect.connection,
                "ACTIVE_CONSUMER_CHANGE",
                {"consumer_id": effect.consumer_id, "is_active": effect.fields.is_active},
            )
        case e.ReachedEndOfTopic():
            return Frame(effect.connection, "REACHED_END_OF_TOPIC", {"consumer_id": effect.consumer_id})
        case e.GetLastMessageIdResponse():
            last = position(effect.ledger_id, effect.entry_id, partition=partition_index(effect.topic),
                            batch_index=effect.fields.batch_index)  # fmt: skip
            fields = {"last_message_id": last, "request_id": effect.request_id}
            mark = effect.fields.consumer_mark_delete_position
            fields["consumer_mark_delete_position"] = position(mark.ledgerId, mark.entryId)
            return Frame(effect.connection, "GET_LAST_MESSAGE_ID_RESPONSE", fields)
        case (
            e.TcClientConnectResponse() | e.NewTxnResponse() | e.AddPartitionToTxnResponse()
            | e.AddSubscriptionToTxnResponse() | e.EndTxnResponse()
        ):  # fmt: skip
            fields = {"request_id": effect.request_id}
            if not isinstance(effect, e.TcClientConnectResponse):
                fields |= msgspec.to_builtins(effect.fields)
            if effect.error is not None:
                fields |= {"error": effect.error, "message": effect.cause}
            return Frame(effect.connection, e.KINDS[type(effect)], fields)
        case (
            e.PartitionedMetadataResponse() | e.LookupResponse()
            | e.GetSchemaResponse() | e.GetOrCreateSchemaResponse()
        ):  # fmt: skip
            fields = {"request_id": effect.request_id, **msgspec.to_builtins(effect.fields)}
            if "schema" in fields:
                pairs = fields["schema"]["properties"]
                fields["schema"]["properties"] = [{"key": key, "value": value} for key, value in pairs]
            if effect.error is not None:
                named = isinstance(effect, e.GetSchemaResponse | e.GetOrCreateSchemaResponse)
                fields |= {"error_code" if named else "error": effect.error,
                           "error_message" if named else "message": effect.cause}  # fmt: skip
            return Frame(effect.connection, e.KINDS[type(effect)], fields)
    return None


def message_fields(effect: e.Message) -> dict[str, Any]:
    """The fields of a MESSAGE."""
    fields: dict[str, Any] = {
        "consumer_id": effect.consumer_id,
        "message_id": position(effect.ledger_id, effect.entry_id, partition=partition_index(effect.topic)),
    }
    if effect.redelivery_count:
        fields["redelivery_count"] = effect.redelivery_count
    if effect.ack_set is not None:
        fields["ack_set"] = effect.ack_set
    if effect.consumer_epoch is not None:
        fields["consumer_epoch"] = effect.consumer_epoch
    return fields


def _message(effect: e.Message, stored: FindStored) -> Frame:
    fields = message_fields(effect)
    own = getattr(effect, "metadata", None)
    metadata, payload = (
        stored(effect.topic, effect.ledger_id, effect.entry_id)
        if own is None
        else (own, effect.payload or b"")
    )
    size = HEADER + metadata_size(metadata) + len(payload)
    return Frame(effect.connection, "MESSAGE", fields, metadata_fields(metadata), payload, size)


CODECS: dict[str, Callable[[bytes, bytearray], int]] = {
    "LZ4": cramjam.lz4.decompress_block_into,
    "ZSTD": cramjam.zstd.decompress_into,
    "SNAPPY": cramjam.snappy.decompress_raw_into,
}
"""They fill a buffer, and fail if that is too small. They return how many bytes it has then."""

MOST_UNCOMPRESSED = 32 << 20
"""The bytes of a largest payload that is uncompressed: a few kilobytes can become gigabytes."""


class NotUncompressed(ValueError):
    """A payload is damaged, or too large uncompressed. The text says which."""


def uncompressed(metadata: MessageMetadata, payload: bytes) -> bytes:
    """A payload as the admin API returns it: an encrypted one as it is. Raises `NotUncompressed`."""
    if metadata.encryption_keys:
        return payload
    if (size := metadata.uncompressed_size or 0) > MOST_UNCOMPRESSED:
        raise NotUncompressed(f"it has {size:,} bytes uncompressed, at most {MOST_UNCOMPRESSED:,} are shown")
    if metadata.compression == "ZLIB":
        inflater = zlib.decompressobj()
        try:
            inflated = inflater.decompress(payload, MOST_UNCOMPRESSED)
        except zlib.error as error:
            raise NotUncompressed(str(error)) from None
        # quirk: Pulsar's Java client leaves the stream without an end
        if not inflater.eof and len(inflated) != size:
            most = f"it is cut off, or has more than {MOST_UNCOMPRESSED:,} bytes uncompressed"
            raise NotUncompressed(most)
        return inflated
    if metadata.compression in CODECS:
        found = bytearray(size)
        try:
            length = CODECS[metadata.compression](payload, found)
        except (cramjam.DecompressionError, ValueError) as error:
            raise NotUncompressed(str(error)) from None
        return bytes(found[:length])
    return payload


LONGEST_PATTERN = 50
"""The characters of a longest pattern that the broker applies, Pulsar's subscriptionPatternMaxLength. It ignores a longer one."""

MOST_REPETITIONS = 16
"""The product of the counts in a pattern, such as 8 in ``\\d{4}-\\d{2}``. RE2 repeats what is counted, so its time grows with it."""

_COUNT = re.compile(r"\{(\d*),?(\d*)\}")
_MANY = 64
"""More names than these are worth what it takes to give them to Arrow."""
_QUIET = re2.Options()
_QUIET.log_errors = False


def matches(pattern: str, names: Sequence[str]) -> list[bool] | None:
    """Which of the names a pattern matches, as a whole. None: it is not applied, and clients filter the topics themselves.

    RE2 takes time in proportion to the names, whatever the pattern, and so does Pulsar's RE2/J. What RE2 does not have, such
    as lookahead, is not applied. Raises `ValueError` for what is not a regular expression.
    """
    counts = [int(count) for pair in _COUNT.findall(pattern) for count in pair if count]
    if math.prod(max(count, 1) for count in counts) > MOST_REPETITIONS:
        return None
    try:
        # A set finds out at once whether; a pattern would first make an object with the match.
        matcher = re2.Set.FullMatchSet(_QUIET)
        matcher.Add(pattern)
        matcher.Compile()
    except re2.error:
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(error) from None
        return None
    # A process that has Arrow matches a long list at once, with the RE2 in it. A test double has none.
    if len(names) > _MANY and (arrow := sys.modules.get("pyarrow.compute")) is not None:
        flags: list[bool] = arrow.match_substring_regex(arrow.pa.array(names), f"^(?:{pattern})$").to_pylist()
        return flags
    match = matcher.Match
    return [match(name.encode()) is not None for name in names]


def without_domain(pattern: str) -> str:
    """A pattern of topics without the kind of topic, such as ``persistent://``."""
    return pattern.partition("://")[2] or pattern


def matching(pattern: str, topics: Sequence[str]) -> list[str] | None:
    """Those of the `topics` that a pattern of topics selects. None: it is not applied. Raises as `matches` does."""
    # it says nothing of the kind of topic, and partitions go by the name without theirs
    names = [topic.partition("://")[2] for topic in topics]
    names = [PARTITION.sub("", name) if "-partition-" in name else name for name in names]
    found = matches(without_domain(pattern), names)
    if found is None:
        return None
    return [topic for topic, is_match in zip(topics, found, strict=True) if is_match]


def topics_hash(topics: Sequence[str]) -> str:
    """The hash of sorted `topics`, by which a client knows them again."""
    return crc32c(",".join(topics).encode()).to_bytes(4, "little").hex()


def topics_of_namespace(fields: dict[str, Any], topics: Iterable[str]) -> tuple[str, dict[str, Any]]:
    """The answer to GET_TOPICS_OF_NAMESPACE and its fields (docs/rules/protocol.md §9). `topics`: those of the namespace."""
    mode = fields.get("mode", "PERSISTENT")
    found = sorted(
        topic
        for topic in topics
        if mode == "ALL" or topic.startswith("non-persistent://") == (mode == "NON_PERSISTENT")
    )
    pattern = fields.get("topics_pattern")
    is_applied = False
    if pattern is not None and len(pattern) <= LONGEST_PATTERN:
        try:
            filtered = matching(pattern, found)
        except ValueError as error:
            refusal = {"error": "MetadataError", "message": f"the pattern can't be read: {error}"}
            return "ERROR", {"request_id": fields["request_id"], **refusal}
        if filtered is not None:
            is_applied = True
            found = filtered
    hash_ = topics_hash(found)
    known = fields.get("topics_hash") == hash_
    answer = {
        "request_id": fields["request_id"],
        "topics_hash": hash_,
        "filtered": is_applied,
        "changed": not known,
    }
    return "GET_TOPICS_OF_NAMESPACE_RESPONSE", {**answer, "topics": found} if found and not known else answer


def connected(
    fields: dict[str, Any],
    max_message_size: int = MAX_MESSAGE_SIZE,
    *,
    highest: int = PROTOCOL_VERSION,
    watches_topics: bool = False,
) -> dict[str, Any]:
    """The fields of CONNECTED that answer those of a CONNECT (docs/rules/protocol.md §4).

    `highest`: the broker's protocol version. `watches_topics`: WATCH_TOPIC_LIST is answered.
    """
    answer = {
        "server_version": "Magnetar",
        "protocol_version": min(highest, fields.get("protocol_version", 0)),
        "max_message_size": max_message_size,
    }
    if highest < HAS_FEATURES:
        return answer
    flags = {"supports_get_partitioned_metadata_without_auto_creation": True}
    return answer | {"feature_flags": flags | {"supports_topic_watchers": True} if watches_topics else flags}


def text(payload: bytes) -> str:
    """A readable payload: text if it is UTF-8, else base64."""
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return base64.b64encode(payload).decode()
