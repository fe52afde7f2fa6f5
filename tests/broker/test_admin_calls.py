"""Admin calls on topics, as the broker answers them (I4). What Pulsar 4.0.7 answered was recorded, or asked of one."""

import re
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest

from schemas import commands as c
from schemas.commands import Admin
from schemas.effects import (
    AdminResponse,
    CloseConsumer,
    CloseProducer,
    Effect,
    LedgerDeleted,
    Message,
    ProducerSuccess,
    SendReceipt,
    Unsupported,
)
from streaming.broker import admin_table
from streaming.broker.admin_requests import may_have_secrets
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.broker.persistent import admin_operations
from tests.broker.kit import START, TOPIC, Run, of, one, response

OTHER = "non-persistent://public/default/t"

pytestmark = pytest.mark.feature("I4")


def status(effects: list[Effect]) -> int:
    """The status of the only response to an admin call."""
    return one(effects, AdminResponse).fields.status


def reason(effects: list[Effect]) -> tuple[int, str]:
    """The status and the reason of a refused call."""
    return status(effects), response(effects)["reason"]


def in_use(run: Run, topic: str = TOPIC) -> None:
    """Give a topic a producer and a consumer."""
    run.create_producer(topic=topic)
    run.subscribe("s", topic=topic)


# -- DELETE of a topic ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", [TOPIC, OTHER])
def test_a_topic_in_use_is_not_deleted(topic: str) -> None:
    run = Run()
    in_use(run, topic)
    for call in ("", "?force=false"):
        effects = run.admin("DELETE", call, topic=topic)
        assert status(effects) == 412
        assert response(effects) == {"reason": "Topic has 2 connected producers/consumers"}
    assert topic in run.broker.topic_names()
    assert one(run.create_producer("q", 2, topic=topic), ProducerSuccess)


@pytest.mark.parametrize("topic", [TOPIC, OTHER])
def test_force_disconnects_the_clients_first(topic: str) -> None:
    run = Run()
    in_use(run, topic)
    effects = run.admin("DELETE", "?force=true", topic=topic)
    assert status(effects) == 204
    assert one(effects, CloseProducer).producer_id == 1
    assert one(effects, CloseConsumer).subscription == "s"
    assert run.broker.topic_names() == []


def test_a_subscription_without_consumers_keeps_no_topic() -> None:
    run = Run()
    run.create_producer()
    run.send(0)
    run.close_producer()
    run.admin("PUT", "/subscription/s", {"ledgerId": -1, "entryId": -1})
    assert status(run.admin("DELETE", "")) == 204
    again = run.admin("DELETE", "")
    assert status(again) == 404
    assert response(again) == {"reason": f"Topic {TOPIC} not found"}


def test_a_missing_topic_that_stores_nothing_counts_as_deleted() -> None:
    assert status(Run().admin("DELETE", "", topic=OTHER)) == 204


def test_the_ledgers_are_deleted_and_their_ids_never_used_again() -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=2)
    run.admin("PUT", "/subscription/s", {"ledgerId": -1, "entryId": -1})
    run.fill(3, 100)
    effects = run.admin("DELETE", "?force=true")
    assert [(e.ledger_id, e.entries, e.size) for e in of(effects, LedgerDeleted)] == [
        (1, 2, 200),
        (2, 1, 100),
    ]
    restarted = Broker.decode(run.broker.encode(), NoEntries())
    run.broker = restarted
    assert one(run.publish(0), SendReceipt).ledger_id == 3
    run.admin("DELETE", "?force=true")
    assert one(run.publish(0), SendReceipt).ledger_id == 4


def test_nothing_of_a_deleted_topic_is_left() -> None:
    run = Run(brokerDeduplicationEnabled=True)
    in_use(run)
    run.publish(7)
    run.admin("POST", "/maxProducers", 1)
    run.admin("PUT", "/properties", {"a": "b"})
    run.do(
        c.GetOrCreateSchema(connection="client", request_id=9, schema=c.SchemaData(name="x", type="String"))
    )
    run.admin("DELETE", "?force=true")
    assert one(run.create_producer(id_=2), ProducerSuccess).fields.last_sequence_id == -1
    assert one(run.create_producer("q", 3), ProducerSuccess)
    assert run.topic.known_subscriptions() == []
    assert list(run.topic.cursors) == ["pulsar.dedup"]
    assert response(run.admin("GET", "/properties")) == {}
    assert run.broker._state.schemas == {}
    assert run.topic.ledger.number_of_entries == 0


