"""What the sinks cost: ``python -m tests.sinks.measure``. One thread of a machine that nobody else uses, best of five.

62,500 publishes of 100 B: what one of 16 ingress partitions has in a micro-batch of a million.
"""

from collections.abc import Callable
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import pyarrow as pa

from schemas.outputs import SCHEMAS, Rows
from sinks import cache
from sinks.ledger_store import LedgerStore
from sinks.tables import TableSink

ROWS = 62_500


def receipts(topics: int, start: int = 0, rows: int = ROWS) -> Rows:
    """Receipts of entries in turn over the topics, ledger 1."""
    number = np.arange(start, start + rows)
    topic, entry = number % topics, number // topics
    names = pa.array([f"persistent://public/default/topic-{i}" for i in range(topics)])
    random = Random(1)
    user = (random.getrandbits(30) for _ in range(rows))
    payload = [b'{"user": %d, "page": "/products/%d", "time": %d}'.ljust(100) % (u, u % 999, i) for i, u in enumerate(user)]  # fmt: skip
    columns = {
        "partition": pa.array(np.zeros(rows, np.int32)),
        "offset": pa.array(number),
        "ordinal": pa.array(np.zeros(rows, np.int32)),
        "clock": pa.array(1_700_000_000_000 + number // 50),
        "topic": names.take(pa.array(topic)),
        "connection": pa.repeat("", rows),
        "producer_name": names.take(pa.array(topic)),
        "sequence_id": pa.array(entry),
        "ledger_id": pa.array(np.ones(rows, np.int64)),
        "entry_id": pa.array(entry),
        "size": pa.array(np.full(rows, 140)),
        "messages": pa.array(np.ones(rows, np.int32)),
        "publish_time": pa.array(1_700_000_000_000 + number // 50),
        "payload": pa.array(payload, pa.binary()),
    }
    schema = SCHEMAS["SEND_RECEIPT"]
    table = pa.table([columns.get(f.name, pa.nulls(rows, f.type)) for f in schema], schema=schema)
    return {"SEND_RECEIPT": table}


def closed(entries: int) -> Rows:
    row = {
        "partition": 0,
        "offset": entries,
        "ordinal": 0,
        "clock": 1,
        "topic": "persistent://public/default/topic-0",
        "ledger_id": 1,
        "entries": entries,
        "size": entries * 140,
    }
    return {"LEDGER_CLOSED": pa.Table.from_pylist([row], schema=SCHEMAS["LEDGER_CLOSED"])}


def seconds(work: Callable[..., object], *arguments: object, times: int = 5) -> float:
    taken = []
    for _ in range(times):
        begun = perf_counter()
        work(*arguments)
        taken.append(perf_counter() - begun)
    return min(taken)


def main() -> None:
    for topics in (1, 100, 1_000, 10_000):
        rows = receipts(topics)
        with TemporaryDirectory() as url:
            table = seconds(TableSink(url + "/t").write, 0, 0, rows)
            entries = seconds(LedgerStore(url + "/l").write, 0, 0, rows)
        print(
            f"write {ROWS} rows, {topics:6} topics: tables {table * 1e3:.0f} ms, entries {entries * 1e3:.0f} ms"
        )

    for topics in (100, 10_000):
        with TemporaryDirectory() as url:
            store = LedgerStore(url)
            taken = [
                seconds(store.write, batch, 0, receipts(topics, start=batch * ROWS), times=1)
                for batch in range(40)
            ]
        print(
            f"40 batches, {topics:6} topics, with merging: median {sorted(taken)[20] * 1e3:.0f} ms, "
            f"mean {sum(taken) * 25:.0f}, longest {max(taken) * 1e3:.0f}"
        )

    name = "persistent://public/default/topic-0"
    for what in ("a sealed ledger", "40 segments"):
        with TemporaryDirectory() as url:
            store, rows = LedgerStore(url), receipts(1, rows=50_000)
            if what == "40 segments":
                for batch in range(40):
                    own = {kind: table.slice(batch * 1250, 1250) for kind, table in rows.items()}
                    store.write(batch, 0, own)
            else:
                store.write(0, 0, {**rows, **closed(50_000)})
            cache.INDEXES.clear()
            cache.ROWS.clear()
            reader = store.reader(0)
            first = seconds(reader.read, name, 1, 25_000, 25_000, times=1)
            again = seconds(reader.read, name, 1, 25_001, 25_001, times=500)
            scan = seconds(reader.read, name, 1, 24_900, 24_999, times=500)
        print(
            f"50,000 entries in {what}: first point {first * 1e3:.1f} ms, then {again * 1e6:.0f} µs, "
            f"100 entries {scan * 1e6:.0f} µs"
        )


if __name__ == "__main__":
    main()
