"""`magnetar explain`: the life of one message of each fate, and each reason for which a subscription gets nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from schemas.effects import KINDS, Message
from schemas.entries import EntryNotFound
from sinks.begun import Begun, Planned
from streaming.answers.explain import life
from streaming.answers.explain.delivery import explain_deliveries, peek, to_json, verdicts
from streaming.answers.explain.life import Life, SubscriptionFate
from streaming.answers.explain.policies import namespace_policies, topic_policies
from streaming.answers.explain.producing import explain_producers
from streaming.answers.explain.storage import explain_quotas, explain_retention, ledgers, quotas
from streaming.answers.history.folders import Folders, NotFound
from streaming.broker import entry_filters
from streaming.broker.config import ServiceConfiguration
from streaming.broker.persistent.delivery import Delivery
from streaming.broker.policies.hierarchy import DispatchRate, Policies, effective
from streaming.broker.position import Position
from streaming.broker.topic.producing import Producing
from streaming.cli.app import app
from streaming.cli.explained import producers_headline
from streaming.jobs.replay import replay_in_process
from streaming.log.table import LOGICAL, log_table
from streaming.traces import RECORDED
from streaming.traces.importer import import_traces

START = 1_767_225_600_000
T = "persistent://a/b/t"
QUIET = {
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "backlogQuotaCheckIntervalInSeconds": 0,
    "messageExpiryCheckIntervalInMinutes": 0,
    "retentionCheckIntervalInSeconds": 0,
}

Record = tuple[str | None, dict[str, Any]]


def folders(out: Path, *records: Record, **settings: Any) -> Folders:
    """A replay of records a second apart, the first of which sets `settings`."""
    all_ = [(None, {"command": "BROKER_CONFIG", "settings": QUIET | settings}), *records]
    log = log_table(
        LOGICAL,
        timestamp=[START + 1000 * second for second in range(len(all_))],
        topic=[topic for topic, _ in all_],
        value=[json.dumps(command).encode() for _, command in all_],
    )
    replay_in_process(log, out, partitions=2)
    return Folders.of(out)


def publish(sequence_id: int, **fields: Any) -> Record:
    return T, {"producer": "p", "sequence_id": sequence_id, "payload": "x" * 40, **fields}


def subscribe(name: str = "s", consumer: int = 0, type_: str = "Shared", **fields: Any) -> Record:
    return T, {"command": "SUBSCRIBE", "connection": f"c{consumer}", "consumer_id": consumer, "request_id": 1,
               "subscription": name, "subType": type_, "consumer_name": f"n{consumer}", "initialPosition": "Earliest",
               **fields}  # fmt: skip


def flow(permits: int, consumer: int = 0) -> Record:
    return T, {
        "command": "FLOW",
        "connection": f"c{consumer}",
        "consumer_id": consumer,
        "messagePermits": permits,
    }


def ack(*entries: int, consumer: int = 0, **fields: Any) -> Record:
    ids = [{"ledgerId": 1, "entryId": entry, **fields} for entry in entries]
    return T, {"command": "ACK", "connection": f"c{consumer}", "consumer_id": consumer, "ack_type": "Individual",
               "message_id": ids}  # fmt: skip


def create() -> Record:
    return T, {"command": "PRODUCER", "connection": "c", "producer_id": 1, "request_id": 1, "producer_name": "q"}  # fmt: skip


def send(sequence_id: int, messages: int = 1, **metadata: Any) -> Record:
    """A SEND of the producer of `create`."""
    known = {"producer_name": "q", "sequence_id": sequence_id, "publish_time": START}
    return T, {"command": "SEND", "connection": "c", "producer_id": 1, "num_messages": messages, "payload": "eA==",
               "sequence_id": sequence_id, "metadata": known | metadata}  # fmt: skip


def redeliver(consumer: int = 0) -> Record:
    return T, {
        "command": "REDELIVER_UNACKNOWLEDGED_MESSAGES",
        "connection": f"c{consumer}",
        "consumer_id": consumer,
    }


def admin(path: str, body: Any, method: str = "POST", topic: str | None = None) -> Record:
    return topic, {"command": "ADMIN", "method": method, "path": path, "body": body}


def policy(name: str, body: Any) -> Record:
    return admin(f"/namespaces/a/b/{name}", body)


def check(name: str) -> Record:
    return None, {"command": "RUN_CHECK", "check": name}


def at(found: Folders, entry: int, ledger: int = 1) -> Life:
    return life.by_position(found, T, Position(ledger, entry))


def sent(found: Folders, sequence_id: int, producer: str = "p") -> Life:
    """The only or the last life under a sequence id."""
    return life.by_sequence_id(found, T, producer, sequence_id)[-1]


def of(found: Life, subscription: str = "s") -> SubscriptionFate:
    (one,) = [each for each in found.subscriptions if each.subscription == subscription]
    return one


def kinds(found: Life) -> list[str]:
    return [each.kind for each in found.events]


# -- the fates of a message


def test_accepted_and_acked(tmp_path: Path) -> None:
    found = at(folders(tmp_path, subscribe(), flow(9), publish(5), ack(0)), 0)
    assert (found.fate, found.producer, found.sequence_id) == ("stored", "p", 5)
    assert kinds(found) == ["SEND_RECEIPT", "MESSAGE"]
    assert (of(found).outcome, of(found).deliveries) == ("acked", 1)
    assert found.to_arrow()["kind"].to_pylist() == kinds(found)
    assert sent(Folders.of(tmp_path), 5) == found


def test_acked_out_of_order(tmp_path: Path) -> None:
    log = folders(tmp_path, subscribe(), flow(9), publish(0), publish(1), ack(1))
    assert of(at(log, 1)).outcome == "acked out of order"
    assert of(at(log, 0)).outcome == "in flight"


@pytest.mark.parametrize("how", ["Individual", "Cumulative"])
def test_acked_and_never_delivered(how: str, tmp_path: Path) -> None:
    """As under other policies, where a recorded client acks what it did not get. All outputs are there, so nothing else passed it."""
    log = folders(
        tmp_path, subscribe(type_="Exclusive"), publish(0), publish(1), (T, ack(0)[1] | {"ack_type": how})
    )
    found = of(at(log, 0))
    assert (found.outcome, found.deliveries) == ("acked", 0)
    assert found.text.endswith("; its consumer acked it, although this log never delivered it")
    assert of(at(log, 1)).outcome == "waiting"


def test_duplicate(tmp_path: Path) -> None:
    log = folders(tmp_path, policy("deduplication", True), publish(6), publish(7), publish(6))
    stored, duplicate = life.by_sequence_id(log, T, "p", 6)
    assert (stored.fate, stored.position) == ("stored", "1:0")
    assert duplicate.fate == "duplicate"
    assert duplicate.text.endswith("6 is not above 7, the last sequence id of p stored before, at 1:1")


def test_whether_it_is_a_duplicate_is_unknown(tmp_path: Path) -> None:
    delay = (T, {"command": "FAULT", "fault": "DelayWrites", "count": 1})
    log = folders(tmp_path, policy("deduplication", True), create(), delay, send(3), send(3))
    found = sent(log, 3, "q")
    assert found.fate == "refused"
    assert "Cannot determine whether the message is a duplicate" in found.text


def test_redelivered(tmp_path: Path) -> None:
    found = at(folders(tmp_path, subscribe(), flow(9), publish(0), redeliver()), 0)
    assert [each.text for each in found.events][1:] == [
        "sent to consumer 0 of c0",
        "sent to consumer 0 of c0, redelivery 1",
    ]
    assert (of(found).outcome, of(found).deliveries) == ("in flight", 2)


def test_expired(tmp_path: Path) -> None:
    wait = (None, {"command": "TICK"})
    log = folders(
        tmp_path, subscribe(), (T, {"command": "CONNECTION_LOST", "connection": "c0"}), policy("messageTTL", 2),
        publish(0), wait, wait, wait, wait, check("messageExpiry"), publish(1),
    )  # fmt: skip
    found = at(log, 0)
    assert of(found).outcome == "expired"
    assert "messageTTL 2 s (namespace)" in of(found).text
    assert of(found).text.endswith("never delivered")
    assert of(at(log, 1)).outcome == "waiting"


def test_evicted_and_trimmed_as_recorded(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    import_traces([RECORDED / "quota_evict_two.jsonl"], log)
    replay_in_process(log, tmp_path / "out")
    found = life.by_position(
        Folders.of(tmp_path / "out"), "persistent://public/quota_evict_two/t", Position(2, 4)
    )
    assert [each.outcome for each in found.subscriptions] == ["evicted", "evicted", "acked"]
    assert "destination_storage 1180 B (namespace)" in found.subscriptions[0].text
    assert found.text == "stored at 2:4, and trimmed with ledger 2"
    assert kinds(found)[-1] == "LEDGER_DELETED"


def test_skipped(tmp_path: Path) -> None:
    skip = admin("/persistent/a/b/t/subscription/s/skip_all", None, topic=T)
    found = at(folders(tmp_path, subscribe(), publish(0), skip), 0)
    assert of(found).outcome == "skipped"
    assert of(found).text.endswith("never delivered")


def test_sought_back(tmp_path: Path) -> None:
    seek = {"command": "SEEK", "connection": "c0", "consumer_id": 0, "request_id": 2,
            "message_id": {"ledgerId": 1, "entryId": 0}}  # fmt: skip
    found = at(folders(tmp_path, subscribe(), flow(9), publish(0), publish(1), ack(0, 1), (T, seek)), 1)
    assert "unacknowledged again by" in found.events[-1].text
    assert of(found).outcome == "waiting"


def test_delayed(tmp_path: Path) -> None:
    log = folders(tmp_path, create(), subscribe(), flow(9), send(0, deliver_at_time=START + 3_600_000))
    assert of(at(log, 0)).outcome == "delayed"


def test_refused(tmp_path: Path) -> None:
    found = sent(folders(tmp_path, publish(0), publish(1, payload="x" * 5000), maxMessageSize=1024), 1)
    assert found.fate == "refused"
    assert found.text.startswith("refused with NotAllowedError: ")


def test_quarantined(tmp_path: Path) -> None:
    found = sent(folders(tmp_path, publish(0), publish(1, payload=7)), 1)
    assert found.fate == "quarantined"


def test_never_sent(tmp_path: Path) -> None:
    log = folders(tmp_path, publish(0))
    assert (sent(log, 1).fate, sent(log, 0, "q").fate, at(log, 1).fate) == ("never seen",) * 3
    assert "there is p" in sent(log, 0, "q").text
    assert at(log, 1).text == "no message was ever stored at 1:1: the last one is at 1:0"


def test_what_compaction_kept(tmp_path: Path) -> None:
    """Of three messages, the second has the key of the first. Then another one has that key, and none has that of the third."""
    compact = admin("/persistent/a/b/t/compaction", None, "PUT", T)
    found = folders(
        tmp_path,
        create(),
        *(send(number, partition_key=key) for number, key in enumerate("aab")),
        compact,
        send(3, partition_key="a"),
        compact,
    )
    first, second, third = (at(found, entry) for entry in range(3))
    lost = "kept no copy: a message behind it has its key, or it is empty or has no key"
    assert first.text == f"stored at 1:0, compaction up to 1:2 {lost}"

    def told(message: Life) -> list[str]:
        return [each.text for each in message.events if each.kind == "TOPIC_EVENT"]

    kept = "compaction up to 1:2 kept a copy, in ledger 2"
    assert told(second) == [kept, f"compaction up to 1:3 {lost}"]
    assert told(third) == [kept, "compaction up to 1:3 kept a copy, in ledger 3"]
    assert third.text == "stored at 1:2, compaction up to 1:3 kept a copy, in ledger 3"


def test_a_message_behind_what_was_compacted(tmp_path: Path) -> None:
    compact = admin("/persistent/a/b/t/compaction", None, "PUT", T)
    found = folders(tmp_path, create(), send(0, partition_key="a"), compact, send(1, partition_key="a"))
    assert at(found, 1).text == "stored at 1:1"


def test_outside_the_outputs_that_are_kept(tmp_path: Path) -> None:
    log = folders(tmp_path, policy("deduplication", True), publish(0), publish(1))
    for file in (tmp_path / "tables").rglob("*.parquet"):  # as if these were of a batch that was removed
        table = pq.read_table(file, partitioning=None)
        rest = table.filter([offset > 2 for offset in table["offset"].to_pylist()])
        pq.write_table(rest, file, store_schema=False) if len(rest) else file.unlink()
    assert (at(log, 0).fate, sent(log, 0).fate) == ("stored", "not kept")
    assert "not in them" in sent(log, 0).text
    assert (at(log, 2).fate, sent(log, 2).fate) == ("never seen", "never seen")
    assert at(log, 1).fate == "stored"
    for file in (tmp_path / "tables").rglob("*.parquet"):
        file.unlink()
    assert sent(log, 0).fate == "not kept"
    assert "no outputs are kept: a message that was sent before may have been in them" in sent(log, 0).text


def test_micro_batches_without_output_tables(tmp_path: Path) -> None:
    """A query that ran with --no-tables for a while has no rows of what happened then."""
    log = folders(tmp_path, publish(0), publish(1), publish(2))
    for file in (tmp_path / "tables").rglob("*.parquet"):
        table = pq.read_table(file, partitioning=None)
        rest = table.filter([offset != 2 for offset in table["offset"].to_pylist()])
        pq.write_table(rest, file, store_schema=False) if len(rest) else file.unlink()
    assert sent(log, 1).fate == "never seen"
    Begun(log.store.url, tables=False).begin(Planned(1, START, ""), None)
    assert (sent(log, 1).fate, at(log, 1).fate, at(log, 3).fate) == ("not kept", "stored", "never seen")
    said = "the query wrote no output tables in micro-batches 1: the receipt of 1:1 may have been there"
    assert at(log, 1).text == said


def test_a_subscription_that_skipped_it_and_was_deleted_then(tmp_path: Path) -> None:
    """What took the message is the answer, not what became of the subscription afterwards."""
    gone = (T, {"command": "UNSUBSCRIBE", "connection": "c0", "consumer_id": 0, "request_id": 3})
    skip = admin("/persistent/a/b/t/subscription/s/skip/1", None, topic=T)
    records = [publish(0), subscribe(), skip, gone]
    for each in (records, [*records, subscribe(initialPosition="Latest")]):
        found = of(at(folders(tmp_path / str(len(each)), *each), 0))
        again = "" if each is records else ", and created again later"
        assert found.outcome == "skipped"
        assert found.text == f"by skipped 1, never delivered; the subscription was deleted later{again}"


def test_a_subscription_that_began_after_the_ledger_was_trimmed(tmp_path: Path) -> None:
    settings = {"managedLedgerMaxEntriesPerLedger": 1, "managedLedgerMinLedgerRolloverTimeMinutes": 0}
    log = folders(tmp_path, publish(0), publish(1), subscribe(), **settings)
    found = of(at(log, 0))
    assert found.outcome == "not for it"
    assert found.text == "the subscription was created at Earliest after its ledger was deleted"


def test_a_subscription_that_came_later_or_went(tmp_path: Path) -> None:
    gone = (T, {"command": "UNSUBSCRIBE", "connection": "c1", "consumer_id": 1, "request_id": 3})
    log = folders(
        tmp_path, publish(0), subscribe(initialPosition="Latest"), subscribe("gone", 1), gone, publish(1)
    )
    assert [of(at(log, 0), name).outcome for name in ("s", "gone")] == ["not for it", "subscription deleted"]


def test_a_subscription_that_went_and_came_again(tmp_path: Path) -> None:
    """The one that was to get the message tells what became of it."""
    gone = (T, {"command": "UNSUBSCRIBE", "connection": "c0", "consumer_id": 0, "request_id": 3})
    log = folders(
        tmp_path,
        publish(0),
        subscribe(),
        flow(5),
        ack(0),
        gone,
        subscribe(initialPosition="Latest"),
        publish(1),
    )
    found = of(at(log, 0))
    assert (found.outcome, found.deliveries) == ("subscription deleted", 1)
    assert found.text == "the subscription was deleted: unsubscribed, and created again later"


def test_a_subscription_that_came_after_its_ledger_was_trimmed(tmp_path: Path) -> None:
    log = folders(
        tmp_path, publish(0), publish(1), check("consumedLedgers"), subscribe(), publish(2),
        managedLedgerMaxEntriesPerLedger=2,
    )  # fmt: skip
    found = of(at(log, 0))
    assert (found.outcome, found.text) == (
        "not for it",
        "the subscription was created at Earliest after its ledger was deleted",
    )
    (entry,) = peek(log, T, "s", "backlog", 10).to_pylist()
    assert entry["position"] == "2:0"


def test_the_lives_of_a_topic_that_was_deleted_are_kept_apart(tmp_path: Path) -> None:
    delete = (T, {"command": "ADMIN", "method": "DELETE", "path": "/persistent/a/b/t?force=true"})
    log = folders(
        tmp_path, subscribe("before"), publish(0), delete, subscribe("after", 1), flow(5, 1), publish(0)
    )
    first, second = at(log, 0), at(log, 0, ledger=2)
    assert [of(first, name).outcome for name in ("before", "after")] == ["subscription deleted", "not for it"]
    assert [each.kind for each in second.events] == ["SEND_RECEIPT", "MESSAGE"]
    assert of(second, "after").outcome == "in flight"
    assert "TOPIC_EVENT" in [each.kind for each in first.events]


def test_a_former_life_whose_outputs_are_not_kept(tmp_path: Path) -> None:
    """All but the end of the topic."""
    delete = (T, {"command": "ADMIN", "method": "DELETE", "path": "/persistent/a/b/t?force=true"})
    log = folders(tmp_path, publish(7), delete, publish(0))
    for file in (tmp_path / "tables").rglob("*.parquet"):
        table = pq.read_table(file, partitioning=None)
        rest = table.filter([offset > 1 for offset in table["offset"].to_pylist()])
        pq.write_table(rest, file, store_schema=False) if len(rest) else file.unlink()
    assert (sent(log, 7).fate, at(log, 0).fate, at(log, 0, ledger=2).fate) == (
        "not kept",
        "not kept",
        "stored",
    )


def test_a_topic_that_ends_after_the_ledger_of_a_message(tmp_path: Path) -> None:
    delete = (T, {"command": "ADMIN", "method": "DELETE", "path": "/persistent/a/b/t?force=true"})
    log = folders(
        tmp_path, subscribe(), publish(0), publish(1), flow(5), ack(0, 1), publish(2),
        check("cursorFlush"), check("consumedLedgers"), delete, subscribe(), subscribe("new", 1), publish(0),
        managedLedgerMaxEntriesPerLedger=2,
    )  # fmt: skip
    found = at(log, 0)
    assert {each.subscription: each.outcome for each in found.subscriptions} == {
        "s": "subscription deleted",
        "new": "not for it",
    }
    assert kinds(found)[-1] == "TOPIC_EVENT"


def test_a_topic_that_ends_and_begins_in_one_record(tmp_path: Path) -> None:
    """Nobody used it for a while, which the next command shows."""
    records = [publish(0, rest=True), subscribe(), publish(0)]
    log = log_table(
        LOGICAL,
        timestamp=[START, START + 3_600_000, START + 3_601_000],
        topic=[topic for topic, _ in records],
        value=[json.dumps(command).encode() for _, command in records],
    )
    replay_in_process(log, tmp_path, partitions=2)
    found = at(Folders.of(tmp_path), 0)
    assert of(found).outcome == "not for it"
    assert "TOPIC_EVENT" in kinds(found)


def test_a_subscription_of_the_former_life_of_a_topic(tmp_path: Path) -> None:
    delete = (T, {"command": "ADMIN", "method": "DELETE", "path": "/persistent/a/b/t?force=true"})
    log = folders(tmp_path, subscribe(), publish(0), delete, publish(0))
    assert of(at(log, 0, ledger=2)).outcome == "not for it"


def test_a_batch_that_was_refused(tmp_path: Path) -> None:
    """By any of its sequence ids."""
    producer = (
        T,
        {"command": "PRODUCER", "connection": "c", "producer_id": 0, "request_id": 1, "producer_name": "q"},
    )
    metadata = {
        "producer_name": "q",
        "sequence_id": 70,
        "highest_sequence_id": 74,
        "publish_time": 1,
        "num_messages_in_batch": 5,
    }
    batch = {"command": "SEND", "connection": "c", "producer_id": 0, "sequence_id": 70, "highest_sequence_id": 74,
             "num_messages": 5, "metadata": metadata, "payload": "y" * 16}  # fmt: skip
    log = folders(
        tmp_path, producer, (T, {"command": "FAULT", "fault": "FailWrites", "count": 1}), (T, batch)
    )
    assert [sent(log, number, "q").fate for number in range(69, 76)] == [
        "never seen", *["refused"] * 5, "never seen",
    ]  # fmt: skip
    assert sent(log, 72, "q").text.startswith("in a batch from 70 to 74, refused with PersistenceError")


def test_what_a_readers_seek_leaves(tmp_path: Path) -> None:
    """It is no subscription that anybody could delete."""
    seek = (
        T,
        {"command": "SEEK", "connection": "c0", "consumer_id": 0, "request_id": 2, "message_publish_time": 0},
    )
    log = folders(tmp_path, publish(0), subscribe(type_="Exclusive", durable=False), seek)
    (found,) = explain_deliveries(log, T, "s")
    assert found.to_do == ["Nothing: it keeps no ledger, and a reader that comes back goes on with it."]
    assert next(each.decider for each in found.verdicts) == "reader"


# -- why nothing is delivered


def stuck(found: Folders, name: str = "s") -> Delivery:
    (one,) = explain_deliveries(found, T, name)
    return one


def blocking(found: Delivery) -> list[tuple[str, str | None]]:
    return [(each.decider, each.consumer) for each in found.verdicts if each.blocks]


def test_caught_up(tmp_path: Path) -> None:
    found = stuck(folders(tmp_path, subscribe(), flow(9), publish(0), ack(0)))
    assert (found.state, blocking(found)) == ("caught up", [("backlog", None)])


def test_no_consumers(tmp_path: Path) -> None:
    gone = (None, {"command": "CONNECTION_LOST", "connection": "c0"})
    found = stuck(folders(tmp_path, subscribe(), gone, publish(0)))
    assert (found.state, blocking(found)) == ("no consumers", [("consumers", None)])


def test_in_flight(tmp_path: Path) -> None:
    found = stuck(folders(tmp_path, subscribe(), flow(9), publish(0)))
    assert (found.state, found.in_flight, found.first[0].consumer) == ("in flight", 1, "n0")


def test_permits(tmp_path: Path) -> None:
    found = stuck(folders(tmp_path, subscribe(), flow(1), publish(0), publish(1)))
    assert (found.state, blocking(found)) == ("held back", [("permits", "n0")])
    assert [each.position for each in found.first] == ["1:0", "1:1"]
    assert (found.in_flight, found.unread, (found.analysis or {})["entries"]) == (1, 1, 2)
    assert verdicts([found])["blocks"].to_pylist().count(True) == 1


def test_unacked_limit_of_the_consumer(tmp_path: Path) -> None:
    log = folders(tmp_path, subscribe(), flow(9), publish(0), publish(1), maxUnackedMessagesPerConsumer=1)
    assert blocking(stuck(log)) == [("maxUnackedMessagesPerConsumer", "n0")]


def test_unacked_limit_of_the_subscription(tmp_path: Path) -> None:
    log = folders(tmp_path, subscribe(), flow(9), publish(0), publish(1), maxUnackedMessagesPerSubscription=1)
    assert blocking(stuck(log)) == [("maxUnackedMessagesPerSubscription", None)]


def test_unacked_limit_of_the_broker(tmp_path: Path) -> None:
    settings = {"maxUnackedMessagesPerBroker": 2, "maxUnackedMessagesPerSubscriptionOnBrokerBlocked": 0.1}
    log = folders(tmp_path, subscribe(), flow(9), *(publish(n) for n in range(4)), **settings)
    assert blocking(stuck(log)) == [("maxUnackedMessagesPerBroker", None)]


def test_dispatch_rate(tmp_path: Path) -> None:
    rate = {"dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 60}
    log = folders(
        tmp_path, policy("subscriptionDispatchRate", rate), subscribe(), flow(9), publish(0), publish(1)
    )
    assert blocking(stuck(log)) == [("dispatchRate", None)]
    assert [each.until for each in stuck(log).verdicts if each.blocks] != [None]


def test_delayed_until(tmp_path: Path) -> None:
    due = START + 3_600_000
    found = stuck(folders(tmp_path, create(), subscribe(), flow(9), send(0, deliver_at_time=due)))
    assert (found.state, found.delayed) == ("waiting for a time", 1)
    assert (found.first[0].state, found.first[0].until) == ("delayed", due)


def test_entry_filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(entry_filters._filters, "Later", lambda metadata, properties: "RESCHEDULE")
    found = stuck(folders(tmp_path, subscribe(), flow(9), publish(0), entryFilterNames="Later"))
    assert (found.state, found.delayed, found.first[0].state) == ("waiting for a time", 1, "rescheduled")


def test_not_the_active_consumer_and_priority(tmp_path: Path) -> None:
    log = folders(
        tmp_path, subscribe(type_="Failover"), subscribe(consumer=1, type_="Failover"), publish(0),
        subscribe("p", 2, priority_level=1), subscribe("p", 3, priority_level=0), flow(9, 2), flow(9, 3),
    )  # fmt: skip
    assert sorted(decider for decider, _ in blocking(stuck(log))) == ["active consumer", "permits"]
    assert ("priorityLevel", "n2") in blocking(stuck(log, "p"))


def test_draining_hash(tmp_path: Path) -> None:
    """With a second consumer, some of the first one's keys move, and wait for its acks."""
    one = [publish(n, key=f"k{n}") for n in range(8)]
    two = [publish(n, key=f"k{n - 8}") for n in range(8, 16)]
    first, second = (subscribe(consumer=n, type_="Key_Shared") for n in (0, 1))
    found = stuck(folders(tmp_path, first, flow(99), *one, second, flow(99, 1), *two))
    assert ("draining hash", "n1") in blocking(found)
    assert found.to_redeliver is not None
    assert found.to_redeliver > 0
    assert "which gets it when n0 has acked" in found.first[-1].text


