"""States of older versions are read and continue with the same outcome. Unnoticed changes of the encoding fail."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.commands import MessageMetadata, Publish, SubType, to_json
from schemas.entries import Entry
from streaming.broker.broker import Broker
from streaming.broker.dispatch.selectors import ConsistentHashing
from streaming.broker.entries import NoEntries
from streaming.broker.errors import StateVersionError
from streaming.broker.non_persistent.dispatchers import (
    AnyNonPersistentDispatcher,
    NonPersistentMultipleConsumers,
    NonPersistentSingleActiveConsumer,
    NonPersistentStickyKeyMultipleConsumers,
)
from streaming.broker.non_persistent.subscription import NonPersistentSubscription
from streaming.broker.producer.access_mode import ProducerAccess
from streaming.broker.rates.rate import Rate
from streaming.broker.state import codec, upgrades
from streaming.broker.state.codec import VERSION, PartitionState, TopicBlock
from streaming.broker.subscription.consumer import Consumer
from streaming.broker.topic.abstract_topic import Counters
from tests.broker.kit import Stored, feed
from tests.state import golden, record_draft
from tests.state.checkpoint import RELEASES
from tests.state.lives import lives
from tests.state.shape import Shape, changes, read_as_is, shape

pytestmark = pytest.mark.feature("J2")

CORRECTED: dict[tuple[str, str], dict[tuple[str, ...], Any]] = {
    ("0.1.0", "corners"): {
        # All of the last ledger counts once a terminated topic is loaded again, as recorded from Pulsar 4.0.7.
        ("persistent://public/default/ended", "stats", "subscriptions", "s", "backlogSize"): 35,
    },
}
"""What a release did otherwise than Pulsar, by release and life: what follows on its states now."""


LOADED_LATER: dict[tuple[str, str], int] = {("0.1.0", "corners"): 73}
"""The number of the row that says what a release deleted when it unloaded a topic, because it loaded it again at once: it belongs to the
next command that uses the topic."""


RECOUNTED: dict[tuple[str, str], tuple[dict[int, int], dict[int, int]]] = {
    ("0.1.0", "traffic"): ({120: 0}, {8: 10, 9: 10})
}
"""The same of what a release counted by Pulsar's counters, and later versions by entries: `entries` of the rows with these numbers, and
`backlog` of the rows of stats."""


def within(expected: Any, found: Any) -> bool:
    """Whether everything expected is there. A later version may have more, in new fields."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(
            name in found and within(value, found[name]) for name, value in expected.items()
        )
    if isinstance(expected, list | tuple):
        return len(expected) == len(found) and all(map(within, expected, found))
    return bool(expected == found)


# ---- what was released


def test_every_version_before_this_one_is_kept() -> None:
    assert golden.GOLDEN / "0.1.0" in RELEASES
    assert set(golden.releases()) >= set(range(1, VERSION)), "a version that no release wrote needs no number"


@pytest.mark.parametrize("folder", RELEASES, ids=lambda folder: folder.name)
def test_the_states_of_a_release_are_read_and_go_on(folder: Path) -> None:
    for name, life in golden.read(folder).lives.items():
        broker = golden.restored(life)
        assert within(life.stats, broker.stats()), name
        rows, rows_of_stats, topics = golden.go_on(broker, life.after)
        if (number := LOADED_LATER.get((folder.name, name))) is not None:
            deleted, unloaded, used = life.rows[number : number + 3]
            life.rows[number : number + 3] = [
                (*deleted[:2], *unloaded[2:]), (used[0], 0, *deleted[2:]), (used[0], 1, *used[2:]),
            ]  # fmt: skip
        entries, backlogs = RECOUNTED.get((folder.name, name), ({}, {}))
        for number, value in entries.items():
            life.rows[number][-1]["entries"] = value
        for number, value in backlogs.items():
            life.stats_after[number]["backlog"] = value
        for expected, found in zip(life.rows, rows, strict=True):
            assert within(expected, found), name
        assert within(life.stats_after, rows_of_stats), name
        for path, value in CORRECTED.get((folder.name, name), {}).items():
            inner: Any = life.topics_after
            *outer, last = path
            for each in outer:
                inner = inner[each]
            inner[last] = value
        assert within(life.topics_after, topics), name


