"""`python -m tests.fuzz.multiples`: what the dearest records cost, as multiples of a plain record beside them (docs/operate/security.md).

Each record is folded after a log that sets the scene. The time is the least of `TIMES` runs, each beside plain records, so other work
on the machine affects it little.
"""

from collections.abc import Callable

from schemas.commands import (
    Ack,
    Admin,
    BrokerConfig,
    Flow,
    IntRange,
    KeySharedMeta,
    KeyValue,
    MessageIdData,
    MessageMetadata,
    Publish,
    Send,
    Subscribe,
    Tick,
    to_json,
)
from tests.broker.kit import START
from tests.fuzz.cases import DAY, SEGMENTS, Log, Sent, begun, entries
from tests.fuzz.folding import UNIT, Run

TIMES = 3
TOPIC = "persistent://public/default/a"
PLAIN = [
    Sent(START, TOPIC, to_json(Publish(producer="p", sequence_id=each, payload="x" * 64, event_time=START)))
    for each in range(2000)
]
"""Their event time keeps them out of publish runs: like the dear ones, they take the scalar step."""


def record(command: object, topic: str | None = TOPIC, at: int = START) -> Sent:
    return Sent(at, topic, command if isinstance(command, bytes) else to_json(command))  # type: ignore[arg-type]


def scene(*steps: tuple[str, int]) -> Log:
    log = begun()
    for name, count in steps:
        SEGMENTS[name](log, TOPIC, count)
        log.now = START
    return log.log


def consumer(backlog: int) -> Log:
    log = begun()
    log.publish(TOPIC, count=backlog)
    log.subscribe(TOPIC, "s", "Shared", 1, 0)
    return log.log


def fan_out(count: int) -> Log:
    log = begun()
    log.publish(TOPIC)
    for each in range(count):
        log.subscribe(TOPIC, f"s{each}", "Shared", each, 10)
    return log.log


def topics(count: int) -> Log:
    log = begun()
    log.add(BrokerConfig(settings={"ttlDurationDefaultInSeconds": 30 * 86_400}), None)
    for each in range(count):
        log.publish(f"{TOPIC}-{each}", count=2)
        log.subscribe(f"{TOPIC}-{each}", "s", "Shared", each, 0)
    return log.log


def sent(count: int) -> Log:
    log = begun()
    entries(log, TOPIC, count)
    return log.log


def properties(count: int) -> dict[str, str]:
    return {str(each): "" for each in range(count)}


CASES: dict[str, Callable[[], tuple[Log, Sent]]] = {
    "PUBLISH with a payload of 1 MiB": lambda: ([], record(Publish(producer="p", sequence_id=1, payload="x" * (1 << 20)))),
    "PUBLISH with 87,000 properties": lambda: ([], record(Publish(producer="p", sequence_id=1, properties=properties(87_000)))),
    "SEND with 47,000 properties": lambda: (
        sent(1), record(Send(connection="x", producer_id=1, sequence_id=9, payload="x", metadata=MessageMetadata(
            "q", 9, START, properties=[KeyValue(str(each), "") for each in range(47_000)])))),
    "ACK of 38,000 entries": lambda: (
        consumer(100), record(Ack(connection="x", consumer_id=1, ack_type="Individual",
                                  message_id=[MessageIdData(1, each) for each in range(38_000)]))),
    "ACK with 22 sets of 1,000,000 messages each": lambda: (
        consumer(100), record(Ack(connection="x", consumer_id=1, ack_type="Individual", message_id=[
            MessageIdData(1, each, ack_set=[-1] * 15_625, batch_size=1_000_000) for each in range(22)]))),
    "SUBSCRIBE with 30,000 hash ranges": lambda: (
        [], record(Subscribe(connection="x", subscription="k", subType="Key_Shared", consumer_id=1, request_id=1,
                             keySharedMeta=KeySharedMeta("STICKY", hashRanges=[
                                 IntRange(2 * each, 2 * each) for each in range(30_000)])))),
    "half a million nested arrays in an ADMIN body (quarantined)": lambda: (
        [], record(b'{"command":"ADMIN","method":"POST","path":"/namespaces/a/b/x","body":' + b"[" * 500_000 + b"]" * 500_000 + b"}")),
    "FLOW that delivers 5,000 entries": lambda: (
        consumer(5000), record(Flow(connection="x", consumer_id=1, messagePermits=5000))),
    "PUBLISH to 1,000 subscriptions": lambda: (fan_out(1000), record(Publish(producer="p", sequence_id=9))),
    "BROKER_CONFIG with 1,000 topics": lambda: (topics(1000), record(BrokerConfig(profile="4.x", settings={}), None)),
    "a TTL for the namespace of 1,000 topics": lambda: (
        topics(1000), record(Admin(method="POST", path="/namespaces/public/default/messageTTL", body=60), None)),
    "TICK after a year of silence, 1,000 topics with a TTL and a subscription": lambda: (
        topics(1000), record(Tick(), None, START + 365 * DAY)),
    "TICK after a day, 1,000 topics that it deletes": lambda: (scene(("unused", 1000)), record(Tick(), None, START + DAY)),
    "ADMIN that makes 10,000 partitions": lambda: (
        [], record(Admin(method="PUT", path="/persistent/public/default/p/partitions", body=10_000))),
    "ADMIN that lists a partitioned topic of 10,000": lambda: (
        [record(Admin(method="PUT", path="/persistent/public/default/p/partitions", body=10_000))],
        record(Admin(method="GET", path="/persistent/public/default"), None)),
    "ADMIN: stats of 1,500 subscriptions": lambda: (
        scene(("subscriptions", 1500)), record(Admin(method="GET", path=f"/{TOPIC.replace('://', '/')}/stats"))),
}  # fmt: skip


def measure(log: Log, last: Sent) -> tuple[float, float]:
    """The time of the last record, as a multiple of a plain one, and that per unit."""
    found = []
    for _ in range(TIMES):
        one = Run().batch(PLAIN, counted=False).seconds / len(PLAIN)
        run = Run()
        run.batch(log or [record(Tick(), None)], counted=False)
        cost = run.batch([last], counted=False)
        held = sum(len(each.value) for each in log) // UNIT
        found.append((cost.seconds / one, cost.seconds / one / (1 + cost.units + held)))
    return min(found)


def main() -> None:
    plain = min(Run().batch(PLAIN, counted=False).seconds for _ in range(TIMES)) / len(PLAIN)
    print(f"a plain record: {plain * 1e6:.1f} µs of CPU time\n")
    print("| record | bytes | time | per unit |\n|---|---|---|---|")
    for name, case in CASES.items():
        log, last = case()
        multiple, per_unit = measure(log, last)
        print(f"| {name} | {len(last.value):,} | {multiple:,.0f} | {per_unit:.2g} |", flush=True)


if __name__ == "__main__":
    main()
