"""The worked cases of docs/rules/compaction.md: what compaction keeps, who gets it, and what else there is of it."""

import re
from typing import Any
from unittest.mock import Mock, patch

import pytest

from schemas.commands import (
    Admin,
    EncryptionKeys,
    GetLastMessageId,
    MessageIdData,
    MessageMetadata,
    Send,
    Tick,
)
from schemas.effects import (
    AdminResponse,
    CompactedEntry,
    CursorMoved,
    GetLastMessageIdResponse,
    LedgerClosed,
    LedgerDeleted,
    Message,
    TopicEvent,
)
from schemas.entries import Entry
from streaming.broker.entries import Entries, NoPayloads, no_payloads
from streaming.broker.persistent.compaction import batches, compactor
from streaming.broker.persistent.topic import SHADOW_SOURCE
from streaming.broker.position import Position
from tests.broker.kit import TOPIC, Run, Stored, batch_of, of, one, response

pytestmark = pytest.mark.feature("C4")

SMALL: dict[str, Any] = {
    "managedLedgerMaxEntriesPerLedger": 3,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "managedLedgerDefaultMarkDeleteRateLimit": 0,
}
EARLIEST = MessageIdData(2**64 - 1, 2**64 - 1)


class Topic(Run):
    """A topic to compact: its first producer, and readers that name themselves."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.create_producer()
        self.sequence = self.readers = 0

    def put(self, key: str | None, payload: bytes, **metadata: Any) -> list[Any]:
        """SEND a message with the size that official clients tell."""
        metadata = {"partition_key": key, "uncompressed_size": len(payload), **metadata}
        return self._send(payload, 1, metadata)

    def batch(self, *messages: tuple[str | None, bytes], **metadata: Any) -> list[Any]:
        payload = metadata.pop("payload", None)
        given = batch_of(messages) if payload is None else payload
        known = {"num_messages_in_batch": len(messages), "uncompressed_size": len(batch_of(messages))}
        return self._send(given, len(messages), known | metadata)

    def _send(self, payload: bytes, count: int, metadata: dict[str, Any]) -> list[Any]:
        first = self.sequence
        self.sequence += count
        return self.do(
            Send(
                connection="client", producer_id=1, sequence_id=first, num_messages=count, payload_bytes=payload,
                metadata=MessageMetadata("p", first, self.now, **metadata),
            )
        )  # fmt: skip

    def compact(self) -> list[Any]:
        return self.admin("PUT", "/compaction")

    def status(self) -> Any:
        return one(self.admin("GET", "/compaction"), AdminResponse).fields.response

    def reader(
        self, start: MessageIdData = EARLIEST, *, permits: int = 100, compacted: bool = True
    ) -> tuple[str, list[Message]]:
        """The name of a new reader, and what it gets."""
        self.readers += 1
        name = f"reader{self.readers}"
        effects = self.subscribe(
            name, durable=False, start_message_id=start, read_compacted=compacted, permits=permits
        )
        return name, of(effects, Message)

    def read(self, **how: Any) -> list[tuple[str, bytes | None]]:
        return [(f"{each.ledger_id}:{each.entry_id}", each.payload) for each in self.reader(**how)[1]]

    def last(self, name: str) -> tuple[int, int, int]:
        found = one(
            self.do(GetLastMessageId(connection=name, consumer_id=1, request_id=self.request())),
            GetLastMessageIdResponse,
        )
        return found.ledger_id, found.entry_id, found.fields.batch_index


def test_the_last_message_of_each_key_stays() -> None:
    topic = Topic()
    assert topic.status() == {"status": "NOT_RUN", "lastError": ""}
    for key, payload in [("a", b"a1"), ("b", b"b1"), ("a", b"a2"), ("c", b"c1"), ("c", b"")]:
        topic.put(key, payload)
    effects = topic.compact()
    copies = of(effects, CompactedEntry)
    assert [(each.ledger_id, each.entry_id, each.fields.position) for each in copies] == [
        (2, 0, "1:1"),
        (2, 1, "1:2"),
    ]
    assert one(effects, LedgerClosed)[:3] == (TOPIC, 2, 2)
    moved = one(effects, CursorMoved)
    assert (moved.subscription, moved.after_entry, moved.entries) == ("__compaction", 4, 5)
    assert one(effects, AdminResponse).fields.status == 204
    assert topic.status() == {"status": "SUCCESS", "lastError": ""}
    assert topic.read() == [("1:1", b"b1"), ("1:2", b"a2")]
    assert [each.entry_id for each in topic.reader(compacted=False)[1]] == [0, 1, 2, 3, 4]
    stats = response(topic.admin("GET", "/stats"))["compaction"]
    assert stats["lastCompactionRemovedEventCount"] == 2
    assert stats["lastCompactionSucceedTimestamp"] == topic.now


def test_a_reader_goes_on_in_the_topic_behind_the_horizon() -> None:
    topic = Topic()
    for key in "aabb":
        topic.put(key, b"1")
    topic.compact()
    topic.put("a", b"2")
    name, found = topic.reader(permits=1)
    assert [(each.entry_id, each.payload) for each in found] == [(1, b"1")]
    assert [(each.entry_id, each.payload) for each in of(topic.flow(name, 2), Message)] == [
        (3, b"1"),
        (4, None),
    ]
    assert topic.last(name) == (1, 4, -1)
    assert [each.entry_id for each in of(topic.put("c", b"3"), Message)] == []
    assert [each.entry_id for each in of(topic.flow(name, 1), Message)] == [5]
    assert topic.read(start=MessageIdData(1, 2)) == [("1:3", b"1"), ("1:4", None), ("1:5", None)]
    assert topic.read(start=MessageIdData(1, 5)) == [("1:5", None)]
    seeker, _ = topic.reader()
    topic.seek(seeker, (1, 0))
    again = topic.subscribe(
        seeker, durable=False, start_message_id=MessageIdData(1, 0), read_compacted=True, permits=1
    )
    assert [each.entry_id for each in of(again, Message)] == [1]


@pytest.mark.parametrize(
    ("metadata", "stays"),
    [
        ({"uncompressed_size": 0}, False),
        ({"uncompressed_size": None}, True),
        ({"uncompressed_size": 0, "null_value": True}, False),
        ({"uncompressed_size": 7}, True),
    ],
)
def test_an_empty_message_deletes_its_key_if_it_tells_its_size(metadata: dict[str, Any], stays: bool) -> None:
    topic = Topic()
    topic.put("a", b"1")
    topic.put("a", b"", **metadata)
    topic.compact()
    assert topic.read() == ([("1:1", b"")] if stays else [])


@pytest.mark.parametrize(
    ("profile", "plain", "null"),
    [
        ("2.10", False, True),
        ("3.0", False, True),
        ("4.0", True, True),
        ("4.2", False, False),
        ("5.0", False, False),
    ],
)
def test_what_deletes_a_key_in_other_releases(profile: str, plain: bool, null: bool) -> None:
    """An empty message that does not tell its size, and a null value that says that it is not empty."""
    topic = Topic(profile=profile)
    for key, metadata in (
        ("a", {"uncompressed_size": None}),
        ("b", {"uncompressed_size": 7, "null_value": True}),
    ):
        topic.put(key, b"1")
        topic.put(key, b"", **metadata)
    topic.put("c", b"1")
    topic.compact()
    kept = [each for each, stays in (("1:1", plain), ("1:3", null), ("1:4", True)) if stays]
    assert [position for position, _ in topic.read()] == kept


def test_in_4_2_a_batch_names_what_stayed_and_nothing_new_changes_nothing() -> None:
    topic = Topic(profile="4.2")
    topic.batch(("a", b"a1"), ("b", b"b1"), ("c", b"c1"))
    topic.put("b", b"b2")
    topic.put("b", b"")
    topic.compact()
    (kept,) = topic.reader()[1]
    assert kept.metadata is not None
    assert kept.metadata.compacted_batch_indexes == [0, 2]
    before = topic.topic.compaction.ledger
    topic.compact()
    assert topic.topic.compaction.ledger is before


def test_batches_keep_their_places() -> None:
    topic = Topic()
    topic.batch(("a", b"a1"), ("b", b"b1"), ("c", b"c1"))
    topic.batch(("a", b"a2"), ("b", b""), (None, b"n"))
    topic.batch(("x", b""), ("x", b""))
    topic.compact()
    name, found = topic.reader()
    assert [(each.entry_id, each.messages) for each in found] == [(0, 3), (1, 3)]
    kept = [
        batches.singles(MessageMetadata("p", 0, 0, num_messages_in_batch=3), each.payload or b"")
        for each in found
    ]
    assert [[each.is_removed for each in messages] for messages in kept] == [
        [True, True, False],
        [False, True, True],
    ]
    assert [each.metadata.uncompressed_size for each in found if each.metadata] == [
        len(each.payload or b"") for each in found
    ]
    assert topic.last(name) == (1, 1, 0)
    assert topic.topic.subscriptions["__compaction"].messages_out == 16
    topic.batch(("c", b"c2"), ("a", b""))
    topic.compact()
    assert topic.read()[0][0] == "1:3"
    assert len(topic.read()) == 1


@pytest.mark.parametrize("retain", [False, True])
def test_messages_without_a_key(retain: bool) -> None:
    topic = Topic(topicCompactionRetainNullKey=retain)
    topic.put(None, b"n")
    topic.batch((None, b"n1"), ("a", b"a"))
    topic.compact()
    (*_, (_, batch)) = found = topic.read()
    assert [place for place, _ in found] == (["1:0", "1:1"] if retain else ["1:1"])
    messages = batches.singles(MessageMetadata("p", 0, 0, num_messages_in_batch=2), batch or b"")
    assert [each.is_removed for each in messages] == [not retain, False]


@pytest.mark.parametrize("codec", ["LZ4", "ZSTD", "SNAPPY", "ZLIB"])
def test_compressed_batches_are_compressed_again(codec: str) -> None:
    topic = Topic()
    messages = (("a", b"1" * 99), ("b", b"2" * 99))
    for left in (messages, (("b", b"3" * 99), ("a", b""))):
        topic.batch(*left, payload=batches.COMPRESS[codec](batch_of(left)), compression=codec)
    topic.compact()
    (found,) = topic.reader()[1]
    assert found.metadata is not None
    assert found.metadata.compression == codec
    singles = batches.singles(found.metadata, found.payload or b"")
    assert [(each.key, each.is_removed) for each in singles] == [("b", False), (None, True)]
    topic.compact()
    assert topic.topic.compaction.error == ""


@pytest.mark.parametrize("codec", ["LZ4", "ZSTD", "SNAPPY", "ZLIB"])
def test_a_batch_that_cant_be_uncompressed_stays_whole(codec: str) -> None:
    topic = Topic()
    topic.batch(("a", b"1"), ("a", b"2"), payload=b"damaged, and so no batch at all", compression=codec)
    topic.put("a", b"3")
    topic.compact()
    assert topic.read() == [("1:0", b"damaged, and so no batch at all"), ("1:1", b"3")]


def test_an_encrypted_batch_is_one_message() -> None:
    topic = Topic()
    topic.batch(("a", b"1"), ("b", b"2"), encryption_keys=[EncryptionKeys("k", b"v")], partition_key="k")
    topic.compact()
    assert [place for place, _ in topic.read()] == ["1:0"]


@pytest.mark.parametrize(
    ("payload", "size", "cause"),
    [
        (b"", 20, "a batch ends within a message"),
        (b"\0\0\0\x02\x18\x05x", 20, "a batch ends within the payload of a message"),
        (b"\0\0\0\x01\x80", 20, "the metadata of a message in a batch is cut off"),
        (b"\0\0\0\x02\x12\x05", 20, "the metadata of a message in a batch is cut off"),
        (b"\0\0\0\x0b" + b"\xff" * 11, 20, "the metadata of a message in a batch is cut off"),
        (b"\0\0\0\x01\x1d", 20, "the metadata of a message in a batch has a field of wire type 5"),
        (b"x", (32 << 20) + 1, "a batch has 33554433 bytes uncompressed, at most 33554432 are read"),
    ],
)
def test_a_batch_that_is_none_makes_compaction_fail(payload: bytes, size: int, cause: str) -> None:
    topic = Topic()
    topic.put("a", b"1")
    topic.batch(("a", b"2"), payload=payload, uncompressed_size=size)
    event = of(topic.compact(), TopicEvent)[-1]
    assert event.cause == f"not compacted: {cause}"
    assert topic.status() == {"status": "ERROR", "lastError": cause}
    assert topic.topic.compaction.failed == topic.now
    assert [place for place, _ in topic.read()] == ["1:0", "1:1"]


_REMOVED = bytes.fromhex("0000000418002001")


@pytest.mark.parametrize(
    ("codec", "messages", "unpacked", "what"),
    [
        *((codec, 100_000, bytes(400_000), "messages") for codec in ("LZ4", "ZSTD", "ZLIB")),
        ("ZSTD", 100_000, _REMOVED * 100_000, "messages"),
        ("ZSTD", 1, bytes(32 << 20), "bytes uncompressed"),
    ],
    ids=["LZ4", "ZSTD", "ZLIB", "compacted-out", "bytes"],
)
def test_batches_that_unpack_to_too_much_make_compaction_fail(
    codec: str, messages: int, unpacked: bytes, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, few of them are unpacked."""
    unpacks = Mock(wraps=batches.singles)
    monkeypatch.setattr(batches, "singles", unpacks)
    payload = batches.COMPRESS[codec](unpacked)
    known = {"num_messages_in_batch": messages, "uncompressed_size": len(unpacked), "compression": codec}
    topic = Topic()
    for _ in range(50):
        topic.batch(payload=payload, **known)
    topic.compact()
    status = topic.status()
    assert status["status"] == "ERROR"
    assert re.fullmatch(
        rf"batches of \d+ {what} in \d+ bytes of entries, at most \d+ are read", status["lastError"]
    )
    assert unpacks.call_count < 30