def test_version_1_of_a_non_persistent_topic_loses_only_what_it_never_used() -> None:
    ring = ["ring", 100, 65535, [[["c", 1], "one", 0]]]
    replay: list[Any] = [[], {}]
    rest = [0, False, 0, [], {}, {}]  # of a dispatcher to many consumers, behind its permits
    never = [0, 0, 0, 0, 0, False, [0, 0, 0, 0], False]  # of a subscription, behind `dispatched`
    dispatchers = {
        "Failover": ["single", True, 0, 0, -1, []],
        "Shared": ["multiple", 1, *replay, 7, *rest],
        "Key_Shared": [
            "sticky",
            0,
            *replay,
            7,
            *rest,
            "AUTO_SPLIT",
            False,
            ring,
            [],
            {},
            {},
            None,
            False,
            False,
            -1,
        ],
    }
    topic = {
        "name": "non-persistent://t/n/t",
        "counters": [1, 2, 0, 0, 0, 0, 0, 0, 9, 10],
        "subscriptions": {
            type_: [type_, False, type_, [["c", 1, "one"]], dispatcher, {"a": "b"}, 5, 6, 7, 8, *never]
            for type_, dispatcher in dispatchers.items()
        },
    }
    state = msgspec.to_builtins(PartitionState(0, topics={"non-persistent://t/n/t": TopicBlock(b"")}))
    upgrades.UPGRADES[1](state, {"non-persistent://t/n/t": topic})
    found = codec.decode_non_persistent_topic(msgspec.msgpack.encode(topic))
    assert found.counters == Counters(1, 2, messages_out_gone=9, bytes_out_gone=10)
    consumer = Consumer("c", 1, "one")
    expected: dict[SubType, AnyNonPersistentDispatcher] = {
        "Failover": NonPersistentSingleActiveConsumer(failover=True, active=0),
        "Shared": NonPersistentMultipleConsumers(round_robin=1, total_permits=7),
        "Key_Shared": NonPersistentStickyKeyMultipleConsumers(
            "AUTO_SPLIT", ConsistentHashing(members=[(("c", 1), "one", 0)])
        ),
    }
    assert found.subscriptions == {
        type_: NonPersistentSubscription(type_, type_, dispatcher, [consumer], {"a": "b"}, 6, 7, 8)
        for type_, dispatcher in expected.items()
    }


def test_version_1_keeps_unused_topics_and_the_number_of_generated_names() -> None:
    """A partition deletes unused topics from its next configuration on, and a generated name is never used again."""
    ctx = golden.restored(golden.read(golden.GOLDEN / "0.1.0").lives["corners"])._ctx
    assert not ctx.config.brokerDeleteInactiveTopicsEnabled
    assert ctx.generated_names == 1


def test_version_1_gives_producers_of_the_short_form_as_much_time_as_new_ones() -> None:
    name = "non-persistent://t/n/t"
    client = ["client", "c", 1, 0, "Shared", None, ""]
    topic = {"name": name, "producers": {"short": ["short", "", None, *client[3:]], "client": client}}
    state = msgspec.to_builtins(PartitionState(0))
    state[upgrades._CLOCK], state[upgrades._TOPICS] = 5_000, {name: [b"", -1, False, 0, 0]}
    upgrades.UPGRADES[1](state, {name: topic})
    assert state[upgrades._TOPICS][name][upgrades._DUE] == 5_001
    found = codec.decode_non_persistent_topic(msgspec.msgpack.encode(topic))
    assert [each.created for each in found.producers.values()] == [5_000, 0]


