"""Traffic of official clients and operators on a real broker: all that a mirror of it must follow.

It is random, but for what happens for certain on each topic (`TOPICS`). Entries are noted by the message ids that brokers answer with.
The clients are a process of their own, for their library's native code may end it (3.13.0 with dead letters, as a consumer closes): then
others take their place.
"""

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pulsar

from streaming.record.rest import Rest
from tests.parity.pulsar import LocalPulsar, settings

NAMESPACE = "public/default"
PARTITIONS = 3
MOST_PARTITIONS = 5

At = tuple[int, int]
"""Ledger and entry."""


class Topic(NamedTuple):
    """A topic, and how its subscription `s` is consumed."""

    type: pulsar.ConsumerType
    consumers: int = 1
    dead_letters: str | None = None
    """The topic of messages that were redelivered twice."""
    quota: dict[str, Any] | None = None
    """The body of its backlog quota."""
    quota_type: str = "destination_storage"


_EVICTS = {"policy": "consumer_backlog_eviction"}

TOPICS = {
    "exclusive": Topic(pulsar.ConsumerType.Exclusive),
    "failover": Topic(pulsar.ConsumerType.Failover, consumers=2),
    "shared": Topic(pulsar.ConsumerType.Shared, consumers=2, dead_letters="dead"),
    "keys": Topic(pulsar.ConsumerType.KeyShared, consumers=2),
    "parts": Topic(pulsar.ConsumerType.Shared),
    "evicted": Topic(pulsar.ConsumerType.Shared, quota={"limitSize": 10_000, **_EVICTS}),
    "aged": Topic(pulsar.ConsumerType.Exclusive, quota={"limitTime": 20, **_EVICTS}, quota_type="message_age"),
}  # fmt: skip
"""By name. `parts` has partitions."""

_DEAD = "dead"

_POISON = "7"
"""Messages with this key end among the dead letters, where there are any."""

_IN_ORDER = (pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover)
_PAUSES = (0.005, 0.01, 0.05, 0.3)
_OPERATED = [name for name in TOPICS if name != "parts"]


def config() -> dict[str, str]:
    """Settings under which much happens in little time: short ledgers, and checks each few seconds."""
    return settings() | {
        "managedLedgerMaxEntriesPerLedger": "50", "managedLedgerMinLedgerRolloverTimeMinutes": "0",
        "messageExpiryCheckIntervalInMinutes": "1", "backlogQuotaCheckIntervalInSeconds": "10",
        "retentionCheckIntervalInSeconds": "20",
    }  # fmt: skip


def full(name: str) -> str:
    return f"persistent://{NAMESPACE}/{name}"


class Traffic:
    """Clients and operators of `real` in a process, from `start` to `stop`."""

    def __init__(self, real: LocalPulsar, seed: str, pause: float = 1.0) -> None:
        """`pause`: factor of the producers' pauses."""
        self.url, self.admin_url = (
            f"pulsar://127.0.0.1:{real.ports.broker}",
            f"http://127.0.0.1:{real.ports.admin}",
        )
        self.starts = 0
        self._seed, self._pause, self._folder = seed, pause, real.directory / "traffic"
        self._stopped = threading.Event()

    @property
    def topics(self) -> list[str]:
        """The topics now, with single partitions."""
        rest = Rest(self.admin_url)
        count = rest.get(f"/persistent/{NAMESPACE}/parts/partitions")["partitions"]
        names = [name for name in (*TOPICS, _DEAD) if name != "parts"]
        return [*map(full, names), *(full(f"parts-partition-{number}") for number in range(count))]

    @property
    def acked(self) -> dict[str, dict[At, float]]:
        """By topic, or partition: the entries for which a producer has the broker's receipt, and when it came (s)."""
        found: dict[str, dict[At, float]] = defaultdict(dict)
        for path in sorted(self._folder.glob("*.receipts")):
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):  # or else its writer was cut off
                    topic, ledger, entry, at = line.split()
                    found[topic].setdefault((int(ledger), int(entry)), float(at))
        return found

    @property
    def sought(self) -> dict[tuple[str, str], list[tuple[float, float]]]:
        """By topic and subscription: between which moments (s) its cursor was moved by a seek or a reset."""
        found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        for path in sorted(self._folder.glob("*.seeks")):
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    topic, subscription, since, to = line.split()
                    found[topic, subscription].append((float(since), float(to)))
        return found

    @property
    def done(self) -> Counter[str]:
        """What happened how often, to a few seconds."""
        return sum((Counter(json.loads(path.read_text())) for path in self._folder.glob("*.json")), Counter())

    def start(self) -> None:
        """Returns when there is traffic."""
        self._folder.mkdir()
        self._launch()
        self._watch = threading.Thread(target=self._again, daemon=True)
        self._watch.start()

    def stop(self) -> None:
        """End all clients. Then nothing happens any more, but for the broker's checks."""
        self._stopped.set()
        self._watch.join()
        with suppress(BrokenPipeError):
            self._process.communicate(timeout=120)
        if self._process.returncode > 0:
            raise AssertionError(f"the clients failed: see {self._folder}/said.txt")

    def _launch(self) -> None:
        self.starts += 1
        words = [self.url, self.admin_url, f"{self._seed}-{self.starts}", str(self._pause), str(self._folder)]
        with (self._folder / "said.txt").open("ab") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.mirror.traffic", *words],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, cwd=Path(__file__).parents[2],
            )  # fmt: skip
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise AssertionError(f"there is no traffic: see {self._folder}/said.txt")

    def _again(self) -> None:
        """Start other clients when those that there are have ended by a signal."""
        while not self._stopped.is_set():
            with suppress(subprocess.TimeoutExpired):
                if self._process.wait(1) >= 0 or self._stopped.is_set():
                    return
                self._launch()


