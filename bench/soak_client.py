"""The clients of the soak. They publish at a steady rate, acknowledge what they receive, and grant new permits.

``python -m bench.soak_client HOST:PORT RATE`` runs until standard input ends. After a line ``pause`` it sends nothing, until one
``resume``.
"""

import json
import sys
import threading
import time
from collections import defaultdict
from typing import Any

from kafka import KafkaConsumer, KafkaProducer

from sinks.kafka import drop_repeats
from streaming.log.partition import PARTITIONS, ingress_partition

TOPICS = [f"persistent://bench/soak/topic-{number}" for number in range(8)]
PERMITS = 1000
PAYLOAD = "x" * 100
TTL_SECONDS, CHECK_SECONDS = 120, 30
SETTINGS = {
    "brokerDeduplicationEnabled": True,
    "ttlDurationDefaultInSeconds": TTL_SECONDS,
    "messageExpiryCheckIntervalInMinutes": CHECK_SECONDS / 60,
    "managedLedgerMaxEntriesPerLedger": 2000,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "retentionCheckIntervalInSeconds": 30,
}


class Commands:
    """Writes commands to the ingress topic."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=20, enable_idempotence=True)

    def say(self, topic: str, **command: Any) -> None:
        """Send a command on a topic."""
        self._send(ingress_partition(topic, PARTITIONS), topic.encode(), command)

    def say_everywhere(self, **command: Any) -> None:
        """Send a command without a topic to every partition."""
        for partition in range(PARTITIONS):
            self._send(partition, None, command)

    def _send(self, partition: int, key: bytes | None, command: dict[str, Any]) -> None:
        self._producer.send("commands", json.dumps(command).encode(), key=key, partition=partition)

    def flush(self) -> None:
        """Wait until Kafka has all commands."""
        self._producer.flush()


def connect(commands: Commands) -> None:
    """Create a consumer of `work` and an unread subscription `idle` on each topic."""
    commands.say_everywhere(command="BROKER_CONFIG", profile="4.x", settings=SETTINGS)
    for id_, topic in enumerate(TOPICS):
        for consumer_id, name in ((id_, "work"), (100 + id_, "idle")):
            commands.say(
                topic, command="SUBSCRIBE", connection="client", consumer_id=consumer_id, request_id=consumer_id,
                subscription=name, subType="Shared", initialPosition="Earliest",
            )  # fmt: skip
        commands.say(
            topic, command="CLOSE_CONSUMER", connection="client", consumer_id=100 + id_, request_id=id_
        )
        commands.say(topic, command="FLOW", connection="client", consumer_id=id_, messagePermits=PERMITS)
    commands.flush()


def acknowledge(bootstrap: str, commands: Commands) -> None:
    """Ack every received message and grant as many permits, twice a second."""
    consumer = KafkaConsumer("responses", bootstrap_servers=bootstrap, auto_offset_reset="earliest")

    def records() -> Any:
        while True:
            for polled in consumer.poll(timeout_ms=500).values():
                yield from polled
            grant()

    received: dict[tuple[str, int], list[dict[str, int]]] = defaultdict(list)

    def grant() -> None:
        for (topic, consumer_id), ids in received.items():
            commands.say(
                topic, command="ACK", connection="client", consumer_id=consumer_id, ack_type="Individual",
                message_id=ids,
            )  # fmt: skip
            commands.say(
                topic, command="FLOW", connection="client", consumer_id=consumer_id, messagePermits=len(ids)
            )
        received.clear()

    for record in drop_repeats(records()):
        answer = json.loads(record.value)
        if answer["kind"] == "MESSAGE":
            ids = received[answer["topic"], answer["consumer_id"]]
            ids.append({"ledgerId": answer["ledger_id"], "entryId": answer["entry_id"]})


def publish(commands: Commands, rate: int, silent: threading.Event, ended: threading.Event) -> None:
    """Publish `rate` messages per second, to the topics in turn, but for silences."""
    last, due, sent = time.monotonic(), 0.0, 0
    while not ended.wait(0.1):
        now = time.monotonic()
        due += 0 if silent.is_set() else (now - last) * rate
        last = now
        for number in range(sent, int(due)):
            topic = TOPICS[number % len(TOPICS)]
            commands.say(topic, producer="p", sequence_id=number, payload=PAYLOAD)
            sent += 1


def main(bootstrap: str, rate: int) -> None:
    """Run until standard input ends."""
    commands, silent, ended = Commands(bootstrap), threading.Event(), threading.Event()
    connect(commands)
    threading.Thread(target=acknowledge, args=(bootstrap, Commands(bootstrap)), daemon=True).start()
    publisher = threading.Thread(target=publish, args=(commands, rate, silent, ended))
    publisher.start()
    for line in sys.stdin:
        (silent.set if line.strip() == "pause" else silent.clear)()
    ended.set()
    publisher.join()
    commands.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