def test_version_1_does_not_forget_producers_of_the_short_form_at_once() -> None:
    since = set()
    for life in golden.read(golden.GOLDEN / "0.1.0").lives.values():
        broker = golden.restored(life)
        for name in broker._persistent.names():
            at = broker._persistent.load(name).silent_since()
            since.add(None if at is None else at - broker._ctx.clock)
    assert since == {None, 0}


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_version_1_had_the_producers_and_consumers_of_a_connection_one_by_one(domain: str) -> None:
    name = f"{domain}://t/n/t"
    handles = {("a", 1): "p1", ("b", 1): "p2", ("a", 2): "p3"}
    topic: Any = {"name": name, "producer_handles": handles, "closed_producers": {("a", 3): 7, ("c", 1): 8}}
    if domain == "persistent":
        empty: dict[str, Any] = {"name": name, "subscriptions": {}, "producers": {}, "counters": [0] * 10}
        topic = [(empty | {"consumer_handles": {}} | topic).get(field) for field in upgrades._TOPIC_1]
    state = msgspec.to_builtins(PartitionState(0, topics={name: TopicBlock(b"")}))[:12]
    state[upgrades._CONFIG]["keepAliveIntervalSeconds"] = 2
    upgrades.UPGRADES[1](state, {name: topic})
    found = (
        topic[upgrades._TOPIC_2.index("producer_handles")]
        if domain == "persistent"
        else topic["producer_handles"]
    )
    assert found == [{"a": {1: "p1", 2: "p3"}, "b": {1: "p2"}}]
    closed = dict(zip(PartitionState.__struct_fields__, state, strict=False))["closed_producers"]
    assert closed == {"a": {3: 2007}, "c": {1: 2008}}


def test_counters_of_all_topics_come_first() -> None:
    assert upgrades._counters_of_all_first([*range(10)]) == [0, 1, 8, 9, 2, 3, 4, 5, 6, 7]


# ---- a shape doesn't change within a version


def test_the_shape_of_the_state_is_that_of_its_version() -> None:
    difference = changes(golden.shape_of(VERSION), shape())
    released = golden.releases().get(VERSION)
    todo = golden.next_version(difference) if released else "run `python -m tests.state.record`"
    assert not difference, todo


def test_a_version_that_cannot_be_read_as_it_is_has_a_step() -> None:
    for version in range(1, VERSION):
        before, after = golden.shape_of(version), golden.shape_of(version + 1)
        assert read_as_is(before, after) or version in upgrades.UPGRADES, changes(before, after)


def test_topics_are_where_every_version_has_them() -> None:
    assert PartitionState.__struct_fields__[upgrades._CLOCK] == "clock"
    assert PartitionState.__struct_fields__[upgrades._CONFIG] == "config"
    assert PartitionState.__struct_fields__[upgrades._TOPICS] == "topics"
    assert TopicBlock.__struct_fields__[upgrades._DATA] == "data"


def test_what_is_recorded_of_a_release_has_every_structure_in_it() -> None:
    found: set[str] = set()
    for life in lives().values():
        broker = Broker(0, Stored())
        for offset, (timestamp, topic, value) in enumerate(life.before):
            feed(broker, offset, timestamp, topic, value)
        for each in structures([broker._state, broker.topics(), broker._ctx.config]):
            found.add(type(each).__name__)
    assert found >= shape().keys() - {"Position", "TxnID"}


def structures(value: Any) -> Iterator[msgspec.Struct]:
    if isinstance(value, msgspec.Struct):
        yield value
        value = [getattr(value, name) for name in value.__struct_fields__]
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        for each in value:
            yield from structures(each)