def test_a_batch_that_is_partly_acked(tmp_path: Path) -> None:
    log = folders(
        tmp_path, create(), subscribe(), flow(9), send(0, 3, num_messages_in_batch=3), ack(0, ack_set=[0b110]),
        acknowledgmentAtBatchIndexLevelEnabled=True,
    )  # fmt: skip
    found = stuck(log)
    assert [each.text for each in found.verdicts if each.decider == "batch"] == [
        "2 messages of the batch 1:0 are not acked, so the mark-delete position stays before it"
    ]
    assert found.first[0].messages_acked == 1


def test_writes_that_are_not_confirmed(tmp_path: Path) -> None:
    delay = (T, {"command": "FAULT", "fault": "DelayWrites", "count": 9})
    found = stuck(folders(tmp_path, subscribe(), flow(9), publish(0), delay, publish(1)))
    assert ("unconfirmed writes", None) in blocking(found)


# -- why ledgers stay, and why quotas do not evict


def stored(out: Path) -> Folders:
    """Ledgers of two entries: `s` has consumed the first one, and reads the second."""
    ticks = {"retentionCheckIntervalInSeconds": 60, "backlogQuotaCheckIntervalInSeconds": 60}
    limit = {"limitSize": 300, "policy": "consumer_backlog_eviction"}
    return folders(
        out, policy("retention", {"retentionTimeInMinutes": 5, "retentionSizeInMB": 1}), subscribe(), flow(9),
        policy("backlogQuota", limit), *(publish(n) for n in range(5)), ack(0, 1), ("persistent://a/b/u", publish(0)[1]),
        managedLedgerMaxEntriesPerLedger=2, **ticks,
    )  # fmt: skip