def test_clients_of_a_deleted_topic_may_not_know_yet() -> None:
    """What a closed producer still sends is ignored, as after an unload; its connection stays open."""
    run = Run()
    in_use(run)
    run.admin("DELETE", "?force=true")
    assert run.send(1) == []
    run.flow("s", 10)
    assert run.lose("client") == []
    assert run.broker.topic_names() == []
    assert run.broker.decode(run.broker.encode(), NoEntries()).topic_names() == []


def test_time_goes_on_without_a_deleted_topic() -> None:
    """Its timers and checks do not bring it back."""
    run = Run(messageExpiryCheckIntervalInMinutes=1, managedLedgerMaxLedgerRolloverTimeMinutes=1)
    run.subscribe("s", type_="Shared")
    run.flow("s", 10)
    run.create_producer()
    run.publish(0, deliver_at_time=run.now + 90_000)
    run.admin("DELETE", "?force=true")
    assert run.wait(600) == []
    assert run.broker.topic_names() == []


def test_a_deleted_topic_makes_room_in_its_namespace() -> None:
    run = Run(maxTopicsPerNamespace=1)
    run.publish(0)
    other = f"{TOPIC}2"
    run.publish(0, topic=other)
    assert run.broker.topic_names() == [TOPIC]
    run.admin("DELETE", "?force=true")
    run.publish(0, topic=other)
    assert run.broker.topic_names() == [other]


def test_unacked_messages_of_a_deleted_topic_no_longer_count() -> None:
    run = Run(maxUnackedMessagesPerBroker=2, maxUnackedMessagesPerSubscriptionOnBrokerBlocked=0.5)
    other = f"{TOPIC}2"
    for topic in (TOPIC, other):
        run.subscribe("s", topic=topic, type_="Shared")
        run.flow("s", 100, topic=topic)
    for sequence_id in range(3):
        run.publish(sequence_id)
        run.publish(sequence_id, topic=other)
    assert run.broker.topic(other).subscriptions["s"].broker_blocked
    effects = run.admin("DELETE", "?force=true")
    assert run.broker._state.unacked.messages.keys() == {other}
    assert run.broker.topic_names() == [other]
    assert not run.broker._state.unacked.waiting.keys() & {TOPIC}
    assert status(effects) == 204


# -- lists ------------------------------------------------------------------------------------------------------------


def listed(run: Run, path: str) -> Any:
    return response(run.do(Admin(method="GET", path=path), None))


def test_the_topics_of_a_namespace() -> None:
    run = Run()
    for topic in (TOPIC, OTHER, "persistent://public/other/t"):
        run.create_producer(topic=topic)
    assert listed(run, "/persistent/public/default") == [TOPIC]
    assert listed(run, "/non-persistent/public/default") == [OTHER]
    assert listed(run, "/namespaces/public/default/topics") == [TOPIC]
    assert listed(run, "/namespaces/public/default/topics?mode=NON_PERSISTENT") == [OTHER]
    assert listed(run, "/namespaces/public/default/topics?mode=ALL") == [OTHER, TOPIC]
    assert listed(run, "/persistent/public/nobody") == []


SYSTEM = ("__change_events", "__transaction_buffer_snapshot", "__transaction_buffer_snapshot_segments")
USERS = ("__change_events_x", "__other", "a", "x__change_events")
"""Names that a Pulsar 4.0.7 hides, and names that it shows."""


def with_system_topics(profile: c.Profile) -> Run:
    run = Run(profile=profile)
    for name in (*SYSTEM, *USERS):
        run.create_producer(topic=f"persistent://public/default/{name}")
    run.create_producer(topic="persistent://public/default/a-s__transaction_pending_ack")
    run.create_producer(topic="non-persistent://public/default/__change_events")
    run.create_producer(topic="persistent://pulsar/system/any")
    for name in ("__transaction_buffer_snapshot_indexes", "p"):
        topic = f"persistent://public/default/{name}"
        run.do(Admin(method="PUT", path=f"/persistent/public/default/{name}/partitions", body=1), topic)
    return run


