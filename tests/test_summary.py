"""What a replay says at its end: every kind of failure with its number and a reason, in a bounded number of sentences."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from schemas.records import RECORD
from sinks.tables import TABLES, read_table
from streaming.cli.app import app
from streaming.jobs.replay import ReplayResult, replay_in_process
from streaming.jobs.summary import SHOWN, what_happened
from streaming.log.table import LOGICAL, log_table
from tests.state.lives import lives

START = 1_767_225_600_000
T = "persistent://a/b/t"
N = "non-persistent://a/b/t"

Record = tuple[str | None, dict[str, Any]]


def replay(out: Path, *records: Record, partitions: int = 4) -> ReplayResult:
    log = log_table(
        LOGICAL,
        timestamp=[START + 1000 * second for second in range(len(records))],
        topic=[topic for topic, _ in records],
        value=[json.dumps(command).encode() for _, command in records],
    )
    return replay_in_process(log, out, partitions=partitions)


def sentences(result: ReplayResult) -> list[str]:
    return what_happened(result.out / "tables", copied=result.copied > 0)


def config(**settings: Any) -> Record:
    return None, {"command": "BROKER_CONFIG", "settings": settings}


def admin(path: str, body: Any, topic: str | None = None) -> Record:
    return topic, {"command": "ADMIN", "method": "POST", "path": path, "body": body}


def publish(sequence_id: int, topic: str = T) -> Record:
    return topic, {"producer": "p", "sequence_id": sequence_id, "payload": "x" * 40}


def subscribe(name: str, consumer: int = 0, type_: str = "Shared") -> Record:
    return T, {"command": "SUBSCRIBE", "connection": f"c{consumer}", "consumer_id": consumer, "request_id": 1,
               "subscription": name, "subType": type_, "initialPosition": "Earliest"}  # fmt: skip


def check(name: str) -> Record:
    return None, {"command": "RUN_CHECK", "check": name}


def test_nothing(tmp_path: Path) -> None:
    assert sentences(replay(tmp_path, publish(0))) == ["Nothing was refused, expired, evicted or trimmed."]


def test_a_record_that_is_not_a_command(tmp_path: Path) -> None:
    (sentence,) = sentences(replay(tmp_path, (T, {"command": "NOPE"}), (None, {"command": "NOPE"})))
    assert sentence.startswith("2 records were quarantined by rule '")


def test_refused_publishes_and_closed_producers(tmp_path: Path) -> None:
    quota = {"limitSize": 50, "policy": "producer_exception"}
    result = replay(
        tmp_path,
        config(),
        admin("/namespaces/a/b/backlogQuota", quota),
        subscribe("s"),
        publish(0),
        publish(1),
        check("backlogQuota"),
        publish(2),
        publish(3),
    )
    assert sentences(result) == [
        (
            "2 publishes were refused with ProducerBlockedQuotaExceededException: Cannot create producer on topic with backlog "
            "quota exceeded."
        ),
        (
            "1 producer was closed by the broker: backlog quota exceeded: producer_exception destination_storage 50 B "
            "(namespace)."
        ),
    ]


def test_refused_requests_and_closed_connections(tmp_path: Path) -> None:
    send = {"command": "SEND", "connection": "w", "producer_id": 7, "sequence_id": 0, "payload": "x",
            "metadata": {"producer_name": "p", "sequence_id": 0, "publish_time": START}}  # fmt: skip
    assert sentences(
        replay(tmp_path, subscribe("s", 0, "Exclusive"), subscribe("s", 1, "Exclusive"), (T, send))
    ) == [
        "1 request was refused with ConsumerBusy: Exclusive consumer is already connected.",
        "1 connection was closed by the broker: SEND for producer 7, which this connection has not created.",
    ]


def test_expired_evicted_and_trimmed(tmp_path: Path) -> None:
    quota = {"limitSize": 100, "policy": "consumer_backlog_eviction"}
    small = {"managedLedgerMaxEntriesPerLedger": 2, "managedLedgerMinLedgerRolloverTimeMinutes": 0}
    result = replay(
        tmp_path,
        config(brokerDeduplicationEnabled=True, **small),
        subscribe("s"),
        *map(publish, range(6)),
        publish(5),
        admin("/namespaces/a/b/backlogQuota", quota),
        check("backlogQuota"),
        admin("/namespaces/a/b/messageTTL", 1),
        check("messageExpiry"),
        check("consumedLedgers"),
    )
    assert sentences(result) == [
        "1 message was a duplicate and not stored again: the sequence id had been persisted before.",
        "2 entries expired for 's' of a/b/t: messageTTL 1 s (namespace).",
        *(
            f"4 entries were evicted for '{name}' of a/b/t: consumer_backlog_eviction destination_storage 100 B (namespace)."
            for name in ("pulsar.dedup", "s")
        ),
        (
            "2 ledgers were trimmed (4 entries, 248 bytes): no subscription needed them, and they were beyond the retention "
            "of 0 min, 0 MB (broker)."
        ),
    ]


def test_messages_that_a_non_persistent_topic_dropped_are_not_duplicates(tmp_path: Path) -> None:
    faults: list[Record] = [(N, {"command": "FAULT", "fault": "DelayWrites", "count": 1}),
                            (N, {"command": "FAULT", "fault": "LoseWrites"})]  # fmt: skip
    assert sentences(replay(tmp_path, faults[0], publish(0, N), faults[1])) == [
        "1 message of a non-persistent topic was dropped: lost in flight."
    ]


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_record_that_is_copied_to_every_partition_counts_once(tmp_path: Path, partitions: int) -> None:
    bad = admin("/namespaces/a/b/noSuchPolicy", 1)
    result = replay(tmp_path, config(), bad, *map(publish, range(7)), partitions=partitions)
    assert result.records == 9
    assert result.copied == (2 if partitions > 1 else 0)
    assert result.rows["ADMIN_RESPONSE"] == partitions
    call = "POST /namespaces/a/b/noSuchPolicy"
    assert sentences(result) == [
        f"1 command was not carried out in full: admin call {call} is not supported.",
        f"1 admin call was refused with HTTP status 404: {call}.",
    ]


def test_a_result_with_ten_thousand_groups_gets_few_sentences(tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(300)]
    result = replay(
        tmp_path,
        *(subscribe(name, place) for place, name in enumerate(names)),
        publish(0),
        admin("/namespaces/a/b/messageTTL", 1),
        check("messageExpiry"),
        *((f"persistent://a/b/{name}", {"command": "SUBSCRIBE"}) for name in names),
    )
    found = sentences(result)
    assert len(found) <= (SHOWN + 1) * len(TABLES)
    expired = [each for each in found if "expired" in each]
    assert expired[:-1] == [
        f"1 entry expired for '{name}' of a/b/t: messageTTL 1 s (namespace)."
        for name in sorted(names)[:SHOWN]
    ]
    assert expired[-1] == f"{300 - SHOWN} entries expired for {300 - SHOWN} other subscriptions."


def moved(life: Any, partition: int) -> Iterator[tuple[int, str | None, bytes]]:
    """The records of a life with topics of their own in an ingress partition."""
    for timestamp, topic, value in [*life.before, *life.after]:
        yield timestamp, topic and f"{topic}-{partition}", value


def test_the_numbers_are_those_of_the_tables(tmp_path: Path) -> None:
    """In varied traffic, no row of a failure is left out, and none counts twice."""
    of_partitions = {
        name: life for name, life in lives().items() if name != "transacted"
    }  # needs to be alone
    rows = [
        {"partition": partition, "offset": offset, "timestamp": timestamp, "topic": topic, "value": value}
        for partition, life in enumerate(of_partitions.values())
        for offset, (timestamp, topic, value) in enumerate(moved(life, partition))
    ]
    result = replay_in_process(pa.Table.from_pylist(rows, RECORD), tmp_path)
    counted: Counter[str] = Counter()
    for sentence in sentences(result):
        number, what = sentence.split()[:2]
        counted[what] += int(number.replace(",", ""))
    tables = str(tmp_path / "tables")
    for kind, one, many in (
        ("QUARANTINED", "record", "records"),
        ("UNSUPPORTED", "command", "commands"),
        ("SEND_ERROR", "publish", "publishes"),
        ("ERROR", "request", "requests"),
        ("CLOSE_PRODUCER", "producer", "producers"),
        ("CLOSE_CONSUMER", "consumer", "consumers"),
        ("CLOSE_CONNECTION", "connection", "connections"),
        ("LEDGER_DELETED", "ledger", "ledgers"),
    ):
        assert counted[one] + counted[many] == result.rows.get(kind, 0), kind
    entries = sum(sum(read_table(tables, kind)["entries"].to_pylist()) for kind in ("EXPIRED", "EVICTED"))
    assert counted["entry"] + counted["entries"] == entries > 10
    assert sum(counted.values()) > 100


def test_the_command_prints_it(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(
        '{"command": "BROKER_CONFIG"}\n'
        + '{"topic": "persistent://a/b/t", "producer": "p", "sequence_id": 0}\n' * 2
    )
    done = CliRunner().invoke(app, ["replay", str(log), "--out", str(tmp_path / "out"), "--no-spark"])
    assert done.exit_code == 0
    assert re.search(
        r"^3 records \(1 without a topic, copied to 4 partitions\) in ", done.output, re.MULTILINE
    )
    assert done.output.endswith(
        "\nWhat happened, and why:\n  Nothing was refused, expired, evicted or trimmed.\n"
    )
