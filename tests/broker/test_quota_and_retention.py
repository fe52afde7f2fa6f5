"""Why ledgers are still there and why quotas have evicted nothing: what the answer says is what the checks then do."""

import json
from typing import Any

import pytest

from schemas.commands import BrokerConfig, RunCheck, Tick, to_json
from schemas.effects import CloseProducer, Effect, Evicted, LedgerClosed, LedgerDeleted
from streaming.answers.explain.advice import of_retention
from streaming.broker.broker import Broker
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.persistent.cleanup.backlog_quota import Quota, Quotas
from streaming.broker.persistent.cleanup.trimming import KeptLedger, Retention
from streaming.broker.persistent.topic import SHADOW_SOURCE
from tests.broker.kit import START, TOPIC, Run, Stored, feed, of
from tests.broker.random_lives import restarts
from tests.broker.recorded_lives import NAMES


@pytest.mark.parametrize(("theme", "seed"), NAMES[3::4])
def test_the_checks_do_what_the_answers_say(theme: str, seed: int) -> None:
    for broker, store, draw in restarts(theme, seed, 0.05):
        names = [name for name in broker.topic_names() if not is_non_persistent(name)]
        if names and broker.clock > 0:
            agree(broker, store, draw.choice(names))


def agree(broker: Broker, store: Stored, name: str) -> None:
    state = broker.encode()
    kept = Broker.decode(state, store).retention(name)
    quotas = Broker.decode(state, store).quotas(name)
    closed = broker.is_closed(name)
    assert bool(kept.unchecked and quotas.unchecked) or not closed

    now = after(state, store, name, RunCheck(check="consumedLedgers"), broker.clock)
    free = [each.ledger for each in kept.ledgers if each.reason == "not checked yet"]
    deleted = [each.ledger_id for each in of(now, LedgerDeleted)]
    if of(now, LedgerClosed):  # the open ledger was unused for long: its end lets more go
        assert deleted[: len(free)] == free
    else:
        assert deleted == ([] if kept.unchecked else free), kept

    now = after(state, store, name, RunCheck(check="backlogQuota"), broker.clock)
    if quotas.unchecked is None:
        assert bool(of(now, Evicted)) == any(each.evicts for each in quotas.quotas), quotas
        for each in quotas.quotas:
            assert (each.state == "exceeded") == (each.headroom is not None and exceeds(each)), each
    elif "backlogQuotaCheckEnabled" not in quotas.unchecked:
        assert not of(now, Evicted)

    for found in (kept, quotas):
        if found.next_check is not None:
            later = after(state, store, name, Tick(), found.next_check)
            if isinstance(found, Retention):
                assert [each.ledger_id for each in of(later, LedgerDeleted)] == found.deletes
            else:
                assert [(each.subscription, each.entries) for each in of(later, Evicted)] == [
                    (each.subscription, each.entries) for each in found.evicts
                ]
                assert [each.producer_name for each in of(later, CloseProducer)] == found.disconnects


def exceeds(quota: Quota) -> bool:
    """A size is exceeded when it is reached, an age when it is passed."""
    assert quota.headroom is not None
    return quota.headroom <= 0 if quota.type == "destination_storage" else quota.headroom < 0


def after(state: bytes, store: Stored, name: str, command: RunCheck | Tick, time: int) -> list[Effect]:
    """What a command at `time` does to a topic, on a copy."""
    broker = Broker.decode(state, store)
    feed(broker, broker.offset + 1, time, None, to_json(command))
    return [row.effect for row in broker.take() if getattr(row.effect, "topic", None) == name]


# -- each reason


def answer(run: Run) -> tuple[Retention, Quotas]:
    """Both answers, each of a copy of the broker."""
    run.broker.take()
    store = run.store if isinstance(run, Kept) else Stored()
    state = run.broker.encode()
    return Broker.decode(state, store).retention(TOPIC), Broker.decode(state, store).quotas(TOPIC)


class Kept(Run):
    """A run whose entries are stored, so that a copy of its broker reads them."""

    def __init__(self, **settings: Any) -> None:
        self.store = Stored()
        super().__init__(**settings)

    def raw(self, value: bytes, topic: str | None = TOPIC) -> list[Effect]:
        effects = super().raw(value, topic)
        self.store.add(effects)
        return effects


def ledger(found: Retention, number: int) -> KeptLedger:
    (one,) = [each for each in found.ledgers if each.ledger == number]
    return one


def retain(run: Run, minutes: int, megabytes: int) -> None:
    body = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
    run.namespace("POST", "retention", body)


def quota(run: Run, type_: str, policy: str, **limits: int) -> None:
    run.namespace("POST", f"backlogQuota?backlogQuotaType={type_}", {"policy": policy, **limits})