@pytest.mark.parametrize("codec", ["LZ4", "ZSTD", "SNAPPY", "ZLIB"])
def test_batches_as_clients_make_them_are_not_too_much(codec: str) -> None:
    """A thousand small messages each, of which one stays, compacted again."""
    topic = Topic()
    for number in range(120):
        messages = [(f"stays-{number}", b"x"), *((f"key-{each}", b"x") for each in range(999))]
        topic.batch(*messages, payload=batches.COMPRESS[codec](batch_of(messages)), compression=codec)
    for _ in range(2):
        topic.compact()
        assert topic.status()["status"] == "SUCCESS"


@pytest.mark.parametrize("why", ["batch", "consumer", "creation"])
def test_the_check_tries_again_when_what_made_compaction_fail_has_changed(why: str) -> None:
    """A year has half a million rounds, of which each would read the whole topic."""
    topic = Topic(brokerServiceCompactionThresholdInBytes=1, allowAutoSubscriptionCreation=why != "creation")
    topic.admin("PUT", "/subscription/other")
    topic.put("a", b"1")
    topic.put("a", b"2")
    if why == "batch":
        topic.batch(("a", b"2"), payload=b"", uncompressed_size=20)
    elif why == "consumer":
        topic.subscribe("__compaction", durable=True)
    else:
        topic.admin("DELETE", "/subscription/__compaction")
    topic.now += 365 * 86_400_000
    rows = topic.do(Tick())
    assert topic.status()["status"] == "ERROR"
    assert sum(type(each) is TopicEvent and each.cause.startswith("not compacted") for each in rows) == 1
    if why == "batch":
        topic.put("a", b"3")
        topic.admin("POST", "/subscription/__compaction/skip/3")
    elif why == "consumer":
        topic.close_consumer("__compaction")
    else:
        topic.namespace("POST", "autoSubscriptionCreation", {"allowAutoSubscriptionCreation": True})
    topic.now += 60_000
    rows = topic.do(Tick())
    assert any(type(each) is TopicEvent and "compacted" in each.cause for each in rows)


