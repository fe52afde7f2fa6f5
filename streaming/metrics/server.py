"""Metrics of a server: its connections, what they ask, and how long answers take.

What Pulsar's brokers count has their names and labels.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streaming.metrics.durations import Durations
from streaming.metrics.latencies import Latencies

BOUNDS = (0.0005, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""The upper bounds of the histograms, in seconds."""

_LABELS = {"cluster": "standalone", "metric": "broker_connection"}


class Gauges(NamedTuple):
    """What a server has at a time. `half_open`: connections without CONNECT. `paused`: those from which nothing is read, because
    too much waits for them. `opened`: producers and consumers. `under_way`: commands that the broker has not carried out. `waiting`:
    rows that wait for clients to read. `machine_ahead`: how far the machine's clock is ahead of the broker's time, which does not follow
    it, in seconds; negative: behind. `unanswered`: how long the query behind the server has not answered, in seconds; None:
    there is none."""

    connections: int
    half_open: int
    paused: int
    opened: int
    under_way: int
    waiting: int
    watchers: int
    machine_ahead: float
    unanswered: float | None


class ServerMetrics(Collector):
    """Counts what a server does since it started. Use it on the server's loop alone."""

    def __init__(self, gauges: Callable[[], Gauges], written: Durations | None = None) -> None:
        """`written`: how long writing the log took, if this process writes one."""
        self._gauges, self._written = gauges, written
        self.commands: Counter[str] = Counter()
        """Frames from clients, by command."""
        self.created = self.accepted = self.refused = self.closed = 0
        """Connections."""
        self.received = self.sent = 0
        """Bytes of the binary protocol."""
        self.answers = Durations(BOUNDS)
        """From a command to its answer. Each connection times one at a time."""
        self.publishes = Latencies()
        """Those of `answers` that are from a SEND to its receipt."""

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        now = self._gauges()
        yield from _of_connections(
            {
                "pulsar_active_connections": ("Open connections.", now.connections),
                "pulsar_connection_created_total_count": ("Connections opened.", self.created),
                "pulsar_connection_create_success_count": (
                    "Connections with a valid CONNECT.",
                    self.accepted,
                ),
                "pulsar_connection_create_fail_count": ("Connections refused.", self.refused),
                "pulsar_connection_closed_total_count": ("Connections closed.", self.closed),
            }
        )
        commands = CounterMetricFamily(
            "magnetar_server_commands_total", "Commands from clients.", labels=["command"]
        )
        for command, count in self.commands.items():
            commands.add_metric([command], count)
        yield commands
        for name, text, count in (
            (
                "magnetar_server_received_bytes_total",
                "Bytes of the binary protocol from clients.",
                self.received,
            ),
            ("magnetar_server_sent_bytes_total", "Bytes of the binary protocol to clients.", self.sent),
        ):
            yield CounterMetricFamily(name, text, value=count)
        for name, text, value in (
            (
                "magnetar_server_connections_half_open",
                "Connections that have not sent CONNECT.",
                now.half_open,
            ),
            ("magnetar_server_connections_paused", "Connections from which nothing is read now.", now.paused),
            ("magnetar_server_opened", "Producers and consumers.", now.opened),
            ("magnetar_server_topic_watchers", "Topic list watchers.", now.watchers),
            ("magnetar_server_commands_under_way", "Commands not carried out yet.", now.under_way),
            (
                "magnetar_server_clock_ahead_seconds",
                "How far the machine's clock is ahead of the broker's time, which does not follow it; negative: behind.",
                now.machine_ahead,
            ),
            ("magnetar_server_rows_waiting", "Rows that wait for clients to read.", now.waiting),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        yield self.answers.metric("magnetar_server_answer_seconds", "From a command to its answer.")
        yield self.publishes.metric(
            "pulsar_broker_publish_latency",
            "From a SEND to its receipt in ms, in the last one to two minutes. Each connection times one command at a time.",
            _LABELS["cluster"],
        )
        if self._written is not None:
            yield self._written.metric("magnetar_log_write_seconds", "How long writing the log took.")
        if now.unanswered is not None:
            text = "How long the query has not answered a command that expects an answer."
            yield GaugeMetricFamily("magnetar_server_unanswered_seconds", text, value=now.unanswered)


def _of_connections(values: Mapping[str, tuple[str, int]]) -> Iterable[Metric]:
    for name, (text, value) in values.items():
        family = GaugeMetricFamily(name, text, labels=[*_LABELS])
        family.add_metric([*_LABELS.values()], value)
        yield family
