"""Runs a command log on the real broker: a counterexample of `magnetar check`, or what `magnetar minimize` left.

Each connection of the log is a client. Entries that commands name are found by the publish that wrote them, because ledgers have
other numbers there. Time passes as in the log, but never more than a few seconds at once.
"""

import json
from pathlib import Path
from typing import Any

from schemas.effects import SendReceipt
from streaming.answers.history.log_fold import LogFold
from streaming.jobs.replay import load
from streaming.log.files import read_log
from streaming.log.table import LogError
from streaming.traces.conform import TraceComparison
from streaming.traces.trace import read_trace
from tests.parity.pulsar import LocalPulsar
from tests.parity.recorder import Record, Recorder
from tests.parity.scenario import compared

LONGEST_WAIT = 3.0
"""Time of a log that passes without commands is cut to so many seconds."""

_ASKING = {
    "SUBSCRIBE",
    "CLOSE_CONSUMER",
    "UNSUBSCRIBE",
    "SEEK",
    "CLOSE_PRODUCER",
    "PRODUCER",
    "GET_LAST_MESSAGE_ID",
}
_TELLING = {"FLOW", "ACK", "REDELIVER_UNACKNOWLEDGED_MESSAGES"}
_OWN = {"command", "connection", "request_id", "topic", "timestamp"}


def settings_of(path: Path) -> dict[str, str]:
    """The settings of the broker that a log begins with. Raises `LogError`."""
    table = read_log(path)
    first = json.loads(table["value"][0].as_py()) if len(table) else {}
    if first.get("command") != "BROKER_CONFIG":
        return {}
    return {name: json.dumps(value).strip('"') for name, value in first.get("settings", {}).items()}


def run_log(pulsar: LocalPulsar, log: Path, trace: Path) -> TraceComparison:
    """Run `log` on the real broker, write what it did to `trace`, and compare that with Magnetar.

    Raises:
        LogError: the log has several topics, or a command that no client can send to a real broker.
        FrameError, OSError: see `tests.parity.scenario.attempt`.
    """
    records = load(log, partitions=1).records
    topics = {each for each in records["topic"].to_pylist() if each is not None}
    if len(topics) != 1:
        raise LogError(f"{log} has {len(topics)} topics: expected one")
    recorder = Recorder(pulsar.ports, f"log-{log.stem}", pulsar.config, version=pulsar.version)
    try:
        LogRunner(recorder, pulsar, positions_of(records), topics.pop()).run(records)
        recorder.step("the end")
        recorder.wait(LONGEST_WAIT)
        recorder.snapshot()
        recorder.save(trace, f"the log {log.name}")
    finally:
        recorder.close()
    return compared(read_trace(trace))


def positions_of(records: Any) -> dict[tuple[int, int], int]:
    """Which publish of the log wrote the entry at each position, from 0."""
    fold, found = LogFold(records, 0), dict[tuple[int, int], int]()
    for _ in range(len(fold)):
        for row in fold.step():
            effect = row.effect
            if isinstance(effect, SendReceipt) and effect.ledger_id > 0:
                found[effect.ledger_id, effect.entry_id] = len(found)
    return found


class LogRunner:
    """The clients of a log on the real broker. `positions`: which publish wrote the entry at each position of the log, from 0."""

    def __init__(
        self, recorder: Recorder, pulsar: LocalPulsar, positions: dict[tuple[int, int], int], topic: str
    ) -> None:
        self._recorder, self._pulsar, self._positions = recorder, pulsar, positions
        self._path = topic.replace("://", "/")
        self._connections: dict[str, int] = {}
        self._producers: dict[str, int] = {}
        self._written: list[Record] = []
        recorder.listeners.append(self._hear)

    def _hear(self, record: Record) -> None:
        if record["cmd"] == "SEND_RECEIPT":
            self._written.append(record["fields"]["message_id"])

    def run(self, records: Any) -> None:
        now = records["timestamp"][0].as_py()
        for number, row in enumerate(records.to_pylist()):
            fields = json.loads(row["value"])
            name = fields.get("command", "PUBLISH")
            self._recorder.step(f"{number + 1} {name}")
            if row["timestamp"] > now:
                self._recorder.wait(min((row["timestamp"] - now) / 1000, LONGEST_WAIT))
                now = row["timestamp"]
            self._do(name, fields)
            self._recorder.snapshot()

    def _do(self, name: str, fields: Record) -> None:
        recorder = self._recorder
        if name in ("TICK", "BROKER_CONFIG"):
            return
        if name == "PUBLISH":
            self._publish(fields)
        elif name == "RESTART":
            recorder.restart(self._pulsar)
        elif name == "ADMIN":
            recorder.call(
                fields["method"], fields["path"].replace(f"/{self._path}", recorder.path), fields.get("body")
            )
        elif name == "CONNECTION_LOST":
            if (
                number := self._connections.pop(fields["connection"], None)
            ) is not None and number in recorder.connections:
                recorder.cut(number)
        elif name in _ASKING or name in _TELLING:
            own = {key: value for key, value in fields.items() if key not in _OWN}
            for key in ("message_id", "message_ids"):
                if isinstance(own.get(key), list):
                    own[key] = [self._there(each) for each in own[key]]
            if name in ("SUBSCRIBE", "PRODUCER"):
                own["topic"] = recorder.topic
            speak = recorder.ask if name in _ASKING else recorder.tell
            speak(self._connection(fields["connection"]), name, **own)
        else:
            raise LogError(f"{name} cannot be sent to a real broker")

    def _connection(self, name: str) -> int:
        number = self._connections.get(name)
        if number is None or number not in self._recorder.connections:
            number = self._connections[name] = self._recorder.open()
            self._recorder.ask(number, "LOOKUP", topic=self._recorder.topic, authoritative=False)
        return number

    def _publish(self, fields: Record) -> None:
        producer = fields["producer"]
        connection = self._connection(f"producer {producer}")
        if self._producers.get(producer) != connection:
            self._producers[producer] = connection
            self._recorder.ask(
                connection, "PRODUCER", topic=self._recorder.topic, producer_id=0, producer_name=producer,
                user_provided_producer_name=True, producer_access_mode="Shared", epoch=0,
            )  # fmt: skip
        metadata = {"producer_name": producer, "sequence_id": fields["sequence_id"]}
        if "key" in fields:
            metadata["partition_key"] = fields["key"]
        self._recorder.publish(connection, metadata, producer_id=0, sequence_id=fields["sequence_id"])

    def _there(self, id_: Record) -> Record:
        """The id on the real broker of an entry that the log names."""
        number = self._positions.get((id_["ledgerId"], id_["entryId"]))
        if number is None or number >= len(self._written):
            raise LogError(f"{id_['ledgerId']}:{id_['entryId']} is not an entry of the log")
        return {
            **id_,
            "ledgerId": self._written[number]["ledgerId"],
            "entryId": self._written[number]["entryId"],
        }