@pytest.mark.parametrize("keys", [[], ["a"]], ids=["alone", "last"])
def test_a_silence_has_few_compactions(keys: list[str]) -> None:
    """Also where compaction leaves more than the threshold, as a marker between brokers is, which has no message behind it."""
    topic = Topic(brokerServiceCompactionThresholdInBytes=1)
    for key in keys:
        topic.put(key, b"1")
    topic.put("a", b"1", marker_type=10)
    topic.now += 60_000
    topic.do(Tick())
    with patch.object(compactor, "compact", wraps=compactor.compact) as compacts:
        topic.now += 7 * 86_400_000
        topic.do(Tick())
    assert compacts.call_count < 3


def test_fields_that_compaction_does_not_know_are_no_matter() -> None:
    single = b"\x0a\x02zz\x12\x01k\x18\x01\x28\x07\x40\x09\x48\x00"
    payload = len(single).to_bytes(4, "big") + single + b"v"
    (found,) = batches.singles(MessageMetadata("p", 0, 0, num_messages_in_batch=1), payload)
    assert tuple(found) == ("k", 1, False, payload)
    assert batches.last_index([True]) == -1


def test_the_subscription_holds_ledgers_that_compaction_frees() -> None:
    topic = Topic(**SMALL)
    topic.admin("POST", "/compactionThreshold", 1 << 40)
    for number in range(7):
        topic.put("ab"[number % 2], b"%d" % number)
    assert list(topic.topic.ledger.ledgers) == [1, 2, 3]
    effects = topic.compact()
    assert [(each.ledger_id, each.cause) for each in of(effects, LedgerDeleted)] == [
        (1, "retention size"),
        (2, "retention size"),
    ]
    assert topic.read() == [("2:2", b"5"), ("3:0", b"6")]
    assert topic.reader(compacted=False)[1][0].ledger_id == 3
    topic.put("a", b"7")
    effects = topic.compact()
    assert [(each.ledger_id, each.cause) for each in of(effects, LedgerDeleted)] == [
        (4, "compacted ledger: another compaction")
    ]
    assert [copy.ledger_id for copy in of(effects, CompactedEntry)] == [5, 5]
    topic.put("a", b"8")
    topic.put("b", b"9")
    assert list(topic.topic.ledger.ledgers) == [3, 6], "the id of a compacted ledger is no other ledger's"
    _, found = topic.reader()
    assert [(each.ledger_id, each.entry_id) for each in found] == [(2, 2), (3, 1), (3, 2), (6, 0)]


