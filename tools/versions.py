"""The recordings of real brokers of other versions (``tests/golden/versions``), and what is known to differ from them."""

import lzma
from collections.abc import Iterator
from pathlib import Path

VERSIONS = sorted((Path(__file__).parents[1] / "tests" / "golden" / "versions").glob("*.jsonl.xz"))
"""The recordings of a broker of each version, one after the other, each with its header."""

GAPS = {
    "2.10.5": {
        "dd_levels": "A31: whether a producer learns its last sequence id after a load is a race of the broker"
    },
    "3.0.7": {"ttl_unload": "D7: totalMsgExpired counts some entries twice, a race of the broker"},
    "4.2.4": {"raw_chunks_resend": "a race of the broker: whether a first chunk is sent again"},
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