@pytest.mark.parametrize(
    ("change", "sentence", "as_is"),
    [
        ("append", "Rate.new is new, at place 4 of 5", True),
        ("append without a default", "Rate.new is new, at place 4 of 5", False),
        ("put in front", "Rate.new is new, at place 0 of 5", False),
        ("remove", "Rate.last is gone", False),
        ("move", "Rate has its fields in another order", False),
        ("another type", "Rate.total has the type str, not int", False),
        ("another default", "Rate.total has the default 7, not 0", False),
        ("another form", "Rate is encoded as map, not array", False),
        (
            "a new map's field",
            f"Policies.new is new, at place 0 of {len(shape()['Policies']['fields']) + 1}",
            True,
        ),
        ("a map's field moves", "Policies has its fields in another order", True),
        ("structure", "New is new", True),
        ("no structure", "Rate is gone", False),
    ],
)
def test_changes_of_the_shape_are_told(change: str, sentence: str, as_is: bool) -> None:
    before = shape()
    after: Shape = copy.deepcopy(before)
    rate, policies = after["Rate"]["fields"], after["Policies"]["fields"]
    new = {"name": "new", "type": "int", "default": "0"}
    match change:
        case "append":
            rate.append(new)
        case "append without a default":
            rate.append({"name": "new", "type": "int"})
        case "put in front":
            rate.insert(0, new)
        case "remove":
            rate.pop()
        case "move":
            rate.reverse()
        case "another type":
            rate[0]["type"] = "str"
        case "another default":
            rate[0]["default"] = "7"
        case "another form":
            after["Rate"]["form"] = "map"
        case "a new map's field":
            policies.insert(0, new)
        case "a map's field moves":
            policies.reverse()
        case "structure":
            after["New"] = after["Rate"]
        case "no structure":
            del after["Rate"]
    assert changes(before, after) == [sentence]
    assert read_as_is(before, after) == as_is
    assert changes(before, before) == []


# ---- a real older version: states that the first commit of the broker wrote


def from_draft(state: list[Any], topics: dict[str, Any]) -> None:
    """Upgrade a state of the first commit to version 2."""
    config = state[5]
    config.setdefault("trimLedgerAckedToItsEnd", False)  # its default then
    for topic in topics.values():
        for subscription in topic[5].values():
            dispatcher = subscription[4]
            if dispatcher is not None and dispatcher[0] == "single":
                dispatcher.insert(1, subscription[2] == "Failover")
            subscription += [0, False, msgspec.to_builtins(Rate()), False]  # fields that came at the end
        counters = topic[15]
        counters += [0] * (10 - len(counters))
        topic += [msgspec.to_builtins(ProducerAccess()), {}, {}]
        upgrades.persistent_topic(topic)


@pytest.fixture
def draft(monkeypatch: pytest.MonkeyPatch) -> record_draft.Draft:
    """Make the current version the next one, because the draft's number is 1, too."""
    monkeypatch.setattr(codec, "VERSION", 2)
    return record_draft.read()


def test_a_draft_is_not_read_as_it_is(draft: record_draft.Draft, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test below would prove nothing."""
    monkeypatch.delitem(upgrades.UPGRADES, 1)
    assert draft.state[0] == 1
    with pytest.raises(msgspec.ValidationError):
        Broker.decode(draft.state, NoEntries()).stats()


def test_a_step_makes_a_draft_readable(draft: record_draft.Draft, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(upgrades.UPGRADES, 1, from_draft)
    store = Stored()
    store.entries = {
        (topic, ledger, entry): Entry(MessageMetadata(producer, number, time), size)
        for topic, ledger, entry, producer, number, time, size in draft.entries
    }
    broker = Broker.decode(draft.state, store)
    assert within(draft.stats, broker.stats())
    assert broker._ctx.config.trimLedgerAckedToItsEnd is False
    # It continues, and from now on its state has the current version.
    name = broker.topic_names()[0]
    entries = broker.topic(name).ledger.number_of_entries
    feed(broker, broker.offset + 1, broker.clock, name, to_json(Publish(producer="new", sequence_id=1)))
    assert broker.encode()[0] == 2
    again = Broker.decode(broker.encode(), store)
    assert again.topic(name).ledger.number_of_entries == entries + 1
    assert again.stats() == broker.stats()


def test_versions_without_a_step_are_passed_over(
    draft: record_draft.Draft, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec, "VERSION", 4)
    monkeypatch.delitem(upgrades.UPGRADES, 1)
    monkeypatch.setitem(upgrades.UPGRADES, 2, from_draft)
    assert within(draft.stats, Broker.decode(draft.state, NoEntries()).stats())


# ---- a newer version


@pytest.mark.parametrize("state", [b"", b"\0", bytes([VERSION + 1]), b"\xff"])
def test_a_state_of_no_version_that_is_known_is_refused(state: bytes) -> None:
    with pytest.raises(StateVersionError, match=f"reads {VERSION} and older: run the version that wrote it"):
        Broker.decode(state, NoEntries())
