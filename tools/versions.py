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


_OWN = ["persistent://public/txn_missing/t"]
_OF_THE_BROKER = [
    f"persistent://public/txn_missing/{name}" for name in ("__change_events", "__transaction_buffer_snapshot")
]

GAPS = {
    "2.10.5": {
        "txn_missing": Gap(
            "the topics in which a broker keeps policies and snapshots of transactions: Magnetar has both in its state, and no such topic",
            [
                (
                    "no such topic",
                    f"GET /persistent/public/txn_missing: : 3 recorded, 1 ours: {[*_OF_THE_BROKER, *_OWN]} / {_OWN}",
                )
            ],
        ),
        "dd_levels": Gap(
            "A31: whether a producer learns its last sequence id after a load is a race of the broker",
            [
                (
                    "reload",
                    "connection 0, producer 1: PRODUCER_SUCCESS .last_sequence_id: recorded -1, ours 40",
                )
            ],
        ),
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
            "a race of the broker: how many messages behind the last one that may stay it has sent when the compactor closes its consumer",
            [
                (step, f"stats.msgOutCounter: recorded {count}, ours {count + 1}")
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
