"""Tables that put every rule to the test, and commands to start from."""

import json
import random
from collections.abc import Mapping
from functools import cache
from typing import Any

import pyarrow as pa

from streaming.quality.gx import GreatExpectations
from streaming.quality.kernels import CompiledSuite
from streaming.quality.suites import Suite

TOPIC = "persistent://public/default/t"


@cache
def great_expectations() -> GreatExpectations:
    """One for all tests: its import takes seconds."""
    return GreatExpectations()


def edge_table(suite: Suite, types: Mapping[str, pa.DataType], rows: int = 100, seed: int = 7) -> pa.Table:
    """A table of values at, just within and just beyond the bounds of the suite's rules, with nulls."""
    dice = random.Random(f"{suite.name} {seed}")
    values: dict[str, list[Any]] = {name: [None] for name in suite.columns()}
    for each in suite.expectations:
        given = each.kwargs
        for name in (given[key] for key in ("column", "column_A", "column_B") if key in given):
            if pa.types.is_integer(types[name]):
                values[name] += [-1, 0, 1, 2, 10]
                for bound in (given.get("min_value"), given.get("max_value")):
                    if bound is not None:
                        values[name] += [bound - 1, bound, bound + 1]
            elif pa.types.is_string(types[name]):
                values[name] += ["", "x", "/x", "ümlaut", "x\n", "日本", *given.get("value_set", [])[:2]]
                if (most := given.get("max_value")) is not None:
                    values[name] += ["x" * most, "ü" * (most + 1)]
            else:
                values[name] += [b""]
    columns = {
        name: pa.array([dice.choice(values[name]) for _ in range(rows)], types[name]) for name in values
    }
    return pa.table(columns)


def flags(suite: CompiledSuite, table: pa.Table) -> dict[str, list[int]]:
    """The rows that break each rule: as the kernels see columns, which must be as they see the values of one row."""
    masks = suite.masks({name: table[name].combine_chunks() for name in suite.columns}, len(table))
    found = {
        rule.name: []
        if masks is None
        else [row for row, mask in enumerate(masks.tolist()) if mask >> bit & 1]
        for bit, rule in enumerate(suite.rules)
    }
    for rule in suite.rules:
        values = zip(*(table[name].to_pylist() for name in rule.columns), strict=True)
        assert found[rule.name] == [row for row, own in enumerate(values) if rule.breaks(*own)], rule.name
    return found


METADATA: dict[str, Any] = {"producer_name": "p", "sequence_id": 1, "publish_time": 1}
IDS = {"consumer_id": 1, "request_id": 1}
SCHEMA = {"name": "s", "schema_data": "", "type": "String"}
GOOD: dict[str, dict[str, Any]] = {
    "PUBLISH": {"producer": "p", "sequence_id": 1},
    "CONNECT": {},
    "CONNECTION_LOST": {},
    "PRODUCER": {"producer_id": 1, "request_id": 1, "schema": SCHEMA},
    "SEND": {"producer_id": 1, "sequence_id": 1, "metadata": METADATA},
    "CLOSE_PRODUCER": {"producer_id": 1, "request_id": 1},
    "SUBSCRIBE": {"subscription": "s", "subType": "Shared", **IDS},
    "FLOW": {"consumer_id": 1, "messagePermits": 1},
    "ACK": {"consumer_id": 1, "ack_type": "Individual", "message_id": [{"ledgerId": 1, "entryId": 0}]},
    "REDELIVER_UNACKNOWLEDGED_MESSAGES": {"consumer_id": 1},
    "UNSUBSCRIBE": IDS,
    "CLOSE_CONSUMER": IDS,
    "SEEK": {**IDS, "message_publish_time": 1},
    "GET_LAST_MESSAGE_ID": IDS,
    "PARTITIONED_METADATA": {"request_id": 1},
    "LOOKUP": {"request_id": 1},
    "GET_SCHEMA": {"request_id": 1},
    "GET_OR_CREATE_SCHEMA": {"request_id": 1, "schema": SCHEMA},
    "ADMIN": {"method": "GET", "path": "/persistent/public/default/t/stats"},
    "BROKER_CONFIG": {},
    "TICK": {},
    "RUN_CHECK": {"check": "messageExpiry"},
    "RESTART": {},
    "FAULT": {"fault": "FailWrites"},
    "MIRROR": {},
    "TC_CLIENT_CONNECT_REQUEST": {"request_id": 1, "tc_id": 0},
    "NEW_TXN": {"request_id": 1, "txn_ttl_seconds": 60000},
    "ADD_PARTITION_TO_TXN": {"request_id": 1, "partitions": ["persistent://public/default/t"]},
    "ADD_SUBSCRIPTION_TO_TXN": {
        "request_id": 1,
        "subscription": [{"topic": "persistent://public/default/t", "subscription": "s"}],
    },
    "END_TXN": {"request_id": 1},
}
"""A good command of each kind."""


def value(kind: str, **fields: Any) -> bytes:
    """A record's value: the good command of the kind, with other fields. A name as ``metadata__uuid`` is a path."""
    command: dict[str, Any] = json.loads(json.dumps(GOOD[kind]))
    if kind != "PUBLISH":
        command["command"] = kind
    for path, field in fields.items():
        target = command
        *parents, name = path.split("__")
        for parent in parents:
            target = target.setdefault(parent, {})
        target[name] = field
    return json.dumps(command).encode()