def test_what_reads_compacted_data_is_not_moved_by_a_trim() -> None:
    topic = Topic(**SMALL)
    topic.admin("POST", "/compactionThreshold", 1 << 40)
    for number in range(3):
        topic.put("ab"[number % 2], b"%d" % number)
    name, _ = topic.reader(permits=1)
    plain, _ = topic.reader(permits=1, compacted=False)
    topic.compact()
    topic.put("c", b"3")
    topic.compact()
    assert topic.mark_delete(name) < topic.mark_delete(plain)
    assert [(each.ledger_id, each.entry_id) for each in of(topic.flow(name, 9), Message)] == [
        (1, 1),
        (1, 2),
        (2, 0),
    ]


def test_what_reads_compacted_data_may_acknowledge_what_a_trim_deleted() -> None:
    """As recorded by parity: its cursor stays behind, and moves with acks in deleted ledgers."""
    topic = Topic(**SMALL)
    topic.put("a", b"0")
    cumulative, _ = topic.reader()
    single, _ = topic.reader()
    for number in range(7):
        topic.put("ab"[number % 2], b"%d" % number)
    assert list(topic.topic.ledger.ledgers) == [3]
    topic.ack(cumulative, (1, 1), cumulative=True)
    assert topic.mark_delete(cumulative) == (1, 1)
    topic.ack(single, (1, 0))
    assert topic.mark_delete(single) == (1, 0)


