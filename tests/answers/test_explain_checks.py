"""`magnetar explain --ttl`, `--inactive` and `--deduplication`: what checks do next, in words and as JSON. That they do it, the core's
tests say (`tests/broker/test_explained_checks.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streaming.answers.explain.checks import explain_deduplication, explain_expiry, explain_inactivity
from streaming.answers.explain.delivery import to_json
from streaming.cli.explained import expiry_lines, snapshots_lines
from tests.answers.test_explain import Record, T, create, folders, policy, publish, run, send, subscribe

CLOSE: Record = (T, {"command": "CLOSE_CONSUMER", "connection": "c0", "consumer_id": 0, "request_id": 2})
LOST: Record = (None, {"command": "CONNECTION_LOST", "connection": "c"})


def at(second: int) -> str:
    """A time as answers show it."""
    return f"2026-01-01 00:{second // 60:02}:{second % 60:02}.000"


def test_what_ttl_expires_next(tmp_path: Path) -> None:
    log = folders(
        tmp_path, policy("messageTTL", 60), subscribe(), publish(0), publish(1), subscribe("young", 1, initialPosition="Latest"),
        messageExpiryCheckIntervalInMinutes=1,
    )  # fmt: skip
    found = explain_expiry(log, T)
    assert run(tmp_path, T, "--ttl", "--json") == (0, to_json([found]) + "\n")
    code, text = run(tmp_path, T, "--ttl")
    assert (code, text) == (0, f"""{T}, message TTL: next, 2 entries of s at {at(120)}
  at {at(5)}
  next check at {at(60)}
  messageTTL 60 s (namespace)
  s: too young: its oldest unacknowledged entry is not older than the TTL
    1:0 was published at {at(3)} (2 s ago)
    expires 2 entries at {at(120)}, from 1:-1 to 1:1
  young: nothing to expire: no entry is unacknowledged
""")  # fmt: skip
    found.unknown.append("something")
    assert [*expiry_lines(found)][-1] == "  not known: something"


def test_ttl_that_is_off_or_expires_nothing(tmp_path: Path) -> None:
    folders(tmp_path / "off", publish(0))
    assert run(tmp_path / "off", T, "--ttl")[1] == f"{T}, message TTL: off (messageTTL is 0, broker)\n"
    many = [subscribe(f"s{number}", number) for number in range(25)]
    folders(tmp_path / "on", policy("messageTTL", 5), publish(0, publish_time=1_767_225_700_000), *many)
    text = run(tmp_path / "on", T, "--ttl")[1]
    assert text.startswith(f"{T}, message TTL: nothing expires in sight\n")
    assert "  not checked: its interval is 0\n" in text
    assert f"    1:0 was published at {at(100)}\n" in text
    assert text.endswith("  and 5 more: --json has them\n")


INACTIVE: dict[str, Any] = {
    "brokerDeleteInactiveTopicsFrequencySeconds": 60,
    "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": 90,
    "subscriptionExpiryCheckIntervalInMinutes": 1,
}


def test_when_what_nobody_uses_is_deleted(tmp_path: Path) -> None:
    log = folders(tmp_path, subscribe(), CLOSE, policy("subscriptionExpirationTime", 2), **INACTIVE)
    assert run(tmp_path, T, "--inactive", "--json") == (0, to_json([*explain_inactivity(log, T)]) + "\n")
    code, text = run(tmp_path, T, "--inactive")
    assert (code, text) == (0, f"""{T}, inactive topic: in use (it has subscriptions: s)
  at {at(3)}
  next check at {at(60)}
  delete_when_no_subscriptions, after 90 s (broker)

{T}, inactive subscriptions: 1 of 1 unused
  at {at(3)}
  next check at {at(60)}
  subscriptionExpirationTime 2 min (namespace)
  s: unused (no consumer), last used at {at(2)}, deleted at {at(180)}
""")  # fmt: skip


def test_a_topic_that_is_deleted_soon_and_one_that_never_is(tmp_path: Path) -> None:
    created: Record = (
        T,
        {"command": "ADMIN", "method": "PUT", "path": f"/persistent/{T.partition('://')[2]}"},
    )
    folders(tmp_path / "soon", created, **INACTIVE)
    assert (
        run(tmp_path / "soon", T, "--inactive")[1]
        == f"""{T}, inactive topic: unused (nobody uses it), deleted at {at(120)}
  at {at(1)}
  next check at {at(60)}
  delete_when_no_subscriptions, after 90 s (broker)
  last used at {at(1)}, kept for 90 s

