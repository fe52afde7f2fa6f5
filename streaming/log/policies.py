"""Other policies for a recorded log: what would this TTL have done?

The policies are themselves a small log of ADMIN and BROKER_CONFIG commands. They are *pinned*: they come before the log's
first record, with its timestamp, and commands in the log that change the same setting are left out.

The pinned commands take the first offsets. The log's own records move up by one number, `Pinned.shift`, which is the same
in all partitions: subtract it to compare two results row by row.
"""

from collections import defaultdict
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.commands import Admin, BrokerConfig, MalformedCommand, decode, to_binary
from schemas.records import RECORD
from streaming.log.table import LogError

Pin = tuple[str | None, Admin | BrokerConfig]


class Pinned(NamedTuple):
    """A log under other policies (columns `RECORD`). `shift`: how much higher offsets are than in the log itself."""

    records: pa.Table
    shift: int


def pin(records: pa.Table, policies: pa.Table) -> Pinned:
    """`records` (columns `RECORD`, offsets rising) under `policies` (a table that `streaming.log.files.read_log` returns).

    * An ADMIN command goes to the partition of its topic, or, without a topic, to every partition. Commands in the log that
      change the same path (of the same topic) are left out.
    * The settings of a BROKER_CONFIG (and its profile, if it has one) override those of every BROKER_CONFIG in the log.

    Raises `LogError` if a policy is neither.
    """
    pins = _pins(policies)
    if not pins or not len(records):
        return Pinned(records, 0)
    partition = records["partition"].to_numpy()
    starts = {int(p): int(np.argmax(partition == p)) for p in np.unique(partition)}
    kept, configs = _override(records, pins, _config(policies), set(starts.values()))
    of_topic = _partitions(records, {topic for topic, _ in pins if topic is not None})
    front: dict[int, list[Pin]] = {
        owner: [
            # A partition's configuration must stay its first command.
            *((None, configs[start]) for _ in range(start in configs)),
            *(
                (topic, command)
                for topic, command in pins
                if isinstance(command, Admin) and (topic is None or owner in of_topic[topic])
            ),
        ]
        for owner, start in starts.items()
    }
    shift = max(len(commands) for commands in front.values())
    rows = [
        {
            "partition": owner,
            "offset": records["offset"][starts[owner]].as_py() + place,
            "timestamp": records["timestamp"][starts[owner]].as_py(),
            "topic": topic,
            "value": to_binary(command),
        }
        for owner, commands in front.items()
        for place, (topic, command) in enumerate(commands)
    ]
    moved = kept.set_column(
        RECORD.get_field_index("offset"), RECORD.field("offset"), pc.add(kept["offset"], shift)
    )
    return Pinned(pa.concat_tables([pa.Table.from_pylist(rows, RECORD), moved]), shift)


def _override(
    records: pa.Table, pins: list[Pin], config: dict[str, Any] | None, starts: set[int]
) -> tuple[pa.Table, dict[int, BrokerConfig]]:
    """The log without what `pins` override, and the configuration with which each partition begins, by its first row:
    the log's own or the default, with `config` applied."""
    paths = {(topic, command.path) for topic, command in pins if isinstance(command, Admin)}
    keep = np.ones(len(records), bool)
    configs = {start: _over(BrokerConfig(), config) for start in starts} if config is not None else {}
    values: list[bytes] | None = None
    mentioned = _mentions(records["value"], b"ADMIN") | _mentions(records["value"], b"BROKER_CONFIG")
    for row in np.flatnonzero(mentioned).tolist():
        value = records["value"][row].as_py()
        try:
            command = decode(value)
        except MalformedCommand:
            continue
        if isinstance(command, Admin):
            overruled = (records["topic"][row].as_py(), command.path) in paths
            keep[row] = command.method == "GET" or not overruled
        elif isinstance(command, BrokerConfig):
            if row in starts:
                configs[row], keep[row] = _over(command, config), False
            elif config is not None:
                values = values or records["value"].to_pylist()
                values[row] = to_binary(_over(command, config))
    if values is not None:
        column = RECORD.get_field_index("value")
        records = records.set_column(column, RECORD.field("value"), pa.array(values, pa.binary()))
    return records.filter(pa.array(keep)), configs


def _pins(policies: pa.Table) -> list[Pin]:
    pins: list[Pin] = []
    for topic, value in zip(policies["topic"].to_pylist(), policies["value"].to_pylist(), strict=True):
        try:
            command = decode(value)
        except MalformedCommand as error:
            raise LogError(f"policies: {error} in {value[:80].decode(errors='replace')!r}") from None
        if not isinstance(command, Admin | BrokerConfig):
            raise LogError(
                f"policies: {value[:80].decode(errors='replace')!r} is neither an ADMIN nor a BROKER_CONFIG command"
            )
        pins.append((topic, command))
    return pins


def _config(policies: pa.Table) -> dict[str, Any] | None:
    """The settings and, if given, the profile of all BROKER_CONFIG commands, combined. Defaults do not count as given."""
    merged: dict[str, Any] | None = None
    settings: dict[str, Any] = {}
    for value in policies["value"].to_pylist():
        if isinstance(decode(value), BrokerConfig):
            read = msgspec.json.decode if value[:1] == b"{" else msgspec.msgpack.decode
            fields = read(value)
            settings |= fields.get("settings", {})
            merged = (merged or {}) | {"settings": settings}
            if "profile" in fields:
                merged["profile"] = fields["profile"]
    return merged


def _over(command: BrokerConfig, config: dict[str, Any] | None) -> BrokerConfig:
    if config is None:
        return command
    wished = msgspec.convert({"command": "BROKER_CONFIG"} | config, BrokerConfig)
    profile = wished.profile if "profile" in config else command.profile
    return msgspec.structs.replace(command, profile=profile, settings=command.settings | wished.settings)


def _mentions(values: pa.ChunkedArray, word: bytes) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = pc.match_substring(values, word).to_numpy()
    return found


def _partitions(records: pa.Table, topics: set[str]) -> dict[str, set[int]]:
    """The partitions that have records of each topic; none for a topic that is not in the log."""
    found: dict[str, set[int]] = defaultdict(set)
    chosen = records.filter(pc.is_in(records["topic"], pa.array(sorted(topics), pa.string())))
    for pair in (
        chosen.select(["topic", "partition"]).group_by(["topic", "partition"]).aggregate([]).to_pylist()
    ):
        found[pair["topic"]].add(pair["partition"])
    return found