def test_the_second_phase_begins_at_the_first_message_that_stays() -> None:
    """Stats count what each phase reads."""
    topic = Topic()
    topic.put("a", b"")
    topic.put("a", b"")
    topic.compact()  # nothing stays, so the second phase begins at the last message
    assert topic.topic.subscriptions["__compaction"].messages_out == 2 + 1
    topic.put("a", b"")
    topic.put("b", b"1")
    topic.put("b", b"2")
    topic.compact()
    assert topic.topic.subscriptions["__compaction"].messages_out == 3 + (3 + 2)


@pytest.mark.parametrize(("profile", "counted"), [("3.0", 4), ("4.2", 6)])
def test_the_second_phase_of_4_2_begins_at_the_first_new_message(profile: str, counted: int) -> None:
    """Two empty values, and a message that stays, which 3.0 reads a second time alone."""
    topic = Topic(profile=profile)
    topic.put("a", b"")
    topic.put("b", b"")
    topic.put("c", b"1")
    topic.compact()
    assert topic.read() == [("1:2", b"1")]
    assert response(topic.admin("GET", "/stats"))["subscriptions"]["__compaction"]["msgOutCounter"] == counted


def test_what_was_skipped_in_4_2_is_not_read_twice() -> None:
    topic = Topic(profile="4.2")
    for key in "ab":
        topic.put(key, b"1")
    topic.admin("POST", "/compactionThreshold", 1 << 40)
    topic.admin("POST", "/subscription/__compaction/skip/1")
    topic.compact()
    assert topic.read() == [("1:1", b"1")]
    assert response(topic.admin("GET", "/stats"))["subscriptions"]["__compaction"]["msgOutCounter"] == 2


