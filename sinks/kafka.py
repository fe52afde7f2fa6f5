"""Rows in a Kafka topic, one record a row: the responses to clients, and what other sinks on Kafka share.

A row's identity is in the record's headers ``magnetar.partition``, ``magnetar.offset`` and ``magnetar.ordinal``, its
micro-batch in ``magnetar.batch`` (decimal text). A micro-batch that runs again sends its rows again, to the same Kafka
partitions, and none of a later one before all of its own are confirmed: so a reader drops repeats with the memory of
one micro-batch, see `drop_repeats`.
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
from schemas.effects import KINDS, RESPONSES, Message, SendReceipt
from schemas.entries import EntryNotFound
from schemas.outputs import IDENTITY, OUTPUT, Rows
from schemas.records import LARGEST
from sinks.ledger_reader import message_metadata
from sinks.ledger_store import LedgerStore

_BATCH = "magnetar.batch"
_HEADERS = tuple(f"magnetar.{name}" for name in IDENTITY)
_PATIENCE_MS = 20_000  # for a broker that restarts; then Spark's own retries begin
_CHUNK = 4096  # rows of a kind whose payloads are in memory at a time

_STORED = ["topic", "ledger_id", "entry_id", "producer_name", "sequence_id", "publish_time", "partition_key",
           "metadata", "payload"]  # fmt: skip

_decode = msgspec.msgpack.Decoder(MessageMetadata).decode

_Position = tuple[str, int, int]


class _Content(NamedTuple):
    metadata: MessageMetadata
    payload: bytes


class ClientConfig(Hashable, Protocol):
    """How to connect to a Kafka with TLS or a password. Sinks are pickled: it should hold a path and no secret."""

    def client(self) -> dict[str, Any]:
        """Keyword arguments for a client of kafka-python, read anew for each connection."""


class NotSent(RuntimeError):
    """Kafka didn't take a sink's records; the micro-batch fails and can run again."""


class ResponsesNotSent(NotSent):
    """Kafka didn't take the responses."""


class Outgoing(NamedTuple):
    """A record to be sent for a row. Without `partition` the key decides."""

    row: dict[str, Any]
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int | None = None


class KafkaSink:
    """A topic that rows are sent to: what the sinks on Kafka share."""

    _what: ClassVar[str]
    _not_sent: ClassVar[type[NotSent]]

    def __init__(self, bootstrap: str, topic: str, config: ClientConfig | None = None) -> None:
        """`bootstrap`: ``host:port[,host:port…]``. `topic` must exist. `config`: None for neither TLS nor a password."""
        self._bootstrap = bootstrap
        self._config = config
        self._topic = topic
        self._checked = False

    def begin(self, batch_id: int) -> None:
        """Raises `NotSent` if the broker can't be reached or has no such topic."""
        if not self._checked:
            # Said here once and at once; a worker's producer would wait for the topic to appear.
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
        """What else a sink wants to know of its topic before the first write."""

    def _send(self, batch_id: int, records: Iterable[Outgoing]) -> None:
        """Returns when Kafka has confirmed every record. Raises `NotSent`."""
        try:
            producer = _producer(self._bootstrap, self._config)
            batch = _BATCH, str(batch_id).encode()
            futures = []
            for row, key, value, more, partition in records:
                identity = (
                    (header, str(row[name]).encode()) for header, name in zip(_HEADERS, IDENTITY, strict=True)
                )
                headers = [batch, *identity, *more]
                futures.append(producer.send(self._topic, value, key, headers, partition))
            # Not flush(): it fails when Kafka has a batch split because the topic takes only smaller ones.
            for future in futures:
                future.get()
        except KafkaError as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> NoReturn:
        # After a fatal error an idempotent producer refuses everything; the next attempt needs a new one.
        _producers.pop((self._bootstrap, self._config), None)
        raise self._not_sent(
            f"Kafka at {self._bootstrap} did not take {self._what} for topic {self._topic!r}: {error!r}. Check that "
            "the broker is up and reachable from Spark's workers and that the topic exists; the query then goes on "
            "where it stopped."
        ) from error