def test_why_ledgers_stay(tmp_path: Path) -> None:
    log = stored(tmp_path)
    found = explain_retention(log, T)
    assert [each.reason for each in found.ledgers] == ["retention", "cursor", "open"]
    assert found == explain_retention(log, T), "to ask changes nothing"
    table = ledgers(found)
    assert table["ledger"].to_pylist() == [1, 2, 3]
    assert table["goes"].to_pylist() == [False, False, False]
    assert run(tmp_path, T, "--retention", "--json") == (0, to_json([found]) + "\n")
    code, text = run(tmp_path, T, "--retention")
    assert code == 0
    assert (
        "  retention of what is consumed: 5 min, 1 MB (namespace)\n  next check at 2026-01-01 00:01:00.000\n"
        in text
    )
    assert "    cursor: still needed by s (mark-delete position 1:1)\n" in text
    assert "    retention: consumed, but it was closed less than 5 min ago and the " in text
    assert "; retention time ends at 2026-01-01 00:05:06.001" in text


def test_why_a_quota_does_not_evict(tmp_path: Path) -> None:
    log = stored(tmp_path)
    found = explain_quotas(log, T)
    assert [each.state for each in found.quotas] == ["within its limit", "no limit"]
    assert quotas(found)["headroom"].to_pylist() == [found.quotas[0].headroom, None]
    assert run(tmp_path, T, "--quota", "--json") == (0, to_json([found]) + "\n")
    code, text = run(tmp_path, T, "--quota")
    assert code == 0
    assert "  the slowest cursor is s, mark-delete position 1:1\n" in text
    assert f"    limit 300 bytes, used {found.quotas[0].used} bytes, headroom" in text
    assert text.endswith("  The next check evicts nothing, unless a command comes before.\n")


