"""Rows in a Kafka topic, one record per row: the responses to clients, and the base of other Kafka sinks.

The headers ``magnetar.partition``, ``magnetar.offset`` and ``magnetar.ordinal`` are the row's identity, and
``magnetar.batch`` is its micro-batch (decimal text). A repeated micro-batch sends its rows again, to the same Kafka
partitions. No row of a later one is sent before all of them are confirmed. So a reader can drop repeats with the memory
of one micro-batch, see `drop_repeats`.
"""

import base64
from collections.abc import Hashable, Iterable, Iterator
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple, NoReturn, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError, UnknownTopicOrPartitionError

from schemas.commands import MessageMetadata
from schemas.effects import KINDS, RESPONSES, AdminResponse, Message, SendReceipt
from schemas.entries import EntryNotFound
from schemas.outputs import IDENTITY, OUTPUT, Rows
from schemas.records import LARGEST
from sinks.ledger_reader import message_metadata
from sinks.ledger_store import LedgerStore
from sinks.record_batches import RecordBatches, encode_header, encode_headers

_BATCH = "magnetar.batch"
_HEADERS = tuple(f"magnetar.{name}" for name in IDENTITY)
_IDENTITY = tuple((header.encode(), name) for header, name in zip(_HEADERS, IDENTITY, strict=True))
_PATIENCE_MS = 20_000  # enough for a broker's restart; after that, Spark retries
_CHUNK = 4096  # rows of a kind with payloads in memory at a time

_STORED = ["topic", "ledger_id", "entry_id", "producer_name", "sequence_id", "publish_time", "partition_key",
           "metadata", "payload"]  # fmt: skip

_decode = msgspec.msgpack.Decoder(MessageMetadata).decode

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
    """A record to send for a row. Without `partition`, the key chooses the Kafka partition."""

    row: dict[str, Any]
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()
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

    def _send(self, batch_id: int, records: Iterable[Outgoing]) -> None:
        """Send records and wait until Kafka has confirmed all of them. Raises `NotSent`."""
        try:
            batches = RecordBatches(_producer(self._bootstrap, self._config), self._topic)
            batch = encode_header(_BATCH.encode(), str(batch_id).encode())
            for row, key, value, more, partition in records:
                headers = [batch, *(encode_header(name, b"%d" % row[column]) for name, column in _IDENTITY)]
                headers += [encode_header(name.encode(), said) for name, said in more]
                if partition is None:
                    partition = batches.partition_of(key or b"")
                batches.add(partition, key, value, encode_headers(headers))
            batches.confirm()
        except KafkaError as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> NoReturn:
        # After a fatal error, an idempotent producer refuses everything. The next attempt needs a new one.
        _producers.pop((self._bootstrap, self._config), None)
        raise self._not_sent(
            f"Kafka at {self._bootstrap} did not take {self._what} for topic {self._topic!r}: {error!r}. Check that "
            "the broker is up and reachable from Spark's workers and that the topic exists; the query then goes on "
            "where it stopped."
        ) from error


class KafkaResponses(KafkaSink):
    """Sends the rows that respond to a client, keyed by connection to keep their order.

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
        answers = _answers(rows)
        while chunk := list(islice(answers, _CHUNK)):
            self._send(batch_id, _outgoing(chunk, self._contents(partition, chunk, stored, own)))

    def _contents(
        self,
        partition: int,
        answers: list[dict[str, Any]],
        stored: pa.Table | None,
        own: dict[_Position, int],
    ) -> dict[_Position, _Content]:
        """The entries that `answers` deliver or were asked for, except those in the rows themselves."""
        wanted = {_position(each) for each in answers if _has_entry(each) and each.get("payload") is None}
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


def _outgoing(answers: Iterable[dict[str, Any]], contents: dict[_Position, _Content]) -> Iterator[Outgoing]:
    for answer in answers:
        value = {name: v for name, v in answer.items() if v is not None}
        if "fields" in value:
            value["fields"] = msgspec.Raw(value["fields"].encode())
        if _has_entry(answer):
            content = _carried(answer) or contents[_position(answer)]
            value |= content._asdict()
        yield Outgoing(answer, answer["connection"].encode(), msgspec.json.encode(value))


def _answers(rows: Rows) -> Iterator[dict[str, Any]]:
    """The responses among the rows of all kinds, by identity, so that they keep their order per connection."""
    of_kinds = [_answers_of(kind, rows[kind]) for kind in rows if kind in RESPONSES]
    return merge(*of_kinds, key=itemgetter("offset", "ordinal"))


def _answers_of(kind: str, table: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows of a kind, with the kind as in `OUTPUT`, and without columns that are null. Holds a few thousand in memory at a time."""
    if kind == KINDS[SendReceipt]:
        # Without the entry of a receipt: it is for the ledger store, and the client knows what it sent.
        table = table.drop_columns(["metadata", "payload"])
    before = table.column_names.index("clock") + 1  # no column before it is ever null
    for batch in table.to_batches(max_chunksize=_CHUNK):
        own = batch.filter(pc.greater(pc.utf8_length(batch["connection"]), 0))
        if not len(own):
            continue
        own = own.drop_columns([name for name in own.column_names if own[name].null_count == len(own)])
        own = own.add_column(before, OUTPUT.field("kind"), pa.repeat(pa.scalar(kind), len(own)))
        yield from own.to_pylist()


_WITH_ENTRIES = (KINDS[Message], KINDS[AdminResponse])


def _has_entry(answer: dict[str, Any]) -> bool:
    """Does a row deliver an entry, or answer an admin call that asked for one?"""
    return answer["kind"] in _WITH_ENTRIES and answer.get("ledger_id") is not None


def _carried(answer: dict[str, Any]) -> _Content | None:
    """The entry in a row, or None if the row has none."""
    if answer.get("payload") is None:
        return None
    return _Content(_decode(answer["metadata"]), answer["payload"])


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


def read_responses(
    bootstrap: str, topic: str, *, timeout: float | None = None, config: ClientConfig | None = None
) -> Iterator[dict[str, Any]]:
    """The values of all responses from the start of the topic, without repeats, with `payload` as bytes.

    In order per connection. Ends after `timeout` seconds without a new record, or never if None.
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

    Ends after `timeout` seconds without a new record, or never if None.
    """
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap.split(","),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        allow_auto_create_topics=False,
        consumer_timeout_ms=float("inf") if timeout is None else timeout * 1000,
        **_client(config),
    )
    try:
        yield from drop_repeats(consumer)
    finally:
        consumer.close()