def names_of(topics: list[str]) -> list[str]:
    return sorted(topic.rpartition("/")[2] for topic in topics)


LISTS = {
    "/persistent/public/default": [*USERS, "p-partition-0"],
    "/namespaces/public/default/topics": [*USERS, "p-partition-0"],
    "/namespaces/public/default/topics?mode=ALL": [*USERS, "p-partition-0"],
    "/persistent/public/default/partitioned": ["p"],
    "/non-persistent/public/default": [],
    "/persistent/pulsar/system": [],
}  # fmt: skip


@pytest.mark.parametrize("profile", ["2.10", "3.0", "4.x", "4.2", "2.x"])
def test_system_topics_are_listed_on_demand(profile: c.Profile) -> None:
    """2.10.5 does not know the parameter and lists them; none lists the topics of transactions."""
    run = with_system_topics(profile)
    index = "__transaction_buffer_snapshot_indexes"
    everything = {
        "/persistent/public/default": [*SYSTEM, f"{index}-partition-0"],
        "/namespaces/public/default/topics": [*SYSTEM, f"{index}-partition-0", "a-s__transaction_pending_ack"],
        "/namespaces/public/default/topics?mode=ALL": [
            *SYSTEM, f"{index}-partition-0", "a-s__transaction_pending_ack", "__change_events",
        ],
        "/persistent/public/default/partitioned": [index],
        "/non-persistent/public/default": ["__change_events"],
        "/persistent/pulsar/system": ["any"],
    }  # fmt: skip
    always = profile in ("2.10", "2.x")
    for path, shown in LISTS.items():
        joined = "&" if "?" in path else "?"
        whole = sorted([*shown, *everything[path]])
        for asked, includes in (("", False), ("false", False), ("x", False), ("true", True), ("True", True)):
            found = listed(run, f"{path}{joined}includeSystemTopic={asked}" if asked else path)
            assert names_of(found) == (whole if includes or always else sorted(shown)), (path, asked)
    clients = run.broker.listed_topics("public/default", to_client=True)
    expected = LISTS["/namespaces/public/default/topics?mode=ALL"] + (
        [*SYSTEM, f"{index}-partition-0", "__change_events"] if always else []
    )
    assert names_of(clients) == sorted(expected)


# -- message ids ------------------------------------------------------------------------------------------------------


def message_id(ledger: int, entry: int, partition: int = -1) -> dict[str, int]:
    return {
        "ledgerId": ledger,
        "entryId": entry,
        "partitionIndex": partition,
        "batchIndex": -1,
        "batchSize": 0,
    }


def test_the_last_message_id() -> None:
    run = Run()
    run.create_producer()
    assert response(run.admin("GET", "/lastMessageId")) == message_id(1, -1)
    run.send(0)
    assert response(run.admin("GET", "/lastMessageId")) == message_id(1, 0)
    run.send(1, num_messages_in_batch=3)
    batch = {"batchIndex": 2, "outstandingAcksInSameBatch": 0, "originalBatchSize": 0}
    assert response(run.admin("GET", "/lastMessageId")) == message_id(1, 1) | batch
    partition = f"{TOPIC}-partition-3"
    run.publish(0, topic=partition)
    assert response(run.admin("GET", "/lastMessageId", topic=partition)) == message_id(1, 0, 3)


def test_the_last_message_id_is_the_earliest_once_its_ledger_is_gone() -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=2)
    run.fill(2, 100)
    run.admin("POST", "/trim")
    if run.topic.ledger.last_confirmed.ledger in run.topic.ledger.ledgers:
        run.admin("DELETE", "/truncate")
    assert response(run.admin("GET", "/lastMessageId")) == message_id(-1, -1)


def test_the_message_id_at_a_time() -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=2, trimAtRolloverSparesClosedLedger=False)
    run.publish(0)
    for sequence_id in (1, 2):
        run.now += 1000
        run.publish(sequence_id)
    found = [
        (answer["ledgerId"], answer["entryId"])
        for after in (-START - 5, 0, 1, 1000, 1001, 2001)
        if (answer := response(run.admin("GET", f"/messageid/{START + after}")))
    ]
    first = next(iter(run.topic.ledger.ledgers))
    assert first == 2  # nobody needs the first ledger
    assert found == [(2, 0), (2, 0), (2, 0), (2, 0), (2, 0), (2, 1)]


