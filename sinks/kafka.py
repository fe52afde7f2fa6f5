"""Rows in a Kafka topic, one record per row: the responses to clients, and the base of other Kafka sinks.

The headers ``magnetar.partition``, ``magnetar.offset`` and ``magnetar.ordinal`` are the row's identity, and
``magnetar.batch`` is its micro-batch (decimal text). A repeated micro-batch sends its rows again, to the same Kafka
partitions. No row of a later one is sent before all of them are confirmed. So a reader can drop repeats with the memory
of one micro-batch, see `drop_repeats`.
"""

import base64
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, NoReturn, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import (
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)

from schemas.arguments import checked
from schemas.commands import MessageMetadata
from schemas.effects import KINDS, RESPONSES, AdminResponse, CloseConnection, Message, SendReceipt
from schemas.entries import EntryNotFound
from schemas.errors import MagnetarError
from schemas.outputs import IDENTITY, OUTPUT, Rows
from schemas.records import LARGEST
from sinks.json_rows import encode_rows
from sinks.ledger_reader import message_metadata
from sinks.ledger_store import LedgerStore
from sinks.record_batches import RecordBatches, encode, encode_headers

_BATCH = "magnetar.batch"
_HEADERS = tuple(f"magnetar.{name}" for name in IDENTITY)
_PATIENCE_MS = 20_000  # enough for a broker's restart; after that, Spark retries
_CHUNK = 4096  # answers, and
_CHUNK_BYTES = 32 << 20  # bytes of them, that are encoded at a time

_STORED = ["topic", "ledger_id", "entry_id", "producer_name", "sequence_id", "publish_time", "partition_key",
           "metadata", "payload"]  # fmt: skip

_decode = msgspec.msgpack.Decoder(MessageMetadata).decode
_json = msgspec.json.Encoder().encode

_Position = tuple[str, int, int]


class _Content(NamedTuple):
    metadata: MessageMetadata
    payload: bytes


class ClientConfig(Hashable, Protocol):
    """How to connect to Kafka with TLS or a password. Sinks are pickled, so it should hold a path but no secret."""

    def client(self) -> dict[str, Any]:
        """Keyword arguments for a kafka-python client, read again for each connection."""


class NotSent(RuntimeError):
    """Kafka did not accept a sink's records. The micro-batch fails and can be repeated."""


class ResponsesNotSent(NotSent):
    """Kafka did not accept the responses."""


class Outgoing(NamedTuple):
    """Records to send for some rows, in columns. Without `partition`, the key chooses the Kafka partition.

    `identity`: columns `IDENTITY`. `keys` (null for none) and `values` are bytes. `headers`: those that each has besides; empty:
    none has.
    """

    identity: Mapping[str, pa.Array]
    keys: pa.Array
    values: pa.Array
    headers: Sequence[Mapping[str, bytes]] = ()
    partition: int | None = None


class KafkaSink:
    """Base of the Kafka sinks: sends rows to a topic."""

    _what: ClassVar[str]
    _not_sent: ClassVar[type[NotSent]]

    def __init__(self, bootstrap: str, topic: str, config: ClientConfig | None = None) -> None:
        """`bootstrap`: ``host:port[,host:port…]``. `topic` must exist. `config` is None without TLS and password."""
        self._bootstrap = bootstrap
        self._config = config
        self._topic = topic
        self._checked = False
        self._most = LARGEST

    def begin(self, batch_id: int) -> None:
        """Raises `NotSent` if the broker can't be reached or has no such topic."""
        if not self._checked:
            # Fails here, once and immediately. A worker's producer would wait for the topic to appear.
            try:
                admin = KafkaAdminClient(
                    bootstrap_servers=self._bootstrap.split(","), **_client(self._config)
                )
                try:
                    if self._topic not in admin.list_topics():
                        self._fail(UnknownTopicOrPartitionError(f"it has no topic {self._topic!r}"))
                    self._look(admin)
                finally:
                    admin.close()
            except KafkaError as error:
                self._fail(error)
            self._checked = True

    def _look(self, admin: KafkaAdminClient) -> None:
        """Let a subclass inspect its topic before the first write."""
        self._most = topic_limit(admin, self._topic)

    def _send(self, batch_id: int, records: Iterable[Outgoing]) -> None:
        """Send records and wait until Kafka has confirmed all of them. Raises `NotSent`."""
        try:
            batches = None
            for rows in records:
                if batches is None:
                    batches = RecordBatches(_producer(self._bootstrap, self._config), self._topic)
                named = {_BATCH: pa.repeat(str(batch_id).encode(), len(rows.values))}
                for header, name in zip(_HEADERS, IDENTITY, strict=True):
                    named[header] = rows.identity[name].cast(pa.string()).cast(pa.binary())
                encoded = encode(rows.keys, rows.values, encode_headers(named, rows.headers))
                if rows.partition is None:
                    batches.add_by_key(rows.keys, encoded)
                else:
                    batches.add(rows.partition, encoded)
            if batches is not None:
                batches.confirm()
        except KafkaError as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> NoReturn:
        # After a fatal error, an idempotent producer refuses everything. The next attempt needs a new one.
        _producers.pop((self._bootstrap, self._config), None)
        raise self._not_sent(
            f"Kafka at {self._bootstrap} did not take {self._what} for topic {self._topic!r}: {error!r}. "
            "Check that the broker is up and reachable from Spark's workers and that the topic exists; "
            "the query then resumes where it stopped."
        ) from error