def test_a_ledger_that_a_cursor_needs_and_the_open_one() -> None:
    run = Kept(managedLedgerMaxEntriesPerLedger=2, retentionCheckIntervalInSeconds=120)
    run.subscribe("s")
    run.fill(3)
    found, _ = answer(run)
    assert [each.reason for each in found.ledgers] == ["cursor", "open"]
    assert found.ledgers[0].cursors == ["s"]
    assert found.ledgers[0].text == "still needed by s (mark-delete position 1:-1)"
    assert (found.next_check, found.unchecked, found.deletes) == (START + 120_000, None, [])


def test_a_ledger_that_retention_keeps_until_a_time() -> None:
    run = Kept(managedLedgerMaxEntriesPerLedger=2, retentionCheckIntervalInSeconds=120)
    retain(run, 1, 10)
    run.subscribe("s", permits=9)
    run.fill(5)
    run.ack("s", (1, 0), (1, 1), (2, 0), (2, 1))
    found, _ = answer(run)
    assert [each.reason for each in found.ledgers] == ["retention", "older ledger", "open"]
    assert (ledger(found, 1).until, found.deletes) == (START + 60_001, [1, 2])
    assert ledger(found, 1).text == (
        "consumed, but it was closed less than 1 min ago and the 3072 bytes after it are less than 10 MB (10485760 bytes) "
        "(retention of the namespace)"
    )
    run.wait(90)
    found, _ = answer(run)
    assert [each.reason for each in found.ledgers] == ["not checked yet", "not checked yet", "open"]
    assert ledger(found, 1).text == "may go (retention time), which the next check sees"


def test_retention_without_limits() -> None:
    run = Kept(managedLedgerMaxEntriesPerLedger=2)
    retain(run, -1, -1)
    run.fill(3)
    found, _ = answer(run)
    assert (ledger(found, 1).reason, ledger(found, 1).until) == ("retention", None)
    assert "retention has no limit of time and none of size" in ledger(found, 1).text
    assert (found.next_check, found.deletes) == (None, [])


def test_a_topic_that_the_retention_check_passes_over() -> None:
    run = Kept(managedLedgerMaxEntriesPerLedger=2, retentionCheckEveryTopic=False)
    run.fill(1)
    assert "retentionCheckEveryTopic" in (answer(run)[0].unchecked or "")
    retain(run, 1, 1)
    assert answer(run)[0].unchecked is None


def test_the_last_ledger_of_a_terminated_topic() -> None:
    run = Kept(managedLedgerMaxEntriesPerLedger=2)
    run.fill(1)
    run.admin("POST", "/terminate")
    for _ in range(2):
        (last,) = answer(run)[0].ledgers
        assert (last.reason, last.text) == ("open", "the last ledger of a terminated topic")
        run.unload()


def test_a_topic_that_nothing_has_used_since_a_restart() -> None:
    run = Kept()
    run.fill(1)
    run.raw(b'{"command": "RESTART"}', None)
    retention, quotas = answer(run)
    assert retention.unchecked == quotas.unchecked
    assert "not loaded" in (quotas.unchecked or "")


def texts(found: Quotas) -> dict[str, str]:
    return {each.type: each.text for each in found.quotas}


def test_no_quota_and_a_quota_with_headroom() -> None:
    run = Kept(backlogQuotaCheckIntervalInSeconds=60)
    run.subscribe("s")
    run.fill(3)
    quota(run, "destination_storage", "consumer_backlog_eviction", limitSize=5000)
    _, found = answer(run)
    size, age = found.quotas
    assert (size.state, size.limit, size.used, size.headroom) == ("within its limit", 5000, 3072, 1928)
    assert (age.state, age.headroom, age.text) == ("no limit", None, "a limit of 0 or less is none")
    assert (found.slowest, found.mark_delete, found.next_check) == ("s", "1:-1", START + 60_000)
    assert (found.evicts, found.disconnects) == ([], [])


def test_a_quota_that_is_not_checked_yet() -> None:
    run = Kept(backlogQuotaCheckIntervalInSeconds=60)
    run.subscribe("s")
    run.fill(10)
    quota(run, "destination_storage", "consumer_backlog_eviction", limitSize=5000)
    _, found = answer(run)
    assert found.quotas[0].evicts
    assert texts(found)["destination_storage"].startswith("not checked yet")
    (eviction,) = [each for each in found.evicts if each.before == "1:-1"]
    assert (eviction.subscription, eviction.entries) == ("s", 5)


def test_an_excess_of_less_than_an_entry() -> None:
    run = Kept()
    run.subscribe("s")
    run.fill(1)
    quota(run, "destination_storage", "consumer_backlog_eviction", limitSize=1020)
    _, found = answer(run)
    assert (found.quotas[0].state, found.quotas[0].evicts) == ("exceeded", False)
    assert "less than one entry" in found.quotas[0].text


