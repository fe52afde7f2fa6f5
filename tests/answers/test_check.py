"""All schedules of small scenarios, and mistakes in the core that the search finds."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from schemas.commands import Admin, decode
from streaming.answers.check import schedules
from streaming.answers.check.scenario import START, ScenarioError, components, read_scenario, scenario_of
from streaming.answers.check.schedules import Checked, World, check
from streaming.answers.explain.delivery import to_json
from streaming.broker.admin_requests import topic_of
from streaming.broker.broker import Broker
from streaming.broker.dispatch.draining_hashes import DrainingHashes
from streaming.broker.dispatch.multiple_consumers import MultipleConsumers
from streaming.broker.ledger.ack_holes import AckHoles
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.cli.app import app
from streaming.jobs.replay import replay_in_process
from streaming.log.files import read_log
from tests.examples import examples

SUBSCRIBE = {"SUBSCRIBE": {"subscription": "s", "subType": "Shared"}}
SCENARIOS = Path(__file__).parents[2] / "docs" / "scenarios"
WORKER = [{"SUBSCRIBE": {"subscription": "s", "subType": "Shared"}}, {"FLOW": {"messagePermits": 2}}, "ACK"]


def setup(type_: str) -> list[Any]:
    """A subscription at the beginning of the topic, without consumers."""
    return [
        {"SUBSCRIBE": {"connection": "setup", "subscription": "s", "subType": type_}},
        {"CONNECTION_LOST": "setup"},
    ]


def small(type_: str = "Shared", publishes: int = 2, **more: Any) -> dict[str, Any]:
    """A publisher and two consumers that ack one entry and leave."""
    worker = [
        {"SUBSCRIBE": {"subscription": "s", "subType": type_}},
        {"FLOW": {"messagePermits": 2}},
        "ACK",
        "CLOSE_CONSUMER",
    ]
    clients = {
        "p": [{"PUBLISH": {"key": str(number)}} for number in range(publishes)],
        "a": worker,
        "b": worker,
    }
    return {"setup": setup(type_), "clients": clients, **more}


def found(document: dict[str, Any]) -> dict[str, Checked]:
    """The invariants that are violated, each with a search that found it."""
    checked = check(scenario_of(document))
    return {each.violation.invariant: checked for each in checked.counterexamples}


@pytest.mark.parametrize("type_", ["Exclusive", "Failover", "Shared"])
def test_the_core_keeps_the_invariants(type_: str) -> None:
    document = small(type_, faults=[{"ADMIN": {"method": "PUT", "path": "{topic}/unload"}}])
    checked = check(scenario_of(document))
    assert checked.complete
    assert checked.states > 100
    assert not checked.counterexamples


@pytest.mark.parametrize("name", ["a b", "a%20b", "ünï#?"])
def test_the_path_of_a_topic_of_any_name(name: str) -> None:
    call = {"ADMIN": {"method": "PUT", "path": "{topic}/unload"}}
    scenario = scenario_of({"topic": f"persistent://public/default/{name}", "setup": [call], "time": ["1s"]})
    (step,) = scenario.setup
    assert isinstance(step.command, Admin)
    assert topic_of(step.command.path) == step.topic == f"persistent://public/default/{name}"


def test_a_connection_may_use_one_consumer_id_on_two_topics() -> None:
    """An ack is about the topic that it names: the topics can be in different ingress partitions."""
    steps: list[Any] = [
        {"SUBSCRIBE": {"subscription": "s", "subType": "Exclusive", "consumer_id": 2}},
        {"SUBSCRIBE": {"subscription": "z", "subType": "Exclusive", "consumer_id": 2, "topic": "other"}},
        {"ACK": {"consumer_id": 2, "message_id": [{"ledgerId": 1, "entryId": 0}]}},
    ]
    checked = check(scenario_of({"topic": "orders", "clients": {"a": steps, "p": [{"PUBLISH": {}}]}}))
    assert checked.complete
    assert not checked.counterexamples


# ---- mistakes that are put into the core


def test_acks_out_of_order_that_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AckHoles, "add", lambda self, position: None)
    again = [
        WORKER[0],
        {"FLOW": {"messagePermits": 2}},
        {"ACK": {"message_id": "newest"}},
        "CLOSE_CONSUMER",
        *WORKER[:2],
    ]
    assert "redelivered" in found(
        {"setup": setup("Shared"), "clients": {"p": [{"PUBLISH": {"times": 2}}], "a": again}}
    )


def test_hashes_that_do_not_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    document = small("Key_Shared", publishes=0)
    document["clients"]["p"] = [{"PUBLISH": {"key": key}} for key in "abab"]
    document["clients"]["a"] = document["clients"]["b"] = document["clients"]["a"][:2]
    assert "two consumers" not in found(document)
    monkeypatch.setattr(DrainingHashes, "blocks", lambda self, consumer, hash_: False)
    assert "two consumers" in found(document)


def test_entries_of_a_consumer_that_left_are_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "starved" not in found(small())
    monkeypatch.setattr(MultipleConsumers, "_replay_all", lambda self, sub, pending, hashes: None)
    assert "starved" in found(small())


def test_a_cumulative_ack_that_goes_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ManagedCursor.acknowledge_cumulative

    def wrong(self: ManagedCursor, ledger: Any, position: Any, ack_set: int | None) -> None:
        further = position.next()
        right(self, ledger, further if ledger.valid(further) else position, ack_set)

    document = small("Exclusive")
    document["clients"] = {
        "p": document["clients"]["p"],
        "a": [*document["clients"]["a"][:2], {"ACK": {"ack_type": "Cumulative"}}],
    }
    assert not found(document)
    monkeypatch.setattr(ManagedCursor, "acknowledge_cumulative", wrong)
    assert "lost" in found(document)


def test_a_cursor_that_opens_in_an_older_state(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ManagedCursor.recover

    def wrong(self: ManagedCursor, ledger: Any, *args: Any, **kwargs: Any) -> None:
        self.mark_delete = ledger.previous(self.mark_delete)
        right(self, ledger, *args, **kwargs)

    document = small(faults=["RESTART"])
    assert not found(document)
    monkeypatch.setattr(ManagedCursor, "recover", wrong)
    assert found(document).keys() >= {"moved back"}


# ---- what the search gives


def test_a_counterexample_is_a_log_from_which_no_step_can_be_left_out(tmp_path: Path) -> None:
    scenario = read_scenario(SCENARIOS / "key_shared.yaml")
    (example,) = check(scenario).counterexamples
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join(example.lines()))
    log = read_log(path)
    assert replay_in_process(path, tmp_path / "out").rows["SUCCESS"] == 5

    def starves(without: int | None) -> bool:
        world = World(scenario.config)
        for number, row in enumerate(log.to_pylist()):
            command = decode(row["value"])
            world.now = row["timestamp"]
            if 0 < number < len(log) - 1 and number != without:
                world.do(row["topic"], command)
        return world.starved() is not None

    assert starves(None)
    assert not any(starves(number) for number in range(1, len(log) - 1))


def test_processes_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = read_scenario(SCENARIOS / "key_shared.yaml")
    alone = check(scenario, most_states=500)
    monkeypatch.setattr(schedules, "_ALONE", 32)
    monkeypatch.setattr(schedules, "_CHUNK", 16)
    assert to_json(check(scenario, most_states=500, processes=2)) == to_json(alone)
    assert not alone.complete


def exponential() -> Any:
    """Eight clients with eight steps each, of which no order is like another."""
    steps = [{"PUBLISH": {"key": f"{client}-{step}"}} for client in range(8) for step in range(8)]
    clients = {f"p{client}": steps[8 * client : 8 * client + 8] for client in range(8)}
    return scenario_of({"clients": clients})


@pytest.mark.parametrize("processes", [1, 2])
def test_an_exponential_scenario_ends_and_says_how_far_it_got(processes: int) -> None:
    checked = check(exponential(), processes=processes, most_states=3000)
    assert not checked.complete
    assert checked.whole is not None
    assert checked.whole > 2
    assert 3000 <= checked.states < 3000 + 8 * 256  # the last chunk
    assert not checked.never


def test_a_search_that_is_stopped_says_how_far_it_got() -> None:
    asked = iter([False, False, True])
    checked = check(exponential(), stop=lambda: next(asked))
    assert (checked.complete, checked.whole, checked.deepest) == (False, 2, 3)


def test_clients_that_do_the_same_are_explored_in_one_order() -> None:
    once, always = (check(scenario_of(small(symmetry=symmetry))) for symmetry in (True, False))
    assert once.states < always.states * 0.7
    assert not once.counterexamples
    assert not always.counterexamples


def test_topics_that_have_nothing_in_common_are_explored_apart() -> None:
    clients = {
        f"{topic}{number}": [{"PUBLISH": {"topic": topic}}, {"PUBLISH": {"topic": topic}}]
        for topic in ("x", "y")
        for number in (1, 2)
    }
    document = {"clients": clients, "time": ["1s"], "symmetry": False}
    apart = check(scenario_of(document))
    assert (apart.components, apart.states) == (
        2,
        2 * check(scenario_of({**document, "clients": dict([*clients.items()][:2])})).states,
    )
    together = scenario_of({**document, "settings": {"maxUnackedMessagesPerBroker": 5}})
    assert len(components(together)) == 1


def partitioned(*calls: Any) -> list[Any]:
    """A partitioned topic with a subscription of partition 0."""
    path = "/persistent/public/default/pt"
    return [
        {"ADMIN": {"method": "PUT", "path": f"{path}/partitions", "body": 2}},
        *({"ADMIN": {"method": "POST", "path": f"{path}/{call}", "body": 1}} for call in calls),
        {"SUBSCRIBE": {"topic": "pt-partition-0", "connection": "nobody", "subscription": "s", "subType": "Key_Shared"}},
        {"CLOSE_CONSUMER": {"topic": "pt-partition-0", "connection": "nobody"}},
    ]  # fmt: skip


def of_partition(*steps: dict[str, Any]) -> list[Any]:
    return [{name: {"topic": "pt-partition-0", **body}} for step in steps for name, body in step.items()]


KEYS = {"subscription": "s", "subType": "Key_Shared"}
ON_A_PARTITION = {
    "p": of_partition({"PUBLISH": {"key": "b"}}),
    "worker-1": of_partition({"SUBSCRIBE": KEYS}, {"CLOSE_CONSUMER": {}}),
    "worker-2": of_partition({"SUBSCRIBE": KEYS}, {"FLOW": {"messagePermits": 5}}),
}
BESIDE = {"other": [{"PUBLISH": {"topic": "pt-partition-1"}}]}


@pytest.mark.parametrize(
    ("calls", "configured", "violated"),
    [
        ((), {}, {"starved"}),
        (("maxConsumersPerSubscription",), {}, set()),
        ((), {"allowAutoTopicCreation": False}, {"starved"}),
    ],
)
def test_a_partitioned_topic_and_its_partitions_are_one_topic(
    calls: tuple[str, ...], configured: Any, violated: set[str]
) -> None:
    for clients in (ON_A_PARTITION, {**ON_A_PARTITION, **BESIDE}):
        document = {"settings": configured, "setup": partitioned(*calls), "clients": clients}
        assert found(document).keys() == violated
        assert len(components(scenario_of(document))) == 1


LIMITED: dict[str, dict[str, Any]] = {
    "a setting": {"settings": {"maxTopicsPerNamespace": 1}},
    "a policy": {"setup": [{"ADMIN": {"method": "POST", "path": "/namespaces/public/default/maxTopicsPerNamespace", "body": 1}}]},
    "a dynamic setting": {"setup": [{"ADMIN": {"method": "POST", "path": "/brokers/configuration/maxUnackedMessagesPerBroker/1"}}]},
    "a policy that comes later": {
        "faults": [{"ADMIN": {"method": "POST", "path": "/namespaces/public/default/maxTopicsPerNamespace", "body": 1}}],
    },
    "a client that restarts the broker": {"clients": {"r": [{"PUBLISH": {"topic": "x"}}, "RESTART"]}},
    "all connections": {"faults": [{"CONNECTION_LOST": {"prefix": "p"}}]},
    "a connection of the setup": {
        "setup": [{"PRODUCER": {"connection": "both", "topic": topic}} for topic in ("x", "y")],
        "faults": [{"CONNECTION_LOST": "both"}],
    },
}  # fmt: skip


@pytest.mark.parametrize("by", LIMITED)
def test_topics_that_a_limit_or_an_event_binds_together_are_explored_together(by: str) -> None:
    document: dict[str, Any] = {**LIMITED[by]}
    document["clients"] = {
        "p": [{"PUBLISH": {"topic": "x"}}],
        "q": [{"PUBLISH": {"topic": "y"}}],
        **document.get("clients", {}),
    }
    assert len(components(scenario_of(document))) == 1


def test_each_part_begins_in_the_state_that_the_whole_setup_leaves() -> None:
    """Also if the setup does something on a topic that no client uses."""
    setup = [{"PUBLISH": {"topic": topic}} for topic in ("x", "y", "z")]
    clients = {"p": [{"PUBLISH": {"topic": "x"}}], "q": [{"PUBLISH": {"topic": "y"}}]}
    whole = scenario_of({"setup": setup, "clients": clients})
    parts = components(whole)
    assert [part.setup for part in parts] == [whole.setup] * 2
    assert [[actor.name for actor in part.actors] for part in parts] == [["p"], ["q"]]


def violations(scenario: Any) -> set[tuple[str, str, str]]:
    """What the parts of a scenario violate, also of the same invariant: each is explored alone."""
    seen: set[tuple[str, str, str]] = set()
    for part in components(scenario):
        search = schedules._Search(part)
        start, first = search.start()
        seen |= {violation[:3] for violation, _ in first}
        level = [start]
        while level:
            expanded = search.expand(level)
            seen |= {violation[:3] for violation, _ in expanded.violations}
            level = [*expanded.nodes.values()]
    return seen


def connected(random: Random) -> dict[str, Any]:
    """A small scenario in which topics may have something in common."""
    topics = random.choice([["pt-partition-0", "pt-partition-1"], ["x", "y"], ["x", "pt-partition-0"]])
    type_ = random.choice(["Shared", "Key_Shared", "Exclusive"])
    of = {"subscription": "s", "subType": type_}

    def admin() -> dict[str, Any]:
        topic = f"/persistent/public/default/{random.choice(['pt', *topics])}"
        method, path, body = random.choice([
            ("POST", f"{topic}/maxConsumersPerSubscription", 1),
            ("DELETE", "/persistent/public/default/pt/partitions?force=true", None),
            ("POST", "/namespaces/public/default/maxConsumersPerSubscription", 1),
            ("POST", "/namespaces/public/default/maxTopicsPerNamespace", 1),
            ("POST", "/brokers/configuration/maxUnackedMessagesPerBroker/1", None),
            ("POST", "/brokers/configuration/maxConsumersPerSubscription/1", None),
            ("PUT", f"{topic}/unload", None),
        ])  # fmt: skip
        return {"ADMIN": {"method": method, "path": path, "body": body}}

    setup: list[Any] = [
        {"ADMIN": {"method": "PUT", "path": "/persistent/public/default/pt/partitions", "body": 2}}
    ]
    setup += [admin() for _ in range(random.randrange(3))]
    for number, topic in enumerate(topics):
        connection = random.choice(["nobody", f"nobody-{number}"])
        setup += [
            {"SUBSCRIBE": {"topic": topic, "connection": connection, "consumer_id": number, **of}},
            {"CLOSE_CONSUMER": {"topic": topic, "connection": connection, "consumer_id": number}},
        ]
    setup += [admin() for _ in range(random.randrange(2))]
    first, second = topics
    clients: dict[str, Any] = {
        "p": [{"PUBLISH": {"topic": first, "key": "b"}}],
        "worker-1": [{"SUBSCRIBE": {"topic": first, **of}}, {"CLOSE_CONSUMER": {"topic": first}}],
        "worker-2": [{"SUBSCRIBE": {"topic": first, **of}}, {"FLOW": {"topic": first, "messagePermits": 5}}],
        "q": [{"PUBLISH": {"topic": second}}],
    }
    if random.random() < 0.3:
        clients["q"].append(admin())
    faults = random.choice([[], [admin()], ["RESTART"], [{"CONNECTION_LOST": "worker-2"}]])
    return {
        "settings": {"allowAutoTopicCreation": random.random() < 0.7}, "setup": setup, "clients": clients,
        "faults": faults, "time": random.choice([[], ["1s"]]),
    }  # fmt: skip


@given(random=st.randoms(use_true_random=False))
@settings(max_examples=examples(16), deadline=None)
def test_the_parts_of_a_scenario_violate_what_the_whole_violates(random: Random) -> None:
    scenario = scenario_of(connected(random))
    apart = violations(scenario)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "components", lambda whole: [whole])
        assert violations(scenario) == apart


def named(random: Random) -> dict[str, Any]:
    """Two clients that do the same, and one whose steps may be about one of them."""
    type_ = random.choice(["Shared", "Exclusive"])
    subscribe: dict[str, Any] = {"SUBSCRIBE": {"subscription": "s", "subType": type_}}
    which = random.choice(["w1", "w2", "w2"])
    first = {"ACK": {"connection": which, "message_id": "newest"}}
    unload = {"ADMIN": {"method": "PUT", "path": "{topic}/unload"}}

    def step() -> Any:
        ids = random.choice(["oldest", *[[{"ledgerId": 1, "entryId": entry}] for entry in (1, 2, 3)]])
        return random.choice([
            *[{"ACK": {"connection": which, "message_id": ids}}] * 9,
            {"CONNECTION_LOST": which},
            {"CONNECTION_LOST": {"connection": "", "prefix": which}},
            {"CLOSE_CONSUMER": {"connection": which}},
            {"REDELIVER_UNACKNOWLEDGED_MESSAGES": {"connection": which}},
            {"PUBLISH": {"producer": which}},
            unload,
        ])  # fmt: skip

    after = [
        {name: {"connection": "w3", **body}}
        for name, body in [*subscribe.items(), ("FLOW", {"messagePermits": 9})]
    ]
    worker = [subscribe, {"FLOW": {"messagePermits": random.choice([1, 9])}}]
    return {
        "settings": {"managedLedgerMaxUnackedRangesToPersist": random.choice([0, 10])},
        "setup": [*setup("Shared"), {"PUBLISH": {"times": 5}}],
        "clients": {"w1": worker, "w2": worker, "third": [first, *(step() for _ in range(random.randrange(1, 4))), unload, *after]},
    }  # fmt: skip


@given(seed=st.integers(0, 1 << 30))
@example(seed=50)  # acks of the second worker by somebody else
@settings(max_examples=examples(40), deadline=None)
def test_symmetry_makes_no_difference_to_what_is_violated(seed: int) -> None:
    document = named(Random(seed))
    assert violations(scenario_of(document)) == violations(scenario_of({**document, "symmetry": False}))


@pytest.mark.parametrize(
    "step",
    [
        {"CONNECTION_LOST": "b"},
        {"CONNECTION_LOST": {"connection": "", "prefix": "b"}},
        {"CLOSE_CONSUMER": {"connection": "b"}},
        {"PUBLISH": {"producer": "b"}},
        {"SUBSCRIBE": {**SUBSCRIBE["SUBSCRIBE"], "consumer_name": "b"}},
    ],
)
def test_a_client_that_another_one_names_is_not_like_any_other(step: Any) -> None:
    def after(*steps: Any) -> Any:
        clients = {"a": WORKER, "b": WORKER, "third": ["PUBLISH", *steps]}
        return scenario_of({"clients": clients}).actors[1].after

    assert after() == 0
    assert after(step) is None


def test_acks_that_name_one_of_two_workers() -> None:
    subscribe, flow = {"subscription": "s", "subType": "Exclusive"}, {"messagePermits": 10}
    ids: list[Any] = ["newest", *([{"ledgerId": 1, "entryId": entry}] for entry in (2, 1))]
    worker = [{"SUBSCRIBE": subscribe}, {"FLOW": flow}]
    acker = [
        *({"ACK": {"connection": "w2", "message_id": each}} for each in ids),
        {"ADMIN": {"method": "PUT", "path": "{topic}/unload"}},
        {"SUBSCRIBE": {"connection": "w3", **subscribe}},
        {"FLOW": {"connection": "w3", **flow}},
    ]
    document = {
        "settings": {"managedLedgerMaxUnackedRangesToPersist": 0}, "setup": [*setup("Shared"), {"PUBLISH": {"times": 5}}],
        "clients": {"w1": worker, "w2": worker, "acker": acker},
    }  # fmt: skip
    assert found(document).keys() == {"redelivered"}


# ---- entries of deleted ledgers

TRIMMED: dict[str, Any] = {
    "settings": {"managedLedgerMaxEntriesPerLedger": 2, "managedLedgerMinLedgerRolloverTimeMinutes": 0},
    "clients": {"p": [{"PUBLISH": {"times": 2}}], "r": [{"SUBSCRIBE": {**SUBSCRIBE["SUBSCRIBE"], "initialPosition": "Earliest"}}]},
    "faults": ["RESTART", {"ADMIN": {"method": "GET", "path": "{topic}/stats"}}],
}  # fmt: skip


def test_what_is_deleted_before_a_subscription_exists_is_not_lost() -> None:
    assert not found(TRIMMED)


def test_what_is_deleted_before_a_subscription_goes_back_to_the_beginning_is_not_lost() -> None:
    seek = {"SEEK": {"message_id": {"ledgerId": 0, "entryId": 0}}}
    ack = {"ACK": {"ack_type": "Cumulative", "message_id": "newest"}}
    subscribe = {"SUBSCRIBE": {"subscription": "s", "subType": "Exclusive", "initialPosition": "Earliest"}}
    client = [subscribe, {"FLOW": {"messagePermits": 5}}, {"PUBLISH": {"times": 2}}, ack, seek]
    assert not found(
        {
            **TRIMMED,
            "clients": {"r": client},
            "faults": [*TRIMMED["faults"], {"RUN_CHECK": {"check": "consumedLedgers"}}],
        }
    )


# ---- steps that a log can't have


@pytest.mark.parametrize(
    ("client", "more", "said"),
    [
        ([{"PUBLISH": {"sequence_id": -7}}], {}, "a, step 1: PUBLISH: sequence_id is -7: expected at least 0"),
        ([WORKER[0], {"FLOW": {"consumer_id": -1, "messagePermits": 1}}], {}, "a, step 2: FLOW: consumer_id is -1"),
        ([{"PUBLISH": {"deliver_at_time": 2**63 - 1}}], {}, "a, step 1: PUBLISH: Expected `int`"),
        # What the time makes too large.
        ([{"PUBLISH": {"deliver_at_time": 2**63 - 1 - START}}], {"time": ["9999999d"]}, "a, step 1: PUBLISH: Expected"),
        ([{"PUBLISH": {"deliver_at_time": 2**63 - 1 - START}}], {"time": ["999999999d"] * 240}, "a, step 1: PUBLISH: "),
        (["PUBLISH"], {"setup": [{"PUBLISH": {"sequence_id": -1}}]}, "setup, step 1: PUBLISH: sequence_id is -1"),
        (["PUBLISH"], {"faults": [{"PUBLISH": {"sequence_id": -1}}]}, "faults, step 1: PUBLISH: sequence_id is -1"),
    ],
)  # fmt: skip
def test_a_step_that_the_gate_refuses_is_a_mistake(client: list[Any], more: Any, said: str) -> None:
    with pytest.raises(ScenarioError) as failed:
        scenario_of({"clients": {"a": client}, **more})
    assert str(failed.value).startswith(said)


def test_a_step_that_is_never_possible_is_named() -> None:
    checked = check(scenario_of({"clients": {"a": [*WORKER]}}))
    assert checked.never == ["a: ACK, step 3"]
    assert checked.ends == 1


def test_what_delivery_times_and_limits_hold_back_is_not_starved() -> None:
    send = ["PRODUCER", {"SEND": {"deliver_after": "1h"}}, {"SEND": {"key": "k"}}]
    document = {
        "setup": setup("Shared"),
        "clients": {"p": send, "a": [*WORKER[:2], {"FLOW": {"messagePermits": 5}}]},
    }
    assert not found(document)
    assert not found({**document, "settings": {"maxUnackedMessagesPerConsumer": 1}})


def test_a_seek_is_a_reset() -> None:
    seek = {"SEEK": {"message_id": {"ledgerId": 2**64 - 1, "entryId": 2**64 - 1}}}
    document = {
        "setup": setup("Shared"),
        "clients": {"p": [{"PUBLISH": {"times": 2}}], "a": [*WORKER, seek, *WORKER[:2]]},
    }
    checked = check(scenario_of(document))
    assert not checked.counterexamples
    assert checked.never == []


def test_what_a_rule_takes_is_not_lost() -> None:
    path = "{topic}/subscription/s/skip/1"
    assert not found(
        small(
            faults=[{"ADMIN": {"method": "POST", "path": path}}],
            settings={"ttlDurationDefaultInSeconds": 1},
            time=["10m"],
        )
    )


def test_the_command_prints_what_the_function_returns(tmp_path: Path) -> None:
    path = SCENARIOS / "key_shared.yaml"
    ran = CliRunner().invoke(
        app, ["check", str(path), "--processes", "1", "--json", "--to", str(tmp_path / "found")]
    )
    assert ran.exit_code == 1
    assert json.loads(ran.stdout) == json.loads(to_json(check(read_scenario(path))))
    assert [each.name for each in (tmp_path / "found").iterdir()] == ["starved.jsonl"]


def test_the_broker_of_a_world_gets_the_commands_of_the_log() -> None:
    """The search applies decoded commands: they are what the log decodes to."""
    (example,) = check(read_scenario(SCENARIOS / "key_shared.yaml")).counterexamples
    for record in example.records:
        assert json.loads(json.dumps(record.command)) == record.command
        decode(json.dumps(record.command).encode())
    assert isinstance(World(read_scenario(SCENARIOS / "key_shared.yaml").config).broker, Broker)


@pytest.mark.parametrize(
    ("written", "meant"), [("2.10", "2.10"), ("4.0", "4.0"), ("'3.0'", "3.0"), ("4.x", "4.x")]
)
def test_a_profile_needs_no_quotes(written: str, meant: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(f"profile: {written}\nclients: {{a: [PUBLISH]}}\n")
    assert read_scenario(tmp_path / "s.yaml").config.profile == meant


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "expected names with values"),
        ({}, "nothing happens"),
        ({"wings": 1}, "wings: expected clients"),
        ({"clients": {"a": "ACK"}}, "clients, a: expected a list"),
        ({"clients": {"a": ["FLY"]}}, "a, step 1: FLY is not a command"),
        ({"clients": {"a": [{"FLOW": 1}]}}, "a, step 1: expected names with values"),
        ({"clients": {"a": [{"FLOW": {}}]}}, "a, step 1: Object missing required field `messagePermits`"),
        ({"clients": {"a": [{"FLOW": {}, "ACK": {}}]}}, "expected one command"),
        ({"clients": {"a": ["SEND"]}}, "which no PRODUCER before it creates"),
        ({"clients": {"a": [{"ACK": {"message_id": "best"}}]}}, "best entries: expected oldest, newest, all"),
        ({"clients": {"a": [{"PUBLISH": {"times": 0}}]}}, "times is 0"),
        (
            {"clients": {"a": [{"PUBLISH": {"times": 200}}, {"PUBLISH": {"times": 200}}]}},
            "more than 250 steps",
        ),
        ({"settings": {"wings": 2}}, "unknown broker settings: wings"),
        ({"profile": "3.x"}, "profile and settings: Invalid enum value '3.x'"),
        ({"time": ["soon"]}, "time, step 1: 'soon': expected a number and a unit"),
        # What would be a scenario in which nothing goes wrong, because nothing happens.
        ({"topic": "a/b", "clients": {"a": ["PUBLISH"]}}, "topic: 'a/b' is not the name of a topic"),
        ({"topic": "", "clients": {"a": ["PUBLISH"]}}, "topic: '' is not the name of a topic"),
        ({"clients": {"a": [{"PUBLISH": {"topic": 7}}]}}, "a, step 1: 7 is not the name of a topic"),
        ({"symmetry": "maybe", "clients": {"a": ["PUBLISH"]}}, "symmetry is 'maybe': expected true or false"),
        (
            {"setup": [{"CLOSE_CONSUMER": {"connection": "b"}}], "clients": {"a": [SUBSCRIBE]}},
            "setup, step 1: nothing is opened on the connection 'b': expected a",
        ),
        (
            {"clients": {"a": [SUBSCRIBE]}, "faults": [{"CONNECTION_LOST": "b"}]},
            "faults, step 1: nothing is opened on the connection 'b'",
        ),
        (
            {"clients": {"a": ["ACK"]}},
            "a, step 1: nothing is opened on the connection 'a': expected a SUBSCRIBE",
        ),
        (
            {"clients": {"a": [{"ADMIN": {"method": "PUT", "path": "{topc}/unload"}}]}},
            "{topc}/unload: only {topic} is a placeholder",
        ),
    ],
)
def test_mistakes_in_scenarios(document: Any, said: str) -> None:
    with pytest.raises(ScenarioError) as error:
        scenario_of(document)
    assert said in str(error.value)


def test_a_file_that_is_not_yaml(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("clients: [")
    with pytest.raises(ScenarioError, match=": line .*: this is not YAML"):
        read_scenario(tmp_path / "s.yaml")
    (tmp_path / "s.yaml").write_text("clients:\n\ta: []\n")
    with pytest.raises(ScenarioError, match="line 2: this is not YAML: .*: indent with spaces$"):
        read_scenario(tmp_path / "s.yaml")


@pytest.mark.parametrize(
    ("name", "violated"),
    [
        ("key_shared", ["starved"]), ("acks_and_unloads", ["redelivered"]), ("shared", []), ("terminated", []),
        ("classic_key_shared", []),
    ],
)  # fmt: skip
def test_what_the_documentation_says_of_a_scenario(name: str, violated: list[str]) -> None:
    checked = check(read_scenario(SCENARIOS / f"{name}.yaml"))
    assert [each.violation.invariant for each in checked.counterexamples] == violated
    assert checked.complete


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ([], 0, "No invariant is violated.\n"),
        (["--max-states", "10"], 3, "No invariant is violated in what was explored.\n"),
    ],
)
def test_the_exit_code_tells_whether_every_order_was_explored(
    options: list[str], code: int, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(json.dumps(small()))
    ran = CliRunner().invoke(app, ["check", str(path), "--processes", "1", *options])
    assert ran.exit_code == code, ran.output
    assert ran.output.endswith(said)


# ---- a topic on which nothing can be checked

CLIENTS: dict[str, Any] = {"p": [{"PUBLISH": {}}], "w": [*WORKER]}
ABSENT = "persistent://no/such/orders"
UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    "no namespace": ({"topic": ABSENT, "settings": {"namespacesMustExist": True}, "clients": CLIENTS}, ABSENT),
    "no clients": ({"topic": "orders", "clients": {"w": [{"ADMIN": {"method": "PUT", "path": "{topic}/unload"}}]}}, "persistent://public/default/orders"),
    "one of two": (
        {"settings": {"namespacesMustExist": True}, "setup": [
            {"ADMIN": {"method": "PUT", "path": "/tenants/public", "body": {"adminRoles": [], "allowedClusters": ["standalone"]}}},
            {"ADMIN": {"method": "PUT", "path": "/namespaces/public/default"}},
        ], "clients": {"p": [{"PUBLISH": {}}], "q": [{"PUBLISH": {"topic": ABSENT}}]}}, ABSENT,
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", UNUSABLE)
@pytest.mark.parametrize("processes", [1, 2])
def test_a_topic_on_which_everything_is_refused_is_no_success(
    way: str, processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "_ALONE", 1)
    document, topic = UNUSABLE[way]
    with pytest.raises(
        ScenarioError, match=f"^nothing was checked on topic {topic}: .* refuses all .* such as '.+'"
    ):
        check(scenario_of(document), processes=processes)
    (tmp_path / "s.yaml").write_text(json.dumps(document))
    ran = CliRunner().invoke(app, ["check", str(tmp_path / "s.yaml")])
    assert (ran.exit_code, ran.stderr.count("\n"), ran.stdout) == (2, 1, "")
    assert ran.stderr.startswith("magnetar: nothing was checked on topic ")


def test_what_is_refused_beside_what_is_done_is_a_success() -> None:
    """A client that is refused is part of many scenarios, and so is a call before there is a topic."""
    document = {
        "topic": "orders", "settings": {"maxProducersPerTopic": 1}, "setup": [{"ADMIN": {"method": "PUT", "path": "{topic}/unload"}}],
        "clients": {name: [{"PRODUCER": {}}, {"SEND": {}}] for name in ("a", "b")},
    }  # fmt: skip
    checked = check(scenario_of(document))
    assert checked.complete
    assert not checked.counterexamples


def test_a_search_that_stops_early_says_nothing_of_it() -> None:
    checked = check(scenario_of(UNUSABLE["no namespace"][0]), most_states=1)
    assert not checked.complete


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            {"topic": "orders", "clients": {"p": [{"PUBLISH": {"topic": "order"}}]}},
            "topic: no step is about persistent://public/default/orders",
        ),
        ({"topic": "orders", "time": ["1s"]}, "topic: no step is about persistent://public/default/orders"),
        (
            {
                "clients": {
                    "p": [{"ADMIN": {"method": "GET", "path": "/persistent/pub%20lic/default/t/stats"}}]
                }
            },
            "p, step 1: /persistent/pub%20lic/default/t/stats: Invalid named entity: pub%20lic",
        ),
    ],
)
def test_a_topic_that_no_step_names_or_that_can_not_be(document: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError) as failed:
        scenario_of(document)
    assert str(failed.value).startswith(said)