def test_a_compaction_that_moves_within_a_ledger_frees_it() -> None:
    """As recorded by parity: its seek goes back to the ledger of the first message that stays, which the acknowledgment leaves."""
    topic = Topic(**SMALL)
    for key in "abc":
        topic.put(key, b"1")
    topic.compact()
    topic.put("d", b"1")
    topic.put("e", b"1")
    topic.compact()
    topic.put("f", b"1")
    assert list(topic.topic.ledger.ledgers) == [2, 5]
    assert [each.ledger_id for each in of(topic.compact(), LedgerDeleted)] == [4, 2]


def test_the_subscription_reads_as_a_reader_of_compacted_data() -> None:
    """As recorded by parity: also where the topic has nothing any more."""
    topic = Topic(**SMALL)
    for number in range(6):
        topic.put("a", b"%d" % number)
    assert topic.topic.ledger.total_size == 0
    topic.compact()
    cursor = topic.topic.cursors["__compaction"]
    assert (cursor.mark_delete, cursor.read_position) == ((2, -1), (2, 0))
    topic = Topic()
    topic.subscribe("s")
    topic.put("a", b"1")
    topic.ack("s", (1, 0))
    topic.compact()
    topic.admin("PUT", "/unload")
    topic.admin("PUT", "/unload")
    topic.compact()
    cursor = topic.topic.cursors["__compaction"]
    assert topic.topic.ledger.total_size == 0
    assert (cursor.mark_delete, cursor.read_position) == ((1, 0), (1, 1))
    topic.subscribe("s", read_compacted=True, permits=3)
    assert topic.topic.cursors["s"].read_position == (1, 1)


def test_what_was_skipped_for_the_subscription_is_not_kept() -> None:
    """As recorded by parity: the first phase begins behind its mark-delete position, the second one goes back."""
    topic = Topic()
    topic.put("a", b"1")
    topic.compact()
    topic.put("b", b"1")
    topic.put("c", b"1")
    topic.admin("POST", "/subscription/__compaction/skip/1")
    topic.compact()
    assert topic.read() == [("1:0", b"1"), ("1:2", b"1")]
    assert topic.topic.subscriptions["__compaction"].messages_out == 2 + 2 + 3
    topic.put("d", b"1")
    topic.admin("POST", "/subscription/__compaction/skip_all")
    topic.compact()
    assert topic.status()["status"] == "ERROR"
    assert topic.status()["lastError"].endswith("Timeout")
    topic.put("e", b"1")
    topic.compact()
    assert topic.read() == [("1:0", b"1"), ("1:2", b"1"), ("1:4", b"1")]


def test_a_threshold_compacts_at_the_check() -> None:
    topic = Topic(brokerServiceCompactionMonitorIntervalInSeconds=60)
    assert "__compaction" not in topic.topic.subscriptions
    topic.namespace("PUT", "compactionThreshold", 100)
    assert "__compaction" in topic.topic.subscriptions
    topic.admin("POST", "/compactionThreshold", 60)
    assert one(topic.admin("GET", "/compactionThreshold"), AdminResponse).fields.response == 60
    topic.put("a", b"1")
    assert of(topic.wait(61), CompactedEntry) == []
    topic.put("a", b"2")
    topic.put("a", b"3")
    assert len(of(topic.wait(61), CompactedEntry)) == 1
    assert of(topic.wait(61), CompactedEntry) == []
    topic.admin("DELETE", "/compactionThreshold")
    applied = topic.admin("GET", "/compactionThreshold?applied=true")
    assert one(applied, AdminResponse).fields.response == 100


def test_a_threshold_of_the_broker_counts_what_is_stored() -> None:
    """Where the subscription could not be there from the beginning."""
    topic = Topic()
    topic.put("a", b"1" * 100)
    topic.put("a", b"2" * 100)
    topic.configure(brokerServiceCompactionThresholdInBytes=200)
    assert of(topic.check("compaction"), CompactedEntry)
    other = Topic()
    other.put("a", b"1" * 100)
    other.subscribe("s", earliest=False)
    other.put("a", b"2" * 100)
    other.configure(brokerServiceCompactionThresholdInBytes=200)
    assert of(other.check("compaction"), CompactedEntry) == [], "the slowest subscription has less than that"
    assert one(other.admin("GET", "/compactionThreshold?applied=true"), AdminResponse).fields.response == 200