class RecordsGone(MagnetarError, RuntimeError):
    """Kafka has no longer the records that a reader of a topic came to. The text says where, and what to do."""

    def __init__(self, topic: str, error: OffsetOutOfRangeError) -> None:
        """`error`: what kafka-python says instead of skipping them."""
        places = (f"partition {part.partition}, from offset {at} on" for part, at in error.args[0].items())
        super().__init__(
            f"topic {topic!r} no longer has the records to be read next ({'; '.join(places)}): Kafka deleted them meanwhile, as by its "
            "retention, or the topic was recreated. Nothing is skipped silently: let Kafka keep them for longer than it takes to read them "
            "(retention.ms, retention.bytes), and start again"
        )


_LIMIT = "max.message.bytes"


def topic_limit(admin: KafkaAdminClient, topic: str) -> int:
    """The bytes of the largest record that a topic takes from Magnetar's producers."""
    asked = ConfigResource(ConfigResourceType.TOPIC, topic, [_LIMIT])
    found = admin.describe_configs([asked], config_filter="all")["topic"].get(topic, {})
    # a client with write access may lack the access to describe topics
    return min(LARGEST, int(found[_LIMIT]["value"])) if _LIMIT in found else LARGEST


class KafkaResponses(KafkaSink):
    """Sends the rows that respond to a client, keyed by connection to keep their order.

    A response that is too large for the topic must not stop the query. In place of an ADMIN_RESPONSE comes one with the status 500, in place
    of any other a CLOSE_CONNECTION; either says why.

    The value is JSON: the row's non-null columns, with ``fields`` as an object. MESSAGE, and the ADMIN_RESPONSE to a call that
    asked for an entry, also have the entry: ``metadata`` (an object with fields of `MessageMetadata`) and ``payload`` (base64).
    The entry comes from its ledger, or from the row itself on non-persistent topics.
    """

    _what = "responses"
    _not_sent = ResponsesNotSent

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        config: ClientConfig | None = None,
        *,
        store: LedgerStore | None = None,
    ) -> None:
        """`bootstrap`, `topic` and `config` are those of `KafkaSink`. `store` has the entries of earlier micro-batches.

        Without a store, a message can be sent only in the batch that published it.
        """
        super().__init__(bootstrap, topic, config)
        self._store = store

    def write(self, batch_id: int, partition: int, rows: Rows) -> None:
        """Send the responses and wait until Kafka has confirmed all of them.

        Raises `ResponsesNotSent`, or `EntryNotFound` if a delivered entry can't be found.
        """
        own: dict[_Position, int] = {}
        stored = None
        if not rows.keys().isdisjoint(_WITH_ENTRIES) and KINDS[SendReceipt] in rows:
            receipts = rows[KINDS[SendReceipt]].select(_STORED)
            stored = receipts.filter(pc.greater(receipts["ledger_id"], 0))
            positions = zip(*(stored[name].to_pylist() for name in _STORED[:3]), strict=True)
            own = {position: row for row, position in enumerate(positions)}

        def outgoing(chunk: _Chunk) -> Outgoing:
            asked = {kind: _asked(batch) for kind, batch in chunk.of_kinds.items() if kind in _WITH_ENTRIES}
            wanted = {_position(row) for each in asked.values() for row in each if _is_elsewhere(row)}
            contents = self._contents(partition, wanted, stored, own)
            values = [
                _values(kind, batch, [_content(row, contents) for row in asked.get(kind, ())])
                for kind, batch in chunk.of_kinds.items()
            ]
            connections = _cut(chunk.column("connection").cast(pa.binary()))
            identity = {name: chunk.column(name) for name in IDENTITY}
            return Outgoing(identity, connections, self._fitting(chunk.in_order(values).cast(pa.binary())))

        self._send(batch_id, map(outgoing, _chunks(_answers(rows))))

    def _fitting(self, values: pa.Array) -> pa.Array:
        """The values, with others in place of those that are too large for the topic."""
        most = self._most - min(_ROOM, self._most // 4)
        if (pc.max(pc.binary_length(values)).as_py() or 0) <= most:
            return values
        return pa.array(
            [value if len(value) <= most else _without_content(value, most) for value in values.to_pylist()],
            pa.binary(),
        )

    def _contents(
        self, partition: int, wanted: set[_Position], stored: pa.Table | None, own: dict[_Position, int]
    ) -> dict[_Position, _Content]:
        """The entries at the positions `wanted`. Those of this micro-batch are `stored`, in the rows that `own` says."""
        here = sorted(own[p] for p in wanted & own.keys())
        contents = {}
        for entry in (
            stored.take(pa.array(here, pa.int64())).to_pylist() if stored is not None and here else ()
        ):
            metadata = message_metadata(*(entry[name] for name in _STORED[3:8]))
            contents[_position(entry)] = _Content(metadata, entry["payload"])
        elsewhere = sorted(wanted - contents.keys())
        if elsewhere and self._store is None:
            raise EntryNotFound(
                f"{elsewhere[0]} was published in an earlier micro-batch: give KafkaResponses a store"
            )
        if elsewhere and self._store is not None:
            reader = self._store.reader(partition)
            for topic, ledger_id, first, last in _ranges(elsewhere):
                entries = reader.read(topic, ledger_id, first, last)
                payloads = reader.payloads(topic, ledger_id, first, last)
                for entry_id, entry, payload in zip(range(first, last + 1), entries, payloads, strict=True):
                    contents[topic, ledger_id, entry_id] = _Content(entry.metadata, payload)
        return contents


_ROOM = 1 << 14
"""Bytes of a record besides its value: the connection's name and the headers."""


def _cut(keys: pa.Array) -> pa.Array:
    """Names of connections as keys. No server gives a connection a name of thousands of bytes, but a log may."""
    if (pc.max(pc.binary_length(keys)).as_py() or 0) <= _LONGEST_KEY:
        return keys
    return pa.array([key[:_LONGEST_KEY] for key in keys.to_pylist()], pa.binary())


_LONGEST_KEY = _ROOM // 2


def _without_content(value: bytes, most: int) -> bytes:
    """What is sent in place of a response that is too large."""
    row = msgspec.json.decode(value)
    why = f"the response to this request has {len(value):,} bytes, and the response topic takes {most:,}"
    kept = {name: row[name] for name in (*IDENTITY, "clock", "topic") if name in row}
    kept["connection"] = row["connection"][:_LONGEST_KEY]
    if row["kind"] == KINDS[AdminResponse]:
        fields = {"response": {"reason": why}, "status": 500}
        return _json(kept | {"kind": row["kind"], "cause": row["cause"][:_SHOWN], "fields": fields})
    return _json(kept | {"kind": KINDS[CloseConnection], "cause": why})


_SHOWN = 1000
"""Characters of the call that a response is about."""


_producers: dict[tuple[str, ClientConfig | None], KafkaProducer] = {}


def _client(config: ClientConfig | None) -> dict[str, Any]:
    return {} if config is None else config.client()


def _producer(bootstrap: str, config: ClientConfig | None) -> KafkaProducer:
    """One producer per process, because Spark unpickles the sink for every task."""
    if (bootstrap, config) not in _producers:
        _producers[bootstrap, config] = KafkaProducer(
            bootstrap_servers=bootstrap.split(","),
            acks="all",
            enable_idempotence=True,
            allow_auto_create_topics=False,  # a misspelled topic must be an error
            batch_size=1 << 18,
            max_request_size=LARGEST,
            bootstrap_timeout_ms=_PATIENCE_MS,
            max_block_ms=_PATIENCE_MS,
            reconnect_backoff_max_ms=2_000,  # a longer wait could exceed `_PATIENCE_MS`
            **_client(config),
        )
    return _producers[bootstrap, config]


class _Chunk(NamedTuple):
    """Some answers: those of each kind, and in which order they follow by identity once the kinds are put together."""

    of_kinds: Mapping[str, pa.RecordBatch]
    order: pa.Array

    def column(self, name: str) -> pa.Array:
        """A column that all kinds have, in order."""
        return self.in_order([batch[name] for batch in self.of_kinds.values()])

    def in_order(self, columns: Sequence[pa.Array]) -> pa.Array:
        """A column for each kind as one."""
        if len(columns) == 1:
            return columns[0]
        return pa.concat_arrays(columns).take(self.order)


def _answers(rows: Rows) -> dict[str, pa.Table]:
    """The rows that respond to a client, by kind."""
    answers = {}
    for kind, table in rows.items():
        if kind not in RESPONSES:
            continue
        if kind == KINDS[SendReceipt]:
            # Without the entry of a receipt: it is for the ledger store, and the client knows what it sent.
            table = table.drop_columns(["metadata", "payload"])
        answered = pc.not_equal(table["connection"], "")
        if not pc.all(answered, skip_nulls=False).as_py():
            table = table.filter(answered)
        if len(table):
            answers[kind] = table
    return answers


def _chunks(answers: Mapping[str, pa.Table]) -> Iterator[_Chunk]:
    """The answers by identity, so that they keep their order per connection: a few thousand at a time, and not many more bytes than
    `_CHUNK_BYTES`."""
    if not answers:
        return
    tables = answers.values()
    offsets, ordinals = (
        np.concatenate([table[name].to_numpy() for table in tables]) for name in ("offset", "ordinal")
    )
    order = np.lexsort((ordinals, offsets))
    kinds = np.repeat(np.arange(len(answers)), [len(table) for table in tables])[order]
    ends = np.cumsum(np.concatenate([_sizes(*each) for each in answers.items()])[order])
    done = dict.fromkeys(answers, 0)
    start, size = 0, 0
    while start < len(order):
        most = int(np.searchsorted(ends, size + _CHUNK_BYTES, side="right"))
        stop = max(start + 1, min(start + _CHUNK, most))
        own = kinds[start:stop]
        of_kinds = {}
        for (kind, table), count in zip(answers.items(), np.bincount(own).tolist(), strict=False):
            if count:
                (of_kinds[kind],) = table.slice(done[kind], count).combine_chunks().to_batches()
                done[kind] += count
        yield _Chunk(of_kinds, pa.array(np.argsort(np.argsort(own, kind="stable"))))
        start, size = stop, int(ends[stop - 1])


def _sizes(kind: str, table: pa.Table) -> npt.NDArray[np.int64]:
    """About how many bytes each answer has besides its short columns."""
    sizes = np.zeros(len(table), np.int64)
    for name in {"fields", "payload"}.intersection(table.column_names):
        sizes += pc.fill_null(pc.binary_length(table[name]), 0).to_numpy()
    if kind == KINDS[Message]:
        sizes += table["size"].to_numpy()
    if kind == KINDS[AdminResponse]:
        sizes += np.where(table["ledger_id"].is_valid(), LARGEST, 0)
    return sizes


def _values(kind: str, batch: pa.RecordBatch, contents: Sequence[_Content | None]) -> pa.Array:
    """The JSON of rows of a kind, with what they deliver. `contents`: empty, if no row of that kind ever delivers an entry."""
    columns = {name: batch[name] for name in batch.schema.names} | {"kind": pa.repeat(kind, len(batch))}
    if contents:
        for place, name in enumerate(_Content._fields):
            encoded = (None if each is None else _json(each[place]) for each in contents)
            columns[name] = pa.array(encoded, pa.string())
    ordered = {name: columns[name] for name in OUTPUT.names if name in columns}
    return encode_rows(
        {name: each for name, each in ordered.items() if each.null_count < len(batch)}, _AS_JSON
    )


_WITH_ENTRIES = (KINDS[Message], KINDS[AdminResponse])
_AS_JSON = frozenset({"fields", "metadata", "payload"})
_OF_ENTRIES = {"topic", "ledger_id", "entry_id", "metadata", "payload"}


def _asked(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """What rows say of the entries that they deliver, or that an admin call asked for."""
    rows: list[dict[str, Any]] = batch.select(
        [name for name in batch.schema.names if name in _OF_ENTRIES]
    ).to_pylist()
    return rows


def _is_elsewhere(row: dict[str, Any]) -> bool:
    """Does a row deliver an entry that is not in the row itself?"""
    return row["ledger_id"] is not None and row.get("payload") is None


def _content(row: dict[str, Any], contents: dict[_Position, _Content]) -> _Content | None:
    """The entry that a row delivers, of itself or among `contents`. None: it delivers none."""
    if row["ledger_id"] is None:
        return None
    if row.get("payload") is not None:
        return _Content(_decode(row["metadata"]), row["payload"])
    return contents[_position(row)]


def _position(row: dict[str, Any]) -> _Position:
    return row["topic"], row["ledger_id"], row["entry_id"]


def _ranges(positions: Iterable[_Position]) -> Iterator[tuple[str, int, int, int]]:
    """Merge consecutive positions into (topic, ledger, first, last)."""
    run: tuple[str, int, int, int] | None = None
    for topic, ledger_id, entry_id in positions:
        if run is not None and run[:2] == (topic, ledger_id) and run[3] + 1 == entry_id:
            run = (*run[:3], entry_id)
            continue
        if run is not None:
            yield run
        run = (topic, ledger_id, entry_id, entry_id)
    if run is not None:
        yield run


def drop_repeats(records: Iterable[Any]) -> Iterator[Any]:
    """Drop repeats from Kafka records (with `partition` and `headers`).

    Holds the identities of one micro-batch per pair of Kafka partition and ingress partition.
    """
    batches: dict[tuple[int, int], tuple[int, set[tuple[int, int]]]] = {}
    for record in records:
        headers = dict(record.headers)
        batch = int(headers[_BATCH])
        partition, offset, ordinal = (int(headers[h]) for h in _HEADERS)
        source = record.partition, partition
        current, seen = batches.get(source, (-1, set()))
        if batch > current:
            current, seen = batches[source] = batch, set()
        # Only a task that Spark gave up can still send a record of an earlier batch.
        if batch == current and (offset, ordinal) not in seen:
            seen.add((offset, ordinal))
            yield record


@checked
def read_responses(
    bootstrap: str, topic: str, *, timeout: float | None = None, config: ClientConfig | None = None
) -> Iterator[dict[str, Any]]:
    """The values of all responses from the start of the topic, without repeats, with `payload` as bytes.

    In order per connection. Reads what the topic has in any case, then ends after `timeout` seconds without a new record, or never if None.
    Raises a `MagnetarError` if Kafka deletes records before they are read.
    """
    for record in read_records(bootstrap, topic, timeout=timeout, config=config):
        value: dict[str, Any] = msgspec.json.decode(record.value)
        if "payload" in value:
            value["payload"] = base64.b64decode(value["payload"])
        yield value


def read_records(
    bootstrap: str, topic: str, *, timeout: float | None = None, config: ClientConfig | None = None
) -> Iterator[Any]:
    """The Kafka records of a sink's topic from its start, without repeats.

    Ends after `timeout` seconds without a new record, or never if None. What the topic has is read in any case, however
    slow the broker is. Raises `RecordsGone` if Kafka deletes records before they are read.
    """
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap.split(","),
        auto_offset_reset="none",  # any other skips what Kafka deletes meanwhile
        enable_auto_commit=False,
        allow_auto_create_topics=False,
        consumer_timeout_ms=float("inf") if timeout is None else timeout * 1000,
        **_client(config),
    )
    try:
        yield from drop_repeats(_until_silence(consumer, topic))
    except OffsetOutOfRangeError as error:
        raise RecordsGone(topic, error) from error
    finally:
        consumer.close()


def _until_silence(consumer: Any, topic: str) -> Iterator[Any]:
    """The client's own timeout counts while it still connects, and while a busy broker has not answered yet."""
    while True:
        try:
            yield from consumer
            numbers = consumer.partitions_for_topic(topic) or ()
            ends = consumer.end_offsets([TopicPartition(topic, each) for each in numbers]) if numbers else {}
            assigned = consumer.assignment()
            if all(each in assigned and (consumer.position(each) or 0) >= end for each, end in ends.items()):
                return
        except NoOffsetForPartitionError as error:  # at first, and when the topic gets more partitions
            consumer.seek_to_beginning(*error.args[0])
