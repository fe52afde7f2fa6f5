"""Silence costs nothing, and skipping the rounds of checks that do nothing has no visible effect."""

import copy
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.commands import (
    Ack,
    Admin,
    BrokerConfig,
    CloseConsumer,
    MessageIdData,
    MessageMetadata,
    Mirror,
    Publish,
    RunCheck,
    Subscribe,
    SubType,
    Tick,
    to_json,
)
from schemas.effects import Effect, Evicted, Expired, LedgerClosed, LedgerDeleted, Message, Row
from schemas.entries import EntryReader
from schemas.units import LATEST_TIME
from streaming.broker import entry_filters
from streaming.broker.broker import Broker
from streaming.broker.dispatch.multiple_consumers import MultipleConsumers
from streaming.broker.dispatch.single_active_consumer import SingleActiveConsumer
from streaming.broker.entries import NoEntries
from streaming.broker.entry_filters import FilterResult
from streaming.broker.periodic_checks import CHECKS
from streaming.broker.persistent import lifecycle
from streaming.broker.state.codec import PartitionState
from streaming.broker.topic.abstract_topic import AbstractTopic
from tests.broker.kit import QUIET, START, TOPIC, Run, Stored, feed, of, one, sent
from tests.broker.test_cut_invariance import TOPICS, Record
from tests.broker.test_invariants import logs
from tests.broker.test_shadow_topics import shadow, store
from tests.examples import examples

SILENCES = [0, 0, 0, 0, 1_000, 1_000, 61_000, 61_000, 3_600_000, 5 * 3_600_000]
DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS
EVICTION = "consumer_backlog_eviction"


def later(metadata: MessageMetadata, properties: Mapping[str, str]) -> FilterResult:
    """Messages with a key wait for ever."""
    return "ACCEPT" if metadata.partition_key is None else "RESCHEDULE"


entry_filters.register("KeysWait", later)


class Patient(Broker):
    """Goes through every round and every retry."""

    def _start(self, state: PartitionState, entries: EntryReader) -> None:
        super()._start(state, entries)
        self._persistent._skips = False


def awake(broker: Broker) -> dict[str, AbstractTopic]:
    """The topics, with all that skipped rounds and retries would have left behind."""
    for name in broker._persistent.names():
        for subscription in broker._persistent.touch(name).subscriptions.values():
            if isinstance(subscription.dispatcher, MultipleConsumers):
                for positions in subscription.dispatcher.rescheduled.values():
                    positions.sort()
            elif isinstance(subscription.dispatcher, SingleActiveConsumer):
                subscription.dispatcher.redeliver_at.sort()
    return broker.topics()


def folded(kind: type[Broker], log: list[Record]) -> tuple[list[Row], Any]:
    broker, now = kind(0, NoEntries()), START
    rows: list[Row] = []
    for offset, (jump, topic, command) in enumerate(log):
        now += jump
        feed(broker, offset, now, topic, to_json(command))
        rows += broker.take()
    return rows, (counted(broker), awake(broker))


def counted(broker: Broker) -> list[Any]:
    """What metrics and rows of stats show of the topics before anything wakes them, without rates, which end by themselves."""
    topics = {
        each.name: (each.size_evictions, each.time_evictions, each.messages_in, each.backlog_size,
                     [(sub.name, sub.expired, sub.times) for sub in each.subscriptions])
        for each in broker.metrics(everything=True).topics
    }  # fmt: skip
    return [*sorted(topics.items()), *broker.stats()]


# -- random lives -------------------------------------------------------------------------------------------------