def test_what_the_next_check_evicts_and_closes(tmp_path: Path) -> None:
    ticks = {"retentionCheckIntervalInSeconds": 60, "backlogQuotaCheckIntervalInSeconds": 60}
    evict = {"limitSize": 50, "policy": "consumer_backlog_eviction"}
    hold = {"limitTime": 1, "policy": "producer_request_hold"}
    folders(
        tmp_path / "evicted", subscribe(), policy("backlogQuota", evict), publish(0), publish(1),
        policy("retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}), managedLedgerMaxEntriesPerLedger=1, **ticks,
    )  # fmt: skip
    _, text = run(tmp_path / "evicted", T, "--quota")
    assert "  The next check evicts 1 entry of s, from 1:-1 to 1:0." in text
    folders(
        tmp_path / "closed", subscribe(), policy("backlogQuota?backlogQuotaType=message_age", hold), create(), send(0),
        preciseTimeBasedBacklogQuotaCheck=True, **ticks,
    )  # fmt: skip
    _, text = run(tmp_path / "closed", T, "--quota")
    assert "  The next check closes the producers q." in text
    assert (
        "  message_age: exceeded\n    limit 1 s, used 4 s, headroom -3 s (producer_request_hold, namespace)"
        in text
    )


def test_without_a_topic_it_picks_one(tmp_path: Path) -> None:
    stored(tmp_path / "some")
    code, text = run(tmp_path / "some", "--quota", "--retention")
    assert code == 0
    assert text.startswith(
        "No topic was given. As an example, a topic that was chosen because its backlog is the largest (3"
    )
    assert "destination_storage" in text
    assert "retention of what is consumed" in text
    assert "because it stores the most" in run(tmp_path / "some", "--retention")[1]
    folders(tmp_path / "none")
    assert "there is no topic" in run(tmp_path / "none", "--retention")[1]
    folders(tmp_path / "off", publish(0))
    assert "not checked: its interval is 0" in run(tmp_path / "off", "--quota")[1]


# -- the command


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["explain", *map(str, arguments)])
    return done.exit_code, done.output


