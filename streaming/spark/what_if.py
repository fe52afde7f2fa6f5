"""Other policies over a recorded log: what would this TTL have done?

The policies are themselves a small log, of ADMIN and BROKER_CONFIG commands. They are *pinned*: they come before the
log's first record, at its timestamp, and what the log itself says about the same setting is left out.

Each record of the log keeps its offset, so that two outcomes can be compared row by row; the pinned commands have the
offsets −k … −1.
"""

from collections import defaultdict

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.commands import Admin, BrokerConfig, MalformedCommand, decode, to_binary
from schemas.records import RECORD
from streaming.log import LogError

Pin = tuple[str | None, Admin | BrokerConfig]


def pin(records: pa.Table, policies: pa.Table) -> pa.Table:
    """`records` (columns `RECORD`) under `policies` (as `streaming.log.read_log` gives them).

    * An ADMIN command goes to the partition of its topic, or without a topic to every partition. Commands of the log
      that change the same path (of the same topic) are left out.
    * A BROKER_CONFIG's settings (and its profile, if it names one) override those of every BROKER_CONFIG in the log.

    Raises `LogError` if a policy is neither.
    """
    pins = _pins(policies)
    if not pins or not len(records):
        return records
    config = _config(policies)
    paths = {(topic, command.path) for topic, command in pins if isinstance(command, Admin)}
    partition = records["partition"].to_numpy()
    starts = {int(p): int(np.argmax(partition == p)) for p in np.unique(partition)}

    keep = np.ones(len(records), bool)
    first: dict[int, BrokerConfig] = {}
    changed: dict[int, bytes] = {}
    mentioned = _mentions(records["value"], b"ADMIN") | _mentions(records["value"], b"BROKER_CONFIG")
    for row in np.flatnonzero(mentioned).tolist():
        value = records["value"][row].as_py()
        try:
            command = decode(value)
        except MalformedCommand:
            continue
        if isinstance(command, Admin):
            topic = records["topic"][row].as_py()
            keep[row] = command.method == "GET" or (topic, command.path) not in paths
        elif isinstance(command, BrokerConfig) and config is not None:
            command = _over(command, config)
            owner = int(partition[row])
            if starts[owner] == row:
                # The configuration must stay the partition's first command: it moves before the pinned ones.
                first[owner], keep[row] = command, False
            else:
                changed[row] = to_binary(command)
        elif isinstance(command, BrokerConfig) and starts[int(partition[row])] == row:
            first[int(partition[row])], keep[row] = command, False

    of_topic = _partitions(records, {topic for topic, _ in pins if topic is not None})
    front = []
    for owner, start in starts.items():
        commands: list[Pin] = []
        if owner in first:
            commands.append((None, first[owner]))
        elif config is not None:
            commands.append((None, _over(BrokerConfig(), config)))
        commands += [
            (topic, command)
            for topic, command in pins
            if isinstance(command, Admin) and (topic is None or owner in of_topic[topic])
        ]
        timestamp = records["timestamp"][start].as_py()
        front += [
            {"partition": owner, "offset": i - len(commands), "timestamp": timestamp, "topic": topic,
             "value": to_binary(command)}
            for i, (topic, command) in enumerate(commands)
        ]  # fmt: skip
    if changed:
        values = records["value"].to_pylist()
        for row, value in changed.items():
            values[row] = value
        records = records.set_column(
            RECORD.get_field_index("value"), RECORD.field("value"), pa.array(values, pa.binary())
        )
    return pa.concat_tables([pa.Table.from_pylist(front, RECORD), records.filter(pa.array(keep))])


def _pins(policies: pa.Table) -> list[Pin]:
    pins: list[Pin] = []
    for topic, value in zip(policies["topic"].to_pylist(), policies["value"].to_pylist(), strict=True):
        try:
            command = decode(value)
        except MalformedCommand as error:
            raise LogError(f"policies: {error} in {value[:80]!r}") from None
        if not isinstance(command, Admin | BrokerConfig):
            raise LogError(f"policies: {value[:80]!r} is neither an ADMIN nor a BROKER_CONFIG command")
        pins.append((topic, command))
    return pins


def _config(policies: pa.Table) -> dict[str, object] | None:
    """The settings and, if named, the profile of all BROKER_CONFIG commands, as one. A default isn't a wish."""
    merged: dict[str, object] | None = None
    settings: dict[str, object] = {}
    for value in policies["value"].to_pylist():
        if isinstance(decode(value), BrokerConfig):
            read = msgspec.json.decode if value[:1] == b"{" else msgspec.msgpack.decode
            fields = read(value)
            settings |= fields.get("settings", {})
            merged = (merged or {}) | {"settings": settings}
            if "profile" in fields:
                merged["profile"] = fields["profile"]
    return merged


def _over(command: BrokerConfig, config: dict[str, object]) -> BrokerConfig:
    wished = msgspec.convert({"command": "BROKER_CONFIG"} | config, BrokerConfig)
    profile = wished.profile if "profile" in config else command.profile
    return msgspec.structs.replace(command, profile=profile, settings=command.settings | wished.settings)


def _mentions(values: pa.ChunkedArray, word: bytes) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = pc.match_substring(values, word).to_numpy()
    return found


def _partitions(records: pa.Table, topics: set[str]) -> dict[str, set[int]]:
    """Where each topic's records are. (A topic that the log doesn't know is nowhere.)"""
    found: dict[str, set[int]] = defaultdict(set)
    chosen = records.filter(pc.is_in(records["topic"], pa.array(sorted(topics), pa.string())))
    for pair in (
        chosen.select(["topic", "partition"]).group_by(["topic", "partition"]).aggregate([]).to_pylist()
    ):
        found[pair["topic"]].add(pair["partition"])
    return found
