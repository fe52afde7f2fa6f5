"""Paths and query parameters of WebSockets (mirrors `AbstractWebSocketHandler`, `ProducerHandler`, `ConsumerHandler`, `ReaderHandler`).

A parameter that Pulsar's service does not know has no effect there, and none here.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote_plus

from streaming.broker.names import complete, is_topic_name, why_not_topic_name
from streaming.protocol.codec import FrameError
from streaming.protocol.frames import MINUS_ONE
from streaming.server.websocket.messages import ClientMessageId, NotEncoded, decoded, key_of

SocketKind = Literal["producer", "consumer", "reader"]
_Json = dict[str, Any]

MOST_RECEIVED = 1000
"""The largest receiver queue: a larger one is cut to it."""

_SERVLETS = {
    "producer": ("/ws/producer", "/ws/v2/producer"),
    "consumer": ("/ws/consumer", "/ws/v2/consumer", "/ws/v3/consumer"),
    "reader": ("/ws/reader", "/ws/v2/reader"),
}

EARLIEST, LATEST = ClientMessageId(MINUS_ONE, MINUS_ONE), ClientMessageId((1 << 63) - 1, (1 << 63) - 1)


class Release(NamedTuple):
    """What an earlier or a later release does otherwise, or does not have: servlets, whose `paths` begin so, and `parameters`, which have no effect.
    See tests/websocket for its recordings.
    """

    paths: tuple[str, ...] = ()
    parameters: frozenset[str] = frozenset()
    own_keys: bool = True
    """It takes keys of a client that encrypts itself."""
    early_event_times: bool = True
    """It takes event times of 1970 and before. Else, they end the WebSocket."""
    full_dead_letters: bool = True
    """Dead letters tell their subscription and their event time."""
    says_blank: bool = True
    """It says of a blank name that it is blank."""
    knows_missing_tenants: bool = True
    """A role that asks for a topic of a missing tenant gets 500, and not 403."""
    drops: bool = True
    """A command that it can't read ends a consumer or a reader without a close frame. Else, it has no effect."""
    readers_apart: bool = True
    """What a reader is refused is 500, in words of its own."""
    unexpected: str = "{}"
    """What is told of an exception that its servlet does not expect."""
    says_invalid: bool = False
    """It says of an empty name and of one with another domain that they are invalid."""
    names_exceptions: bool = True
    """The reason of the close frame is the name of an exception without a text."""
    unauthenticated: str = "Authentication required"
    """What those without a valid token are told."""
    tells_encrypted: bool = False
    """Encrypted messages say that they are, besides how."""
    batches_of_one: bool = False
    """A message for which no other came in time is a batch. Else, it is published by itself."""
    joins_shared_chunks: bool = True
    """Consumers of Shared get a chunked message as one. Else, each of its chunks as a message."""
    says_not_found: bool = True
    """A topic that can't be is 404. Else, 500."""
    authenticates_bad_paths: bool = True
    """A path that names nothing is 500. Else, 401 if clients need tokens."""


_BEFORE_4_0 = Release(
    ("/ws/v3/",), frozenset({"subscriptionInitialPosition"}), own_keys=False, early_event_times=False, full_dead_letters=False,
    says_blank=False, knows_missing_tenants=False,
)  # fmt: skip
_BEFORE_3_0 = _BEFORE_4_0._replace(
    parameters=frozenset({"subscriptionInitialPosition", "encryptionKeys"}), batches_of_one=True, joins_shared_chunks=False,
    says_not_found=False, authenticates_bad_paths=False,
)  # fmt: skip
USUAL = Release()
_FROM_4_2 = Release(
    ("/ws/producer", "/ws/consumer", "/ws/reader"), drops=False, readers_apart=False, unexpected="java.lang.RuntimeException: {}", says_invalid=True,
    names_exceptions=False, unauthenticated="Failed to authenticate", tells_encrypted=True,
)  # fmt: skip
_FROM_5_0 = _FROM_4_2._replace(unexpected="Could not create WebSocket endpoint")
RELEASES = {"3.0": _BEFORE_4_0, "2.10": _BEFORE_3_0, "2.x": _BEFORE_3_0, "4.2": _FROM_4_2, "5.0": _FROM_5_0}
"""By profile; all others are `USUAL`."""