def test_the_message_id_at_a_time_across_ledgers() -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=2)
    run.admin("PUT", "/subscription/s", {"ledgerId": -1, "entryId": -1})
    for sequence_id in range(3):
        run.publish(sequence_id)
        run.now += 1000
    asked = {
        after: response(run.admin("GET", f"/messageid/{START + after}")) for after in (0, 1, 1001, 2000, 2001)
    }
    assert {after: (id_["ledgerId"], id_["entryId"]) for after, id_ in asked.items()} == {
        0: (1, 0), 1: (1, 1), 1001: (2, 0), 2000: (2, 0), 2001: (2, 1),
    }  # fmt: skip


def test_no_message_has_an_index() -> None:
    """The interceptor that would give it one is not supported. The reason depends on what a broker looks at first."""
    by_index = "/getMessageIdByIndex?index=0"
    run = Run(profile="4.2")
    run.publish(0)
    assert reason(run.admin("GET", by_index)) == (
        412, "GetMessageIDByIndex is not allowed when broker entry metadata is disabled",
    )  # fmt: skip
    run = Run(profile="4.2", brokerEntryMetadataInterceptors="AppendBrokerTimestampMetadataInterceptor")
    run.create_producer()
    assert reason(run.admin("GET", by_index)) == (404, f"No messages found in topic {TOPIC}")
    run.send(0)
    assert reason(run.admin("GET", by_index)) == (412, "Broker entry metadata is not present in the message")


# -- properties -------------------------------------------------------------------------------------------------------


def test_properties_of_a_topic() -> None:
    run = Run()
    run.create_producer()
    assert response(run.admin("GET", "/properties")) == {}
    assert status(run.admin("PUT", "/properties", {"a": "1", "b": "2"})) == 204
    assert status(run.admin("PUT", "/properties", {"b": "3", "c": "4"})) == 204
    assert response(run.admin("GET", "/properties")) == {"a": "1", "b": "3", "c": "4"}
    assert status(run.admin("DELETE", "/properties?key=a")) == 204
    assert status(run.admin("DELETE", "/properties?key=nope")) == 204
    assert status(run.admin("PUT", "/properties", ["x"])) == 400
    run.unload()
    run.broker = Broker.decode(run.broker.encode(), NoEntries())
    assert response(run.admin("GET", "/properties")) == {"b": "3", "c": "4"}


def test_properties_of_a_subscription() -> None:
    run = Run()
    run.admin("PUT", "/subscription/s", {"ledgerId": -1, "entryId": -1, "properties": {"of": "creation"}})
    assert response(run.admin("GET", "/subscription/s/properties")) == {"of": "creation"}
    assert status(run.admin("PUT", "/subscription/s/properties", {"a": "1"})) == 204
    run.unload()
    assert response(run.admin("GET", "/subscription/s/properties")) == {"a": "1"}
    assert status(run.admin("PUT", "/subscription/s/properties")) == 204
    assert response(run.admin("GET", "/subscription/s/properties")) == {}
    assert status(run.admin("GET", "/subscription/nope/properties")) == 404
    assert status(run.admin("PUT", "/subscription/nope/properties", {})) == 404


def test_a_filter_follows_the_subscriptions_properties() -> None:
    run = Run(entryFilterNames="PropertyFilter")
    run.subscribe("s", type_="Shared")
    run.flow("s", 10)
    run.admin("PUT", "/subscription/s/properties", {"filter.colour": "red"})
    found = [
        len(of(run.publish(number, properties={"colour": colour}), Message))
        for number, colour in enumerate(("blue", "red"))
    ]
    assert found == [0, 1]


# -- analyzeBacklog ---------------------------------------------------------------------------------------------------


def analysis(run: Run, position: tuple[int, int] | None = None) -> Any:
    body = None if position is None else {"ledgerId": position[0], "entryId": position[1]}
    return response(run.admin("POST", "/subscription/s/analyzeBacklog", body))


