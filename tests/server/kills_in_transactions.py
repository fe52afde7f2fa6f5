"""What `tests.server.kills` does to transactions and to compacted topics: a client that commits and aborts on two topics, and one that asks for
compactions again and again."""

import contextlib
import http.client
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pulsar

from streaming.broker.names import COORDINATOR_ASSIGN
from streaming.protocol.codec import FrameReader, decode, encode, entry

At = tuple[int, int]
"""Ledger and entry."""

BOTH = ("persistent://public/default/left", "persistent://public/default/right")
COORDINATOR = f"{COORDINATOR_ASSIGN}-partition-0"
SUBSCRIPTION = "in transactions"


class Transacting:
    """Transactions of a message to each of two topics and an ack of what came from the first one, which commit or are aborted.

    `ended`: by the number of a transaction that has ended, whether it committed. What is under way when the connection is lost is ended on the
    next one: committed if that was asked for, otherwise aborted. `acked`: what transactions that committed have acknowledged.
    """

    def __init__(self, port: int, chance: random.Random) -> None:
        self._port, self._chance = port, chance
        self.wrong: list[str] = []
        self.ended: dict[int, bool] = {}
        self.acked: set[At] = set()
        self._left: tuple[dict[str, int], int, bool, At | None] | None = None
        self._number = self._sequence = 0
        self._end = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._end or self._left is not None:
            try:
                with socket.create_connection(("127.0.0.1", self._port), timeout=1) as wire:
                    wire.settimeout(20)
                    self._transact(_Conversation(wire))
            except OSError:
                time.sleep(0.05)

    def _transact(self, said: "_Conversation") -> None:
        said.open()
        before = frozenset(self.acked)  # none of these may come on this connection
        if self._left is not None:
            self._finish(said, *self._left)
        while not self._end:
            txn = said.begin()
            number, commits = self._number, self._chance.random() < 0.6
            self._number += 1
            at = said.received.pop(0) if said.received else None
            self._left = txn, number, False, at
            for producer in range(len(BOTH)):
                said.send(producer, txn, self._sequence, b"%d" % number)
            self._sequence += 1
            if at is not None:
                if at in before:
                    self.wrong.append(
                        f"{at} came again after the transaction that acknowledged it had committed"
                    )
                said.acknowledge(txn, at)
            self._left = txn, number, commits, at
            self._finish(said, *self._left)
            if not commits and at is not None:
                said.forget(at)  # it comes again

    def _finish(
        self, said: "_Conversation", txn: dict[str, int], number: int, commits: bool, at: At | None
    ) -> None:
        error = said.end(txn, commits)
        if error not in (None, "TransactionNotFound"):  # the latter: it has ended so, and the answer was lost
            self.wrong.append(f"the end of transaction {number} ({commits=}): {error}")
        self.ended[number] = commits
        if commits and at is not None:
            self.acked.add(at)
        self._left = None

    def end(self) -> None:
        """Begin no more, and wait until all have ended."""
        self._end = True
        self._thread.join(120)

    def judged(self, client: Any) -> Iterator[str]:
        """What is wrong with what the topics show."""
        yield from self.wrong[:3]
        committed = sorted(number for number, commits in self.ended.items() if commits)
        for topic in BOTH:
            reader = client.create_reader(topic, pulsar.MessageId.earliest)
            found = list[int]()
            while reader.has_message_available():
                found.append(int(reader.read_next(60_000).data()))
            reader.close()
            if found != committed:
                lost, more = set(committed) - set(found), set(found) - set(committed)
                yield (
                    f"{topic}: of {len(committed)} committed messages {len(lost)} are lost ({sorted(lost)[:3]}), and {len(found)} came, "
                    f"of which {len(more)} were aborted ({sorted(more)[:3]})"
                )