class Clients:
    """The clients and operators, in threads."""

    def __init__(self, url: str, admin_url: str, seed: str, pause: float, folder: Path) -> None:
        self._url, self._rest, self._pause = url, Rest(admin_url), pause
        self._draw, self._stop = Random(seed), threading.Event()
        self._threads: list[threading.Thread] = []
        self._said, self._count = folder / f"{seed}.log", folder / f"{seed}.json"
        self._receipts = (folder / f"{seed}.receipts").open("a", buffering=1)
        self._seeks = (folder / f"{seed}.seeks").open("a", buffering=1)
        self._lock = threading.Lock()
        self.done: Counter[str] = Counter()

    def start(self) -> None:
        rest = self._rest
        assert rest.call("PUT", f"/persistent/{NAMESPACE}/parts/partitions", PARTITIONS).status in (204, 409)
        assert rest.call("PUT", "/namespaces/public/other").status in (204, 409)
        self._client = client = pulsar.Client(
            self._url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(self._said))
        )
        # The cluster's first ledger may have the id 0, which a mirror leaves out.
        client.create_producer("persistent://public/other/first").close()
        for name in (*TOPICS, _DEAD):
            client.subscribe(full(name), "idle", initial_position=pulsar.InitialPosition.Earliest).close()
        # Nothing of it goes, so that at the end the broker itself says what it got.
        path = f"/persistent/{NAMESPACE}"
        self._set(f"{path}/{_DEAD}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
        for name, topic in TOPICS.items():
            if topic.quota is not None:
                self._set(f"{path}/{name}/backlogQuota?backlogQuotaType={topic.quota_type}", topic.quota)
        jobs: list[tuple[Callable[..., None], tuple[Any, ...]]] = [(self._operate, ())]
        for name, topic in TOPICS.items():
            jobs += [(self._produce, (name,))] * 2
            jobs += [(self._consume, (name, topic))] * topic.consumers
        self._threads = [
            threading.Thread(target=job, args=(*given, Random(self._draw.random())), daemon=True)
            for job, given in jobs
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.count()
        self._client.close()

    def count(self) -> None:
        """Note what happened so far."""
        draft = self._count.with_suffix(".draft")
        draft.write_text(json.dumps(self.done))
        draft.replace(self._count)

    def _set(self, path: str, body: Any) -> None:
        deadline = time.monotonic() + 60
        while (
            said := self._rest.call("POST", path, body)
        ).status != 204:  # topic policies are not loaded yet
            assert time.monotonic() < deadline, (path, said)
            time.sleep(0.5)

    # -- clients --------------------------------------------------------------------------------------------------

    def _produce(self, name: str, draw: Random) -> None:
        """Producers that come and go, one after the other."""
        while not self._stop.is_set():
            with suppress(pulsar.PulsarException):  # its quota, an unload
                self._produce_once(name, draw)
            self._stop.wait(draw.choice([0, 0, 2]))

    def _produce_once(self, name: str, draw: Random) -> None:
        batches = draw.random() < 0.5
        producer = self._client.create_producer(
            full(name), batching_enabled=batches, batching_max_publish_delay_ms=20, block_if_queue_full=True
        )
        self.done["producers"] += 1
        end = time.monotonic() + draw.choice([5, 20, 60])

        def sent(result: pulsar.Result, id_: pulsar.MessageId) -> None:
            if result == pulsar.Result.Ok:
                self._note(name, id_)

        while time.monotonic() < end and not self._stop.wait(draw.choice(_PAUSES) * self._pause):
            key = str(draw.randrange(20))
            self.done["messages"] += 1
            if batches:
                for _ in range(draw.choice([1, 1, 5])):
                    producer.send_async(b"x" * draw.randrange(100), sent, partition_key=key)
            else:
                after = timedelta(seconds=draw.randrange(1, 8)) if draw.random() < 0.05 else None
                self._note(
                    name, producer.send(b"x" * draw.randrange(100), partition_key=key, deliver_after=after)
                )
        producer.flush()
        producer.close()

    def _note(self, name: str, id_: pulsar.MessageId) -> None:
        topic = full(name if id_.partition() < 0 else f"{name}-partition-{id_.partition()}")
        with self._lock:
            self._receipts.write(f"{topic} {id_.ledger_id()} {id_.entry_id()} {time.time()}\n")

    @contextmanager
    def _seeking(self, name: str, subscription: str) -> Iterator[None]:
        """Note when a cursor was moved; it may have been even if the broker's answer is an error."""
        since = time.time()
        try:
            yield
        finally:
            with self._lock:
                self._seeks.write(f"{full(name)} {subscription} {since} {time.time()}\n")

    def _consume(self, name: str, topic: Topic, draw: Random) -> None:
        """Consumers that come and go, one after the other."""
        while not self._stop.is_set():
            with suppress(pulsar.PulsarException):  # somebody else is exclusive, an unload, a seek
                self._consume_once(name, topic, draw)
            self._stop.wait(draw.choice([0, 1, 4]))

    def _consume_once(self, name: str, topic: Topic, draw: Random) -> None:
        letters = topic.dead_letters and pulsar.ConsumerDeadLetterPolicy(2, full(topic.dead_letters))
        consumer = self._client.subscribe(
            full(name), "s", topic.type, initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=draw.choice([5, 1000]), negative_ack_redelivery_delay_ms=500,
            batch_index_ack_enabled=draw.random() < 0.5, dead_letter_policy=letters or None,
        )  # fmt: skip
        self.done["consumers"] += 1
        seeks = name == "exclusive"
        end = time.monotonic() + draw.choice([5, 15, 40])
        while not self._stop.is_set() and time.monotonic() < end:
            try:
                message = consumer.receive(500)
            except pulsar.Timeout:
                continue
            if topic.dead_letters and message.partition_key() == _POISON:
                consumer.negative_acknowledge(message)
                self.done["nacks"] += 1
                continue
            match draw.randrange(20):
                case 0 | 1:
                    self.done["left alone"] += 1  # also parts of batches
                case 2 | 3:
                    consumer.negative_acknowledge(message)
                    self.done["nacks"] += 1
                case 4 | 5 | 6 if topic.type in _IN_ORDER:
                    consumer.acknowledge_cumulative(message)
                    self.done["cumulative acks"] += 1
                case 7 if seeks and draw.random() < 0.05:
                    with self._seeking(name, "s"):
                        consumer.seek(message.message_id())
                    self.done["seeks by id"] += 1
                case 8 if seeks and draw.random() < 0.05:
                    with self._seeking(name, "s"):
                        consumer.seek(int((time.time() - draw.randrange(10)) * 1000))
                    self.done["seeks by time"] += 1
                case _:
                    consumer.acknowledge(message)
                    self.done["acks"] += 1
        consumer.close()

    # -- operators ------------------------------------------------------------------------------------------------

    def _operate(self, draw: Random) -> None:
        while not self._stop.wait(3):
            self.count()
            name = draw.choice(_OPERATED)
            path, now = f"/persistent/{NAMESPACE}/{name}", time.time_ns() // 1_000_000
            spaces = f"/namespaces/{NAMESPACE}"
            calls: list[tuple[Any, ...]] = [
                ("unload", "PUT", f"{path}/unload"),
                ("unload of a partition", "PUT", f"/persistent/{NAMESPACE}/parts-partition-{draw.randrange(PARTITIONS)}/unload"),
                ("unload of a namespace", "PUT", f"{spaces}/unload"),
                ("skip", "POST", f"{path}/subscription/s/skip/3"),
                ("expire", "POST", f"{path}/subscription/s/expireMessages/5"),
                ("reset", "POST", f"{path}/subscription/idle/resetcursor/{now - 10_000}"),
                ("subscription", "PUT", f"{path}/subscription/late{draw.randrange(3)}"),
                ("unsubscription", "DELETE", f"{path}/subscription/late{draw.randrange(3)}"),
                ("message TTL", "POST", f"{spaces}/messageTTL", draw.choice([30, 3600])),
                ("retention", "POST", f"{spaces}/retention",
                 {"retentionTimeInMinutes": draw.choice([0, 10]), "retentionSizeInMB": 10}),
                ("topic policy", "POST", f"{path}/maxConsumers", draw.randrange(5, 9)),
                ("topic policy", "DELETE", f"{path}/maxConsumers"),
                ("topic TTL", "POST", f"/persistent/{NAMESPACE}/keys/messageTTL?messageTTL={draw.choice([30, 600])}"),
                ("partitions", "POST", f"/persistent/{NAMESPACE}/parts/partitions", draw.randint(PARTITIONS, MOST_PARTITIONS)),
            ]  # fmt: skip
            what, *call = draw.choice(calls)
            with self._seeking(name, "idle") if what == "reset" else nullcontext():
                status = self._rest.call(*call).status
            if status < 300:
                self.done[what] += 1


def main() -> None:
    """`python -m tests.mirror.traffic URL ADMIN_URL SEED PAUSE FOLDER`: says a line when there is traffic, and ends with its standard input."""
    url, admin_url, seed, pause, folder = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C is for who started it
        signal.signal(number, signal.SIG_IGN)
    clients = Clients(url, admin_url, seed, float(pause), Path(folder))
    clients.start()
    print("traffic", flush=True)
    sys.stdin.read()
    clients.stop()


if __name__ == "__main__":
    main()