def backlog_of(entries: int, messages: int, first: str = "", last: str = "", **other: Any) -> dict[str, Any]:
    found = {
        "entries": entries, "messages": messages, "filterRejectedEntries": 0, "filterAcceptedEntries": entries,
        "filterRescheduledEntries": 0, "filterRejectedMessages": 0, "filterAcceptedMessages": messages,
        "filterRescheduledMessages": 0, "aborted": False,
    }  # fmt: skip
    return found | ({"firstMessageId": first, "lastMessageId": last} if first else {}) | other


def test_a_backlog_is_analysed_without_what_is_acknowledged() -> None:
    """As a real 4.0.7 answered, entry by entry."""
    run = Run()
    run.subscribe("s", type_="Shared")
    assert analysis(run) == backlog_of(0, 0)
    run.create_producer()
    run.send(0)
    run.send(1, num_messages_in_batch=3)
    assert analysis(run) == backlog_of(2, 4, "1:0", "1:1")
    run.unload()
    run.create_producer()
    run.subscribe("s", type_="Shared")
    run.send(2)
    run.send(3)
    run.flow("s", 1)
    assert analysis(run) == backlog_of(4, 6, "1:0", "2:1")
    run.ack("s", (2, 1))
    assert analysis(run) == backlog_of(3, 5, "1:0", "2:0")
    assert analysis(run, (2, 0)) == backlog_of(1, 1, "2:0", "2:0")
    assert analysis(run, (2, 1)) == backlog_of(0, 0)
    assert analysis(run, (52, 1)) == backlog_of(0, 0)
    run.admin("POST", "/subscription/s/skip/1")
    assert analysis(run) == backlog_of(2, 4, "1:1", "2:0")
    assert analysis(run, (-1, -1)) == backlog_of(3, 5, "1:0", "2:0")  # from there, even if it was skipped
    assert status(run.admin("POST", "/subscription/nope/analyzeBacklog")) == 404


def test_an_analysis_says_what_filters_reject_and_ends_at_its_limit() -> None:
    run = Run(entryFilterNames="PropertyFilter", subscriptionBacklogScanMaxEntries=4)
    run.admin("PUT", "/subscription/s", {"ledgerId": -1, "entryId": -1, "properties": {"filter.c": "red"}})
    for number, colour in enumerate(("blue", "red", "red")):
        run.publish(number, properties={"c": colour})
    rejected = {"filterRejectedEntries": 1, "filterAcceptedEntries": 2, "filterRejectedMessages": 1,
                "filterAcceptedMessages": 2}  # fmt: skip
    assert analysis(run) == backlog_of(3, 3, "1:0", "1:2", **rejected)
    run.publish(3)
    assert analysis(run) == backlog_of(3, 3, "1:0", "1:2", **rejected, aborted=True)


# -- other answers ----------------------------------------------------------------------------------------------------


def test_a_known_path_with_another_method_is_not_allowed() -> None:
    run = Run()
    run.subscribe("s")
    effects = run.admin("GET", "/subscription/s/analyzeBacklog")
    assert status(effects) == 405
    assert of(effects, Unsupported) == []
    assert status(run.admin("GET", "/nonsense")) == 404
    assert one(run.admin("GET", "/nonsense"), Unsupported)


def test_calls_on_messages_of_a_topic_that_stores_none() -> None:
    run = Run()
    run.create_producer(topic=OTHER)
    assert status(run.admin("GET", "/lastMessageId", topic=OTHER)) == 405
    assert status(run.admin("GET", "/messageid/0", topic=OTHER)) == 405
    assert status(run.admin("GET", "/properties", topic=OTHER)) == 406


def test_a_deleted_topic_forgets_its_unconfirmed_writes() -> None:
    run = Run()
    run.create_producer("p")
    run.send(0)
    run.fault("DelayWrites", 1)
    run.send(1)
    assert status(run.admin("DELETE", "?force=true")) == 204
    run.create_producer("p")
    assert one(run.send(0), SendReceipt).ledger_id == 2
    assert of(run.fault("CompleteWrites"), SendReceipt) == []


def test_a_deleted_topic_that_only_had_a_consumer_leaves_nothing() -> None:
    run = Run()
    run.subscribe("s", "Shared", topic=OTHER)
    assert status(run.admin("DELETE", "?force=true", topic=OTHER)) == 204
    assert run.broker.topic_names() == []
    assert run.broker._state.deleted == {}


# -- numbers below 0, as Pulsar 4.0.7 answered ------------------------------------------------------------------------