class KafkaResponses(KafkaSink):
    """Sends the rows that answer a client, keyed by connection: a connection's answers keep their order.

    The value is JSON: the row's columns that are not null, ``fields`` as an object, and for MESSAGE also the entry:
    ``metadata`` (an object, fields of `MessageMetadata`) and ``payload`` (base64). The entry comes from its ledger, or
    from the row itself if that carries it, as those of non-persistent topics do.
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
        """`bootstrap`, `topic`, `config`: as of `KafkaSink`. `store`: where the entries of earlier
        micro-batches are; without it only messages published in the batch that delivers them can be sent."""
        super().__init__(bootstrap, topic, config)
        self._store = store

    def write(self, batch_id: int, partition: int, rows: Rows) -> None:
        """Returns when Kafka has confirmed every record. Raises `ResponsesNotSent`, and `EntryNotFound` if a delivered
        entry can't be found."""
        own: dict[_Position, int] = {}
        stored = None
        if KINDS[Message] in rows and KINDS[SendReceipt] in rows:
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
        """The entries that the MESSAGE rows among `answers` deliver and don't carry themselves."""
        wanted = {_position(a) for a in answers if a["kind"] == KINDS[Message] and a["payload"] is None}
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
    """One for the process: Spark unpickles the sink for every task."""
    if (bootstrap, config) not in _producers:
        _producers[bootstrap, config] = KafkaProducer(
            bootstrap_servers=bootstrap.split(","),
            acks="all",
            enable_idempotence=True,
            allow_auto_create_topics=False,  # a misspelt topic must be an error
            linger_ms=5,
            batch_size=1 << 18,
            max_request_size=LARGEST,
            bootstrap_timeout_ms=_PATIENCE_MS,
            max_block_ms=_PATIENCE_MS,
            reconnect_backoff_max_ms=2_000,  # else it may wait for longer than the patience lasts
            **_client(config),
        )
    return _producers[bootstrap, config]


def _outgoing(answers: Iterable[dict[str, Any]], contents: dict[_Position, _Content]) -> Iterator[Outgoing]:
    for answer in answers:
        value = {name: v for name, v in answer.items() if v is not None}
        if "fields" in value:
            value["fields"] = msgspec.Raw(value["fields"].encode())
        if answer["kind"] == KINDS[Message]:
            content = _carried(answer) or contents[_position(answer)]
            value |= content._asdict()
        yield Outgoing(answer, answer["connection"].encode(), msgspec.json.encode(value))


def _answers(rows: Rows) -> Iterator[dict[str, Any]]:
    """The rows that answer a client, of all kinds, in identity order: a connection's answers keep their order."""
    of_kinds = [_answers_of(kind, rows[kind]) for kind in rows if kind in RESPONSES]
    return merge(*of_kinds, key=itemgetter("offset", "ordinal"))


def _answers_of(kind: str, table: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows of a kind, a few thousand in memory at a time, with their kind where `OUTPUT` has it."""
    table = table.filter(pc.greater(pc.utf8_length(table["connection"]), 0))
    if kind == KINDS[SendReceipt]:
        # The entries are for the ledger store; a client knows what it sent.
        table = table.drop_columns(["metadata", "payload"])
    before = table.column_names.index("clock") + 1
    table = table.add_column(before, OUTPUT.field("kind"), pa.repeat(pa.scalar(kind), len(table)))
    for batch in table.to_batches(max_chunksize=_CHUNK):
        yield from batch.to_pylist()


def _carried(answer: dict[str, Any]) -> _Content | None:
    """The entry in a MESSAGE row itself, if it is there."""
    if answer["payload"] is None:
        return None
    return _Content(_decode(answer["metadata"]), answer["payload"])


def _position(row: dict[str, Any]) -> _Position:
    return row["topic"], row["ledger_id"], row["entry_id"]


def _ranges(positions: Iterable[_Position]) -> Iterator[tuple[str, int, int, int]]:
    """(topic, ledger, first, last) of consecutive positions."""
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
    """Of Kafka records (with `partition` and `headers`), those that aren't repeats. Memory: the identities of one
    micro-batch for each pair of Kafka partition and ingress partition."""
    batches: dict[tuple[int, int], tuple[int, set[tuple[int, int]]]] = {}
    for record in records:
        headers = dict(record.headers)
        batch = int(headers[_BATCH])
        partition, offset, ordinal = (int(headers[h]) for h in _HEADERS)
        source = record.partition, partition
        current, seen = batches.get(source, (-1, set()))
        if batch > current:
            current, seen = batches[source] = batch, set()
        # A record of an earlier batch can only be from a task that Spark had given up.
        if batch == current and (offset, ordinal) not in seen:
            seen.add((offset, ordinal))
            yield record


def read_responses(
    bootstrap: str, topic: str, *, timeout: float | None = None, config: ClientConfig | None = None
) -> Iterator[dict[str, Any]]:
    """The values of all responses from the topic's beginning, repeats dropped, `payload` as bytes. In order for a
    connection. Ends after `timeout` seconds without a new record; None: never."""
    for record in read_records(bootstrap, topic, timeout=timeout, config=config):
        value: dict[str, Any] = msgspec.json.decode(record.value)
        if "payload" in value:
            value["payload"] = base64.b64decode(value["payload"])
        yield value


def read_records(
    bootstrap: str, topic: str, *, timeout: float | None = None, config: ClientConfig | None = None
) -> Iterator[Any]:
    """The Kafka records of a sink's topic from its beginning, repeats dropped. Ends after `timeout` seconds without a
    new record; None: never."""
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