def test_an_exceeded_quota_without_a_subscription() -> None:
    run = Kept()
    quota(run, "destination_storage", "consumer_backlog_eviction", limitSize=0)
    run.fill(1)
    assert "no durable subscription has a backlog" in texts(answer(run)[1])["destination_storage"]


def test_a_quota_that_blocks_producers() -> None:
    run = Kept(backlogQuotaCheckIntervalInSeconds=60)
    run.subscribe("s")
    run.create_producer("p")
    run.send(1)
    quota(run, "destination_storage", "producer_exception", limitSize=10)
    _, found = answer(run)
    assert texts(found)["destination_storage"].startswith(
        "producer_exception evicts nothing: the check closes"
    )
    assert found.disconnects == ["p"]


def test_a_quota_that_spares_producers_for_the_cursor_of_deduplication() -> None:
    run = Kept(brokerDeduplicationEnabled=True)
    quota(run, "destination_storage", "producer_exception", limitSize=10)
    run.fill(2)
    assert "deduplication: the check takes a snapshot" in texts(answer(run)[1])["destination_storage"]


def test_an_age_that_is_not_known_or_evicts_nothing() -> None:
    run = Kept(managedLedgerMaxEntriesPerLedger=2, backlogQuotaCheckIntervalInSeconds=60)
    quota(run, "message_age", "consumer_backlog_eviction", limitTime=30)
    run.subscribe("s")
    assert texts(answer(run)[1])["message_age"] == "no entry is unacknowledged"
    run.fill(1)
    assert "the oldest unacknowledged entry is open" in texts(answer(run)[1])["message_age"]
    run.fill(2, first=1)
    _, found = answer(run)
    assert (found.quotas[1].state, found.quotas[1].used) == ("within its limit", 0)
    assert found.evicts[0].entries == 2
    run.wait(31)
    assert texts(answer(run)[1])["message_age"].startswith("not checked yet")


def test_an_exact_age() -> None:
    run = Kept(preciseTimeBasedBacklogQuotaCheck=True)
    quota(run, "message_age", "consumer_backlog_eviction", limitTime=30)
    run.subscribe("s")
    run.fill(1)
    run.wait(31)
    assert answer(run)[1].quotas[1].evicts
    quota(run, "message_age", "consumer_backlog_eviction", limitTime=1)
    assert "older than 0 s" in texts(answer(run)[1])["message_age"]
    quota(run, "message_age", "producer_request_hold", limitTime=30)
    assert "producer_request_hold evicts nothing" in texts(answer(run)[1])["message_age"]


def test_both_quotas_are_exceeded() -> None:
    run = Kept(preciseTimeBasedBacklogQuotaCheck=True)
    quota(run, "message_age", "consumer_backlog_eviction", limitTime=30)
    quota(run, "destination_storage", "consumer_backlog_eviction", limitSize=10)
    run.subscribe("s")
    run.fill(1)
    run.wait(31)
    assert "the quota of size, which goes first" in texts(answer(run)[1])["message_age"]


def test_the_check_of_quotas_is_turned_off() -> None:
    run = Kept(backlogQuotaCheckEnabled=False)
    run.fill(1)
    assert "backlogQuotaCheckEnabled" in (answer(run)[1].unchecked or "")
    run.do(
        BrokerConfig(settings={"backlogQuotaCheckEnabled": True, "backlogQuotaSkipsFencedTopics": True}), None
    )
    run.broker.topic(TOPIC).fenced = True
    assert "fenced" in (answer(run)[1].unchecked or "")


def test_the_ledgers_of_a_mirror_are_for_its_source_to_delete() -> None:
    run = Kept(retentionCheckIntervalInSeconds=120)
    run.admin("PUT", "", {SHADOW_SOURCE: f"{TOPIC}-source"})
    producer: dict[str, Any] = {
        "command": "PRODUCER",
        "producer_id": 0,
        "request_id": 1,
        "producer_name": "pulsar.repl.m",
    }
    seen = {
        "command": "MIRROR",
        "ledger_id": 1,
        "last_confirmed": [1, -1],
        "entries": 0,
        "size": 0,
        "first_ledger": 1,
    }
    sends: list[dict[str, Any]] = [
        {
            "command": "SEND",
            "producer_id": 0,
            "sequence_id": ledger_id,
            "metadata": {"producer_name": "p", "sequence_id": ledger_id, "publish_time": START},
            "message_id": {"ledgerId": ledger_id, "entryId": 0},
            "payload": "x",
        }
        for ledger_id in (1, 2)
    ]
    for each in (producer, seen, *sends):
        run.raw(json.dumps({**each, "connection": "mirror"}).encode())
    run.wait(600)
    found, _ = answer(run)
    assert [each.reason for each in found.ledgers] == ["source", "open"]
    assert found.deletes == []
    assert of_retention(found) == []