@pytest.mark.feature("D4")
def test_skipping_a_number_below_0_skips_nothing() -> None:
    run = Run()
    run.subscribe("s")
    run.fill(9)
    assert status(run.admin("POST", "/subscription/s/skip/3")) == 204
    for count in (-1, 0, -99):
        assert status(run.admin("POST", f"/subscription/s/skip/{count}")) == 204
        assert run.mark_delete("s") == (1, 2)


@pytest.mark.feature("D4", "F4")
@pytest.mark.parametrize(("seconds", "left"), [(-1, 1), (-59, 1), (-61, 0), (0, 10)])
def test_an_age_below_0_expires_what_is_published_by_fast_clocks_too(seconds: int, left: int) -> None:
    run = Run()
    run.admin("PUT", "/subscription/s", {"ledgerId": -1, "entryId": -1})
    run.fill(9)
    run.publish(9, publish_time=run.now + 60_000)
    for name in ("/subscription/s", "/all_subscription"):
        run.admin("POST", f"{name}/expireMessages/{seconds}")
        assert run.backlog("s") == left


@pytest.mark.feature("D4")
def test_a_reset_to_a_time_below_0_is_to_the_earliest() -> None:
    run = Run()
    run.admin("PUT", "/subscription/s")
    run.fill(3)
    run.admin("POST", "/subscription/s/skip_all")
    assert status(run.admin("POST", "/subscription/s/resetcursor/-1")) == 204
    assert run.backlog("s") == 3


# -- numbers in paths and queries ---------------------------------------------------------------------------------------

NUMBERS = {
    "/subscription/s/skip/{}": ("POST", 31), "/subscription/s/expireMessages/{}": ("POST", 31),
    "/all_subscription/expireMessages/{}": ("POST", 31), "/subscription/s/position/{}": ("GET", 31),
    "/subscription/s/resetcursor/{}": ("POST", 63), "/messageid/{}": ("GET", 63), "/ledger/{}/entry/0": ("GET", 63),
    "/ledger/1/entry/{}": ("GET", 63), "/examinemessage?messagePosition={}": ("GET", 63),
    "/examinemessage?initialPosition=earliest&messagePosition={}": ("GET", 63),
    "/messageTTL?messageTTL={}": ("POST", 31),
}  # fmt: skip
"""Calls with a number → the method, and how many bits Pulsar gives it (``@PathParam``, ``@QueryParam`` of its resources)."""

EDGES = sorted(
    {sign * (1 << bits) + off for bits in (0, 31, 63, 64) for sign in (-1, 1) for off in (-1, 0, 1)}
)
TEXTS = (
    "x",
    "1.0",
    "1_0",
    "0x1",
    "%201",
    "1%20",
    "-",
    "%2B-1",
    "--1",
    "1e3",
    "%2B",
    "1" * 5000,
    "%0A1",
    "1%0A",
)
"""What no number is, as Java reads it."""


def test_each_call_with_a_number_is_among_them() -> None:
    """But for those of `magnetar serve` alone, and a call of 4.2 that reads no number first."""
    here = {
        (method, call.partition("?")[0].replace("/s/", "/{subscription}/"))
        for call, (method, _) in NUMBERS.items()
    }
    forms = {
        (method, re.sub(r"\{(?!subscription)\w*\}|/1/", lambda m: "{}" if m[0] != "/1/" else "/{}/", call))
        for method, call in here
    }
    rows = {
        (row.method, re.sub(r"\{(?!subscription)\w+\}", "{}", row.path.removeprefix(admin_table.TOPIC)))
        for row in admin_operations.CALLS.calls
        if row.numbers or admin_table.NUMBERS.keys() & re.findall(r"\w+", row.path)
    }
    entry = ("GET", "/ledger/{}/entry/{}")
    assert {each for each in forms if "entry" not in each[1]} | {entry} == rows - {
        ("GET", "/getMessageIdByIndex")
    } | {("POST", "/messageTTL")}


def said(run: Run, call: str, text: str, topic: str = TOPIC) -> tuple[int, Any]:
    method, _ = NUMBERS[call]
    found = one(run.admin(method, call.format(text), topic=topic), AdminResponse)
    return found.fields.status, (found.ledger_id, found.entry_id, found.fields.response)