def test_the_command_prints_the_same_json(tmp_path: Path) -> None:
    log = folders(tmp_path, subscribe(), flow(9), publish(0))
    assert run(tmp_path, T, "1:0", "--json") == (0, to_json([at(log, 0)]) + "\n")
    assert run(tmp_path, "a/b/t", "--subscription", "s", "--json") == (0, to_json([stuck(log)]) + "\n")


def test_the_command_in_words(tmp_path: Path) -> None:
    folders(tmp_path, subscribe(), flow(1), publish(0), publish(1))
    code, text = run(tmp_path, T)
    assert code == 0
    assert "Entries are waiting, but the dispatcher sends none of them now:" in text
    assert "holds back  permits (n0)" in text
    code, text = run(tmp_path, T, "1:0")
    assert "2026-01-01 00:00:03.000  received from p, sequence id 0, and stored at 1:0" in text
    assert "s  in flight: at n0, which has not acked it" in text


def test_without_arguments_it_picks_an_example(tmp_path: Path) -> None:
    folders(tmp_path, subscribe(), flow(9), publish(0), redeliver())
    code, text = run(tmp_path)
    assert code == 0
    assert text.startswith(
        "No topic was given. As an example, a message that was chosen because it was redelivered"
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["a/b/tt"], f"there is no topic a/b/tt: there are non-persistent://a/b/n, {T}"),
        ([T, "--subscription", "t"], f"{T} has no subscription t: there is s"),
        (["non-persistent://a/b/n"], "is not persistent: it keeps neither messages nor backlogs"),
        ([T, "1-0"], "expected LEDGER:ENTRY, such as 3:42"),
        ([T, "--sequence-id", "3"], "--producer and --sequence-id identify a message only together"),
        (
            [T, "--producer", "none"],
            f"{T} has no producer none, and none of that name was refused or closed: there is p",
        ),
    ],
)
def test_what_is_not_there(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    folders(tmp_path, subscribe(), publish(0), ("non-persistent://a/b/n", publish(0)[1]))
    code, text = run(tmp_path, *arguments)
    assert code == 2
    assert complaint in text
    assert "Traceback" not in text


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "commands").mkdir()
    (tmp_path / "commands" / "0.jsonl").touch()
    with pytest.raises(NotFound, match="is the --data of `magnetar serve`.*commands --out OUT"):
        Folders.of(tmp_path)
    (tmp_path / "commands" / "0.jsonl").unlink()
    with pytest.raises(NotFound, match="is neither the --out of a replay"):
        Folders.of(tmp_path)