ADVERSE: dict[str, st.SearchStrategy[Any]] = {
    "entryFilterNames": st.sampled_from(["", "KeysWait"]),
    "dispatcherEntryFilterRescheduledMessageDelay": st.sampled_from([7_000, 20_000]),
    "backlogQuotaDefaultLimitBytes": st.sampled_from([-1, 0, 1, 60, 400]),
    "backlogQuotaDefaultLimitSecond": st.sampled_from([-1, 1, 30, 3_000]),
    "backlogQuotaDefaultRetentionPolicy": st.sampled_from(["producer_request_hold", EVICTION]),
    "brokerDeduplicationSnapshotIntervalSeconds": st.sampled_from([0, 120, 5_000]),
    "ttlDurationDefaultInSeconds": st.sampled_from([0, 30, 3_000]),
    "defaultRetentionTimeInMinutes": st.sampled_from([0, 5, -1]),
    "defaultRetentionSizeInMB": st.sampled_from([0, -1]),
    "managedLedgerInactiveLedgerRolloverTimeSeconds": st.sampled_from([0, 100]),
    "maxUnackedMessagesPerBroker": st.sampled_from([0, 0, 1, 5]),
    "maxUnackedMessagesPerSubscriptionOnBrokerBlocked": st.sampled_from([0.16, 0.5]),
}
MORE_TOPICS = {topic: [topic, topic + "2"] for topic in TOPICS}
POLICIES: list[tuple[str, str, Any]] = [
    ("POST", "/messageTTL", 100),
    ("POST", "/backlogQuota", {"limitSize": 0, "policy": EVICTION}),
    ("POST", "/backlogQuota", {"limitSize": 1, "policy": EVICTION}),
    ("POST", "/backlogQuota?backlogQuotaType=message_age", {"limitTime": 100, "policy": EVICTION}),
    ("POST", "/backlogQuota?backlogQuotaType=message_age", {"limitTime": 9, "policy": "producer_exception"}),
    ("POST", "/subscriptionExpirationTime", 30),
    ("POST", "/deduplication", True),
    ("POST", "/retention", {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}),
    ("DELETE", "/messageTTL", None),
    ("DELETE", "/retention", None),
]


@st.composite
def lives(draw: st.DrawFn) -> list[Record]:
    """A life of up to four topics under a configuration with which much could go round in circles; with silences, in which
    policies and the configuration change."""
    (_, _, first), *records = draw(logs())
    assert isinstance(first, BrokerConfig)
    adverse = draw(st.fixed_dictionaries(ADVERSE))
    log: list[Record] = [(0, None, BrokerConfig(profile=first.profile, settings=first.settings | adverse))]
    for jump, topic, command in records:
        if topic is not None:
            moved = draw(st.sampled_from(MORE_TOPICS[topic]))
            if isinstance(command, Admin):
                path = command.path.replace(topic.replace("://", "/"), moved.replace("://", "/"))
                command = msgspec.structs.replace(command, path=path)
            topic = moved
        log.append((jump, topic, command))
        if silence := draw(st.sampled_from(SILENCES)):
            match draw(st.integers(0, 9)):
                case 0:
                    method, call, body = draw(st.sampled_from(POLICIES))
                    path = "/namespaces/public/default" + call
                    log.append((silence, None, Admin(method=method, path=path, body=body)))
                case 1:
                    adverse = draw(st.fixed_dictionaries(ADVERSE))
                    log.append((silence, None, BrokerConfig(settings=first.settings | adverse)))
                case 2:
                    log.append((silence, None, RunCheck(check=draw(st.sampled_from(sorted(CHECKS))))))
                case _:
                    log.append((silence, None, Tick()))
    return log


def slow(count: int) -> settings:
    return settings(
        max_examples=examples(count), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
    )


@given(lives())
@slow(50)
def test_skipping_makes_no_difference(log: list[Record]) -> None:
    assert folded(Broker, log) == folded(Patient, log)


@pytest.mark.parametrize("silence", [61_000, 17 * 3_600_000, 17 * 3_600_000 + 1_200_000, 18 * 3_600_000])
def test_rates_vanish_alike(silence: int) -> None:
    # A rate is halved with each interval, until a float can be halved no more.
    settings: dict[str, Any] = {
        "brokerDeduplicationEnabled": True,
        "brokerDeleteInactiveTopicsEnabled": False,
    }
    topic, config = TOPICS[0], BrokerConfig(settings=settings)
    log: list[Record] = [
        (0, None, config),
        *[(0, topic, Publish(producer="p", sequence_id=n, payload="xxx")) for n in range(7)],
    ]
    log += [(30 * 60_000, topic, Publish(producer="p", sequence_id=n, payload="xx")) for n in range(7, 9)]
    log += [(silence, None, Tick()), (61_000, None, Tick())]
    whole, patient = folded(Broker, log), folded(Patient, log)
    assert whole == patient
    assert (whole[1][1][topic].publish_rates == (0.0, 0.0)) == (silence > 17 * 3_600_000)


