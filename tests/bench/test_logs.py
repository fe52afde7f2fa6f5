"""The benchmarks measure what they say: their logs are what they claim, and so is a backlog that was never published."""

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest

from bench import core, logs
from bench.__main__ import Result
from schemas.commands import Ack, Flow, MessageIdData, Publish, Send, SubType, decode
from schemas.effects import Message, SendError, SendReceipt
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries


def brokers_of(records: pa.Table) -> Iterator[Broker]:
    brokers: dict[int, Broker] = {}
    for row in records.to_pylist():
        broker = brokers.setdefault(row["partition"], Broker(row["partition"], NoEntries()))
        broker.apply(row["offset"], row["timestamp"], row["topic"], decode(row["value"]), row["value"])
    yield from brokers.values()


def test_publishes_are_stored_once_each() -> None:
    records = logs.publishes(500, topics=20, producers=30, partitions=4)
    effects = [row.effect for broker in brokers_of(records) for row in broker.take()]
    receipts = [each for each in effects if isinstance(each, SendReceipt)]
    assert len(receipts) == 500
    assert min(each.ledger_id for each in receipts) == 1  # none is a duplicate
    assert len({each.topic for each in receipts}) == 20
    assert len({each.producer_name for each in receipts}) == 30


@pytest.mark.parametrize(("per_second", "last"), [(100, 4990), (1000, 499), (10_000, 49)])
def test_publishes_come_at_the_rate_asked_for(per_second: int, last: int) -> None:
    times = sorted(logs.publishes(500, per_second=per_second)["timestamp"].to_pylist())
    assert times[: logs.PARTITIONS] == [logs.START] * logs.PARTITIONS  # the configurations
    since = [time - logs.START for time in times[logs.PARTITIONS :]]
    assert since[0] == 0
    assert since[-1] == last
    assert since[250] == 250 * 1000 // per_second


@pytest.mark.parametrize(
    ("type_", "consumers", "keys"), [("Exclusive", 1, 0), ("Shared", 8, 0), ("Key_Shared", 8, 50)]
)
def test_each_publish_is_delivered_and_acknowledged(type_: SubType, consumers: int, keys: int) -> None:
    records = logs.delivered(2_000, type_, consumers=consumers, keys=keys, topics=2)
    kinds = Counter(type(decode(value)) for value in records["value"].to_pylist())
    assert kinds[Publish] == kinds[Ack] == 2_000
    assert kinds[Flow] >= 2 * consumers
    for broker in brokers_of(records):
        assert sum(isinstance(row.effect, Message) for row in broker.take()) == 1_000
        assert broker.stats()[-1]["backlog"] == 0


def test_a_fifth_is_acknowledged_late() -> None:
    records = logs.delivered(1_000, "Shared", consumers=8, holes=0.2, topics=1)
    (broker,) = brokers_of(records)
    assert 0 < broker.stats()[-1]["backlog"] <= 45


def test_batches_of_messages_are_taken() -> None:
    effects = [
        row.effect for broker in brokers_of(logs.sends(50, messages=10, topics=2)) for row in broker.take()
    ]
    receipts = [each for each in effects if isinstance(each, SendReceipt)]
    assert [each.messages for each in receipts] == [10] * 50
    assert not any(isinstance(each, SendError) for each in effects)
    assert Counter(type(decode(v)) for v in logs.sends(50)["value"].to_pylist())[Send] == 50


def test_a_backlog_that_was_never_published_can_be_followed_and_acknowledged() -> None:
    broker = core.broker_with_backlog(120_000, core.Past())
    assert [row["backlog"] for row in broker.stats() if row["subscription"]] == [0, 120_000]
    core.say(broker, core.TOPIC, Flow(connection="c", consumer_id=1, messagePermits=10))
    core.say(broker, core.TOPIC, Publish(producer="p", sequence_id=1))
    (message,) = [row.effect for row in broker.take() if isinstance(row.effect, Message)]
    assert (message.ledger_id, message.entry_id) == (3, 20_000)
    ack = MessageIdData(ledgerId=3, entryId=20_000)
    core.say(broker, core.TOPIC, Ack(connection="c", consumer_id=1, ack_type="Individual", message_id=[ack]))
    assert [row["backlog"] for row in broker.stats() if row["subscription"]] == [0, 120_001]


@pytest.mark.parametrize("rule", ["TTL", "quota", "retention"])
def test_one_check_takes_the_whole_backlog_and_reads_little_of_it(rule: str) -> None:
    found = core.expiry(1_000_000, rule)
    assert found.rows >= 20  # as many ledgers go
    assert found.reads < 10_000


def test_a_line_has_the_median_and_the_spread() -> None:
    line = Result("work", "≥ 0.9 of identity", [0.5, 1.0, 0.9], "of identity", [0.8], 5 << 20, 3 << 20).line()
    assert line == "| work | ≥ 0.9 of identity | **0.90** (0.50 to 1.00) of identity | **0.80** | 5 / 3 |"