def test_what_does_not_concern_the_compaction_subscription() -> None:
    topic = Topic(subscriptionExpirationTimeMinutes=1, ttlDurationDefaultInSeconds=1)
    topic.put("a", b"1")
    topic.compact()
    topic.put("a", b"2")
    topic.wait(3600)
    topic.check("messageExpiry")
    topic.check("inactiveSubscriptions")
    assert topic.backlog("__compaction") == 1
    topic.admin("POST", "/all_subscription/expireMessages/1")
    assert topic.backlog("__compaction") == 1


def test_an_empty_topic_is_compacted_to_nothing() -> None:
    topic = Topic()
    assert of(topic.compact(), CursorMoved) == []
    assert topic.status()["status"] == "SUCCESS"
    topic._send(b"", 1, {"marker_type": 10})
    assert of(topic.compact(), CompactedEntry) == []
    topic.put("a", b"")
    topic._send(b"", 1, {"marker_type": 10})
    effects = topic.compact()
    assert (of(effects, CompactedEntry), of(effects, LedgerClosed)) == ([], [])
    name, found = topic.reader()
    assert found == []
    assert topic.last(name) == (-1, -1, -1)
    assert topic.topic.compaction.removed == 2
    assert of(topic.compact(), LedgerDeleted) == []


def test_compaction_fails_where_its_subscription_is_in_use_or_refused() -> None:
    topic = Topic()
    topic.put("a", b"1")
    topic.subscribe("__compaction", "Shared")
    topic.compact()
    assert topic.status()["lastError"] == "subscription __compaction has consumers"
    topic.lose("__compaction")
    topic.compact()
    assert topic.status()["status"] == "SUCCESS"
    other = Topic(allowAutoSubscriptionCreation=False)
    other.put("a", b"1")
    other.compact()
    assert other.status()["lastError"] == "Subscription __compaction does not exist"


def test_deleting_the_subscription_deletes_what_was_compacted() -> None:
    topic = Topic()
    topic.put("a", b"1")
    topic.put("a", b"2")
    topic.compact()
    effects = topic.admin("DELETE", "/subscription/__compaction")
    assert one(effects, LedgerDeleted).cause == "compacted ledger: its subscription is deleted"
    assert [place for place, _ in topic.read()] == ["1:0", "1:1"]
    topic.compact()
    effects = topic.admin("DELETE", "?force=true")
    assert "compacted ledger: topic deleted" in {each.cause for each in of(effects, LedgerDeleted)}
    topic.create_producer()
    topic.put("a", b"3")
    assert topic.topic.ledger.current == 4


def test_what_clears_the_property_of_the_cursor_loses_compacted_data() -> None:
    topic = Topic()
    topic.put("a", b"1")
    topic.put("a", b"2")
    topic.compact()
    topic.admin("POST", "/subscription/__compaction/skip_all")
    assert topic.read() == [("1:1", b"2")]
    assert "compacted ledger: no cursor knows it" in {
        each.cause for each in of(topic.unload(), LedgerDeleted)
    }
    assert [place for place, _ in topic.read()] == []


def test_compacted_data_survives_an_unload_and_a_restart() -> None:
    topic = Topic(reader=(store := Stored()))
    for key in "aab":
        store.add(topic.put(key, b"1"))
    store.add(topic.compact())
    topic.broker = type(topic.broker).decode(topic.broker.encode(), store)
    assert topic.read() == [("1:1", b"1"), ("1:2", b"1")]
    topic.unload()
    assert topic.status()["status"] == "NOT_RUN"
    assert topic.read() == [("1:1", b"1"), ("1:2", b"1")]


def test_message_ids_by_time_are_those_of_compacted_data() -> None:
    topic = Topic(**SMALL)
    start = topic.now
    topic.admin("POST", "/compactionThreshold", 1 << 40)
    for number in range(4):
        topic.put("abab"[number], b"1")
        topic.wait(1)
    topic.compact()
    topic.put("c", b"1")

    def at(time: int) -> tuple[int, int]:
        found = response(topic.admin("GET", f"/messageid/{time}"))
        return found["ledgerId"], found["entryId"]

    assert at(0) == at(start + 2000) == (1, 2)
    assert at(start + 2001) == at(start + 3000) == (2, 0)
    assert at(start + 3001) == (2, 1)