@given(lives(), st.data())
@slow(60)
def test_restarts_make_no_difference(log: list[Record], data: st.DataObject) -> None:
    """Neither to what comes out, nor to the state, bit by bit."""
    cuts = data.draw(st.sets(st.integers(1, len(log)), max_size=8))
    store, now = Stored(), START
    whole, cut = Broker(0, NoEntries()), Broker(0, store)
    for offset, (jump, topic, command) in enumerate(log):
        now += jump
        if offset in cuts:
            cut = Broker.decode(cut.encode(), store)
        for broker in (whole, cut):
            feed(broker, offset, now, topic, to_json(command))
        rows = whole.take()
        assert cut.take() == rows
        store.add([row.effect for row in rows])
    assert whole.encode() == cut.encode()


# -- one rule, one module ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHECKS)
def test_what_a_check_does_and_when_it_next_does_something_stand_in_one_module(name: str) -> None:
    """Two modules would repeat the conditions of a check, and one day differ."""
    check = CHECKS[name]
    rules = (check.run, check.next_effect, check.skipped, check.deletes)
    assert len({rule.__module__ for rule in rules if rule is not None}) == 1


# -- work in a silence --------------------------------------------------------------------------------------------


class Work(Counter[str]):
    """Counts what passing time does: runs of checks, looks at what they will do, runs of a topic's timers. Of the check of compaction, which
    mostly finds that no policy asks for it, it counts nothing."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        for name, check in CHECKS.items():
            if name == "compaction":
                continue
            patch.setitem(
                CHECKS,
                name,
                check._replace(
                    run=self.counting("runs", check.run),
                    next_effect=self.counting("looks", check.next_effect),
                ),
            )
        patch.setattr(lifecycle, "run_timers", self.counting("timers", lifecycle.run_timers))

    def counting(self, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            self[what] += 1
            return function(*args)

        return counted


SHORTEST: dict[str, Any] = {
    "managedLedgerCursorPositionFlushSeconds": 1,
    "messageExpiryCheckIntervalInMinutes": 0.05,
    "backlogQuotaCheckIntervalInSeconds": 1,
    "retentionCheckIntervalInSeconds": 1,
    "brokerDeduplicationSnapshotFrequencyInSeconds": 1,
    "brokerDeduplicationProducerInactivityTimeoutMinutes": 1,
    "subscriptionExpiryCheckIntervalInMinutes": 1,
    "dispatcherEntryFilterRescheduledMessageDelay": 1,
}


@given(lives())
@slow(60)
def test_work_in_a_silence_is_bounded_by_what_happens(log: list[Record]) -> None:
    """By the topics, and by the effects. The length of the silence, and how often checks are due, make no difference."""
    with pytest.MonkeyPatch.context() as patch:
        work = Work(patch)
        broker, now = Broker(0, NoEntries()), START
        entries = 0
        for offset, (jump, topic, command) in enumerate(log):
            now += jump
            if isinstance(command, BrokerConfig):
                command = BrokerConfig(profile=command.profile, settings=command.settings | SHORTEST)
            feed(broker, offset, now, topic, to_json(command))
            broker.take()
        entries = sum(
            topic.ledger.number_of_entries for topic in map(broker.topic, broker._persistent.names())
        )
        topics = len(broker.topic_names())
        work.clear()
        broker.tick(LATEST_TIME)
        happened = len(broker.take()) + entries + topics
        assert work["timers"] <= 3 * happened
        assert work["runs"] <= 30 * happened
        assert work["looks"] <= 30 * happened


@pytest.mark.parametrize(
    "settings", [{}, {"ttlDurationDefaultInSeconds": 60}, {"brokerDeduplicationEnabled": True}]
)
def test_years_pass_in_a_moment(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that begins with a time in seconds, or goes on after years: with a backlog, cursors to flush and a consumer."""
    work = Work(monkeypatch)
    run = Run(
        managedLedgerMaxEntriesPerLedger=2,
        messageExpiryCheckIntervalInMinutes=1,
        backlogQuotaCheckIntervalInSeconds=60,
        backlogQuotaDefaultLimitSecond=3600,
        retentionCheckIntervalInSeconds=60,
        managedLedgerDefaultMarkDeleteRateLimit=0.1,
        **settings,
    )
    run.subscribe("s", "Shared", permits=9)
    run.subscribe("slow")
    for number in range(9):
        run.publish(number)
    run.ack("s", (1, 0))
    work.clear()
    run.wait(50 * YEAR_MS / 1000)
    assert work["runs"] < 100