{T}, inactive subscriptions: never deleted (subscriptionExpirationTime is 0, broker)
"""
    )
    folders(
        tmp_path / "kept",
        policy("retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}),
        create(),
        send(0),
        LOST,
        **INACTIVE,
    )
    text = run(tmp_path / "kept", T, "--inactive")[1]
    assert text.startswith(
        f"{T}, inactive topic: retention (nobody uses it, but its retention has no limit of time)\n"
    )
    assert f"  last used at {at(4)}\n" in text
    folders(tmp_path / "never", created, brokerDeleteInactiveTopicsEnabled=False)
    never = f"{T}, inactive topic: never deleted (brokerDeleteInactiveTopicsEnabled is false)\n"
    assert run(tmp_path / "never", T, "--inactive")[1].startswith(never)


DEDUPLICATED: dict[str, Any] = {
    "brokerDeduplicationEnabled": True,
    "brokerDeduplicationSnapshotFrequencyInSeconds": 60,
    "brokerDeduplicationMaxNumberOfProducers": 1,
    "brokerDeduplicationEntriesInterval": 3,
    "brokerDeduplicationProducerInactivityTimeoutMinutes": 3,
}


def test_what_deduplication_keeps_and_forgets(tmp_path: Path) -> None:
    log = folders(tmp_path, create(), send(4), publish(7), publish(8), publish(9), LOST, **DEDUPLICATED)
    found = explain_deduplication(log, T)
    assert run(tmp_path, T, "--deduplication", "--json") == (0, to_json([*found]) + "\n")
    code, text = run(tmp_path, T, "--deduplication")
    assert (code, text) == (0, f"""{T}, deduplication: Enabled
  at {at(6)}
  next check at {at(60)}
  last snapshot at {at(4)}: 1 producer, up to 1:2
  next snapshot: not yet (deduplicationSnapshotInterval has not passed since the last one), taken at {at(180)}
    deduplicationSnapshotInterval 120 s (broker), or after 2 entries
  a load reads 1 entry after the last snapshot
  an unload or a crash forgets nothing that is stored

{T}, absent producers: 2 to forget, 0 kept
  at {at(6)}
  next check at {at(60)}
  brokerDeduplicationProducerInactivityTimeoutMinutes 3
  p: silent since {at(5)}, sequence id 9, forgotten at {at(240)}
  q: inactive since {at(6)}, sequence id 4, forgotten at {at(240)}
""")  # fmt: skip


def test_what_a_load_would_change(tmp_path: Path) -> None:
    log = folders(tmp_path, create(), send(4), publish(7), publish(8), **DEDUPLICATED)
    found, _ = explain_deduplication(log, T)
    assert "  an unload or a crash changes the last sequence ids of p (8 → none)" in [*snapshots_lines(found)]
    found.written, found.crash, found.taken = False, [], None
    lines = [*snapshots_lines(found)]
    assert lines[3].startswith(
        "  last snapshot before the topic was loaded, or never: 1 producer, up to 1:2, held back by "
    )
    assert lines[-2:] == [
        "  an unload changes the last sequence ids of p (8 → none)", "  a crash forgets nothing that is stored"
    ]  # fmt: skip
    found.unload = found.unload * 25
    assert [*snapshots_lines(found)][-2].endswith("p (8 → none) and 5 more")


def test_deduplication_that_is_off(tmp_path: Path) -> None:
    folders(tmp_path / "off", subscribe())
    off = f"{T}, deduplication: off (broker)\n\n{T}, absent producers: none\n"
    assert run(tmp_path / "off", T, "--deduplication")[1] == off
    unload: Record = (
        T,
        {"command": "ADMIN", "method": "PUT", "path": f"/persistent/{T.partition('://')[2]}/unload"},
    )
    config: Record = (None, {"command": "BROKER_CONFIG", "settings": {"brokerDeduplicationEnabled": False}})
    folders(tmp_path / "soon", create(), send(4), config, **DEDUPLICATED)
    text = run(tmp_path / "soon", T, "--deduplication")[1]
    assert text.startswith(f"{T}, deduplication: Enabled, and off with the next load (broker)\n")
    assert "changes the last sequence ids of q (4 → none)" in text
    on: Record = (None, {"command": "BROKER_CONFIG", "settings": {"brokerDeduplicationEnabled": True}})
    folders(tmp_path / "later", publish(0), on)
    text = run(tmp_path / "later", T, "--deduplication")[1]
    assert text.startswith(f"{T}, deduplication: off, and on with the next load (broker)\n")
    folders(tmp_path / "kept", create(), send(4), unload, subscribe(), **DEDUPLICATED)
    text = run(tmp_path / "kept", T, "--deduplication")[1]
    assert text.endswith(
        "  1 producer known from the topic's entries alone: kept until they connect and leave\n"
    )


def test_without_a_topic_it_picks_one(tmp_path: Path) -> None:
    folders(tmp_path, publish(0))
    assert "because its backlog is the largest" in run(tmp_path, "--ttl")[1]
    assert "because it stores the most" in run(tmp_path, "--inactive", "--deduplication")[1]
