"""The recordings of real brokers of other versions (``tests/golden/versions``), and what is known to differ from them."""

import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

VERSIONS = sorted((Path(__file__).parents[1] / "tests" / "golden" / "versions").glob("*.jsonl.xz"))
"""The recordings of a broker of each version, one after the other, each with its header."""


class Gap(NamedTuple):
    """Why a recording is known to differ from its profile, and in what: each difference as (step, text), in order."""

    reason: str
    differences: list[tuple[str, str]]


def _sent_again(entry: int, ledger: int) -> str:
    id_ = {"ledgerId": ledger, "entryId": entry, "partition": -1}
    return f"MESSAGE {{'consumer_id': 0, 'message_id': {id_}, 'redelivery_count': 1}}"


_ACKED = "c0 acks what it has, redelivers none"


def _read_twice(count: int, step: str, ours: int) -> tuple[str, str]:
    return step, f"stats.msgOutCounter: recorded {count}, ours {ours}"


_READ_NO_MORE = "where a reader stands that asks for compacted data after that was lost: it passes the topic's own messages, too"

GAPS = {
    "2.10.5": {
        "dd_levels": Gap(
            "A31: whether a producer learns its last sequence id after a load is a race of the broker",
            [
                (
                    "reload",
                    "connection 0, producer 1: PRODUCER_SUCCESS .last_sequence_id: recorded -1, ours 40",
                )
            ],
        )
    },
    "3.0.7": {
        "ttl_unload": Gap(
            "D7: totalMsgExpired counts some entries twice, a race of the broker",
            [
                (step, "stats.subscriptions.s.totalMsgExpired: recorded 14, ours 12")
                for step in ("TTL 2 s", "send 2")
            ],
        ),
        "compaction_emptied": Gap(
            "how many of the messages that it has just deleted compaction reads once more",
            [
                _read_twice(count, step, count + 1)
                for count, step in (
                    (25, "10 delete the last"),
                    (25, "11 reader 4"),
                    (30, "12 one more"),
                    (30, "13 the end"),
                )
            ],
        ),
    },
    "4.2.4": {
        "compaction_emptied": Gap(
            "how many of the messages that it has just deleted compaction reads once more",
            [
                _read_twice(count, step, count - 1)
                for count, step in (
                    (6, "4 compact"),
                    (6, "5 reader"),
                    (12, "6 some"),
                    (18, "7 compact 2"),
                    (19, "8 reader 2"),
                    (19, "9 reader 3"),
                    (27, "10 delete the last"),
                    (27, "11 reader 4"),
                    (32, "12 one more"),
                    (32, "13 the end"),
                )
            ],
        ),
        "raw_chunks_resend": Gap(
            "a race of the broker: whether a first chunk is sent again",
            [
                (_ACKED, "stats.msgOutCounter: recorded 19, ours 20"),
                *(
                    (_ACKED, f"connection 1, consumer 0: recorded {_sent_again(entry, 59)}, ours has none")
                    for entry in (4, 6)
                ),
                *(
                    (_ACKED, f"connection 0, consumer 0: ours {_sent_again(entry, 1)}, recorded has none")
                    for entry in (4, 6, 7)
                ),
                *(
                    (
                        "end: close clients",
                        f"connection 1, consumer 0: ours {_sent_again(entry, 1)}, recorded has none",
                    )
                    for entry in (4, 3)
                ),
            ],
        ),
        "compaction_policies": Gap(
            _READ_NO_MORE, [("11 reader 2", "internal.cursors.r2.readPosition: recorded '48:0', ours '1:0'")]
        ),
        "compaction_trimmed": Gap(
            _READ_NO_MORE,
            [
                (step, "internal.cursors.r8.readPosition: recorded '62:0', ours '5:0'")
                for step in ("22 reader 4", "23 the end")
            ],
        ),
    },
    "5.0.0-M1": {},
}
"""What is known to differ (docs/rules/versions.md), by version and scenario."""


def recordings() -> Iterator[tuple[str, str, str]]:
    """Version, scenario, and the lines of each trace."""
    for path in VERSIONS:
        _, *traces = lzma.decompress(path.read_bytes()).decode().split('{"format":')
        for trace in traces:
            scenario = trace.partition('"scenario":"')[2].partition('"')[0]
            yield path.name.removesuffix(".jsonl.xz"), scenario.removeprefix("n_"), '{"format":' + trace