def test_a_query_that_deletes_what_is_read(tmp_path: Path) -> None:
    found = folders(tmp_path / "out", subscribe(), publish(0))
    commits = tmp_path / "checkpoint" / "commits"
    commits.mkdir(parents=True)
    (commits / "7").touch()
    found.checkpoint = tmp_path / "checkpoint"

    def read(goes_on: bool) -> None:
        if goes_on:
            (commits / "8").touch()
        raise EntryNotFound("2:1 is not in the store")

    with pytest.raises(EntryNotFound, match="2:1"), found.unchanged():
        read(goes_on=False)
    with pytest.raises(NotFound, match="were read: try again"), found.unchanged():
        read(goes_on=True)


def test_it_reads_the_files_of_its_partition_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = folders(tmp_path, subscribe(), flow(9), publish(0), ("persistent://a/b/u", {**publish(0)[1]}))
    read: list[tuple[str, int | None]] = []
    files = Folders._files

    def watched(self: Folders, kind: str, partition: int | None) -> list[Any]:
        read.append((kind, partition))
        return files(self, kind, partition)

    monkeypatch.setattr(Folders, "_files", watched)
    at(log, 0)
    assert [partition for kind, partition in read if kind == KINDS[Message]][-1] is not None


# -- which policies hold


def test_policies_and_the_level_that_sets_each(tmp_path: Path) -> None:
    whole, part = "persistent://a/b/p", "persistent://a/b/p-partition-0"
    quota = {"limitSize": 7, "policy": "producer_exception"}
    partitioned = (
        None,
        {"command": "ADMIN", "method": "PUT", "path": f"/{whole.replace('://', '/')}/partitions", "body": 1},
    )
    log = folders(
        tmp_path, policy("messageTTL", 60), policy("maxProducersPerTopic", 5), partitioned,
        admin("/persistent/a/b/p/maxProducersPerTopic", 3), admin("/persistent/a/b/t/backlogQuota", quota, topic=T),
        publish(0), (part, {"producer": "p", "sequence_id": 0, "payload": "x"}), maxConsumersPerTopic=9,
    )  # fmt: skip
    found = {each.policy: each for each in topic_policies(log, T)}
    assert (found["messageTTL"].value, found["messageTTL"].level) == (60, "namespace")
    assert (found["maxProducersPerTopic"].value, found["maxProducersPerTopic"].level) == (5, "namespace")
    assert (found["maxConsumersPerTopic"].value, found["maxConsumersPerTopic"].level) == (9, "broker")
    assert found["destination_storage"].value["limitSize"] == 7
    assert (found["destination_storage"].level, found["message_age"].level) == ("topic", "broker")
    assert found["subscriptionTypesEnabled"].value == ["Exclusive", "Failover", "Key_Shared", "Shared"]
    own = {each.policy: each for each in topic_policies(log, part)}["maxProducersPerTopic"]
    assert (own.value, own.level) == (3, "topic")
    (one,) = namespace_policies(log)
    assert one.namespace == "a/b"
    assert {each.policy: each.value for each in one.policies} == {"messageTTL": 60, "maxProducersPerTopic": 5}
    with pytest.raises(NotFound, match="was deleted"):
        topic_policies(log, "persistent://a/b/gone")


