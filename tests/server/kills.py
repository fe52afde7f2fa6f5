"""`python -m tests.server.kills`: kill -9 of a server with a data folder under load, again and again.

Whatever was acknowledged is there, once, in its producer's order, and at the position that the receipt named. What a consumer has the
receipt of an ack for is never delivered again. What committed is on both topics of its transaction, what was aborted on none. A compacted topic
has the last message of each key. A fold of the whole log gives the state that the server left.

Producers are the official Python client's: some batch, and some share a topic. The consumer with receipts speaks the protocol by itself,
so that it knows which connection a delivery came on. Exits with 1 if something is wrong. Ctrl-C ends the kills, and what came until then
is judged.
"""

import argparse
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pulsar

from streaming.protocol.codec import FrameReader, decode, encode
from streaming.server.data_folder import CHECKPOINT, COMMANDS, DataFolder
from tests.server.kills_in_transactions import BOTH, Compacting, Transacting, last_of_each_key

RECORDS = 1500
"""After so many records a checkpoint follows: often enough for kills to meet some."""

MOMENTS = ("load", "start", "checkpoint")
"""Under load; at a random moment of a start, its recovery included; as soon as a new segment of the log is there."""

_SERVE = f"""
from streaming.server import data_folder
data_folder.CHECKPOINT_RECORDS = {RECORDS}
from streaming.cli import main
main()
"""

WAIT = 120.0
TOPICS = (
    "persistent://public/default/a",
    "persistent://public/default/b",
    "persistent://public/default/keyed",
)
KEYS = 20
"""Of the last topic."""


class Sender(NamedTuple):
    """A producer."""

    topic: str
    name: str
    options: dict[str, Any]
    keys: int = 0


SENDERS = (
    Sender(TOPICS[0], "one", {}),
    Sender(TOPICS[0], "other", {"batching_enabled": True, "batching_max_publish_delay_ms": 5}),
    Sender(TOPICS[1], "alone", {"batching_enabled": True, "batching_max_messages": 10}),
    Sender(TOPICS[2], "keyed", {"batching_enabled": True, "batching_max_publish_delay_ms": 5}, KEYS),
)

At = tuple[int, int]
"""Ledger and entry."""


class Killed:
    """A server that is killed and started again on the same port."""

    def __init__(self, folder: Path) -> None:
        self.data, self._said = folder / "data", folder / "server.log"
        with socket.socket() as free, socket.socket() as other:
            free.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
            self.admin_port: int = other.getsockname()[1]
        self.url = f"pulsar://127.0.0.1:{self.port}"
        self.starts = 0
        self.seconds = 1.0
        """How long the last start took."""

    def launch(self) -> None:
        """Start it, and do not wait."""
        self.starts += 1
        self._began = time.monotonic()
        arguments = ["serve", "--listen", f"127.0.0.1:{self.port}", "--admin-listen", f"127.0.0.1:{self.admin_port}", "--data", str(self.data),
                     "--set", "brokerDeduplicationEnabled=true", "--set", "transactionCoordinatorEnabled=true"]  # fmt: skip
        with self._said.open("wb") as said:
            self._process = subprocess.Popen([sys.executable, "-c", _SERVE, *arguments], stderr=said)

    def wait(self) -> None:
        """Until it serves."""
        until(
            lambda: b"serving" in self._said.read_bytes() or self._process.poll() is not None,
            "the server serves",
        )
        assert self._process.poll() is None, self._said.read_text()
        self.seconds = time.monotonic() - self._began

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert "Traceback" not in self._said.read_text(), self._said.read_text()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        assert self._process.wait(WAIT) == 0, self._said.read_text()

    def segments(self) -> int:
        return len(list((self.data / COMMANDS).glob("*.jsonl")))


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, f"not within {WAIT:.0f} s: {what}"
        time.sleep(0.05)