def test_a_part_of_a_batch_that_was_acknowledged_is_not_sent_again() -> None:
    topic = Topic(acknowledgmentAtBatchIndexLevelEnabled=True)
    topic.batch(("a", b"1"), ("b", b"2"))
    topic.compact()
    topic.subscribe("s", read_compacted=True, permits=10)
    topic.ack("s", (1, 0), left=[2], size=2)
    (again,) = of(topic.redeliver("s"), Message)
    assert again.ack_set == [2]
    assert again.payload is not None


def test_a_durable_subscription_reads_on_where_it_was() -> None:
    topic = Topic()
    for key in "abab":
        topic.put(key, b"1")
    topic.compact()
    topic.subscribe("s", "Failover", read_compacted=True, permits=1)
    topic.wait(1)
    topic.ack("s", (1, 2), cumulative=True)
    topic.close_consumer("s")
    topic.subscribe("s", "Failover", read_compacted=True, permits=9)
    found = of(topic.wait(1), Message)
    assert [each.entry_id for each in found] == [3]


def test_who_keeps_no_payloads_says_so() -> None:
    class Metadata(Stored):
        payloads = None  # type: ignore[assignment]

    topic = Topic(reader=(store := Metadata()))
    store.add(topic.put("a", b"1"))
    topic.broker = type(topic.broker).decode(topic.broker.encode(), store)
    with pytest.raises(NoPayloads, match="needs the payloads"):
        topic.compact()


@pytest.mark.parametrize("refused", [False, True])
def test_payloads_of_the_same_micro_batch_may_be_missing(refused: bool) -> None:
    """Whether a fold without payloads says that it has none, which those of single messages need not be, or gives entries without them."""
    entries = Entries(Stored())
    metadata = MessageMetadata("p", 0, 1, num_messages_in_batch=2 if refused else None)
    entries.add(TOPIC, Position(1, 0), Entry(metadata, 10))
    if refused:
        entries.recent_payloads = no_payloads
    with pytest.raises(NoPayloads, match="needs the payloads|has batches"):
        entries.whole(TOPIC, 1, 0, 0)


def test_where_nobody_keeps_payloads_those_of_single_messages_are_empty() -> None:
    entries = Entries(Stored())
    entries.add(TOPIC, Position(1, 0), Entry(MessageMetadata("p", 0, 1), 10))
    entries.recent_payloads = no_payloads
    assert [each.payload for each in entries.whole(TOPIC, 1, 0, 0)] == [b""]
    with pytest.raises(NoPayloads, match=TOPIC):
        no_payloads(TOPIC, 1)


def test_a_read_after_one_that_failed_is_short() -> None:
    """At the end of a terminated topic."""
    topic = Topic(dispatcherMaxReadBatchSize=10, dispatcherMinReadBatchSize=2)
    for key in "abcd":
        topic.put(key, b"1")
    topic.compact()
    topic.admin("POST", "/terminate")
    topic.subscribe("s", read_compacted=True, permits=10)
    assert topic.topic.subscriptions["s"].read_batch == 2
    assert [each.entry_id for each in of(topic.redeliver("s"), Message)] == [0, 1, 2, 3]


def test_compaction_fails_if_the_topic_has_no_ledger_to_begin_with() -> None:
    topic = Topic()
    topic.admin("POST", "/terminate")
    topic.unload()
    topic.compact()
    assert topic.status()["lastError"] == "the topic is terminated and has no ledger to begin with"


def test_a_shadow_topic_is_not_compacted() -> None:
    run = Run()
    run.admin("PUT", "", {SHADOW_SOURCE: "persistent://public/default/source"})
    answer = one(run.admin("PUT", "/compaction"), AdminResponse)
    assert answer.fields.status == 501


def test_a_partitioned_topic_is_compacted_partition_by_partition() -> None:
    run = Run()
    run.admin("PUT", "/partitions", 2)
    answer = one(
        run.do(
            Admin(method="PUT", path="/persistent/public/default/t-partition-0/compaction"),
            f"{TOPIC}-partition-0",
        ),
        AdminResponse,
    )
    assert answer.fields.status == 204