def test_a_rate_that_limits_nothing_sets_no_level() -> None:
    none, some = DispatchRate(), DispatchRate(dispatchThrottlingRateInMsg=5)
    unlimited, limited = Policies(dispatchRate=none), Policies(dispatchRate=some)
    assert effective("dispatchRate", unlimited, limited, ServiceConfiguration()) == (some, "namespace")
    assert effective("dispatchRate", limited, unlimited, ServiceConfiguration()) == (some, "topic")
    assert (
        effective("messageTTL", Policies(messageTTL=-1), Policies(), ServiceConfiguration()).level == "broker"
    )


# -- producers


def producer(name: str, number: int, mode: str = "Shared", **fields: Any) -> Record:
    return T, {"command": "PRODUCER", "connection": f"c{number}", "producer_id": number, "request_id": number,
               "producer_name": name, "producer_access_mode": mode, **fields}  # fmt: skip


def producing(out: Path, *records: Record, of_one: str | None = None, **settings: Any) -> Producing:
    return explain_producers(folders(out, *records, **settings), T, of_one)


def said(found: Producing) -> list[tuple[str | None, str]]:
    return [(each.producer, each.text) for each in found.happened]


def test_who_holds_the_access_who_waits_and_who_was_refused(tmp_path: Path) -> None:
    found = producing(
        tmp_path, producer("a", 1, "Exclusive"), producer("b", 2, "WaitForExclusive"), producer("c", 3),
        producer("d", 4, "Exclusive"),
    )  # fmt: skip
    assert (found.owner, found.waiting) == ("a", 1)
    assert [(each.name, each.state) for each in found.producers] == [("a", "connected"), ("b", "waiting")]
    assert said(found) == [
        ("b", "waits for exclusive access"),
        (
            None,
            "a producer of the connection c3 refused with ProducerBusy: Topic has an existing exclusive producer: a",
        ),
        (
            None,
            "a producer of the connection c4 refused with ProducerFenced: Topic has an existing exclusive producer: a",
        ),
    ]
    code, text = run(tmp_path, T, "--producers")
    assert code == 0
    assert text.startswith(f"{T}, producers: a has exclusive access, and 1 waits for it\n")
    assert "  To do: Close the producer that has the access" in text
    assert "  b (WaitForExclusive, c2) waiting since 2026-01-01 00:00:02.000: number 1 in the queue" in text
    assert (
        "    Shared                is refused with ProducerBusy: Topic has an existing exclusive producer: a"
        in text
    )
    assert run(tmp_path, T, "--producers", "--json")[1] == to_json([found]) + "\n"