class Producing:
    """A producer that sends numbers until the end."""

    def __init__(self, client: Any, sender: Sender) -> None:
        self.sender = sender
        self.receipts: list[tuple[int, At]] = []
        self.sent = 0
        self._end = False
        self._producer = client.create_producer(
            sender.topic, producer_name=sender.name, send_timeout_millis=0, block_if_queue_full=True, max_pending_messages=200,
            initial_sequence_id=0, **sender.options,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        while not self._end:
            number = self.sent

            def stored(result: Any, at: Any, number: int = number) -> None:
                if result == pulsar.Result.Ok:
                    self.receipts.append((number, (at.ledger_id(), at.entry_id())))

            key = {"partition_key": f"k{number % self.sender.keys}"} if self.sender.keys else {}
            self._producer.send_async(f"{self.sender.name} {number}".encode() + b" x" * 50, stored, **key)
            self.sent += 1
            if self.sent % 4 == 0:
                time.sleep(0.005)

    def end(self) -> None:
        """Send no more, and wait for all receipts."""
        self._end = True
        self._thread.join(WAIT)
        until(lambda: len(self.receipts) >= self.sent, f"all messages of {self.sender.name} have a receipt")


class Acking:
    """A consumer that acknowledges each entry with a request for a receipt, and connects again whenever it is lost."""

    def __init__(self, port: int, topic: str) -> None:
        self._port, self._topic = port, topic
        self.wrong: list[str] = []
        self.acked: set[At] = set()
        """What it has the receipt of the ack for."""
        self.asked: set[At] = set()
        """What it acknowledged: a receipt may be lost."""
        self.connects = 0
        self.deliveries = 0
        self._requests: dict[int, At] = {}
        self._end = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._end:
            try:
                with socket.create_connection(("127.0.0.1", self._port), timeout=1) as wire:
                    self._consume(wire)
            except OSError:
                time.sleep(0.05)

    def _consume(self, wire: socket.socket) -> None:
        before = frozenset(self.acked)  # none of these may come on this connection
        self._requests.clear()
        wire.settimeout(0.5)
        wire.sendall(encode("CONNECT", {"client_version": "kills", "protocol_version": 21}))
        wire.sendall(
            encode(
                "SUBSCRIBE",
                {
                    "topic": self._topic,
                    "subscription": "acks",
                    "subType": "Shared",
                    "consumer_id": 1,
                    "request_id": 0,
                    "initialPosition": "Earliest",
                },
            )
        )
        wire.sendall(encode("FLOW", {"consumer_id": 1, "messagePermits": 1000}))
        reader, request, taken = FrameReader(), 0, 0
        while not self._end:
            try:
                data = wire.recv(1 << 16)
            except TimeoutError:
                continue
            if not data:
                return
            out = b""
            for found in map(decode, reader.feed(data)):
                if found.cmd == "PING":
                    out += encode("PONG", {})
                elif found.cmd == "MESSAGE":
                    id_ = found.fields["message_id"]
                    at = id_["ledgerId"], id_["entryId"]
                    self.deliveries += 1
                    if at in before or at in self.acked:
                        self.wrong.append(f"{self._topic} {at} came again after its ack's receipt")
                    request += 1
                    self._requests[request] = at
                    self.asked.add(at)
                    ack = {
                        "consumer_id": 1,
                        "ack_type": "Individual",
                        "message_id": [{"ledgerId": at[0], "entryId": at[1]}],
                    }
                    out += encode("ACK", {**ack, "request_id": request})
                    taken += (found.metadata or {}).get("num_messages_in_batch", 1)
                elif found.cmd == "ACK_RESPONSE":
                    at = self._requests.pop(found.fields["request_id"])
                    if "error" in found.fields:
                        self.wrong.append(f"{self._topic} {at}: {found.fields}")
                    self.acked.add(at)
                elif found.cmd == "SUCCESS":
                    self.connects += 1
                elif found.cmd in ("ERROR", "CLOSE_CONSUMER"):
                    return  # the connection before is not gone yet
            if taken >= 500:
                out += encode("FLOW", {"consumer_id": 1, "messagePermits": taken})
                taken = 0
            if out:
                wire.sendall(out)

    def end(self) -> None:
        self._end = True
        self._thread.join(WAIT)


def kill(server: Killed, moment: str, chance: random.Random) -> None:
    """Kill a server that serves, and start it again."""
    if moment == "checkpoint":
        segments = server.segments()
        end = time.monotonic() + 10
        while server.segments() == segments and time.monotonic() < end:
            time.sleep(0.0005)
        time.sleep(chance.choice((0, 0.002, 0.01, 0.05)))
    else:
        time.sleep(chance.uniform(0.1, 1.5))
    server.kill()
    server.launch()
    if moment == "start":
        time.sleep(chance.uniform(0, 1.2 * server.seconds))
        server.kill()
        server.launch()
    server.wait()


def _go_on(producing: list[Producing], counts: list[int]) -> bool:
    return any(len(each.receipts) > count for each, count in zip(producing, counts, strict=True))


def _asked(acking: list[Acking]) -> set[tuple[str, At]]:
    return {(topic, at) for each, topic in zip(acking, TOPICS, strict=True) for at in each.asked}


def judged(client: Any, producing: list[Producing], acking: list[Acking]) -> Iterator[str]:
    """What is wrong with what the topics have and the clients got."""
    of_topic: dict[str, defaultdict[str, list[tuple[int, At]]]] = {}
    for topic in TOPICS:
        stored = of_topic[topic] = defaultdict(list)
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        before: tuple[int, ...] = ()
        while reader.has_message_available():
            message = reader.read_next(60_000)
            name, number = message.data().split()[:2]
            id_ = message.message_id()
            at = id_.ledger_id(), id_.entry_id()
            if (*at, id_.batch_index()) <= before:
                yield f"{topic}: {at} came after {before}"
            before = (*at, id_.batch_index())
            stored[name.decode()].append((int(number), at))
        reader.close()
    for each in producing:
        topic, name, *_ = each.sender
        found = of_topic[topic][name]
        if [number for number, _ in found] != [*range(each.sent)]:
            doubles = sum(count - 1 for count in Counter(number for number, _ in found).values())
            lost = set(range(each.sent)) - {number for number, _ in found}
            yield f"{name}: of {each.sent:,} messages {len(lost)} are lost ({sorted(lost)[:5]}), {doubles} doubled, or in another order"
        places = dict(found)
        wrong = [(number, at) for number, at in each.receipts if at != (-1, -1) and places.get(number) != at]
        if wrong:
            yield f"{name}: {len(wrong)} receipts name another position than that of the message: {wrong[:3]}"
    for each_acking, topic in zip(acking, TOPICS, strict=True):
        yield from each_acking.wrong[:3]
        entries = {at for own in of_topic[topic].values() for _, at in own}
        if missed := entries - each_acking.asked:
            yield f"{topic}: {len(missed)} entries were never acknowledged: {sorted(missed)[:3]}"


def refolded(data: Path) -> Iterator[str]:
    """What is wrong with the log: a fold of all of it must give the state of the checkpoint, which a server left that was stopped."""
    with DataFolder(data, fsync=False) as folder:
        left = folder._saved(data / CHECKPOINT).state
    whole = data.with_name("whole")
    shutil.copytree(data / COMMANDS, whole / COMMANDS)
    with DataFolder(whole, fsync=False) as folder:
        found = folder.recover()[1].state()
    if found != left:
        yield f"a fold of the log's {found.offset} records gives another state than the server left"
    shutil.rmtree(whole)


def run(kills: int, seed: int, folder: Path, say: Callable[[str], object] = print) -> list[str]:
    """Kill a server so many times. Returns what is wrong."""
    server = Killed(folder)
    try:
        return _run(server, kills, random.Random(seed), say)
    finally:
        server.end()


def _run(server: Killed, kills: int, chance: random.Random, say: Callable[[str], object]) -> list[str]:
    server.launch()
    server.wait()
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(server.data.with_name("client.log")))
    clients = [pulsar.Client(server.url, operation_timeout_seconds=int(WAIT), logger=logger) for _ in SENDERS]
    for topic in TOPICS:  # without a backlog, ledgers would be trimmed
        clients[0].subscribe(topic, "keeps all").close()
    for topic in BOTH:
        clients[0].subscribe(topic, "keeps all").close()
    acking = [Acking(server.port, topic) for topic in TOPICS]
    transacting = Transacting(server.port, random.Random(chance.random()))
    compacting = Compacting(lambda: server.admin_port, TOPICS[2])
    # each has a connection of its own, and comes back at another time: after kills, clients wait for up to a minute
    producing = [Producing(client, each) for client, each in zip(clients, SENDERS, strict=True)]
    try:
        try:
            for number in range(kills):
                moment = MOMENTS[number % len(MOMENTS)]
                counts = [len(each.receipts) for each in producing]
                kill(server, moment, chance)
                until(partial(_go_on, producing, counts), "a producer goes on")
                say(f"kill {number + 1} of {kills}, {moment}: {sum(len(p.receipts) for p in producing):,} receipts, "
                    f"{sum(len(a.acked) for a in acking):,} acks, {len(transacting.ended):,} transactions, {compacting.done:,} compactions, "
                    f"{server.segments()} segments")  # fmt: skip
        except KeyboardInterrupt:
            say("stopped: what came until now is judged")
            server.kill()
            server.launch()
            server.wait()
        for each in producing:
            each.end()
        transacting.end()
        compacting.end()
        entries = {(p.sender.topic, at) for p in producing for _, at in p.receipts if at != (-1, -1)}
        until(lambda: entries <= _asked(acking), "all entries are acknowledged")
        connects = [each.connects for each in acking]
        server.kill()  # what was acked stays so
        server.launch()
        server.wait()
        until(
            lambda: all(a.connects > n for a, n in zip(acking, connects, strict=True)),
            "the consumers are back",
        )
        wrong = [*judged(clients[0], producing, acking), *transacting.judged(clients[0])]
        sent = producing[-1].sent
        wrong += last_of_each_key(clients[0], TOPICS[2], KEYS, sent)
        if compacting.compact() != 204:
            wrong.append("a compaction is refused")
        wrong += last_of_each_key(clients[0], TOPICS[2], KEYS, sent)
        if not compacting.done or len(transacting.ended) < kills:
            wrong.append(
                f"{compacting.done} compactions, {len(transacting.ended)} transactions: too few to show anything"
            )
    finally:
        for each in producing:
            each._end = True
        for each_acking in acking:
            each_acking.end()
        transacting.end()
        compacting.end()
    for client in clients:
        client.close()
    server.stop()
    wrong += refolded(server.data)
    sent, deliveries = sum(p.sent for p in producing), sum(a.deliveries for a in acking)
    say(
        f"{server.starts} starts; {sent:,} messages in {len(entries):,} entries, which were delivered {deliveries:,} times"
    )
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.server.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="how many (default: 10)")
    parser.add_argument("--seed", type=int, default=None, help="of the moments of the kills (default: any)")
    parser.add_argument("--keep", action="store_true", help="keep the data folder if something is wrong")
    asked = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also in the background of a shell
    seed = random.randrange(1 << 32) if asked.seed is None else asked.seed
    folder = Path(tempfile.mkdtemp(prefix="magnetar-kills-"))
    print(f"seed {seed}")
    wrong = run(asked.kills, seed, folder)
    for each in wrong:
        print(f"wrong: {each}")
    print("something is wrong" if wrong else "nothing was lost or doubled")
    if wrong and asked.keep:
        print(f"the data folder: {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
