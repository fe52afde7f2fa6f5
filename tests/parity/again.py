"""Plays what the clients of a recording did to a broker of another version, and records that.

Entries and transactions have other numbers there. They are found by the publishes and requests that made them.
"""

import base64
import json
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from streaming.traces.conform import TraceComparison
from streaming.traces.trace import Trace, read_trace
from tests.parity.pulsar import LocalPulsar
from tests.parity.recorder import Record, Recorder
from tests.parity.scenario import compared
from tests.parity.transactions import count_from_0

_LATE_SECONDS = 2.0
"""So long a frame may be late that came in the recording."""

_TXN = "txnid_least_bits"
_TIMES = ("publish_time", "deliver_at_time")
"""Fields of a message's metadata that are as far from now as they were in the recording."""


def by_settings(paths: Sequence[Path]) -> Iterator[tuple[dict[str, str], list[Trace]]]:
    """Recordings, and the settings of their brokers. Raises `TraceError`."""
    for settings, some in groupby(sorted(map(read_trace, paths), key=_settings), key=_settings):
        yield json.loads(settings), [*some]


def _settings(trace: Trace) -> str:
    return json.dumps(trace.header["broker_config"], sort_keys=True)


class Again:
    """Recordings that are played to one broker, one after the other."""

    def __init__(self, pulsar: LocalPulsar) -> None:
        self._pulsar = pulsar
        self._transactions = 0  # of all recordings: the coordinator counts on

    def play(self, trace: Trace, path: Path) -> TraceComparison:
        """Play a recording, write what the broker did to `path`, and compare that with Magnetar.

        Raises:
            FrameError, OSError: see `tests.parity.scenario.attempt`.
        """
        recorder = Recorder(self._pulsar.ports, trace.name, self._pulsar.config, version=self._pulsar.version)
        player = _Player(recorder, self._pulsar, self._transactions)
        try:
            player.play(trace.records)
            player.end_transactions()
            count_from_0(recorder.records, self._transactions)
            recorder.save(path, trace.header["description"])
        finally:
            self._transactions += player.begun
            recorder.close()
        return compared(read_trace(path))


class _Player:
    """The clients of a recording. `transactions`: how many the broker has begun before."""

    def __init__(self, recorder: Recorder, pulsar: LocalPulsar, transactions: int) -> None:
        self._recorder, self._pulsar, self._transactions = recorder, pulsar, transactions
        self.begun = 0
        """Transactions that coordinator 0 began here."""
        self._ids: list[Record] = []
        self._there: dict[tuple[int, int], tuple[int, int]] = {}
        self._ledgers: dict[int, int] = {}
        self._heard = 0
        recorder.listeners.append(self._hear)

    def _hear(self, record: Record) -> None:
        self._heard += record["dir"] == "out"
        if record["cmd"] == "NEW_TXN_RESPONSE" and _TXN in record["fields"]:
            self._ids.append({name: record["fields"][name] for name in ("txnid_most_bits", _TXN)})
            self.begun += record["fields"]["txnid_most_bits"] == 0

    def play(self, records: Sequence[Record]) -> None:
        """Do what its clients did."""
        receipts = {
            _publish(each): each["fields"]["message_id"]
            for each in records
            if each.get("cmd") == "SEND_RECEIPT"
        }
        for came, some in groupby(records, key=lambda each: each["dir"] == "out"):
            if came:
                # What came in the recording before the next step may come later than the silence that ends one.
                self._recorder.hear(partial(self._have_come, len([*some])), _LATE_SECONDS)
                continue
            for each in some:
                self._heard = 0
                self._do(each, receipts)

    def end_transactions(self) -> None:
        """End what is open, without recording it. It would hold back the low water mark in the next recording."""
        if not self._ids:
            return
        recorder, records = self._recorder, len(self._recorder.records)
        connection = recorder.open()
        for tc_id in {each["txnid_most_bits"] for each in self._ids}:
            recorder.ask(connection, "TC_CLIENT_CONNECT_REQUEST", tc_id=tc_id)
        for each in self._ids:
            recorder.ask(connection, "END_TXN", txn_action="ABORT", **each)
        del recorder.records[records:]

    def _have_come(self, frames: int) -> bool:
        return self._heard >= frames

    def _do(self, record: Record, receipts: dict[Any, Record]) -> None:
        kind, recorder = record["dir"], self._recorder
        if kind == "note":
            self._note(record)
        elif kind == "admin":
            self._call(record)
        elif kind == "in":
            self._frame(record, receipts)
        else:
            recorder.snapshot()

    def _note(self, record: Record) -> None:
        recorder, event = self._recorder, record.get("event")
        if "step" in record:
            recorder.step(record["step"])
        elif event == "wait":
            recorder.wait(record["ms"] / 1000)
        elif event == "backlog_quota_check":
            recorder.check_backlog_quotas()
        elif record.get("phase") == "stop":
            recorder.restart(self._pulsar)

    def _call(self, record: Record) -> None:
        """Call the admin API. What runs in the background has ended when the recording asks about it, unless that saw it, too."""
        while True:
            said = self._recorder.call(record["method"], record["path"], record.get("body"))
            if _status(said) != "RUNNING" or _status(record) == "RUNNING":
                return
            self._recorder.records.remove(said)

    def _frame(self, record: Record, receipts: dict[Any, Record]) -> None:
        recorder, name, number = self._recorder, record["cmd"], record["conn"]
        if name == "_TCP_OPEN":
            recorder.open()
        elif name == "_TCP_CLOSE":
            if number in recorder.connections:
                recorder.cut(number)
        elif name == "SEND":
            later = time.time() * 1000 - record["t"]
            metadata = self._numbered(record["metadata"])
            metadata |= {key: int(metadata[key] + later) for key in _TIMES if key in metadata}
            payload = base64.b64decode(record.get("payload", ""))
            said = recorder.publish(number, metadata, payload, **self._numbered(record["fields"]))
            if said.get("cmd") == "SEND_RECEIPT" and (there := receipts.get(_publish(record))) is not None:
                self._learn(there, said["fields"]["message_id"])
        elif name != "CONNECT":
            fields = self._numbered(record["fields"])
            if fields.pop("request_id", None) is None:
                recorder.tell(number, name, **fields)
            else:
                recorder.ask(number, name, **fields)

    def _learn(self, recorded: Record, now: Record) -> None:
        self._there[recorded["ledgerId"], recorded["entryId"]] = now["ledgerId"], now["entryId"]
        self._ledgers.setdefault(recorded["ledgerId"], now["ledgerId"])

    def _numbered(self, fields: Record) -> Record:
        """Fields with the broker's numbers of entries and transactions."""
        found = dict(fields)
        for key, value in fields.items():
            if key == _TXN:
                found[key] = value + (self._transactions if fields["txnid_most_bits"] == 0 else 0)
            elif isinstance(value, list):
                found[key] = [self._entry(each) for each in value]
            elif isinstance(value, dict):
                found[key] = self._entry(value)
        return found

    def _entry(self, value: Any) -> Any:
        if not isinstance(value, dict) or "ledgerId" not in value:
            return value
        ledger, entry = value["ledgerId"], value["entryId"]
        there = self._there.get((ledger, entry), (self._ledgers.get(ledger, ledger), entry))
        return {**value, "ledgerId": there[0], "entryId": there[1]}


def _status(record: Record) -> Any:
    response = record.get("response")
    return response.get("status") if isinstance(response, dict) else None


def _publish(record: Record) -> tuple[Any, ...]:
    """What a SEND and its receipt have in common."""
    fields = record["fields"]
    return record["conn"], fields["producer_id"], fields["sequence_id"]
