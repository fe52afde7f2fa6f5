"""A log that is cut in two: its first part folded over some ingress partitions, the states spread over others, and the rest
folded there. What becomes of each topic is compared with the fold of the whole log over the new partitions."""

from collections import defaultdict
from typing import Any, NamedTuple

import pyarrow as pa

from schemas.commands import Tick, to_json
from schemas.effects import KINDS, AdminResponse
from streaming.broker.broker import Broker
from streaming.broker.names import COORDINATOR_ASSIGN
from streaming.broker.state.codec import PartitionState, decode_state, encode_state
from streaming.log.partition import ingress_partition, partition_log
from streaming.log.table import LOGICAL
from streaming.state.spread import Spread
from tests.broker.kit import Stored, feed

Record = tuple[int, str | None, bytes]
"""Timestamp (ms), topic, value."""


class Outcome(NamedTuple):
    """By topic: its rows without their places, and what is left of it at the end."""

    rows: dict[str, list[tuple[Any, ...]]]
    states: dict[str, Any]


class Cluster:
    """The brokers of some ingress partitions, and what they have stored."""

    def __init__(self, partitions: int) -> None:
        self.store = Stored()
        self.brokers = [Broker(partition, self.store) for partition in range(partitions)]
        self.rows: dict[str, list[tuple[Any, ...]]] = defaultdict(list)

    def fold(self, records: list[Record]) -> None:
        """Fold records, which go where `magnetar produce` sends them."""
        columns = list(zip(*records, strict=True)) or [(), (), ()]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, LOGICAL, strict=True)]
        for row in partition_log(pa.Table.from_arrays(arrays, schema=LOGICAL), len(self.brokers)).to_pylist():
            broker = self.brokers[row["partition"]]
            feed(broker, broker.offset + 1, row["timestamp"], row["topic"], row["value"])
            for out in broker.take():
                self.store.add([out.effect])
                answers_all = row["topic"] is None and isinstance(out.effect, AdminResponse)
                topic = getattr(out.effect, "topic", None)
                if topic is not None and not answers_all and not topic.startswith(COORDINATOR_ASSIGN):
                    self.rows[topic].append((out.clock, KINDS[type(out.effect)], *out.effect))

    def spread(self, partitions: int) -> list[str]:
        """Give the states other partitions. Returns the notes."""
        spread = Spread(partitions, lambda topic: ingress_partition(topic, partitions))
        pieces: dict[int, list[PartitionState]] = defaultdict(list)
        for broker in self.brokers:
            for new, piece in spread.add(decode_state(broker.encode())).items():
                pieces[new].append(decode_state(encode_state(piece)))
        notes = spread.check()
        self.brokers = [
            Broker.decode(encode_state(spread.joined(new, pieces[new])), self.store)
            for new in range(partitions)
        ]
        self.fold([(spread.clock, None, to_json(Tick()))])
        return notes

    def outcome(self) -> Outcome:
        states: dict[str, Any] = {}
        for broker in self.brokers:
            state = decode_state(broker.encode())
            for name, topic in broker.topics().items():
                users = {each for each, topics in state.connections.items() if name in topics}
                states[name] = [
                    topic,
                    users,
                    broker.clock,
                    broker.config,
                    broker.namespace_policies,
                    state.deleted.get(name),
                    state.tenants,
                    state.resources,
                    state.permissions.get(name),
                    [row for row in broker.stats() if row["topic"] == name],
                ]
        return Outcome(dict(self.rows), states)


def undisturbed(log: list[Record], cut: int, after: int) -> Outcome:
    """The fold of a whole log over the new partitions, with a tick where the other one is cut."""
    cluster = Cluster(after)
    cluster.fold(log[:cut])
    cluster.fold([tick_at(log, cut), tick_at(log, cut)])
    cluster.fold([*log[cut:], tick_at(log, len(log))])
    return cluster.outcome()


def moved(log: list[Record], cut: int, before: int, after: int) -> Outcome:
    """The same with a first part that is folded over other partitions."""
    cluster = Cluster(before)
    cluster.fold([*log[:cut], tick_at(log, cut)])
    cluster.spread(after)
    cluster.fold([*log[cut:], tick_at(log, len(log))])
    return cluster.outcome()


def tick_at(log: list[Record], cut: int) -> Record:
    """A tick for all partitions at the time that a log has reached, as the trigger's clock gives one."""
    return max((timestamp for timestamp, *_ in log[:cut]), default=0), None, to_json(Tick())