class BadPath(ValueError):
    """A path names nothing that there can be. Pulsar's service answers with 500, and its exception's text."""


class BadParameter(ValueError):
    """A query parameter can't be what it is. The text says why, in Pulsar's words."""


class Asked(NamedTuple):
    """What a WebSocket is to be: of a `kind`, on `topics` or all whose name matches `pattern`. `subscription`: a consumer's."""

    kind: SocketKind
    topics: tuple[str, ...]
    pattern: str | None
    subscription: str
    query: Mapping[str, str]
    release: Release = USUAL


class ProducerOptions(NamedTuple):
    """What a producer asks for. Times in ms."""

    name: str | None
    initial_sequence_id: int | None
    murmur: bool
    """Whether keys are hashed by Murmur3, and not as Java hashes text."""
    send_timeout: int
    round_robin: bool
    batching: bool
    batching_max_messages: int
    batching_delay: int
    max_pending: int
    compression: str | None
    encryption_keys: tuple[_Json, ...]
    """Those of a client that encrypts messages itself."""
    batches_of_one: bool = False
    """See `Release`."""


class ConsumerOptions(NamedTuple):
    """What a consumer or a reader asks for. Times in ms, 0: not at all."""

    type: str = "Exclusive"
    name: str | None = None
    queue: int = MOST_RECEIVED
    durable: bool = True
    earliest: bool = False
    start: ClientMessageId | None = None
    priority: int = 0
    ack_timeout: int = 0
    nack_delay: int = 60_000
    max_redeliver: int = 0
    """After so many redeliveries, a message is a dead letter. 0: never."""
    dead_letter_topic: str | None = None
    crypto: str = "FAIL"
    pull: bool = False
    full_dead_letters: bool = True
    """Whether dead letters tell the subscription that they come from, and their event time."""
    tells_encrypted: bool = False
    """Whether encrypted messages say that they are."""
    joins_chunks: bool = True
    """Whether the chunks of a message become one."""


def kind_of(path: str) -> SocketKind | None:
    """What serves a path. None: nothing."""
    kinds: tuple[SocketKind, ...] = ("producer", "consumer", "reader")
    return next((each for each in kinds if any(path.startswith(f"{one}/") or path == one for one in _SERVLETS[each])), None)  # fmt: skip


def asked(kind: SocketKind, path: str, query: str, release: Release = USUAL) -> Asked:
    """What a path, as the client encoded it, and a query ask for. Raises `BadPath`, `BadParameter`."""
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True, encoding="utf-8", errors="replace"):
        if name not in release.parameters:
            given.setdefault(name, value)
    parts = path.split("/")
    if parts[2] == "v3":
        return _multiple(parts, given, release)
    if len(parts) < 8:
        raise BadPath("java.lang.IllegalArgumentException: Invalid topic name format")
    first = 4 if parts[2] == "v2" else 3
    if parts[first] not in ("persistent", "non-persistent"):
        raise BadPath("java.lang.IllegalArgumentException")
    namespace = "/".join(parts[first + 1 : 7])
    rest = parts[8:-1] if kind == "consumer" else parts[8:]
    name = unquote_plus("/".join([parts[7], *filter(None, rest)]))
    topic = f"{parts[first]}://{namespace}/{name}"
    _check(topic, release)
    subscription = ""
    if kind == "consumer":
        if len(parts) != 9:
            raise BadParameter("Invalid topic name format")
        if not parts[8]:
            raise BadParameter("Empty subscription name")
        subscription = unquote_plus(parts[8])
    return Asked(kind, (topic,), None, subscription, given, release)


def _multiple(parts: list[str], given: Mapping[str, str], release: Release) -> Asked:
    """A consumer of several topics."""
    pattern, topics = given.get("topicsPattern"), given.get("topics")
    if pattern is None and topics is None:
        raise BadPath("java.lang.IllegalArgumentException: Should set topics or topicsPattern")
    if pattern is not None and topics is not None:
        raise BadPath("java.lang.IllegalArgumentException: Topics must be null when use topicsPattern")
    names = [] if topics is None else topics.split(",")
    first = pattern if pattern is not None else names[0]
    _check(complete(first) if first else "", release)
    if len(parts) < 5:
        raise BadParameter("Invalid topic name format")
    if not parts[4]:
        raise BadParameter("Empty subscription name")
    if not all(each.strip() for each in names):
        raise BadParameter("topicNames cannot have blank topic")
    for each in names:
        if not is_topic_name(complete(each)):
            raise BadParameter(why_not_topic_name(complete(each)))
    found = None if pattern is None else complete(pattern)
    topics_ = tuple(dict.fromkeys(map(complete, names)))
    return Asked("consumer", topics_, found, unquote_plus(parts[4]), given, release)


