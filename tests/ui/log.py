"""The log of the replay that the tests look at."""

from __future__ import annotations

from typing import Any, NamedTuple

START = 1_767_225_600_000
QUOTA = "persistent://shop/day/clicks"
TTL = "persistent://shop/night/orders"
HOSTILE = "persistent://shop/day/<img src=x onerror=window.hacked=1>"
HOSTILE_SUBSCRIPTION = "</td><script>window.hacked=2</script>"
HOSTILE_PRODUCER = '"><script>window.hacked=3</script>'


class Record(NamedTuple):
    timestamp: int
    topic: str | None
    command: dict[str, Any]


def records() -> list[Record]:
    """Six hours in which a quota evicts, a TTL expires, retention trims, and a record is not a command."""
    found: list[Record] = []

    def add(minute: int, topic: str | None, **command: Any) -> None:
        found.append(Record(START + minute * 60_000, topic, command))

    def set_policy(namespace: str, name: str, value: Any) -> None:
        add(0, None, command="ADMIN", method="POST", path=f"/namespaces/{namespace}/{name}", body=value)

    def subscribe(topic: str, subscription: str, number: int) -> None:
        add(1, topic, command="SUBSCRIBE", connection=f"c{number}", consumer_id=number, request_id=number,
            subscription=subscription, subType="Shared", consumer_name=f"n{number}", initialPosition="Earliest")  # fmt: skip

    add(0, None, command="BROKER_CONFIG", settings={"managedLedgerMaxEntriesPerLedger": 20})
    quota = {"limitSize": 4000, "limitTime": -1, "policy": "consumer_backlog_eviction"}
    set_policy("shop/day", "backlogQuota", quota)
    set_policy("shop/night", "messageTTL", 3600)
    for number, (topic, subscription) in enumerate(
        [(QUOTA, "archive"), (TTL, "reports"), (HOSTILE, HOSTILE_SUBSCRIPTION)], 1
    ):
        subscribe(topic, subscription, number)
    add(1, TTL, command="FLOW", connection="c2", consumer_id=2, messagePermits=3)
    for number in range(180):
        add(2 + 2 * number, QUOTA, producer="web", sequence_id=number, payload="x" * 60)
        if number % 3 == 0:
            add(2 + 2 * number, TTL, producer="till", sequence_id=number, payload="y" * 30)
    add(361, HOSTILE, producer=HOSTILE_PRODUCER, sequence_id=0, payload="z")
    add(362, QUOTA, producer="web", sequenceid=7, payload="a typo")
    add(363, None, command="TICK")
    return found