def test_a_log_has_the_names_of_those_that_were_refused_and_any_moment(tmp_path: Path) -> None:
    commands = [producer("a", 1, "Exclusive"), producer("b", 2), producer("c", 3, "ExclusiveWithFencing")]
    log = tmp_path / "log.jsonl"
    log.write_text(
        "".join(
            json.dumps({"timestamp": START + 1000 * at, "topic": topic, **command}) + "\n"
            for at, (topic, command) in enumerate(commands)
        )
    )
    options = ["--snapshots", tmp_path / "snapshots"]
    _, text = run(log, T, "--producer", "b", *options)
    assert "  b: refused with ProducerBusy: Topic has an existing exclusive producer: a\n" in text
    assert "a fenced out" not in text
    _, text = run(log, T, "--producer", "a", *options)
    assert "  a: got in\n" in text
    assert "  a fenced out: exclusive access goes to c\n" in text
    _, text = run(log, T, "--producers", "--at", "1", *options)
    assert text.startswith(f"{T}, producers: a has exclusive access\n")
    _, text = run(log, T, "--producers", *options)
    before = "topic epoch 1: who had it under an earlier one is fenced out"
    assert text.startswith(f"{T}, producers: c has exclusive access ({before})\n")


def test_whose_quota_closed_a_producer_and_refuses_it(tmp_path: Path) -> None:
    hold = {"limitSize": 50, "policy": "producer_request_hold"}
    found = producing(
        tmp_path, subscribe("slow"), producer("p", 1), policy("backlogQuota", hold), publish(0), publish(1),
        check("backlogQuota"), producer("p", 1), of_one="p",
    )  # fmt: skip
    assert found.slowest == "slow"
    (blocks,) = [each for each in found.verdicts if each.blocks]
    assert "the slowest subscription is slow" in blocks.text
    (closed,) = [text for name, text in said(found) if name == "p" and "closed" in text]
    assert (
        closed
        == "closed by the broker: backlog quota exceeded: producer_request_hold destination_storage 50 B (namespace)"
    )
    assert found.admissions[0].error == "ProducerBlockedQuotaExceededError"
    assert "unsubscribe -s slow" in found.to_do[0]


# -- what was told wrong


def test_a_topic_with_producers_refuses_only_those_that_want_it_alone(tmp_path: Path) -> None:
    found = producing(tmp_path, producer("p", 1), producer("q", 2))
    assert {each.access_mode: each.answer for each in found.admissions}["Exclusive"] == "is refused"
    assert producers_headline(found) == "2 producers, and new ones get in"


def test_an_entry_that_was_dealt_to_a_consumer_that_has_left_is_not_in_flight(tmp_path: Path) -> None:
    """A chunk goes to the consumer that got the first one, also if that has left."""

    def chunk(number: int) -> Record:
        return send(0, chunk_id=number, num_chunks_from_msg=3, total_chunk_msg_size=3, uuid="u")

    leaves = (T, {"command": "CLOSE_CONSUMER", "connection": "c0", "consumer_id": 0, "request_id": 9})
    found = stuck(folders(
        tmp_path, create(), subscribe(), flow(9), chunk(0), chunk(1), ack(0, 1), leaves, subscribe(consumer=1), flow(9, 1), chunk(2),
        send(1),
    ))  # fmt: skip
    assert (found.state, found.lost, found.in_flight, found.backlog) == ("lost", 1, 1, 2)
    assert blocking(found) == [("first chunk", None)]
    assert found.verdicts[0].text.startswith("1 entry, from 1:2 on: dealt to a consumer that has left")
    assert found.to_do[0].startswith("Nobody can complete the message. Skip what is left of it")
    code, text = run(tmp_path, T)
    assert code == 0
    assert text.startswith(f"{T}, subscription s (Shared): lost\n")
    assert "Every entry of its backlog is with a consumer" not in text
    assert (
        "backlog 2 entries (2 messages): 1 in flight, 0 to redeliver, 0 delayed, 0 not read yet, 1 lost"
        in text
    )


def test_a_limit_of_one_never_unblocks(tmp_path: Path) -> None:
    """New entries wait for fewer unacked messages than half of the limit, rounded down: than 0."""
    found = stuck(
        folders(
            tmp_path / "one",
            subscribe(),
            flow(9),
            publish(0),
            publish(1),
            ack(0),
            maxUnackedMessagesPerSubscription=1,
        )
    )
    (one,) = [each for each in found.verdicts if each.blocks]
    assert one.text == (
        "0 unacked messages, the limit is 1; a limit of 1 never unblocks, for that takes fewer unacked messages than half of it, "
        "rounded down to 0"
    )
    assert found.to_do[0].startswith("Set the limit to 2 or more, or to 0 for none, and unload the topic")
    two = stuck(
        folders(
            tmp_path / "two",
            subscribe(),
            flow(9),
            publish(0),
            publish(1),
            publish(2),
            ack(0),
            maxUnackedMessagesPerSubscription=2,
        )
    )
    assert "never unblocks" not in " ".join(each.text for each in two.verdicts)