def test_a_ledger_that_waits_for_the_next_look_is_not_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That of a mirrored topic which its source closed since: retention lets it go, and nobody knows yet who needs it."""
    work = Work(monkeypatch)
    run = shadow(shadowTopicFollowsSource=False, retentionCheckIntervalInSeconds=60)
    run.do(Mirror(ledger_id=1))
    run.wait(1)
    for ledger in (1, 2):
        store(run, ledger, 0)
    work.clear()
    run.wait(YEAR_MS / 1000)
    assert len(run.broker.retention(TOPIC).ledgers) == 2
    assert work.total() < 100


def work_of_a_year(patch: pytest.MonkeyPatch, topics: int) -> int:
    """A topic every five minutes, with a subscription and two messages that expire after 30 days; then a year's silence."""
    work = Work(patch)
    run = Run(
        ttlDurationDefaultInSeconds=30 * 86_400, messageExpiryCheckIntervalInMinutes=5,
        backlogQuotaCheckIntervalInSeconds=60, retentionCheckIntervalInSeconds=120,
        brokerDeduplicationSnapshotFrequencyInSeconds=120,
    )  # fmt: skip
    for number in range(topics):
        name = f"{TOPIC}{number}"
        run.subscribe("s", topic=name)
        for sequence_id in range(2):
            run.publish(sequence_id, topic=name)
        run.wait(300)
    assert len(of(run.wait(YEAR_MS / 1000), Expired)) == topics
    return work.total()


def test_silence_over_many_topics_is_proportional_to_what_happens() -> None:
    found = []
    for topics in (20, 40, 80):
        with pytest.MonkeyPatch.context() as patch:
            found.append(work_of_a_year(patch, topics))
    assert found[1] <= 2.2 * found[0]
    assert found[2] <= 2.2 * found[1]
    assert found[2] <= 80 * 100


def test_untouched_topics_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics on which something would happen next year, while one topic is busy: a restart does not wake them, either."""
    run = Run(ttlDurationDefaultInSeconds=365 * 86_400, messageExpiryCheckIntervalInMinutes=5)
    for number in range(50):
        run.subscribe("s", topic=f"{TOPIC}{number}")
        run.publish(0, topic=f"{TOPIC}{number}")
    run.wait(86_400)
    run.broker = Broker.decode(run.broker.encode(), NoEntries())
    work = Work(monkeypatch)
    for sequence_id in range(5):
        run.wait(3_600)
        run.publish(sequence_id)
    assert work["runs"] <= 5 * len(CHECKS)
    assert list(run.broker._persistent._loaded) == [TOPIC]


def test_retries_of_one_subscription_fall_asleep_while_another_one_gets_something() -> None:
    """Both retries are due at the same time. What happens next on the topic counts those of the first."""
    both = Both(entryFilterNames="KeysWait", dispatcherEntryFilterRescheduledMessageDelay=3_000)
    both.publish(0, key="k")
    both.subscribe("a", "Shared", permits=9)
    both.subscribe("b", permits=1)
    both.wait(10)
    both.publish(1)
    both.wait(7)
    both.close_consumer("a")
    both.silence(1)


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        pytest.param({"backlogQuotaDefaultLimitBytes": 0}, None, id="a limit of 0, no backlog"),
        pytest.param({"backlogQuotaDefaultLimitBytes": 50}, 1_000, id="a message larger than the limit"),
        pytest.param({"backlogQuotaDefaultLimitSecond": 60}, 1, id="the last ledger with entries"),
    ],
)  # fmt: skip
def test_evictions_that_evict_nothing(
    settings: dict[str, Any], size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count, as in Pulsar. They need not run for that."""
    work = Work(monkeypatch)
    both = Both(backlogQuotaDefaultRetentionPolicy=EVICTION, **settings)
    both.subscribe("s")
    if size:
        both.publish(0, payload="x" * size)
        both.unload()
    both.silence(1)
    run = both.runs[0]
    work.clear()
    assert of(run.wait(YEAR_MS / 1000), Evicted) == []
    assert work["runs"] < 10
    run.admin("GET", "/stats")
    counters = run.topic.counters
    assert counters.size_evictions + counters.time_evictions == pytest.approx(365 * 1440 + 60, abs=3)