def _check(topic: str, release: Release) -> None:
    if is_topic_name(topic):
        return
    why = why_not_topic_name(topic)
    if not release.says_blank:
        why = why.partition(". ")[0]
    elif release.says_invalid and not topic:
        why = "Invalid topic name: . Topic local name must not be blank."
    elif release.says_invalid and why.startswith("Invalid topic domain"):
        why = f"Invalid topic name {topic}"
    raise BadPath(f"java.lang.IllegalArgumentException: {why}")


def producer_options(asked: Asked) -> ProducerOptions:
    """What a producer's parameters ask for. Raises `BadParameter`; `NoKeyReader` for keys that the service would have to encrypt with."""
    query = asked.query
    _not_blank(query, "producerName")
    sequence_id = _integer(query, "initialSequenceId", None)
    hashing = _one_of(query, "hashingScheme", "JavaStringHash", ("JavaStringHash", "Murmur3_32Hash"),
                      "No enum constant org.apache.pulsar.client.api.HashingScheme.{}")  # fmt: skip
    timeout = _natural(query, "sendTimeoutMillis", 30_000, "sendTimeout needs to be >= 0")
    routing = _one_of(query, "messageRoutingMode", "SinglePartition", ("SinglePartition", "RoundRobinPartition", "CustomPartition"))  # fmt: skip
    keys = () if not asked.release.own_keys else _encryption_keys(query.get("encryptionKeys"))
    batching, most, delay, pending, compression = False, 1000, 1, 0, None
    if not keys:
        if query.get("batchingEnabled", "").lower() == "true":
            batching = True
            most = _integer(query, "batchingMaxMessages", most) or 0
            pending = _natural(query, "maxPendingMessages", 0, "maxPendingMessages needs to be >= 0")
            delay = _integer(query, "batchingMaxPublishDelay", delay) or 0
            if delay < 1:
                raise BadParameter("configured value for batch delay must be at least 1ms")
        compression = _one_of(query, "compressionType", "NONE", ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"))
        if "encryptionKeys" in query:
            raise NoKeyReader
    return ProducerOptions(
        query.get("producerName"), sequence_id, hashing == "Murmur3_32Hash", timeout, routing == "RoundRobinPartition",
        batching, most, delay, pending, None if compression == "NONE" else compression, keys, asked.release.batches_of_one,
    )  # fmt: skip


class NoKeyReader(Exception):
    """Keys are named with which the service is to encrypt messages. It has none, as Pulsar's has none unless a class of its own is configured."""

    def __init__(self) -> None:
        super().__init__("Can't add encryption key without configuring cryptoKeyReaderFactoryClassName")


def consumer_options(asked: Asked) -> ConsumerOptions:
    """What a consumer's parameters ask for. Raises `BadParameter`."""
    query = asked.query
    ack_timeout = _integer(query, "ackTimeoutMillis", 0) or 0
    if 0 != ack_timeout < 1000:
        raise BadParameter("Ack timeout should be greater than 1000 ms")
    type_ = _one_of(query, "subscriptionType", "Exclusive", ("Exclusive", "Shared", "Failover", "Key_Shared"))
    mode = _one_of(query, "subscriptionMode", "Durable", ("Durable", "NonDurable"))
    initial = _one_of(query, "subscriptionInitialPosition", "Latest", ("Latest", "Earliest"))
    queue = _queue(query)
    _not_blank(query, "consumerName")
    priority = _natural(query, "priorityLevel", 0, "priorityLevel needs to be >= 0")
    nack = _natural(query, "negativeAckRedeliveryDelay", 60_000, "redeliveryDelay needs to be >= 0")
    most, dead = 0, query.get("deadLetterTopic")
    if "maxRedeliverCount" in query or dead is not None:
        most = _integer(query, "maxRedeliverCount", 0) or 0
        if most <= 0:
            raise BadParameter("MaxRedeliverCount must be > 0.")
        first = asked.topics[0] if asked.topics else asked.pattern
        dead = dead or f"{first}-{asked.subscription}-DLQ"
    return ConsumerOptions(
        type_, query.get("consumerName"), queue, mode == "Durable", initial == "Earliest", None, priority, ack_timeout, nack, most,
        dead, _crypto(query), query.get("pullMode", "").lower() == "true", asked.release.full_dead_letters,
        asked.release.tells_encrypted, asked.release.joins_shared_chunks or type_ in ("Exclusive", "Failover"),
    )  # fmt: skip


def reader_options(asked: Asked) -> ConsumerOptions:
    """What a reader's parameters ask for. Raises `BadPath` and `BadParameter`."""
    query = asked.query
    try:
        queue = min(int(query.get("receiverQueueSize", MOST_RECEIVED)), MOST_RECEIVED)
    except ValueError:
        text = f'java.lang.NumberFormatException: For input string: "{query["receiverQueueSize"]}"'
        raise BadPath(text) from None
    if queue < 0:
        raise BadParameter("receiverQueueSize needs to be >= 0")
    text = query.get("messageId", "").strip()
    try:
        start = {"": LATEST, "latest": LATEST, "earliest": EARLIEST}.get(text) or ClientMessageId.parsed(
            decoded(text)
        )
    except (NotEncoded, FrameError) as error:
        raise BadParameter(
            str(error) if asked.release.readers_apart else "Invalid messageId base64 value"
        ) from None
    return ConsumerOptions(
        name=query.get("readerName") or None, queue=queue, durable=False, start=start, crypto=_crypto(query),
        tells_encrypted=asked.release.tells_encrypted,
    )  # fmt: skip


def _encryption_keys(text: str | None) -> tuple[_Json, ...]:
    """The keys of a client that encrypts itself: JSON in base64. Anything else names keys of the service."""
    try:
        given = json.loads(decoded((text or "").strip()))
    except (NotEncoded, ValueError, RecursionError):
        return ()
    values = list(given.values()) if isinstance(given, dict) else []
    if not values or not all(
        isinstance(each, dict) and isinstance(each.get("keyValue"), str) for each in values
    ):
        return ()
    found = []
    for name, each in given.items():
        if not name.strip():
            raise BadParameter("Empty param encryptionKeys.key")
        metadata = each.get("metadata") or {}
        try:
            found.append(
                key_of(
                    name.strip(), each["keyValue"], {key: str(value) for key, value in dict(metadata).items()}
                )
            )
        except (NotEncoded, TypeError, ValueError):
            return ()
    return tuple(found)


def _crypto(query: Mapping[str, str]) -> str:
    """quirk: another value is as none."""
    found = query.get("cryptoFailureAction", "FAIL")
    return found if found in ("DISCARD", "CONSUME") else "FAIL"


def _queue(query: Mapping[str, str]) -> int:
    size = _integer(query, "receiverQueueSize", MOST_RECEIVED)
    if size is None or size < 0:
        raise BadParameter("receiverQueueSize needs to be >= 0")
    return min(size, MOST_RECEIVED)


def _integer(query: Mapping[str, str], name: str, default: int | None) -> int | None:
    if name not in query:
        return default
    text = query[name]
    bits = 63 if name == "initialSequenceId" else 31
    if not (text.lstrip("+-").isascii() and text.lstrip("+-").isdigit() and len(text) < 21) or not (
        -(1 << bits) <= int(text) < 1 << bits
    ):
        raise BadParameter(f'For input string: "{text}"')
    return int(text)


def _natural(query: Mapping[str, str], name: str, default: int, why: str) -> int:
    number = _integer(query, name, default) or 0
    if number < 0:
        raise BadParameter(why)
    return number


def _one_of(query: Mapping[str, str], name: str, default: str, known: tuple[str, ...], why: str = "") -> str:
    text = query.get(name, default)
    if text not in known:
        raise BadParameter(why.format(text) or f"Invalid {name} {text}")
    return text


def _not_blank(query: Mapping[str, str], name: str) -> None:
    if not query.get(name, "x").strip():
        raise BadParameter(f"{name} cannot be blank")
