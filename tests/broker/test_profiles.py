"""The articles' rules under profile 2.x beside those of 4.x (docs/reference/profiles.md), and the articles' own examples
(docs/rules/articles.md §1–§5).

An article is quoted by its number: 000 backlog quota, 001 clients, 002 TTL, 003 deduplication, 004 retention and expiry.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, get_args

import msgspec
import pytest

from schemas.commands import IntRange, KeySharedMeta, Profile, Unsubscribe
from schemas.effects import (
    AckResponse,
    ActiveConsumerChange,
    AdminResponse,
    CloseConnection,
    CloseProducer,
    Effect,
    Error,
    Evicted,
    Expired,
    Message,
    SendError,
    SendReceipt,
)
from streaming.broker.config import (
    PROFILE_OF,
    PROFILES,
    ServiceConfiguration,
    changes,
    configuration,
    profile_of,
    stand_in,
)
from streaming.broker.ledger.managed_ledger import MEGABYTE, LedgerInfo
from streaming.broker.names import DEDUP_CURSOR
from streaming.broker.persistent.cleanup.trimming import trim
from streaming.cli.options import ProfileChoice
from tests.broker.kit import QUIET, TOPIC, BareTopic, Run, of, one, response

EITHER = pytest.mark.parametrize("profile", ["2.x", "4.x"])


def both(log: Callable[[Run], Any], **settings: Any) -> tuple[Any, Any]:
    """What `log` returns under 2.x and under 4.x, from 0 s on. A ledger that closes at 0 ms looks open: wait first."""
    old = log(Run(now=0, profile="2.x", **settings))
    return old, log(Run(now=0, profile="4.x", **settings))


def limit(run: Run, size: int, policy: str) -> None:
    run.admin("POST", "/backlogQuota", {"limitSize": size, "policy": policy})


def evicted(run: Run) -> int:
    """Entries that a round of the quota check takes off backlogs."""
    return sum(move.entries for move in of(run.check("backlogQuota"), Evicted))


def create_subscription(run: Run, name: str) -> None:
    run.admin("PUT", f"/subscription/{name}", {"ledgerId": -1, "entryId": -1})


def retain(run: Run, minutes: int, megabytes: int) -> list[Effect]:
    return run.namespace(
        "POST", "retention", {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
    )


def ledgers(run: Run) -> list[int]:
    return list(run.topic.ledger.ledgers)


def positions(effects: list[Effect]) -> list[tuple[int, int]]:
    return [(receipt.ledger_id, receipt.entry_id) for receipt in of(effects, SendReceipt)]


# -- the table of settings ----------------------------------------------------------------------------------------


@pytest.mark.feature("I1")
@pytest.mark.parametrize("profile", PROFILES)
def test_every_setting_of_a_profile_exists_and_is_valid(profile: Profile) -> None:
    assert set(PROFILES[profile]) <= set(ServiceConfiguration.__struct_fields__)
    config = configuration(profile, {})
    assert {name: getattr(config, name) for name in PROFILES[profile]} == PROFILES[profile]


@pytest.mark.feature("I1")
def test_profile_4_is_the_defaults_and_others_name_only_what_differs() -> None:
    assert PROFILES["4.0"] == {}
    defaults = configuration("4.x", {})
    for profile in PROFILES.values():
        assert [name for name, value in profile.items() if getattr(defaults, name) == value] == []


@pytest.mark.feature("I1")
def test_a_profile_has_one_list_of_names() -> None:
    assert {*PROFILE_OF} == {*get_args(Profile)} == {each.value for each in ProfileChoice}
    assert configuration("4.x", {}) == msgspec.structs.replace(configuration("4.0", {}), profile="4.x")


@pytest.mark.feature("I1")
@pytest.mark.parametrize(
    ("version", "profile"),
    [
        ("2.10.5", "2.10"),
        ("2.8.2", "2.10"),
        ("2.11.4", "2.10"),
        ("3.0.7", "3.0"),
        ("3.3.1", "3.0"),
        ("4.0.7", "4.0"),
        ("4.1.2", "4.0"),
        ("4.2.4", "4.2"),
        ("4.3.0", "4.2"),
        ("5.0.0-M1", "5.0"),
        ("5.2.1", "5.0"),
        ("0.1.0", "4.0"),
        ("", "4.0"),
    ],
)
def test_a_broker_has_the_profile_of_its_release_line_or_the_nearest(version: str, profile: str) -> None:
    assert profile_of(version) == profile


@pytest.mark.feature("I2")
@pytest.mark.parametrize("before", PROFILE_OF)
@pytest.mark.parametrize("after", PROFILE_OF)
def test_what_changes_between_profiles_is_all_that_differs(before: Any, after: Any) -> None:
    first, second = (msgspec.structs.asdict(configuration(each, {})) for each in (before, after))
    found = changes(before, after)
    assert found.keys() <= first.keys() - {"profile"}
    assert {name: old for name, (old, _) in found.items()} == {name: first[name] for name in found}
    assert first | {name: new for name, (_, new) in found.items()} | {"profile": second["profile"]} == second
    assert not any(old == new for old, new in found.values())


@pytest.mark.feature("I2")
@pytest.mark.parametrize("version", ["2.10.5", "2.10.5-SNAPSHOT", "3.0.7", "4.0", "4.2.4", "5.0.0-M1"])
def test_a_release_line_with_a_profile_needs_no_other(version: str) -> None:
    assert stand_in(version) is None


@pytest.mark.feature("I2")
@pytest.mark.parametrize(
    ("version", "profile"), [("2.8.1", "2.10"), ("3.3.1", "3.0"), ("4.20.1", "4.2"), ("4.1.2", "4.0")]
)
def test_a_version_in_between_has_a_stand_in(version: str, profile: str) -> None:
    assert stand_in(version) == f"a profile of Pulsar {version}: that of {profile}, the nearest, stands in"


@pytest.mark.feature("I1")
def test_a_setting_beats_the_profile() -> None:
    assert configuration("2.x", {"messageExpirySharedPosition": True}).messageExpirySharedPosition


# -- backlog quota (article 000) ----------------------------------------------------------------------------------


@pytest.mark.feature("C2")
def test_backlog_size_whole_ledgers_the_remainder_of_the_average_stays() -> None:
    def log(run: Run) -> list[int]:
        run.subscribe("s")
        run.fill(3, 200)
        run.fill(1, 203, first=3)
        sizes = [run.topic.backlog_size()]
        for entry in (1, 3):
            run.ack("s", (1, entry), cumulative=True)
            sizes.append(run.topic.backlog_size())
        return sizes

    # 803 B in 4 entries: 200 on average; all acked leaves 803 − 4·200 or nothing
    assert both(log) == ([803, 403, 3], [803, 403, 0])


@pytest.mark.feature("C2", "I2")
def test_backlog_size_whole_ledgers_in_stats_too() -> None:
    def log(run: Run) -> int:
        run.subscribe("s")
        run.fill(3, 200)
        run.fill(1, 203, first=3)
        run.ack("s", (1, 3), cumulative=True)
        return int(response(run.admin("GET", "/stats"))["backlogSize"])

    assert both(log) == (3, 0)


@pytest.mark.feature("G3")
@pytest.mark.parametrize(
    ("entries", "limit_size", "old", "new"),
    [
        # target 36900 of 44100: 7200·49/44100 = 8; but 7200/44100 is a little less than 8/49, times 49: 7.99…
        (49, 41_000, 7, 8),
        # target 9000.9 of 18000: 8999.1/18000·20 = 9.999; cut to 9000: 9000·20/18000 = 10
        (20, 10_001, 9, 10),
    ],
)
def test_backlog_quota_skip_by_factor(entries: int, limit_size: int, old: int, new: int) -> None:
    def log(run: Run) -> int:
        run.subscribe("s")
        limit(run, limit_size, "consumer_backlog_eviction")
        run.fill(entries, 900)
        return evicted(run)

    assert both(log) == (old, new)


@pytest.mark.feature("G2")
def test_backlog_quota_spares_producers_while_the_dedup_cursor_is_slowest() -> None:
    def log(run: Run) -> list[str]:
        run.namespace("POST", "deduplication", True)
        run.create_producer("a")
        run.subscribe("s")
        run.send(0, name="a")
        run.send(1, name="a")
        run.ack("s", (1, 1), cumulative=True)
        limit(run, 1, "producer_request_hold")
        assert run.topic.slowest_cursor() is run.cursor(DEDUP_CURSOR)
        return [closed.producer_name for closed in of(run.check("backlogQuota"), CloseProducer)]

    assert both(log) == (["a"], [])


@pytest.mark.feature("G2")
def test_backlog_quota_of_a_fenced_topic() -> None:
    def log(run: Run) -> int:
        run.subscribe("s")
        limit(run, 2000, "consumer_backlog_eviction")
        run.fill(4, 1000)
        run.fault("DelayWrites", 1)
        run.publish(4)
        run.fault("FailWrites", 1)
        run.publish(5)
        assert run.topic.fenced
        return evicted(run)

    assert both(log) == (2, 0)  # target 1800 of 4000: 2200·4/4000 = 2.2


@pytest.mark.feature("G1")
def test_backlog_quota_of_age_is_none_in_2x() -> None:
    def log(run: Run) -> tuple[int, list[str]]:
        run.wait(1)
        run.subscribe("s")
        for policy in ("producer_exception", "consumer_backlog_eviction"):
            run.admin(
                "POST", "/backlogQuota?backlogQuotaType=message_age", {"limitTime": 2, "policy": policy}
            )
            if policy == "producer_exception":
                run.fill(7)
                run.wait(3)
                refusals = [error.error for error in of(run.create_producer("late"), Error)]
        return evicted(run), refusals

    # five entries closed 3 s ago; the two in the open ledger have no age
    assert both(log, managedLedgerMaxEntriesPerLedger=5) == (
        (0, []),
        (5, ["ProducerBlockedQuotaExceededException"]),
    )


# -- TTL (articles 002, 004) --------------------------------------------------------------------------------------


@pytest.mark.feature("F3")
def test_message_expiry_shared_position_or_a_rule_for_those_who_nearly_caught_up() -> None:
    def log(run: Run) -> list[int]:
        run.subscribe("connected")
        create_subscription(run, "alone")
        run.namespace("POST", "messageTTL", 100)
        run.publish(0, publish_time=0)
        run.wait(140)
        run.check("messageExpiry")
        return [run.backlog("connected"), run.backlog("alone")]

    # 140 s is over the TTL, but not over 1.5 times the TTL
    assert both(log) == ([1, 0], [0, 0])


@pytest.mark.feature("F2")
def test_message_expiry_by_close_time_outdoes_a_client_clock_ten_days_ahead() -> None:
    def log(run: Run) -> int:
        create_subscription(run, "s")
        run.namespace("POST", "messageTTL", 1)
        run.wait(1)
        for sequence_id in range(10):
            run.publish(sequence_id, publish_time=864_000_000)
        run.wait(2)
        run.check("messageExpiry")
        return run.backlog("s")

    assert both(log, managedLedgerMaxEntriesPerLedger=1) == (0, 10)


@pytest.mark.feature("F2")
def test_message_expiry_by_subscription_passes_an_acked_young_head() -> None:
    def log(run: Run) -> tuple[int, int]:
        run.subscribe("s")
        run.namespace("POST", "messageTTL", 10)
        for sequence_id, seconds in enumerate((200, 1, 1, 1)):
            run.publish(sequence_id, publish_time=seconds * 1000)
        run.ack("s", (1, 0))
        run.wait(100)
        run.check("messageExpiry")
        return run.mark_delete("s")

    assert both(log) == ((1, 3), (1, 0))


@pytest.mark.feature("F2")
def test_message_expiry_stops_at_the_open_ledger_or_before_its_first_entry() -> None:
    def log(run: Run) -> tuple[tuple[int, int], int]:
        create_subscription(run, "s")
        run.namespace("POST", "messageTTL", 10)
        run.wait(1)
        run.publish(0)
        run.publish(1)
        run.wait(95)
        run.publish(2)
        run.wait(5)
        run.check("messageExpiry")
        return run.mark_delete("s"), run.backlog("s")

    # ledger 1 closed 100 s ago; ledger 2 is open with an entry of 5 s
    assert both(log, managedLedgerMaxEntriesPerLedger=2) == (((2, -1), 1), ((1, 1), 1))


@pytest.mark.feature("F2")
def test_message_expiry_by_close_time_ends_at_the_last_entry_when_the_open_ledger_is_empty() -> None:
    def log(run: Run) -> tuple[int, int]:
        create_subscription(run, "s")
        run.namespace("POST", "messageTTL", 10)
        run.wait(1)
        run.publish(0)
        run.publish(1)
        run.wait(100)
        run.check("messageExpiry")
        return run.mark_delete("s")

    assert both(log, managedLedgerMaxEntriesPerLedger=2) == ((1, 1), (1, 1))


@pytest.mark.feature("F3")
def test_message_expiry_of_readers_needs_no_durable_cursor_in_2x() -> None:
    def log(run: Run) -> int:
        run.subscribe("reader", durable=False)
        run.namespace("POST", "messageTTL", 10)
        run.publish(0)
        run.wait(100)
        run.check("messageExpiry")
        return run.backlog("reader")

    assert both(log) == (0, 1)


@pytest.mark.feature("D4", "F2")
def test_close_times_restrict_no_search_by_time_in_2x() -> None:
    def log(run: Run) -> tuple[int, int]:
        create_subscription(run, "s")
        run.wait(2)
        run.publish(0, publish_time=1_000)
        run.publish(1, publish_time=10_000_000)
        run.publish(2, publish_time=95_000)
        run.wait(98)
        run.admin("POST", "/subscription/s/resetcursor/80000")
        return run.mark_delete("s")

    # 4.x begins at 1:1, the end of a ledger closed over 60 s before, which is too young: back to the beginning.
    # 2.x begins at 1:0, which is old enough; 1:1 isn't.
    assert both(log, managedLedgerMaxEntriesPerLedger=2) == ((1, 0), (1, -1))


# -- deduplication (article 003) ----------------------------------------------------------------------------------


@pytest.mark.feature("A6")
def test_deduplication_checks_the_last_chunk_only_or_each() -> None:
    def log(run: Run) -> list[tuple[int, int]]:
        run.namespace("POST", "deduplication", True)
        run.create_producer("a")
        found = []
        for chunk in range(3):
            found += positions(run.send(7, name="a", uuid="a-7", chunk_id=chunk, num_chunks_from_msg=3))
        return found + positions(run.send(8, name="a"))

    # the chunks of a message share its id: the second is ≤ what the first persisted
    assert both(log) == (
        [(1, 0), (-1, -1), (-1, -1), (1, 1)],
        [(1, 0), (1, 1), (1, 2), (1, 3)],
    )


# -- retention (article 004) --------------------------------------------------------------------------------------


@pytest.mark.feature("H2")
def test_retention_without_a_durable_cursor() -> None:
    def log(run: Run) -> list[int]:
        retain(run, 10, 100)
        run.subscribe("reader", durable=False)
        run.fill(3)
        return ledgers(run)

    assert both(log, managedLedgerMaxEntriesPerLedger=1) == ([3], [1, 2, 3, 4])


@pytest.mark.feature("H1")
def test_retention_check_passes_over_topics_for_which_none_is_set() -> None:
    def log(run: Run) -> list[list[int]]:
        retain(run, -1, -1)
        run.subscribe("s")
        run.fill(3)
        run.ack("s", (3, 0), cumulative=True)
        run.namespace("DELETE", "retention")
        run.check("consumedLedgers")
        unset = ledgers(run)
        retain(run, 0, 0)
        run.check("consumedLedgers")
        return [unset, ledgers(run)]

    # ledger 3 is acked to its end: the next test
    assert both(log, managedLedgerMaxEntriesPerLedger=1) == ([[1, 2, 3], [3]], [[4], [4]])


@pytest.mark.feature("H1")
def test_retention_check_counts_the_brokers_default_as_set() -> None:
    run = Run(profile="2.x", managedLedgerMaxEntriesPerLedger=1, defaultRetentionTimeInMinutes=1,
              defaultRetentionSizeInMB=-1)  # fmt: skip
    run.subscribe("s")
    run.fill(2)
    run.ack("s", (2, 0), cumulative=True)
    run.wait(61)
    run.check("consumedLedgers")
    assert ledgers(run) == [2]


@pytest.mark.feature("C3")
def test_trim_of_the_ledger_that_the_slowest_position_is_in() -> None:
    def log(run: Run) -> list[list[int]]:
        retain(run, 0, 0)
        run.subscribe("s")
        run.fill(2)
        run.ack("s", (1, 1), cumulative=True)
        run.check("consumedLedgers")
        at_its_end = ledgers(run)
        run.fill(1, first=2)
        run.ack("s", (2, 0), cumulative=True)
        return [at_its_end, ledgers(run)]

    assert both(log, managedLedgerMaxEntriesPerLedger=2) == ([[1], [2]], [[2], [2]])


# -- Key_Shared (article 001) -------------------------------------------------------------------------------------


@pytest.mark.feature("E4")
def test_key_shared_a_new_consumer_waits_for_all_before_it_or_for_its_keys_alone() -> None:
    def log(run: Run) -> list[bool]:
        run.subscribe("s", "Key_Shared", consumer_name="first", permits=100)
        run.publish(0, key="pending")
        run.subscribe("s", "Key_Shared", id_=2, consumer_name="second", permits=100)
        at_once, late = [], []
        for sequence_id in range(1, 21):
            at_once += run.publish(sequence_id, key=f"k{sequence_id}")
        late += run.ack("s", (1, 0))
        return [any(message.consumer_id == 2 for message in of(found, Message)) for found in (at_once, late)]

    assert both(log) == ([False, True], [True, False])


@pytest.mark.feature("E3")
def test_failover_on_no_partition_picks_the_first_by_name_or_by_the_ring() -> None:
    def log(run: Run) -> str:
        topic = "persistent://public/default/t1"
        run.subscribe("s", "Failover", id_=0, consumer_name="B", topic=topic)
        changes = run.subscribe("s", "Failover", id_=1, consumer_name="A", topic=topic)
        return next(
            (("B", "A")[c.consumer_id] for c in of(changes, ActiveConsumerChange) if c.fields.is_active),
            "B",
        )

    # the ring puts t1 on B (docs/rules/subscriptions.md §20, case 2)
    assert both(log, activeConsumerFailoverDelayTimeMillis=0) == ("A", "B")


# -- examples of the articles -------------------------------------------------------------------------------------


@pytest.mark.feature("G3")
@EITHER
def test_seed_000_eviction_goes_down_to_nine_tenths(profile: Profile) -> None:
    run = Run(profile=profile)
    limit(run, 10_240, "consumer_backlog_eviction")
    run.subscribe("s")
    run.fill(20)
    assert evicted(run) == 11  # target 9216 of 20480: a factor of 0.55
    assert run.topic.backlog_size() == 9216


@pytest.mark.feature("G3")
@EITHER
def test_seed_000_every_slowest_cursor_has_its_turn_but_none_twice_in_a_row(profile: Profile) -> None:
    run = Run(profile=profile)
    limit(run, 15_360, "consumer_backlog_eviction")
    run.subscribe("a")
    run.subscribe("b")
    run.fill(17)
    moves = of(run.check("backlogQuota"), Evicted)
    # target 13824 of 17408: 17·3584/17408 = 3.5 each; then 14336 is still over the target
    assert [(move.subscription, move.entries) for move in moves] == [("a", 3), ("b", 3)]
    assert run.topic.backlog_size() == 14_336


@pytest.mark.feature("G3")
@EITHER
def test_seed_000_nothing_to_skip_ends_it(profile: Profile) -> None:
    run = Run(profile=profile)
    limit(run, 5000, "consumer_backlog_eviction")
    run.subscribe("s")
    run.fill(1, 6000)
    assert evicted(run) == 0  # (6000 − 4500)/6000 of 1 entry


@pytest.mark.feature("G1", "G2")
@EITHER
@pytest.mark.parametrize(
    ("policy", "answer"),
    [
        ("producer_request_hold", ["ProducerBlockedQuotaExceededError"]),
        ("producer_exception", ["ProducerBlockedQuotaExceededException"]),
        ("consumer_backlog_eviction", []),
    ],
)
def test_seed_000_producers_before_and_after_the_quota_is_exceeded(
    profile: Profile, policy: str, answer: list[str]
) -> None:
    run = Run(profile=profile)
    limit(run, 2048, policy)
    run.subscribe("s")
    run.create_producer("before")
    run.fill(1)
    assert of(run.check("backlogQuota"), CloseProducer) == []
    run.fill(1, first=1)
    assert [error.error for error in of(run.create_producer("after", 2), Error)] == answer
    closed = {producer.producer_name for producer in of(run.check("backlogQuota"), CloseProducer)}
    assert ("before" in closed) == bool(answer)


@pytest.mark.feature("E2")
@EITHER
def test_seed_001_priorities_c1_to_c5(profile: Profile) -> None:
    run = Run(profile=profile)
    for number, (priority, permits) in enumerate([(0, 2), (0, 1), (0, 1), (1, 2), (1, 1)], 1):
        run.subscribe("s", "Shared", id_=number, priority_level=priority, permits=permits)
    order = [message.consumer_id for number in range(8) for message in of(run.publish(number), Message)]
    assert order == [1, 2, 3, 1, 4, 5, 4]


@pytest.mark.feature("E3")
@EITHER
@pytest.mark.parametrize(
    ("partition", "consumers", "active"),
    [
        (0, [("bbb", 0), ("aaa", 0)], "aaa"),
        (0, [("aaa", 1), ("bbb", 0)], "bbb"),
        (1, [("aaa", 0), ("bbb", 0)], "bbb"),
        (2, [("aaa", 0), ("bbb", 0)], "aaa"),
        (1, [("aaa", 0), ("bbb", 1)], "aaa"),
    ],
)
def test_seed_001_failover_picks_by_priority_then_name_then_partition(
    profile: Profile, partition: int, consumers: list[tuple[str, int]], active: str
) -> None:
    run, topic = (
        Run(profile=profile, activeConsumerFailoverDelayTimeMillis=0),
        f"{TOPIC}-partition-{partition}",
    )
    told: dict[int, bool] = {}
    for number, (name, priority) in enumerate(consumers):
        effects = run.subscribe(
            "s", "Failover", id_=number, consumer_name=name, priority_level=priority, topic=topic
        )
        told |= {change.consumer_id: change.fields.is_active for change in of(effects, ActiveConsumerChange)}
    assert [consumers[number][0] for number, is_active in told.items() if is_active] == [active]


@pytest.mark.feature("D3")
@EITHER
def test_seed_001_cumulative_and_individual_acks_move_the_mark_delete(profile: Profile) -> None:
    run = Run(profile=profile)
    run.subscribe("s")
    run.fill(6)
    run.ack("s", (1, 1))
    assert run.mark_delete("s") == (1, -1)
    run.ack("s", (1, 0))
    assert run.mark_delete("s") == (1, 1), "the range in front touches the mark-delete"
    run.ack("s", (1, 4), cumulative=True)
    assert (run.mark_delete("s"), run.backlog("s")) == ((1, 4), 1)


@pytest.mark.feature("F1")
@EITHER
def test_seed_002_intervals_and_no_ttl(profile: Profile) -> None:
    config = configuration(profile, {})
    assert (config.messageExpiryCheckIntervalInMinutes, config.ttlDurationDefaultInSeconds) == (5, 0)
    run = Run(now=0, profile=profile)
    create_subscription(run, "s")
    run.publish(0)
    run.wait(10**6)
    assert run.check("messageExpiry") == []


@pytest.mark.feature("F2")
@EITHER
def test_seed_002_a_ledger_that_closed_in_time_ends_the_closure_pass(profile: Profile) -> None:
    run = Run(now=0, profile=profile, managedLedgerMaxEntriesPerLedger=1)
    create_subscription(run, "s")
    run.wait(1)
    for sequence_id in range(4):  # ledgers 1…4 closed at 1, 11, 21, 31 s
        run.publish(sequence_id, publish_time=10**9)
        run.wait(10)
    run.admin("POST", "/subscription/s/expireMessages/25")  # now is 41 s
    assert run.mark_delete("s") == (2, 0)


@pytest.mark.feature("F4", "H2")
@EITHER
def test_seed_002_expired_entries_stay_readable(profile: Profile) -> None:
    run = Run(now=0, profile=profile)
    create_subscription(run, "s")
    run.publish(0)
    run.wait(20)
    run.namespace("POST", "messageTTL", 10)
    assert (run.backlog("s"), run.topic.ledger.number_of_entries) == (0, 1)
    run.admin("POST", "/subscription/s/resetcursor/0")
    assert run.backlog("s") == 1


@pytest.mark.feature("A1")
@EITHER
def test_seed_003_pushed_and_persisted_tell_duplicates_from_unknowns(profile: Profile) -> None:
    run = Run(profile=profile)
    run.namespace("POST", "deduplication", True)
    run.create_producer("a")
    assert positions(run.send(5, name="a")) == [(1, 0)]
    run.fault("DelayWrites", 1)
    assert run.send(6, name="a") == []
    assert positions(run.send(5, name="a")) == [(-1, -1)]
    assert one(run.send(6, name="a"), SendError).error == "PersistenceError"
    assert (run.topic.dedup.pushed("a"), run.topic.dedup.persisted["a"]) == (6, 5)


def consumed(profile: Profile, sizes_and_closes: list[tuple[int, int]], first: int = 1) -> BareTopic:
    """Closed ledgers of these bytes and close times (ms) before an open one, all consumed."""
    topic = BareTopic()
    topic.ctx.config = configuration(profile, QUIET)
    ledger = topic.ledger
    ledger.ledgers = {
        id_: LedgerInfo(50_000, size, close) for id_, (size, close) in enumerate(sizes_and_closes, first)
    }
    ledger.current = first + len(sizes_and_closes) - 1
    ledger.number_of_entries = 50_000 * len(sizes_and_closes)
    ledger.total_size = sum(size for size, _ in sizes_and_closes)
    ledger.open_ledger(topic.ctx.clock)
    (position,) = topic.add(10)
    topic.mark(topic.open(), position)
    return topic


def trimmed(topic: BareTopic, now: int) -> list[int]:
    """The closed ledgers that a trim at `now` (ms) leaves."""
    topic.ctx.clock = now
    trim(topic.ctx, topic.topic)
    return [id_ for id_ in topic.ledger.ledgers if id_ != topic.ledger.current]


def set_retention(topic: BareTopic, minutes: int, megabytes: int) -> None:
    topic.ctx.config = configuration(
        topic.ctx.config.profile,
        {**QUIET, "defaultRetentionTimeInMinutes": minutes, "defaultRetentionSizeInMB": megabytes},
    )
    topic.ctx.policies_changed()


@pytest.mark.feature("H1")
@EITHER
@pytest.mark.parametrize(
    ("minutes", "megabytes", "left"),
    [
        (0, 0, []),
        (-1, -1, [1, 2, 3]),
        (-1, 2, [2, 3]),  # 3 MB − 1 leaves 2, then 1
        (15, -1, [3]),
        (0, 2, []),  # takes no effect
        (15, 0, []),  # takes no effect
        (15, 2, [3]),  # time or size
        (25, 1, [3]),  # time takes the first, size the second
    ],
)
def test_seed_004_table_of_retention(profile: Profile, minutes: int, megabytes: int, left: list[int]) -> None:
    minute = 60_000
    topic = consumed(profile, [(MEGABYTE, 0), (MEGABYTE, 10 * minute), (MEGABYTE, 20 * minute)])
    set_retention(topic, minutes, megabytes)
    assert trimmed(topic, 30 * minute) == left


@pytest.mark.feature("H1")
@EITHER
@pytest.mark.parametrize(("minutes", "megabytes"), [(0, 2), (15, 0)])
def test_seed_004_what_takes_no_effect_is_refused_by_the_admin_api(
    profile: Profile, minutes: int, megabytes: int
) -> None:
    run = Run(profile=profile)
    assert one(retain(run, minutes, megabytes), AdminResponse).fields.status == 400


@pytest.mark.feature("H1")
@EITHER
def test_seed_004_ledgers_20_and_21_of_its_stats_with_10_minutes_and_500_mb(profile: Profile) -> None:
    topic = consumed(profile, [(500_000, 1_627_584_000_000), (500_000, 1_627_585_000_000)], first=20)
    set_retention(topic, 10, 500)
    for now, left in (
        (1_627_584_600_000, [20, 21]),
        (1_627_584_600_001, [21]),
        (1_627_585_600_000, [21]),
        (1_627_585_600_001, []),
    ):
        assert trimmed(topic, now) == left


@pytest.mark.feature("H1")
@EITHER
def test_seed_004_defaults(profile: Profile) -> None:
    config = configuration(profile, {})
    assert config.retentionCheckIntervalInSeconds == 120
    assert config.managedLedgerMaxSizePerLedgerMbytes == 2048
    assert config.messageExpiryCheckIntervalInMinutes == 5


@pytest.mark.feature("H1", "I1")
@EITHER
def test_seed_004_the_topics_retention_covers_the_namespaces(profile: Profile) -> None:
    run = Run(profile=profile, managedLedgerMaxEntriesPerLedger=1)
    retain(run, -1, -1)
    run.subscribe("s")
    run.fill(2)
    run.ack("s", (2, 0), cumulative=True)
    run.check("consumedLedgers")
    assert ledgers(run)[:2] == [1, 2]
    run.admin("POST", "/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    run.fill(1, first=2)
    run.ack("s", (3, 0), cumulative=True)
    assert ledgers(run)[0] > 1


@pytest.mark.feature("H2")
@EITHER
def test_seed_004_what_nobody_consumed_stays_whatever_the_retention(profile: Profile) -> None:
    run = Run(profile=profile, managedLedgerMaxEntriesPerLedger=1)
    retain(run, 0, 0)
    run.subscribe("fast")
    run.subscribe("slow")
    run.fill(3)
    run.ack("fast", (3, 0), cumulative=True)
    run.ack("slow", (1, 0), cumulative=True)
    run.wait(10**6)
    run.check("consumedLedgers")
    assert {2, 3} <= set(ledgers(run))
    assert run.topic.ledger.number_of_entries >= 2


@pytest.mark.feature("F2")
@EITHER
def test_seed_004_times_out_of_order_keep_old_entries(profile: Profile) -> None:
    run = Run(now=0, profile=profile)
    create_subscription(run, "s")
    for sequence_id, seconds in enumerate((200, 1, 1)):
        run.publish(sequence_id, publish_time=seconds * 1000)
    run.wait(100)
    run.namespace("POST", "messageTTL", 10)
    assert run.backlog("s") == 3
    run.wait(110.001)
    assert one(run.check("messageExpiry"), Expired).entries == 3


# -- what 4.2 and 5.0 change --------------------------------------------------------------------------------------


def versions(log: Callable[[Run], Any], **settings: Any) -> tuple[Any, Any, Any]:
    """What `log` returns under 4.0, 4.2 and 5.0."""
    before, later, latest = (log(Run(profile=profile, **settings)) for profile in ("4.0", "4.2", "5.0"))
    return before, later, latest


@pytest.mark.feature("B1", "I2")
def test_message_expiry_through_cursor() -> None:
    """Entries 0 to 3, of which the last is acked: 4.0 looks at the first alone then. After an age of 0 s, all are gone from 4.2 on."""

    def by_age(run: Run) -> list[int]:
        run.subscribe("s", "Shared", permits=10)
        run.fill(4, 100)
        run.ack("s", (1, 3))
        run.lose("s")
        run.wait(10)
        left = [run.backlog("s")]
        for _ in range(2):
            run.admin("POST", "/subscription/s/expireMessages/5")
            left.append(run.backlog("s"))
        return left

    def by_zero(run: Run) -> int:
        run.subscribe("s")
        run.fill(4, 100)
        run.lose("s")
        run.wait(1)
        run.admin("POST", "/subscription/s/expireMessages/0")
        return run.backlog("s")

    assert versions(by_age) == ([3, 2, 1], [3, 0, 0], [3, 0, 0])
    assert versions(by_zero) == (4, 0, 0)


@pytest.mark.feature("D1", "I2")
def test_move_cursor_over_consumed_ledger_when_a_topic_is_loaded() -> None:
    def log(run: Run) -> tuple[int, int]:
        run.subscribe("s")
        retain(run, -1, -1)
        run.fill(2, 100)
        run.ack("s", (1, 1), cumulative=True)
        run.unload()
        return run.mark_delete("s")

    assert versions(log) == ((1, 1), (2, -1), (2, -1))


@pytest.mark.feature("D1", "I2")
def test_counts_entries_of_deleted_ledgers() -> None:
    """All that was published is acked, and deleted when the topic is loaded."""

    def log(run: Run) -> tuple[list[int], int]:
        run.subscribe("s")
        run.fill(2, 100)
        run.ack("s", (1, 1), cumulative=True)
        run.unload()
        run.subscribe("late")
        return ledgers(run), run.backlog("late")

    assert versions(log) == (([2], 2), ([2], 0), ([2], 0))


@pytest.mark.feature("D4", "I2")
def test_seek_counts_consumed_anew() -> None:
    """Entries 0 to 5, of which 1 and 2 are acked. 4.0 counts these twice when a seek to the end passes them."""

    def log(run: Run) -> tuple[int, int]:
        run.subscribe("s", "Shared", permits=10)
        run.fill(6, 100)
        run.ack("s", (1, 1), (1, 2))
        run.seek("s", (2**63 - 1, 2**63 - 1))
        run.fill(1, 100, first=6)
        return run.cursor("s").consumed, run.backlog("s")

    before, later, latest = versions(log)
    assert before == (8, 1)  # 7 entries were added: the estimate is negative, so the entries are counted
    assert later == latest == (6, 1)


@pytest.mark.feature("D2", "I2")
def test_refused_cumulative_ack_is_an_error() -> None:
    def log(run: Run) -> list[str | None]:
        run.subscribe("s", permits=10)
        run.fill(4, 100)
        return [
            one(run.ack("s", (1, entry), cumulative=True, request_id=entry), AckResponse).error
            for entry in (3, 1)
        ]

    assert versions(log) == ([None, None], [None, None], [None, "UnknownError"])


# -- what 3.0 does otherwise --------------------------------------------------------------------------------------


def older(log: Callable[[Run], Any], **settings: Any) -> tuple[Any, Any]:
    """What `log` returns under 3.0 and under 4.0."""
    before, after = (log(Run(profile=profile, **settings)) for profile in ("3.0", "4.0"))
    return before, after


@pytest.mark.feature("D6", "I2")
def test_key_shared_spreads_keyless() -> None:
    """Messages without a key: one consumer gets all of them, or both get some."""

    def log(run: Run) -> int:
        for id_ in (1, 2):
            run.subscribe("s", "Key_Shared", id_=id_, consumer_name=f"c{id_}", permits=100)
        run.create_producer()
        sent = [effect for number in range(20) for effect in run.send(number)]
        return len({message.consumer_id for message in of(sent, Message)})

    assert older(log) == (1, 2)


@pytest.mark.feature("D6", "I2")
def test_key_shared_ranges_by_point() -> None:
    """A consumer alone: all hashes, as one range from 1, or as one for each of its 100 points and what follows the last."""

    def log(run: Run) -> tuple[int, str, str]:
        run.subscribe("s", "Key_Shared", consumer_name="c")
        (found,) = response(run.admin("GET", "/stats"))["subscriptions"]["s"]["consumers"]
        ranges = found["keyHashRanges"]
        assert all(
            int(one.strip("[]").split(", ")[1]) + 1 == int(next_.strip("[]").split(", ")[0])
            for one, next_ in pairwise(ranges)
        )
        return len(ranges), ranges[0].split(",")[0], ranges[-1].split(", ")[1]

    classic = {"subscriptionKeySharedUseClassicPersistentImplementation": True}
    assert older(log, **classic) == ((101, "[0", "2147483646]"), (1, "[1", "2147483646]"))


@pytest.mark.feature("D6", "I2")
def test_key_shared_modes_must_agree() -> None:
    def log(run: Run) -> list[str | None]:
        sticky = KeySharedMeta(keySharedMode="STICKY", hashRanges=[IntRange(0, 99)])
        run.subscribe("sticky", "Key_Shared", consumer_name="a", keySharedMeta=sticky)
        run.subscribe("auto", "Key_Shared", consumer_name="a")
        loose = KeySharedMeta(keySharedMode="AUTO_SPLIT", allowOutOfOrderDelivery=True)
        found = [
            run.subscribe("sticky", "Key_Shared", id_=2, consumer_name="b"),
            run.subscribe("auto", "Key_Shared", id_=2, consumer_name="b", keySharedMeta=loose),
        ]
        return [errors[0].error if (errors := of(effects, Error)) else None for effects in found]

    assert older(log) == (["ConsumerAssignError", None], ["ConsumerBusy", "ConsumerBusy"])


@pytest.mark.feature("D5", "I2")
def test_unblocks_consumer_one_ack_late() -> None:
    """A limit of 4: the ack that leaves 2 unblocks in 4.0, the next one in 3.0."""

    def log(run: Run) -> list[int]:
        run.subscribe("s", "Shared", permits=10)
        run.fill(8, 100)
        return [len(of(run.ack("s", (1, entry)), Message)) for entry in range(3)]

    assert older(log, maxUnackedMessagesPerConsumer=4) == ([0, 0, 3], [0, 2, 0])


@pytest.mark.feature("B1", "I2")
def test_passed_entries_stay_pending() -> None:
    """Entries 0 and 1 of 3 are skipped while a consumer has them, and the dispatcher reads again. Then it acks 0, twice."""

    def log(run: Run) -> list[int]:
        run.subscribe("s", "Shared", permits=10)
        run.fill(3, 100)
        run.admin("POST", "/subscription/s/skip/2")
        run.flow("s", 1)
        unacked = []
        for _ in range(2):
            run.ack("s", (1, 0))
            (found,) = response(run.admin("GET", "/stats"))["subscriptions"]["s"]["consumers"]
            unacked.append(found["unackedMessages"])
        return unacked

    assert older(log) == ([2, 2], [3, 3])


@pytest.mark.feature("D2", "I2")
def test_closes_on_ack_of_no_entry() -> None:
    def log(run: Run) -> list[type[Effect]]:
        run.subscribe("s", "Shared", permits=10)
        return [type(effect) for effect in run.ack("s", (2**64 - 1, 2**64 - 1), request_id=7)]

    before, after = older(log)
    assert before[0] is CloseConnection
    assert after == [AckResponse]


@pytest.mark.feature("D2", "I2")
@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_force_unsubscribes(domain: str) -> None:
    topic = f"{domain}://public/default/t"

    def log(run: Run) -> list[str]:
        for id_ in (1, 2):
            run.subscribe("s", "Shared", id_=id_, topic=topic)
        command = Unsubscribe(connection="s", consumer_id=1, request_id=9, force=True)
        return [type(effect).__name__ for effect in run.do(command, topic)][-1:]

    assert older(log) == (["Error"], ["Success"])


@pytest.mark.feature("D2", "I2")
def test_does_not_close_on_a_cumulative_ack_of_no_entry() -> None:
    def log(run: Run) -> list[type[Effect]]:
        run.subscribe("s", permits=10)
        acked = run.ack("s", (2**64 - 1, 2**64 - 1), cumulative=True, request_id=7)
        return [type(effect) for effect in acked]

    assert older(log) == ([AckResponse], [AckResponse])