class _Conversation:
    """A client's connection, with a producer on each topic, a consumer of the first one and the coordinator. Every method raises OSError if it is
    lost. `received`: what the consumer has got and not acknowledged."""

    def __init__(self, wire: socket.socket) -> None:
        self._wire, self._reader = wire, FrameReader()
        self._frames: list[Any] = []
        self._requests = 0
        self.received: list[At] = []

    def open(self) -> None:
        self._ask("CONNECT", {"client_version": "kills", "protocol_version": 21}, "CONNECTED")
        for number, topic in enumerate(BOTH):
            producer = {"topic": topic, "producer_id": number, "producer_name": "transacting"}
            self._request("PRODUCER", producer, "PRODUCER_SUCCESS")
        consumer = {
            "topic": BOTH[0],
            "subscription": SUBSCRIPTION,
            "subType": "Shared",
            "consumer_id": 9,
            "initialPosition": "Earliest",
        }
        self._request("SUBSCRIBE", consumer, "SUCCESS")
        self._wire.sendall(encode("FLOW", {"consumer_id": 9, "messagePermits": 100_000}))
        self._request("TC_CLIENT_CONNECT_REQUEST", {"tc_id": 0}, "TC_CLIENT_CONNECT_RESPONSE")

    def begin(self) -> dict[str, int]:
        """A new transaction that knows the topics and the subscription: its id."""
        fields = self._request("NEW_TXN", {"txn_ttl_seconds": 600_000, "tc_id": 0}, "NEW_TXN_RESPONSE")
        txn = {name: int(fields[name]) for name in ("txnid_least_bits", "txnid_most_bits")}
        self._request("ADD_PARTITION_TO_TXN", {"partitions": [*BOTH], **txn}, "ADD_PARTITION_TO_TXN_RESPONSE")
        known = [{"topic": BOTH[0], "subscription": SUBSCRIPTION}]
        self._request(
            "ADD_SUBSCRIPTION_TO_TXN", {"subscription": known, **txn}, "ADD_SUBSCRIPTION_TO_TXN_RESPONSE"
        )
        return txn

    def send(self, producer: int, txn: dict[str, int], sequence_id: int, payload: bytes) -> None:
        metadata = {
            "producer_name": "transacting",
            "sequence_id": sequence_id,
            "publish_time": int(time.time() * 1000),
            **txn,
        }
        fields = {"producer_id": producer, "sequence_id": sequence_id, **txn}
        self._wire.sendall(encode("SEND", fields, entry(metadata, payload)))
        self._await("SEND_RECEIPT")

    def acknowledge(self, txn: dict[str, int], at: At) -> None:
        ids = [{"ledgerId": at[0], "entryId": at[1]}]
        self._request(
            "ACK", {"consumer_id": 9, "ack_type": "Individual", "message_id": ids, **txn}, "ACK_RESPONSE"
        )

    def end(self, txn: dict[str, int], commits: bool) -> str | None:
        """End a transaction. Returns the error, if there is one."""
        fields = {"txn_action": "COMMIT" if commits else "ABORT", **txn}
        return self._request("END_TXN", fields, "END_TXN_RESPONSE", checks=False).get("error")

    def forget(self, at: At) -> None:
        """It is not this client's any more."""
        self.received = [each for each in self.received if each != at]

    def _request(
        self, cmd: str, fields: dict[str, Any], answer: str, *, checks: bool = True
    ) -> dict[str, Any]:
        self._requests += 1
        return self._ask(cmd, {**fields, "request_id": self._requests}, answer, checks=checks)

    def _ask(self, cmd: str, fields: dict[str, Any], answer: str, *, checks: bool = True) -> dict[str, Any]:
        self._wire.sendall(encode(cmd, fields))
        return self._await(answer, checks=checks)

    def _await(self, answer: str, *, checks: bool = True) -> dict[str, Any]:
        while True:
            while not self._frames:
                data = self._wire.recv(1 << 16)
                if not data:
                    raise ConnectionResetError
                self._frames += map(decode, self._reader.feed(data))
            found = self._frames.pop(0)
            if found.cmd == "PING":
                self._wire.sendall(encode("PONG", {}))
            elif found.cmd == "MESSAGE":
                id_ = found.fields["message_id"]
                self.received.append((id_["ledgerId"], id_["entryId"]))
            elif found.cmd == answer and not (checks and "error" in found.fields):
                return dict(found.fields)
            elif found.cmd in ("ERROR", "SEND_ERROR", "CLOSE_PRODUCER", "CLOSE_CONSUMER", answer):
                raise ConnectionResetError(found.fields)  # the connection before is not gone yet


class Compacting:
    """Asks for compactions of a topic again and again. `done`: how many were answered."""

    def __init__(self, port: Callable[[], int], topic: str) -> None:
        self._port, self._path = port, f"/admin/v2/{topic.replace('://', '/')}/compaction"
        self.done = 0
        self._end = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._end:
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.done += self.compact() == 204
            time.sleep(0.2)

    def compact(self) -> int:
        """Compact now. Returns the status."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port(), timeout=20)
        try:
            connection.request("PUT", self._path)
            return connection.getresponse().status
        finally:
            connection.close()

    def end(self) -> None:
        self._end = True
        self._thread.join(60)


def last_of_each_key(client: Any, topic: str, keys: int, sent: int) -> Iterator[str]:
    """What is wrong with what a reader of compacted data gets. Message N has the key N modulo `keys`."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    found = dict[str, int]()
    while reader.has_message_available():
        message = reader.read_next(60_000)
        if message.partition_key():  # those that were compacted out of a batch have none
            found[message.partition_key()] = int(message.data().split()[1])
    reader.close()
    expected = {f"k{number % keys}": number for number in range(max(sent - keys, 0), sent)}
    if found != expected:
        wrong = {
            key: (found.get(key), number) for key, number in expected.items() if found.get(key) != number
        }
        yield f"{topic}: compacted data has for {len(wrong)} of {len(expected)} keys another message than the last: {[*wrong.items()][:3]}"