def stored_messages() -> Run:
    run = Run()
    run.admin("PUT", "/subscription/s")
    run.fill(5)
    return run


@pytest.mark.feature("D4")
@pytest.mark.parametrize("call", NUMBERS)
def test_a_number_is_of_its_type_by_value(call: str) -> None:
    """As a Pulsar 4.0.7 answered: 404 before anything beyond the type, and whatever zeros and signs a number has."""
    _, bits = NUMBERS[call]
    for value in EDGES:
        spellings = [str(value)]
        if value >= 0:
            spellings += [f"%2B{value}", f"{value:050}"]
        if -(1 << bits) <= value < 1 << bits:
            plain, *others = (
                (*said(run, call, text), run.mark_delete("s"))
                for text in spellings
                if (run := stored_messages())
            )
            assert "-bit integer" not in str(plain), (value, plain)
            assert [each for each in others if each != plain] == []
        else:
            run = stored_messages()
            before = run.mark_delete("s")
            for text in spellings:
                status_, (*_, answer) = said(run, call, text)
                assert (status_, answer) == (
                    404,
                    {"reason": f"{unquote(text)[:30]!r} is not a {bits + 1}-bit integer"},
                )
            assert (run.mark_delete("s"), run.backlog("s")) == (before, 5)
    run = stored_messages()
    for text in TEXTS:
        assert said(run, call, text)[0] == 404, text
    assert run.backlog("s") == 5


@pytest.mark.feature("D4")
@pytest.mark.parametrize("call", [call for call in NUMBERS if "TTL" not in call])
def test_a_number_is_looked_at_before_the_topic(call: str) -> None:
    """A topic that stores nothing refuses these calls with other statuses, and so does a bad name."""
    run = Run()
    run.create_producer(topic=OTHER)
    for topic in (OTHER, "persistent://public/default/.", "persistent://public/default/missing"):
        assert "-bit integer" in said(run, call, str(2**64), topic)[1][2]["reason"]
    assert "-bit integer" not in str(said(run, call, "1", OTHER))


@pytest.mark.feature("D4")
def test_a_blank_number_is_zero() -> None:
    """quirk: Jersey gives a primitive its default."""
    run = stored_messages()
    assert said(run, "/subscription/s/skip/{}", "%20") == (204, (None, None, msgspec.UNSET))
    assert run.backlog("s") == 5
    assert said(run, "/messageid/{}", "%20")[0] == 200


@pytest.mark.parametrize(("given", "forced"), [("true", True), ("TRUE", True), ("true&force=false", True),
                                               ("1", False), ("", False), ("false&force=true", False)])  # fmt: skip
@pytest.mark.parametrize("topic", [TOPIC, OTHER])
def test_a_flag_is_read_as_java_does(given: str, forced: bool, topic: str) -> None:
    run = Run()
    run.subscribe("s", topic=topic)
    assert status(run.admin("DELETE", f"/subscription/s?notforce=true&force={given}", topic=topic)) == (
        204 if forced else 412
    )


@pytest.mark.feature("I4", "C2")
def test_the_size_of_what_comes_after_a_position() -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=7, managedLedgerMinLedgerRolloverTimeMinutes=0)
    run.admin("PUT", "/subscription/s", {"ledgerId": -1, "entryId": -1})
    run.fill(10, 24)
    run.admin("POST", "/subscription/s/skip/8")
    assert list(run.topic.ledger.ledgers) == [2]
    sizes = {(1, 0): 72, (2, -1): 72, (2, 0): 48, (2, 1): 24, (2, 77): 0, (9, 1): 72, (-1, -1): 72}
    for (ledger, entry), size in sizes.items():
        assert response(run.admin("PUT", "/backlogSize", {"ledgerId": ledger, "entryId": entry})) == size
    assert status(run.admin("GET", "/backlogSize")) == 405


