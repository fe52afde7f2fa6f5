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
        )
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
        )
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