def test_producers_stay_while_the_deduplication_cursor_is_slowest(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    both = Both(
        brokerDeduplicationEnabled=True, backlogQuotaDefaultLimitBytes=10,
        brokerDeduplicationSnapshotIntervalSeconds=0,
    )  # fmt: skip
    both.create_producer()
    both.send(0)
    both.silence(5)
    work.clear()
    both.runs[0].wait(YEAR_MS / 1000)
    assert work["runs"] == 0
    assert list(both.runs[0].topic.producers) == ["p"]


TYPES: list[SubType] = ["Exclusive", "Failover", "Shared", "Key_Shared"]


@pytest.mark.parametrize("type_", TYPES)
def test_an_entry_that_a_filter_puts_off_for_ever(type_: SubType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its retries are counted, and keep their rhythm. They need not run for that."""
    work = Work(monkeypatch)
    both = Both(entryFilterNames="KeysWait", activeConsumerFailoverDelayTimeMillis=0)
    both.subscribe("s", type_, permits=1_000)
    both.publish(0, key="k")
    both.wait(0.4)
    both.publish(1, key="k")
    both.silence(5)
    run = both.runs[0]
    work.clear()
    assert run.wait(YEAR_MS / 1000) == []
    assert work.total() < 20
    run.configure()
    assert sent(run.wait(0.599)) == []
    first, *others = of(run.wait(0.001), Message)
    retries = 365 * 86_400 + 5 * 3_600 + 1 if type_ in ("Shared", "Key_Shared") else 0
    assert (first.entry_id, first.redelivery_count) == (0, retries)
    assert [message.entry_id for message in others] == ([1] if type_ in ("Exclusive", "Failover") else [])
    if not others:
        assert one(run.wait(0.4), Message).redelivery_count == retries


def test_stats_show_skipped_rounds_and_change_nothing() -> None:
    """The time of the last expiry is that of the last round, though no round ran."""
    run = Run(
        ttlDurationDefaultInSeconds=60, messageExpiryCheckIntervalInMinutes=1,
        managedLedgerMaxLedgerRolloverTimeMinutes=10_000,
    )  # fmt: skip
    run.subscribe("s")
    run.publish(0)
    run.wait(DAY_MS / 1000)
    for _ in range(2):
        run.wait(90)
        state = run.broker.encode()
        shown = run.broker.topic_stats(TOPIC)["stats"]["subscriptions"]["s"]
        assert shown["lastExpireTimestamp"] == run.now - (run.now - START) % 60_000
        assert run.broker.encode() == state


def test_metrics_and_rows_of_stats_show_skipped_rounds_and_change_nothing() -> None:
    """An eviction that can't evict counts in each round, though none ran, as GET of the stats shows."""
    both = Both()
    both.namespace("POST", "backlogQuota", {"limitSize": 10, "policy": EVICTION})
    both.subscribe("s")
    both.publish(0)
    for _ in range(20):
        both.wait(60)
    states = [run.broker.encode() for run in both.runs]
    skipping, patient = ([*run.broker.metrics(everything=True).topics] for run in both.runs)
    assert [each.size_evictions for each in skipping] == [each.size_evictions for each in patient] == [20]
    assert both.runs[0].broker.stats() == both.runs[1].broker.stats()
    assert [run.broker.encode() for run in both.runs] == states


def test_retries_that_send_something_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Exclusive a retry sends again what is not acknowledged, while there are permits."""
    both = Both(entryFilterNames="KeysWait")
    both.subscribe("s", permits=100)
    both.publish(0)
    both.publish(1, key="k")
    assert len(sent(both.silence(1))) == 99
    assert sent(both.silence(1)) == []


class Both:
    """Two brokers, one of which goes through every round, that must not differ."""

    def __init__(self, profile: Literal["2.x", "4.x"] = "4.x", **settings: Any) -> None:
        checks = {"messageExpiryCheckIntervalInMinutes": 1, "backlogQuotaCheckIntervalInSeconds": 60,
                  "retentionCheckIntervalInSeconds": 60}  # fmt: skip
        self.runs = [Run(profile=profile, **checks | settings) for _ in range(2)]
        patient = self.runs[1]
        patient.broker = Patient(0, NoEntries())
        patient.configure(profile, **checks | settings)

    def __getattr__(self, name: str) -> Callable[..., list[Effect]]:
        def call(*arguments: Any, **fields: Any) -> list[Effect]:
            effects, same = (getattr(run, name)(*arguments, **fields) for run in self.runs)
            assert effects == same
            return list(effects)

        return call

    def silence(self, hours: float) -> list[Effect]:
        effects = self.wait(hours * 3600)
        skipping, patient = (awake(copy.deepcopy(run.broker)) for run in self.runs)
        assert skipping == patient
        return effects


def test_retention_lets_ledgers_go_in_the_middle_of_a_silence() -> None:
    both = Both(managedLedgerMaxEntriesPerLedger=2)
    both.namespace("POST", "retention", {"retentionTimeInMinutes": 90, "retentionSizeInMB": -1})
    both.subscribe("s", permits=9)
    for number in range(5):
        both.publish(number)
    both.ack("s", (3, 0), cumulative=True)
    assert of(both.silence(1), LedgerDeleted) == []
    assert len(of(both.silence(1), LedgerDeleted)) == 2
    both.namespace("POST", "retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    both.silence(5)


def test_what_a_new_retention_lets_go_goes_with_its_own_check() -> None:
    both = Both(managedLedgerMaxEntriesPerLedger=2, retentionCheckIntervalInSeconds=1800)
    both.namespace("POST", "retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    both.subscribe("s", permits=9)
    for number in range(5):
        both.publish(number)
    both.ack("s", (3, 0), cumulative=True)
    both.namespace("POST", "retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    assert len(of(both.silence(2), LedgerDeleted)) == 2


def test_a_ledger_without_new_entries_is_closed() -> None:
    both = Both(managedLedgerInactiveLedgerRolloverTimeSeconds=4000)
    both.subscribe("s")
    both.publish(0)
    assert len(of(both.silence(3), LedgerClosed)) == 1


def test_a_fenced_topic_is_left_alone_by_its_quota() -> None:
    both = Both(backlogQuotaDefaultLimitBytes=10)
    both.subscribe("s")
    both.publish(0)
    both.fault("DelayWrites", 1)
    both.publish(1)
    both.fault("FailWrites", 1)
    both.publish(2)
    assert both.runs[0].topic.fenced
    both.silence(3)


def test_a_quota_exceeded_because_of_deduplication() -> None:
    """Nobody produces any more; each round takes a snapshot when its time has come."""
    both = Both(
        brokerDeduplicationEnabled=True, backlogQuotaDefaultLimitBytes=10,
        brokerDeduplicationSnapshotIntervalSeconds=7200,
    )  # fmt: skip
    for first in (0, 5):
        both.create_producer()
        for number in range(first, first + 5):
            both.send(number)
        both.close_producer()
        both.silence(1)
    both.silence(3)


@pytest.mark.parametrize("connected", [False, True])
def test_each_subscription_expires_at_its_own_time(connected: bool) -> None:
    both = Both("2.x", ttlDurationDefaultInSeconds=3600)
    both.subscribe("s", permits=9)
    both.publish(0)
    if not connected:
        both.close_consumer("s")
    assert [bool(of(both.silence(hours), Expired)) for hours in (0.9, 0.2, 0.6)] == [
        False, not connected, connected,
    ]  # fmt: skip


def test_a_backlog_of_what_was_trimmed_before_the_subscription_came() -> None:
    both = Both("2.x", ttlDurationDefaultInSeconds=60, managedLedgerMaxEntriesPerLedger=2)
    for number in range(3):
        both.publish(number)
    both.admin("PUT", "/unload")
    both.admin("POST", "/trim")
    both.subscribe("s", permits=9)
    both.silence(3)


def test_readers_alone_expire_nothing_where_expiry_goes_by_the_slowest_cursor() -> None:
    both = Both(ttlDurationDefaultInSeconds=60, messageExpirySharedPosition=True)
    both.subscribe("reader", durable=False)
    both.publish(0)
    assert of(both.silence(1), Expired) == []


def test_the_heap_of_rounds_does_not_grow_with_what_happens() -> None:
    """Each round leaves an entry for the far time at which the message expires. Superseded ones are dropped."""
    run = Run(messageExpiryCheckIntervalInMinutes=5, ttlDurationDefaultInSeconds=30 * 86_400)
    run.subscribe("s")
    longest = 0
    for number in range(300):
        run.publish(number)
        run.wait(3_600)
        longest = max(longest, len(run.broker._persistent._queue))
    assert longest <= 4 + 64
    assert len(run.topic.subscriptions) == 1


# -- the millisecond in which a check has an effect ----------------------------------------------------------------

AFTER_THREE_MINUTES: dict[str, dict[str, Any]] = {
    "TTL": {"ttlDurationDefaultInSeconds": 180, "messageExpiryCheckIntervalInMinutes": 1},
    "age": {
        "backlogQuotaDefaultLimitSecond": 180, "backlogQuotaDefaultRetentionPolicy": EVICTION,
        "backlogQuotaCheckIntervalInSeconds": 60,
    },
    "precise age": {
        "backlogQuotaDefaultLimitSecond": 180, "backlogQuotaDefaultRetentionPolicy": EVICTION,
        "backlogQuotaCheckIntervalInSeconds": 60, "preciseTimeBasedBacklogQuotaCheck": True,
    },
    "retention": {
        "defaultRetentionTimeInMinutes": 3, "defaultRetentionSizeInMB": -1, "retentionCheckIntervalInSeconds": 60,
    },
    "idle ledger": {"managedLedgerInactiveLedgerRolloverTimeSeconds": 180, "retentionCheckIntervalInSeconds": 60},
    "snapshot": {
        "brokerDeduplicationEnabled": True, "brokerDeduplicationSnapshotIntervalSeconds": 180,
        "brokerDeduplicationSnapshotFrequencyInSeconds": 60,
    },
    "inactive producer": {
        "brokerDeduplicationEnabled": True, "brokerDeduplicationProducerInactivityTimeoutMinutes": 3,
    },
    "inactive subscription": {
        "subscriptionExpirationTimeMinutes": 3, "subscriptionExpiryCheckIntervalInMinutes": 1,
    },
}  # fmt: skip
"""Settings under which a check that runs every minute has an effect three minutes after the last command."""


@pytest.mark.parametrize("settings_", AFTER_THREE_MINUTES.values(), ids=AFTER_THREE_MINUTES)
@pytest.mark.parametrize("offset", [-2, -1, 0, 1])
def test_a_round_in_the_first_millisecond_of_an_effect_is_not_skipped(
    settings_: dict[str, Any], offset: int
) -> None:
    """The last commands come just before, at and just after the time of a round."""
    quiet = {**QUIET, "managedLedgerMaxEntriesPerLedger": 2, "subscriptionExpiryCheckIntervalInMinutes": 0}
    log: list[Record] = [
        (0, None, BrokerConfig(settings={**quiet, **settings_})),
        (60_000 + offset, TOPIC, Subscribe(connection="c", subscription="s", subType="Exclusive", consumer_id=1, request_id=1, initialPosition="Earliest")),
        *((0, TOPIC, Publish(producer="p", sequence_id=number)) for number in range(5)),
        (0, TOPIC, Ack(connection="c", consumer_id=1, ack_type="Cumulative", message_id=[MessageIdData(1, 1)])),
        (0, TOPIC, CloseConsumer(connection="c", consumer_id=1, request_id=2)),
    ]  # fmt: skip
    for minutes in (4, 5, 9):
        silence: Record = (minutes * 60_000 - 60_000 - offset, None, Tick())
        assert folded(Broker, [*log, silence]) == folded(Patient, [*log, silence])