@pytest.mark.feature("I5")
def test_a_subscription_may_be_said_to_be_replicated() -> None:
    """4.0.7 shows it by topic, also where there is one cluster."""
    run = Run()
    run.subscribe("s")
    path = "/subscription/s/replicatedSubscriptionStatus"
    assert response(run.admin("GET", path)) == {TOPIC: False}
    for body in (True, False):
        assert status(run.admin("POST", path, body)) == 204
        assert response(run.admin("GET", path)) == {TOPIC: body}
        assert response(run.admin("GET", "/stats"))["subscriptions"]["s"]["isReplicated"] is body
    for given, is_replicated in (("true", True), ("True", True), ("false", False)):  # as of a SUBSCRIBE
        assert status(run.admin("PUT", f"/subscription/{given}?replicated={given}")) == 204
        assert run.topic.subscriptions[given].replicated is is_replicated
    missing = run.admin("GET", "/subscription/none/replicatedSubscriptionStatus")
    assert one(missing, AdminResponse).fields.status == 404


def test_stats_have_what_is_asked_for() -> None:
    run = Run()
    run.subscribe("s")
    run.admin("PUT", "/subscription/new")
    run.wait(5)
    published = run.now
    run.publish(0)
    run.wait(5)
    run.publish(1)
    run.admin("POST", "/subscription/new/skip_all")
    found = response(run.admin("GET", "/stats"))
    assert {name: each["backlogSize"] > 0 for name, each in found["subscriptions"].items()} == {
        "s": True,
        "new": False,
    }
    assert "earliestMsgPublishTimeInBacklogs" not in found
    found = response(run.admin("GET", "/stats?getEarliestTimeInBacklog=true&subscriptionBacklogSize=false"))
    assert found["earliestMsgPublishTimeInBacklogs"] == published
    shown = {
        name: (each["backlogSize"], each["earliestMsgPublishTimeInBacklog"])
        for name, each in found["subscriptions"].items()
    }
    assert shown == {"s": (-1, published), "new": (-1, -1)}


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("policy", ["messageTTL", "retention", "persistence", "s/dispatchRate"])
def test_a_topic_has_no_policies_of_all_clusters(policy: str, partitions: int) -> None:
    """They would be kept beside those of the topic: a DELETE of one would remove the topic's own."""
    run = Run()
    body = {"messageTTL": 5, "retention": {"retentionTimeInMinutes": 5, "retentionSizeInMB": 5},
            "persistence": {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1}, "s/dispatchRate": {"dispatchThrottlingRateInMsg": 5}}[policy]  # fmt: skip
    if partitions:
        run.admin("PUT", "/partitions", partitions)
    else:
        run.create_producer()
    assert status(run.admin("POST", f"/{policy}?isGlobal=false", body)) == 204
    before = response(run.admin("GET", f"/{policy}"))
    assert before
    for method in ("GET", "POST", "DELETE"):
        assert status(run.admin(method, f"/{policy}?isGlobal=true", body)) == 501
    assert response(run.admin("GET", f"/{policy}")) == before
    assert status(run.admin("DELETE", "/subscription/none?isGlobal=true")) == 404


@pytest.mark.feature("A8")
def test_a_subscription_of_a_non_persistent_topic() -> None:
    """4.0.7: it has properties, and a reset to a time does nothing."""
    run, topic = Run(), "non-persistent://public/default/n"
    run.subscribe("s", "Shared", topic=topic)

    def ask(method: str, call: str, body: Any = None) -> tuple[int, Any]:
        fields = one(run.admin(method, f"/subscription/{call}", body, topic), AdminResponse).fields
        return fields.status, fields.response

    assert ask("PUT", "s/properties", {"a": "b"})[0] == 204
    assert ask("GET", "s/properties") == (200, {"a": "b"})
    assert ask("POST", "s/resetcursor/0")[0] == 204
    for method, call, status in (
        ("POST", "s/properties", 405),
        ("GET", "s/resetcursor/0", 405),
        ("GET", "t/properties", 404),
    ):
        assert ask(method, call)[0] == status


@pytest.mark.parametrize(
    ("path", "secret"),
    [
        ("/namespaces/a/b/offloadPolicies", True),
        ("/namespaces/a/b/offloadPolicies?applied=true", True),
        ("/persistent/a/b/t/offloadPolicies", True),
        ("/persistent/a/b/offloadPolicies", False),
        ("/namespaces/a/b/c/offloadPolicies", False),
        ("/persistent/a/b/t/subscription/offloadPolicies", False),
        ("/namespaces/a/b/retention", False),
    ],
)
def test_which_calls_may_have_secrets(path: str, secret: bool) -> None:
    assert may_have_secrets(path) is secret
